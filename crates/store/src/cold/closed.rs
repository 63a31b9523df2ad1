//! What stands in a tier's place once its devices were let go of.

use crate::tiers::{
    BlockHeader, Hold, ReadQueue, Recovered, RecoveryVisitor, Removal, SegmentInfo, SegmentRef,
    Sequence, Spot, Stream, StreamId, Tier, TierBlock, TierError, TierStatus,
};
use crate::types::BlockKey;

/// Refuses everything.
pub(super) struct ClosedTier;

fn refused<T>() -> Result<T, TierError> {
    Err(TierError::Fenced { device: "flash".into(), why: "the store is closed".into() })
}

impl Tier for ClosedTier {
    fn sequence(&self) -> Sequence {
        Sequence::default()
    }

    fn append(
        &self,
        _: &Stream,
        _: Sequence,
        _: &[TierBlock<'_>],
        _: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        refused()
    }

    fn reads(&self, _: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        refused()
    }

    fn describe(&self, _: Spot, _: &[u8; 32], _: BlockKey) -> Result<BlockHeader, TierError> {
        refused()
    }

    fn remove(&self, _: &[Removal]) -> Result<(), TierError> {
        refused()
    }

    fn forget(&self, _: Spot, _: u64) {}

    fn flush(&self) -> Result<(), TierError> {
        refused()
    }

    fn segments(&self, _: StreamId) -> Vec<SegmentInfo> {
        Vec::new()
    }

    fn reclaim(&self, _: SegmentRef) -> Result<(), TierError> {
        refused()
    }

    fn recover(&self, _: &mut dyn RecoveryVisitor) -> Result<Recovered, TierError> {
        refused()
    }

    fn status(&self) -> TierStatus {
        TierStatus { segment_bytes: 0, block_bytes_max: 0, devices: Vec::new() }
    }
}
