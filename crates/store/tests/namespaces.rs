//! Places of namespaces: who may have one, who makes way, and what goes with it.

mod common;

use std::time::Duration;

use common::{attach, key, open, put, spec};
use keepwarm_store::types::{Epoch, PutOutcome};
use keepwarm_store::{EventBatch, EventFilter, StoreConfig, TenantConfig};

const ZERO: Epoch = Epoch(0);
const MIB: u64 = 1 << 20;
const STORED: PutOutcome = PutOutcome::Stored;

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
    a.drop_keys(of_a, &[key(1)]);
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
