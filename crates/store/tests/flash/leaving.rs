//! How blocks leave flash: for others, for their tenant's quota, with their device.

use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use keepwarm_store::tiers::MemMedium;
use keepwarm_store::types::{MissReason, Tier};
use keepwarm_store::{FlashShed, TenantConfig};

use crate::common::{attach, content, key, put, spec};
use crate::fixture::{EPOCH, Fixture, by_hand};

const LEN: usize = 40_000;

/// Flash of four segments is full: the oldest blocks leave, as evicted; what is left is right.
#[test]
fn the_oldest_segment_makes_room() {
    let fixture = Fixture::new(80, 4);
    (0..60).for_each(|number| fixture.put_and_write(number, LEN));
    fixture.check();
    let counters = fixture.counters();
    assert!(counters.written == 60 && counters.evicted > 20, "{counters:?}");
    let keys: Vec<_> = (0..60).map(key).collect();
    let found = fixture.session.lookup(fixture.ns, EPOCH, &keys, 0, None);
    assert_eq!(found.miss, Some(MissReason::Evicted));
    let here: Vec<u64> = (0..60).filter(|at| found.hits[*at as usize].is_some()).collect();
    assert!(here.len() > 10, "{here:?}");
    here.iter().for_each(|number| fixture.read(*number, LEN));
    fixture.check();
}

/// What was read since it was written is written again, and no more than was allowed.
#[test]
fn used_blocks_are_written_again_within_bounds() {
    let fixture = Fixture::new(80, 6);
    for number in 0..200 {
        fixture.put_and_write(number, LEN);
        if number > 8 {
            fixture.read(3, LEN);
        }
    }
    let counters = fixture.counters();
    assert!(counters.rewritten > 0, "{counters:?}");
    assert!(counters.rewritten_bytes * 2 <= counters.written_bytes, "{counters:?}");
    assert!(fixture.flash().amplification <= 1.6, "{}", fixture.flash().amplification);
    fixture.read(3, LEN);
    fixture.check();
}

/// A lease holds segments: what it names stays readable while everything else makes room.
#[test]
fn a_lease_holds_what_is_on_flash() {
    let fixture = Fixture::new(80, 8);
    (0..12).for_each(|number| fixture.put_and_write(number, LEN));
    let leased = fixture.lease(0..2);
    assert_eq!(leased.prefix, 2);
    assert!(leased.hits.iter().flatten().all(|hit| hit.tier == Tier::Flash));
    assert!(leased.lease.is_some());
    assert_eq!(fixture.flash().pinned_segments, 1);
    (100..200).for_each(|number| fixture.put_and_write(number, LEN));
    fixture.check();
    (0..2).for_each(|number| fixture.read(number, LEN));
    // A quarter of the segments at most.
    let many = fixture.lease(150..190);
    assert!(many.lease.is_none() && many.hits.iter().any(Option::is_some));
    fixture.session.release(leased.lease.unwrap());
    assert_eq!(fixture.flash().pinned_segments, 0);
    fixture.check();
}

/// The tenant furthest above its share gives; one with a quota gives of its own.
#[test]
fn tenants_keep_their_shares() {
    let mut config = by_hand(400);
    let tenant = |name: &str, segments: Option<u64>| TenantConfig {
        name: name.into(),
        flash_quota_bytes: segments.map(|segments| segments * (256 << 10)),
        ..TenantConfig::public_default()
    };
    config.tenants = vec![tenant("bound", Some(3)), tenant("free", None)];
    let fixture = Fixture::with(config, &MemMedium::new(12, 256 << 10), "free");
    let bound = attach(&fixture.session, &spec("bound", "one", 1));
    for number in 0..40 {
        put(&fixture.session, bound, EPOCH, key(number), 0, &content(number, LEN));
        fixture.use_again(bound, EPOCH, number);
        fixture.store.run_flash_by_hand();
    }
    let of = |name: &str| {
        let stats = fixture.store.stats();
        let at = stats.tenants.iter().position(|tenant| tenant.name == name).unwrap();
        fixture.flash().tenants[at].clone()
    };
    assert!(of("bound").bytes <= 3 * (256 << 10), "{:?}", of("bound"));
    assert!(of("bound").counters.evicted > 10);
    let kept = of("bound").bytes;
    (0..100).for_each(|number| fixture.put_and_write(number, LEN));
    assert_eq!(of("bound").bytes, kept, "within its quota it loses nothing to others");
    assert!(of("free").bytes >= 6 * (256 << 10), "{:?}", of("free"));
    fixture.check();
}

/// More than may be written in a day stays in memory alone.
#[test]
fn the_budget_bounds_what_is_written() {
    let mut config = by_hand(400);
    // An hour's share is five blocks.
    config.flash.day_bytes = Some(24 * 5 * 40_960);
    config.flash.queue_blocks = 8;
    let fixture = Fixture::with(config, &MemMedium::new(16, 256 << 10), "default");
    (0..20).for_each(|number| fixture.put_and_write(number, LEN));
    let counters = fixture.counters();
    assert!((5..=6).contains(&counters.written), "{counters:?}");
    assert!(counters.shed_for(FlashShed::Budget) > 0 && fixture.flash().is_short_of_budget);
    fixture.clock.advance(std::time::Duration::from_secs(3600));
    fixture.store.run_flash_by_hand();
    assert!(fixture.counters().written >= 10);
    fixture.check();
}

/// A device that fails takes no more, and what it held is gone; memory serves on.
#[test]
fn a_lost_device_costs_its_blocks_and_nothing_else() {
    let fixture = Fixture::new(80, 16);
    (0..12).for_each(|number| fixture.put_and_write(number, LEN));
    fixture.tier.appends_left.store(0, SeqCst);
    fixture.tier.fenced.store(true, SeqCst);
    fixture.put_and_write(12, LEN);
    let counters = fixture.counters();
    assert_eq!((counters.shed_for(FlashShed::Device), counters.lost), (1, 12));
    fixture.check();
    fixture.read(12, LEN);
    let read = fixture.session.read(fixture.ns, EPOCH, key(0), 0).map(|_| ());
    assert_eq!(read, Err(MissReason::Absent));
    fixture.put(0, LEN);
    fixture.read(0, LEN);
    fixture.check();
}

/// Everything in memory is held: a block stays on flash, and its reader is told to come again.
#[test]
fn without_room_a_read_is_throttled() {
    let fixture = Fixture::new(40, 16);
    (0..8).for_each(|number| fixture.put_and_write(number, LEN));
    let pins: Vec<_> = (4..8)
        .map(|number| fixture.session.read(fixture.ns, EPOCH, key(number), 0).expect("in memory"))
        .collect();
    let read = || fixture.session.read(fixture.ns, EPOCH, key(0), 0).map(|_| ());
    assert_eq!(read(), Err(MissReason::Throttled));
    assert_eq!(fixture.counters().promotions_shed, 1);
    fixture.check();
    drop(pins);
    fixture.read(0, LEN);
    fixture.check();
}

/// Drops and epochs hide what is on flash at once, and a bump's blocks do not come back.
#[test]
fn a_namespace_hides_on_flash_too() {
    let fixture = Fixture::new(80, 16);
    (0..12).for_each(|number| fixture.put_and_write(number, LEN));
    assert_eq!(fixture.session.drop_namespace(fixture.ns).unwrap(), 12);
    let found = fixture.lease(0..12);
    assert_eq!((found.prefix, found.miss), (0, Some(MissReason::Absent)));
    fixture.check();
    (0..12).for_each(|number| fixture.put_and_write(number, LEN));
    fixture.check();
    fixture.session.bump_epoch(fixture.ns, keepwarm_store::types::Epoch(1)).unwrap();
    fixture.check();
    (0..20).for_each(|_| fixture.store.tick());
    assert_eq!(fixture.flash().blocks, 0, "swept");
    fixture.check();
}

/// A drain takes segments back beside the writer: not those whose blocks are about to be indexed,
/// although they look empty until then.
#[test]
fn a_segment_that_was_just_written_is_not_taken_back() {
    let fixture = Fixture::new(200, 3);
    (0..14).for_each(|number| fixture.put(number, LEN));
    (0..14).for_each(|number| fixture.use_again(fixture.ns, EPOCH, number));
    let store = fixture.store.clone();
    let (said, heard) = std::sync::mpsc::channel();
    let draining = Box::new(move || {
        let drain = std::thread::spawn(move || store.drain_flash(Duration::from_secs(5)));
        // It waits for this append; where it does not, it is through long before.
        let until = Instant::now() + Duration::from_millis(300);
        while !drain.is_finished() && Instant::now() < until {
            std::thread::yield_now();
        }
        said.send(drain).unwrap();
    });
    *fixture.tier.after_append.lock() = Some(draining);
    // One append fills two segments and begins the last.
    fixture.store.run_flash_by_hand();
    assert!(heard.recv().unwrap().join().unwrap().is_flushed);
    fixture.check();
    (100..130).for_each(|number| fixture.put(number, LEN));
    let is_there = |number: &u64| fixture.lease(*number..number + 1).prefix == 1;
    let there: Vec<u64> = (0..14).filter(is_there).collect();
    assert!(!there.is_empty());
    there.iter().for_each(|number| fixture.read(*number, LEN));
    let counters = fixture.counters();
    assert_eq!((counters.lost, counters.corrupt), (0, 0), "{counters:?}");
    fixture.check();
}

/// A device is lost between an append and the index: its last blocks are neither there nor in the
/// way of being stored again.
#[test]
fn what_a_lost_device_took_last_is_not_said_to_be_there() {
    let fixture = Fixture::new(80, 8);
    fixture.put(1, LEN);
    fixture.use_again(fixture.ns, EPOCH, 1);
    let (store, tier) = (fixture.store.clone(), fixture.tier.clone());
    *fixture.tier.after_append.lock() = Some(Box::new(move || {
        tier.fenced.store(true, SeqCst);
        (0..20).for_each(|_| store.tick());
    }));
    fixture.store.run_flash_by_hand();
    assert_eq!(fixture.counters().shed_for(FlashShed::Device), 1);
    (100..130).for_each(|number| fixture.put(number, LEN));
    assert_eq!(fixture.lease(1..2).miss, Some(MissReason::Evicted));
    fixture.put(1, LEN);
    fixture.read(1, LEN);
    fixture.check();
}
