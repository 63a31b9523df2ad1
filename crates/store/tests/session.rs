//! The contract of a session's calls, one behaviour a test; bad input is an outcome, never a panic.

mod common;

use std::time::Duration;

use common::{attach, attach_with, content, key, open, put, spec};
use keepwarm_store::identity::{ChainKey, TenantSecret};
use keepwarm_store::types::{
    Epoch, Generation, LeaseId, MissReason, NamespaceId, PutOutcome, ShedReason, Tier,
};
use keepwarm_store::{
    AttachError, BlockPut, EventBatch, EventFilter, EventKind, Reported, Reserve, StoreConfig,
    StoreError, TenantConfig,
};

const ZERO: Epoch = Epoch(0);
const MIB: u64 = 1 << 20;
const STORED: PutOutcome = PutOutcome::Stored;

fn tenant(name: &str) -> TenantConfig {
    TenantConfig { name: name.into(), ..TenantConfig::public_default() }
}

#[test]
fn what_was_put_comes_back() {
    let (store, _clock) = open(StoreConfig::new(MIB));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    let bytes = content(1, 100_001);
    assert_eq!(put(&session, ns, ZERO, key(1), 0, &bytes), STORED);
    assert_eq!(put(&session, ns, ZERO, key(1), 0, &bytes), PutOutcome::Present);
    let found = session.lookup(ns, ZERO, &[key(1), key(2), key(1)], 0, None);
    assert_eq!((found.prefix, found.miss), (1, Some(MissReason::Absent)));
    assert!(found.hits[2].is_some(), "hits after the first miss are told as well");
    assert_eq!((found.lease, found.lease_ms, found.incarnation), (None, 0, store.incarnation()));
    let hit = found.hits[0].expect("a hit");
    assert_eq!((hit.tier, hit.length), (Tier::Dram, 100_001));
    let pin = session.read(ns, ZERO, key(1), 0).expect("a pin");
    assert_eq!(
        (pin.len(), pin.checksum(), pin.generation()),
        (100_001, hit.checksum, hit.generation)
    );
    let mut copy = vec![0; pin.len()];
    assert_eq!(pin.copy_to(&mut copy), hit.checksum);
    assert!(copy == bytes);
}

#[test]
fn a_block_is_visible_with_its_last_part_in_any_order() {
    let (store, _clock) = open(StoreConfig::new(MIB));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 64));
    let bytes = |part: u8| content(part.into(), 100 + usize::from(part) * 50);
    for part in (0..64).rev() {
        let found = session.lookup(ns, ZERO, &[key(1)], 0, None);
        let pending = if part == 63 { MissReason::Absent } else { MissReason::Pending };
        assert_eq!((found.prefix, found.miss), (0, Some(pending)));
        assert!(session.read(ns, ZERO, key(1), 63).is_err());
        assert_eq!(put(&session, ns, ZERO, key(1), part, &bytes(part)), STORED);
        let again = if part == 0 { PutOutcome::Present } else { PutOutcome::Pending };
        assert_eq!(put(&session, ns, ZERO, key(1), part, &bytes(part)), again);
    }
    assert_eq!(session.lookup(ns, ZERO, &[key(1)], 0, None).prefix, 1);
    for part in 0..64 {
        let pin = session.read(ns, ZERO, key(1), part).expect("a pin");
        let mut copy = vec![0; pin.len()];
        assert_eq!(pin.copy_to(&mut copy), pin.checksum());
        assert!(copy == bytes(part));
    }
    assert_eq!(session.read(ns, ZERO, key(1), 64).map(|_| ()), Err(MissReason::Absent));
    store.check().expect("a store that adds up");
}

#[test]
fn impossible_puts_are_shed_with_a_reason() {
    let mut config = StoreConfig::new(MIB);
    config.limits.part_bytes_max = 2 << 20;
    let (store, _clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 2));
    let try_put = |part, len| {
        let put = BlockPut { key: key(1), part, len, engine_hash: None };
        match session.reserve(ns, ZERO, put) {
            Reserve::Shed(reason) => Some(reason),
            _ => None,
        }
    };
    assert_eq!(try_put(0, 0), Some(ShedReason::Invalid), "no bytes");
    assert_eq!(try_put(2, 10), Some(ShedReason::Invalid), "no such part");
    assert_eq!(try_put(255, 10), Some(ShedReason::Invalid), "no such part");
    assert_eq!(try_put(0, u32::MAX), Some(ShedReason::TooLarge), "over the limit");
    assert_eq!(try_put(0, (1 << 20) + 1), Some(ShedReason::TooLarge), "over the arena");
    assert_eq!(try_put(0, 1 << 20), None, "the whole arena");
    let shed = store.stats().counters;
    assert_eq!(shed.shed_for(ShedReason::Invalid), 3);
    assert_eq!(shed.shed_for(ShedReason::TooLarge), 2);
    assert_eq!((store.stats().used_bytes, store.stats().blocks), (0, 0), "nothing is left of them");
}

#[test]
fn a_namespace_is_usable_only_where_it_was_attached() {
    let mut config = StoreConfig::new(MIB);
    config.tenants = vec![tenant("a"), tenant("b")];
    let (store, _clock) = open(config);
    let (one, other) = (store.session(), store.session());
    let ns = attach(&one, &spec("a", "m", 1));
    let own = attach(&other, &spec("b", "m", 1));
    assert_ne!(ns, own);
    assert_eq!(put(&one, ns, ZERO, key(1), 0, b"secret"), STORED);
    for stranger in [ns, NamespaceId(7), NamespaceId(255), NamespaceId(u16::MAX)] {
        let found = other.lookup(stranger, ZERO, &[key(1)], 0, Some(Duration::from_secs(1)));
        assert_eq!((found.prefix, found.miss, found.lease), (0, Some(MissReason::Identity), None));
        let read = other.read(stranger, ZERO, key(1), 0);
        assert_eq!(read.map(|_| ()), Err(MissReason::Identity));
        let outcome = put(&other, stranger, Epoch(9), key(2), 0, b"x");
        assert_eq!(outcome, PutOutcome::Shed(ShedReason::Identity));
        assert_eq!(other.touch(stranger, ZERO, &[key(1)]), 0);
        assert_eq!(other.drop_keys(stranger, &[key(1)]).unwrap(), 0);
        assert_eq!(other.drop_namespace(stranger).unwrap(), 0);
        assert_eq!(other.report(stranger, key(1), 0, Generation(1)), Reported::Gone);
        let bumped = other.bump_epoch(stranger, Epoch(9));
        assert!(matches!(bumped, Err(StoreError::NotAttached(_))));
        assert!(!other.wait_epoch_quiet(stranger, ZERO, keepwarm_store::types::Instant(0)));
    }
    // The same key in another tenant's namespace is another block.
    assert_eq!(other.lookup(own, ZERO, &[key(1)], 0, None).miss, Some(MissReason::Absent));
    assert_eq!(put(&other, own, ZERO, key(1), 0, b"other"), STORED);
    assert_eq!(one.read(ns, ZERO, key(1), 0).expect("a pin").len(), 6);
}

#[test]
fn attach_refuses_by_name_and_explains_a_sibling() {
    let (store, _clock) = open(StoreConfig::new(MIB));
    let session = store.session();
    let attach_raw = |encoding: &[u8], check| session.attach(encoding, check, ZERO);
    let good = spec("default", "m", 1);
    let check = ChainKey::new(&good, &TenantSecret::public_default()).key_check();
    assert!(matches!(attach_raw(b"", check), Err(AttachError::Identity(_))));
    let cut = &good.encoding()[..good.encoding().len() - 1];
    assert!(matches!(attach_raw(cut, check), Err(AttachError::Identity(_))));
    let wrong = attach_raw(good.encoding(), [0; 8]).unwrap_err().to_string();
    assert!(wrong.contains("tenant default") && wrong.contains("secret"), "{wrong}");
    let unknown = attach_raw(spec("nobody", "m", 1).encoding(), check).unwrap_err().to_string();
    assert!(unknown.contains("nobody"), "{unknown}");
    assert_eq!(store.stats().namespaces.len(), 0, "nothing is left of them");
    assert_eq!(attach_raw(good.encoding(), check).expect("attached").nearest, None);
    let sibling = spec("default", "n", 1);
    let check = ChainKey::new(&sibling, &TenantSecret::public_default()).key_check();
    let nearest = attach_raw(sibling.encoding(), check).expect("attached").nearest;
    assert_eq!(nearest.as_deref(), Some("model: \"n\" here, \"m\" there"));
    assert_eq!(attach_raw(sibling.encoding(), check).expect("again").nearest, None);
    let secret = TenantSecret::from_bytes([7; 32]);
    let check = ChainKey::new(&good, &secret).key_check();
    assert!(matches!(attach_raw(good.encoding(), check), Err(AttachError::KeyCheck { .. })));
}

#[test]
fn a_tenant_of_its_own_secret_attaches_with_it() {
    let mut config = StoreConfig::new(MIB);
    let secret = TenantSecret::from_bytes([7; 32]);
    config.tenants = vec![TenantConfig { secret: secret.clone(), ..tenant("own") }];
    let (store, _clock) = open(config);
    let ns = attach_with(&store.session(), &spec("own", "m", 1), &secret);
    assert_eq!(ns, NamespaceId(0));
}

#[test]
fn a_lease_holds_against_eviction_and_sheds_what_finds_no_room() {
    let mut config = StoreConfig::new(16 * 4096);
    config.tenants = vec![tenant("a"), tenant("b"), tenant("c"), tenant("d")];
    let (store, clock) = open(config);
    let session = store.session();
    let mut leased = Vec::new();
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let ns = attach(&session, &spec(name, "m", 1));
        for block in 0..4 {
            assert_eq!(put(&session, ns, ZERO, key(block), 0, &[1; 4096]), STORED);
        }
        let keys: Vec<_> = (0..4).map(key).collect();
        let found = session.lookup(ns, ZERO, &keys, 0, Some(Duration::from_secs(60)));
        // A quarter each, half in all: the third tenant's lookup answers unleased.
        assert_eq!((found.prefix, found.lease.is_some()), (4, number < 2));
        assert_eq!(found.lease_ms, if number < 2 { 10_000 } else { 0 });
        leased.push((ns, found.lease));
    }
    assert_eq!(store.stats().counters.leases_refused, 1);
    let ns = attach(&session, &spec("d", "m", 1));
    let pins: Vec<_> = (0..4)
        .map(|block| session.read(leased[2].0, ZERO, key(block), 0).expect("a pin"))
        .collect();
    for block in 0..4 {
        assert_eq!(put(&session, ns, ZERO, key(block), 0, &[2; 4096]), STORED);
    }
    let found = session.lookup(ns, ZERO, &[0, 1, 2, 3].map(key), 0, Some(Duration::from_secs(1)));
    assert_eq!((found.prefix, found.lease), (4, None), "half of the arena is leased");
    let more = [4; 5 * 4096];
    let outcome = put(&session, ns, ZERO, key(9), 0, &more);
    assert_eq!(outcome, PutOutcome::Shed(ShedReason::Leased));
    drop(pins);
    for (ns, lease) in &leased[..2] {
        assert_eq!(session.lookup(*ns, ZERO, &[0, 1, 2, 3].map(key), 0, None).prefix, 4);
        assert!(lease.is_some());
    }
    // Released, or by the clock: then they make room like others.
    session.release(leased[0].1.expect("a lease"));
    session.release(LeaseId(u64::MAX));
    clock.advance(Duration::from_secs(10));
    assert_eq!(put(&session, ns, ZERO, key(9), 0, &[4; 5 * 4096]), STORED);
    assert_eq!((store.stats().leased_bytes, store.stats().leases), (0, 0));
    store.check().expect("a store that adds up");
}

#[test]
fn what_is_dropped_or_outdated_hides_at_once_and_frees_with_its_last_pin() {
    let (store, clock) = open(StoreConfig::new(MIB));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    for number in 0..3 {
        put(&session, ns, ZERO, key(number), 0, &content(number, 9_000));
    }
    let pin = session.read(ns, ZERO, key(0), 0).expect("a pin");
    assert_eq!(session.drop_keys(ns, &[key(0), key(7)]).unwrap(), 1);
    let missing = |number, epoch| session.lookup(ns, Epoch(epoch), &[key(number)], 0, None).miss;
    assert_eq!(missing(0, 0), Some(MissReason::Absent), "no ghost of what was dropped");
    assert_eq!(put(&session, ns, ZERO, key(0), 0, &content(5, 9_000)), STORED, "beside the old");
    assert_eq!(session.bump_epoch(ns, Epoch(4)).expect("in memory"), Epoch(4));
    assert_eq!(session.bump_epoch(ns, Epoch(2)).expect("in memory"), Epoch(4), "never back");
    assert_eq!(missing(1, 4), Some(MissReason::Epoch));
    assert_eq!(missing(1, 3), Some(MissReason::Epoch), "an old epoch sees nothing");
    let outcome = put(&session, ns, Epoch(3), key(1), 0, b"x");
    assert_eq!(outcome, PutOutcome::Shed(ShedReason::Epoch));
    let now = |store: &keepwarm_store::Store| {
        let _ = store;
        keepwarm_store::types::Clock::now(&*clock)
    };
    assert!(!session.wait_epoch_quiet(ns, Epoch(4), now(&store)), "the pin is of an old epoch");
    let mut copy = vec![0; 9_000];
    assert_eq!(pin.copy_to(&mut copy), pin.checksum());
    assert!(copy == content(0, 9_000), "what is pinned stays as it was");
    drop(pin);
    assert!(session.wait_epoch_quiet(ns, Epoch(4), now(&store)));
    assert!(!session.wait_epoch_quiet(ns, Epoch(5), now(&store)), "not there yet");
    put(&session, ns, Epoch(4), key(1), 0, b"new");
    assert_eq!(session.drop_namespace(ns).unwrap(), 1);
    assert_eq!(missing(1, 4), Some(MissReason::Absent));
    assert_eq!(missing(2, 4), Some(MissReason::Absent), "its memory of older epochs went, too");
    store.tick();
    assert_eq!(store.stats().used_bytes, 0);
    store.check().expect("a store that adds up");
}

#[test]
fn a_waiter_for_quiet_is_woken_by_the_last_pin() {
    let mut config = StoreConfig::new(MIB);
    config.populate = false;
    let store =
        keepwarm_store::Store::open(config, std::sync::Arc::new(keepwarm_store::SystemClock))
            .expect("a store");
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    put(&session, ns, ZERO, key(0), 0, b"old");
    let pin = session.read(ns, ZERO, key(0), 0).expect("a pin");
    session.bump_epoch(ns, Epoch(1)).expect("in memory");
    let now = keepwarm_store::types::Clock::now(&keepwarm_store::SystemClock);
    std::thread::scope(|scope| {
        let waiter = scope
            .spawn(|| session.wait_epoch_quiet(ns, Epoch(1), now.after(Duration::from_secs(60))));
        drop(pin);
        assert!(waiter.join().expect("no panic"));
    });
}

#[test]
fn a_grant_that_ends_any_other_way_gives_its_space_back() {
    let (store, _clock) = open(StoreConfig::new(MIB));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    let ask = || match session.reserve(
        ns,
        Epoch(store.stats().namespaces[0].epoch.0),
        BlockPut { key: key(1), part: 0, len: 5_000, engine_hash: None },
    ) {
        Reserve::Granted(grant) => grant,
        other => panic!("{other:?}"),
    };
    drop(ask());
    ask().abort(ShedReason::Corrupt);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _grant = ask();
        panic!("the writer dies");
    }));
    assert!(panicked.is_err());
    for hide in [0, 1, 2] {
        let grant = ask();
        match hide {
            0 => drop(session.bump_epoch(ns, Epoch(1))),
            1 => _ = session.drop_namespace(ns),
            _ => _ = session.drop_keys(ns, &[key(1)]),
        }
        assert_eq!(grant.commit(0), PutOutcome::Shed(ShedReason::Epoch));
    }
    let stats = store.stats();
    assert_eq!((stats.used_bytes, stats.blocks, stats.writing_bytes), (0, 0, 0));
    assert_eq!((stats.counters.aborted, stats.counters.shed_for(ShedReason::Corrupt)), (2, 1));
    store.check().expect("a store that adds up");
}

#[test]
fn quotas_take_from_their_own_and_may_change() {
    let mut config = StoreConfig::new(64 * 4096);
    config.tenants = vec![TenantConfig { quota_bytes: Some(8 * 4096), ..tenant("q") }];
    let (store, _clock) = open(config);
    let session = store.session();
    let (free, bound) =
        (attach(&session, &spec("default", "m", 1)), attach(&session, &spec("q", "m", 1)));
    put(&session, free, ZERO, key(0), 0, &[0; 4096]);
    for number in 0..12 {
        assert_eq!(put(&session, bound, ZERO, key(number), 0, &[1; 4096]), STORED);
    }
    let of = |name: &str| {
        let tenants = store.stats().tenants;
        tenants.into_iter().find(|tenant| tenant.name == name).expect("a tenant")
    };
    assert_eq!((of("q").bytes, of("q").counters.evicted_for_quota), (8 * 4096, 4));
    let missing = session.lookup(bound, ZERO, &[key(0)], 0, None).miss;
    assert_eq!(missing, Some(MissReason::Quota));
    assert_eq!(session.lookup(free, ZERO, &[key(0)], 0, None).prefix, 1, "others keep theirs");
    let outcome = put(&session, bound, ZERO, key(99), 0, &[1; 9 * 4096]);
    assert_eq!(outcome, PutOutcome::Shed(ShedReason::Quota));
    store.set_quota("q", Some(3 * 4096)).expect("a tenant");
    store.tick();
    assert_eq!(of("q").bytes, 3 * 4096);
    store.set_quota("q", None).expect("a tenant");
    assert_eq!(put(&session, bound, ZERO, key(99), 0, &[1; 9 * 4096]), STORED);
    assert!(store.set_quota("nobody", None).is_err());
    store.check().expect("a store that adds up");
}

#[test]
fn the_tenant_furthest_above_its_share_makes_room() {
    let mut config = StoreConfig::new(16 * 4096);
    let quota =
        |name, granules: u64| TenantConfig { quota_bytes: Some(granules * 4096), ..tenant(name) };
    config.tenants = vec![quota("small", 4), quota("large", 40)];
    let (store, _clock) = open(config);
    let session = store.session();
    let small = attach(&session, &spec("small", "m", 1));
    let large = attach(&session, &spec("large", "m", 1));
    for number in 0..12 {
        put(&session, large, ZERO, key(number), 0, &[1; 4096]);
    }
    for number in 0..4 {
        put(&session, small, ZERO, key(number), 0, &[1; 4096]);
    }
    // 4 of 4 against 12 of 40: the small one gives, though its blocks are the newest.
    put(&session, large, ZERO, key(100), 0, &[1; 4096]);
    let bytes: Vec<_> = store.stats().tenants.iter().map(|tenant| tenant.bytes / 4096).collect();
    assert_eq!(bytes, [0, 3, 13]);
}

#[test]
fn time_to_live_is_kept_and_swept() {
    let mut config = StoreConfig::new(MIB);
    config.ttl = Some(Duration::from_secs(60));
    config.tenants = vec![TenantConfig { ttl: Some(Duration::from_secs(5)), ..tenant("brief") }];
    let (store, clock) = open(config);
    let session = store.session();
    let long = attach(&session, &spec("default", "m", 1));
    let brief = attach(&session, &spec("brief", "m", 1));
    for ns in [long, brief] {
        put(&session, ns, ZERO, key(0), 0, b"x");
        put(&session, ns, ZERO, key(1), 0, b"x");
    }
    clock.advance(Duration::from_millis(4_900));
    assert_eq!(session.lookup(brief, ZERO, &[key(0)], 0, None).prefix, 1);
    clock.advance(Duration::from_millis(100));
    let missing = session.lookup(brief, ZERO, &[key(0)], 0, None).miss;
    assert_eq!(missing, Some(MissReason::Expired));
    assert_eq!(put(&session, brief, ZERO, key(0), 0, b"y"), STORED, "it may come back");
    assert_eq!(session.lookup(long, ZERO, &[key(0)], 0, None).prefix, 1);
    store.tick();
    assert_eq!(store.stats().counters.expired, 2, "the other one without a call");
    store.check().expect("a store that adds up");
}

#[test]
fn a_report_tells_bad_bytes_from_a_bad_connection() {
    let (store, _clock) = open(StoreConfig::new(MIB));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    let put_it = || put(&session, ns, ZERO, key(1), 0, &content(1, 20_000));
    assert_eq!(put_it(), STORED);
    let pin = session.read(ns, ZERO, key(1), 0).expect("a pin");
    let generation = pin.generation();
    assert_eq!(session.report(ns, key(1), 0, generation), Reported::Intact);
    assert_eq!(session.report(ns, key(1), 0, Generation(generation.0 + 1)), Reported::Gone);
    assert_eq!(session.report(ns, key(1), 3, generation), Reported::Gone);
    let (at, _) = pin.pieces().next().expect("a piece");
    // SAFETY: the arena is mapped writable, and nobody else reads this byte meanwhile.
    unsafe { *at.cast_mut() ^= 1 };
    assert_eq!(session.report(ns, key(1), 0, generation), Reported::Removed);
    drop(pin);
    let missing = session.lookup(ns, ZERO, &[key(1)], 0, None).miss;
    assert_eq!(missing, Some(MissReason::Corrupt));
    assert_eq!(store.stats().counters.corrupt, 1);
    assert_eq!(put_it(), STORED, "the next put is stored");
    store.check().expect("a store that adds up");
}

#[test]
fn epochs_survive_a_restart() {
    let folder = std::env::temp_dir().join(format!("keepwarm-session-{}", std::process::id()));
    let config = StoreConfig { state_dir: Some(folder.clone()), ..StoreConfig::new(MIB) };
    let space = spec("default", "m", 1);
    {
        let (store, _clock) = open(config.clone());
        let session = store.session();
        let ns = attach(&session, &space);
        assert_eq!(session.lookup(ns, Epoch(3), &[key(1)], 0, None).epoch, Epoch(3));
        assert!(store.stats().epochs_durable);
    }
    let (store, _clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &space);
    let outcome = put(&session, ns, Epoch(2), key(1), 0, b"old");
    assert_eq!(outcome, PutOutcome::Shed(ShedReason::Epoch));
    // Where it cannot be kept it is not adopted either.
    std::fs::remove_dir_all(&folder).expect("a folder");
    assert!(session.bump_epoch(ns, Epoch(4)).is_err());
    let found = session.lookup(ns, Epoch(4), &[key(1)], 0, None);
    assert_eq!((found.epoch, found.miss), (Epoch(3), Some(MissReason::Throttled)));
    assert_eq!(store.stats().counters.epochs_failed, 2);
}

#[test]
fn events_tell_what_happened_in_order() {
    let mut config = StoreConfig::new(4 * 4096);
    config.tenants = vec![tenant("other")];
    let (store, _clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    let other = attach(&session, &spec("other", "m", 1));
    let from = Some((store.incarnation(), store.stats().events_next));
    let mut stream = store.subscribe(EventFilter::Namespace(ns), from);
    let mut space = store.subscribe(EventFilter::Namespace(other), from);
    // More than its half, so that it gives for the other tenant.
    let block = BlockPut { key: key(1), part: 0, len: 3 * 4096, engine_hash: Some(77) };
    let Reserve::Granted(mut grant) = session.reserve(ns, ZERO, block) else { panic!("room") };
    let checksum = grant.write_from(&[1; 3 * 4096]);
    grant.commit(checksum);
    put(&session, other, ZERO, key(1), 0, &[1; 2 * 4096]);
    session.bump_epoch(ns, Epoch(1)).expect("in memory");
    let EventBatch::Events { events, next } = stream.next_batch(Duration::from_secs(5)) else {
        panic!("events")
    };
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    let (key, engine_hash) = (key(1), Some(77));
    let stored = EventKind::Stored { key, engine_hash };
    let removed = EventKind::Removed { key, engine_hash, tier: Tier::Dram };
    assert_eq!(kinds, [stored, removed, EventKind::Cleared]);
    assert!(events.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    assert_eq!(next, store.stats().events_next);
    let EventBatch::Events { events, .. } = space.next_batch(Duration::ZERO) else {
        panic!("events")
    };
    assert_eq!(events.len(), 1);
    let incarnation = store.incarnation();
    for from in [None, Some((incarnation ^ 1, 1)), Some((incarnation, 99_999))] {
        let mut fresh = store.subscribe(EventFilter::All, from);
        assert_eq!(fresh.next_batch(Duration::ZERO), EventBatch::Resync { incarnation });
        let EventBatch::Snapshot { events, last: true } = fresh.next_batch(Duration::ZERO) else {
            panic!("a snapshot")
        };
        assert_eq!(events.len(), 1, "only what is visible");
    }
}

#[test]
fn a_waiting_subscriber_is_woken() {
    let (store, _clock) = open(StoreConfig::new(MIB));
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    let from = Some((store.incarnation(), store.stats().events_next));
    let mut stream = store.subscribe(EventFilter::All, from);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(move || stream.next_batch(Duration::from_secs(60)));
        put(&session, ns, ZERO, key(1), 0, b"x");
        let batch = waiter.join().expect("no panic");
        assert!(matches!(batch, EventBatch::Events { events, .. } if events.len() == 1));
    });
}
