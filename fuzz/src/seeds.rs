//! Small, valid inputs for every target, from which the fuzzer finds its way.

use std::time::Duration;

use keepwarm_store::arena::{Extent, Extents};
use keepwarm_store::flash::format::{
    BlockEntry, Record, RecordPlace, Superblock, encode_record, encode_segment, encode_superblock,
};
use keepwarm_store::identity::{ChainKey, TenantSecret};
use keepwarm_store::tiers::TierNamespace;
use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, MissReason, NamespaceId, Priority,
    PutOutcome, Terms, Tier,
};
use keepwarm_store::{Event, EventBatch, EventKind, Hit, Lookup, Reported};
use keepwarm_wire::codec::Body;
use keepwarm_wire::frames::{Opcode, VERSION, flags};
use keepwarm_wire::messages::*;

use crate::{FLASH_SEGMENT, namespace};

const ANNOUNCEMENT: Announcement =
    Announcement { age_ms: 9, weight_permille: 1000, draining: false };
const KEYS: [BlockKey; 2] = [BlockKey([1; 16]), BlockKey([2; 16])];
const NAMESPACE: NamespaceId = NamespaceId(0);
const EPOCH: Epoch = Epoch(0);

fn bytes(body: &impl Body) -> Vec<u8> {
    let mut out = Vec::new();
    body.write(&mut out);
    out
}

/// Every request with its opcode.
pub fn requests() -> Vec<(Opcode, Vec<u8>)> {
    let spec = namespace();
    let key_check = ChainKey::new(&spec, &TenantSecret::public_default()).key_check();
    let (namespace, epoch, incarnation, lease) = (NAMESPACE, EPOCH, 1, LeaseId(1));
    let terms = Terms { ttl: Some(Duration::from_secs(1)), priority: Priority::new(2) };
    let keys = KEYS.to_vec();
    let key = KEYS[0];
    let get = GetAsk { key, part: 0, length: 3 };
    let put = PutAsk { key, part: 0, length: 3, engine_hash: Some(9) };
    let since = Some(Since { incarnation, sequence: 1 });
    let landed = vec![Landed { group: 1, unused: vec![0, 2] }];
    let piece = Piece { index: 0, length: 3, checksum: 4 };
    let (token, name) = (Token([0; 16]), String::from("seed"));
    let credential = None;
    let greeting = Greeting { version_oldest: 1, version: 1, token, pid: 1, name, credential };
    let credential = Some(vec![b'k'; 43]);
    vec![
        (Opcode::Hello, bytes(&greeting)),
        (Opcode::Hello, bytes(&Greeting { credential, ..greeting })),
        (
            Opcode::Attach,
            bytes(&AttachRequest { encoding: spec.encoding().to_vec(), key_check, epoch, terms }),
        ),
        (Opcode::Put, bytes(&PutRequest { namespace, epoch, asks: vec![put] })),
        (Opcode::PutData, bytes(&PutDataHead { index: 0 })),
        (
            Opcode::Lookup,
            bytes(&LookupRequest {
                namespace,
                epoch,
                first_position: 0,
                lease_ms: 2000,
                keys: keys.clone(),
            }),
        ),
        (Opcode::Get, bytes(&GetRequest { namespace, epoch, asks: vec![get, get] })),
        (Opcode::Touch, bytes(&TouchRequest { namespace, epoch, keys: keys.clone() })),
        (Opcode::Renew, bytes(&RenewRequest { incarnation, lease, lease_ms: 5 })),
        (Opcode::Release, bytes(&ReleaseRequest { incarnation, lease })),
        (
            Opcode::Report,
            bytes(&ReportRequest { namespace, key, part: 0, generation: Generation(1) }),
        ),
        (Opcode::Drop, bytes(&DropRequest { namespace, keys: Some(keys) })),
        (Opcode::Drop, bytes(&DropRequest { namespace, keys: None })),
        (Opcode::Epoch, bytes(&EpochRequest { namespace, epoch: Epoch(1), wait_ms: 0 })),
        (Opcode::Stat, bytes(&StatRequest)),
        (Opcode::Subscribe, bytes(&SubscribeRequest { namespace, since })),
        (Opcode::Ping, bytes(&PingRequest)),
        (Opcode::Map, bytes(&MapRequest)),
        (Opcode::Locate, bytes(&LocateRequest { namespace, epoch, landed, asks: vec![get] })),
        (Opcode::Landed, bytes(&Landed { group: 1, unused: vec![] })),
        (Opcode::Stage, bytes(&StageRequest { bytes: 1 << 20 })),
        (Opcode::PutStaged, bytes(&PutRequest { namespace, epoch, asks: vec![put] })),
        (Opcode::Detach, bytes(&DetachRequest { namespace })),
        (Opcode::StagedData, bytes(&StagedData { offset: 0, pieces: vec![piece] })),
    ]
}

/// Every reply with its opcode and flags.
pub fn replies() -> Vec<(Opcode, u8, Vec<u8>)> {
    let more = flags::REPLY | flags::MORE;
    let hit = Hit { tier: Tier::Dram, length: 3, generation: Generation(1), checksum: 4 };
    let found = Lookup {
        prefix: 1,
        hits: vec![Some(hit), None],
        miss: Some(MissReason::Absent),
        lease: Some(LeaseId(1)),
        lease_ms: 2000,
        restore_ns: 5,
        epoch: EPOCH,
        incarnation: 1,
    };
    let names = vec![String::from("unix")];
    let greeting = GreetingReply {
        version: VERSION,
        incarnation: 1,
        pid: 1,
        node: String::from("seed"),
        announcement: ANNOUNCEMENT,
        transports: names.clone(),
        capabilities: names,
    };
    let attach = AttachReply { namespace: NAMESPACE, epoch: EPOCH, nearest: String::from("n") };
    let checksum = keepwarm_store::checksum::xxh3_64(b"abc");
    let data = GetData { index: 0, generation: Generation(1), checksum };
    let misses = GetMisses { first: 1, outcomes: vec![GetOutcome::Miss(MissReason::Evicted)] };
    let figures = vec![
        (String::from("a"), StatValue::Number(1)),
        (String::from("b"), StatValue::Ratio(0.5)),
        (String::from("c"), StatValue::Text(String::from("d"))),
    ];
    let refusal = Refusal { code: RefusalCode::Failed, text: String::from("no") };
    let mut replies = vec![
        (Opcode::Hello, flags::REPLY, bytes(&greeting)),
        (Opcode::Attach, flags::REPLY, bytes(&attach)),
        (Opcode::Lookup, flags::REPLY, bytes(&LookupReply(found))),
        (Opcode::Get, more, bytes(&data)),
        (Opcode::Get, more, bytes(&misses)),
        (Opcode::Put, more, bytes(&PutGrants(vec![Grant::Granted]))),
        (Opcode::Put, flags::REPLY, bytes(&PutDone(vec![PutOutcome::Stored]))),
        (Opcode::Touch, flags::REPLY, bytes(&TouchReply(1))),
        (Opcode::Renew, flags::REPLY, bytes(&RenewReply(true))),
        (Opcode::Release, flags::REPLY, bytes(&ReleaseReply)),
        (Opcode::Report, flags::REPLY, bytes(&ReportReply(Reported::Intact))),
        (Opcode::Drop, flags::REPLY, bytes(&DropReply(1))),
        (Opcode::Epoch, flags::REPLY, bytes(&EpochReply { epoch: EPOCH, quiet: true })),
        (Opcode::Stat, flags::REPLY, bytes(&StatReply(figures))),
        (
            Opcode::Ping,
            flags::REPLY,
            bytes(&PingReply { incarnation: 1, announcement: ANNOUNCEMENT }),
        ),
        (Opcode::Detach, flags::REPLY, bytes(&DetachReply(true))),
        (Opcode::Ping, flags::REPLY | flags::REFUSED, bytes(&refusal)),
    ];
    replies.extend(of_shared_memory());
    replies.extend(batches().map(|batch| (Opcode::Subscribe, more, bytes(&EventsReply(batch)))));
    replies
}

fn of_shared_memory() -> [(Opcode, u8, Vec<u8>); 5] {
    let more = flags::REPLY | flags::MORE;
    [
        (Opcode::Map, flags::REPLY, bytes(&MapReply { incarnation: 1, bytes: 4096 })),
        (Opcode::Locate, flags::REPLY, bytes(&places())),
        (Opcode::Stage, flags::REPLY, bytes(&StageReply)),
        (Opcode::PutStaged, more, bytes(&PutGrants(vec![Grant::Granted]))),
        (Opcode::StagedData, more, bytes(&StagedTaken { offset: 0 })),
    ]
}

fn places() -> LocateReply {
    let mut extents = Extents::default();
    assert!(extents.push(Extent { first_granule: 0, granules: 1 }));
    let located = Located { generation: Generation(1), checksum: 4, extents };
    let absent = GetOutcome::Miss(MissReason::Absent);
    LocateReply { hold_ms: 5000, places: vec![Ok(located), Err(absent)] }
}

fn batches() -> [EventBatch; 3] {
    let event = |sequence, kind| Event { sequence, namespace: NAMESPACE, kind };
    let (key, engine_hash) = (KEYS[0], Some(1));
    let events = vec![
        event(1, EventKind::Stored { key, engine_hash }),
        event(2, EventKind::Removed { key, engine_hash: None, tier: Tier::Dram }),
        event(3, EventKind::Cleared),
    ];
    [
        EventBatch::Events { events: events.clone(), next: 4 },
        EventBatch::Snapshot { events, last: true },
        EventBatch::Resync { incarnation: 1 },
    ]
}

/// One frame in the language of [`crate::stream`].
pub fn frame(code: u8, flags: u8, correlation: u8, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut out = vec![code, flags, VERSION as u8, correlation];
    out.extend_from_slice(&(body.len() as u16).to_le_bytes());
    out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    out.push(0);
    out.extend_from_slice(body);
    out.extend_from_slice(payload);
    out
}

/// A whole conversation from the client's side.
pub fn client_side() -> Vec<u8> {
    let mut out = vec![1];
    for (opcode, body) in requests() {
        let (flags, payload): (u8, &[u8]) = match opcode {
            Opcode::PutData => (flags::TRAILER, b"abc"),
            Opcode::Stage => (0, b"x"),
            _ => (0, b""),
        };
        out.extend(frame(opcode as u8, flags, 1, &body, payload));
    }
    out
}

/// A greeting, an attach, then this reply, as a node would send them.
pub fn node_side(opcode: Opcode, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![1];
    for (correlation, (opcode, flags, body)) in (1u8..).zip(replies().into_iter().take(2)) {
        out.extend(frame(opcode as u8, flags, correlation, &body, b""));
    }
    let data = opcode == Opcode::Get && body.len() == GetData::BYTES;
    out.extend(frame(opcode as u8, flags, 3, body, if data { b"abc" } else { b"" }));
    out
}

/// Pages of flash in the language of the `flash` target, without the zeros at their ends.
pub fn flash_pages() -> Vec<(u8, Vec<u8>)> {
    let superblock = Superblock {
        device: [7; 16],
        set: [8; 16],
        members: 1,
        device_bytes: 64 << 20,
        segment_bytes: 4 << 20,
        serial: 1,
        term: 1,
        opens: 1,
        void_before: 0,
    };
    let parts = vec![(4096, 1), (1, 2)];
    let entry = BlockEntry {
        key: KEYS[0],
        epoch: EPOCH,
        engine_hash: Some(1),
        expires_unix_ms: 2,
        priority: 3,
        parts,
    };
    let fingerprint = [1; 32];
    let namespace = TierNamespace { fingerprint, encoding: vec![1; 300].into() };
    let records = [
        Record::Tenant("tenant".into()),
        Record::Namespace(namespace),
        Record::Blocks { fingerprint, sequence: 1 << 40, entries: vec![entry; 3] },
        Record::Removals { fingerprint, whole: 0, keys: vec![(KEYS[0], 5)] },
    ];
    let place = RecordPlace { segment: &FLASH_SEGMENT, position: 1 };
    let mut pages = vec![(1, encode_superblock(&superblock)), (3, encode_segment(&FLASH_SEGMENT))];
    pages.extend(records.iter().map(|record| (5, encode_record(record, place))));
    for (_, page) in &mut pages {
        // Their check is mended; what the page ends with is that, or zeros.
        page.truncate(600);
    }
    pages
}
