//! Places of namespaces: who may have one, who makes way, and what goes with it.

mod common;

use std::time::Duration;

use common::{attach, key, open, put, spec};
use keepwarm_store::identity::{ChainKey, NamespaceSpec, TenantSecret};
use keepwarm_store::types::{Epoch, MissReason, PutOutcome};
use keepwarm_store::{
    AttachError, Attached, EventBatch, EventFilter, Session, StoreConfig, TenantConfig,
};

const ZERO: Epoch = Epoch(0);
const MIB: u64 = 1 << 20;
const STORED: PutOutcome = PutOutcome::Stored;

fn try_attach(
    session: &Session,
    spec: &NamespaceSpec,
    epoch: Epoch,
) -> Result<Attached, AttachError> {
    let check = ChainKey::new(spec, &TenantSecret::public_default()).key_check();
    session.attach(spec.encoding(), check, epoch)
}

/// A store of tenants a and b with this many places.
fn config(places: u16) -> StoreConfig {
    let tenant = |name: &str| TenantConfig { name: name.into(), ..TenantConfig::public_default() };
    let mut config = StoreConfig::new(MIB);
    config.tenants = vec![tenant("a"), tenant("b")];
    config.limits.namespaces_max = places;
    config
}

#[test]
fn events_of_a_number_stay_with_the_namespace_that_had_it() {
    let (store, _clock) = open(config(1));
    let start = Some((store.incarnation(), 1));
    let a = store.session();
    let of_a = attach(&a, &spec("a", "m", 1));
    let mut of_old = store.subscribe(EventFilter::Namespace(of_a), start);
    assert_eq!(put(&a, of_a, ZERO, key(1), 0, b"hello"), STORED);
    a.drop_keys(of_a, &[key(1)]).unwrap();
    drop(a);
    let b = store.session();
    let of_b = attach(&b, &spec("b", "m", 1));
    assert_eq!(of_a, of_b, "the number went on to another");
    let mut of_new = store.subscribe(EventFilter::Namespace(of_b), start);
    let EventBatch::Events { events, .. } = of_new.next_batch(Duration::ZERO) else {
        panic!("the ring holds all")
    };
    assert!(events.is_empty(), "b hears of a: {events:?}");
    assert_eq!(put(&b, of_b, ZERO, key(2), 0, b"other"), STORED);
    let EventBatch::Events { events, .. } = of_new.next_batch(Duration::ZERO) else {
        panic!("the ring holds all")
    };
    assert_eq!(events.len(), 1, "b hears of itself");
    let EventBatch::Events { events, .. } = of_old.next_batch(Duration::ZERO) else {
        panic!("the ring holds all")
    };
    assert!(events.is_empty(), "a hears of b: {events:?}");
}

#[test]
fn places_of_namespaces_that_nobody_uses_come_back_with_their_space() {
    let (store, _clock) = open(config(8));
    for number in 0..40 {
        let session = store.session();
        let ns = attach(&session, &spec("a", &format!("build {number}"), 1));
        assert_eq!(put(&session, ns, ZERO, key(number), 0, b"x"), STORED);
        assert!(session.detach(ns));
        assert!(!session.detach(ns), "nothing is left to take back");
        assert_eq!(session.lookup(ns, ZERO, &[key(number)], 0, None).prefix, 0);
    }
    let models: Vec<_> = store.stats().namespaces.into_iter().map(|space| space.model).collect();
    assert_eq!(models.len(), 8, "the others left: {models:?}");
    assert!(models.contains(&String::from("build 39")), "the oldest leave first: {models:?}");
    assert_eq!(store.stats().blocks, 8);
    store.check().expect("a store that adds up");
}

#[test]
fn a_namespace_that_is_held_keeps_its_place() {
    let mut config = config(3);
    config.tenants.clear();
    let (store, clock) = open(config);
    let session = store.session();
    let specs: Vec<_> = (0..4).map(|n| spec("default", &format!("{n}"), 1)).collect();
    let ids: Vec<_> = specs[..3].iter().map(|spec| attach(&session, spec)).collect();
    for ns in &ids {
        assert_eq!(put(&session, *ns, ZERO, key(1), 0, b"x"), STORED);
    }
    let pin = session.read(ids[0], ZERO, key(1), 0).expect("a pin");
    let found = session.lookup(ids[1], ZERO, &[key(1)], 0, Some(Duration::from_secs(2)));
    assert!(found.lease.is_some());
    assert_eq!(attach(&session, &specs[2]), ids[2], "twice");
    ids.iter().for_each(|ns| assert!(session.detach(*ns)));
    let refused = try_attach(&session, &specs[3], ZERO).unwrap_err();
    assert!(matches!(refused, AttachError::TooMany { max: 3 }), "{refused}");
    let mut copy = [0; 1];
    assert_eq!((pin.copy_to(&mut copy), copy), (pin.checksum(), *b"x"));
    clock.advance(Duration::from_secs(3));
    store.tick();
    assert_eq!(attach(&session, &specs[3]), ids[1], "the lease has ended");
    drop(pin);
    store.check().expect("a store that adds up");
}

#[test]
fn no_tenant_takes_the_places_of_others() {
    let (store, _clock) = open(config(9));
    let (a, b) = (store.session(), store.session());
    let kept = attach(&a, &spec("a", "kept", 1));
    assert_eq!(put(&a, kept, ZERO, key(1), 0, b"x"), STORED);
    a.detach(kept);
    for number in 0..30 {
        let ns = attach(&b, &spec("b", &format!("{number}"), 1));
        assert_eq!(put(&b, ns, ZERO, key(2), 0, b"x"), STORED);
        b.detach(ns);
    }
    let again = attach(&a, &spec("a", "kept", 1));
    assert_eq!(a.lookup(again, ZERO, &[key(1)], 0, None).prefix, 1, "b's own make way for b");
    for number in 0..3 {
        attach(&b, &spec("b", &format!("{number}"), 1));
    }
    let refused = try_attach(&b, &spec("b", "fourth", 1), ZERO).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, AttachError::TooManyOfTenant { max: 3, .. }), "{text}");
    assert!(text.contains("tenant b has 3") && text.contains("let go"), "{text}");
    attach(&a, &spec("a", "second", 1));
    store.check().expect("a store that adds up");
}

#[test]
fn an_attach_that_fails_leaves_nothing() {
    let directory = std::env::temp_dir().join(format!("keepwarm-attach-{}", std::process::id()));
    let mut config = config(2);
    config.state_dir = Some(directory.clone());
    let (store, _clock) = open(config);
    std::fs::remove_dir_all(&directory).expect("a directory");
    let session = store.session();
    let ns = keepwarm_store::types::NamespaceId(0);
    assert!(try_attach(&session, &spec("a", "m", 1), Epoch(3)).is_err());
    assert_eq!(store.stats().namespaces.len(), 0, "its place is vacant");
    let found = session.lookup(ns, ZERO, &[key(1)], 0, None);
    assert_eq!(found.miss, Some(MissReason::Identity));
}

#[test]
fn two_stores_on_one_directory_lose_no_epoch() {
    let directory = std::env::temp_dir().join(format!("keepwarm-two-{}", std::process::id()));
    let config = || StoreConfig { state_dir: Some(directory.clone()), ..config(4) };
    let ((one, _), (two, _)) = (open(config()), open(config()));
    let (first, second) = (spec("a", "first", 1), spec("a", "second", 1));
    let (of_one, of_two) = (one.session(), two.session());
    let ns = attach(&of_one, &first);
    assert_eq!(of_one.bump_epoch(ns, Epoch(5)).expect("an epoch"), Epoch(5));
    let ns = attach(&of_two, &second);
    assert_eq!(of_two.bump_epoch(ns, Epoch(1)).expect("an epoch"), Epoch(1));
    drop((of_one, of_two, one, two));
    let (again, _clock) = open(config());
    let session = again.session();
    let epoch = try_attach(&session, &first, ZERO).expect("attached").epoch;
    let _ = std::fs::remove_dir_all(&directory);
    assert_eq!(epoch, Epoch(5), "an acknowledged epoch was lost");
}

#[test]
fn a_flood_of_epochs_makes_nobody_forget_anothers() {
    let (store, _clock) = open(config(16));
    let a = store.session();
    let of_a = spec("a", "m", 1);
    let ns = attach(&a, &of_a);
    assert_eq!(a.bump_epoch(ns, Epoch(5)).expect("an epoch"), Epoch(5));
    drop(a);
    let refused = (0..20_000).find_map(|number| {
        let b = store.session();
        try_attach(&b, &spec("b", &format!("{number}"), 1), Epoch(1)).err()
    });
    let text = refused.expect("b has its share").to_string();
    assert!(text.contains("no room for one more namespace's epoch"), "{text}");
    let a = store.session();
    assert_eq!(try_attach(&a, &of_a, ZERO).expect("a's own").epoch, Epoch(5));
    let ns = attach(&a, &spec("a", "second", 1));
    assert_eq!(a.bump_epoch(ns, Epoch(1)).expect("a's share is its own"), Epoch(1));
}

#[test]
fn a_disk_that_does_not_answer_holds_up_only_who_needs_it_and_not_for_long() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let directory = std::env::temp_dir().join(format!("keepwarm-hung-{}", std::process::id()));
    let config = StoreConfig { state_dir: Some(directory.clone()), ..config(4) };
    let (store, _clock) = open(config);
    let session = store.session();
    let (one, two) = (spec("a", "one", 1), spec("b", "two", 1));
    let ns = attach(&session, &one);
    // A pipe that nobody reads: to open it for writing never returns.
    let pipe = directory.join("epochs.new");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    let patience = Duration::from_millis(50);
    for _ in 0..3 {
        let text = session.bump_epoch_within(ns, Epoch(1), patience).unwrap_err().to_string();
        assert!(text.contains("not written within 50 ms"), "{text}");
    }
    // One thread is in that write; these would wait for it for ever if they waited at all.
    let other = attach(&session, &two);
    assert_eq!(put(&session, other, ZERO, key(1), 0, b"x"), STORED);
    assert_eq!(attach(&session, &one), ns);
    assert_eq!(session.bump_epoch(ns, ZERO).expect("nothing to write"), ZERO);
    assert_eq!(session.lookup(ns, ZERO, &[key(1)], 0, None).miss, Some(MissReason::Absent));
    let found = session.lookup(ns, Epoch(1), &[key(1)], 0, None);
    assert_eq!(found.miss, Some(MissReason::Throttled));
    // The disk answers again.
    drop(std::fs::File::open(&pipe).expect("the other end"));
    let _ = std::fs::remove_file(&pipe);
    let begun = std::time::Instant::now();
    while session.bump_epoch(ns, Epoch(2)).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the disk is back");
    }
    assert_eq!(session.lookup(ns, Epoch(2), &[key(1)], 0, None).epoch, Epoch(2));
    let _ = std::fs::remove_dir_all(&directory);
}
