//! What a tier over another hands on as it is.

/// Within `impl Tier`: the calls that no wrapper changes, handed to the field `below`. Within
/// `impl ReadQueue`, with `queue`: how many reads there may be, and are.
macro_rules! hand_on {
    () => {
        fn sequence(&self) -> $crate::tiers::Sequence {
            self.below.sequence()
        }

        fn describe(
            &self,
            spot: $crate::tiers::Spot,
            fingerprint: &[u8; 32],
            key: $crate::types::BlockKey,
        ) -> Result<$crate::tiers::BlockHeader, $crate::tiers::TierError> {
            self.below.describe(spot, fingerprint, key)
        }

        fn forget(&self, spot: $crate::tiers::Spot, bytes: u64) {
            self.below.forget(spot, bytes);
        }

        fn flush(&self) -> Result<(), $crate::tiers::TierError> {
            self.below.flush()
        }

        fn prepare(&self) {
            self.below.prepare();
        }

        fn segments(&self, stream: $crate::tiers::StreamId) -> Vec<$crate::tiers::SegmentInfo> {
            self.below.segments(stream)
        }

        fn recover(
            &self,
            visitor: &mut dyn $crate::tiers::RecoveryVisitor,
        ) -> Result<$crate::tiers::Recovered, $crate::tiers::TierError> {
            self.below.recover(visitor)
        }

        fn status(&self) -> $crate::tiers::TierStatus {
            self.below.status()
        }
    };
    (queue) => {
        fn depth(&self) -> usize {
            self.below.depth()
        }

        fn in_flight(&self) -> usize {
            self.below.in_flight()
        }
    };
}

pub(super) use hand_on;
