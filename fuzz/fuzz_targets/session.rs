//! A server's whole conversation with a peer that says anything at all. Afterwards the store adds
//! up, and nothing of the peer is left in it.
#![no_main]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use keepwarm_fuzz::{Script, stream};
use keepwarm_store::{Store, StoreConfig, SystemClock};
use keepwarm_wire::ServerConfig;
use keepwarm_wire::server::{Node, serve};
use libfuzzer_sys::fuzz_target;

fn node() -> &'static (Arc<Store>, Node) {
    static NODE: OnceLock<(Arc<Store>, Node)> = OnceLock::new();
    NODE.get_or_init(|| {
        let mut config = StoreConfig::new(4 << 20);
        config.populate = false;
        let store = Store::open(config, Arc::new(SystemClock)).expect("a store");
        let mut config = ServerConfig::new("unused");
        // Followers look up this often: a script must not keep one waiting.
        config.heartbeat = Duration::from_nanos(1);
        (store.clone(), Node::new(store, config))
    })
}

fuzz_target!(|data: &[u8]| {
    let (store, node) = node();
    let bytes = stream(data);
    let mut script = Script::new(&bytes);
    serve(node, &mut script, &|_| {});
    node.end_sessions();
    store.check().expect("the store adds up");
    let stats = store.stats();
    assert_eq!((stats.leases, stats.reads_in_flight, stats.writing_bytes), (0, 0, 0));
});
