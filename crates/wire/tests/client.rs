//! The client on its own: nodes that are not there yet, refuse, or are something else; pool,
//! breaker, and that a call which has returned writes nothing any more.

mod support;

use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use keepwarm_store::types::{Epoch, GetOutcome, MissReason, NamespaceId, PutOutcome, ShedReason};
use keepwarm_wire::frames::{Opcode, VERSION, flags};
use keepwarm_wire::messages::{Announcement, AttachReply, GreetingReply, Refusal, RefusalCode};
use keepwarm_wire::{ClientError, EpochOutcome, ServerConfig};
use keepwarm_wire::{
    ConnectConfig, ConnectError, GetItem, HealthState, Memory, Server, TransportChoice,
};

use support::peer::Peer;
use support::proxy::{Proxy, Way};
use support::{
    LONG, Node, SECOND, Scratch, attach, connect, content, eventually, get, key_check, keys, put,
    spec, store,
};

const LENGTH: usize = 20_000;
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn a_node_that_is_not_there_yet_is_joined_later() {
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let memory = connect(&path);
    let space = attach(&memory, "m");
    let keys = keys(1, 4);
    assert_eq!(memory.health().state, HealthState::Down);
    assert!(memory.health().last_error.is_some_and(|text| text.contains("No such file")));
    let start = Instant::now();
    let found = space.lookup(&keys, 0, None, LONG).expect("no misuse");
    assert_eq!((found.prefix, found.miss), (0, Some(MissReason::StoreDown)));
    assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Miss(MissReason::StoreDown); 4]);
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Shed(ShedReason::StoreDown); 4]);
    assert_eq!(space.bump_epoch(Epoch(0), LONG), Ok(EpochOutcome::NotReached));
    assert_eq!(space.touch(&keys, LONG), Err(ClientError::NotDone(MissReason::StoreDown)));
    assert!(start.elapsed() < LONG, "nothing waits for a node that is known to be down");
    assert!(!space.joined() && space.problem().is_none());
    let _server = Server::start(store(64), ServerConfig::new(&path)).expect("a server");
    eventually("puts go through", LONG, || {
        put(&space, &keys, LENGTH, SECOND)
            .iter()
            .all(|outcome| matches!(outcome, PutOutcome::Stored | PutOutcome::Present))
    });
    assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok; 4]);
    assert!(space.joined());
    assert_eq!(memory.health().state, HealthState::Up);
}

#[test]
fn a_namespace_that_is_refused_late_misses_and_says_why() {
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let memory = connect(&path);
    let space = memory.attach(spec("m", 1), [1; 8], Epoch(0)).expect("nobody to refuse it");
    let _server = Server::start(store(64), ServerConfig::new(&path)).expect("a server");
    let keys = keys(1, 2);
    eventually("it is refused", LONG, || {
        space.lookup(&keys, 0, None, SECOND).expect("no misuse").miss == Some(MissReason::Identity)
    });
    assert!(space.problem().is_some_and(|text| text.contains("key check")));
    assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Miss(MissReason::Identity); 2]);
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Shed(ShedReason::Identity); 2]);
    assert_eq!(memory.health().state, HealthState::Up, "that is no failure of the node");
    let good = attach(&memory, "m");
    assert_eq!(put(&good, &keys, LENGTH, LONG), [PutOutcome::Stored; 2]);
}

#[test]
fn paths_that_can_never_work_are_errors() {
    let scratch = Scratch::new();
    let refused = |path: &std::path::Path| Memory::connect(ConnectConfig::new(path)).err();
    let long = scratch.path(&"x".repeat(120));
    assert!(matches!(refused(&long), Some(ConnectError::PathTooLong { max: 107, .. })));
    let file = scratch.path("file");
    std::fs::write(&file, "").unwrap();
    assert!(matches!(refused(&file), Some(ConnectError::NotASocket { .. })));
    let mut config = ConnectConfig::new(scratch.path("s"));
    config.connections_max = 0;
    let error = Memory::connect(config).err().unwrap();
    assert_eq!(error.to_string(), "connections_max is 0: give 1 to 64");
    let other = scratch.path("other.sock");
    let listener = UnixListener::bind(&other).unwrap();
    let talking = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        peer.write_all(&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..]).unwrap();
        peer
    });
    let error = refused(&other).expect("no node").to_string();
    assert!(error.contains("does not speak keepwarm's protocol"), "{error}");
    drop(talking.join());
}

/// Connects until the listener's queue takes no more; they wait in it while these live.
fn fill_queue(listener: &UnixListener, path: &Path) -> Vec<OwnedFd> {
    // SAFETY: the descriptor is the listener's, which outlives the call; only its queue shrinks.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 3) }, 0);
    let address = rustix::net::SocketAddrUnix::new(path).unwrap();
    let (family, kind) = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM);
    let mut waiting = Vec::new();
    loop {
        let flags = rustix::net::SocketFlags::NONBLOCK;
        let fd = rustix::net::socket_with(family, kind, flags, None).unwrap();
        match rustix::net::connect(&fd, &address) {
            Ok(()) => waiting.push(fd),
            Err(error) => {
                assert_eq!(std::io::Error::from(error).kind(), ErrorKind::WouldBlock);
                return waiting;
            }
        }
    }
}

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

#[test]
fn a_node_whose_queue_is_full_costs_the_deadline_and_no_processor() {
    let scratch = Scratch::new();
    let path = scratch.path("deaf.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let waiting = fill_queue(&listener, &path);
    assert!(!waiting.is_empty());
    let mut config = ConnectConfig::new(&path);
    config.deadline = SHORT * 5;
    let (start, used) = (Instant::now(), processor_time());
    let memory = Memory::connect(config).expect("a path that can work");
    let (took, used) = (start.elapsed(), processor_time() - used);
    assert_eq!(memory.health().state, HealthState::Down);
    assert!((SHORT * 5..SHORT * 5 + SECOND).contains(&took), "{took:?}");
    assert!(used < SHORT, "waiting for a place took {used:?} of processor in {took:?}");
    // The queue empties: who waits in line gets in.
    drop(waiting);
    let emptied = std::thread::spawn(move || (0..).take_while(|_| accept_one(&listener)).count());
    eventually("the client connects", LONG, || emptied.is_finished());
    assert!(emptied.join().is_ok());
}

/// False: what came was a client that greets.
fn accept_one(listener: &UnixListener) -> bool {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut peer = Peer { stream, correlation: 0 };
    peer.receive().is_err()
}

/// A node that greets and attaches, and answers all else with its limit; `ends`: and hangs up.
fn busy_node(listener: UnixListener, ends: bool) {
    for stream in listener.incoming() {
        let peer = Peer { stream: stream.unwrap(), correlation: 0 };
        std::thread::spawn(move || serve_busy(peer, ends));
    }
}

fn serve_busy(mut peer: Peer, ends: bool) {
    while let Ok((header, _)) = peer.receive() {
        peer.correlation = header.correlation;
        let frame = match Opcode::from_code(header.code) {
            Some(Opcode::Hello) => {
                let reply = GreetingReply {
                    version: VERSION,
                    incarnation: 7,
                    pid: 1,
                    node: String::from("busy"),
                    announcement: Announcement {
                        age_ms: 0,
                        weight_permille: 1000,
                        draining: false,
                    },
                    transports: Vec::new(),
                    capabilities: Vec::new(),
                };
                peer.frame(header.code, flags::REPLY, 0, &reply)
            }
            Some(Opcode::Attach) => {
                let (namespace, nearest) = (NamespaceId(0), String::new());
                let reply = AttachReply { namespace, epoch: Epoch(0), nearest };
                peer.frame(header.code, flags::REPLY, 0, &reply)
            }
            _ => {
                let refusal = Refusal { code: RefusalCode::Limit, text: String::from("too many") };
                peer.correlation = if ends { 0 } else { header.correlation };
                peer.frame(header.code, flags::REPLY | flags::REFUSED, 0, &refusal)
            }
        };
        let is_refused = peer.correlation == 0;
        if peer.stream.write_all(&frame).is_err() || is_refused {
            return;
        }
    }
}

#[test]
fn a_node_that_says_it_is_busy_has_not_failed() {
    for ends in [false, true] {
        let scratch = Scratch::new();
        let path = scratch.path("busy.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || busy_node(listener, ends));
        let memory = connect(&path);
        let space = attach(&memory, "m");
        let keys = keys(1, 2);
        let throttled = MissReason::Throttled;
        for _ in 0..5 {
            let found = space.lookup(&keys, 0, None, LONG).expect("no misuse");
            assert_eq!((found.prefix, found.miss), (0, Some(throttled)), "ends: {ends}");
            assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Throttled; 2]);
            assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Shed(ShedReason::Busy); 2]);
            assert_eq!(space.touch(&keys, LONG), Err(ClientError::NotDone(throttled)));
            let mut events = space.subscribe(None, LONG).expect("a stream");
            assert_eq!(events.next_batch(LONG), Err(ClientError::NotDone(throttled)));
            assert_eq!(memory.health().state, HealthState::Up, "ends: {ends}");
        }
        assert_eq!(memory.health().last_error, None);
        let events = 5; // each on a connection of its own
        assert_eq!(memory.stats().connections > events + 1, ends, "one that goes on is kept");
    }
}

/// The engine started before the bump with the weights of before: what it stores is of before.
#[test]
fn an_engine_that_joins_late_keeps_its_epoch() {
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let old = attach(&connect(&path), "m");
    assert!(!old.joined());
    let _server = Server::start(store(16), ServerConfig::new(&path)).expect("a server");
    let memory = connect(&path);
    let operator = attach(&memory, "m");
    assert_eq!(operator.bump_epoch(Epoch(1), LONG), Ok(EpochOutcome::Acknowledged));
    let new = attach(&memory, "m");
    assert_eq!(new.epoch(), Epoch(1), "who attaches after the bump starts behind it");
    let keys = keys(1, 1);
    let mut outcome = PutOutcome::Shed(ShedReason::StoreDown);
    eventually("the old engine joins", LONG, || {
        outcome = put(&old, &keys, LENGTH, LONG)[0];
        outcome != PutOutcome::Shed(ShedReason::StoreDown)
    });
    assert_eq!(outcome, PutOutcome::Shed(ShedReason::Epoch));
    assert_eq!((old.joined(), old.epoch()), (true, Epoch(0)));
    assert_eq!(get(&old, &keys, LENGTH, LONG), [GetOutcome::Miss(MissReason::Epoch)]);
    assert_eq!(get(&new, &keys, LENGTH, LONG), [GetOutcome::Miss(MissReason::Absent)]);
    assert_eq!(put(&new, &keys, LENGTH, LONG), [PutOutcome::Stored]);
    assert_eq!(get(&old, &keys, LENGTH, LONG), [GetOutcome::Miss(MissReason::Epoch)]);
}

#[test]
fn a_closed_memory_attaches_nothing() {
    let node = Node::start(16);
    for memory in [node.connect(), Memory::embedded(node.store.clone())] {
        memory.close();
        let spec = spec("m", 1);
        let check = key_check(&spec);
        let refused = memory.attach_within(spec, check, Epoch(0), LONG).err();
        let problem = refused.expect("it is closed").problem;
        assert_eq!(problem, "the memory is closed: connect again");
    }
}

#[test]
fn subscriptions_have_a_limit_of_their_own() {
    const LIMIT: usize = 16;
    let node = Node::start(16);
    for memory in [node.connect(), Memory::embedded(node.store.clone())] {
        let space = attach(&memory, "m");
        let follow = || space.subscribe(None, LONG);
        let mut streams: Vec<_> = (0..LIMIT).map(|_| follow().expect("a place")).collect();
        let text = follow().err().expect("no place is left").to_string();
        assert!(text.contains("16 subscriptions"), "{text}");
        assert!(node.server.as_ref().unwrap().connections() <= LIMIT + 1);
        streams.pop();
        streams.push(follow().expect("the place that was given back"));
        assert!(follow().is_err());
        assert_eq!(memory.health().state, HealthState::Up);
    }
}

#[test]
fn many_threads_share_few_connections() {
    let node = Node::start(64);
    let mut config = ConnectConfig::new(&node.path);
    config.connections_max = 3;
    config.transport = TransportChoice::Unix;
    let memory = Memory::connect(config).expect("a node");
    let space = attach(&memory, "m");
    let keys = keys(1, 4);
    put(&space, &keys, LENGTH, LONG);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                for _ in 0..10 {
                    assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok; 4]);
                    assert!(node.server.as_ref().unwrap().connections() <= 3);
                }
            });
        }
    });
    assert!(memory.stats().connections <= 3, "{:?}", memory.stats());
    drop((memory, space));
    eventually("they end with the memory", LONG, || {
        node.server.as_ref().unwrap().connections() == 0
    });
}

#[test]
fn no_time_is_a_miss_and_says_nothing_about_the_node() {
    let node = Node::start(64);
    let memory = node.connect();
    let space = attach(&memory, "m");
    let keys = keys(1, 2);
    put(&space, &keys, LENGTH, LONG);
    for _ in 0..10 {
        let found = space.lookup(&keys, 0, None, Duration::ZERO).expect("no misuse");
        assert_eq!(found.miss, Some(MissReason::Deadline));
        get(&space, &keys, LENGTH, Duration::from_nanos(1));
    }
    assert_eq!(memory.health().state, HealthState::Up);
    assert_eq!(memory.stats().deadlines, 20);
    assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok; 2]);
}

/// The moment when the caller is told is the last at which its buffer can change.
#[test]
fn a_call_that_has_returned_writes_nothing_any_more() {
    let node = Node::start(64);
    let proxy = Proxy::start(node.scratch("proxy.sock"), &node.path);
    let space = attach(&connect(&proxy.path), "m");
    let key = keys(1, 1)[0];
    let length = 4 << 20;
    put(&attach(&node.connect(), "m"), &[key], length, LONG);
    let mut buffer = vec![0u8; length];
    proxy.close_gate();
    let item = GetItem { key, part: 0, ptr: buffer.as_mut_ptr(), len: length };
    // SAFETY: `buffer` outlives the call and is used by nobody else meanwhile.
    let outcomes = unsafe { space.get_into(&[item], SHORT) }.expect("no misuse");
    assert_eq!(outcomes, [GetOutcome::Miss(MissReason::Deadline)]);
    buffer.fill(0xee);
    proxy.take_passed(Way::ToClient);
    proxy.open_gate();
    // Whatever was on its way finds its end: the connection was given up.
    assert_eq!(get(&space, &[key], length, LONG), [GetOutcome::Ok]);
    assert!(buffer.iter().all(|byte| *byte == 0xee), "written after the return");
    drop(content(key, 0));
}

#[test]
fn threads_and_descriptors_end_with_the_memory() {
    let scratch = Scratch::new();
    let asking = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        tasks.filter_map(|task| name(task).ok()).filter(|name| name.contains("warm-ask")).count()
    };
    let memories: Vec<_> = (0..5)
        .map(|n| {
            let memory = connect(&scratch.path(&format!("lonely-{n}.sock")));
            let spec = spec("m", 1);
            let check = key_check(&spec);
            let space = memory.attach(spec, check, Epoch(0)).expect("nobody to refuse it");
            (memory, space)
        })
        .collect();
    eventually("each asks for its node", LONG, || asking() >= 5);
    drop(memories);
    eventually("nobody asks any more", LONG, || asking() == 0);
}
