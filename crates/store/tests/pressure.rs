//! What one put, one tenant or one lease may take from the others: bounded, whatever it asks for.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Random, attach, key, open, put, spec};
use keepwarm_store::types::{BlockKey, Epoch, NamespaceId, PutOutcome, ShedReason};
use keepwarm_store::{BlockPut, PolicyKind, Reserve, Session, Store, StoreConfig, TenantConfig};

const ZERO: Epoch = Epoch(0);
const GRANULE: u64 = 4096;
const STORED: PutOutcome = PutOutcome::Stored;
const KINDS: [PolicyKind; 4] = PolicyKind::ALL;

fn config(granules: u64, blocks: u32) -> StoreConfig {
    let mut config = StoreConfig::new(granules * GRANULE);
    config.populate = false;
    config.max_blocks = Some(blocks);
    config
}

fn with_tenants(mut config: StoreConfig, names: &[&str]) -> StoreConfig {
    let tenant =
        |name: &&str| TenantConfig { name: (*name).into(), ..TenantConfig::public_default() };
    config.tenants = names.iter().map(tenant).collect();
    config
}

fn fill(session: &Session, ns: NamespaceId, keys: std::ops::Range<u64>) {
    for number in keys {
        assert_eq!(put(session, ns, ZERO, key(number), 0, &[7; GRANULE as usize]), STORED);
    }
}

fn reserve(session: &Session, ns: NamespaceId, key: BlockKey, len: u64) -> Reserve {
    session.reserve(ns, ZERO, BlockPut { key, part: 0, len: len as u32, engine_hash: None })
}

fn here(session: &Session, ns: NamespaceId, keys: std::ops::Range<u64>) -> usize {
    let keys: Vec<_> = keys.map(key).collect();
    session.lookup(ns, ZERO, &keys, 0, None).hits.iter().flatten().count()
}

fn evicted(store: &Arc<Store>) -> u64 {
    store.stats().counters.evicted
}

/// Small blocks in an order of use that has nothing to do with their places, then a large one.
#[test]
fn a_large_put_among_small_blocks_moves_them_and_evicts_few() {
    let seed = common::seed("pressure");
    for policy in KINDS {
        let granules = 16_384;
        let mut config = config(granules, 20_000);
        config.policy = policy;
        let (store, _clock) = open(config);
        let session = store.session();
        let ns = attach(&session, &spec("default", "m", 1));
        fill(&session, ns, 0..granules);
        let mut random = Random::new(seed);
        for _ in 0..granules {
            session.touch(ns, ZERO, &[key(random.below(granules))]);
        }
        let needed = 256;
        let grant = reserve(&session, ns, key(1 << 40), needed * GRANULE);
        assert!(matches!(grant, Reserve::Granted(_)), "{grant:?}");
        let (evicted, moved) = (evicted(&store), store.stats().counters.relocated);
        println!("{}: {evicted} evicted, {moved} moved", policy.name());
        assert!(evicted <= 4 * needed + granules / 32 + 64, "{evicted}");
        // First in, first out frees neighbours, so that nothing is in the way.
        assert!(moved > 0 || policy == PolicyKind::Fifo);
        drop(grant);
        store.check().expect("a store that adds up");
    }
}

#[test]
fn a_put_that_leases_make_impossible_evicts_nothing() {
    let granules = 4_096;
    let (store, _clock) = open(with_tenants(config(granules, 5_000), &["a", "b"]));
    let (a, b) = (store.session(), store.session());
    let (ns_a, ns_b) = (attach(&a, &spec("a", "m", 1)), attach(&b, &spec("b", "m", 1)));
    fill(&a, ns_a, 0..granules);
    let leased: Vec<_> = (0..granules).step_by(16).map(key).collect();
    assert!(a.lookup(ns_a, ZERO, &leased, 0, Some(Duration::from_secs(10))).lease.is_some());
    let shed = reserve(&b, ns_b, key(1 << 40), 512 * GRANULE);
    assert!(matches!(shed, Reserve::Shed(ShedReason::Leased)), "{shed:?}");
    assert_eq!((evicted(&store), here(&a, ns_a, 0..granules)), (0, granules as usize));
    // What fits between the leased ones gets in.
    let grant = reserve(&b, ns_b, key(1 << 40), 100 * GRANULE);
    assert!(matches!(grant, Reserve::Granted(_)), "{grant:?}");
    drop(grant);
    store.check().expect("a store that adds up");
}

#[test]
fn incomplete_blocks_that_fill_the_records_evict_no_block_without_any() {
    let (store, _clock) = open(config(65_536, 1_024));
    let session = store.session();
    let one = attach(&session, &spec("default", "one", 1));
    let four = attach(&session, &spec("default", "four", 4));
    fill(&session, one, 0..500);
    let mut shed = 0;
    for number in 1_000..1_400 {
        for part in 1..4 {
            let outcome = put(&session, four, ZERO, key(number), part, &[7; 100]);
            shed += u32::from(outcome == PutOutcome::Shed(ShedReason::Busy));
        }
    }
    assert!(shed > 0, "the pool was full");
    assert_eq!((evicted(&store), here(&session, one, 0..500)), (0, 500));
    store.check().expect("a store that adds up");
}

#[test]
fn complete_blocks_give_their_records_back() {
    let (store, _clock) = open(config(65_536, 1_024));
    let session = store.session();
    let one = attach(&session, &spec("default", "one", 1));
    let four = attach(&session, &spec("default", "four", 4));
    fill(&session, one, 0..100);
    for number in 1_000..1_500 {
        for part in 0..4 {
            assert_eq!(put(&session, four, ZERO, key(number), part, &[7; 100]), STORED);
        }
    }
    assert_eq!(here(&session, one, 0..100), 100);
    assert!(evicted(&store) > 0);
    store.check().expect("a store that adds up");
}

#[test]
fn grants_promise_no_more_records_than_they_take() {
    let (store, _clock) = open(config(16_384, 1_024));
    let session = store.session();
    let ns = attach(&session, &spec("default", "one", 1));
    fill(&session, ns, 0..500);
    let grants: Vec<_> =
        (0..400).map(|number| reserve(&session, ns, key(1 << 20 | number), GRANULE)).collect();
    assert!(grants.iter().all(|grant| matches!(grant, Reserve::Granted(_))));
    assert_eq!((evicted(&store), here(&session, ns, 0..500)), (0, 500));
}

#[test]
fn writers_of_one_tenant_leave_room_for_the_others() {
    let mut config = with_tenants(config(16_384, 20_000), &["a", "b"]);
    config.limits.filling_max = 64;
    let (store, _clock) = open(config);
    let (a, b) = (store.session(), store.session());
    let (ns_a, ns_b) = (attach(&a, &spec("a", "m", 1)), attach(&b, &spec("b", "m", 1)));
    fill(&a, ns_a, 0..1_000);
    let hold = |len: u64, wanted: ShedReason| {
        let mut grants = Vec::new();
        for number in 0..100 {
            match reserve(&b, ns_b, key(1 << 20 | number), len) {
                Reserve::Granted(grant) => grants.push(grant),
                other => {
                    assert!(matches!(other, Reserve::Shed(why) if why == wanted), "{other:?}");
                    break;
                }
            }
        }
        grants
    };
    let grants = hold(1 << 20, ShedReason::Watermark);
    assert_eq!(grants.len(), 16, "a quarter of the arena");
    assert_eq!(put(&a, ns_a, ZERO, key(5_000), 0, &[1; 4096]), STORED);
    drop(grants);
    let grants = hold(1, ShedReason::Busy);
    assert_eq!(grants.len(), 16, "a quarter of the places");
    assert_eq!(put(&a, ns_a, ZERO, key(5_001), 0, &[1; 4096]), STORED);
    assert_eq!((evicted(&store), here(&a, ns_a, 0..1_000)), (0, 1_000));
    drop(grants);
    store.check().expect("a store that adds up");
}

#[test]
fn writers_hold_at_most_half_of_the_arena() {
    let (store, _clock) = open(config(1_024, 2_000));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    let grants: Vec<_> = (0..8)
        .map(|number| reserve(&session, ns, key(number), 128 * GRANULE))
        .filter(|outcome| matches!(outcome, Reserve::Granted(_)))
        .collect();
    assert_eq!(grants.len(), 4);
    let shed = reserve(&session, ns, key(9), 1);
    assert!(matches!(shed, Reserve::Shed(ShedReason::Watermark)), "{shed:?}");
}

#[test]
fn leased_blocks_are_passed_over_and_keep_their_places() {
    for policy in KINDS {
        let granules = 20_480;
        let mut config = config(granules, 30_000);
        config.policy = policy;
        let (store, _clock) = open(config);
        let session = store.session();
        let ns = attach(&session, &spec("default", "m", 1));
        fill(&session, ns, 0..granules);
        let old: Vec<_> = (0..4_600).map(key).collect();
        let lease = session.lookup(ns, ZERO, &old, 0, Some(Duration::from_secs(10))).lease;
        let lease = lease.expect("a lease");
        fill(&session, ns, 1 << 30..(1 << 30) + 10);
        assert_eq!(here(&session, ns, 4_600..4_610), 0, "the oldest that may leave");
        session.release(lease);
        // A lookup and its lease were no use: the oldest leaves next.
        fill(&session, ns, 1 << 31..(1 << 31) + 10);
        assert_eq!((here(&session, ns, 0..10), here(&session, ns, 10..4_600)), (0, 4_590));
        assert_eq!(here(&session, ns, 4_610..granules), granules as usize - 4_610);
        store.check().expect("a store that adds up");
    }
}

#[test]
fn a_key_asked_for_many_times_is_leased_once() {
    let (store, _clock) = open(config(256, 256));
    let (one, two) = (store.session(), store.session());
    let ns = attach(&one, &spec("default", "m", 1));
    attach(&two, &spec("default", "m", 1));
    fill(&one, ns, 1..4);
    let hold = Some(Duration::from_secs(10));
    let keys: Vec<_> = (0..60_000).map(|number| key(1 + number % 3)).collect();
    let leases: Vec<_> =
        (0..3).map(|_| one.lookup(ns, ZERO, &keys, 0, hold).lease.expect("a lease")).collect();
    assert!(two.lookup(ns, ZERO, &[key(1)], 0, hold).lease.is_some());
    store.check().expect("a store that adds up");
    leases.into_iter().for_each(|lease| one.release(lease));
    store.check().expect("a store that adds up");
}

#[test]
fn leases_of_one_tenant_leave_some_for_the_others() {
    let mut config = with_tenants(config(4_096, 5_000), &["a", "b"]);
    config.limits.leases_max = 16;
    let (store, _clock) = open(config);
    let (a, b) = (store.session(), store.session());
    let (ns_a, ns_b) = (attach(&a, &spec("a", "m", 1)), attach(&b, &spec("b", "m", 1)));
    fill(&a, ns_a, 0..1);
    fill(&b, ns_b, 0..1);
    let lease = |session: &Session, ns| {
        session.lookup(ns, ZERO, &[key(0)], 0, Some(Duration::from_secs(9))).lease.is_some()
    };
    assert_eq!((0..20).filter(|_| lease(&a, ns_a)).count(), 4);
    assert!(lease(&b, ns_b));
}

#[test]
fn many_leases_that_end_at_once_end_in_bounded_steps() {
    let (store, clock) = open(config(16_384, 20_000));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    fill(&session, ns, 0..4_000);
    let keys: Vec<_> = (0..4_000).map(key).collect();
    for _ in 0..30 {
        let found = session.lookup(ns, ZERO, &keys, 0, Some(Duration::from_secs(2)));
        assert!(found.lease.is_some());
    }
    clock.advance(Duration::from_secs(3));
    let mut left = vec![store.stats().leases];
    while *left.last().expect("one") > 0 {
        store.tick();
        left.push(store.stats().leases);
    }
    assert_eq!(left, [30, 25, 20, 15, 10, 5, 0]);
    store.check().expect("a store that adds up");
}

#[test]
fn a_put_of_another_length_is_not_present() {
    let (store, _clock) = open(config(256, 256));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 2));
    assert_eq!(put(&session, ns, ZERO, key(1), 0, &[7; 100]), STORED);
    assert_eq!(put(&session, ns, ZERO, key(1), 1, &[7; 200]), STORED);
    let invalid = PutOutcome::Shed(ShedReason::Invalid);
    assert_eq!(put(&session, ns, ZERO, key(1), 0, &[7; 200]), invalid);
    assert_eq!(put(&session, ns, ZERO, key(1), 1, &[7; 100]), invalid);
    assert_eq!(put(&session, ns, ZERO, key(1), 1, &[7; 200]), PutOutcome::Present);
    assert_eq!(store.stats().counters.shed_for(ShedReason::Invalid), 2);
}
