//! The format's codecs: what is written is read, and nothing else is.

use keepwarm_store::flash::format::{
    BlockEntry, Found, PAGE_BYTES, Record, RecordPlace, SegmentHeader, Superblock, decode_record,
    decode_segment, decode_superblock, encode_record, encode_segment, encode_superblock,
    mend_record, segment_bytes_for,
};
use keepwarm_store::tiers::TierNamespace;
use keepwarm_store::types::{BlockKey, Epoch};
use proptest::collection::vec;
use proptest::prelude::*;

fn entry() -> impl Strategy<Value = BlockEntry> {
    let parts = vec((1u32.., any::<u64>()), 1..=64);
    let hash = proptest::option::of(any::<u64>());
    (any::<[u8; 16]>(), any::<u32>(), hash, any::<u64>(), any::<u8>(), parts).prop_map(
        |(key, epoch, engine_hash, expires_unix_ms, priority, parts)| BlockEntry {
            key: BlockKey(key),
            epoch: Epoch(epoch),
            engine_hash,
            expires_unix_ms,
            priority,
            parts,
        },
    )
}

fn record() -> impl Strategy<Value = Record> {
    let keys =
        vec((any::<[u8; 16]>().prop_map(BlockKey), any::<u64>()), 0..=Record::removals_max());
    prop_oneof![
        "[a-z]{1,255}".prop_map(Record::Tenant),
        (any::<[u8; 32]>(), vec(any::<u8>(), 0..16_384)).prop_map(|(fingerprint, encoding)| {
            Record::Namespace(TierNamespace { fingerprint, encoding: encoding.into() })
        }),
        (any::<[u8; 32]>(), any::<u64>(), vec(entry(), 1..80)).prop_map(
            |(fingerprint, sequence, all)| {
                let mut record = Record::Blocks { fingerprint, sequence, entries: Vec::new() };
                for one in all {
                    let pages = record.payload_pages() + one.payload_pages();
                    let fits = record.has_room_for(one.parts.len()) && pages < 1 << 32;
                    if let Record::Blocks { entries, .. } = &mut record
                        && fits
                    {
                        entries.push(one);
                    }
                }
                record
            }
        ),
        (any::<[u8; 32]>(), any::<u64>(), keys).prop_map(|(fingerprint, whole, keys)| {
            Record::Removals { fingerprint, whole, keys }
        }),
    ]
}

fn segment() -> impl Strategy<Value = SegmentHeader> {
    (any::<[u8; 16]>(), any::<u32>(), 1u32.., any::<[u8; 32]>())
        .prop_map(|(device, segment, life, nonce)| SegmentHeader { device, segment, life, nonce })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_record_is_read_as_it_was_written_and_only_in_its_place(
        record in record(), segment in segment(), position in any::<u32>(),
        at in any::<prop::sample::Index>(), bit in 0u8..8,
    ) {
        prop_assume!(!matches!(&record, Record::Blocks { entries, .. } if entries.is_empty()));
        let place = RecordPlace { segment: &segment, position };
        let mut bytes = encode_record(&record, place);
        prop_assert!(bytes.len().is_multiple_of(PAGE_BYTES));
        let pages = bytes.len() / PAGE_BYTES;
        if pages > 1 {
            prop_assert_eq!(decode_record(&bytes[..PAGE_BYTES], place), Err(pages));
        }
        prop_assert_eq!(decode_record(&bytes, place), Ok(Some((record, pages))));
        let other = SegmentHeader { nonce: [7; 32], ..segment };
        let elsewhere = RecordPlace { segment: &other, position };
        prop_assert_eq!(decode_record(&bytes, elsewhere), Ok(None));
        let next = RecordPlace { segment: &segment, position: position.wrapping_add(1) };
        prop_assert_eq!(decode_record(&bytes, next), Ok(None));
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(!matches!(decode_record(&bytes, place), Ok(Some(_))), "a flip at {}", at);
    }

    #[test]
    fn a_record_whose_check_was_mended_is_canonical_or_refused(
        record in record(), segment in segment(),
        flips in vec((any::<prop::sample::Index>(), 0u8..8), 1..4),
    ) {
        let place = RecordPlace { segment: &segment, position: 1 };
        let mut bytes = encode_record(&record, place);
        for (at, bit) in flips {
            let at = at.index(bytes.len().min(300));
            bytes[at] ^= 1 << bit;
        }
        mend_record(&mut bytes, &segment.nonce);
        if let Ok(Some((read, pages))) = decode_record(&bytes, place) {
            prop_assert_eq!(encode_record(&read, place), &bytes[..pages * PAGE_BYTES]);
        }
    }

    #[test]
    fn a_segment_header_is_read_as_it_was_written(
        segment in segment(), at in 0usize..PAGE_BYTES, bit in 0u8..8,
    ) {
        let mut page = encode_segment(&segment);
        let read = |page: &[u8]| decode_segment(page, &segment.device, segment.segment);
        prop_assert_eq!(read(&page), Some(segment));
        prop_assert_eq!(decode_segment(&page, &[9; 16], segment.segment), None);
        page[at] ^= 1 << bit;
        prop_assert_eq!(read(&page), None);
    }

    #[test]
    fn a_superblock_is_read_as_it_was_written(
        device in any::<[u8; 16]>(), set in any::<[u8; 16]>(), members in 1u8..=16,
        segments in 4u64..1000, pages in 16u64..=65_536, serial in any::<u64>(),
        term in any::<u64>(), opens in 0u64..1 << 23, void_before in any::<u64>(),
        at in 0usize..PAGE_BYTES, bit in 0u8..8,
    ) {
        let segment_bytes = pages * PAGE_BYTES as u64;
        let device_bytes = (1 << 20) + segments * segment_bytes;
        let superblock = Superblock {
            device, set, members, device_bytes, segment_bytes, serial, term, opens, void_before,
        };
        let mut page = encode_superblock(&superblock);
        prop_assert_eq!(decode_superblock(&page), Found::Superblock(superblock));
        page[at] ^= 1 << bit;
        let expected = if at < 8 { Found::Foreign } else { Found::Damaged };
        prop_assert_eq!(decode_superblock(&page), expected);
    }

    #[test]
    fn any_bytes_are_refused_without_panic(bytes in vec(any::<u8>(), 0..9000)) {
        let segment = SegmentHeader { device: [0; 16], segment: 0, life: 1, nonce: [0; 32] };
        let place = RecordPlace { segment: &segment, position: 0 };
        prop_assert_eq!(decode_record(&bytes, place), Ok(None));
        prop_assert_eq!(decode_segment(&bytes, &[0; 16], 0), None);
        prop_assert!(!matches!(decode_superblock(&bytes), Found::Superblock(_)));
    }
}

#[test]
fn segments_are_a_32nd_of_their_device_within_limits() {
    assert_eq!(segment_bytes_for(64 << 20), 4 << 20);
    assert_eq!(segment_bytes_for(1 << 30), 32 << 20);
    assert_eq!(segment_bytes_for((1 << 30) + 12_345), 32 << 20);
    assert_eq!(segment_bytes_for(4 << 40), 256 << 20);
}
