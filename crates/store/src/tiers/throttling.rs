//! A tier that takes and gives no more than so many bytes a second; beyond, it is `Busy`, at once.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::hand_on::hand_on;
use super::{
    Hold, ReadDone, ReadQueue, ReadRefused, Removal, SegmentRef, Sequence, Spot, Stream, Tier,
    TierBlock, TierError, TierRead,
};
use crate::types::{Clock, Instant};

/// Bytes a second, and how much may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// In the long run.
    pub bytes_per_second: u64,
    /// After a pause. A call larger than this passes when nothing was taken for long enough.
    pub burst_bytes: u64,
}

/// A rate's account; below zero after a call larger than the burst.
struct Bucket {
    rate: Rate,
    clock: Arc<dyn Clock>,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    fn new(rate: Rate, clock: Arc<dyn Clock>) -> Bucket {
        let state = Mutex::new((rate.burst_bytes as f64, clock.now()));
        Bucket { rate, clock, state }
    }

    fn take(&self, what: &'static str, bytes: u64) -> Result<(), TierError> {
        let Rate { bytes_per_second, burst_bytes } = self.rate;
        let mut state = self.state.lock();
        let now = self.clock.now();
        let gained = now.since(state.1).as_secs_f64() * bytes_per_second as f64;
        *state = ((state.0 + gained).min(burst_bytes as f64), now);
        if state.0 < bytes.min(burst_bytes) as f64 {
            return Err(TierError::Busy { what, limit: bytes_per_second });
        }
        state.0 -= bytes as f64;
        Ok(())
    }
}

/// Limits over another tier.
pub struct Throttling<T> {
    below: T,
    appends: Bucket,
    reads: Arc<Bucket>,
}

impl<T: Tier> Throttling<T> {
    /// Lets so much pass to `below` and back.
    pub fn new(below: T, appends: Rate, reads: Rate, clock: Arc<dyn Clock>) -> Throttling<T> {
        let reads = Arc::new(Bucket::new(reads, clock.clone()));
        Throttling { below, appends: Bucket::new(appends, clock), reads }
    }
}

impl<T: Tier> Tier for Throttling<T> {
    hand_on!();

    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        let bytes = blocks.iter().map(TierBlock::footprint).sum();
        self.appends.take("bytes appended a second", bytes)?;
        self.below.append(stream, as_of, blocks, hold)
    }

    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        let (below, bucket) = (self.below.reads(depth)?, self.reads.clone());
        Ok(Box::new(ThrottledReads { below, bucket }))
    }

    fn remove(&self, removals: &[Removal]) -> Result<(), TierError> {
        self.below.remove(removals)
    }

    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError> {
        self.below.reclaim(segment)
    }
}

struct ThrottledReads {
    below: Box<dyn ReadQueue>,
    bucket: Arc<Bucket>,
}

impl ReadQueue for ThrottledReads {
    hand_on!(queue);

    fn submit(&mut self, read: TierRead) -> Result<(), ReadRefused> {
        match self.bucket.take("bytes read a second", read.part.len.into()) {
            Ok(()) => self.below.submit(read),
            Err(error) => Err(ReadRefused { read, error }),
        }
    }

    fn complete(&mut self, wait: Duration) -> Option<ReadDone> {
        self.below.complete(wait)
    }
}
