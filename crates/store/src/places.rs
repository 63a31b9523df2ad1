//! A place for a namespace: its own, a vacant one, or that of an older one that nobody uses.

use crate::cold::Left;
use crate::error::AttachError;
use crate::identity::NamespaceSpec;
use crate::index::State;
use crate::store::{Locked, Store};
use crate::types::NamespaceId;

/// Slots looked at for the blocks of a namespace that leaves, before others get the lock.
const CLEAR_SLOTS: u32 = 16_384;
/// Namespaces that are made to leave for one attach: others may come back, or take the place.
const TRIES_MAX: usize = 8;

impl Store {
    /// The namespace's place, under the lock, and how a new one differs from its most similar
    /// sibling. A new one begins at its epoch on disk.
    pub(crate) fn find_place(
        &self,
        spec: NamespaceSpec,
        tenant: usize,
    ) -> Result<(Locked<'_>, NamespaceId, Option<String>), AttachError> {
        let fingerprint = spec.fingerprint();
        let mut spec = Some(spec);
        for _ in 0..TRIES_MAX {
            let mut inner = self.lock();
            let found = inner.namespaces.find(&fingerprint);
            let is_used = found.is_some_and(|id| !inner.namespaces.at(id.0).is_idle());
            let tenants = inner.tenants.len();
            let share = inner.namespaces.share(tenants);
            if !is_used && tenants > 1 && inner.namespaces.in_use(tenant) >= share {
                let tenant = inner.tenants[tenant].name.clone();
                return Err(AttachError::TooManyOfTenant { tenant, max: share });
            }
            if let Some(id) = found {
                return Ok((inner, id, None));
            }
            if inner.namespaces.is_full() {
                let leaving = inner.namespaces.next_to_go(tenant, tenants);
                drop(inner);
                self.clear_place(leaving.ok_or(AttachError::TooMany { max: self.namespaces_max })?);
                continue;
            }
            let spec = spec.take().expect("added once");
            let nearest = inner.namespaces.nearest(&spec, tenant);
            inner.next_era += 1;
            // Under the lock: a larger one that gets there later finds the namespace.
            let known = self.epochs.known(&fingerprint);
            let (era, since) = (inner.next_era, inner.events.next());
            let added = inner.namespaces.add(spec, tenant, known, era, since);
            return Ok((inner, added.expect("a vacant place"), nearest));
        }
        Err(AttachError::TooMany { max: self.namespaces_max })
    }

    /// Takes a namespace's blocks away and vacates its place, unless it comes to be used meanwhile.
    fn clear_place(&self, id: NamespaceId) {
        let mut inner = self.lock();
        let Some(arrival) = inner.namespaces.get(id).map(|space| space.arrival) else { return };
        if inner.namespaces.vacate(id) || !inner.namespaces.at(id.0).is_idle() {
            return;
        }
        inner.hide_namespace(id.0);
        let version = inner.namespaces.at(id.0).version;
        let on_flash = inner.cold.as_ref().map_or(0, |cold| cold.index.capacity());
        for from in (0..inner.index.capacity().max(on_flash)).step_by(CLEAR_SLOTS as usize) {
            inner.clear_flash_of(id.0, from..from.saturating_add(CLEAR_SLOTS), Left::Dropped);
            let end = from.saturating_add(CLEAR_SLOTS).min(inner.index.capacity());
            for slot in from..end {
                if inner.index.meta(slot).state() == State::Ready
                    && inner.index.entry(slot).ns == id.0
                {
                    let seen = inner.see(slot, version, 0);
                    inner.take_back(slot, seen);
                }
            }
            if inner.namespaces.vacate(id) {
                return;
            }
            drop(inner);
            inner = self.lock();
            let space = inner.namespaces.get(id).filter(|space| space.arrival == arrival);
            if !space.is_some_and(|space| space.is_idle()) {
                return;
            }
        }
    }
}
