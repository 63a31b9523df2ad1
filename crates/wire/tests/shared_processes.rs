//! Shared memory between real processes: nodes killed in the middle of a copy, stopped, restarted;
//! clients killed with all they hold. Alone in its process, because it counts descriptors and maps.

mod support;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keepwarm_store::types::{GetOutcome, MissReason, PutOutcome};
use keepwarm_wire::frames::Opcode;
use keepwarm_wire::messages::{
    GetAsk, Grant, LocateReply, LocateRequest, PutAsk, PutGrants, PutRequest,
};
use keepwarm_wire::{
    ConnectConfig, ConnectError, HealthState, Memory, Server, ServerConfig, Space, TransportChoice,
};

use support::child::{Process, role};
use support::passing::Memfd;
use support::peer::Peer;
use support::proxy::Proxy;
use support::{
    LONG, Node, SECOND, Scratch, attach, connect_by, descriptors, eventually, get, keys, put,
};

const LENGTH: usize = 300_000;

/// These count what the whole process has: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maps of arenas in this process that are read-only: its own as a client.
fn arenas_mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process has maps");
    let of_client = |line: &&str| line.contains("memfd:keepwarm-arena") && line.contains(" r--s ");
    maps.lines().filter(of_client).count()
}

/// Not a test: a node, when started as a child.
#[test]
fn child_node() {
    let Some(path) = role() else { return };
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal)).expect("dies with its parent");
    let _server = Server::start(support::store(64), ServerConfig::new(path)).expect("a server");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_node_is_let_go_and_its_successor_mapped() {
    let _alone = alone();
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let mut node = Process::node("child_node", &path);
    let memory = connect_by(&path, TransportChoice::Shm);
    let space = attach(&memory, "m");
    let keys = keys(1, 8);
    let over = Arc::new(AtomicBool::new(false));
    let traffic: Vec<_> = (0..2).map(|_| traffic(space.clone(), over.clone())).collect();
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Stored; 8]);
    for _ in 0..3 {
        assert_eq!(memory.health().transport, "shm");
        node.kill();
        // Without a call of ours: the line tells.
        eventually("the map is let go", LONG, || arenas_mapped() == 0);
        eventually("the loss is noticed", LONG, || {
            let down = GetOutcome::Miss(MissReason::StoreDown);
            get(&space, &keys, LENGTH, SECOND) == [down; 8]
        });
        let health = memory.health();
        assert_eq!(health.transport, "unix");
        assert!(health.fallback.is_some_and(|text| text.contains("has gone")));
        node = Process::node("child_node", &path);
        eventually("the new one is mapped", LONG, || {
            put(&space, &keys, LENGTH, SECOND);
            memory.health().transport == "shm"
        });
        assert_eq!(memory.health().fallback, None);
        eventually("hits are back", LONG, || {
            get(&space, &keys, LENGTH, SECOND) == [GetOutcome::Ok; 8]
        });
        assert_eq!(arenas_mapped(), 1);
    }
    over.store(true, Ordering::Release);
    for thread in traffic {
        assert!(thread.join().expect("no wrong bytes") > 0);
    }
    drop((space, memory));
    eventually("no map is left", LONG, || arenas_mapped() == 0);
}

/// Gets and puts without a pause; every byte is checked by `get`. Returns how many hits.
fn traffic(space: Space, over: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let (mut hits, mut round) = (0, 0);
        while !over.load(Ordering::Acquire) {
            round += 1;
            let keys = keys(10 + round % 50, 4);
            put(&space, &keys, LENGTH, SECOND);
            let outcomes = get(&space, &keys, LENGTH, SECOND);
            hits += outcomes.iter().filter(|outcome| **outcome == GetOutcome::Ok).count() as u64;
        }
        hits
    })
}

#[test]
fn a_stopped_node_costs_deadlines_and_is_found_again_with_its_map() {
    let _alone = alone();
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let node = Process::node("child_node", &path);
    let memory = connect_by(&path, TransportChoice::Shm);
    let space = attach(&memory, "m");
    let keys = keys(1, 4);
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Stored; 4]);
    node.signal("-STOP");
    let deadline = Duration::from_millis(100);
    for _ in 0..6 {
        let start = Instant::now();
        let outcomes = get(&space, &keys, LENGTH, deadline);
        assert!(start.elapsed() < deadline + SECOND, "{:?}", start.elapsed());
        let missed = |outcome: &GetOutcome| {
            let reasons = [MissReason::Deadline, MissReason::StoreDown];
            reasons.map(GetOutcome::Miss).contains(outcome)
        };
        assert!(outcomes.iter().all(missed), "{outcomes:?}");
        put(&space, &support::keys(2, 4), LENGTH, deadline);
        assert!(start.elapsed() < deadline * 2 + SECOND, "{:?}", start.elapsed());
    }
    assert_eq!(memory.health().state, HealthState::Down);
    node.signal("-CONT");
    eventually("hits are back", LONG, || get(&space, &keys, LENGTH, SECOND) == [GetOutcome::Ok; 4]);
    assert_eq!(memory.health().transport, "shm", "its map was good all the time");
}

/// Not a test: a client that holds all it can.
#[test]
fn child_client() {
    let Some(path) = role() else { return };
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal)).expect("dies with its parent");
    let path = Path::new(&path);
    let memory = connect_by(path, TransportChoice::Shm);
    let space = attach(&memory, "m");
    let (mut reader, attached) = Peer::attached(path);
    let ask = |key| GetAsk { key, part: 0, length: LENGTH as u32 };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    let asks = keys(1, 8).into_iter().map(ask).collect();
    let request = LocateRequest { namespace, epoch, landed: vec![], asks };
    let _: LocateReply = reader.ask(Opcode::Locate, &request);
    let (mut writer, attached) = Peer::attached(path);
    writer.stage(&Memfd::staging(1 << 20));
    let ask = |key| PutAsk { key, part: 0, length: 1 << 20, engine_hash: None };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    let asks = keys(2, 8).into_iter().map(ask).collect();
    let PutGrants(grants) = writer.ask(Opcode::PutStaged, &PutRequest { namespace, epoch, asks });
    assert_eq!(grants, [Grant::Granted; 8]);
    loop {
        put(&space, &keys(3, 8), LENGTH, SECOND);
        get(&space, &keys(3, 8), LENGTH, SECOND);
    }
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    let _alone = alone();
    let node = Node::start(64);
    let own = attach(&node.connect(), "m");
    put(&own, &keys(1, 8), LENGTH, LONG);
    put(&own, &keys(3, 8), LENGTH, LONG);
    let number = |name: &str| node.server.as_ref().unwrap().stat().number(name).expect(name);
    eventually("all is quiet", LONG, || number("server.connections") == 1);
    let (blocks, before) = (node.store.stats().blocks, descriptors());
    for _ in 0..2 {
        let mut client = Process::start("child_client", &node.path);
        eventually("the client holds what it can", LONG, || {
            let stats = node.store.stats();
            stats.writing_bytes >= 8 << 20
                && stats.reads_in_flight >= 8
                && number("server.arena_maps") == 1
                && number("server.stagings_bytes") >= 1 << 20
        });
        client.kill();
        eventually("nothing is left of it", LONG, || {
            let stats = node.store.stats();
            (stats.writing_bytes, stats.reads_in_flight, stats.blocks) == (0, 0, blocks)
                && (number("server.arena_maps"), number("server.stagings_bytes")) == (0, 0)
                && (number("server.connections"), number("server.loads_bytes")) == (1, 0)
                && descriptors() == before
        });
        node.store.check().expect("the store adds up");
    }
}

#[test]
fn connecting_and_closing_leaves_nothing_in_the_client() {
    let _alone = alone();
    let node = Node::start(16);
    let server = || node.server.as_ref().unwrap();
    let before = descriptors();
    for n in 0..20 {
        let memory = connect_by(&node.path, TransportChoice::Shm);
        let space = attach(&memory, "m");
        put(&space, &keys(n, 2), LENGTH, LONG);
        assert_eq!(get(&space, &keys(n, 2), LENGTH, LONG), [GetOutcome::Ok; 2]);
        eventually("the one before is gone", LONG, || arenas_mapped() == 1);
        if n % 2 == 0 {
            memory.close();
            assert_eq!(memory.health().state, HealthState::Closed);
        }
    }
    eventually("all of it is gone", LONG, || {
        arenas_mapped() == 0 && server().connections() == 0 && descriptors() == before
    });
}

/// Where descriptors cannot come through, the socket has to do, and says so.
#[test]
fn a_way_that_passes_bytes_only_falls_back_and_says_why() {
    let _alone = alone();
    let node = Node::start(16);
    let proxy = Proxy::start(node.scratch("proxy.sock"), &node.path);
    let memory = connect_by(&proxy.path, TransportChoice::Auto);
    let space = attach(&memory, "m");
    assert_eq!(put(&space, &keys(1, 2), LENGTH, LONG), [PutOutcome::Stored; 2]);
    assert_eq!(get(&space, &keys(1, 2), LENGTH, LONG), [GetOutcome::Ok; 2]);
    let health = memory.health();
    assert_eq!(health.transport, "unix");
    assert!(health.fallback.is_some_and(|text| text.contains("passes bytes only")));
    assert_eq!(memory.stats().data_path.copies_per_byte, 0.0);
    let mut config = ConnectConfig::new(&*proxy.path);
    (config.transport, config.deadline) = (TransportChoice::Shm, LONG);
    match Memory::connect(config) {
        Err(ConnectError::NoSharedMemory { problem, .. }) => {
            assert!(problem.contains("passes bytes only"), "{problem}");
        }
        other => panic!("{:?}", other.map(|memory| memory.health())),
    }
    let mut config = ConnectConfig::new(keepwarm_wire::Address::parse("tcp://127.0.0.1").unwrap());
    config.transport = TransportChoice::Shm;
    let refused = Memory::connect(config).err().expect("no shared memory over tcp").to_string();
    assert!(refused.contains("transport is shm"), "{refused}");
}

#[test]
fn the_way_of_the_bytes_is_told() {
    let _alone = alone();
    let node = Node::start(64);
    let memory = connect_by(&node.path, TransportChoice::Auto);
    let space = attach(&memory, "m");
    put(&space, &keys(1, 8), 1 << 20, LONG);
    for _ in 0..3 {
        get(&space, &keys(1, 8), 1 << 20, LONG);
    }
    let path = memory.stats().data_path;
    assert_eq!((path.transport, path.checksum), ("shm", true));
    assert_eq!(path.copies_per_byte, (2.0 + 3.0) / 4.0, "two for a put, one for a get");
    assert!(path.system_calls_per_mib > 0.0 && path.system_calls_per_mib < 12.0, "{path:?}");
    let stat = node.server.as_ref().unwrap().stat();
    assert_eq!(stat.number("server.bytes_located"), Some(24 << 20));
    assert_eq!(stat.number("server.bytes_staged"), Some(8 << 20));
    assert_eq!(
        (stat.number("server.bytes_sent"), stat.number("server.arena_maps")),
        (Some(0), Some(1))
    );
}
