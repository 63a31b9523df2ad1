//! What tenants and namespaces may count on: shares, priorities, times to live.

mod common;

use std::time::Duration;

use common::{Random, key, open, put, spec};
use keepwarm_store::identity::{ChainKey, TenantSecret};
use keepwarm_store::types::{Epoch, MissReason, NamespaceId, Priority, PutOutcome, Terms};
use keepwarm_store::{Session, Store, StoreConfig, StoreError, TenantConfig};

const GRANULE: u64 = 4096;
const ZERO: Epoch = Epoch(0);

fn tenant(name: &str, quota: Option<u64>) -> TenantConfig {
    let quota_bytes = quota.map(|granules| granules * GRANULE);
    TenantConfig { name: name.into(), quota_bytes, ..TenantConfig::public_default() }
}

fn config(granules: u64, tenants: Vec<TenantConfig>) -> StoreConfig {
    let mut config = StoreConfig::new(granules * GRANULE);
    config.max_blocks = Some(granules as u32);
    config.populate = false;
    config.tenants = tenants;
    config
}

fn attach(session: &Session, tenant: &str, model: &str, terms: Terms) -> NamespaceId {
    let spec = spec(tenant, model, 1);
    let check = ChainKey::new(&spec, &TenantSecret::public_default()).key_check();
    session.attach_on(spec.encoding(), check, ZERO, terms).expect("an attached namespace").id
}

fn at(priority: u8) -> Terms {
    Terms { ttl: None, priority: Priority::new(priority) }
}

fn used(store: &Store) -> Vec<u64> {
    store.stats().tenants.iter().map(|tenant| tenant.bytes / GRANULE).collect()
}

/// How many of so many blocks, each asked for by itself, are here.
fn here(session: &Session, ns: NamespaceId, blocks: std::ops::Range<u64>) -> usize {
    let is_here = |number: &u64| session.lookup(ns, ZERO, &[key(*number)], 0, None).prefix == 1;
    blocks.filter(is_here).count()
}

fn fill(session: &Session, ns: NamespaceId, blocks: std::ops::Range<u64>) {
    for number in blocks {
        assert_eq!(put(session, ns, ZERO, key(number), 0, &[1; 4096]), PutOutcome::Stored);
    }
}

#[test]
fn a_flood_leaves_the_working_set_of_whoever_keeps_to_its_quota() {
    let (store, _clock) = open(config(1000, vec![tenant("steady", Some(300))]));
    let session = store.session();
    let steady = attach(&session, "steady", "m", Terms::default());
    let flood = attach(&session, "default", "m", Terms::default());
    fill(&session, steady, 0..300);
    // Ten times the memory, and the steady tenant does not touch a thing meanwhile.
    fill(&session, flood, 0..10_000);
    assert_eq!(here(&session, steady, 0..300), 300, "nothing of a set as large as its quota");
    assert_eq!(used(&store), [700, 300]);
    // And the other way round: a quota is a limit too.
    fill(&session, steady, 1_000..2_000);
    assert_eq!(used(&store), [700, 300]);
    store.check().expect("a store that adds up");
}

#[test]
fn quotas_beyond_the_memory_are_weights() {
    let tenants = vec![tenant("large", Some(1500)), tenant("small", Some(500))];
    let (store, _clock) = open(config(1024, tenants));
    let session = store.session();
    let names = ["large", "small", "default"];
    let spaces = names.map(|name| attach(&session, name, "m", Terms::default()));
    let mut random = Random::new(common::seed("weights"));
    for _ in 0..20_000 {
        let ns = spaces[random.below(3) as usize];
        put(&session, ns, ZERO, key(random.below(5_000)), 0, &[1; 4096]);
    }
    // A sixteenth for who has no quota; the rest as 1024 (no more than all of it) to 500.
    let found = used(&store);
    let wanted = [64, 645, 315];
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(found.abs_diff(wanted) <= 2, "{found:?} granules");
    }
    store.check().expect("a store that adds up");
}

/// Small blocks must not take the entries of those who store large ones.
#[test]
fn entries_are_shared_as_space_is() {
    let mut config = config(1000, vec![tenant("large", Some(500))]);
    config.max_blocks = Some(100);
    let (store, _clock) = open(config);
    let session = store.session();
    let large = attach(&session, "large", "m", Terms::default());
    let small = attach(&session, "default", "m", Terms::default());
    for number in 0..40 {
        let outcome = put(&session, large, ZERO, key(number), 0, &[1; 10 * 4096]);
        assert_eq!(outcome, PutOutcome::Stored);
    }
    fill(&session, small, 0..2_000);
    assert_eq!(here(&session, large, 0..40), 40, "within its share of entries");
    store.check().expect("a store that adds up");
}

#[test]
fn who_has_its_share_and_asks_for_more_gives_of_its_own_or_is_shed() {
    let (store, _clock) = open(config(100, vec![tenant("a", Some(90))]));
    let session = store.session();
    let (a, other) = (attach(&session, "a", "m", at(1)), attach(&session, "default", "m", at(1)));
    fill(&session, a, 0..90);
    let outcome = put(&session, other, ZERO, key(1), 0, &[1; 20 * 4096]);
    assert_eq!(outcome, PutOutcome::Shed(keepwarm_store::types::ShedReason::Quota));
    assert_eq!(used(&store), [0, 90], "nobody else pays for it");
    fill(&session, other, 0..30);
    assert_eq!(used(&store), [10, 90]);
}

/// Random puts, reads and priorities of several tenants: who is at its share or below gives only
/// of its own, for its own puts.
#[test]
fn nobody_takes_from_who_is_within_its_share() {
    let seed = common::seed("shares");
    let tenants = vec![tenant("a", Some(200)), tenant("b", Some(100)), tenant("c", None)];
    let shares = [106, 200, 100, 106];
    let (store, clock) = open(config(512, tenants));
    let session = store.session();
    let mut random = Random::new(seed);
    let names = ["default", "a", "b", "c"];
    let spaces: Vec<Vec<NamespaceId>> = names
        .iter()
        .map(|name| (0..4).map(|p| attach(&session, name, &format!("m{p}"), at(p))).collect())
        .collect();
    let evicted = |store: &Store| {
        let stats = store.stats();
        stats.tenants.iter().map(|tenant| tenant.counters.evicted).collect::<Vec<_>>()
    };
    for op in 0..common::scaled(30_000) {
        let asking = random.below(4) as usize;
        let ns = spaces[asking][random.below(4) as usize];
        let name = key(random.below(400));
        if random.chance(3) {
            if let Ok(mut pin) = session.read(ns, ZERO, name, 0) {
                pin.used();
            }
            continue;
        }
        let (before, left) = (used(&store), evicted(&store));
        let bytes = vec![1; 4096 * (1 + random.below(4) as usize)];
        put(&session, ns, ZERO, name, 0, &bytes);
        let (after, gone) = (used(&store), evicted(&store));
        for other in (0..4).filter(|other| *other != asking) {
            let gave = gone[other] - left[other];
            // Space is not scattered: one granule more than what is free was never missing.
            let is_above = before[other] > shares[other];
            assert!(gave == 0 || is_above, "op {op}: {} gave at {before:?}", names[other]);
            assert!(after[other] + 4 > before[other].min(shares[other]), "op {op}: {after:?}");
        }
        if op % 1_000 == 0 {
            clock.advance(Duration::from_secs(1));
            store.check().expect("a store that adds up");
        }
    }
    let gone = evicted(&store);
    assert!(gone[0] > 1_000 && gone[3] > 1_000, "{gone:?}: those beyond their shares gave");
    assert_eq!(gone[1..3], [0, 0], "those with a quota gave of their own alone");
}

#[test]
fn low_priority_leaves_first_and_is_never_starved() {
    let (store, _clock) = open(config(800, Vec::new()));
    let session = store.session();
    let low = attach(&session, "default", "low", at(0));
    let high = attach(&session, "default", "high", at(3));
    fill(&session, low, 0..800);
    fill(&session, high, 0..600);
    assert_eq!(here(&session, low, 0..800), 200, "the low ones gave");
    assert_eq!(here(&session, high, 0..600), 600);
    fill(&session, high, 600..5_000);
    assert_eq!(here(&session, low, 0..800), 100, "down to an eighth");
    // Newcomers of low priority push out their own, not the others.
    fill(&session, low, 1_000..2_000);
    assert_eq!(here(&session, low, 1_000..2_000), 101, "an eighth, and the one that just came");
    store.check().expect("a store that adds up");
}

#[test]
fn the_latest_attach_decides_for_what_is_stored_after_it() {
    let mut bounded = tenant("bounded", None);
    (bounded.ttl, bounded.priority_max) = (Some(Duration::from_secs(10)), Priority::NORMAL);
    let (store, clock) = open(config(100, vec![bounded]));
    let session = store.session();
    let ttl = |seconds| Terms { ttl: Some(Duration::from_secs(seconds)), priority: None };
    let free = attach(&session, "default", "m", ttl(5));
    put(&session, free, ZERO, key(1), 0, &[1; 8]);
    assert_eq!(attach(&session, "default", "m", ttl(60)), free);
    put(&session, free, ZERO, key(2), 0, &[1; 8]);
    attach(&session, "default", "m", Terms::default());
    put(&session, free, ZERO, key(3), 0, &[1; 8]);
    let capped = attach(&session, "bounded", "m", ttl(60));
    put(&session, capped, ZERO, key(1), 0, &[1; 8]);
    clock.advance(Duration::from_secs(6));
    let miss = |ns, number| session.lookup(ns, ZERO, &[key(number)], 0, None).miss;
    assert_eq!(miss(free, 1), Some(MissReason::Expired));
    assert_eq!((miss(free, 2), miss(free, 3), miss(capped, 1)), (None, None, None));
    clock.advance(Duration::from_secs(5));
    assert_eq!(miss(capped, 1), Some(MissReason::Expired), "the tenant's ten seconds");
    clock.advance(Duration::from_secs(50));
    store.tick();
    assert_eq!(store.stats().blocks, 0, "the sweep runs for a namespace's end too");
}

#[test]
fn a_tenants_bound_holds_whatever_its_namespaces_ask_for() {
    let mut bounded = tenant("bounded", None);
    bounded.priority_max = Priority::MIN;
    let (store, _clock) = open(config(64, vec![bounded]));
    let session = store.session();
    let asks = attach(&session, "bounded", "asks", at(3));
    let modest = attach(&session, "bounded", "modest", at(0));
    fill(&session, asks, 0..32);
    fill(&session, modest, 0..32);
    fill(&session, modest, 32..64);
    assert_eq!(here(&session, asks, 0..32), 0, "the oldest left: both are of one class");
}

#[test]
fn a_name_that_figures_cannot_carry_is_refused() {
    let config = config(64, vec![tenant("a.shed", None)]);
    let clock = std::sync::Arc::new(keepwarm_store::ManualClock::new());
    let Err(StoreError::Config { setting, found, .. }) = Store::open(config, clock) else {
        panic!("refused")
    };
    assert_eq!((setting, found.as_str()), ("tenants", "a.shed"));
}
