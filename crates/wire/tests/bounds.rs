//! What one peer can take from the others: grants, buffers, leases, figures. Each has an end.

mod support;

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keepwarm_store::types::{GetOutcome, MissReason, PutOutcome, ShedReason};
use keepwarm_store::{Store, SystemClock, TenantConfig};
use keepwarm_wire::codec::{Body, Malformed, Reader};
use keepwarm_wire::frames::{BODY_BYTES_MAX, HEADER_BYTES, Opcode, flags};
use keepwarm_wire::messages::{
    AttachReply, GetAsk, GetRequest, Grant, PutAsk, PutDataHead, PutGrants, PutRequest, RefusalCode,
};
use keepwarm_wire::{HealthState, Server, ServerConfig};

use support::peer::Peer;
use support::proxy::Proxy;
use support::{
    LONG, Node, SECOND, Scratch, attach, connect, eventually, get, key, keys, put, store_config,
};

/// A put of `count` blocks by hand, up to its grants.
fn begin_put(peer: &mut Peer, attached: &AttachReply, count: u64, length: u32) -> PutGrants {
    let ask = |n| PutAsk { key: key(77, n), part: 0, length, engine_hash: None };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    peer.ask(Opcode::Put, &PutRequest { namespace, epoch, asks: (0..count).map(ask).collect() })
}

#[test]
fn one_put_request_is_granted_a_bounded_part() {
    let node = Node::start(256);
    for (count, length, granted) in [(9000, 1, 256), (100, 1 << 20, 64), (3, 60 << 20, 1)] {
        let (mut peer, attached) = Peer::attached(&node.path);
        let PutGrants(grants) = begin_put(&mut peer, &attached, count, length);
        let (yes, no) = grants.split_at(granted);
        assert!(yes.iter().all(|grant| *grant == Grant::Granted), "{count} of {length}");
        let busy = Grant::Decided(PutOutcome::Shed(ShedReason::Busy));
        assert!(no.iter().all(|grant| *grant == busy), "{count} of {length}: {:?}", no.first());
        drop(peer);
        eventually("its grants are back", LONG, || node.store.stats().writing_bytes == 0);
    }
    node.store.check().unwrap();
}

#[test]
fn a_put_that_drips_is_over_in_time() {
    let node = Node::with(64, |config| config.stall = SECOND / 2);
    let (mut peer, attached) = Peer::attached(&node.path);
    begin_put(&mut peer, &attached, 200, 1);
    peer.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let begun = Instant::now();
    for index in 0..200 {
        let data = PutDataHead { index };
        let mut bytes = peer.frame(Opcode::PutData as u8, flags::TRAILER, 1, &data);
        bytes.push(9);
        bytes.extend_from_slice(&keepwarm_store::checksum::xxh3_64(&[9]).to_le_bytes());
        // A tenth of a second between two blocks, unless the node ends it.
        let ended = peer.send_bytes(&bytes).is_err() || matches!(peer.stream.read(&mut [0]), Ok(0));
        if ended {
            break;
        }
    }
    assert!(begun.elapsed() < SECOND * 8, "it lived for {:?}", begun.elapsed());
    eventually("its grants are back", LONG, || node.store.stats().writing_bytes == 0);
}

/// A request as large as any.
struct Large;

impl Body for Large {
    const NAME: &'static str = "large";

    fn write(&self, out: &mut Vec<u8>) {
        out.resize(out.len() + BODY_BYTES_MAX, 1);
    }

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Large)
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap() * 4096
}

#[test]
fn idle_connections_keep_no_large_buffers() {
    let node = Node::start(16);
    let before = resident_bytes();
    let mut peers: Vec<Peer> = (0..100).map(|_| Peer::greeted(&node.path)).collect();
    let frame = peers[0].frame(200, 0, 0, &Large);
    for peer in &mut peers {
        peer.send_bytes(&frame).unwrap();
        assert_eq!(peer.refusal().code, RefusalCode::Opcode, "the conversation goes on");
    }
    drop(frame);
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 128 << 20, "100 idle connections hold {grown} bytes");
}

#[test]
fn promised_bodies_take_nothing_from_others() {
    let node = Node::start(64);
    let space = attach(&node.connect(), "m");
    let mut peers: Vec<Peer> = (0..16).map(|_| Peer::greeted(&node.path)).collect();
    for peer in &mut peers {
        let frame = peer.frame(Opcode::Lookup as u8, 0, 0, &Large);
        peer.send_bytes(&frame[..HEADER_BYTES]).unwrap();
    }
    for _ in 0..20 {
        let found = space.lookup(&keys(9, 20_000), 0, None, LONG).unwrap();
        assert_eq!(found.miss, Some(MissReason::Absent));
    }
}

#[test]
fn beyond_the_common_budget_a_request_is_throttled_and_the_client_stays_up() {
    let node = Node::with(64, |config| config.stall = LONG);
    let memory = node.connect();
    let space = attach(&memory, "m");
    assert_eq!(put(&space, &keys(1, 1), 100, LONG), [PutOutcome::Stored]);
    let mut peers: Vec<Peer> = (0..16).map(|_| Peer::greeted(&node.path)).collect();
    for peer in &mut peers {
        let frame = peer.frame(Opcode::Lookup as u8, 0, 0, &Large);
        peer.send_bytes(&frame[..frame.len() - 1]).unwrap();
    }
    let many = keys(9, 20_000);
    let look = || space.lookup(&many, 0, None, LONG).unwrap().miss;
    eventually("all buffers are taken", LONG, || look() == Some(MissReason::Throttled));
    for _ in 0..5 {
        assert_eq!(look(), Some(MissReason::Throttled));
    }
    assert_eq!(memory.health().state, HealthState::Up, "{:?}", memory.health());
    assert_eq!(memory.stats().connections, 1, "the connection goes on");
    assert_eq!(get(&space, &keys(1, 1), 100, LONG), [GetOutcome::Ok]);
    drop(peers);
    eventually("buffers are free again", LONG, || look() == Some(MissReason::Absent));
}

#[test]
fn a_cut_call_leaves_the_clients_leases_for_their_time() {
    let node = Node::start(16);
    let proxy = Proxy::start(node.scratch("p"), &node.path);
    let writer = attach(&node.connect(), "m");
    let keys = keys(1, 4);
    put(&writer, &keys, 300_000, LONG);
    let reader = attach(&connect(&proxy.path), "m");
    let told = Instant::now();
    let found = reader.lookup(&keys, 0, Some(SECOND * 3), LONG).unwrap();
    let holds = Duration::from_millis(found.lease_ms.into());
    proxy.close_gate();
    assert_ne!(get(&reader, &keys, 300_000, SECOND / 10), [GetOutcome::Ok; 4]);
    proxy.open_gate();
    let server = node.server.as_ref().unwrap();
    eventually("the cut connection is gone", LONG, || server.connections() == 1);
    let leases = node.store.stats().leases;
    assert!(leases == 1 || told.elapsed() >= holds, "a lease ended before its time");
    assert_eq!(reader.renew(found.lease.unwrap(), SECOND, LONG), Ok(true), "from a new connection");
    drop(reader);
    eventually("the session goes with its last lease", LONG, || {
        let stats = node.store.stats();
        (stats.leases, stats.namespaces[0].sessions) == (0, 1)
    });
}

#[test]
fn figures_of_many_tenants_arrive_whole() {
    let mut config = store_config(16);
    for n in 0..1000 {
        let name = format!("tenant-of-a-large-company-with-a-long-name-{n:04}");
        config.tenants.push(TenantConfig { name, ..TenantConfig::public_default() });
    }
    let scratch = Scratch::new();
    let path = scratch.path("s");
    let store = Store::open(config, Arc::new(SystemClock)).unwrap();
    let _server = Server::start(store, ServerConfig::new(&path)).unwrap();
    let memory = connect(&path);
    let figures = memory.stat(LONG).unwrap();
    for n in 0..1000 {
        let name = format!("tenant.tenant-of-a-large-company-with-a-long-name-{n:04}.bytes");
        assert_eq!(figures.number(&name), Some(0));
    }
    assert!(figures.number("server.connections").is_some(), "the last ones too");
    assert_eq!(memory.health().state, HealthState::Up);
}

#[test]
fn a_get_that_claims_much_sheds_nobodys_puts() {
    let node = Node::start(64);
    let space = attach(&node.connect(), "m");
    let here = keys(4, 8);
    put(&space, &here, 1 << 20, LONG);
    let (mut peer, attached) = Peer::attached(&node.path);
    let real = here.iter().map(|key| GetAsk { key: *key, part: 0, length: 1 << 20 });
    let claimed = keys(5, 8).into_iter().map(|key| GetAsk { key, part: 0, length: u32::MAX });
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    peer.send(Opcode::Get, &GetRequest { namespace, epoch, asks: real.chain(claimed).collect() });
    eventually("the get is under way", LONG, || node.store.stats().reads_in_flight > 0);
    assert_eq!(put(&space, &keys(6, 2), 5000, LONG), [PutOutcome::Stored; 2]);
}
