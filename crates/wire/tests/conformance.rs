//! What every transport does alike. Each test runs over the store in this process, over the socket,
//! TCP and TLS, by shared memory, and over three nodes.

mod support;

use std::sync::Arc;
use std::time::Duration;

use keepwarm_store::types::{Epoch, GetOutcome, MissReason, PutOutcome, ShedReason};
use keepwarm_store::{EventBatch, EventKind, Reported};
use keepwarm_store::{Stats, Store};
use keepwarm_wire::{
    ClientError, EpochOutcome, GetItem, HealthState, Memory, PutItem, TransportChoice,
};

use support::net::{NetNode, Over};
use support::{
    Fleet, LONG, Node, attach, content, eventually, get, key, key_check, keys, put, spec, store,
};

const LENGTH: usize = 70_000;

/// The stores behind a memory.
struct Stores(Vec<Arc<Store>>);

impl Stores {
    fn sum(&self, of: impl Fn(&Stats) -> u64) -> u64 {
        self.0.iter().map(|store| of(&store.stats())).sum()
    }

    /// The life of the only one; of several they are one number of which nobody knows more.
    fn incarnation(&self) -> Option<u64> {
        if let [one] = &self.0[..] { Some(one.incarnation()) } else { None }
    }

    fn check(&self, name: &str) {
        // What a connection held goes with it, and the node may not have seen its end yet.
        eventually("nothing is read or written", LONG, || {
            self.sum(|stats| stats.reads_in_flight + stats.writing_bytes) == 0
        });
        for store in &self.0 {
            store.check().unwrap_or_else(|problem| panic!("{name}: {problem}"));
        }
    }
}

/// Over each transport, to stores of its own.
fn over_all(mebibytes: u64, test: impl Fn(&Memory, &Stores)) {
    over_one(mebibytes, &test);
    let fleet = Fleet::start(3, mebibytes);
    let stores = Stores(fleet.nodes.iter().map(|node| node.store.clone()).collect());
    test(&fleet.connect_by(TransportChoice::Unix), &stores);
    stores.check("three nodes");
}

/// Over those that have one node.
fn over_one(mebibytes: u64, test: impl Fn(&Memory, &Stores)) {
    let embedded = store(mebibytes);
    let stores = Stores(vec![embedded.clone()]);
    test(&Memory::embedded(embedded), &stores);
    stores.check("inproc");
    for transport in [TransportChoice::Unix, TransportChoice::Shm] {
        let node = Node::start(mebibytes);
        let stores = Stores(vec![node.store.clone()]);
        test(&node.connect_by(transport), &stores);
        stores.check(&format!("{transport:?}"));
    }
    for over in [Over::Tcp, Over::Tls] {
        let node = NetNode::start(mebibytes);
        let stores = Stores(vec![node.node.store.clone()]);
        test(&node.connect(over), &stores);
        stores.check(&format!("{over:?}"));
    }
}

#[test]
fn what_is_put_is_got() {
    over_all(64, |memory, _| {
        let space = attach(memory, "m");
        let keys = keys(1, 40);
        assert!(put(&space, &keys, LENGTH, LONG).iter().all(|o| *o == PutOutcome::Stored));
        assert!(put(&space, &keys, LENGTH, LONG).iter().all(|o| *o == PutOutcome::Present));
        assert!(get(&space, &keys, LENGTH, LONG).iter().all(|o| *o == GetOutcome::Ok));
        let stats = memory.stats();
        assert_eq!((stats.blocks_ok, stats.blocks_stored, stats.blocks_present), (40, 40, 40));
        assert_eq!(stats.bytes_got, 40 * LENGTH as u64);
    });
}

/// More blocks than a store has places for incomplete ones: none may be shed for that.
#[test]
fn a_batch_of_any_length_is_stored() {
    over_all(640, |memory, stores| {
        let space = attach(memory, "m");
        let keys = keys(5, 9_000);
        assert!(put(&space, &keys, 1_000, LONG).iter().all(|o| *o == PutOutcome::Stored));
        assert!(get(&space, &keys, 1_000, LONG).iter().all(|o| *o == GetOutcome::Ok));
        assert_eq!(stores.sum(|stats| stats.blocks), 9_000);
    });
}

#[test]
fn every_length_arrives() {
    over_all(64, |memory, _| {
        let space = attach(memory, "m");
        let lengths = [1, 2, 7, 8, 63, 64, 239, 240, 241, 4095, 4096, 4097, 262_143, 3 << 20];
        for (n, length) in lengths.into_iter().enumerate() {
            let keys = keys(n as u64 + 10, 3);
            assert_eq!(put(&space, &keys, length, LONG), [PutOutcome::Stored; 3], "{length}");
            assert_eq!(get(&space, &keys, length, LONG), [GetOutcome::Ok; 3], "{length}");
        }
    });
}

#[test]
fn a_lookup_finds_the_prefix_and_names_the_first_miss() {
    over_all(64, |memory, stores| {
        let space = attach(memory, "m");
        let all = keys(2, 10);
        put(&space, &all[..4], LENGTH, LONG);
        put(&space, &all[6..8], LENGTH, LONG);
        let found = space.lookup(&all, 0, Some(Duration::from_secs(10)), LONG).unwrap();
        assert_eq!((found.prefix, found.miss), (4, Some(MissReason::Absent)));
        let hits: Vec<bool> = found.hits.iter().map(Option::is_some).collect();
        assert_eq!(hits, [true, true, true, true, false, false, true, true, false, false]);
        assert_eq!(found.incarnation, stores.incarnation().unwrap_or(found.incarnation));
        let hit = found.hits[0].unwrap();
        assert_eq!(hit.length as usize, LENGTH);
        let expected = keepwarm_store::checksum::xxh3_64(&content(all[0], LENGTH));
        assert_eq!(hit.checksum, expected);
        let lease = found.lease.expect("a lease");
        assert!(found.lease_ms > 0 && found.lease_ms <= 10_000);
        assert!((1..=3).contains(&stores.sum(|stats| stats.leases)));
        assert!(space.renew(lease, Duration::from_secs(3), LONG).unwrap());
        space.release(lease, LONG).unwrap();
        assert!(!space.renew(lease, Duration::from_secs(3), LONG).unwrap());
        assert_eq!(stores.sum(|stats| stats.leases), 0);
    });
}

#[test]
fn misses_and_hits_mix_in_order() {
    over_all(64, |memory, _| {
        let space = attach(memory, "m");
        let all = keys(3, 300);
        let some: Vec<_> = all.iter().step_by(3).copied().collect();
        put(&space, &some, 5000, LONG);
        let outcomes = get(&space, &all, 5000, LONG);
        for (n, outcome) in outcomes.iter().enumerate() {
            let absent = GetOutcome::Miss(MissReason::Absent);
            assert_eq!(*outcome, if n % 3 == 0 { GetOutcome::Ok } else { absent }, "{n}");
        }
    });
}

#[test]
fn a_buffer_of_another_length_is_a_miss() {
    over_all(64, |memory, _| {
        let space = attach(memory, "m");
        put(&space, &[key(4, 0)], 5000, LONG);
        let miss = GetOutcome::Miss(MissReason::Identity);
        assert_eq!(get(&space, &[key(4, 0)], 4999, LONG), [miss]);
        assert_eq!(get(&space, &[key(4, 0)], 5000, LONG), [GetOutcome::Ok]);
    });
}

#[test]
fn blocks_of_many_parts_appear_with_the_last_one() {
    over_all(64, |memory, _| {
        let spec = spec("parts", 3);
        let check = key_check(&spec);
        let space = memory.attach(spec, check, Epoch(0)).unwrap();
        let key = key(5, 0);
        for part in 0..3u8 {
            let found = space.lookup(&[key], 0, None, LONG).unwrap();
            assert_eq!(found.prefix, 0, "before part {part}");
            let bytes = vec![part + 1; 1000 + usize::from(part)];
            let (ptr, len) = (bytes.as_ptr(), bytes.len());
            let item = PutItem { key, part, ptr, len, engine_hash: Some(7) };
            // SAFETY: `bytes` outlives the call.
            let outcomes = unsafe { space.put_from(&[item], LONG) }.unwrap();
            assert_eq!(outcomes, [PutOutcome::Stored]);
        }
        assert_eq!(space.lookup(&[key], 0, None, LONG).unwrap().prefix, 1);
        let mut bytes = vec![0u8; 1001];
        let item = GetItem { key, part: 1, ptr: bytes.as_mut_ptr(), len: bytes.len() };
        // SAFETY: `bytes` outlives the call.
        assert_eq!(unsafe { space.get_into(&[item], LONG) }.unwrap(), [GetOutcome::Ok]);
        assert_eq!(bytes, vec![2; 1001]);
    });
}

#[test]
fn namespaces_do_not_see_each_other() {
    over_all(64, |memory, _| {
        let (one, two) = (attach(memory, "one"), attach(memory, "two"));
        put(&one, &[key(6, 0)], 5000, LONG);
        assert_eq!(two.lookup(&[key(6, 0)], 0, None, LONG).unwrap().prefix, 0);
        let miss = GetOutcome::Miss(MissReason::Absent);
        assert_eq!(get(&two, &[key(6, 0)], 5000, LONG), [miss]);
        assert!(two.nearest().is_some_and(|text| text.contains("model")));
    });
}

#[test]
fn a_wrong_key_check_is_refused_with_the_difference() {
    over_all(16, |memory, _| {
        let refused = memory.attach(spec("m", 1), [1; 8], Epoch(0)).err().unwrap();
        assert!(refused.problem.contains("key check"), "{}", refused.problem);
        let mut config = spec("m", 1).fields().clone();
        config.insert(String::from("tenant"), "stranger".into());
        let spec = keepwarm_store::identity::NamespaceSpec::new(config).unwrap();
        let check = key_check(&spec);
        let refused = memory.attach(spec, check, Epoch(0)).err().unwrap();
        assert!(refused.problem.contains("stranger"), "{}", refused.problem);
    });
}

#[test]
fn a_larger_epoch_hides_what_was_there() {
    over_all(64, |memory, _| {
        let (old, new) = (attach(memory, "m"), attach(memory, "m"));
        put(&old, &[key(7, 0)], 5000, LONG);
        assert_eq!(new.bump_epoch(Epoch(3), LONG).unwrap(), EpochOutcome::Acknowledged);
        assert_eq!(new.epoch(), Epoch(3));
        let found = new.lookup(&[key(7, 0)], 0, None, LONG).unwrap();
        assert_eq!((found.prefix, found.miss, found.epoch), (0, Some(MissReason::Epoch), Epoch(3)));
        let miss = GetOutcome::Miss(MissReason::Epoch);
        assert_eq!(get(&old, &[key(7, 0)], 5000, LONG), [miss]);
        let shed = PutOutcome::Shed(ShedReason::Epoch);
        assert_eq!(put(&old, &[key(7, 1)], 5000, LONG), [shed]);
        let late = attach(memory, "m");
        assert_eq!(late.epoch(), Epoch(3), "whoever comes after the bump starts behind it");
    });
}

#[test]
fn a_bump_waits_for_leases_of_the_old_epoch() {
    over_all(64, |memory, _| {
        let space = attach(memory, "m");
        put(&space, &[key(8, 0)], 5000, LONG);
        let found = space.lookup(&[key(8, 0)], 0, Some(Duration::from_secs(10)), LONG).unwrap();
        let lease = found.lease.unwrap();
        // A larger epoch is durable before it is answered, and a busy disk takes its time.
        let short = Duration::from_secs(2);
        assert_eq!(space.bump_epoch(Epoch(1), short).unwrap(), EpochOutcome::StillLeased);
        let other = space.clone();
        let waiting = std::thread::spawn(move || other.bump_epoch(Epoch(1), LONG));
        space.release(lease, LONG).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap(), EpochOutcome::Acknowledged);
    });
}

#[test]
fn drops_and_touches_count_what_was_here() {
    over_all(64, |memory, _| {
        let space = attach(memory, "m");
        let all = keys(9, 6);
        put(&space, &all[..5], 5000, LONG);
        assert_eq!(space.touch(&all, LONG).unwrap(), 5);
        assert_eq!(space.drop_keys(&all[4..], LONG).unwrap(), 1);
        assert_eq!(space.drop_all(LONG).unwrap(), 4);
        assert_eq!(space.lookup(&all, 0, None, LONG).unwrap().prefix, 0);
    });
}

#[test]
fn a_report_of_good_bytes_finds_them_intact() {
    over_all(64, |memory, _| {
        let space = attach(memory, "m");
        put(&space, &[key(10, 0)], 5000, LONG);
        let hit = space.lookup(&[key(10, 0)], 0, None, LONG).unwrap().hits[0].unwrap();
        let report = |generation| space.report(key(10, 0), 0, generation, LONG).unwrap();
        assert_eq!(report(hit.generation), Reported::Intact);
        let other = keepwarm_store::types::Generation(hit.generation.0.wrapping_add(1));
        assert_eq!(report(other), Reported::Gone);
        assert_eq!(get(&space, &[key(10, 0)], 5000, LONG), [GetOutcome::Ok]);
    });
}

#[test]
fn events_start_with_a_snapshot_and_go_on_after_a_break() {
    over_one(64, |memory, stores| {
        let space = attach(memory, "m");
        put(&space, &keys(11, 3), 5000, LONG);
        let mut stream = space.subscribe(None, LONG).unwrap();
        let first = stream.next_batch(LONG).unwrap();
        assert_eq!(first, EventBatch::Resync { incarnation: stores.incarnation().unwrap() });
        let mut known = 0;
        loop {
            match stream.next_batch(LONG).unwrap() {
                EventBatch::Snapshot { events, last } => {
                    known += events.len();
                    if last {
                        break;
                    }
                }
                other => panic!("{other:?} within a snapshot"),
            }
        }
        assert_eq!(known, 3);
        put(&space, &[key(11, 3)], 5000, LONG);
        assert_eq!(stored(&mut *stream), [key(11, 3)]);
        let since = stream.since().expect("a place to go on from");
        drop(stream);
        put(&space, &[key(11, 4)], 5000, LONG);
        let mut stream = space.subscribe(Some(since), LONG).unwrap();
        assert_eq!(stored(&mut *stream), [key(11, 4)]);
        let quiet = stream.next_batch(Duration::from_millis(20)).unwrap();
        assert!(matches!(quiet, EventBatch::Events { events, .. } if events.is_empty()));
    });
}

fn stored(stream: &mut dyn keepwarm_wire::EventStream) -> Vec<keepwarm_store::types::BlockKey> {
    for _ in 0..100 {
        match stream.next_batch(LONG).unwrap() {
            EventBatch::Events { events, .. } if events.is_empty() => {}
            EventBatch::Events { events, .. } => {
                let key = |event: &keepwarm_store::Event| match event.kind {
                    EventKind::Stored { key, .. } => Some(key),
                    _ => None,
                };
                return events.iter().filter_map(key).collect();
            }
            other => panic!("{other:?} where events were expected"),
        }
    }
    panic!("no event came");
}

#[test]
fn misuse_is_an_error_that_names_the_limit() {
    over_all(16, |memory, _| {
        let space = attach(memory, "m");
        let many = keys(12, 65_537);
        let error = space.lookup(&many, 0, None, LONG).err().unwrap();
        assert_eq!(error, ClientError::TooManyKeys { found: 65_537 });
        assert!(error.to_string().contains("65536"));
        let item = GetItem { key: key(12, 0), part: 0, ptr: std::ptr::dangling_mut(), len: 0 };
        // SAFETY: a buffer of no bytes.
        let error = unsafe { space.get_into(&[item], LONG) }.err().unwrap();
        assert_eq!(error, ClientError::Length { index: 0, found: 0 });
        let found = space.lookup(&many[..65_536], 0, None, LONG).unwrap();
        assert_eq!((found.hits.len(), found.miss), (65_536, Some(MissReason::Absent)));
        assert_eq!(space.lookup(&[], 0, None, LONG).unwrap().miss, None);
    });
}

#[test]
fn figures_and_health_are_there_and_close_ends_it() {
    over_all(16, |memory, stores| {
        let space = attach(memory, "m");
        put(&space, &[key(13, 0)], 5000, LONG);
        let stat = memory.stat(LONG).unwrap();
        assert_eq!(stat.number("store.blocks_stored"), Some(1));
        assert_eq!(stat.number("store.incarnation"), stores.incarnation());
        let health = memory.health();
        assert_eq!((health.state, health.last_error), (HealthState::Up, None));
        assert_eq!(health.incarnation, stores.incarnation().or(health.incarnation));
        memory.close();
        assert_eq!(memory.health().state, HealthState::Closed);
        assert_eq!(space.touch(&[], LONG), Err(ClientError::Closed));
    });
}
