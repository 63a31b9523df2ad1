//! One client's view of the store. What its calls do is in `spaces.rs` (namespaces), `lookups.rs`,
//! `reads.rs` and `puts.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::store::{Locked, Store};
use crate::types::{Epoch, MissReason, NamespaceId, ShedReason};

/// One connection's or embedded handle's view. May use only the namespaces that it attached;
/// dropping it releases its leases. Every call is short and never waits for another's bytes.
#[derive(Debug)]
pub struct Session {
    pub(crate) store: Arc<Store>,
    pub(crate) id: u64,
    /// A bit for each namespace number that the session attached.
    attached: Box<[AtomicU64]>,
}

/// Why a call does not come to its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The session did not attach the namespace.
    Identity,
    /// The call's epoch is older than the namespace's.
    Epoch,
    /// The call's epoch is newer and could not be made durable.
    NotDurable,
}

impl Refused {
    pub fn miss_reason(self) -> MissReason {
        match self {
            Refused::Identity => MissReason::Identity,
            Refused::Epoch => MissReason::Epoch,
            Refused::NotDurable => MissReason::Throttled,
        }
    }

    pub fn shed_reason(self) -> ShedReason {
        match self {
            Refused::Identity => ShedReason::Identity,
            Refused::Epoch => ShedReason::Epoch,
            Refused::NotDurable => ShedReason::Busy,
        }
    }
}

impl Session {
    pub(crate) fn new(store: Arc<Store>, id: u64, namespaces_max: u16) -> Session {
        let words = usize::from(namespaces_max).div_ceil(64);
        Session { store, id, attached: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Whether the session attached the namespace.
    pub(crate) fn has(&self, ns: NamespaceId) -> bool {
        let word = self.attached.get(usize::from(ns.0) / 64);
        word.is_some_and(|word| word.load(Ordering::Acquire) & (1 << (ns.0 % 64)) != 0)
    }

    /// Notes an attached namespace; false when it was attached before.
    pub(crate) fn note(&self, ns: NamespaceId) -> bool {
        let bit = 1 << (ns.0 % 64);
        self.attached[usize::from(ns.0) / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Locks the store for a call in `ns` at `epoch`; adopts a larger epoch first.
    pub(crate) fn enter(&self, ns: NamespaceId, epoch: Epoch) -> Result<Locked<'_>, Refused> {
        if !self.has(ns) {
            return Err(Refused::Identity);
        }
        let mut inner = self.store.lock();
        let mut refused = Refused::Epoch;
        if epoch > inner.namespaces.at(ns.0).epoch {
            // A write to disk: not under the store's lock.
            drop(inner);
            let adopted = self.store.adopt(ns, epoch);
            inner = self.store.lock();
            if adopted.is_err() {
                refused = Refused::NotDurable;
            }
        }
        if epoch == inner.namespaces.at(ns.0).epoch { Ok(inner) } else { Err(refused) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut inner = self.store.lock();
        while let Some(lease) = inner.leases.release_any(self.id) {
            inner.end_lease(&lease);
        }
        for id in 0..self.attached.len() as u16 * 64 {
            if self.has(NamespaceId(id)) {
                inner.namespaces.at_mut(id).sessions -= 1;
            }
        }
    }
}
