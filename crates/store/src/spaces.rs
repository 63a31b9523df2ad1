//! Namespaces from a session's side: attach, drop, epochs.

use std::time::Duration;

use crate::blocks::Leaves;
use crate::error::{AttachError, StoreError};
use crate::identity::{ChainKey, NamespaceSpec};
use crate::index::State;
use crate::outcome::{Attached, KEYS_MAX};
use crate::session::Session;
use crate::store::{Locked, Store};
use crate::types::{BlockKey, Epoch, Instant, NamespaceId};

/// Longest that a waiter sleeps before it looks at the store's clock again, which may be one that
/// wakes nobody.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

impl Session {
    /// Makes a namespace usable for the session. A larger epoch is adopted durably first; with a
    /// smaller one the answer's epoch tells the node's.
    ///
    /// # Errors
    /// The encoding, the tenant, the key check, the limit on namespaces, or an epoch that could
    /// not be made durable.
    pub fn attach(
        &self,
        encoding: &[u8],
        key_check: [u8; 8],
        epoch: Epoch,
    ) -> Result<Attached, AttachError> {
        let spec = NamespaceSpec::decode(encoding)?;
        let tenant = self.check_tenant(&spec, key_check)?;
        let fingerprint = spec.fingerprint();
        // Held to the end, so that nobody else adds this namespace or moves its epoch meanwhile.
        let mut epochs = self.store.epochs.lock();
        let mut inner = self.store.lock();
        let (id, nearest) = match inner.namespaces.find(&fingerprint) {
            Some(id) => (id, None),
            None => {
                let nearest = inner.namespaces.nearest(&spec, tenant);
                let known = epochs.get(&fingerprint).unwrap_or_default();
                inner.next_era += 1;
                let era = inner.next_era;
                let since = inner.events.next();
                let added = inner.namespaces.add(spec, tenant, known, era, since);
                let max = inner.limits.namespaces_max;
                (added.ok_or(AttachError::TooMany { max })?, nearest)
            }
        };
        // Counted before the lock is let go: a namespace in use is never recycled.
        if self.note(id) {
            inner.namespaces.at_mut(id.0).sessions += 1;
        }
        if epoch > inner.namespaces.at(id.0).epoch {
            drop(inner);
            self.store.put_epoch(&mut epochs, id, fingerprint, epoch)?;
            inner = self.store.lock();
        }
        Ok(Attached { id, epoch: inner.namespaces.at(id.0).epoch, nearest })
    }

    /// The number of the tenant, whose secret both ends hold.
    fn check_tenant(&self, spec: &NamespaceSpec, key_check: [u8; 8]) -> Result<usize, AttachError> {
        let name = spec.tenant();
        let inner = self.store.lock();
        let number = inner.tenants.iter().position(|tenant| tenant.name == name);
        let number = number.ok_or_else(|| AttachError::UnknownTenant(name.into()))?;
        let secret = inner.tenants[number].secret.clone();
        drop(inner);
        // Takes the same time wherever the two differ.
        if ChainKey::new(spec, &secret).agrees_with(key_check) {
            Ok(number)
        } else {
            Err(AttachError::KeyCheck { tenant: name.into() })
        }
    }

    /// Removes blocks, and every memory of them. Returns how many were here. Keys beyond 65,536
    /// are not looked at.
    pub fn drop_keys(&self, ns: NamespaceId, keys: &[BlockKey]) -> u32 {
        if !self.has(ns) {
            return 0;
        }
        let mut inner = self.store.lock();
        let mut dropped = 0;
        for key in &keys[..keys.len().min(KEYS_MAX)] {
            let space = inner.namespaces.at(ns.0);
            let (era, version) = (space.era, space.version);
            if let Some(slot) = inner.index.find(ns.0, *key) {
                let is_current = inner.index.entry(slot).version == version;
                if inner.index.meta(slot).state() == State::Filling {
                    inner.cancel(slot);
                } else {
                    inner.hide(slot, Leaves::Dropped);
                    dropped += u32::from(is_current);
                }
            }
            inner.ghosts.forget(era, *key);
        }
        dropped
    }

    /// Removes all blocks of the namespace at once. Returns how many were here.
    pub fn drop_namespace(&self, ns: NamespaceId) -> u64 {
        if !self.has(ns) {
            return 0;
        }
        let mut inner = self.store.lock();
        let dropped = inner.hide_namespace(ns.0);
        inner.next_era += 1;
        let era = inner.next_era;
        inner.namespaces.at_mut(ns.0).forget_all(era);
        inner.counters(ns.0).dropped += dropped;
        dropped
    }

    /// Adopts `epoch` durably if it is larger than the namespace's; hides all older blocks at
    /// once. Returns the namespace's epoch.
    ///
    /// # Errors
    /// The namespace is not attached, or the epoch could not be made durable.
    pub fn bump_epoch(&self, ns: NamespaceId, epoch: Epoch) -> Result<Epoch, StoreError> {
        if !self.has(ns) {
            return Err(StoreError::NotAttached(ns.0));
        }
        self.store.adopt(ns, epoch)
    }

    /// Waits until no lease or read of an epoch older than `epoch` is left in the namespace, or
    /// the store's clock passes `deadline`. True when none is left. False at once when the
    /// namespace is at an older epoch: bump it first.
    pub fn wait_epoch_quiet(&self, ns: NamespaceId, epoch: Epoch, deadline: Instant) -> bool {
        if !self.has(ns) {
            return false;
        }
        let mut inner = self.store.lock();
        loop {
            let now = self.store.clock.now();
            inner.expire_leases(now);
            let space = inner.namespaces.at(ns.0);
            if space.epoch < epoch {
                return false;
            }
            if space.old_pins == 0 {
                return true;
            }
            if now >= deadline {
                return false;
            }
            inner.wait_quiet(deadline.since(now).min(LOOK_AGAIN));
        }
    }
}

impl Store {
    /// Adopts an epoch if it is larger than the namespace's; returns the namespace's.
    pub(crate) fn adopt(&self, ns: NamespaceId, epoch: Epoch) -> Result<Epoch, StoreError> {
        let mut epochs = self.epochs.lock();
        let inner = self.lock();
        let space = inner.namespaces.at(ns.0);
        let (known, fingerprint) = (space.epoch, space.spec.fingerprint());
        drop(inner);
        if epoch <= known {
            return Ok(known);
        }
        self.put_epoch(&mut epochs, ns, fingerprint, epoch)?;
        Ok(epoch)
    }

    /// On disk first, then for every call. The caller holds the file, so epochs only grow.
    fn put_epoch(
        &self,
        epochs: &mut crate::epochs::EpochFile,
        ns: NamespaceId,
        fingerprint: [u8; 32],
        epoch: Epoch,
    ) -> Result<(), StoreError> {
        let written = epochs.put(fingerprint, epoch);
        let mut inner: Locked<'_> = self.lock();
        if let Err(error) = written {
            inner.counters(ns.0).epochs_failed += 1;
            return Err(error);
        }
        inner.namespaces.at_mut(ns.0).epoch = epoch;
        inner.hide_namespace(ns.0);
        inner.counters(ns.0).epochs += 1;
        Ok(())
    }
}
