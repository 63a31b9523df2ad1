//! What happened to blocks, for routers: a bounded ring of events with sequence numbers.

use std::collections::VecDeque;

use crate::types::{BlockKey, NamespaceId, Tier};

/// What happened to one block, or to all of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The block became visible.
    Stored {
        /// Its key.
        key: BlockKey,
        /// The engine's own name of it.
        engine_hash: Option<u64>,
    },
    /// The block left this tier.
    Removed {
        /// Its key.
        key: BlockKey,
        /// The engine's own name of it.
        engine_hash: Option<u64>,
        /// The tier that it left.
        tier: Tier,
    },
    /// Every block of the namespace became invisible at once.
    Cleared,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number; each is one more than the last.
    pub sequence: u64,
    /// The namespace, as this node numbers it.
    pub namespace: NamespaceId,
    /// What happened.
    pub kind: EventKind,
}

/// Which events a subscriber wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventFilter {
    /// All: for an operator's own router.
    All,
    /// One namespace's.
    Namespace(NamespaceId),
}

/// What a subscription yields next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventBatch {
    /// Events in order; empty when none came in time. `next` is where to go on from.
    Events {
        /// The events.
        events: Vec<Event>,
        /// Sequence number of the next event that this subscription will look at.
        next: u64,
    },
    /// Forget all that was known: a snapshot follows, because the ring no longer holds what this
    /// subscriber has not seen (or it comes from another incarnation, or asked for none).
    Resync {
        /// The store's incarnation.
        incarnation: u64,
    },
    /// Blocks that are visible now, as `Stored` events without meaning in their order. Events that
    /// happened meanwhile follow after the last chunk; applying one twice does no harm.
    Snapshot {
        /// The blocks; their `sequence` is the one at which the snapshot began.
        events: Vec<Event>,
        /// Whether this was the last chunk.
        last: bool,
    },
}

/// The last events, as many as the ring holds.
#[derive(Debug)]
pub(crate) struct EventRing {
    events: VecDeque<(Event, u16)>,
    next: u64,
    capacity: usize,
}

impl EventRing {
    pub fn new(capacity: u32) -> EventRing {
        let capacity = capacity.max(1) as usize;
        EventRing { events: VecDeque::with_capacity(capacity), next: 1, capacity }
    }

    /// Number of the next event.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn push(&mut self, tenant: usize, namespace: NamespaceId, kind: EventKind) {
        if self.events.len() == self.capacity {
            self.events.pop_front();
        }
        let event = Event { sequence: self.next, namespace, kind };
        self.events.push_back((event, tenant as u16));
        self.next += 1;
    }

    /// Whether every event from `sequence` on is still here.
    pub fn holds(&self, sequence: u64) -> bool {
        sequence <= self.next && self.next - sequence <= self.events.len() as u64
    }

    /// Up to `max` wanted events from `sequence` on, and where to go on from.
    pub fn read(
        &self,
        sequence: u64,
        max: usize,
        wanted: impl Fn(&Event, u16) -> bool,
    ) -> (Vec<Event>, u64) {
        debug_assert!(self.holds(sequence));
        let skip = self.events.len() - (self.next - sequence) as usize;
        let mut found = Vec::new();
        for (event, tenant) in self.events.range(skip..) {
            if found.len() == max {
                return (found, event.sequence);
            }
            if wanted(event, *tenant) {
                found.push(*event);
            }
        }
        (found, self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_keeps_the_last_and_says_what_it_lost() {
        let mut ring = EventRing::new(4);
        assert!(ring.holds(1) && !ring.holds(2) && !ring.holds(0));
        for number in 0..10 {
            ring.push(number % 2, NamespaceId(0), EventKind::Cleared);
        }
        assert_eq!(ring.next(), 11);
        assert!(ring.holds(11) && ring.holds(7) && !ring.holds(6) && !ring.holds(12));
        let (events, next) = ring.read(7, 100, |_, tenant| tenant == 1);
        assert_eq!(events.iter().map(|event| event.sequence).collect::<Vec<_>>(), [8, 10]);
        assert_eq!(next, 11);
        let (events, next) = ring.read(7, 1, |_, _| true);
        assert_eq!((events.len(), next), (1, 8));
    }
}
