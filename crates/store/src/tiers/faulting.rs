//! A tier that fails as it is told, for tests of what stands above.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::hand_on::hand_on;
use super::{
    Hold, ReadDone, ReadQueue, ReadRefused, Removal, SegmentRef, Sequence, Spot, Stream, Tier,
    TierBlock, TierError, TierRead,
};

/// What fails, and with what.
#[derive(Debug, Default)]
pub struct TierFaults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    appends: Plan,
    reads: Plan,
    removals: Plan,
    keeps_holds: bool,
}

/// Errors to come, one a call; then, if there is one, always the same.
#[derive(Debug, Default)]
struct Plan {
    next: VecDeque<TierError>,
    always: Option<TierError>,
}

impl Plan {
    fn take(&mut self) -> Result<(), TierError> {
        let error = self.next.pop_front().or_else(|| self.always.clone());
        error.map_or(Ok(()), Err)
    }
}

impl TierFaults {
    /// The next append fails so, once.
    pub fn fail_append(&self, error: TierError) {
        self.state.lock().appends.next.push_back(error);
    }

    /// Every append fails so, or none does any more.
    pub fn fail_appends(&self, error: Option<TierError>) {
        self.state.lock().appends.always = error;
    }

    /// The next read completes so, once.
    pub fn fail_read(&self, error: TierError) {
        self.state.lock().reads.next.push_back(error);
    }

    /// Every read completes so, or none does any more.
    pub fn fail_reads(&self, error: Option<TierError>) {
        self.state.lock().reads.always = error;
    }

    /// Every removal fails so, or none does any more.
    pub fn fail_removals(&self, error: Option<TierError>) {
        self.state.lock().removals.always = error;
    }

    /// Operations that fail keep their holds, as if a device still had the memory.
    pub fn keep_holds(&self, keeps: bool) {
        self.state.lock().keeps_holds = keeps;
    }
}

/// Faults over another tier.
pub struct Faulting<T> {
    below: T,
    faults: Arc<TierFaults>,
    kept: Arc<Mutex<Vec<Hold>>>,
}

impl<T: Tier> Faulting<T> {
    /// As `below`, until told otherwise.
    pub fn new(below: T) -> Faulting<T> {
        Faulting { below, faults: Arc::default(), kept: Arc::default() }
    }

    /// What fails.
    pub fn faults(&self) -> &Arc<TierFaults> {
        &self.faults
    }

    /// Lets go of the holds that were kept; how many.
    pub fn release_holds(&self) -> usize {
        let kept = std::mem::take(&mut *self.kept.lock());
        kept.len()
    }
}

impl<T: Tier> Tier for Faulting<T> {
    hand_on!();

    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        let (result, keeps) = {
            let mut state = self.faults.state.lock();
            (state.appends.take(), state.keeps_holds)
        };
        if let Err(error) = result {
            if keeps {
                self.kept.lock().extend(hold.take());
            }
            return Err(error);
        }
        self.below.append(stream, as_of, blocks, hold)
    }

    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        let below = self.below.reads(depth)?;
        let (faults, kept) = (self.faults.clone(), self.kept.clone());
        Ok(Box::new(FaultingReads { below, faults, kept }))
    }

    fn remove(&self, removals: &[Removal]) -> Result<(), TierError> {
        self.faults.state.lock().removals.take()?;
        self.below.remove(removals)
    }

    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError> {
        self.below.reclaim(segment)
    }
}

struct FaultingReads {
    below: Box<dyn ReadQueue>,
    faults: Arc<TierFaults>,
    kept: Arc<Mutex<Vec<Hold>>>,
}

impl ReadQueue for FaultingReads {
    hand_on!(queue);

    fn submit(&mut self, read: TierRead) -> Result<(), ReadRefused> {
        self.below.submit(read)
    }

    fn complete(&mut self, wait: Duration) -> Option<ReadDone> {
        let mut done = self.below.complete(wait)?;
        let mut state = self.faults.state.lock();
        if let Err(error) = state.reads.take() {
            done.result = Err(error);
            if state.keeps_holds {
                self.kept.lock().extend(done.hold.take());
            }
        }
        Some(done)
    }
}
