//! Readers that are held up while their blocks are evicted, dropped, put again, hidden by an epoch,
//! or lost with their node: they get the right bytes or a miss, never another block's.

mod support;

use std::path::Path;
use std::time::Duration;

use keepwarm_store::types::{BlockKey, Epoch, GetOutcome};
use keepwarm_wire::{Server, ServerConfig, Space, TransportChoice};

use support::child::{Process, role};
use support::proxy::{Proxy, Way};
use support::{
    Chance, LONG, Node, SECOND, attach, connect, connect_by, eventually, get, key, keys, put,
    rounds, store,
};

/// Large enough that an answer does not fit the socket's buffers.
const LENGTH: usize = 300_000;
const READ: u64 = 6;
const CAPACITY_MIB: u64 = 16;

/// What happens while the reader stands still.
fn upset(node: &mut Node, space: &Space, what: u64, chance: &mut Chance) {
    let read = keys(1, READ);
    match what {
        // More than fits: everything unpinned is evicted and its place taken by others.
        0 => {
            for _ in 0..2 {
                put(space, &keys(1000 + chance.below(1000), 30), LENGTH, LONG);
            }
        }
        1 => {
            let _ = space.drop_keys(&read, LONG);
            put(space, &keys(2000 + chance.below(1000), READ), LENGTH, LONG);
        }
        2 => {
            let _ = space.drop_all(LONG);
            // The same keys in other places, some of another length.
            put(space, &read[..3], LENGTH, LONG);
            put(space, &read[3..], LENGTH / 2, LONG);
        }
        3 => {
            let next = Epoch(space.epoch().0 + 1);
            let _ = space.bump_epoch(next, Duration::from_millis(20));
            put(space, &keys(3000 + chance.below(1000), 30), LENGTH, LONG);
        }
        _ => {
            node.server.take().expect("a server").stop();
            node.store = store(CAPACITY_MIB);
            let config = ServerConfig::new(&node.path);
            node.server = Some(Server::start(node.store.clone(), config).expect("a server"));
            eventually("the node is back", LONG, || {
                put(space, &keys(4000, 4), LENGTH, SECOND)[0]
                    == keepwarm_store::types::PutOutcome::Stored
            });
        }
    }
}

#[test]
fn a_reader_held_up_on_the_way_never_gets_other_bytes() {
    let mut chance = Chance::new("held up on the way");
    let mut node = Node::start(CAPACITY_MIB);
    let (mut hits, rounds) = (0, rounds(10));
    for round in 0..rounds {
        let proxy = Proxy::start(node.scratch(&format!("p{round}")), &node.path);
        let writer = attach(&node.connect(), "m");
        let reader = attach(&connect(&proxy.path), "m");
        let read = keys(1, READ);
        put(&writer, &read, LENGTH, LONG);
        proxy.take_passed(Way::ToNode);
        proxy.close_gate();
        std::thread::scope(|scope| {
            let got = scope.spawn(|| get(&reader, &read, LENGTH, SECOND * 2));
            eventually("the request is on its way", LONG, || proxy.passed(Way::ToNode) > 100);
            for _ in 0..1 + chance.below(3) {
                upset(&mut node, &writer, chance.below(5), &mut chance);
            }
            proxy.open_gate();
            let outcomes = got.join().expect("no wrong bytes");
            hits += outcomes.iter().filter(|outcome| **outcome == GetOutcome::Ok).count();
        });
        let checked = node.store.check();
        checked.expect("the store adds up");
    }
    println!("{hits} hits of {}", rounds * READ);
    assert!(hits > 0, "no reader got anything: nothing was tested");
}

/// Not a test: reads all keys over and over and dies if a byte is wrong.
#[test]
fn child_reader() {
    read_on(TransportChoice::Unix);
}

/// The same, out of the arena that it maps.
#[test]
fn child_mapped_reader() {
    read_on(TransportChoice::Auto);
}

fn read_on(transport: TransportChoice) {
    let Some(path) = role() else { return };
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal)).expect("dies with its parent");
    let memory = connect_by(Path::new(&path), transport);
    loop {
        // A new space now and then: one attached before a bump misses for ever.
        let space = attach(&memory, "m");
        for _ in 0..20 {
            get(&space, &keys(1, READ), LENGTH, SECOND * 2);
            space.lookup(&keys(1, READ), 0, Some(SECOND), SECOND).expect("no misuse");
        }
    }
}

#[test]
fn a_stopped_reader_never_gets_other_bytes() {
    stop_readers("child_reader");
}

#[test]
fn a_stopped_reader_of_the_map_never_gets_other_bytes() {
    stop_readers("child_mapped_reader");
}

fn stop_readers(child: &str) {
    let mut chance = Chance::new(child);
    let mut node = Node::start(CAPACITY_MIB);
    let mut reader = Process::start(child, &node.path);
    eventually("it reads", LONG, || node.server.as_ref().unwrap().connections() > 0);
    for _ in 0..rounds(8) {
        let writer = attach(&node.connect(), "m");
        put(&writer, &keys(1, READ), LENGTH, LONG);
        let reads = node.store.stats().counters.reads;
        eventually("it reads on", LONG, || node.store.stats().counters.reads > reads + READ);
        reader.signal("-STOP");
        for _ in 0..1 + chance.below(3) {
            upset(&mut node, &writer, chance.below(5), &mut chance);
        }
        reader.signal("-CONT");
        assert_eq!(reader.0.try_wait().expect("a process"), None, "the reader saw wrong bytes");
        node.store.check().expect("the store adds up");
    }
}

/// Readers, writers, droppers and bumpers at once; every byte that is got is checked.
#[test]
fn everything_at_once() {
    for transport in [TransportChoice::Unix, TransportChoice::Shm] {
        everything_over(transport);
    }
}

fn everything_over(transport: TransportChoice) {
    let mut seeds = Chance::new("everything at once");
    let node = Node::start(CAPACITY_MIB);
    let memory = node.connect_by(transport);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (memory, mut chance) = (&memory, seeds.child());
            scope.spawn(move || {
                for _ in 0..rounds(25) {
                    let space = attach(memory, "m");
                    let family: Vec<BlockKey> = (0..4).map(|_| key(1, chance.below(60))).collect();
                    match (thread, chance.below(20)) {
                        (0, 0) => {
                            let next = Epoch(space.epoch().0 + 1);
                            let _ = space.bump_epoch(next, Duration::from_millis(5));
                        }
                        (0, 1) => drop(space.drop_keys(&family, LONG)),
                        (_, 2) => drop(space.lookup(&family, 0, Some(SECOND), LONG)),
                        (_, 3..10) => drop(put(&space, &family, LENGTH, LONG)),
                        _ => drop(get(&space, &family, LENGTH, LONG)),
                    }
                }
            });
        }
    });
    drop(memory);
    eventually("all connections end", LONG, || node.server.as_ref().unwrap().connections() == 0);
    let stats = node.store.stats();
    assert_eq!((stats.reads_in_flight, stats.writing_bytes), (0, 0));
    node.store.check().expect("the store adds up");
}
