//! With the store's own threads: what is asked for at once, and ends.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use keepwarm_store::tiers::MemMedium;
use keepwarm_store::{FlashAdmission, Prefetched, StoreConfig};

use crate::common::{key, scaled, seed};
use crate::fixture::{EPOCH, Fixture};

const LEN: usize = 40_000;

fn fixture(granules: u64) -> Fixture {
    let mut config = StoreConfig::new(granules * 4096);
    config.flash.admission = FlashAdmission::All;
    config.flash.read_patience = Duration::from_secs(20);
    Fixture::with(config, &MemMedium::new(64, 256 << 10), "default")
}

/// Waits until nothing moves; a store that never gets there fails here rather than hangs.
fn settle(fixture: &Fixture) {
    let until = Instant::now() + Duration::from_secs(30);
    while fixture.store.is_flash_busy() {
        assert!(Instant::now() < until, "still moving: {:?}", fixture.flash());
        std::thread::yield_now();
    }
}

/// However many readers want one cold block, flash is read once.
#[test]
fn readers_of_one_cold_block_share_one_read() {
    let fixture = fixture(80);
    for number in 0..20 {
        fixture.put(number, LEN);
        settle(&fixture);
    }
    for round in 0..scaled(20) {
        let number = round % 20;
        let before = fixture.counters().promoted;
        let is_cold = fixture.lease(number..number + 1).hits[0]
            .is_some_and(|hit| hit.tier == keepwarm_store::types::Tier::Flash);
        let barrier = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    barrier.wait();
                    fixture.read(number, LEN);
                });
            }
        });
        settle(&fixture);
        assert_eq!(fixture.counters().promoted - before, u64::from(is_cold), "round {round}");
    }
    fixture.check();
}

/// A prefetch brings a batch back before its reads.
#[test]
fn a_prefetch_brings_blocks_back() {
    let fixture = fixture(400);
    for number in 0..80 {
        fixture.put(number, LEN);
        settle(&fixture);
    }
    let keys: Vec<_> = (0..4).map(key).collect();
    let prefetch = |keys: &[_]| fixture.session.prefetch(fixture.ns, EPOCH, keys);
    assert_eq!(prefetch(&keys), Prefetched { begun: 4, seen: 4 });
    assert_eq!(prefetch(&[key(79), key(1000)]), Prefetched { begun: 0, seen: 2 });
    settle(&fixture);
    assert_eq!(fixture.counters().promoted, 4);
    (0..4).for_each(|number| fixture.read(number, LEN));
    assert_eq!(fixture.counters().promoted, 4);
    fixture.check();
}

/// Readers, writers and drops of everything at once: every byte that is read is the block's own.
#[test]
fn nothing_is_mixed_up_under_load() {
    let seed = seed("flash_threads");
    let fixture = Arc::new(fixture(120));
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut random = crate::common::Random::new(seed ^ thread);
                for _ in 0..scaled(1_500) {
                    let number = random.below(60);
                    match random.below(20) {
                        0 => drop(fixture.session.drop_keys(fixture.ns, &[key(number)])),
                        1 => _ = fixture.session.prefetch(fixture.ns, EPOCH, &[key(number)]),
                        2 if thread == 0 => fixture.store.tick(),
                        3 if random.chance(20) => drop(fixture.session.drop_namespace(fixture.ns)),
                        2..8 => {
                            let bytes = crate::common::content(number, LEN);
                            let (session, ns) = (&fixture.session, fixture.ns);
                            crate::common::put(session, ns, EPOCH, key(number), 0, &bytes);
                        }
                        _ => {
                            let read = fixture.session.read(fixture.ns, EPOCH, key(number), 0);
                            let Ok(mut pin) = read else { continue };
                            let mut bytes = vec![0; pin.len()];
                            assert_eq!(pin.copy_to(&mut bytes), pin.checksum());
                            assert!(bytes == crate::common::content(number, LEN), "{number}");
                            pin.used();
                        }
                    }
                }
            });
        }
    });
    settle(&fixture);
    fixture.check();
    let counters = fixture.counters();
    println!("flash_threads: {counters:?}");
    assert!(counters.written > 0 && counters.promoted > 0 && counters.dropped > 0);
}
