//! The bytes on flash; `docs/flash-format.md` gives each of them. Pure: no I/O, total on arbitrary
//! bytes. Everything is little-endian and begins on a page.
//!
//! ```text
//! device  | superblock | … | its copy | … | segment | segment | …        (segments from 1 MiB on)
//! segment | header | tenant | namespace | blocks | payload | blocks | payload | …
//! segment | header | removals | removals | …
//! ```

mod record;
mod segment;
mod superblock;

pub use record::{
    BlockEntry, ENTRIES_MAX, HEADER_PAGES_MAX, Record, RecordPlace, decode_record, encode_record,
    entry_bytes, mend_record, record_position,
};
pub use segment::{SegmentHeader, decode_segment, encode_segment, mend_segment};
pub use superblock::{
    COPIES_AT, Found, Superblock, VERSION, decode_superblock, encode_superblock, mend_superblock,
};

pub use crate::tiers::PAGE_BYTES;

/// Where segments begin.
pub const SEGMENTS_AT: u64 = 1 << 20;
/// Segments are no smaller.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Segments are no larger: a page's number has 16 bits.
pub const SEGMENT_BYTES_MAX: u64 = 256 << 20;
/// Fewer segments than this make no log: one is for removals, one to write, one to reclaim.
pub const SEGMENTS_MIN: u64 = 4;
/// The body of a record begins here; superblock and segment header end their check there.
const CHECK_BYTES: usize = 32;

/// Bytes of a segment for a device of so many: a 32nd, 4 to 256 MiB, whole MiB. Larger ones waste
/// more at their ends, smaller ones begin, and flush, more often.
pub fn segment_bytes_for(device_bytes: u64) -> u64 {
    (device_bytes / 32).clamp(4 << 20, SEGMENT_BYTES_MAX) >> 20 << 20
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("N bytes")
}

/// The unkeyed check of a page: BLAKE3 of all before it, in its last 32 bytes.
fn seal_page(page: &mut [u8]) {
    let end = page.len() - CHECK_BYTES;
    let check = *blake3::hash(&page[..end]).as_bytes();
    page[end..].copy_from_slice(&check);
}

fn is_sealed(page: &[u8]) -> bool {
    let end = page.len() - CHECK_BYTES;
    *blake3::hash(&page[..end]).as_bytes() == page[end..]
}
