//! One client's view of the store. What its calls do is in `spaces.rs` (namespaces), `lookups.rs`,
//! `reads.rs` and `puts.rs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::inner::Inner;
use crate::store::{Locked, Store};
use crate::types::{Epoch, MissReason, NamespaceId, ShedReason};

/// One connection's or embedded handle's view. May use only the namespaces that it attached;
/// dropping it releases its leases. Every call is short and never waits for another's bytes.
#[derive(Debug)]
pub struct Session {
    pub(crate) store: Arc<Store>,
    pub(crate) id: u64,
    /// How often the session attached each namespace number. Changed under the store's lock only,
    /// and a call looks under it: a number that is not attached may go to another namespace.
    attached: Box<[AtomicU32]>,
    /// Whether it may bring a larger epoch.
    keeps_epochs: AtomicBool,
}

/// How long a call that brings a larger epoch waits for the disk.
const CALL_PATIENCE: Duration = Duration::from_millis(500);

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
        let attached = (0..namespaces_max).map(|_| AtomicU32::new(0)).collect();
        Session { store, id, attached, keeps_epochs: AtomicBool::new(false) }
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// From now on a larger epoch that its calls bring is not adopted: they miss with `epoch`. For
    /// those who may not write, since a larger epoch hides what others wrote.
    pub fn keep_epochs(&self) {
        self.keeps_epochs.store(true, Ordering::Release);
    }

    pub(crate) fn may_raise_epochs(&self) -> bool {
        !self.keeps_epochs.load(Ordering::Acquire)
    }

    /// Whether the session attached the namespace.
    pub(crate) fn has(&self, ns: NamespaceId) -> bool {
        self.attached.get(usize::from(ns.0)).is_some_and(|times| times.load(Ordering::Acquire) > 0)
    }

    /// Counts blocks of a put that their transport shed before the store was asked.
    pub fn count_shed(&self, ns: NamespaceId, reason: ShedReason, blocks: u64) {
        if let Some(mut inner) = self.lock(ns) {
            inner.counters(ns.0).shed[reason as usize] += blocks;
        }
    }

    /// Counts an attach.
    pub(crate) fn note(&self, inner: &mut Inner, ns: NamespaceId) {
        if self.attached[usize::from(ns.0)].fetch_add(1, Ordering::AcqRel) == 0 {
            inner.namespaces.at_mut(ns.0).sessions += 1;
        }
    }

    /// Takes an attach back. False when there is none.
    pub(crate) fn unnote(&self, inner: &mut Inner, ns: NamespaceId) -> bool {
        if !self.has(ns) {
            return false;
        }
        if self.attached[usize::from(ns.0)].fetch_sub(1, Ordering::AcqRel) == 1 {
            inner.namespaces.at_mut(ns.0).sessions -= 1;
        }
        true
    }

    /// Locks the store for a call in `ns`; none: the session did not attach it.
    pub(crate) fn lock(&self, ns: NamespaceId) -> Option<Locked<'_>> {
        let inner = self.store.lock();
        self.has(ns).then_some(inner)
    }

    /// Locks the store for a call in `ns` at `epoch`; adopts a larger epoch first.
    pub(crate) fn enter(&self, ns: NamespaceId, epoch: Epoch) -> Result<Locked<'_>, Refused> {
        let mut inner = self.lock(ns).ok_or(Refused::Identity)?;
        let mut refused = Refused::Epoch;
        if epoch > inner.namespaces.at(ns.0).epoch && self.may_raise_epochs() {
            // A write to disk: not under the store's lock.
            drop(inner);
            let adopted = self.adopt(ns, epoch, CALL_PATIENCE);
            inner = self.lock(ns).ok_or(Refused::Identity)?;
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
        for id in 0..self.attached.len() as u16 {
            if self.has(NamespaceId(id)) {
                inner.namespaces.at_mut(id).sessions -= 1;
            }
        }
    }
}
