//! Several nodes as one memory: where blocks lie, and what a node's death costs.

mod support;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use keepwarm_store::types::{
    BlockKey, Epoch, GetOutcome, LeaseId, MissReason, PutOutcome, ShedReason,
};
use keepwarm_store::{EventBatch, EventKind};
use keepwarm_wire::{
    ClientError, EpochOutcome, FleetTiming, GetItem, Memory, NodeState, Positions, PutItem, Server,
    ServerConfig, Space,
};

use support::{
    Chance, Fleet, LONG, content, eventually, key_check, keys, load_average, rounds, spec_of_runs,
};

const RUN: u64 = 4;
const LENGTH: usize = 3_000;

fn attach(memory: &Memory) -> Space {
    let spec = spec_of_runs("m", 1, RUN as i64);
    let check = key_check(&spec);
    memory.attach(spec, check, Epoch(0)).expect("the nodes take it")
}

/// A part of a prompt.
#[derive(Clone, Copy)]
struct Part<'a> {
    whole: &'a [BlockKey],
    first: usize,
    end: usize,
}

impl<'a> Part<'a> {
    fn of(whole: &'a [BlockKey], first: usize, end: usize) -> Part<'a> {
        Part { whole, first, end }
    }

    fn keys(&self) -> &'a [BlockKey] {
        &self.whole[self.first..self.end]
    }

    fn at(&self) -> Option<Positions<'_>> {
        let head = self.first / RUN as usize * RUN as usize;
        Some(Positions { first: self.first as u64, heads: &self.whole[head..=head] })
    }
}

fn put(space: &Space, part: Part<'_>, deadline: Duration) -> Vec<PutOutcome> {
    let contents: Vec<_> = part.keys().iter().map(|key| content(*key, LENGTH)).collect();
    let item = |(key, content): (&BlockKey, &Vec<u8>)| PutItem {
        key: *key,
        part: 0,
        ptr: content.as_ptr(),
        len: content.len(),
        engine_hash: None,
    };
    let items: Vec<_> = part.keys().iter().zip(&contents).map(item).collect();
    // SAFETY: `contents` outlives the call, and nobody writes it.
    unsafe { space.put_from_at(&items, part.at(), deadline) }.expect("no misuse")
}

/// Panics on wrong bytes, and on bytes beside the buffers.
fn get(space: &Space, part: Part<'_>, deadline: Duration) -> Vec<GetOutcome> {
    const GUARD: usize = 16;
    let mut buffers: Vec<_> = part.keys().iter().map(|_| vec![0xa5; LENGTH + 2 * GUARD]).collect();
    let item = |(key, buffer): (&BlockKey, &mut Vec<u8>)| GetItem {
        key: *key,
        part: 0,
        ptr: buffer[GUARD..].as_mut_ptr(),
        len: LENGTH,
    };
    let items: Vec<_> = part.keys().iter().zip(&mut buffers).map(item).collect();
    // SAFETY: `buffers` outlive the call and are used by nobody else; no two overlap.
    let outcomes = unsafe { space.get_into_at(&items, part.at(), deadline) }.expect("no misuse");
    for ((key, buffer), outcome) in part.keys().iter().zip(&buffers).zip(&outcomes) {
        let (head, tail) = (&buffer[..GUARD], &buffer[GUARD + LENGTH..]);
        assert!(head.iter().chain(tail).all(|byte| *byte == 0xa5), "bytes beside the buffer");
        if *outcome == GetOutcome::Ok {
            assert!(buffer[GUARD..GUARD + LENGTH] == content(*key, LENGTH), "wrong bytes");
        }
    }
    outcomes
}

fn prefix(space: &Space, part: Part<'_>) -> (u32, Option<MissReason>) {
    let found = space.lookup_at(part.keys(), part.at(), None, LONG).expect("no misuse");
    (found.prefix, found.miss)
}

#[test]
fn runs_lie_together_and_spread_over_all_nodes() {
    let fleet = Fleet::start(3, 64);
    let space = attach(&fleet.connect());
    let whole = keys(1, 400);
    // In uneven pieces, as an engine stores them.
    for (first, end) in [(0, 3), (3, 17), (17, 18), (18, 200), (200, 400)] {
        let stored = put(&space, Part::of(&whole, first, end), LONG);
        assert!(stored.iter().all(|outcome| *outcome == PutOutcome::Stored));
    }
    assert_eq!(prefix(&space, Part::of(&whole, 0, 400)), (400, None));
    assert_eq!(prefix(&space, Part::of(&whole, 37, 200)), (163, None));
    let got = get(&space, Part::of(&whole, 5, 399), LONG);
    assert!(got.iter().all(|outcome| *outcome == GetOutcome::Ok));
    let alone: Vec<_> = fleet.nodes.iter().map(|node| attach(&node.connect())).collect();
    let mut shares = vec![0; 3];
    for run in whole.chunks(RUN as usize) {
        let here = |space: &Space| space.lookup(run, 0, None, LONG).unwrap().prefix as usize;
        let counts: Vec<usize> = alone.iter().map(here).collect();
        assert_eq!(counts.iter().sum::<usize>(), run.len(), "each run is whole on one node");
        let node = counts.iter().position(|count| *count == run.len());
        shares[node.expect("not torn")] += 1;
    }
    println!("runs by node: {shares:?}");
    assert!(shares.iter().all(|share| *share > 10));
}

#[test]
fn without_places_calls_are_refused_before_they_miss() {
    let fleet = Fleet::start(2, 16);
    let space = attach(&fleet.connect());
    let keys = keys(2, 8);
    let unplaced = |error: ClientError| assert!(error.to_string().contains("Prompt"), "{error}");
    unplaced(space.lookup_at(&keys, None, None, LONG).err().unwrap());
    unplaced(space.touch(&keys, LONG).err().unwrap());
    let bytes = content(keys[0], 10);
    let (ptr, len) = (bytes.as_ptr(), bytes.len());
    let item = PutItem { key: keys[0], part: 0, ptr, len, engine_hash: None };
    // SAFETY: `bytes` outlives the call.
    unplaced(unsafe { space.put_from(&[item], LONG) }.err().unwrap());
    assert_eq!(space.drop_keys(&keys, LONG), Ok(0), "a drop goes to all nodes");
}

fn timing(grace_ms: u64, ramp_ms: u64) -> FleetTiming {
    let ms = Duration::from_millis;
    FleetTiming { grace: ms(grace_ms), ramp: ms(ramp_ms) }
}

fn connect(fleet: &Fleet, timing: FleetTiming) -> Memory {
    let mut config = fleet.config();
    config.timing = timing;
    Memory::connect_fleet(config).expect("settings that can be")
}

/// The node of each run, by a client of each.
fn owners(fleet: &Fleet, whole: &[BlockKey]) -> Vec<HashSet<usize>> {
    let alone: Vec<_> = fleet.nodes.iter().map(|node| attach(&node.connect())).collect();
    let of = |run: &[BlockKey]| {
        let has = |(_, space): &(usize, &Space)| {
            space.lookup(run, 0, None, LONG).unwrap().prefix as usize == run.len()
        };
        alone.iter().enumerate().filter(has).map(|(node, _)| node).collect()
    };
    whole.chunks(RUN as usize).map(of).collect()
}

#[test]
fn a_dead_node_costs_its_share_and_then_its_runs_go_elsewhere() {
    let mut fleet = Fleet::start(3, 64);
    let memory = connect(&fleet, timing(300, 60_000));
    let space = attach(&memory);
    let whole = keys(3, 120);
    put(&space, Part::of(&whole, 0, 120), LONG);
    let before = owners(&fleet, &whole);
    fleet.nodes[1].server.take();
    let lost: Vec<bool> = before.iter().map(|nodes| nodes.contains(&1)).collect();
    let outcomes = get(&space, Part::of(&whole, 0, 120), LONG);
    for (place, outcome) in outcomes.iter().enumerate() {
        let down = GetOutcome::Miss(MissReason::StoreDown);
        let want = if lost[place / RUN as usize] { down } else { GetOutcome::Ok };
        assert_eq!(*outcome, want, "{place}");
    }
    let first = lost.iter().position(|lost| *lost).unwrap() as u32 * RUN as u32;
    assert_eq!(prefix(&space, Part::of(&whole, 0, 120)), (first, Some(MissReason::StoreDown)));
    let shed = put(&space, Part::of(&whole, 0, 120), LONG);
    assert!(shed.contains(&PutOutcome::Shed(ShedReason::StoreDown)), "within its grace");
    eventually("its runs go elsewhere", LONG, || {
        !put(&space, Part::of(&whole, 0, 120), LONG)
            .contains(&PutOutcome::Shed(ShedReason::StoreDown))
    });
    assert_eq!(memory.nodes()[1].state, NodeState::Out);
    assert_eq!(prefix(&space, Part::of(&whole, 0, 120)), (120, None), "all is there again");
    assert!(get(&space, Part::of(&whole, 0, 120), LONG).iter().all(|o| *o == GetOutcome::Ok));
}

#[test]
fn a_node_that_comes_back_grows_into_its_share_and_what_it_holds_is_found() {
    let mut fleet = Fleet::start(3, 64);
    let memory = connect(&fleet, timing(1, 3_600_000));
    let space = attach(&memory);
    let whole = keys(4, 240);
    put(&space, Part::of(&whole, 0, 240), LONG);
    let before = owners(&fleet, &whole);
    let held = before.iter().filter(|nodes| nodes.contains(&0)).count();
    stop(&mut fleet, 0);
    eventually("it is out", LONG, || {
        let _ = prefix(&space, Part::of(&whole, 0, 8));
        memory.nodes()[0].state == NodeState::Out
    });
    let store = fleet.nodes[0].store.clone();
    let server = Server::start(store, ServerConfig::new(&fleet.nodes[0].path)).expect("a server");
    fleet.nodes[0].server = Some(server);
    eventually("it is found again", LONG, || memory.nodes()[0].state == NodeState::Growing);
    // The same life, its bytes are there: every run is found, though most puts go elsewhere.
    assert_eq!(prefix(&space, Part::of(&whole, 0, 240)), (240, None));
    assert!(get(&space, Part::of(&whole, 0, 240), LONG).iter().all(|o| *o == GetOutcome::Ok));
    assert_eq!(space.touch_at(&whole, Part::of(&whole, 0, 240).at(), LONG), Ok(240));
    let nodes = memory.nodes();
    let expected = 1.0 / 16.0 / (2.0 + 1.0 / 16.0);
    assert!((nodes[0].share - expected).abs() < 1e-9, "{nodes:?}");
    let fresh = keys(5, 240);
    put(&space, Part::of(&fresh, 0, 240), LONG);
    let new = owners(&fleet, &fresh).iter().filter(|nodes| nodes.contains(&0)).count();
    println!("runs on node 0: {held} of 60 before, {new} of 60 new ones while it grows");
    assert!(new * 3 < held, "it is not asked for its whole share at once");
}

fn stop(fleet: &mut Fleet, node: usize) {
    fleet.nodes[node].server.take().expect("it runs").stop();
}

#[test]
fn who_drains_is_read_and_takes_nothing_new() {
    let fleet = Fleet::start(3, 64);
    let memory = fleet.connect();
    let space = attach(&memory);
    let whole = keys(6, 120);
    put(&space, Part::of(&whole, 0, 120), LONG);
    fleet.nodes[2].server.as_ref().unwrap().announce(1000, true);
    eventually("clients hear of it", LONG, || memory.nodes()[2].state == NodeState::Draining);
    assert_eq!(prefix(&space, Part::of(&whole, 0, 120)), (120, None));
    assert!(get(&space, Part::of(&whole, 0, 120), LONG).iter().all(|o| *o == GetOutcome::Ok));
    let fresh = keys(7, 120);
    put(&space, Part::of(&fresh, 0, 120), LONG);
    assert!(owners(&fleet, &fresh).iter().all(|nodes| !nodes.contains(&2)));
    fleet.nodes[2].server.as_ref().unwrap().announce(3000, false);
    eventually("clients hear of its weight", LONG, || memory.nodes()[2].share > 0.59);
    let stat = memory.stat(LONG).unwrap();
    assert_eq!(stat.number("node.2.figure.server.weight_permille"), Some(3000));
    assert_eq!(stat.number("node.2.figure.server.draining"), Some(0));
    assert_eq!(stat.number("store.blocks"), Some(240));
}

#[test]
fn a_silent_node_costs_one_deadline_once_and_delays_nobody_after_it() {
    let mut fleet = Fleet::start(3, 64);
    let path = fleet.nodes[1].path.clone();
    let memory = fleet.connect();
    let space = attach(&memory);
    let whole = keys(8, 120);
    put(&space, Part::of(&whole, 0, 120), LONG);
    stop(&mut fleet, 1);
    // Accepts, and says nothing.
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("the path is free");
    eventually("it is found out", LONG, || {
        let _ = get(&space, Part::of(&whole, 0, 120), Duration::from_millis(200));
        memory.nodes()[1].state == NodeState::Away
    });
    let deadline = Duration::from_millis(400);
    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let start = Instant::now();
        let outcomes = get(&space, Part::of(&whole, 0, 120), deadline);
        slowest = slowest.max(start.elapsed());
        assert!(outcomes.contains(&GetOutcome::Ok));
    }
    println!("20 gets beside a silent node: slowest {slowest:?}, load {}", load_average());
    assert!(slowest < deadline, "{slowest:?}");
    drop(listener);
}

#[test]
fn leases_of_all_nodes_are_one() {
    let fleet = Fleet::start(3, 64);
    let memory = fleet.connect();
    let space = attach(&memory);
    let whole = keys(9, 60);
    put(&space, Part::of(&whole, 0, 60), LONG);
    let hold = Some(Duration::from_secs(10));
    let found = space.lookup_at(&whole, Part::of(&whole, 0, 60).at(), hold, LONG).unwrap();
    let lease = found.lease.expect("a lease");
    let leases = || fleet.nodes.iter().map(|node| node.store.stats().leases).sum::<u64>();
    assert_eq!((found.prefix, leases()), (60, 3));
    assert_eq!(space.renew(lease, Duration::from_secs(5), LONG), Ok(true));
    assert_eq!(space.renew(LeaseId(lease.0 ^ 1), Duration::from_secs(5), LONG), Ok(false));
    space.release(lease, LONG).unwrap();
    assert_eq!(leases(), 0);
    assert_eq!(space.renew(lease, Duration::from_secs(5), LONG), Ok(false));
}

#[test]
fn epochs_and_drops_name_the_nodes_that_were_not_reached() {
    let mut fleet = Fleet::start(3, 16);
    let memory = fleet.connect();
    let space = attach(&memory);
    let whole = keys(10, 60);
    put(&space, Part::of(&whole, 0, 60), LONG);
    assert_eq!(space.bump_epoch(Epoch(1), LONG), Ok(EpochOutcome::Acknowledged));
    assert_eq!(space.behind(), [""; 0]);
    stop(&mut fleet, 1);
    let name = format!("unix:{}", fleet.nodes[1].path.display());
    assert_eq!(space.bump_epoch(Epoch(2), LONG), Ok(EpochOutcome::NotReached));
    assert_eq!(space.behind(), std::slice::from_ref(&name));
    let error = space.drop_all(LONG).err().unwrap().to_string();
    assert!(error.contains(&name), "{error}");
    assert_eq!(memory.stat(LONG).unwrap().number("node.1.up"), Some(0));
}

#[test]
fn events_of_all_nodes_come_as_one_stream_and_go_on_after_a_break() {
    let fleet = Fleet::start(3, 64);
    let space = attach(&fleet.connect());
    let whole = keys(11, 120);
    put(&space, Part::of(&whole, 0, 60), LONG);
    let mut stream = space.subscribe(None, LONG).unwrap();
    let mut known: HashMap<BlockKey, String> = HashMap::new();
    let mut snapshots = 0;
    let mut follow = |stream: &mut dyn keepwarm_wire::EventStream, count: usize| {
        eventually("the events come", LONG, || {
            let batch = stream.next_batch(Duration::from_millis(100)).expect("a stream");
            let events = match batch {
                EventBatch::Events { events, .. } => events,
                EventBatch::Snapshot { events, last } => {
                    snapshots += usize::from(last);
                    events
                }
                EventBatch::Resync { .. } => Vec::new(),
            };
            for event in events {
                if let EventKind::Stored { key, .. } = event.kind {
                    known.insert(key, stream.node().expect("whose it is").to_owned());
                }
            }
            known.len() == count
        });
    };
    follow(&mut *stream, 60);
    eventually("each snapshot is over", LONG, || {
        stream.next_batch(Duration::from_millis(20)).expect("a stream");
        stream.places().len() == 3
    });
    put(&space, Part::of(&whole, 60, 80), LONG);
    follow(&mut *stream, 80);
    let places = stream.places();
    drop(stream);
    put(&space, Part::of(&whole, 80, 120), LONG);
    let mut stream = space.subscribe_from(&places, LONG).unwrap();
    follow(&mut *stream, 120);
    assert_eq!(known.values().collect::<HashSet<_>>().len(), 3);
    assert!(snapshots <= 3, "nobody is told anew what he knew");
}

/// Random calls against what was stored, while nodes die and come back empty.
#[test]
fn a_model_of_a_fleet_whose_nodes_die() {
    let mut chance = Chance::new("fleet");
    let mut fleet = Fleet::start(3, 64);
    let memory = connect(&fleet, timing(20, 200));
    let space = attach(&memory);
    let prompts: Vec<Vec<BlockKey>> = (0..6).map(|n| keys(100 + n, 40)).collect();
    let (mut hits, mut asked, mut deaths) = (0u64, 0u64, 0u64);
    for _ in 0..rounds(300) {
        let whole = &prompts[chance.below(6) as usize];
        let first = chance.below(39) as usize;
        let end = first + 1 + chance.below((40 - first) as u64) as usize;
        let part = Part::of(whole, first, end);
        match chance.below(10) {
            0..4 => drop(put(&space, part, LONG)),
            4..8 => {
                let got = get(&space, part, LONG);
                asked += got.len() as u64;
                hits += got.iter().filter(|outcome| **outcome == GetOutcome::Ok).count() as u64;
            }
            8 => {
                let found = space.lookup_at(part.keys(), part.at(), None, LONG).unwrap();
                let prefix = found.hits.iter().take_while(|hit| hit.is_some()).count();
                assert_eq!(found.prefix as usize, prefix);
                assert_eq!(found.miss.is_none(), prefix == part.keys().len());
            }
            _ => {
                let node = chance.below(3) as usize;
                if fleet.nodes[node].server.is_some() {
                    stop(&mut fleet, node);
                    deaths += 1;
                } else {
                    let store = support::store(64);
                    let config = ServerConfig::new(&fleet.nodes[node].path);
                    let server = Server::start(store.clone(), config).expect("a server");
                    (fleet.nodes[node].store, fleet.nodes[node].server) = (store, Some(server));
                }
            }
        }
    }
    println!("fleet: {deaths} deaths, {hits} hits of {asked}, no wrong byte");
    assert!(hits > 0 && deaths > 0);
    for node in fleet.nodes.iter().filter(|node| node.server.is_some()) {
        node.store.check().expect("the store adds up");
    }
}
