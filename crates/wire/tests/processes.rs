//! Real processes: nodes that are stopped, killed and restarted. Killed clients are in `leaks.rs`.

mod support;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keepwarm_store::types::{GetOutcome, LeaseId, MissReason, PutOutcome, ShedReason};
use keepwarm_wire::{HealthState, Server, ServerConfig, Space};

use support::child::{Process, role};
use support::{LONG, SECOND, Scratch, attach, connect, eventually, get, keys, load_average, put};

const LENGTH: usize = 20_000;

/// Not a test: a node, when started as a child. Dies with its parent.
#[test]
fn child_node() {
    let Some(path) = role() else { return };
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal)).expect("dies with its parent");
    let mut config = ServerConfig::new(path);
    config.clients_max = 512;
    let _server = Server::start(support::store(64), config).expect("a server");
    loop {
        std::thread::park();
    }
}

#[test]
fn a_stopped_node_costs_deadlines_then_nothing_and_is_found_again() {
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let node = Process::node("child_node", &path);
    let memory = connect(&path);
    let space = attach(&memory, "m");
    let keys = keys(1, 4);
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Stored; 4]);
    node.signal("-STOP");
    let deadline = Duration::from_millis(100);
    let mut reasons = Vec::new();
    for _ in 0..6 {
        let start = Instant::now();
        reasons.push(space.lookup(&keys, 0, None, deadline).expect("no misuse").miss);
        assert!(start.elapsed() < deadline + SECOND, "{:?}", start.elapsed());
    }
    assert_eq!(reasons[..3], [Some(MissReason::Deadline); 3], "until the breaker opens");
    assert_eq!(reasons[3..], [Some(MissReason::StoreDown); 3], "and after that at once");
    assert_eq!(memory.health().state, HealthState::Down);
    let shed = PutOutcome::Shed(ShedReason::StoreDown);
    assert_eq!(put(&space, &keys, LENGTH, deadline), [shed; 4]);
    let start = Instant::now();
    let other = connect(&path);
    assert!(start.elapsed() < SECOND * 3, "connecting to it is bounded too");
    assert_eq!(other.health().state, HealthState::Down);
    node.signal("-CONT");
    for space in [space, attach(&other, "m")] {
        eventually("hits are back", LONG, || {
            get(&space, &keys, LENGTH, SECOND) == [GetOutcome::Ok; 4]
        });
    }
    assert_eq!(memory.health().state, HealthState::Up);
}

#[test]
fn a_killed_node_is_found_again_when_it_is_back() {
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let mut node = Process::node("child_node", &path);
    let memory = connect(&path);
    let space = attach(&memory, "m");
    let keys = keys(1, 8);
    let over = Arc::new(AtomicBool::new(false));
    let traffic: Vec<_> = (0..3).map(|_| traffic(space.clone(), over.clone())).collect();
    assert_eq!(put(&space, &keys, LENGTH, LONG), [PutOutcome::Stored; 8]);
    let found = space.lookup(&keys, 0, Some(SECOND * 10), LONG).expect("no misuse");
    let (lease, incarnation) = (found.lease.expect("a lease"), found.incarnation);
    for _ in 0..2 {
        node.kill();
        eventually("the loss is noticed", LONG, || {
            let down = GetOutcome::Miss(MissReason::StoreDown);
            get(&space, &keys, LENGTH, SECOND) == [down; 8]
        });
        node = Process::node("child_node", &path);
        eventually("puts go through", LONG, || {
            put(&space, &keys, LENGTH, SECOND)
                .iter()
                .all(|outcome| matches!(outcome, PutOutcome::Stored | PutOutcome::Present))
        });
        eventually("hits are back", LONG, || {
            get(&space, &keys, LENGTH, SECOND) == [GetOutcome::Ok; 8]
        });
    }
    let now = space.lookup(&keys, 0, None, LONG).expect("no misuse");
    assert_ne!(now.incarnation, incarnation);
    assert_eq!(space.renew(lease, SECOND, LONG), Ok(false), "leases end with their node");
    assert_eq!(space.renew(LeaseId(1), SECOND, LONG), Ok(false));
    over.store(true, Ordering::Release);
    for thread in traffic {
        assert!(thread.join().expect("no wrong bytes") > 0);
    }
    assert!(memory.stats().reconnects >= 2, "{:?}", memory.stats());
}

/// Gets and puts without a pause; every byte is checked by `get`. Returns how many hits.
fn traffic(space: Space, over: Arc<AtomicBool>) -> std::thread::JoinHandle<u64> {
    std::thread::spawn(move || {
        let mut hits = 0;
        let mut round = 0;
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

/// p99 at most 50 ms, max at most 1 s after the deadline, for a node that stops answering. A
/// machine that is busy with something else gets two more tries.
#[test]
fn deadlines_hold_against_a_stopped_node() {
    let scratch = Scratch::new();
    let path = scratch.path("node.sock");
    let good = (0..3).any(|_| {
        let node = Process::node("child_node", &path);
        let late = lateness(&path, &node);
        let at = |share: usize| late[(late.len() - 1) * share / 100];
        println!(
            "{} calls against a stopped node, after their deadline: p50 {:?}, p99 {:?}, max {:?}, \
             load average {}",
            late.len(),
            at(50),
            at(99),
            at(100),
            load_average()
        );
        at(99) <= Duration::from_millis(50) && at(100) <= SECOND
    });
    assert!(good, "three times beyond the deadline");
}

/// How much later than their deadlines calls return, sorted.
fn lateness(path: &Path, node: &Process) -> Vec<Duration> {
    let spaces: Vec<Space> = (0..50).map(|_| attach(&connect(path), "m")).collect();
    let keys = keys(1, 4);
    assert_eq!(put(&spaces[0], &keys, LENGTH, LONG), [PutOutcome::Stored; 4]);
    node.signal("-STOP");
    // Its threads stop one by one; until then one may still answer.
    eventually("all of the node has stopped", LONG, || is_stopped(node));
    let mut late = Vec::new();
    for (n, space) in spaces.iter().enumerate() {
        let deadline = Duration::from_millis(20 + n as u64 % 30);
        // Three calls: then this client's breaker opens.
        for call in 0..3 {
            let start = Instant::now();
            match call {
                0 => drop(space.lookup(&keys, 0, None, deadline)),
                1 => drop(get(space, &keys, LENGTH, deadline)),
                _ => drop(put(space, &keys, LENGTH, deadline)),
            }
            let took = start.elapsed();
            assert!(took >= deadline, "it did not wait: {took:?}");
            late.push(took - deadline);
        }
    }
    late.sort();
    late
}

/// Whether the system shows each thread of a process as stopped.
fn is_stopped(node: &Process) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.0.id())).expect("a process");
    tasks.flatten().all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    })
}
