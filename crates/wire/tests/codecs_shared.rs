//! Bodies about shared memory: every one survives its way, and no bytes upset a decoder.

mod support;

use keepwarm_store::arena::{Extent, Extents};
use keepwarm_store::types::{Epoch, Generation, GetOutcome, NamespaceId};
use keepwarm_wire::codec::decode;
use keepwarm_wire::frames::VERSION;
use keepwarm_wire::messages::*;
use proptest::collection::vec;
use proptest::prelude::*;

use support::bodies::{key, miss, one_encoding, there_and_back};

fn place() -> impl Strategy<Value = Result<Located, GetOutcome>> {
    let extent = (0u32..1 << 24, 1u32..1 << 20);
    let located = (any::<u32>(), any::<u64>(), vec(extent, 1..=8));
    let located = located.prop_map(|(generation, checksum, list)| {
        let mut extents = Extents::default();
        for (first_granule, granules) in list {
            assert!(extents.push(Extent { first_granule, granules }));
        }
        Located { generation: Generation(generation), checksum, extents }
    });
    prop_oneof![
        located.prop_map(Ok),
        Just(Err(GetOutcome::Pending)),
        Just(Err(GetOutcome::Throttled)),
        miss().prop_map(|reason| Err(GetOutcome::Miss(reason))),
    ]
}

proptest! {
    #[test]
    fn located(
        namespace in any::<u16>(),
        numbers in any::<(u64, u32)>(),
        asks in vec((key(), any::<u8>(), any::<u32>()), 0..40),
        unused in vec(any::<u32>(), 0..20),
        places in vec(place(), 0..40),
    ) {
        let asks = asks.into_iter().map(|(key, part, length)| GetAsk { key, part, length });
        let (namespace, epoch) = (NamespaceId(namespace), Epoch(numbers.1));
        let landed = Landed { group: numbers.0, unused };
        there_and_back(&landed);
        for landed in [vec![], vec![landed.clone()], vec![landed.clone(), landed]] {
            let asks = asks.clone().collect();
            there_and_back(&LocateRequest { namespace, epoch, landed, asks });
        }
        there_and_back(&LocateReply { hold_ms: numbers.1, places });
    }

    #[test]
    fn mapped_and_staged(
        incarnation in any::<u64>(),
        bytes in any::<u64>(),
        offset in any::<u32>(),
        pieces in vec(any::<(u32, u32, u64)>(), 0..40),
    ) {
        there_and_back(&MapReply { incarnation, bytes });
        there_and_back(&StageRequest { bytes });
        let pieces = pieces.into_iter();
        let pieces = pieces.map(|(index, length, checksum)| Piece { index, length, checksum });
        there_and_back(&StagedData { offset, pieces: pieces.collect() });
        there_and_back(&StagedTaken { offset });
    }

    #[test]
    fn any_bytes_have_at_most_one_meaning(bytes in vec(any::<u8>(), 0..200)) {
        one_encoding::<LocateRequest>(&bytes);
        one_encoding::<LocateReply>(&bytes);
        one_encoding::<Landed>(&bytes);
        one_encoding::<StagedData>(&bytes);
        one_encoding::<StagedTaken>(&bytes);
        one_encoding::<MapReply>(&bytes);
        one_encoding::<StageRequest>(&bytes);
    }
}

#[test]
fn extents_that_no_arena_has_are_refused() {
    let reply = |extents: &[[u32; 2]]| {
        let mut bytes = vec![0, 0, 0, 0, 1, 0, 0, 0, 0, extents.len() as u8];
        bytes.extend([7; 12]);
        for number in extents.iter().flatten() {
            bytes.extend(number.to_le_bytes());
        }
        decode::<LocateReply>(VERSION, &bytes)
    };
    assert!(reply(&[[5, 1]; 8]).is_ok());
    for extents in [&[][..], &[[5, 1]; 9], &[[5, 0]], &[[u32::MAX, 1]], &[[0, u32::MAX]; 2]] {
        assert!(reply(extents).is_err(), "{extents:?}");
    }
}
