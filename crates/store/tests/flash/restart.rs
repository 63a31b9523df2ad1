//! What a restart finds, and what it must not find.

use std::time::Duration;

use keepwarm_store::tiers::MemMedium;
use keepwarm_store::types::{Epoch, MissReason, Tier};
use keepwarm_store::{EventBatch, EventFilter, TenantConfig};

use crate::common::{attach, key, put, spec};
use crate::fixture::{EPOCH, Fixture, by_hand};

const LEN: usize = 40_000;

fn tier_of(fixture: &Fixture, number: u64) -> Option<Tier> {
    let found = fixture.session.lookup(fixture.ns, EPOCH, &[key(number)], 0, None);
    found.hits[0].map(|hit| hit.tier)
}

#[test]
fn what_was_written_is_claimed_and_verifies() {
    let fixture = Fixture::new(80, 16);
    (0..12).for_each(|number| fixture.put_and_write(number, LEN));
    fixture.put(99, LEN);
    let fixture = fixture.restart(by_hand(80));
    assert_eq!(fixture.counters().recovered, 12);
    assert!(fixture.flash().recovery.blocks == 12 && !fixture.flash().recovery.is_running);
    assert_eq!(tier_of(&fixture, 99), None, "never written");
    let mut subscription = fixture.store.subscribe(EventFilter::All, None);
    let mut known = 0;
    loop {
        match subscription.next_batch(Duration::ZERO) {
            EventBatch::Snapshot { events, last: false } => known += events.len(),
            EventBatch::Snapshot { events, last: true } => {
                known += events.len();
                break;
            }
            _ => {}
        }
    }
    assert_eq!(known, 12, "a snapshot tells of what is on flash alone");
    (0..12).for_each(|number| fixture.read(number, LEN));
    fixture.check();
}

/// Dropped by key, with the namespace, between a block's choice and its append: none comes back.
#[test]
fn what_was_dropped_stays_away() {
    let fixture = Fixture::new(200, 16);
    (0..6).for_each(|number| fixture.put_and_write(number, LEN));
    assert_eq!(fixture.session.drop_keys(fixture.ns, &[key(1), key(2)]).unwrap(), 2);
    let other = attach(&fixture.session, &spec("default", "two", 1));
    put(&fixture.session, other, EPOCH, key(1), 0, b"of another");
    fixture.use_again(other, EPOCH, 1);
    fixture.store.run_flash_by_hand();
    assert_eq!(fixture.session.drop_namespace(other).unwrap(), 1);
    fixture.put_and_write(2, LEN);
    fixture.check();
    let fixture = fixture.restart(by_hand(200));
    assert_eq!(fixture.counters().recovered, 5, "0, 3, 4, 5, and 2 that was put again");
    assert_eq!(tier_of(&fixture, 1), None);
    fixture.read(2, LEN);
    fixture.check();
}

#[test]
fn other_epochs_and_unknown_tenants_are_not_claimed() {
    let folder = std::env::temp_dir().join(format!("keepwarm-flash-{}", std::process::id()));
    let config = |name: &str| {
        let mut config = by_hand(200);
        config.state_dir = Some(folder.clone());
        let name = name.into();
        config.tenants.push(TenantConfig { name, ..TenantConfig::public_default() });
        config
    };
    let medium = MemMedium::new(16, 256 << 10);
    let fixture = Fixture::with(config("a"), &medium, "a");
    (0..3).for_each(|number| fixture.put_and_write(number, LEN));
    fixture.session.bump_epoch(fixture.ns, Epoch(7)).unwrap();
    put(&fixture.session, fixture.ns, Epoch(7), key(3), 0, b"new");
    fixture.use_again(fixture.ns, Epoch(7), 3);
    fixture.store.run_flash_by_hand();
    fixture.check();
    let fixture = fixture.restart(config("a"));
    assert_eq!((fixture.counters().recovered, fixture.counters().refused), (1, 3));
    drop(fixture);
    let fixture = Fixture::with(config("b"), &medium, "b");
    assert_eq!(fixture.counters().recovered, 0);
    fixture.check();
    drop(fixture);
    std::fs::remove_dir_all(folder).unwrap();
}

/// Time goes on while the node is down; a block ends when it would have ended.
#[test]
fn time_to_live_is_kept_across_a_restart() {
    let config = || {
        let mut config = by_hand(200);
        config.ttl = Some(Duration::from_secs(60));
        config
    };
    let medium = MemMedium::new(16, 256 << 10);
    let fixture = Fixture::with(config(), &medium, "default");
    fixture.put_and_write(1, LEN);
    fixture.clock.advance(Duration::from_secs(30));
    fixture.put_and_write(2, LEN);
    let fixture = fixture.restart(config());
    // The clock of the next life begins where this one's began: both are within their time.
    assert_eq!(fixture.counters().recovered, 2);
    fixture.clock.advance(Duration::from_secs(61));
    assert_eq!(tier_of(&fixture, 1), None);
    assert_eq!(tier_of(&fixture, 2), Some(Tier::Flash), "30 s later");
    fixture.read(2, LEN);
    fixture.clock.advance(Duration::from_secs(30));
    let read = fixture.session.read(fixture.ns, EPOCH, key(2), 0).map(|_| ());
    assert_eq!(read, Err(MissReason::Expired), "coming back did not lengthen its life");
    fixture.check();
}

/// Several parts: all come back together.
#[test]
fn a_block_of_several_parts_comes_back_whole() {
    let fixture = Fixture::new(200, 16);
    let ns = attach(&fixture.session, &spec("default", "three", 3));
    let bytes = |part: u8| crate::common::content(part.into(), 5_000 * (usize::from(part) + 1));
    for part in [2, 0, 1] {
        put(&fixture.session, ns, EPOCH, key(1), part, &bytes(part));
    }
    fixture.use_again(ns, EPOCH, 1);
    fixture.store.run_flash_by_hand();
    let fixture = fixture.restart(by_hand(200));
    let ns = attach(&fixture.session, &spec("default", "three", 3));
    for part in [1, 2, 0] {
        let pin = fixture.session.read(ns, EPOCH, key(1), part).expect("a part");
        let mut found = vec![0; pin.len()];
        assert_eq!(pin.copy_to(&mut found), pin.checksum());
        assert!(found == bytes(part));
    }
    assert_eq!(fixture.counters().promoted, 1);
    fixture.check();
}

/// A drain writes what memory alone has, the hottest first.
#[test]
fn a_drain_saves_memory() {
    let fixture = Fixture::new(80, 16);
    (0..7).for_each(|number| fixture.put(number, LEN));
    let drained = fixture.store.drain_flash(Duration::from_secs(20));
    assert_eq!((drained.blocks, drained.left, drained.is_flushed), (7, 0, true));
    fixture.check();
    let fixture = fixture.restart(by_hand(80));
    (0..7).for_each(|number| fixture.read(number, LEN));
}
