//! A tier that counts what is asked of the one below.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::hand_on::hand_on;
use super::{
    Hold, ReadDone, ReadQueue, ReadRefused, Removal, SegmentRef, Sequence, Spot, Stream, Tier,
    TierBlock, TierError, TierRead,
};

/// What was asked of a tier, and what came of it.
#[derive(Debug, Default)]
pub struct TierCounts {
    /// Appends that succeeded.
    pub appends: AtomicU64,
    /// Their blocks.
    pub appended_blocks: AtomicU64,
    /// Their payload bytes.
    pub appended_bytes: AtomicU64,
    /// Reads that were verified.
    pub reads: AtomicU64,
    /// Their bytes.
    pub read_bytes: AtomicU64,
    /// Calls and reads that failed.
    pub errors: AtomicU64,
    /// Removals.
    pub removals: AtomicU64,
    /// Segments reclaimed.
    pub reclaims: AtomicU64,
}

/// Counts over another tier.
pub struct Counting<T> {
    below: T,
    counts: Arc<TierCounts>,
}

impl<T: Tier> Counting<T> {
    /// Counts what goes to `below`.
    pub fn new(below: T) -> Counting<T> {
        Counting { below, counts: Arc::default() }
    }

    /// What went there.
    pub fn counts(&self) -> &Arc<TierCounts> {
        &self.counts
    }

    fn note<R>(&self, result: Result<R, TierError>, counter: &AtomicU64) -> Result<R, TierError> {
        let counter = if result.is_ok() { counter } else { &self.counts.errors };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }
}

impl<T: Tier> Tier for Counting<T> {
    hand_on!();

    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        let spots =
            self.note(self.below.append(stream, as_of, blocks, hold), &self.counts.appends)?;
        let bytes = blocks.iter().map(TierBlock::footprint).sum();
        self.counts.appended_blocks.fetch_add(blocks.len() as u64, Ordering::Relaxed);
        self.counts.appended_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(spots)
    }

    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        let (below, counts) = (self.below.reads(depth)?, self.counts.clone());
        Ok(Box::new(CountingReads { below, counts, lengths: Vec::new() }))
    }

    fn remove(&self, removals: &[Removal]) -> Result<(), TierError> {
        self.note(self.below.remove(removals), &self.counts.removals)
    }

    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError> {
        self.note(self.below.reclaim(segment), &self.counts.reclaims)
    }
}

struct CountingReads {
    below: Box<dyn ReadQueue>,
    counts: Arc<TierCounts>,
    /// Bytes of the reads in flight, by token.
    lengths: Vec<(u64, u64)>,
}

impl ReadQueue for CountingReads {
    hand_on!(queue);

    fn submit(&mut self, read: TierRead) -> Result<(), ReadRefused> {
        let (token, bytes) = (read.token, read.part.len.into());
        let result = self.below.submit(read);
        match result {
            Ok(()) => self.lengths.push((token, bytes)),
            Err(_) => drop(self.counts.errors.fetch_add(1, Ordering::Relaxed)),
        }
        result
    }

    fn complete(&mut self, wait: Duration) -> Option<ReadDone> {
        let done = self.below.complete(wait)?;
        let at = self.lengths.iter().position(|(token, _)| *token == done.token);
        let bytes = at.map_or(0, |at| self.lengths.swap_remove(at).1);
        if done.result.is_ok() {
            self.counts.reads.fetch_add(1, Ordering::Relaxed);
            self.counts.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.counts.errors.fetch_add(1, Ordering::Relaxed);
        }
        Some(done)
    }
}
