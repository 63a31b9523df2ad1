//! What a tier stores, where it lies there, and what recovery finds: complete blocks, never parts.

use std::sync::Arc;

use super::pieces::{PAGE_BYTES, Piece};
use crate::types::{BlockKey, Epoch};

/// Parts of a block, at most.
pub const PARTS_MAX: usize = 64;
/// Bytes of a tenant's name, at most.
pub const TENANT_BYTES_MAX: usize = 255;

/// A namespace as a tier keeps it: enough to register it again after a restart, without a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierNamespace {
    /// BLAKE3 of the encoding.
    pub fingerprint: [u8; 32],
    /// The canonical encoding (see `identity`).
    pub encoding: Arc<[u8]>,
}

/// A tenant's number in this incarnation. Segments belong to one stream each, so that quota,
/// eviction and drop are a tenant's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// A stream with the name that stands for it on the medium: numbers do not outlive a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The tenant's number now.
    pub id: StreamId,
    /// The tenant's name, 1 to [`TENANT_BYTES_MAX`] bytes.
    pub tenant: Arc<str>,
}

/// Order between what is appended and what is removed; grows across restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);

/// One part of a block to be appended.
#[derive(Clone, Debug)]
pub struct TierPart {
    /// Bytes of the part; at least 1.
    pub len: u32,
    /// XXH3-64 of them, as computed at their source.
    pub checksum: u64,
    /// Where they are, in order; `len` bytes together. Every piece but the last is a multiple of
    /// [`PAGE_BYTES`].
    pub pieces: Vec<Piece>,
}

/// A complete block to be appended.
#[derive(Clone, Debug)]
pub struct TierBlock<'a> {
    /// Its namespace.
    pub namespace: &'a TierNamespace,
    /// The epoch it was stored under.
    pub epoch: Epoch,
    /// Its key.
    pub key: BlockKey,
    /// The engine's own hash, if the put carried one.
    pub engine_hash: Option<u64>,
    /// When it expires, in Unix milliseconds; 0 is never.
    pub expires_unix_ms: u64,
    /// The store's business.
    pub priority: u8,
    /// 1 to [`PARTS_MAX`] parts.
    pub parts: Vec<TierPart>,
}

impl TierBlock<'_> {
    /// Bytes that its payload takes on the medium.
    pub fn footprint(&self) -> u64 {
        self.parts.iter().map(|part| pages_of(part.len) * PAGE_BYTES as u64).sum()
    }
}

/// Pages that a part of `len` bytes takes.
pub fn pages_of(len: u32) -> u64 {
    u64::from(len).div_ceil(PAGE_BYTES as u64)
}

/// Where a block lies. Valid until its segment is reclaimed; a read through an old one is `Gone`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Spot {
    /// The segment's number on its device.
    pub segment: u32,
    /// The segment's life that the block was written in.
    pub life: u32,
    /// Page of the segment that its record's header begins at.
    pub header_page: u16,
    /// Page of the segment that its first part begins at.
    pub payload_page: u16,
    /// The device.
    pub device: u8,
    /// Its place in its record.
    pub entry: u8,
    /// How many parts it has.
    pub parts: u8,
}

const _: () = assert!(size_of::<Spot>() <= 16);

impl Spot {
    /// The segment it lies in.
    pub fn segment(&self) -> SegmentRef {
        SegmentRef { device: self.device, segment: self.segment, life: self.life }
    }
}

/// One part on the medium, relative to its block's first part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartPlace {
    /// Pages between the block's first part and this one; 0 for the first.
    pub first_page: u32,
    /// Bytes.
    pub len: u32,
    /// XXH3-64 of them.
    pub checksum: u64,
}

/// What a record's header says about a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// The namespace it belongs to.
    pub fingerprint: [u8; 32],
    /// Its key.
    pub key: BlockKey,
    /// The epoch it was stored under.
    pub epoch: Epoch,
    /// The engine's own hash, if the put carried one.
    pub engine_hash: Option<u64>,
    /// When it expires, in Unix milliseconds; 0 is never.
    pub expires_unix_ms: u64,
    /// The store's business.
    pub priority: u8,
    /// Its parts, in order.
    pub parts: Vec<PartPlace>,
}

impl BlockHeader {
    /// Bytes that its payload takes on the medium.
    pub fn footprint(&self) -> u64 {
        self.parts.iter().map(|part| pages_of(part.len) * PAGE_BYTES as u64).sum()
    }
}

/// One life of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentRef {
    /// The device.
    pub device: u8,
    /// The segment's number there.
    pub segment: u32,
    /// Which life of it.
    pub life: u32,
}

/// A segment that holds blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Which one.
    pub segment: SegmentRef,
    /// Blocks appended to it or claimed in it, forgotten ones included.
    pub blocks: u32,
    /// Payload bytes of blocks that were not forgotten.
    pub live_bytes: u64,
    /// Bytes that appends have used of it, headers included.
    pub used_bytes: u64,
    /// Whether appends may still go to it.
    pub is_open: bool,
}

/// What to remove, durably.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Blocks of one namespace.
    Keys {
        /// The namespace.
        fingerprint: [u8; 32],
        /// The keys.
        keys: Vec<BlockKey>,
    },
    /// Everything of a namespace that was taken up to now.
    Namespace {
        /// The namespace.
        fingerprint: [u8; 32],
    },
}
