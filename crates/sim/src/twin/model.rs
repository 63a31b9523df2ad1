//! Which node a twin is of.

use std::fmt;

use keepwarm_store::rules::cold::{BYTES_PER_ENTRY as FLASH_BYTES_PER_ENTRY, CHUNK_SLOTS};
use keepwarm_store::rules::log::{
    PAGE_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_AT, SEGMENTS_MIN, segment_bytes_for,
};
use keepwarm_store::rules::{BYTES_PER_ENTRY, CAPACITY_MAX, ENTRIES_MIN, GHOSTS_PER_ENTRY};
use keepwarm_store::{FlashAdmission, Limits, PolicyKind};

/// Entries of all nodes that are modelled together: their ghost lists take 36 B each at start.
const ENTRIES_MODELLED_MAX: u64 = 1 << 26;
/// Segments of a modelled device, at 24 B each: 1 PiB in the largest ones.
const SEGMENTS_MODELLED_MAX: u64 = 1 << 22;

/// A node that would not start, or that a twin cannot be of: what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TwinError(pub String);

impl fmt::Display for TwinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TwinError {}

/// One node's settings. Where the store has a default, none stands for it.
#[derive(Clone, Debug)]
pub struct NodeModel {
    /// Bytes of the arena.
    pub capacity_bytes: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Which block leaves memory first.
    pub policy: PolicyKind,
    /// Entries of the index.
    pub max_blocks: Option<u32>,
    /// What the ghost list is hashed with.
    pub ghost_seed: u64,
    /// Blocks of one get or put, background work settled after each; none: all of a request in one
    /// call, settled at its end.
    pub call_blocks: Option<u32>,
    /// The second tier.
    pub flash: Option<FlashModel>,
}

/// Its flash: one device.
#[derive(Clone, Debug)]
pub struct FlashModel {
    /// Bytes of the device.
    pub device_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Which blocks are written there.
    pub admission: FlashAdmission,
    /// Entries of the flash index.
    pub blocks_max: Option<u32>,
    /// Blocks that wait to be written, at most.
    pub queue_blocks: u32,
    /// Pages that the namespace's encoding takes in a segment: 1 up to about 4,000 bytes of it.
    pub namespace_pages: u32,
}

impl FlashModel {
    /// A device of so many bytes, with the store's defaults.
    pub fn new(device_bytes: u64, segment_bytes: Option<u64>) -> FlashModel {
        FlashModel {
            device_bytes,
            segment_bytes: segment_bytes.unwrap_or_else(|| segment_bytes_for(device_bytes)),
            admission: FlashAdmission::default(),
            blocks_max: None,
            queue_blocks: keepwarm_store::FlashConfig::default().queue_blocks,
            namespace_pages: 1,
        }
    }

    /// How many segments the device has.
    ///
    /// # Errors
    /// Too few, more than are modelled, or of a size that no device has.
    pub fn segments(&self) -> Result<u32, TwinError> {
        let FlashModel { device_bytes, segment_bytes, .. } = *self;
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes)
            || !segment_bytes.is_multiple_of(PAGE_BYTES as u64)
        {
            return Err(TwinError(format!(
                "segments of {segment_bytes} bytes: give {SEGMENT_BYTES_MIN} to \
                 {SEGMENT_BYTES_MAX}, in whole pages of {PAGE_BYTES}"
            )));
        }
        let count = device_bytes.saturating_sub(SEGMENTS_AT) / segment_bytes;
        if !(SEGMENTS_MIN..=SEGMENTS_MODELLED_MAX).contains(&count) {
            let bytes = |segments: u64| SEGMENTS_AT + segments * segment_bytes;
            return Err(TwinError(format!(
                "flash of {device_bytes} bytes in segments of {segment_bytes}: give {} to {} bytes",
                bytes(SEGMENTS_MIN),
                bytes(SEGMENTS_MODELLED_MAX)
            )));
        }
        Ok(count as u32)
    }

    /// Entries that the index is allocated for.
    pub(super) fn blocks_max(&self, segments: u32) -> u32 {
        let capacity = u64::from(segments) * self.segment_bytes;
        let least = u64::from(segments) * u64::from(CHUNK_SLOTS);
        let default = (capacity / FLASH_BYTES_PER_ENTRY).max(least);
        self.blocks_max.unwrap_or(u32::try_from(default).unwrap_or(u32::MAX))
    }
}

impl NodeModel {
    /// Bytes that a block takes in the arena.
    pub(super) fn granule_bytes(&self) -> u64 {
        u64::from(self.block_bytes).next_multiple_of(PAGE_BYTES as u64)
    }

    /// Entries of the index, as the store settles them.
    fn entries(&self) -> u64 {
        let default = (self.capacity_bytes / BYTES_PER_ENTRY).max(ENTRIES_MIN.into());
        self.max_blocks.map_or(default, u64::from).min(self.capacity_bytes / PAGE_BYTES as u64)
    }

    /// Blocks that memory holds.
    pub fn blocks(&self) -> u32 {
        let fit = self.capacity_bytes / self.granule_bytes();
        u32::try_from(fit.min(self.entries())).unwrap_or(u32::MAX)
    }

    /// Places of the ghost list.
    pub(super) fn ghosts(&self) -> u32 {
        u32::try_from(self.entries()).unwrap_or(u32::MAX).saturating_mul(GHOSTS_PER_ENTRY)
    }

    /// Whether so many such nodes can be modelled.
    ///
    /// # Errors
    /// A node that would not start, or too large a list of what left memory.
    pub fn check(&self, nodes: usize) -> Result<(), TwinError> {
        let most = Limits::default().part_bytes_max;
        if !(1..=most).contains(&self.block_bytes) {
            return Err(TwinError(format!(
                "blocks of {} bytes: a node takes 1 to {most}",
                self.block_bytes
            )));
        }
        if self.capacity_bytes > CAPACITY_MAX {
            return Err(TwinError(format!(
                "memory of {} bytes: a node takes up to {CAPACITY_MAX}",
                self.capacity_bytes
            )));
        }
        if self.max_blocks == Some(0) {
            return Err(TwinError("max_blocks is 0: give 1 or more".to_owned()));
        }
        if self.entries().saturating_mul(nodes as u64) > ENTRIES_MODELLED_MAX {
            return Err(TwinError(format!(
                "{nodes} nodes with an index of {} entries each: give smaller ones, or fewer, up \
                 to {ENTRIES_MODELLED_MAX} entries in all",
                self.entries()
            )));
        }
        if self.blocks() == 0 {
            return Err(TwinError(format!(
                "memory of {} bytes holds no block of {}: give one block's bytes or more",
                self.capacity_bytes, self.block_bytes
            )));
        }
        Ok(())
    }
}
