//! The moment after which a call may no longer wait.

use std::time::{Duration, Instant};

/// A moment on the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

/// Longest wait that a deadline stands for; a longer wish is cut to it (a day).
const WAIT_MAX: Duration = Duration::from_secs(86_400);

impl Deadline {
    /// This long from now, at most a day.
    pub fn after(wait: Duration) -> Deadline {
        Deadline(Instant::now() + wait.min(WAIT_MAX))
    }

    /// Time that is left; none once it has passed.
    pub fn left(self) -> Option<Duration> {
        let left = self.0.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Whether it has passed.
    pub fn passed(self) -> bool {
        self.left().is_none()
    }

    /// As the standard library's type, for condition variables.
    pub fn instant(self) -> Instant {
        self.0
    }
}
