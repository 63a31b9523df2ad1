//! A client across `fork`: the child gets its own connections, the parent keeps its own, and an
//! embedded store stays with the parent. Without the usual harness, whose threads do not fork.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keepwarm_store::types::{BlockKey, GetOutcome, MissReason, PutOutcome};
use keepwarm_store::{Event, EventBatch, EventKind};
use keepwarm_wire::{ClientError, EventStream, HealthState, Memory, Space, TransportChoice};

use support::{Fleet, LONG, Node, SECOND, attach, get, keys, put, store};

const LENGTH: usize = 20_000;

fn main() {
    // The harness's flags, such as `--list`, are of no use here.
    if std::env::args().any(|arg| arg == "--list") {
        let tests = ["a_client", "a_server", "a_fleet", "events"]
            .map(|what| format!("{what}_across_fork: test"));
        println!("{}\ntwins_with_one_pid: test", tests.join("\n"));
        return;
    }
    for transport in [TransportChoice::Unix, TransportChoice::Shm] {
        a_client_across_fork(transport);
    }
    println!("test a_client_across_fork ... ok");
    a_server_across_fork();
    println!("test a_server_across_fork ... ok");
    a_fleet_across_fork();
    println!("test a_fleet_across_fork ... ok");
    events_across_fork();
    println!("test events_across_fork ... ok");
    twins_with_one_pid();
    println!("test twins_with_one_pid ... ok");
}

/// A child that inherits a server and drops it takes nothing from its parent.
fn a_server_across_fork() {
    let mut node = Node::start(16);
    let space = attach(&node.connect(), "m");
    let keys = keys(1, 1);
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Stored]);
    // SAFETY: the child only runs the code under test, which must cope with what it finds, and
    // leaves through `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let server = node.server.take().expect("a server");
        let drained = server.drain(SECOND);
        let (connections, figures) = (server.connections(), server.stat().0.len());
        drop(server);
        let nothing = !drained && (connections, figures) == (0, 0);
        // SAFETY: ends the process without the parent's exit handlers.
        unsafe { libc::_exit(if nothing { 0 } else { 1 }) };
    }
    assert_eq!(wait_for(pid), 0, "the child has no server");
    assert!(node.path.exists(), "the parent's socket is gone");
    assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok], "the parent goes on");
}

fn a_client_across_fork(transport: TransportChoice) {
    let node = Node::start(64);
    let memory = node.connect_by(transport);
    let way = memory.health().transport;
    let space = attach(&memory, "m");
    let local_store = store(16);
    let local = Memory::embedded(local_store.clone());
    let local_space = attach(&local, "m");
    let keys = keys(1, 8);
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Stored; 8]);
    assert_eq!(put(&local_space, &keys, LENGTH, LONG), [PutOutcome::Stored; 8]);
    let found = space.lookup(&keys, 0, Some(SECOND * 10), LONG).expect("no misuse");

    // Threads that hold the parent's locks at the moment of the fork, now and then.
    let over = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..2)
        .map(|_| {
            let (space, over, keys) = (space.clone(), over.clone(), keys.clone());
            std::thread::spawn(move || {
                while !over.load(Ordering::Acquire) {
                    assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok; 8]);
                }
            })
        })
        .collect();
    for round in 0..20 {
        // SAFETY: the child only runs the code under test, which must cope with what it finds,
        // and leaves through `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
        if pid == 0 {
            let run = || child(way, (&memory, &space), (&local, &local_space));
            let right = catch_unwind(AssertUnwindSafe(run));
            drop((memory, space, local, local_space));
            // SAFETY: ends the process without the parent's exit handlers.
            unsafe { libc::_exit(if right.is_ok() { 0 } else { 1 }) };
        }
        assert_eq!(wait_for(pid), 0, "child {round}");
        assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok; 8], "the parent goes on");
    }
    over.store(true, Ordering::Release);
    busy.into_iter().for_each(|thread| thread.join().expect("the parent's threads go on"));
    assert_eq!(get(&local_space, &keys, LENGTH, LONG), [GetOutcome::Ok; 8]);
    let lease = found.lease.expect("a lease");
    assert_eq!(space.renew(lease, SECOND, LONG), Ok(true), "the parent's lease still holds");
    node.store.check().expect("the store adds up");
    local_store.check().expect("the store adds up");
}

/// A child finds the same blocks on the same nodes over connections of its own, while threads of
/// its parent are in the middle of calls.
fn a_fleet_across_fork() {
    let fleet = Fleet::start(3, 16);
    let memory = fleet.connect();
    let space = attach(&memory, "m");
    let keys = keys(1, 24);
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Stored; 24]);
    let found = space.lookup(&keys, 0, Some(SECOND * 10), LONG).expect("no misuse");
    let over = Arc::new(AtomicBool::new(false));
    let busy = std::thread::spawn({
        let (space, over, keys) = (space.clone(), over.clone(), keys.clone());
        move || {
            while !over.load(Ordering::Acquire) {
                assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok; 24]);
            }
        }
    });
    for _ in 0..10 {
        let lease = found.lease.expect("a lease");
        let child = fork_and(|| {
            assert_eq!(get(&space, &keys, LENGTH, LONG), [GetOutcome::Ok; 24]);
            assert_eq!(space.renew(lease, SECOND, LONG), Ok(false), "the parent's lease");
            assert!(memory.stats().connections >= 3, "connections of its own to each node");
        });
        assert_eq!(wait_for(child), 0, "the child");
    }
    over.store(true, Ordering::Release);
    busy.join().expect("the parent's thread goes on");
    assert_eq!(space.renew(found.lease.expect("a lease"), SECOND, LONG), Ok(true));
}

/// A child that asks the parent's streams gets no event of the parent's, and takes none from it.
fn events_across_fork() {
    let node = Node::start(64);
    let (memory, local) = (node.connect(), Memory::embedded(node.store.clone()));
    let (space, local_space) = (attach(&memory, "m"), attach(&local, "m"));
    let follow = |space: &Space| space.subscribe(None, LONG).expect("a stream");
    let mut streams = [follow(&space), follow(&local_space)];
    streams.iter_mut().for_each(|stream| while !is_snapshots_end(&mut **stream) {});
    // SAFETY: as in `a_client_across_fork`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let run = || {
            for stream in &mut streams {
                for _ in 0..10 {
                    let batch = stream.next_batch(SECOND / 10);
                    assert_eq!(batch, Err(ClientError::NotDone(MissReason::StoreDown)));
                }
            }
        };
        let right = catch_unwind(AssertUnwindSafe(run));
        drop((streams, space, local_space, memory, local));
        // SAFETY: ends the process without the parent's exit handlers.
        unsafe { libc::_exit(if right.is_ok() { 0 } else { 1 }) };
    }
    let keys = keys(1, 8);
    for key in &keys {
        assert_eq!(put(&space, &[*key], LENGTH, LONG), [PutOutcome::Stored]);
    }
    assert_eq!(wait_for(pid), 0, "the child");
    for mut stream in streams {
        assert_eq!(stored(&mut *stream, keys.len()), keys, "the parent misses no event");
    }
    node.store.check().expect("the store adds up");
}

/// In a new pid namespace a child has its parent's number: both must still have connections of
/// their own, or the one would take the other's answers.
fn twins_with_one_pid() {
    let node = Node::start(64);
    let ended = wait_for(fork_and(|| {
        if unshare_pids().is_err() {
            println!("skipped: this user may not make pid namespaces");
            return;
        }
        let first = fork_and(|| {
            assert_eq!(std::process::id(), 1);
            let memory = support::connect(&node.path);
            let space = attach(&memory, "m");
            let (own, twins) = (keys(1, 8), keys(2, 8));
            assert_eq!(put(&space, &own, LENGTH, LONG), [PutOutcome::Stored; 8]);
            assert_eq!(put(&space, &twins, LENGTH, LONG), [PutOutcome::Stored; 8]);
            unshare_pids().expect("once more");
            let read = |keys: &[BlockKey]| {
                for _ in 0..300 {
                    assert_eq!(get(&space, keys, LENGTH, LONG), [GetOutcome::Ok; 8]);
                }
            };
            let twin = fork_and(|| {
                assert_eq!(std::process::id(), 1);
                read(&twins);
            });
            read(&own);
            assert_eq!(wait_for(twin), 0, "the twin");
        });
        assert_eq!(wait_for(first), 0, "the first");
    }));
    assert_eq!(ended, 0, "the processes of the namespaces");
    node.store.check().expect("the store adds up");
}

/// The caller's next children live in a new pid namespace.
fn unshare_pids() -> std::io::Result<()> {
    // SAFETY: changes what `fork` does, nothing in memory.
    match unsafe { libc::unshare(libc::CLONE_NEWPID) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Runs `work` in a child; returns its number as the caller sees it.
fn fork_and(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: as in `a_client_across_fork`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "fork: {}", std::io::Error::last_os_error());
    if pid == 0 {
        let right = catch_unwind(AssertUnwindSafe(work));
        // SAFETY: ends the process without the parent's exit handlers.
        unsafe { libc::_exit(if right.is_ok() { 0 } else { 1 }) };
    }
    pid
}

fn is_snapshots_end(stream: &mut dyn EventStream) -> bool {
    let batch = stream.next_batch(SECOND).expect("a stream");
    matches!(batch, EventBatch::Snapshot { last: true, .. })
}

fn stored(stream: &mut dyn EventStream, count: usize) -> Vec<BlockKey> {
    let mut found = Vec::new();
    support::eventually("the events come", LONG, || {
        match stream.next_batch(SECOND).expect("a stream") {
            EventBatch::Events { events, .. } => found.extend(events.iter().filter_map(key_of)),
            other => panic!("{other:?} without a break"),
        }
        found.len() >= count
    });
    found
}

fn key_of(event: &Event) -> Option<BlockKey> {
    match event.kind {
        EventKind::Stored { key, .. } => Some(key),
        _ => None,
    }
}

fn child(
    transport: &str,
    (memory, space): (&Memory, &Space),
    (local, local_space): (&Memory, &Space),
) {
    let keys = keys(1, 8);
    assert_eq!(get(space, &keys, LENGTH, LONG), [GetOutcome::Ok; 8]);
    let fresh = support::keys(u64::from(std::process::id()), 2);
    assert_eq!(put(space, &fresh, LENGTH, LONG), [PutOutcome::Stored; 2]);
    assert_eq!(memory.health().state, HealthState::Up);
    let connections = memory.stats().connections;
    // One for its calls and, by shared memory, one for its map.
    assert!((1..=2).contains(&connections), "{connections}: its own connections, its own counts");
    support::eventually("it has its parent's way, by a map of its own", LONG, || {
        assert_eq!(get(space, &keys, LENGTH, LONG), [GetOutcome::Ok; 8]);
        memory.health().transport == transport
    });
    let down = GetOutcome::Miss(MissReason::StoreDown);
    assert_eq!(get(local_space, &keys, LENGTH, SECOND), [down; 8]);
    assert_eq!(local.health().state, HealthState::Down);
}

/// The exit code; fails when the child hangs.
fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    support::eventually("the child ends", LONG, || {
        // SAFETY: `status` outlives the call.
        match unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) } {
            0 => false,
            ended => ended == pid,
        }
    });
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 100 + libc::WTERMSIG(status) }
}
