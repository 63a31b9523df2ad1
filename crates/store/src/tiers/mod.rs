//! Tiers below the arena. A tier keeps complete blocks in segments, each a tenant's own, written
//! once and reclaimed whole; what is where is the store's to know. It knows neither the index nor
//! the network. [`MemTier`] is the twin in memory; wrappers are tiers over tiers; one suite,
//! [`conformance`], holds them all to what this file says.

mod block;
pub mod conformance;
mod counting;
mod error;
mod faulting;
mod hand_on;
mod mem;
mod pieces;
mod reads;
mod recovery;
mod removals;
mod status;
mod throttling;

pub use block::{
    BlockHeader, PARTS_MAX, PartPlace, Removal, SegmentInfo, SegmentRef, Sequence, Spot, Stream,
    StreamId, TENANT_BYTES_MAX, TierBlock, TierNamespace, TierPart, pages_of,
};
pub use counting::{Counting, TierCounts};
pub use error::{Retry, TierError};
pub use faulting::{Faulting, TierFaults};
pub use mem::{MemMedium, MemTier};
pub use pieces::{AlignedBuffer, Hold, PAGE_BYTES, Piece, are_sound};
pub(crate) use pieces::{hash_of, memory_of, memory_of_mut};
pub use reads::{ReadDone, ReadQueue, ReadRefused, TierRead};
pub use recovery::{Recovered, RecoveredBlock, RecoveryVisitor};
pub(crate) use removals::RemovalTable;
pub use status::{DeviceState, DeviceStatus, TierStatus};
pub use throttling::{Rate, Throttling};

/// A place for complete blocks. Calls block, for at most the tier's time for one operation; the
/// store makes them from threads of its own. Failing devices cost their share, never a hang.
pub trait Tier: Send + Sync {
    /// The present moment in the order of appends and removals. Take it, under the store's lock,
    /// when choosing what to append.
    fn sequence(&self) -> Sequence;

    /// Appends blocks, taken at `as_of`, to a segment of `stream`; all of them or none. Says where
    /// each one is; a block can be read at once, and survives the end of the process. It survives
    /// power loss from the next [`flush`](Self::flush) on. Each block is chosen before `as_of`: a
    /// removal that begins later hides it after a restart, even if its append ends later still.
    ///
    /// `hold` keeps the blocks' pieces. It is taken from the caller only if the device may still
    /// read them when this returns, which is with `Deadline`.
    ///
    /// # Errors
    /// `NoSegment`: reclaim one, call again. `TooLarge`, `Invalid`; `Io`, `Deadline`, `Fenced` when
    /// no device could take them.
    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError>;

    /// A queue for reads of up to `depth` parts at a time, for one thread.
    ///
    /// # Errors
    /// `Busy` when there are as many queues as may be.
    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError>;

    /// Reads a block's header: what the index need not keep. `Corrupt` unless it names this
    /// block.
    ///
    /// # Errors
    /// `Gone`, `Corrupt`, `Io`, `Deadline`, `Fenced`, `Busy`.
    fn describe(
        &self,
        spot: Spot,
        fingerprint: &[u8; 32],
        key: crate::types::BlockKey,
    ) -> Result<BlockHeader, TierError>;

    /// Removes blocks for good: when this returns, no restart brings back any that was taken
    /// before. The store hides them first; while recovery runs, once more after this returned.
    ///
    /// # Errors
    /// Then they may come back. `NoSegment`: too many removals are kept for old segments; reclaim
    /// the oldest, call again. `Fenced`, `Io`, `Deadline`: no device can keep the removal.
    fn remove(&self, removals: &[Removal]) -> Result<(), TierError>;

    /// The store no longer points to this block of `bytes` (its footprint): its segment has less
    /// alive.
    fn forget(&self, spot: Spot, bytes: u64);

    /// Makes everything appended so far survive power loss.
    ///
    /// # Errors
    /// `Io`, `Deadline`: on the device named it may not survive.
    fn flush(&self) -> Result<(), TierError>;

    /// Makes ready what the next appends will need, beside those of other threads: one that finds
    /// nothing ready does it itself, and takes that much longer.
    fn prepare(&self) {}

    /// A stream's segments, oldest life first.
    fn segments(&self, stream: StreamId) -> Vec<SegmentInfo>;

    /// Frees a segment; every spot in it is `Gone` from now on. The store forgot its blocks before.
    /// After a crash its blocks may be claimed once more, until the segment is written again.
    ///
    /// # Errors
    /// `Gone` if it is in another life; `Busy` while an append to it, or recovery, is under way.
    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError>;

    /// Claims what an earlier life of the node left, by headers only. Runs once, beside all other
    /// calls: what is new goes to free segments meanwhile.
    ///
    /// # Errors
    /// `Invalid` the second time. A failing device is fenced and the others go on.
    fn recover(&self, visitor: &mut dyn RecoveryVisitor) -> Result<Recovered, TierError>;

    /// What there is, free and used, and how the devices are.
    fn status(&self) -> TierStatus;
}

/// A tier in a box is one: wrappers take any.
impl Tier for Box<dyn Tier> {
    fn sequence(&self) -> Sequence {
        (**self).sequence()
    }

    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        (**self).append(stream, as_of, blocks, hold)
    }

    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        (**self).reads(depth)
    }

    fn describe(
        &self,
        spot: Spot,
        fingerprint: &[u8; 32],
        key: crate::types::BlockKey,
    ) -> Result<BlockHeader, TierError> {
        (**self).describe(spot, fingerprint, key)
    }

    fn remove(&self, removals: &[Removal]) -> Result<(), TierError> {
        (**self).remove(removals)
    }

    fn forget(&self, spot: Spot, bytes: u64) {
        (**self).forget(spot, bytes);
    }

    fn flush(&self) -> Result<(), TierError> {
        (**self).flush()
    }

    fn prepare(&self) {
        (**self).prepare();
    }

    fn segments(&self, stream: StreamId) -> Vec<SegmentInfo> {
        (**self).segments(stream)
    }

    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError> {
        (**self).reclaim(segment)
    }

    fn recover(&self, visitor: &mut dyn RecoveryVisitor) -> Result<Recovered, TierError> {
        (**self).recover(visitor)
    }

    fn status(&self) -> TierStatus {
        (**self).status()
    }
}

/// Whether blocks are what a tier takes.
///
/// # Errors
/// `Invalid`, with what does not fit.
pub fn check_blocks(stream: &Stream, blocks: &[TierBlock<'_>]) -> Result<(), TierError> {
    if !(1..=TENANT_BYTES_MAX).contains(&stream.tenant.len()) {
        return Err(TierError::Invalid("a tenant's name has 1 to 255 bytes"));
    }
    for block in blocks {
        if !(1..=PARTS_MAX).contains(&block.parts.len()) {
            return Err(TierError::Invalid("a block has 1 to 64 parts"));
        }
        if !block.parts.iter().all(|part| are_sound(&part.pieces, part.len)) {
            return Err(TierError::Invalid("pieces are whole aligned pages but the last's end"));
        }
        if block.namespace.encoding.len() > crate::identity::ENCODING_BYTES_MAX {
            return Err(TierError::Invalid("a namespace's encoding has at most 16 KiB"));
        }
    }
    Ok(())
}
