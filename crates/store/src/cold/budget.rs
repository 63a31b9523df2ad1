//! How many bytes may be written to flash in a day: flash wears out by what is written to it.

use crate::types::Instant;

const DAY_S: f64 = 86_400.0;
/// What may be written at once: an hour's share of the day.
const BURST_SHARE: f64 = 24.0;

/// Bytes that may be written now; refilled evenly over the day.
#[derive(Debug)]
pub(crate) struct Budget {
    day_bytes: Option<u64>,
    left: f64,
    at: Instant,
}

impl Budget {
    /// `None`: without a limit.
    pub fn new(day_bytes: Option<u64>, now: Instant) -> Budget {
        let left = day_bytes.map_or(0.0, |bytes| bytes as f64 / BURST_SHARE);
        Budget { day_bytes, left, at: now }
    }

    fn refill(&mut self, now: Instant) {
        let Some(day) = self.day_bytes else { return };
        let gained = day as f64 * now.since(self.at).as_secs_f64() / DAY_S;
        self.left = (self.left + gained).min(day as f64 / BURST_SHARE);
        self.at = now;
    }

    /// Whether anything may be written now. What is written then may overdraw it by one batch.
    pub fn allows(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.day_bytes.is_none() || self.left > 0.0
    }

    /// Some bytes were written.
    pub fn spend(&mut self, bytes: u64, now: Instant) {
        self.refill(now);
        self.left -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn no_more_is_written_in_a_day_than_said() {
        const MIB: u64 = 1 << 20;
        let (mut now, mut written) = (Instant(0), 0);
        let mut budget = Budget::new(Some(2400 * MIB), now);
        for _ in 0..DAY_S as u64 {
            while budget.allows(now) {
                budget.spend(MIB, now);
                written += MIB;
            }
            now = now.after(Duration::from_secs(1));
        }
        // A day's and the burst that it began with, and a batch.
        assert!((2300 * MIB..=2501 * MIB).contains(&written), "{}", written / MIB);
        assert!(Budget::new(None, now).allows(now));
    }
}
