//! Settings of a store that change while it serves: all of them, or none.

mod common;

use std::time::Duration;

use common::{attach, key, open, put, spec};
use keepwarm_store::retune::TenantTuning;
use keepwarm_store::types::{Epoch, PutOutcome};
use keepwarm_store::{StoreConfig, TenantConfig};

const BLOCK: [u8; 4096] = [7; 4096];

fn tuning(name: &str, quota_bytes: Option<u64>, ttl: Option<Duration>) -> TenantTuning {
    TenantTuning { name: name.into(), quota_bytes, ttl }
}

#[test]
fn quotas_and_times_to_live_change_under_a_serving_store() {
    let mut config = StoreConfig::new(64 * 4096);
    config.populate = false;
    config.tenants = vec![TenantConfig::public_default()];
    let (store, clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "m", 1));
    for number in 0..32 {
        assert_eq!(put(&session, ns, Epoch(0), key(number), 0, &BLOCK), PutOutcome::Stored);
    }
    let hour = Some(Duration::from_secs(3600));
    store.retune(&[tuning("default", Some(8 * 4096), hour)]).unwrap();
    store.tick();
    let stats = store.stats();
    assert_eq!((stats.used_bytes, stats.tenants[0].quota_bytes), (8 * 4096, Some(8 * 4096)));
    // A block that was here keeps its end, which is none; a new one has the new one.
    assert_eq!(put(&session, ns, Epoch(0), key(100), 0, &BLOCK), PutOutcome::Stored);
    clock.advance(Duration::from_secs(3601));
    let hits = |keys: &[u64]| {
        let keys: Vec<_> = keys.iter().copied().map(key).collect();
        session.lookup(ns, Epoch(0), &keys, 0, None).hits.iter().flatten().count()
    };
    assert_eq!((hits(&[31]), hits(&[100])), (1, 0));
    store.check().unwrap();
}

#[test]
fn one_tenant_that_is_not_here_and_nothing_changes() {
    let mut config = StoreConfig::new(64 * 4096);
    config.populate = false;
    let (store, _clock) = open(config);
    let before = store.stats();
    let changes = [tuning("default", Some(4096), None), tuning("nobody", None, None)];
    let error = store.retune(&changes).unwrap_err();
    assert!(error.to_string().contains("tenant nobody is unknown"), "{error}");
    assert_eq!(store.stats(), before);
}
