//! Killed clients leave nothing behind, once their leases have ended. Alone in its process, because
//! it counts descriptors.

mod support;

use std::path::Path;

use keepwarm_store::types::{BlockKey, GetOutcome};
use keepwarm_wire::frames::Opcode;
use keepwarm_wire::messages::{PutAsk, PutGrants, PutRequest};

use support::child::{Process, role};
use support::peer::Peer;
use support::{LONG, Node, SECOND, attach, connect, descriptors, eventually, get, keys, put};

const LENGTH: usize = 20_000;

/// Not a test: a client that takes what it can and never gives back.
#[test]
fn child_client() {
    let Some(path) = role() else { return };
    let signal = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(signal)).expect("dies with its parent");
    let path = Path::new(&path);
    let space = attach(&connect(path), "m");
    for _ in 0..8 {
        space.lookup(&keys(1, 8), 0, Some(SECOND * 2), LONG).expect("no misuse");
    }
    let (mut writer, attached) = Peer::attached(path);
    let ask = |key: &BlockKey| PutAsk { key: *key, part: 0, length: 1 << 20, engine_hash: None };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    let asks = keys(2, 8).iter().map(ask).collect();
    let _: PutGrants = writer.ask(Opcode::Put, &PutRequest { namespace, epoch, asks });
    loop {
        std::thread::park();
    }
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    let node = Node::start(64);
    let own = attach(&node.connect(), "m");
    put(&own, &keys(1, 8), LENGTH, LONG);
    eventually("all is quiet", LONG, || node.server.as_ref().unwrap().connections() == 1);
    let before = (node.store.stats(), descriptors());
    for _ in 0..3 {
        let mut client = Process::start("child_client", &node.path);
        eventually("the client holds what it can", LONG, || {
            let stats = node.store.stats();
            stats.leases == 8 && stats.writing_bytes >= 8 << 20
        });
        client.kill();
        eventually("nothing is left of it", LONG, || {
            let stats = node.store.stats();
            (stats.leases, stats.writing_bytes, stats.reads_in_flight) == (0, 0, 0)
                && stats.used_bytes == before.0.used_bytes
                && stats.blocks == before.0.blocks
                && node.server.as_ref().unwrap().connections() == 1
                && descriptors() == before.1
        });
        node.store.check().expect("the store adds up");
    }
    assert_eq!(get(&own, &keys(1, 8), LENGTH, LONG), [GetOutcome::Ok; 8]);
}
