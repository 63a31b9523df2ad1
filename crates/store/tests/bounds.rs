//! Nothing grows with what passes through: tables, ghosts, leases, incomplete blocks, namespaces,
//! events. `KEEPWARM_TEST_SCALE` (1) times 20 is how many times its capacity the store takes in.

mod common;

use std::time::Duration;

use common::{Random, attach, key, open, spec};
use keepwarm_store::types::{Epoch, PutOutcome};
use keepwarm_store::{
    AttachError, BlockPut, EventBatch, EventFilter, Limits, Reserve, StoreConfig,
};

const GRANULES: u64 = 1024;

#[test]
fn many_times_its_capacity_leaves_it_as_large_as_it_was() {
    let seed = common::seed("bounds");
    let turns = common::scaled(20);
    let mut config = StoreConfig::new(GRANULES * 4096);
    config.max_blocks = Some(256);
    config.limits = Limits {
        event_ring: 64,
        leases_max: 32,
        lease_slots_max: 128,
        filling_max: 8,
        ..Limits::default()
    };
    let (store, clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "bounds", 2));
    let start = store.stats();
    let mut random = Random::new(seed);
    let bytes = common::content(seed, 300_000);
    let (mut written, mut number, mut leases_most) = (0, 0, 0);
    while written < turns * GRANULES * 4096 {
        number += 1;
        for part in 0..if random.chance(10) { 1 } else { 2 } {
            let bytes = &bytes[..1 + random.below(100_000) as usize];
            if common::put(&session, ns, Epoch(0), key(number), part, bytes) == PutOutcome::Stored {
                written += bytes.len() as u64;
            }
        }
        let keys: Vec<_> = (number.saturating_sub(8)..=number).map(key).collect();
        session.lookup(ns, Epoch(0), &keys, 0, Some(Duration::from_millis(50)));
        leases_most = leases_most.max(store.stats().leases);
        clock.advance(Duration::from_millis(random.below(3_000)));
        store.tick();
    }
    store.check().expect("a store that adds up");
    let end = store.stats();
    println!("{written} bytes in {number} blocks: {:?}", end.counters);
    assert!(end.counters.evicted > 0 && end.counters.incomplete > 0);
    let sizes = |s: &keepwarm_store::Stats| {
        (s.index_bytes, s.part_bytes, s.ghost_bytes, s.capacity_bytes, s.blocks_max)
    };
    assert_eq!(sizes(&start), sizes(&end));
    assert!(end.index_bytes_per_entry <= 48.0, "{} B an entry", end.index_bytes_per_entry);
    assert_eq!(end.ghost_bytes, 3 * 256 * 12);
    assert!(leases_most <= 32 && end.blocks <= 256);
    assert!(end.used_bytes <= end.capacity_bytes);
    assert!(end.leased_bytes <= end.leased_bytes_max);
    assert!(end.namespaces[0].filling_blocks <= 8);
}

#[test]
fn incomplete_blocks_and_writers_are_bounded() {
    let mut config = StoreConfig::new(GRANULES * 4096);
    config.limits.filling_max = 4;
    config.limits.writing_bytes_max = Some(3 * 4096);
    let (store, clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "bounds", 2));
    let one = [7; 100];
    for number in 0..4 {
        let outcome = common::put(&session, ns, Epoch(0), key(number), 0, &one);
        assert_eq!(outcome, PutOutcome::Stored);
    }
    let put = BlockPut { key: key(9), part: 0, len: 100, engine_hash: None };
    let refused = session.reserve(ns, Epoch(0), put);
    assert!(matches!(refused, Reserve::Shed(keepwarm_store::types::ShedReason::Busy)));
    // Their time passes; the next put takes their places without waiting for a tick.
    clock.advance(Duration::from_secs(31));
    assert!(matches!(session.reserve(ns, Epoch(0), put), Reserve::Granted(_)));
    assert_eq!(store.stats().counters.incomplete, 4);
    let three = BlockPut { len: 3 * 4096, ..put };
    let grant = session.reserve(ns, Epoch(0), three);
    assert!(matches!(grant, Reserve::Granted(_)));
    let shed = session.reserve(ns, Epoch(0), BlockPut { key: key(10), ..put });
    assert!(matches!(shed, Reserve::Shed(keepwarm_store::types::ShedReason::Watermark)));
    drop(grant);
    store.check().expect("a store that adds up");
}

#[test]
fn idle_empty_namespaces_make_way_oldest_first() {
    let mut config = StoreConfig::new(GRANULES * 4096);
    config.limits.namespaces_max = 3;
    let (store, _clock) = open(config);
    let keeper = store.session();
    let kept = attach(&keeper, &spec("default", "kept", 1));
    let visitor = store.session();
    let first = attach(&visitor, &spec("default", "first", 1));
    let second = attach(&visitor, &spec("default", "second", 1));
    let fourth = spec("default", "fourth", 1);
    let secret = keepwarm_store::identity::TenantSecret::public_default();
    let check = keepwarm_store::identity::ChainKey::new(&fourth, &secret).key_check();
    let refused = keeper.attach(fourth.encoding(), check, Epoch(0)).unwrap_err();
    assert!(matches!(refused, AttachError::TooMany { max: 3 }), "{refused}");
    // The first has a block, so the second makes way though it is younger.
    common::put(&visitor, first, Epoch(0), key(1), 0, &[1; 10]);
    drop(visitor);
    assert_eq!(attach(&keeper, &fourth), second);
    let models: Vec<_> = store.stats().namespaces.into_iter().map(|space| space.model).collect();
    assert_eq!(models, ["kept", "first", "fourth"]);
    assert_eq!(keeper.lookup(kept, Epoch(0), &[key(1)], 0, None).prefix, 0);
    store.check().expect("a store that adds up");
}

#[test]
fn a_slow_subscriber_starts_over_instead_of_growing() {
    let mut config = StoreConfig::new(GRANULES * 4096);
    config.limits.event_ring = 16;
    let (store, _clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "bounds", 1));
    let mut slow = store.subscribe(EventFilter::All, Some((store.incarnation(), 1)));
    for number in 0..100 {
        common::put(&session, ns, Epoch(0), key(number), 0, &[1; 10]);
    }
    let incarnation = store.incarnation();
    assert_eq!(slow.next_batch(Duration::ZERO), EventBatch::Resync { incarnation });
    let EventBatch::Snapshot { events, last: true } = slow.next_batch(Duration::ZERO) else {
        panic!("a snapshot follows")
    };
    assert_eq!(events.len(), 100);
    let EventBatch::Events { events, next } = slow.next_batch(Duration::ZERO) else {
        panic!("then the stream")
    };
    assert_eq!((events.len(), next), (0, store.stats().events_next));
}

/// Blocks of 64 KiB to 2 MiB through the store itself: what is free but cannot be used when a
/// block has to leave stays under 12 % of the arena, because blocks move instead.
#[test]
fn a_mix_of_sizes_wastes_little() {
    let seed = common::seed("waste");
    let capacity = 32 << 20;
    let (store, _clock) = open(StoreConfig::new(capacity));
    let session = store.session();
    let ns = attach(&session, &spec("default", "waste", 1));
    let mut random = Random::new(seed);
    let bytes = common::content(seed, 2 << 20);
    let (mut written, mut number, mut wastes) = (0, 0, Vec::new());
    while written < 6 * capacity {
        number += 1;
        let len = (64 << 10) << random.below(5);
        let len = (len + random.below(len)) as usize;
        let before = store.stats();
        let outcome = common::put(&session, ns, Epoch(0), key(number), 0, &bytes[..len]);
        assert_eq!(outcome, PutOutcome::Stored);
        written += len as u64;
        let after = store.stats();
        if after.counters.evicted > before.counters.evicted {
            // What was free when the first block had to leave.
            wastes.push((capacity - before.used_bytes) as f64 / capacity as f64);
        }
        session.touch(ns, Epoch(0), &[key(number - random.below(number.min(20)))]);
    }
    let mean = wastes.iter().sum::<f64>() / wastes.len() as f64;
    println!("{:.1} % on average, {} moves", mean * 100.0, store.stats().counters.relocated);
    assert!(mean < 0.12, "{mean}");
    store.check().expect("a store that adds up");
}
