//! One block's way to flash and back.

use keepwarm_store::tiers::MemMedium;
use keepwarm_store::types::{MissReason, PutOutcome, Tier};
use keepwarm_store::{BlockPut, FlashAdmission, Reserve, StoreConfig};

use crate::common::{attach, content, key, put, spec};
use crate::fixture::{EPOCH, Fixture, by_hand};

const LEN: usize = 40_000;

/// Eight blocks fit into memory; twenty are put and used: the others come back from flash.
#[test]
fn what_memory_cannot_hold_comes_back_from_flash() {
    let fixture = Fixture::new(80, 16);
    (0..20).for_each(|number| fixture.put_and_write(number, LEN));
    fixture.check();
    let keys: Vec<_> = (0..20).map(key).collect();
    let found = fixture.session.lookup(fixture.ns, EPOCH, &keys, 0, None);
    assert_eq!((found.prefix, found.miss), (20, None));
    let tiers: Vec<_> = found.hits.iter().flatten().map(|hit| hit.tier).collect();
    assert!(tiers[..12].iter().all(|tier| *tier == Tier::Flash), "{tiers:?}");
    assert!(tiers[12..].iter().all(|tier| *tier == Tier::Dram), "{tiers:?}");
    assert!(found.hits.iter().flatten().all(|hit| hit.length as usize == LEN));
    // 480 KB from flash at the first guess of half a byte a nanosecond.
    assert!((900_000..2_000_000).contains(&found.restore_ns), "{}", found.restore_ns);
    (0..20).for_each(|number| fixture.read(number, LEN));
    fixture.check();
    let counters = fixture.counters();
    assert_eq!((counters.written, counters.promoted), (20, 20), "each once: it was evicted again");
    assert_eq!(fixture.store.stats().counters.blocks_stored, 20, "coming back is no put");
}

/// Without a use, nothing is written; with `all`, everything.
#[test]
fn admission_is_by_use_unless_told_otherwise() {
    let fixture = Fixture::new(80, 16);
    (0..8).for_each(|number| fixture.put(number, LEN));
    fixture.store.run_flash_by_hand();
    assert_eq!(fixture.counters().written, 0);
    // Evicted, and stored again not long after.
    (8..16).for_each(|number| fixture.put(number, LEN));
    fixture.put(0, LEN);
    fixture.store.run_flash_by_hand();
    assert_eq!(fixture.counters().written, 1, "it returned");
    let mut config = StoreConfig::new(80 * 4096);
    config.flash.is_by_hand = true;
    config.flash.admission = FlashAdmission::All;
    let fixture = Fixture::with(config, &MemMedium::new(16, 256 << 10), "default");
    (0..5).for_each(|number| fixture.put(number, LEN));
    fixture.store.run_flash_by_hand();
    assert_eq!(fixture.counters().written, 5);
    fixture.check();
}

/// A block on flash is present for a put, and its length must fit.
#[test]
fn a_put_of_what_is_on_flash_is_present() {
    let fixture = Fixture::new(80, 16);
    (0..12).for_each(|number| fixture.put_and_write(number, LEN));
    let ask = |len| {
        let put = BlockPut { key: key(0), part: 0, len, engine_hash: None };
        fixture.session.reserve(fixture.ns, EPOCH, put)
    };
    assert!(matches!(ask(LEN as u32), Reserve::Present));
    assert!(matches!(ask(7), Reserve::Shed(_)));
    assert_eq!(fixture.session.drop_keys(fixture.ns, &[key(0)]).unwrap(), 1);
    assert!(matches!(ask(LEN as u32), Reserve::Granted(_)));
    fixture.check();
}

/// Rot on flash is a miss that says so, once; then the block is gone from there.
#[test]
fn corrupt_flash_is_a_miss_and_vanishes() {
    let fixture = Fixture::new(80, 16);
    (0..12).for_each(|number| fixture.put_and_write(number, LEN));
    let spot = fixture.tier.spots.lock()[&key(0)];
    assert!(fixture.medium.corrupt(spot));
    let read = || fixture.session.read(fixture.ns, EPOCH, key(0), 0).map(|_| ());
    assert_eq!(read(), Err(MissReason::Corrupt));
    let found = fixture.lease(0..1);
    assert_eq!((found.prefix, found.miss), (0, Some(MissReason::Corrupt)));
    assert_eq!(fixture.counters().corrupt, 1);
    fixture.check();
    fixture.put(0, LEN);
    fixture.read(0, LEN);
}

/// A block of more parts than one thread reads at once.
#[test]
fn a_block_of_many_parts_comes_back() {
    let fixture = Fixture::with(by_hand(300), &MemMedium::new(16, 1 << 20), "default");
    let ns = attach(&fixture.session, &spec("default", "many", 64));
    let session = &fixture.session;
    let bytes = |part: u8| content(part.into(), 4000);
    for part in 0..64 {
        assert_eq!(put(session, ns, EPOCH, key(1), part, &bytes(part)), PutOutcome::Stored);
    }
    fixture.use_again(ns, EPOCH, 1);
    fixture.store.run_flash_by_hand();
    assert_eq!(fixture.counters().written, 1);
    (100..130).for_each(|number| fixture.put(number, LEN));
    let found = session.lookup(ns, EPOCH, &[key(1)], 0, None);
    assert_eq!(found.hits[0].map(|hit| hit.tier), Some(Tier::Flash));
    for part in 0..64 {
        let pin = session.read(ns, EPOCH, key(1), part).unwrap_or_else(|r| panic!("{part}: {r:?}"));
        let mut read = vec![0; pin.len()];
        assert_eq!(pin.copy_to(&mut read), pin.checksum());
        assert!(read == bytes(part), "part {part}");
    }
    fixture.check();
}

/// However often a namespace is dropped, nothing of an old version passes for one of a later.
#[test]
fn versions_come_round_without_bringing_blocks_back() {
    let fixture = Fixture::new(80, 16);
    for round in 0..9_000u64 {
        if [0, 2_046, 2_047, 4_095].contains(&round) {
            fixture.put_and_write(round, LEN);
        }
        fixture.session.drop_namespace(fixture.ns).unwrap();
        let keys = [0, 2_046, 2_047, 4_095].map(key);
        let found = fixture.session.lookup(fixture.ns, EPOCH, &keys, 0, None);
        assert!(found.hits.iter().all(Option::is_none), "{round}");
    }
    fixture.check();
}
