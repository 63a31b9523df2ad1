//! What the node holds for a client that copies out of the arena by itself, and for how long.

mod support;

use std::time::Duration;

use keepwarm_store::types::{BlockKey, Epoch, GetOutcome, MissReason};
use keepwarm_wire::frames::Opcode;
use keepwarm_wire::messages::{
    AttachReply, GetAsk, LOCATED_BLOCKS_MAX, Landed, LocateReply, LocateRequest, PingReply,
    PingRequest,
};
use keepwarm_wire::{EpochOutcome, TransportChoice};

use support::peer::Peer;
use support::{LONG, Node, attach, eventually, get, key, keys, put};

const LENGTH: usize = 5000;

fn ask(attached: &AttachReply, keys: &[BlockKey], landed: Vec<Landed>) -> LocateRequest {
    let ask = |key: &BlockKey| GetAsk { key: *key, part: 0, length: LENGTH as u32 };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    LocateRequest { namespace, epoch, landed, asks: keys.iter().map(ask).collect() }
}

fn locate(peer: &mut Peer, attached: &AttachReply, keys: &[BlockKey]) -> (u64, LocateReply) {
    let reply = peer.ask(Opcode::Locate, &ask(attached, keys, vec![]));
    (peer.correlation, reply)
}

fn held(node: &Node) -> u64 {
    node.store.stats().reads_in_flight
}

fn number(node: &Node, name: &str) -> u64 {
    node.server.as_ref().expect("a server").stat().number(name).expect(name)
}

#[test]
fn blocks_are_held_until_they_have_landed() {
    let node = Node::start(16);
    put(&attach(&node.connect(), "m"), &keys(1, 4), LENGTH, LONG);
    let (mut peer, attached) = Peer::attached(&node.path);
    let (first, reply) = locate(&mut peer, &attached, &[key(1, 0), key(9, 9), key(1, 1)]);
    assert_eq!(reply.places[1], Err(GetOutcome::Miss(MissReason::Absent)));
    let located = reply.places[0].as_ref().expect("it is here");
    assert_eq!(located.extents.granules(), 2);
    assert_eq!(number(&node, "server.loads_bytes"), 3 * LENGTH as u64);
    let (second, _) = locate(&mut peer, &attached, &keys(1, 4)[2..]);
    assert_eq!(held(&node), 4);
    // A third group is one too many.
    let (_, reply) = locate(&mut peer, &attached, &keys(1, 1));
    assert_eq!(reply.places, [Err(GetOutcome::Throttled)]);
    peer.send(Opcode::Landed, &Landed { group: second, unused: vec![1] });
    eventually("the second is let go", LONG, || held(&node) == 2);
    peer.send(Opcode::Landed, &Landed { group: 999, unused: vec![] });
    let landed = vec![Landed { group: first, unused: vec![] }];
    let reply: LocateReply = peer.ask(Opcode::Locate, &ask(&attached, &keys(1, 1), landed));
    assert!(reply.places[0].is_ok());
    assert_eq!(held(&node), 1, "the first has landed with the next request");
    // Any other request ends what is held.
    let PingReply { .. } = peer.ask(Opcode::Ping, &PingRequest);
    assert_eq!((held(&node), number(&node, "server.loads_bytes")), (0, 0));
    locate(&mut peer, &attached, &keys(1, 2));
    drop(peer);
    eventually("the connection's end ends it too", LONG, || held(&node) == 0);
    node.store.check().expect("the store adds up");
}

#[test]
fn a_group_is_bounded() {
    let node = Node::start(16);
    let all = keys(1, LOCATED_BLOCKS_MAX as u64 + 3);
    put(&attach(&node.connect(), "m"), &all, LENGTH, LONG);
    let (mut peer, attached) = Peer::attached(&node.path);
    let (_, reply) = locate(&mut peer, &attached, &all);
    let (within, beyond) = reply.places.split_at(LOCATED_BLOCKS_MAX);
    assert!(within.iter().all(Result::is_ok));
    assert_eq!(beyond, [Err(GetOutcome::Throttled); 3]);
    assert_eq!(held(&node), LOCATED_BLOCKS_MAX as u64);
}

/// A client that stands still after it was told where blocks lie.
#[test]
fn a_hold_ends_by_its_time_and_the_conversation_goes_on() {
    let node = Node::with(16, |config| config.stall = Duration::from_millis(60));
    put(&attach(&node.connect(), "m"), &keys(1, 2), LENGTH, LONG);
    let (mut peer, attached) = Peer::attached(&node.path);
    let (group, reply) = locate(&mut peer, &attached, &keys(1, 2));
    assert_eq!(reply.hold_ms, 60);
    eventually("the hold ends", LONG, || held(&node) == 0);
    eventually("it is counted", LONG, || number(&node, "server.holds_ended") == 1);
    peer.send(Opcode::Landed, &Landed { group, unused: vec![] });
    let (_, reply) = locate(&mut peer, &attached, &keys(1, 2));
    assert!(reply.places.iter().all(Result::is_ok));
}

/// No old bytes after an acknowledged bump: it waits for whoever may still be copying them.
#[test]
fn a_bump_waits_for_located_blocks() {
    let node = Node::start(16);
    let space = attach(&node.connect(), "m");
    put(&space, &keys(1, 2), LENGTH, LONG);
    let (mut peer, attached) = Peer::attached(&node.path);
    let (group, _) = locate(&mut peer, &attached, &keys(1, 2));
    // A larger epoch is durable before it is answered, and a busy disk takes its time.
    let short = Duration::from_secs(2);
    assert_eq!(space.bump_epoch(Epoch(1), short).expect("tried"), EpochOutcome::StillLeased);
    peer.send(Opcode::Landed, &Landed { group, unused: vec![] });
    assert_eq!(space.bump_epoch(Epoch(1), LONG).expect("tried"), EpochOutcome::Acknowledged);
    let (_, reply) = locate(&mut peer, &attached, &keys(1, 2));
    assert_eq!(reply.places, [Err(GetOutcome::Miss(MissReason::Epoch)); 2]);
}

/// A client does not rely on a hold beyond its time, even if the bytes are right: by then a bump
/// may have been acknowledged.
#[test]
fn bytes_that_land_after_their_hold_are_not_used() {
    const LARGE: usize = 2 << 20;
    let node = Node::start(256);
    let all = keys(1, 32);
    put(&attach(&node.connect(), "m"), &all, LARGE, LONG);
    let path = node.scratch("hasty.sock");
    let mut config = keepwarm_wire::ServerConfig::new(&path);
    config.stall = Duration::from_millis(4);
    let hasty = keepwarm_wire::Server::start(node.store.clone(), config).expect("a server");
    let mut late = 0;
    for _ in 0..20 {
        let memory = support::connect_by(&path, TransportChoice::Auto);
        let space = attach(&memory, "m");
        for outcome in get(&space, &all, LARGE, LONG) {
            match outcome {
                GetOutcome::Ok => {}
                GetOutcome::Miss(MissReason::Deadline) => late += 1,
                // Its calls, too, must not stall.
                GetOutcome::Miss(MissReason::StoreDown) => {}
                other => panic!("{other:?}"),
            }
        }
        if late > 0 {
            break;
        }
    }
    assert!(late > 0, "64 MiB within 3.2 ms?");
    drop(hasty);
}
