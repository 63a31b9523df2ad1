//! The header that begins a segment's life.

use super::superblock::VERSION;
use super::{PAGE_BYTES, array_at, is_sealed, seal_page, u32_at};

const MAGIC: [u8; 8] = *b"KWSEGMNT";

/// One life of a segment. Flushed before the first record of the life is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The device it is on.
    pub device: [u8; 16],
    /// Its number there.
    pub segment: u32,
    /// Grows with every life begun in the set.
    pub life: u32,
    /// Random; the key of this life's records. No earlier life's record, and nothing that a
    /// stranger wrote as payload, passes for one of them.
    pub nonce: [u8; 32],
}

/// Its page.
pub fn encode_segment(header: &SegmentHeader) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    page[..8].copy_from_slice(&MAGIC);
    page[8..10].copy_from_slice(&VERSION.to_le_bytes());
    page[12..16].copy_from_slice(&header.segment.to_le_bytes());
    page[16..32].copy_from_slice(&header.device);
    page[32..36].copy_from_slice(&header.life.to_le_bytes());
    page[64..96].copy_from_slice(&header.nonce);
    seal_page(&mut page);
    page
}

/// The header that a page is, if it is that of this device's segment.
pub fn decode_segment(page: &[u8], device: &[u8; 16], segment: u32) -> Option<SegmentHeader> {
    if page.len() != PAGE_BYTES || page[..8] != MAGIC || !is_sealed(page) {
        return None;
    }
    let header = SegmentHeader {
        device: array_at(page, 16),
        segment: u32_at(page, 12),
        life: u32_at(page, 32),
        nonce: array_at(page, 64),
    };
    let is_here = header.device == *device && header.segment == segment && header.life > 0;
    (is_here && encode_segment(&header) == page).then_some(header)
}

/// Makes a page's check right, for tests and fuzzers that change it.
pub fn mend_segment(page: &mut [u8]) {
    seal_page(page);
}
