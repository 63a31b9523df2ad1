//! Namespaces from a session's side: attach, drop, epochs.

use std::time::Duration;

use crate::blocks::Leaves;
use crate::cold::Left;
use crate::epoch_writes::Larger;
use crate::epochs::{RECORDS_MAX, mark_of};
use crate::error::{AttachError, StoreError};
use crate::identity::{ChainKey, NamespaceSpec};
use crate::index::State;
use crate::log::{self, Event};
use crate::outcome::{Attached, KEYS_MAX};
use crate::session::Session;
use crate::store::Store;
use crate::tiers::Removal;
use crate::types::{BlockKey, Epoch, Instant, NamespaceId, Terms};

/// Longest that a waiter sleeps before it looks at the store's clock again, which may be one that
/// wakes nobody.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long an attach or a bump without a time of its own waits for the disk.
const PATIENCE: Duration = Duration::from_secs(10);

impl Session {
    /// Makes a namespace usable for the session. A larger epoch is adopted durably first; with a
    /// smaller one the answer's epoch tells the node's. With all places taken, an older namespace
    /// that nobody uses makes way, with its blocks.
    ///
    /// # Errors
    /// The encoding, the tenant, the key check, the limits on namespaces, or an epoch that could
    /// not be made durable. Then the session has not attached it.
    pub fn attach(
        &self,
        encoding: &[u8],
        key_check: [u8; 8],
        epoch: Epoch,
    ) -> Result<Attached, AttachError> {
        self.attach_within(encoding, key_check, epoch, Terms::default(), PATIENCE)
    }

    /// As `attach`, on terms of its own for blocks that are stored from then on.
    ///
    /// # Errors
    /// As `attach`.
    pub fn attach_on(
        &self,
        encoding: &[u8],
        key_check: [u8; 8],
        epoch: Epoch,
        terms: Terms,
    ) -> Result<Attached, AttachError> {
        self.attach_within(encoding, key_check, epoch, terms, PATIENCE)
    }

    /// As `attach_on`, and waits no longer than `patience` for a larger epoch to be on disk.
    ///
    /// # Errors
    /// As `attach`.
    pub fn attach_within(
        &self,
        encoding: &[u8],
        key_check: [u8; 8],
        epoch: Epoch,
        terms: Terms,
        patience: Duration,
    ) -> Result<Attached, AttachError> {
        let spec = NamespaceSpec::decode(encoding)?;
        let tenant = self.check_tenant(&spec, key_check)?;
        let fingerprint = spec.fingerprint();
        let (mut inner, id, nearest) = self.store.find_place(spec, tenant)?;
        // Counted before the lock is let go: a namespace in use is never recycled.
        self.note(&mut inner, id);
        if epoch > inner.namespaces.at(id.0).epoch && self.may_raise_epochs() {
            drop(inner);
            let written = self.store.put_epoch(id, fingerprint, epoch, patience);
            inner = self.store.lock();
            if let Err(error) = written {
                self.unnote(&mut inner, id);
                inner.namespaces.vacate(id);
                return Err(error.into());
            }
        }
        inner.namespaces.at_mut(id.0).agree(terms);
        inner.say_attached(id.0, nearest.as_deref());
        Ok(Attached { id, epoch: inner.namespaces.at(id.0).epoch, nearest })
    }

    /// Takes one attach of the namespace back; with the last one the session may no longer use it,
    /// and when no session does, its place may go to another. Leases and reads hold on to their
    /// end. False when the session has not attached it.
    pub fn detach(&self, ns: NamespaceId) -> bool {
        self.unnote(&mut self.store.lock(), ns)
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

    /// Removes blocks, and every memory of them; with flash, when this returns well no restart
    /// brings them back. Returns how many were here. Keys beyond 65,536 are not looked at.
    ///
    /// # Errors
    /// They are hidden, but a restart may bring back what is on flash.
    pub fn drop_keys(&self, ns: NamespaceId, keys: &[BlockKey]) -> Result<u32, StoreError> {
        let keys = &keys[..keys.len().min(KEYS_MAX)];
        let Some(mut inner) = self.lock(ns) else { return Ok(0) };
        let mut dropped = 0;
        let now = self.store.clock.now();
        for key in keys {
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
            if let Some(slot) = inner.find_flash(ns.0, *key, now) {
                inner.leave_flash(slot, Left::Dropped);
                dropped += 1;
            }
            inner.ghosts.forget(era, *key);
        }
        if inner.cold.is_some() && !keys.is_empty() {
            let fingerprint = inner.namespaces.at(ns.0).spec.fingerprint();
            let removal = Removal::Keys { fingerprint, keys: keys.to_vec() };
            self.store.note_removal(&mut inner, ns.0, &removal);
            drop(inner);
            self.store.remove_for_good(removal)?;
        }
        Ok(dropped)
    }

    /// Removes all blocks of the namespace at once, as `drop_keys` does. Returns how many were
    /// here.
    ///
    /// # Errors
    /// As `drop_keys`.
    pub fn drop_namespace(&self, ns: NamespaceId) -> Result<u64, StoreError> {
        let Some(mut inner) = self.lock(ns) else { return Ok(0) };
        let space = inner.namespaces.at(ns.0);
        let (flash_only, fingerprint) =
            (space.flash_live - space.in_both, space.spec.fingerprint());
        let dropped = inner.hide_namespace(ns.0);
        inner.next_era += 1;
        let era = inner.next_era;
        inner.namespaces.at_mut(ns.0).forget_all(era);
        inner.counters(ns.0).dropped += dropped;
        log::say(Event::NamespaceDropped, |line| {
            inner.name(line, ns.0, None);
            line.number("blocks", dropped + flash_only);
        });
        if inner.cold.is_some() {
            inner.count_dropped_on_flash(ns.0, flash_only);
            let removal = Removal::Namespace { fingerprint };
            self.store.note_removal(&mut inner, ns.0, &removal);
            drop(inner);
            self.store.remove_for_good(removal)?;
        }
        Ok(dropped + flash_only)
    }

    /// Adopts `epoch` durably if it is larger than the namespace's; hides all older blocks at
    /// once. Returns the namespace's epoch.
    ///
    /// # Errors
    /// The namespace is not attached, or the epoch could not be made durable.
    pub fn bump_epoch(&self, ns: NamespaceId, epoch: Epoch) -> Result<Epoch, StoreError> {
        self.adopt(ns, epoch, PATIENCE)
    }

    /// As `bump_epoch`, and waits no longer than `patience` for it to be on disk.
    ///
    /// # Errors
    /// As `bump_epoch`. The epoch may still get to the disk later, and hold from then on.
    pub fn bump_epoch_within(
        &self,
        ns: NamespaceId,
        epoch: Epoch,
        patience: Duration,
    ) -> Result<Epoch, StoreError> {
        self.adopt(ns, epoch, patience)
    }

    /// Waits until no lease or read of an epoch older than `epoch` is left in the namespace, or
    /// the store's clock passes `deadline`. True when none is left. False at once when the
    /// namespace is at an older epoch: bump it first.
    pub fn wait_epoch_quiet(&self, ns: NamespaceId, epoch: Epoch, deadline: Instant) -> bool {
        let mut inner = self.store.lock();
        loop {
            // Looked at again after each wait: the number may be another's by then.
            if !self.has(ns) {
                return false;
            }
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

    /// Adopts an epoch if it is larger than the namespace's; returns the namespace's.
    pub(crate) fn adopt(
        &self,
        ns: NamespaceId,
        epoch: Epoch,
        patience: Duration,
    ) -> Result<Epoch, StoreError> {
        let inner = self.lock(ns).ok_or(StoreError::NotAttached(ns.0))?;
        let space = inner.namespaces.at(ns.0);
        let (known, fingerprint) = (space.epoch, space.spec.fingerprint());
        drop(inner);
        if epoch <= known {
            return Ok(known);
        }
        self.store.put_epoch(ns, fingerprint, epoch, patience)?;
        Ok(epoch)
    }
}

impl Store {
    /// On disk first, then for every call.
    fn put_epoch(
        &self,
        ns: NamespaceId,
        fingerprint: [u8; 32],
        epoch: Epoch,
        patience: Duration,
    ) -> Result<(), StoreError> {
        let inner = self.lock();
        let space = inner.namespaces.get(ns).ok_or(StoreError::NotAttached(ns.0))?;
        let tenant = mark_of(&inner.tenants[space.tenant].name);
        let share = RECORDS_MAX / inner.tenants.len();
        drop(inner);
        let larger = Larger { fingerprint, tenant, epoch, share };
        let written = self.epochs.put(larger, patience);
        let mut inner = self.lock();
        if let Err(error) = written {
            inner.counters(ns.0).epochs_failed += 1;
            log::say(Event::EpochFailed, |line| {
                inner.name(line, ns.0, None);
                line.number("epoch", epoch.0.into()).text("reason", &error);
            });
            return Err(error);
        }
        // Its place may have gone to another meanwhile; then the file knows its epoch.
        let is_here = inner.namespaces.find(&fingerprint) == Some(ns);
        if is_here && epoch > inner.namespaces.at(ns.0).epoch {
            inner.namespaces.at_mut(ns.0).epoch = epoch;
            inner.hide_namespace(ns.0);
            inner.counters(ns.0).epochs += 1;
            log::say(Event::EpochAdopted, |line| {
                inner.name(line, ns.0, None);
                line.number("epoch", epoch.0.into());
            });
        }
        Ok(())
    }
}
