//! Following what happens in a namespace.

use std::time::Duration;

use keepwarm_store::EventBatch;

use super::ClientError;

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
