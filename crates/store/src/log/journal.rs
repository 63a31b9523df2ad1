//! The ring of records: bounded in number, lossy when full, limited by kind.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::about;
use super::events::{Event, Level};
use super::record::{Line, Record};
use crate::clock::SystemClock;
use crate::types::Clock;

/// Records of one kind that are kept in an interval; the rest of them are counted.
pub const BURST: u32 = 10;
/// How long an interval is.
pub const INTERVAL: Duration = Duration::from_secs(10);

/// Records that wait to be taken. A kind fills at most its burst of them in an interval.
const RECORDS_MAX: usize = 1024;
/// Above every level: nobody listens.
const OFF: u8 = u8::MAX;
/// Attempts at the lock before a record counts as lost. It is held for a push or a swap alone.
const TRIES: u32 = 64;

/// How often a kind was said.
struct Kind {
    /// The interval that `said` counts in.
    interval: AtomicU64,
    said: AtomicU32,
    /// Not yet told of.
    suppressed: AtomicU64,
}

/// Records on their way to whoever listens.
pub struct Journal {
    /// The least level that is kept.
    floor: AtomicU8,
    kinds: [Kind; Event::ALL.len()],
    records: Mutex<VecDeque<Record>>,
    arrived: Condvar,
    /// Not yet told of.
    lost: AtomicU64,
    lost_ever: AtomicU64,
    suppressed_ever: AtomicU64,
}

impl Journal {
    /// Empty, with nobody listening.
    pub const fn new() -> Journal {
        Journal {
            floor: AtomicU8::new(OFF),
            kinds: [const {
                Kind {
                    interval: AtomicU64::new(0),
                    said: AtomicU32::new(0),
                    suppressed: AtomicU64::new(0),
                }
            }; Event::ALL.len()],
            records: Mutex::new(VecDeque::new()),
            arrived: Condvar::new(),
            lost: AtomicU64::new(0),
            lost_ever: AtomicU64::new(0),
            suppressed_ever: AtomicU64::new(0),
        }
    }

    /// From now on records of `level` and above are kept; with none, nothing is.
    pub fn listen(&self, level: Option<Level>) {
        self.floor.store(level.map_or(OFF, |level| level as u8), Ordering::Relaxed);
    }

    /// See [`say`](super::say).
    pub fn say(&self, event: Event, fields: impl FnOnce(&mut Line)) {
        if (event.level() as u8) < self.floor.load(Ordering::Relaxed) {
            return;
        }
        self.say_in(interval_now(), event, fields);
    }

    fn say_in(&self, interval: u64, event: Event, fields: impl FnOnce(&mut Line)) {
        if !self.kinds[event as usize].admits(interval) {
            self.suppressed_ever.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut line = Line::default();
        fields(&mut line);
        about::append(&mut line);
        self.keep(line.into_record(event));
    }

    fn keep(&self, record: Record) {
        for _ in 0..TRIES {
            let Some(mut records) = self.records.try_lock() else {
                std::hint::spin_loop();
                continue;
            };
            if records.len() < RECORDS_MAX {
                records.push_back(record);
                drop(records);
                self.arrived.notify_one();
                return;
            }
            break;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        self.lost_ever.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits up to `wait` for records and takes them all, with a line for each kind of which more
    /// happened in an interval that is over than was kept.
    pub fn next(&self, wait: Duration) -> Vec<Record> {
        let mut records = self.records.lock();
        if records.is_empty() {
            self.arrived.wait_for(&mut records, wait);
        }
        let taken = std::mem::take(&mut *records);
        drop(records);
        let mut taken = Vec::from(taken);
        self.tell_suppressed(interval_now(), &mut taken);
        taken
    }

    /// What is left at the end, without waiting.
    pub fn last(&self) -> Vec<Record> {
        let mut taken = self.next(Duration::ZERO);
        self.tell_suppressed(u64::MAX, &mut taken);
        taken
    }

    fn tell_suppressed(&self, interval: u64, into: &mut Vec<Record>) {
        for (kind, event) in self.kinds.iter().zip(Event::ALL) {
            let is_over = kind.interval.load(Ordering::Relaxed) < interval;
            let count = if is_over { kind.suppressed.swap(0, Ordering::Relaxed) } else { 0 };
            if count > 0 {
                let mut line = Line::default();
                line.text("of", event.name()).number("count", count);
                line.ratio("interval_s", INTERVAL.as_secs_f64());
                into.push(line.into_record(Event::Suppressed));
            }
        }
        let count = self.lost.swap(0, Ordering::Relaxed);
        if count > 0 {
            let mut line = Line::default();
            line.number("count", count);
            into.push(line.into_record(Event::Lost));
        }
    }

    /// Records that happened and were not kept because of their kind's limit, ever.
    pub fn suppressed(&self) -> u64 {
        self.suppressed_ever.load(Ordering::Relaxed)
    }

    /// Records that found no room, ever.
    pub fn lost(&self) -> u64 {
        self.lost_ever.load(Ordering::Relaxed)
    }
}

impl Default for Journal {
    fn default() -> Journal {
        Journal::new()
    }
}

impl Kind {
    /// Whether one more may be kept in this interval; counts it if not.
    fn admits(&self, interval: u64) -> bool {
        let before = self.interval.swap(interval, Ordering::Relaxed);
        if before != interval {
            // Two threads may both see the change: then a few more than the burst are kept.
            self.said.store(0, Ordering::Relaxed);
        }
        let admits = self.said.load(Ordering::Relaxed) < BURST
            && self.said.fetch_add(1, Ordering::Relaxed) < BURST;
        if !admits {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
        }
        admits
    }
}

/// The number of the interval that is now, from 1.
fn interval_now() -> u64 {
    SystemClock.now().0 / INTERVAL.as_nanos() as u64 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Field;

    fn names(records: &[Record]) -> Vec<&'static str> {
        records.iter().map(|record| record.event.name()).collect()
    }

    #[test]
    fn nobody_listens_at_first_and_levels_hold() {
        let journal = Journal::new();
        journal.say(Event::BlockCorrupt, |_| panic!("nobody listens"));
        journal.listen(Some(Level::Warn));
        journal.say(Event::Started, |_| panic!("below the level"));
        journal.say(Event::Stalled, |_| {});
        assert_eq!(names(&journal.last()), ["stalled"]);
        journal.listen(None);
        journal.say(Event::BlockCorrupt, |_| panic!("nobody listens any more"));
    }

    #[test]
    fn a_kind_beyond_its_burst_is_counted_and_told_once_its_interval_is_over() {
        let journal = Journal::new();
        for _ in 0..BURST + 7 {
            journal.say_in(5, Event::Violation, |_| {});
        }
        journal.say_in(5, Event::Stalled, |_| {});
        let mut taken = Vec::new();
        journal.tell_suppressed(5, &mut taken);
        assert!(taken.is_empty(), "its interval is not over");
        journal.tell_suppressed(6, &mut taken);
        let fields = &taken[0].fields;
        assert_eq!(fields[0].1, Field::Text("violation".into()));
        assert_eq!(fields[1].1, Field::Number(7));
        assert_eq!((taken.len(), journal.suppressed()), (1, 7));
        // The next interval has a burst of its own, and other kinds were never touched.
        journal.say_in(6, Event::Violation, |_| {});
        assert_eq!(journal.records.lock().len(), BURST as usize + 2);
    }

    #[test]
    fn a_full_journal_loses_and_counts_and_never_waits() {
        let journal = Journal::new();
        for interval in 1..=200 {
            for _ in 0..BURST {
                journal.say_in(interval, Event::Stalled, |_| {});
            }
        }
        assert_eq!(journal.lost(), 2000 - RECORDS_MAX as u64);
        let taken = journal.last();
        assert_eq!(taken.len(), RECORDS_MAX + 1);
        assert_eq!(taken[RECORDS_MAX].event, Event::Lost);
        // Somebody holds the lock and does not let go: the record is lost, the caller goes on.
        let held = journal.records.lock();
        journal.say_in(900, Event::Stalled, |_| {});
        drop(held);
        assert_eq!(names(&journal.last()), ["lost"]);
    }

    #[test]
    fn a_waiting_listener_is_woken() {
        let journal = Journal::new();
        journal.listen(Some(Level::Debug));
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| journal.next(Duration::from_secs(60)));
            while !heard.is_finished() {
                journal.say(Event::Connected, |_| {});
                std::thread::yield_now();
            }
            assert_eq!(heard.join().unwrap()[0].event, Event::Connected);
        });
    }
}
