//! The store.

use std::sync::Arc;
use std::time::Duration;

use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::events::{EventBatch, EventFilter};
use crate::session::Session;
use crate::stats::Stats;
use crate::types::Clock;

/// One node's memory of KV blocks.
pub struct Store {
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl Store {
    /// Allocates everything the store will ever need.
    ///
    /// # Errors
    /// A setting that no store can have; memory that is not there; an epoch file that cannot be read.
    pub fn open(_config: StoreConfig, clock: Arc<dyn Clock>) -> Result<Arc<Store>, StoreError> {
        Ok(Arc::new(Store { clock }))
    }

    /// Random number of this opening.
    pub fn incarnation(&self) -> u64 {
        self.clock.now().0
    }

    /// A new session: one for each connection or embedded handle. Its drop releases its leases.
    pub fn session(self: &Arc<Self>) -> Session {
        Session { store: self.clone() }
    }

    /// Everything that a metrics page needs.
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }

    /// Bounded housekeeping: ends leases, takes back incomplete, expired and hidden blocks. Call
    /// it about ten times a second.
    pub fn tick(&self) {}

    /// Counts everything again and says what does not add up.
    ///
    /// # Errors
    /// The first thing that does not add up.
    pub fn check(&self) -> Result<(), String> {
        Ok(())
    }

    /// Changes a tenant's quota; shrinking it takes blocks back over the next puts and ticks.
    ///
    /// # Errors
    /// An unknown tenant.
    pub fn set_quota(&self, _tenant: &str, _bytes: Option<u64>) -> Result<(), StoreError> {
        Ok(())
    }

    /// Changes when puts are shed: reads in flight, and arena bytes granted to writers.
    pub fn set_watermarks(&self, _reads_in_flight: u32, _writing_bytes: u64) {}

    /// Events from `from` = (incarnation, sequence) on if the ring still holds it, else a snapshot
    /// first.
    pub fn subscribe(
        self: &Arc<Self>,
        _filter: EventFilter,
        _from: Option<(u64, u64)>,
    ) -> Subscription {
        Subscription { store: self.clone() }
    }
}

/// One subscriber's place in the stream of events. Holds a cursor, no events.
#[derive(Debug)]
pub struct Subscription {
    store: Arc<Store>,
}

impl Subscription {
    /// What comes next; waits up to `timeout` (real time) for it.
    pub fn next_batch(&mut self, _timeout: Duration) -> EventBatch {
        EventBatch::Resync { incarnation: self.store.incarnation() }
    }
}
