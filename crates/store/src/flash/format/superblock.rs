//! What a device says it is.

use super::{
    PAGE_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_AT, SEGMENTS_MIN, array_at,
    is_sealed, seal_page, u16_at, u64_at,
};

/// The format that this code writes. It reads this one and the one before; 1 is the first.
pub const VERSION: u16 = 1;
/// Where the two copies lie.
pub const COPIES_AT: [u64; 2] = [0, 512 << 10];
const MAGIC: [u8; 8] = *b"KEEPWARM";

/// A device's description. Written at every open, and when another device of the set is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// This device.
    pub device: [u8; 16],
    /// The devices that belong together.
    pub set: [u8; 16],
    /// How many they are.
    pub members: u8,
    /// Bytes of the device that are ours.
    pub device_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Which of two copies is newer.
    pub serial: u64,
    /// Grows when the set loses a device or gains one: whoever has a smaller term was away, may
    /// have missed removals, and is void.
    pub term: u64,
    /// How often the set was opened; sequences begin at this much times 2⁴⁰.
    pub opens: u64,
    /// Blocks with a smaller sequence are void.
    pub void_before: u64,
}

impl Superblock {
    /// How many segments there are.
    pub fn segments(&self) -> u32 {
        ((self.device_bytes - SEGMENTS_AT) / self.segment_bytes) as u32
    }

    fn is_sound(&self) -> bool {
        self.segment_bytes.is_multiple_of(PAGE_BYTES as u64)
            && (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            && self.device_bytes >= SEGMENTS_AT + SEGMENTS_MIN * self.segment_bytes
            && (self.device_bytes - SEGMENTS_AT) / self.segment_bytes <= u64::from(u32::MAX)
            && (1..=16).contains(&self.members)
            && self.opens < 1 << 23
    }
}

/// What a page in a superblock's place is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Ours.
    Superblock(Superblock),
    /// Ours, of a version that this code does not read.
    Version(u16),
    /// Ours once, and damaged.
    Damaged,
    /// Zeros.
    Blank,
    /// Something else.
    Foreign,
}

/// Its page.
pub fn encode_superblock(superblock: &Superblock) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    page[..8].copy_from_slice(&MAGIC);
    page[8..10].copy_from_slice(&VERSION.to_le_bytes());
    page[10] = superblock.members;
    page[16..32].copy_from_slice(&superblock.device);
    page[32..48].copy_from_slice(&superblock.set);
    let numbers = [
        superblock.device_bytes,
        superblock.segment_bytes,
        superblock.serial,
        superblock.term,
        superblock.opens,
        superblock.void_before,
    ];
    for (at, number) in (48..).step_by(8).zip(numbers) {
        page[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    seal_page(&mut page);
    page
}

/// What a page is. Accepts a superblock only as [`encode_superblock`] writes it.
pub fn decode_superblock(page: &[u8]) -> Found {
    if page.len() != PAGE_BYTES || page[..8] != MAGIC {
        let is_blank = page.iter().all(|byte| *byte == 0);
        return if is_blank { Found::Blank } else { Found::Foreign };
    }
    if !is_sealed(page) {
        return Found::Damaged;
    }
    let version = u16_at(page, 8);
    if version != VERSION {
        return Found::Version(version);
    }
    let superblock = Superblock {
        device: array_at(page, 16),
        set: array_at(page, 32),
        members: page[10],
        device_bytes: u64_at(page, 48),
        segment_bytes: u64_at(page, 56),
        serial: u64_at(page, 64),
        term: u64_at(page, 72),
        opens: u64_at(page, 80),
        void_before: u64_at(page, 88),
    };
    match superblock.is_sound() && encode_superblock(&superblock) == page {
        true => Found::Superblock(superblock),
        false => Found::Damaged,
    }
}

/// Makes a page's check right, for tests and fuzzers that change it.
pub fn mend_superblock(page: &mut [u8]) {
    seal_page(page);
}
