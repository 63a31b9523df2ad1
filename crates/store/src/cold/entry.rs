//! One block's place on flash: 32 B that a search reads, 10 B that a reader needs, nothing apart.

use crate::index::table::Named;
use crate::tiers::{Spot, TierBlock};
use crate::types::BlockKey;

/// Number of a place in the flash index.
pub(crate) type ColdSlot = u32;

/// Versions of a namespace that its entries tell apart: the low bits of the store's own. All
/// entries of a namespace leave before the bits come round again.
pub(crate) const VERSION_BITS: u32 = 12;
/// Blocks of one record at most, so that a block's place in it takes six bits.
pub const RECORD_BLOCKS_MAX: usize = 1 << 6;

const NS_MASK: u32 = (1 << 12) - 1;
const VERSION_SHIFT: u32 = 12;
const VERSION_MASK: u32 = (1 << VERSION_BITS) - 1;
const ENTRY_SHIFT: u32 = VERSION_SHIFT + VERSION_BITS;
const ENTRY_MASK: u32 = RECORD_BLOCKS_MAX as u32 - 1;
/// Read since it was written.
const USED: u32 = 1 << 30;
/// Found under its key. Clear: what is left of a block that is gone, until its segment is.
const LISTED: u32 = 1 << 31;

/// What a search reads. Aligned, so that it never straddles a cache line. Which segment the block
/// lies in is told by its chunk.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct ColdEntry {
    pub key: BlockKey,
    /// XXH3-64 of its first part.
    pub checksum: u64,
    /// Bytes of its first part.
    pub length: u32,
    /// Namespace, version, place in the record, marks.
    packed: u32,
}

/// Where the block's record is, and when its time ends.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(2))]
pub(crate) struct ColdPlace {
    /// Tick at which its time ends; 0: never.
    pub expiry: u32,
    /// Page of the segment at which its record begins.
    pub header_page: u16,
    /// Page at which its first part begins.
    pub payload_page: u16,
    /// Pages of all its parts, less one.
    pages_less_one: u16,
}

const _: () = assert!(size_of::<ColdEntry>() == 32 && size_of::<ColdPlace>() == 10);
const _: () = assert!(ENTRY_SHIFT + RECORD_BLOCKS_MAX.trailing_zeros() == USED.trailing_zeros());

impl Named for ColdEntry {
    #[inline]
    fn ns(&self) -> u16 {
        (self.packed & NS_MASK) as u16
    }

    #[inline]
    fn key(&self) -> BlockKey {
        self.key
    }
}

/// What there is to say of a block that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub ns: u16,
    pub key: BlockKey,
    pub version: u32,
    pub length: u32,
    pub checksum: u64,
    pub expiry: u32,
    /// Pages of all its parts, 1 to 65,536.
    pub pages: u32,
    pub spot: Spot,
}

impl Written {
    /// Whether an entry can say all of it.
    pub fn fits(&self) -> bool {
        usize::from(self.spot.entry) < RECORD_BLOCKS_MAX && (1..=1 << 16).contains(&self.pages)
    }
}

/// Pages of a block's parts.
pub(crate) fn pages_of(block: &TierBlock<'_>) -> u32 {
    (block.footprint() / crate::tiers::PAGE_BYTES as u64) as u32
}

impl ColdEntry {
    pub const EMPTY: ColdEntry =
        ColdEntry { key: BlockKey([0; 16]), checksum: 0, length: 0, packed: 0 };

    pub fn new(written: &Written) -> ColdEntry {
        assert!(u32::from(written.ns) <= NS_MASK && written.fits());
        let packed = u32::from(written.ns)
            | (written.version & VERSION_MASK) << VERSION_SHIFT
            | u32::from(written.spot.entry) << ENTRY_SHIFT
            | LISTED;
        let Written { key, checksum, length, .. } = *written;
        ColdEntry { key, checksum, length, packed }
    }

    #[inline]
    pub fn is_of_version(&self, version: u32) -> bool {
        (self.packed >> VERSION_SHIFT ^ version) & VERSION_MASK == 0
    }

    /// What it keeps of the namespace's version.
    pub fn version(&self) -> u32 {
        self.packed >> VERSION_SHIFT & VERSION_MASK
    }

    /// Its place in its record.
    pub fn in_record(&self) -> u8 {
        (self.packed >> ENTRY_SHIFT & ENTRY_MASK) as u8
    }

    #[inline]
    pub fn is_listed(&self) -> bool {
        self.packed & LISTED != 0
    }

    pub fn unlist(&mut self) {
        self.packed &= !LISTED;
    }

    pub fn is_used(&self) -> bool {
        self.packed & USED != 0
    }

    pub fn set_used(&mut self) {
        self.packed |= USED;
    }
}

impl ColdPlace {
    pub fn new(written: &Written) -> ColdPlace {
        ColdPlace {
            expiry: written.expiry,
            header_page: written.spot.header_page,
            payload_page: written.spot.payload_page,
            pages_less_one: (written.pages - 1) as u16,
        }
    }

    /// Pages of all its parts.
    #[inline]
    pub fn pages(&self) -> u32 {
        u32::from(self.pages_less_one) + 1
    }
}
