//! Random operations on a small store against a plain dictionary. Every byte that is read is
//! compared, and the store counts itself again every few hundred operations.
//!
//! What the store may do that the dictionary does not know of:
//! 1. A stored block that no lease and no read holds may have made room: it is then missing as
//!    `evicted`, `quota`, or, once the ghost list forgot it, `absent`.
//! 2. A block may expire up to one tick of expiry (67 ms) early, never late; a lease does not
//!    lengthen its life.
//! 3. A put may be shed as `leased`, `quota` or `busy`, but not when nothing is held: by leases,
//!    reads, writers, or blocks that are incomplete.
//! 4. A lookup may answer unleased.
//! 5. A miss may be `absent` where the dictionary remembers why: the ghost list is bounded.
//! 6. A block may move: its generation changes, its bytes do not.
//! 7. With flash, a read may be throttled: memory has no room for a block to come back to.
//!
//! Everything else must agree: no other bytes, nothing visible that is incomplete, of an older
//! epoch, dropped, expired or reported bad; what is held stays readable; `present` and `pending`
//! exactly when the dictionary says so.
//!
//! `KEEPWARM_TEST_SCALE` (1) times 100,000 operations for each policy; seed `KEEPWARM_TEST_SEED`.

#[path = "../common/mod.rs"]
mod common;
mod dictionary;
mod rare;
mod world;

use keepwarm_store::PolicyKind;
use keepwarm_store::tiers::MemMedium;

fn run(policy: PolicyKind) {
    run_over(policy, None);
}

/// With flash behind memory, moved by hand at random moments.
fn run_over(policy: PolicyKind, medium: Option<MemMedium>) {
    let seed = common::seed("model");
    let ops = common::scaled(100_000);
    let has_flash = medium.is_some();
    let mut world = world::World::new(policy, seed, medium);
    for op in 0..ops {
        world.step();
        if op % 500 == 499 {
            world.check();
        }
    }
    let flash = world.store.flash_stats();
    let counters = world.finish();
    println!("{} after {ops} operations: {counters:?}", policy.name());
    // A run that never evicted, leased, moved on or expired would prove little.
    if ops >= 100_000 {
        let seen = [
            counters.evicted,
            counters.evicted_for_quota,
            counters.expired,
            counters.outdated,
            counters.dropped,
            counters.corrupt,
            counters.reports_intact,
            counters.incomplete,
            counters.leases,
            counters.leases_refused,
            counters.leases_expired,
            counters.present,
            counters.pending,
            counters.aborted,
            counters.relocated,
        ];
        assert!(seen.iter().all(|count| *count > 0), "something never happened: {seen:?}");
        assert_eq!(flash.is_some(), has_flash);
    }
    if let Some(flash) = flash.filter(|_| ops >= 100_000) {
        let counters = flash.counters;
        println!("flash: {counters:?}");
        let seen = [
            counters.lookup_hits,
            counters.written,
            counters.promoted,
            counters.promotions_shed,
            counters.evicted,
            counters.expired,
            counters.outdated,
            counters.dropped,
        ];
        assert!(seen.iter().all(|count| *count > 0), "something never happened: {seen:?}");
    }
}

#[test]
fn adaptive_agrees_with_a_dictionary() {
    run(PolicyKind::Adaptive);
}

#[test]
fn lru_agrees_with_a_dictionary() {
    run(PolicyKind::Lru);
}

#[test]
fn with_flash_it_agrees_with_a_dictionary() {
    run_over(PolicyKind::Lru, Some(MemMedium::new(12, 256 << 10)));
}

#[test]
fn fifo_agrees_with_a_dictionary() {
    run(PolicyKind::Fifo);
}

#[test]
fn s3fifo_agrees_with_a_dictionary() {
    run(PolicyKind::S3Fifo);
}
