//! Where time comes from: the machine's clock, or a test's hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::{Clock, Instant};

/// The machine's `CLOCK_BOOTTIME`: suspended time counts, so leases end across a suspend.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // Both are never negative on this clock.
        Instant(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
}

/// A clock that moves only when told to.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Starts at one second, so that nothing confuses the start with "never".
    pub fn new() -> ManualClock {
        ManualClock(AtomicU64::new(1_000_000_000))
    }

    /// Moves on by `step`.
    pub fn advance(&self, step: Duration) {
        let nanos = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        // Saturating by hand: a clock never goes back, not even by wrapping.
        let add = |now: u64| Some(now.saturating_add(nanos));
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Acquire))
    }

    /// The same time, since an arbitrary day.
    fn unix_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.load(Ordering::Acquire) / 1_000_000
    }
}
