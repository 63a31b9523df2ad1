//! The server on its own: its socket, its limits, and peers that misbehave.

mod support;

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use keepwarm_store::types::{BlockKey, GetOutcome, PutOutcome, ShedReason};
use keepwarm_wire::frames::{Opcode, TRAILER_BYTES, VERSION, flags};
use keepwarm_wire::messages::{
    AttachReply, GetAsk, GetRequest, Grant, PingReply, PingRequest, PutAsk, PutDataHead, PutDone,
    PutGrants, PutRequest, Refusal, RefusalCode, StatReply, StatRequest,
};
use keepwarm_wire::{Server, ServerConfig, ServerError};

use support::peer::{Peer, greeting};
use support::{Node, SECOND, Scratch, attach, connect, content, eventually, get, key, keys, put};

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn the_socket_is_private_and_goes_with_the_server() {
    let mut node = Node::start(16);
    let metadata = std::fs::symlink_metadata(&node.path).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    node.server.take().unwrap().stop();
    assert!(!node.path.exists());
    assert_eq!(std::fs::read_dir(node.path.parent().unwrap()).unwrap().count(), 0, "left-overs");
}

#[test]
fn a_live_socket_is_not_stolen_and_a_dead_one_is_replaced() {
    let node = Node::start(16);
    let error = Server::start(support::store(16), ServerConfig::new(&node.path)).err().unwrap();
    let text = error.to_string();
    assert!(matches!(error, ServerError::InUse { pid, .. } if pid == std::process::id()), "{text}");
    assert!(text.contains("in use by pid"), "{text}");
    assert!(connect(&node.path).stat(SECOND).is_ok(), "the first one goes on");

    let dead = node.scratch("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let server = Server::start(support::store(16), ServerConfig::new(&dead)).unwrap();
    assert!(connect(&dead).stat(SECOND).is_ok());
    drop(server);
}

#[test]
fn a_socket_that_was_replaced_is_left_alone() {
    let mut node = Node::start(16);
    std::fs::remove_file(&node.path).unwrap();
    let _other = UnixListener::bind(&node.path).unwrap();
    let inode = std::fs::symlink_metadata(&node.path).unwrap().ino();
    node.server.take().unwrap().stop();
    assert_eq!(std::fs::symlink_metadata(&node.path).unwrap().ino(), inode);
}

#[test]
fn paths_that_cannot_work_are_refused_by_name() {
    let scratch = Scratch::new();
    let start = |path: &std::path::Path| {
        Server::start(support::store(16), ServerConfig::new(path)).err().unwrap().to_string()
    };
    let long = scratch.path(&"x".repeat(120));
    assert!(start(&long).contains("at most 107 fit"));
    let file = scratch.path("file");
    std::fs::write(&file, "not a socket").unwrap();
    assert!(start(&file).contains("is not a socket"));
    assert_eq!(std::fs::read(&file).unwrap(), b"not a socket");
    assert!(start(&scratch.path("no/such/folder.sock")).contains("No such file"));
    let mut config = ServerConfig::new(scratch.path("s"));
    config.clients_max = 0;
    let error = Server::start(support::store(16), config).err().unwrap();
    assert_eq!(error.to_string(), "clients_max is 0: give 1 to 16384");
}

#[test]
fn clients_beyond_the_limit_are_told_so() {
    let node = Node::with(16, |config| config.clients_max = 2);
    let (one, _two) = (Peer::greeted(&node.path), Peer::greeted(&node.path));
    let mut third = Peer::connect(&node.path);
    let refusal = third.refusal();
    assert_eq!(refusal.code, RefusalCode::Clients);
    assert!(refusal.text.contains("all 2 places"), "{}", refusal.text);
    assert!(third.is_ended());
    drop(one);
    eventually("a place is free", SECOND * 5, || node.server.as_ref().unwrap().connections() < 2);
    Peer::greeted(&node.path);
}

#[test]
fn versions_without_overlap_are_told_so() {
    let node = Node::start(16);
    let mut peer = Peer::connect(&node.path);
    peer.send(Opcode::Hello, &greeting(VERSION + 1, VERSION + 9));
    let refusal = peer.refusal();
    assert_eq!(refusal.code, RefusalCode::Version);
    assert!(refusal.text.contains("speaks wire versions 2 to 10"), "{}", refusal.text);
    assert!(peer.is_ended());
}

#[test]
fn an_unknown_opcode_is_refused_and_the_conversation_goes_on() {
    let node = Node::start(16);
    let mut peer = Peer::greeted(&node.path);
    let frame = peer.frame(77, 0, 0, &PingRequest);
    peer.send_bytes(&frame).unwrap();
    assert_eq!(peer.refusal().code, RefusalCode::Opcode);
    let reply: PingReply = peer.ask(Opcode::Ping, &PingRequest);
    assert_eq!(reply.incarnation, node.store.incarnation());
}

#[test]
fn violations_end_the_connection_with_a_reason() {
    let node = Node::start(16);
    let violate = |change: &dyn Fn(&mut Peer) -> Vec<u8>| {
        let mut peer = Peer::greeted(&node.path);
        let bytes = change(&mut peer);
        peer.send_bytes(&bytes).unwrap();
        let refusal = peer.refusal();
        assert_eq!(refusal.code, RefusalCode::Violation);
        assert!(peer.is_ended());
        refusal.text
    };
    let with = |at: usize, bytes: &'static [u8]| {
        violate(&move |peer| {
            let mut frame = peer.frame(Opcode::Ping as u8, 0, 0, &PingRequest);
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        })
    };
    assert!(with(0, b"HTTP").contains("bad magic"));
    assert!(with(4, &[9, 0]).contains("wire version 9, agreed on was 1"));
    assert!(with(7, &[64]).contains("unknown flags"));
    assert!(with(16, &[0xff; 4]).contains("at most 4194304"));
    assert!(with(24, &[0, 0, 0, 0, 0, 0, 0, 0x80]).contains("9223372036854775808 bytes"));
    assert!(with(32, &[1]).contains("do not match their checksum"));
    let data = PutDataHead { index: 0 };
    let text = violate(&|peer| peer.frame(Opcode::PutData as u8, flags::TRAILER, 0, &data));
    assert!(text.contains("unexpected frame"), "{text}");
    let text = violate(&|peer| peer.frame(Opcode::Hello as u8, 0, 0, &greeting(1, 1)));
    assert!(text.contains("second greeting"), "{text}");
    let text = violate(&|peer| peer.frame(Opcode::Ping as u8, 0, 5, &PingRequest));
    assert!(text.contains("payload of 5 bytes"), "{text}");
    let text = violate(&|peer| peer.frame(Opcode::Lookup as u8, 0, 0, &PingRequest));
    assert!(text.contains("malformed lookup request: it ends too early"), "{text}");
    node.store.check().unwrap();
}

#[test]
fn silence_and_halves_are_closed_in_time() {
    let node = Node::with(16, |config| {
        config.handshake = SHORT;
        config.idle = SHORT * 2;
        config.stall = SHORT;
    });
    let within = |mut peer: Peer, limit: Duration| {
        let start = Instant::now();
        assert!(peer.is_ended());
        assert!(start.elapsed() < limit + SECOND, "{:?}", start.elapsed());
    };
    within(Peer::connect(&node.path), SHORT);
    let mut half = Peer::connect(&node.path);
    half.send_bytes(b"KWRM\x01\x00").unwrap();
    within(half, SHORT);
    within(Peer::greeted(&node.path), SHORT * 2);
    let mut half = Peer::greeted(&node.path);
    half.send_bytes(b"KWRM\x01\x00").unwrap();
    within(half, SHORT);
    let mut promise = Peer::greeted(&node.path);
    let mut frame = promise.frame(Opcode::Ping as u8, 0, 0, &PingRequest);
    frame[16..20].copy_from_slice(&(4u32 << 20).to_le_bytes());
    promise.send_bytes(&frame).unwrap();
    within(promise, SHORT);
    eventually("no connection is left", SECOND * 5, || {
        node.server.as_ref().unwrap().connections() == 0
    });
}

/// A put of `count` blocks by hand, up to its grants.
fn begin_put(peer: &mut Peer, attached: &AttachReply, keys: &[BlockKey], length: u32) -> PutGrants {
    let ask = |key: &BlockKey| PutAsk { key: *key, part: 0, length, engine_hash: None };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    let request = PutRequest { namespace, epoch, asks: keys.iter().map(ask).collect() };
    peer.ask(Opcode::Put, &request)
}

#[test]
fn a_put_that_stops_half_way_gives_everything_back() {
    let node = Node::with(64, |config| config.stall = SHORT);
    let used = node.store.stats().used_bytes;
    for ending in 0..2 {
        let (mut peer, attached) = Peer::attached(&node.path);
        let grants = begin_put(&mut peer, &attached, &keys(1, 8), 1 << 20);
        assert!(grants.0.iter().all(|grant| *grant == Grant::Granted));
        assert!(node.store.stats().writing_bytes >= 8 << 20);
        let data = PutDataHead { index: 0 };
        let frame = peer.frame(Opcode::PutData as u8, flags::TRAILER, 1 << 20, &data);
        peer.send_bytes(&frame).unwrap();
        peer.send_bytes(&[1; 1000]).unwrap();
        if ending == 0 {
            drop(peer);
        }
        eventually("all space is back", SECOND * 5, || {
            let stats = node.store.stats();
            (stats.writing_bytes, stats.used_bytes) == (0, used)
        });
        node.store.check().unwrap();
    }
}

#[test]
fn bytes_that_do_not_match_their_trailer_are_not_stored() {
    let node = Node::start(64);
    let (mut peer, attached) = Peer::attached(&node.path);
    let keys = keys(2, 2);
    begin_put(&mut peer, &attached, &keys, 5000);
    for (index, key) in (0u32..).zip(&keys) {
        let data = PutDataHead { index };
        let mut bytes = peer.frame(Opcode::PutData as u8, flags::TRAILER, 5000, &data);
        let content = content(*key, 5000);
        bytes.extend_from_slice(&content);
        let wrong = u64::from(index == 0);
        let trailer = keepwarm_store::checksum::xxh3_64(&content) ^ wrong;
        bytes.extend_from_slice(&trailer.to_le_bytes());
        assert_eq!(bytes.len(), 44 + 5000 + TRAILER_BYTES);
        peer.send_bytes(&bytes).unwrap();
    }
    let done: PutDone = peer.receive_body();
    assert_eq!(done.0, [PutOutcome::Shed(ShedReason::Corrupt), PutOutcome::Stored]);
    let space = attach(&node.connect(), "m");
    let outcomes = get(&space, &keys, 5000, SECOND);
    assert_ne!(outcomes[0], GetOutcome::Ok);
    assert_eq!(outcomes[1], GetOutcome::Ok);
    assert_eq!(put(&space, &keys[..1], 5000, SECOND), [PutOutcome::Stored]);
}

#[test]
fn a_reader_that_stops_reading_is_closed_and_holds_nothing() {
    let node = Node::with(64, |config| config.stall = SECOND);
    let space = attach(&node.connect(), "m");
    let keys = keys(3, 16);
    assert_eq!(put(&space, &keys, 1 << 20, SECOND * 5), [PutOutcome::Stored; 16]);
    let (mut peer, attached) = Peer::attached(&node.path);
    let ask = |key: &BlockKey| GetAsk { key: *key, part: 0, length: 1 << 20 };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    peer.send(Opcode::Get, &GetRequest { namespace, epoch, asks: keys.iter().map(ask).collect() });
    eventually("bytes are held for it", SECOND * 5, || node.store.stats().reads_in_flight > 0);
    eventually("nothing is held for it", SECOND * 5, || node.store.stats().reads_in_flight == 0);
    node.store.check().unwrap();
    assert_eq!(get(&space, &keys, 1 << 20, SECOND * 5), [GetOutcome::Ok; 16]);
}

#[test]
fn loads_go_before_stores() {
    let node = Node::with(64, |config| config.put_watermark_bytes = 1 << 20);
    let space = attach(&node.connect(), "m");
    let all = keys(4, 16);
    put(&space, &all, 1 << 20, SECOND * 5);
    let (mut peer, attached) = Peer::attached(&node.path);
    let ask = |key: &BlockKey| GetAsk { key: *key, part: 0, length: 1 << 20 };
    let (namespace, epoch) = (attached.namespace, attached.epoch);
    peer.send(Opcode::Get, &GetRequest { namespace, epoch, asks: all.iter().map(ask).collect() });
    eventually("the get is under way", SECOND * 5, || node.store.stats().reads_in_flight > 0);
    let shed = PutOutcome::Shed(ShedReason::Watermark);
    assert_eq!(put(&space, &keys(5, 2), 5000, SECOND), [shed; 2]);
    let mut stat = Peer::greeted(&node.path);
    let figures: StatReply = stat.ask(Opcode::Stat, &StatRequest);
    let figures = keepwarm_wire::NodeStat(figures.0);
    assert_eq!(figures.number("tenant.default.shed.watermark"), Some(2));
    drop(peer);
    eventually("puts are taken again", SECOND * 5, || {
        put(&space, &keys(5, 1), 5000, SECOND)[0] != shed
    });
}

#[test]
fn draining_finishes_what_is_under_way_and_lets_nobody_in() {
    let mut node = Node::start(64);
    let memory = node.connect();
    let space = attach(&memory, "m");
    put(&space, &keys(6, 4), 1 << 20, SECOND * 5);
    let (mut peer, attached) = Peer::attached(&node.path);
    begin_put(&mut peer, &attached, &[key(6, 9)], 5000);
    let server = node.server.take().unwrap();
    std::thread::scope(|scope| {
        let draining = scope.spawn(|| server.drain(SECOND * 10));
        eventually("the idle connections end", SECOND * 5, || server.connections() == 1);
        assert!(!node.path.exists() && UnixStream::connect(&node.path).is_err());
        let content = content(key(6, 9), 5000);
        let data = PutDataHead { index: 0 };
        let mut bytes = peer.frame(Opcode::PutData as u8, flags::TRAILER, 5000, &data);
        bytes.extend_from_slice(&content);
        bytes.extend_from_slice(&keepwarm_store::checksum::xxh3_64(&content).to_le_bytes());
        peer.send_bytes(&bytes).unwrap();
        assert_eq!(peer.receive_body::<PutDone>().0, [PutOutcome::Stored]);
        assert_eq!(peer.refusal().code, RefusalCode::Draining, "and hears why it ends");
        assert!(draining.join().unwrap());
    });
    let outcomes = get(&space, &keys(6, 4), 1 << 20, SECOND);
    let down = GetOutcome::Miss(keepwarm_store::types::MissReason::StoreDown);
    assert_eq!(outcomes, [down; 4]);
    node.store.check().unwrap();
}

#[test]
fn a_flood_of_connections_and_garbage_stays_bounded() {
    let node = Node::with(16, |config| {
        config.clients_max = 64;
        config.handshake = SHORT;
        config.stall = SHORT;
    });
    let before = resident_bytes();
    let mut chance = support::Chance::new("flood");
    let mut peers = Vec::new();
    for n in 0..1000u64 {
        let Ok(stream) = UnixStream::connect(&node.path) else { continue };
        let mut peer = Peer { stream, correlation: 0 };
        let garbage: Vec<u8> = (0..chance.below(300)).map(|_| chance.below(256) as u8).collect();
        let huge = peer.frame(Opcode::Hello as u8, 0, 1 << 63, &greeting(1, 1));
        let hello = peer.frame(Opcode::Hello as u8, 0, 0, &greeting(1, 1));
        // The node may already have turned it away.
        let _ = match n % 5 {
            0 => peer.send_bytes(&garbage),
            1 => peer.send_bytes(&huge),
            2 => peer.send_bytes(&hello[..hello.len() / 2]),
            3 => peer.send_bytes(&[hello, huge].concat()),
            _ => Ok(()),
        };
        peers.push(peer);
    }
    assert!(node.server.as_ref().unwrap().connections() <= 64);
    for peer in &mut peers {
        peer.stream.set_read_timeout(Some(SECOND * 10)).unwrap();
        assert!(peer.is_ended());
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    assert!(connect(&node.path).stat(SECOND).is_ok(), "and it still serves");
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap() * 4096
}

#[test]
fn a_refusal_is_text_for_people() {
    let text = "ü".repeat(5000);
    let mut out = Vec::new();
    use keepwarm_wire::codec::Body;
    Refusal { code: RefusalCode::Failed, text }.write(&mut out);
    let back: Refusal = keepwarm_wire::codec::decode(VERSION, &out).unwrap();
    assert_eq!(back.text.len(), 4096, "cut at a character");
}
