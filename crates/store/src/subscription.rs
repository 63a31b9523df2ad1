//! A subscriber's place in the stream of events: a cursor, no buffer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::events::{Event, EventBatch, EventFilter, EventKind};
use crate::index::{Slot, State};
use crate::inner::Inner;
use crate::store::{Locked, Store};
use crate::types::{BlockKey, NamespaceId};

/// Events of one batch.
const BATCH_MAX: usize = 4096;
/// Slots that one chunk of a snapshot looks at.
const SNAPSHOT_SLOTS: u32 = 16_384;

/// One subscriber's place in the stream of events.
#[derive(Debug)]
pub struct Subscription {
    store: Arc<Store>,
    filter: EventFilter,
    /// Arrival of the namespace that had the filter's number when this began: a number may go to
    /// another namespace, of another tenant, and its events with it.
    arrival: Option<u64>,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// Nothing that the subscriber knows can be relied on.
    Lost,
    /// In a snapshot that began at event `begun`, at slot `at`.
    Snapshot { begun: u64, at: Slot },
    /// At event `next`.
    Streaming { next: u64 },
}

impl Subscription {
    pub(crate) fn new(
        store: Arc<Store>,
        filter: EventFilter,
        from: Option<(u64, u64)>,
    ) -> Subscription {
        let place = match from {
            Some((incarnation, next)) if incarnation == store.incarnation() => {
                Place::Streaming { next }
            }
            _ => Place::Lost,
        };
        let arrival = match &filter {
            EventFilter::Namespace(id) => {
                store.lock().namespaces.get(*id).map(|space| space.arrival)
            }
            EventFilter::All => None,
        };
        Subscription { store, filter, arrival, place }
    }

    /// What comes next. Waits up to `timeout` (real time) for an event that the filter lets
    /// through; the rest is there at once.
    pub fn next_batch(&mut self, timeout: Duration) -> EventBatch {
        let store = self.store.clone();
        let mut inner = store.lock();
        match self.place {
            Place::Lost => self.resync(&inner),
            Place::Snapshot { begun, at } => self.snapshot(&inner, begun, at),
            Place::Streaming { next } => self.stream(&mut inner, next, timeout),
        }
    }

    fn resync(&mut self, inner: &Inner) -> EventBatch {
        self.place = Place::Snapshot { begun: inner.events.next(), at: 0 };
        EventBatch::Resync { incarnation: self.store.incarnation() }
    }

    fn stream(&mut self, inner: &mut Locked<'_>, from: u64, timeout: Duration) -> EventBatch {
        let (begun, mut from) = (Instant::now(), from);
        loop {
            if !inner.events.holds(from) {
                return self.resync(inner);
            }
            let wanted = |event: &Event, tenant: u16| self.wants(inner, event, tenant.into());
            let (events, next) = inner.events.read(from, BATCH_MAX, wanted);
            (self.place, from) = (Place::Streaming { next }, next);
            let left = timeout.saturating_sub(begun.elapsed());
            if !events.is_empty() || left.is_zero() {
                return EventBatch::Events { events, next };
            }
            inner.wait_news(left);
        }
    }

    fn snapshot(&mut self, inner: &Inner, begun: u64, at: Slot) -> EventBatch {
        // Memory's slots first, then those of flash, for blocks that are there alone.
        let in_memory = inner.index.capacity();
        let all = in_memory + inner.cold.as_ref().map_or(0, |cold| cold.index.capacity());
        let end = at.saturating_add(SNAPSHOT_SLOTS).min(all);
        let mut events = Vec::new();
        for slot in at..end {
            let found = match slot.checked_sub(in_memory) {
                None => visible_in_memory(inner, slot),
                Some(slot) => inner.visible_on_flash_alone(slot),
            };
            let Some((ns, key, engine_hash)) = found else { continue };
            let (space, namespace) = (inner.namespaces.at(ns), NamespaceId(ns));
            let kind = EventKind::Stored { key, engine_hash };
            let event = Event { sequence: space.since.max(begun), namespace, kind };
            if self.wants(inner, &event, space.tenant) {
                events.push(Event { sequence: begun, ..event });
            }
        }
        let last = end == all;
        self.place = if last {
            Place::Streaming { next: begun }
        } else {
            Place::Snapshot { begun, at: end }
        };
        EventBatch::Snapshot { events, last }
    }

    fn wants(&self, inner: &Inner, event: &Event, tenant: usize) -> bool {
        match &self.filter {
            EventFilter::All => true,
            EventFilter::Namespace(id) if *id == event.namespace => {
                let space = inner.namespaces.get(*id);
                let same = space.filter(|space| Some(space.arrival) == self.arrival);
                same.is_some_and(|space| space.tenant == tenant && event.sequence >= space.since)
            }
            EventFilter::Namespace(_) => false,
        }
    }
}

/// Namespace, key and the engine's own name of the visible block in a slot of memory.
fn visible_in_memory(inner: &Inner, slot: Slot) -> Option<(u16, BlockKey, Option<u64>)> {
    let entry = inner.index.entry(slot);
    let is_visible = inner.index.meta(slot).state() == State::Ready
        && entry.version == inner.namespaces.at(entry.ns).version;
    is_visible.then(|| (entry.ns, entry.key, inner.parts.engine_hash(slot)))
}
