//! What a restart finds, told to a visitor.

use std::time::Duration;

use super::block::{BlockHeader, Sequence, Spot, StreamId, TierNamespace};

/// A block whose header is there. It is claimed; its bytes are verified at its first read.
#[derive(Clone, Debug)]
pub struct RecoveredBlock<'a> {
    /// Where it is.
    pub spot: Spot,
    /// Its namespace, as announced before.
    pub namespace: &'a TierNamespace,
    /// The segment's stream.
    pub stream: StreamId,
    /// What its header says.
    pub header: &'a BlockHeader,
    /// When it was taken: of two blocks of one key, the larger is the newer.
    pub sequence: Sequence,
}

/// Hears of what recovery claims: segments by life, oldest first, blocks in the order they were
/// appended. Removed blocks are not shown. It may call the tier, but for a removal: an older copy
/// of a block, for example, is forgotten when a newer one comes.
pub trait RecoveryVisitor {
    /// The number of a tenant. `None` leaves its segment to nobody: it is free at once.
    fn stream(&mut self, tenant: &str) -> Option<StreamId>;

    /// A claimed block. `false`: it is not wanted (expired, an old epoch, no room in the index),
    /// and does not count as live.
    fn block(&mut self, block: &RecoveredBlock<'_>) -> bool;

    /// Whether there is any use in going on; asked now and then.
    fn goes_on(&self) -> bool {
        true
    }

    /// Called after every segment.
    fn progress(&mut self, _so_far: &Recovered) {}
}

/// What recovery did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Segments followed.
    pub segments: u64,
    /// Segments there are to follow.
    pub segments_total: u64,
    /// Blocks that the visitor took.
    pub blocks: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Blocks whose header was there, but that had been removed.
    pub removed: u64,
    /// Blocks that the visitor did not want.
    pub refused: u64,
    /// Bytes of headers read.
    pub header_bytes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Recovered {
    /// Blocks claimed a second.
    pub fn blocks_per_second(&self) -> f64 {
        self.blocks as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Payload bytes claimed a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64().max(1e-9)
    }
}
