//! Following what happens in a namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keepwarm_store::EventBatch;

use super::{ClientError, SUBSCRIPTIONS_MAX};

/// What happens in one namespace, in order.
pub trait EventStream: Send {
    /// The next events, the start of a snapshot, or a part of one; no events if none came in
    /// `wait`. After an error the stream is over: subscribe again from [`EventStream::since`].
    ///
    /// # Errors
    /// The node is gone or silent beyond its heartbeat.
    fn next_batch(&mut self, wait: Duration) -> Result<EventBatch, ClientError>;

    /// Where to go on after a break, as (incarnation, sequence); none within a snapshot.
    fn since(&self) -> Option<(u64, u64)>;

    /// The node that the last batch came from, where there are several.
    fn node(&self) -> Option<&str> {
        None
    }

    /// Where to go on after a break, as (node, incarnation, sequence) for each node that was not
    /// within a snapshot.
    fn places(&self) -> Vec<(String, u64, u64)> {
        let place = |(incarnation, sequence)| (String::new(), incarnation, sequence);
        self.since().map(place).into_iter().collect()
    }
}

/// The subscriptions that one memory may have in one process.
#[derive(Default)]
pub(super) struct Seats {
    taken: Arc<AtomicUsize>,
}

/// One of them, given back on drop.
pub(super) struct Seat {
    taken: Arc<AtomicUsize>,
}

impl Seats {
    pub(super) fn take(&self) -> Option<Seat> {
        let more = |taken| (taken < SUBSCRIPTIONS_MAX).then_some(taken + 1);
        let taken = self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
        taken.ok().map(|_| Seat { taken: self.taken.clone() })
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A stream and its seat, which is given back after the stream has ended.
pub(super) struct Seated {
    pub(super) stream: Box<dyn EventStream>,
    pub(super) _seat: Seat,
}

impl EventStream for Seated {
    fn next_batch(&mut self, wait: Duration) -> Result<EventBatch, ClientError> {
        self.stream.next_batch(wait)
    }

    fn since(&self) -> Option<(u64, u64)> {
        self.stream.since()
    }

    fn node(&self) -> Option<&str> {
        self.stream.node()
    }

    fn places(&self) -> Vec<(String, u64, u64)> {
        self.stream.places()
    }
}

/// Where a follower of events stands.
pub(super) struct Position {
    incarnation: u64,
    next: Option<u64>,
}

impl Position {
    pub(super) fn new(incarnation: u64, from: Option<(u64, u64)>) -> Position {
        let next = from.filter(|(of, _)| *of == incarnation).map(|(_, next)| next);
        Position { incarnation, next }
    }

    pub(super) fn saw(&mut self, batch: &EventBatch) {
        self.next = match batch {
            EventBatch::Events { next, .. } => Some(*next),
            // Within a snapshot there is no place to go on from.
            EventBatch::Resync { .. } | EventBatch::Snapshot { .. } => None,
        };
        if let EventBatch::Resync { incarnation } = batch {
            self.incarnation = *incarnation;
        }
    }

    pub(super) fn since(&self) -> Option<(u64, u64)> {
        self.next.map(|next| (self.incarnation, next))
    }
}
