//! Every body survives its way, and no bytes upset a decoder. A failure prints its input;
//! `PROPTEST_RNG_SEED` repeats a run.

mod support;

use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, NamespaceId, Priority, PutOutcome, Terms,
};
use keepwarm_store::{Event, EventBatch, EventKind, Hit, Lookup, Reported};
use keepwarm_wire::codec::{Body, decode};
use keepwarm_wire::frames::{
    BODY_BYTES_MAX, FrameHead, HEADER_BYTES, Header, KEYS_MAX, Opcode, VERSION, Violation, agree,
    append_frame, flags,
};
use keepwarm_wire::messages::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use support::bodies::{key, miss, one_encoding, there_and_back};

fn keys() -> impl Strategy<Value = Vec<BlockKey>> {
    vec(key(), 0..50)
}

fn put_outcome() -> impl Strategy<Value = PutOutcome> {
    let shed = (1u8..=11).prop_map(|code| PutOutcome::Shed(shed_from_code(code).expect("known")));
    prop_oneof![
        Just(PutOutcome::Stored),
        Just(PutOutcome::Present),
        Just(PutOutcome::Pending),
        shed
    ]
}

fn hit() -> impl Strategy<Value = Hit> {
    (1u8..=3, any::<u32>(), any::<u32>(), any::<u64>()).prop_map(
        |(tier, length, generation, checksum)| Hit {
            tier: tier_from_code(tier).expect("a known code"),
            length,
            generation: Generation(generation),
            checksum,
        },
    )
}

fn lookup() -> impl Strategy<Value = Lookup> {
    let head = (option::of(miss()), option::of(any::<u64>()), any::<u32>(), any::<u64>());
    (head, any::<u32>(), any::<u64>(), vec(option::of(hit()), 0..40)).prop_map(
        |((miss, lease, lease_ms, restore_ns), epoch, incarnation, hits)| Lookup {
            prefix: hits.iter().take_while(|hit| hit.is_some()).count() as u32,
            hits,
            miss,
            lease: lease.map(LeaseId),
            lease_ms,
            restore_ns,
            epoch: Epoch(epoch),
            incarnation,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    let kind = prop_oneof![
        (key(), option::of(any::<u64>()))
            .prop_map(|(key, engine_hash)| EventKind::Stored { key, engine_hash }),
        (key(), option::of(any::<u64>()), 1u8..=3).prop_map(|(key, engine_hash, tier)| {
            let tier = tier_from_code(tier).expect("a known code");
            EventKind::Removed { key, engine_hash, tier }
        }),
        Just(EventKind::Cleared),
    ];
    (any::<u64>(), any::<u16>(), kind).prop_map(|(sequence, namespace, kind)| Event {
        sequence,
        namespace: NamespaceId(namespace),
        kind,
    })
}

proptest! {
    #[test]
    fn greetings(
        versions in any::<(u16, u16)>(),
        token in any::<[u8; 16]>(),
        pid in any::<u32>(),
        name in ".{0,60}",
        credential in proptest::option::of(vec(any::<u8>(), 1..257)),
        incarnation in any::<u64>(),
        names in vec("[a-z]{0,20}", 0..16),
    ) {
        there_and_back(&Greeting {
            version_oldest: versions.0,
            version: versions.1,
            token: Token(token),
            pid,
            name: name.clone(),
            credential,
        });
        there_and_back(&GreetingReply {
            version: versions.0,
            incarnation,
            pid,
            node: name,
            announcement: Announcement {
                age_ms: incarnation,
                weight_permille: pid,
                draining: pid.is_multiple_of(2),
            },
            transports: names.clone(),
            capabilities: names,
        });
    }

    #[test]
    fn attaches(
        encoding in vec(any::<u8>(), 0..300),
        key_check in any::<[u8; 8]>(),
        epoch in any::<u32>(),
        namespace in any::<u16>(),
        nearest in ".{0,100}",
        ttl_ms in proptest::option::of(1..u64::MAX),
        priority in proptest::option::of(0..4u8),
    ) {
        let ttl = ttl_ms.map(std::time::Duration::from_millis);
        let terms = Terms { ttl, priority: priority.and_then(Priority::new) };
        there_and_back(&AttachRequest { encoding, key_check, epoch: Epoch(epoch), terms });
        let namespace = NamespaceId(namespace);
        there_and_back(&AttachReply { namespace, epoch: Epoch(epoch), nearest });
    }

    #[test]
    fn lookups(
        namespace in any::<u16>(),
        epoch in any::<u32>(),
        first_position in any::<u64>(),
        lease_ms in any::<u32>(),
        keys in keys(),
        lookup in lookup(),
    ) {
        let (namespace, epoch) = (NamespaceId(namespace), Epoch(epoch));
        there_and_back(&LookupRequest { namespace, epoch, first_position, lease_ms, keys });
        there_and_back(&LookupReply(lookup));
    }

    #[test]
    fn gets(
        namespace in any::<u16>(),
        asks in vec((key(), any::<u8>(), any::<u32>()), 0..40),
        data in any::<(u32, u32, u64)>(),
        misses in vec(prop_oneof![
            Just(GetOutcome::Pending),
            Just(GetOutcome::Throttled),
            miss().prop_map(GetOutcome::Miss),
        ], 1..40),
    ) {
        let asks = asks.into_iter().map(|(key, part, length)| GetAsk { key, part, length });
        let (namespace, epoch) = (NamespaceId(namespace), Epoch(data.1));
        there_and_back(&GetRequest { namespace, epoch, asks: asks.collect() });
        let (index, generation, checksum) = (data.0, Generation(data.1), data.2);
        there_and_back(&GetData { index, generation, checksum });
        there_and_back(&GetMisses { first: data.0, outcomes: misses });
    }

    #[test]
    fn puts(
        namespace in any::<u16>(),
        asks in vec((key(), any::<u8>(), any::<u32>(), option::of(any::<u64>())), 0..40),
        outcomes in vec(put_outcome(), 0..40),
        index in any::<u32>(),
    ) {
        let asks = asks.into_iter().map(|(key, part, length, engine_hash)| {
            PutAsk { key, part, length, engine_hash }
        });
        let (namespace, epoch) = (NamespaceId(namespace), Epoch(index));
        there_and_back(&PutRequest { namespace, epoch, asks: asks.collect() });
        let grant = |outcome: &PutOutcome| match outcome {
            PutOutcome::Stored => Grant::Granted,
            other => Grant::Decided(*other),
        };
        there_and_back(&PutGrants(outcomes.iter().map(grant).collect()));
        there_and_back(&PutDone(outcomes));
        there_and_back(&PutDataHead { index });
    }

    #[test]
    fn small_ones(
        namespace in any::<u16>(),
        number in any::<u64>(),
        small in any::<u32>(),
        keys in option::of(keys()),
        part in any::<u8>(),
        truth in any::<bool>(),
        text in ".{0,80}",
    ) {
        let (namespace, epoch, lease) = (NamespaceId(namespace), Epoch(small), LeaseId(number));
        let some = keys.clone().unwrap_or_default();
        let key = some.first().copied().unwrap_or_default();
        there_and_back(&TouchRequest { namespace, epoch, keys: some });
        there_and_back(&TouchReply(small));
        there_and_back(&DropRequest { namespace, keys });
        there_and_back(&DropReply(number));
        there_and_back(&RenewRequest { incarnation: number, lease, lease_ms: small });
        there_and_back(&RenewReply(truth));
        there_and_back(&ReleaseRequest { incarnation: number, lease });
        there_and_back(&EpochRequest { namespace, epoch, wait_ms: small });
        there_and_back(&EpochReply { epoch, quiet: truth });
        there_and_back(&ReportRequest { namespace, key, part, generation: Generation(small) });
        for found in [Reported::Removed, Reported::Intact, Reported::Gone] {
            there_and_back(&ReportReply(found));
        }
        let announcement =
            Announcement { age_ms: number, weight_permille: small, draining: truth };
        there_and_back(&PingReply { incarnation: number, announcement });
        there_and_back(&DetachRequest { namespace: NamespaceId(number as u16) });
        there_and_back(&DetachReply(number % 2 == 0));
        let figures = [
            StatValue::Number(number),
            StatValue::Ratio(number as f64),
            StatValue::Text(text.clone()),
        ];
        there_and_back(&StatReply(figures.map(|value| (text.clone(), value)).to_vec()));
        there_and_back(&Refusal { code: RefusalCode::Failed, text });
    }

    #[test]
    fn followers(
        namespace in any::<u16>(),
        since in option::of(any::<(u64, u64)>()),
        events in vec(event(), 0..40),
        next in any::<u64>(),
        last in any::<bool>(),
    ) {
        let since = since.map(|(incarnation, sequence)| Since { incarnation, sequence });
        there_and_back(&SubscribeRequest { namespace: NamespaceId(namespace), since });
        there_and_back(&EventsReply(EventBatch::Events { events: events.clone(), next }));
        there_and_back(&EventsReply(EventBatch::Snapshot { events, last }));
        there_and_back(&EventsReply(EventBatch::Resync { incarnation: next }));
    }

    #[test]
    fn any_bytes_have_at_most_one_meaning(bytes in vec(any::<u8>(), 0..200)) {
        one_encoding::<Greeting>(&bytes);
        one_encoding::<GreetingReply>(&bytes);
        one_encoding::<AttachRequest>(&bytes);
        one_encoding::<AttachReply>(&bytes);
        one_encoding::<LookupRequest>(&bytes);
        one_encoding::<LookupReply>(&bytes);
        one_encoding::<GetRequest>(&bytes);
        one_encoding::<GetMisses>(&bytes);
        one_encoding::<PutRequest>(&bytes);
        one_encoding::<PutGrants>(&bytes);
        one_encoding::<PutDone>(&bytes);
        one_encoding::<TouchRequest>(&bytes);
        one_encoding::<DropRequest>(&bytes);
        one_encoding::<SubscribeRequest>(&bytes);
        one_encoding::<EventsReply>(&bytes);
        one_encoding::<StatReply>(&bytes);
        one_encoding::<Refusal>(&bytes);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed(
        body in vec(any::<u8>(), 0..400),
        correlation in any::<u64>(),
        payload_bytes in 0u64..1 << 32,
        bit in any::<prop::sample::Index>(),
    ) {
        let (code, flags) = (Opcode::Put as u8, flags::REPLY);
        let head = FrameHead { version: VERSION, code, flags, correlation, payload_bytes };
        let mut frame = Vec::new();
        append_frame(&mut frame, head, |out| out.extend_from_slice(&body)).unwrap();
        let header = Header::parse(frame.first_chunk().unwrap()).unwrap();
        prop_assert_eq!(header.check(&body), Ok(()));
        prop_assert_eq!(header.body_bytes as usize, body.len());
        prop_assert_eq!(header.payload_bytes, payload_bytes);
        let bit = bit.index(frame.len() * 8);
        frame[bit / 8] ^= 1 << (bit % 8);
        let damaged = Header::parse(frame.first_chunk().unwrap());
        let noticed = match damaged {
            Err(_) => true,
            // The receiver would wait for another number of bytes, and hash those.
            Ok(header) if header.body_bytes as usize != body.len() => true,
            Ok(header) => header.check(&frame[HEADER_BYTES..]).is_err(),
        };
        prop_assert!(noticed, "bit {}", bit);
    }

    #[test]
    fn headers_of_any_bytes_keep_their_limits(bytes in any::<[u8; HEADER_BYTES]>()) {
        prop_assert_eq!(Header::parse(&bytes), Err(Violation::Magic));
        let mut bytes = bytes;
        bytes[..4].copy_from_slice(b"KWRM");
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!(header.body_bytes <= 4 << 20);
            prop_assert!(header.payload_bytes <= u64::from(u32::MAX));
        }
    }
}

#[test]
fn counts_beyond_what_is_here_allocate_nothing() {
    let mut bytes = vec![0; 18];
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert!(decode::<LookupRequest>(VERSION, &bytes).is_err());
    bytes.truncate(18);
    bytes.extend_from_slice(&(KEYS_MAX as u32).to_le_bytes());
    assert!(decode::<LookupRequest>(VERSION, &bytes).is_err());
}

#[test]
fn two_sides_agree_on_the_best_common_version() {
    assert_eq!(agree(1, 1), Some(1));
    assert_eq!(agree(1, 7), Some(VERSION));
    assert_eq!(agree(VERSION + 1, VERSION + 2), None);
    assert_eq!(agree(0, 0), None);
    assert_eq!(agree(5, 1), None);
}

#[test]
fn wire_codes_never_move() {
    for (at, opcode) in Opcode::ALL.into_iter().enumerate() {
        assert_eq!((opcode as usize, Opcode::from_code(opcode as u8)), (at + 1, Some(opcode)));
    }
    assert_eq!((Opcode::from_code(0), Opcode::from_code(23)), (None, None));
    for code in 1..=11 {
        assert_eq!(miss_from_code(code).map(|reason| reason as u8), Some(code));
        assert_eq!(shed_from_code(code).map(|reason| reason as u8), Some(code));
    }
    assert_eq!((miss_from_code(12), shed_from_code(0)), (None, None));
}

/// The bytes of one frame, by hand: a change of the format must change this test.
#[test]
fn a_frame_by_hand() {
    let mut frame = Vec::new();
    let head = FrameHead {
        version: 1,
        code: Opcode::Touch as u8,
        flags: flags::REPLY,
        correlation: 0x0102_0304_0506_0708,
        payload_bytes: 0,
    };
    append_frame(&mut frame, head, |out| TouchReply(9).write(out)).unwrap();
    let expected_head = [
        b'K', b'W', b'R', b'M', 1, 0, 7, 1, 8, 7, 6, 5, 4, 3, 2, 1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(frame[..32], expected_head);
    let mut hashed = expected_head.to_vec();
    hashed.extend_from_slice(&9u32.to_le_bytes());
    let checksum = keepwarm_store::checksum::xxh3_64(&hashed);
    assert_eq!(frame[32..40], checksum.to_le_bytes());
    assert_eq!(frame[40..], 9u32.to_le_bytes());
}

#[test]
fn a_body_larger_than_any_is_an_error_and_leaves_no_trace() {
    let (version, code, correlation) = (VERSION, Opcode::Stat as u8, 1);
    let head = FrameHead { version, code, flags: 0, correlation, payload_bytes: 0 };
    let mut out = vec![1, 2, 3];
    let large = |out: &mut Vec<u8>| out.resize(out.len() + BODY_BYTES_MAX + 1, 0);
    let bytes = BODY_BYTES_MAX as u32 + 1;
    assert_eq!(append_frame(&mut out, head, large), Err(Violation::Body { bytes }));
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn figures_are_cut_into_pages_that_fit() {
    let text = StatValue::Text("x".repeat(9000));
    let all: Vec<_> =
        (0..3000).map(|n| (format!("{n}{}", "n".repeat(300)), text.clone())).collect();
    let mut together = Vec::new();
    for page in StatReply(all.clone()).pages() {
        let mut bytes = Vec::new();
        page.write(&mut bytes);
        assert!(bytes.len() <= BODY_BYTES_MAX);
        together.extend(page.0);
    }
    assert_eq!(together, all);
    let many = vec![(String::new(), StatValue::Number(0)); 200_000];
    assert!(StatReply(many).pages().iter().all(|page| page.0.len() <= KEYS_MAX));
    assert_eq!(StatReply(Vec::new()).pages(), [StatReply(Vec::new())]);
}

#[test]
fn codes_of_newer_nodes_are_no_violation() {
    use keepwarm_store::types::{MissReason, ShedReason, Tier};
    let misses = [0, 0, 0, 0, 1, 0, 0, 0, 3, 200];
    let GetMisses { outcomes, .. } = decode(VERSION, &misses).unwrap();
    assert_eq!(outcomes, [GetOutcome::Miss(MissReason::Absent)]);
    let PutDone(outcomes) = decode(VERSION, &[1, 0, 0, 0, 4, 200]).unwrap();
    assert_eq!(outcomes, [PutOutcome::Shed(ShedReason::Busy)]);
    let refusal: Refusal = decode(VERSION, &[200, 0, 0, 0, 0]).unwrap();
    assert_eq!(refusal.code, RefusalCode::Failed);
    let hit = Hit { tier: Tier::Dram, length: 1, generation: Generation(1), checksum: 1 };
    let (prefix, hits, epoch) = (1, vec![Some(hit)], Epoch(0));
    let found = Lookup {
        prefix,
        hits,
        miss: Some(MissReason::Epoch),
        lease: None,
        lease_ms: 0,
        restore_ns: 0,
        epoch,
        incarnation: 1,
    };
    let mut bytes = Vec::new();
    LookupReply(found).write(&mut bytes);
    bytes[4] = 200;
    let tier_at = bytes.len() - 17;
    bytes[tier_at] = 200;
    let LookupReply(found) = decode(VERSION, &bytes).unwrap();
    assert_eq!(found.miss, Some(MissReason::Absent));
    assert_eq!(found.hits[0].as_ref().map(|hit| hit.tier), Some(Tier::Object));
    assert!(decode::<PutDone>(VERSION, &[1, 0, 0, 0, 4, 0]).is_err(), "no reason at all");
}
