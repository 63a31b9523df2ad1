//! After a restart, while the store serves: what an earlier life of the node left on flash is
//! claimed by its headers. Its bytes are verified when they are first read.

use std::collections::HashMap;

use super::entry::Written;
use super::workers::Flash;
use crate::events::EventKind;
use crate::identity::NamespaceSpec;
use crate::index::State;
use crate::inner::Inner;
use crate::log::{self, Event};
use crate::store::{Locked, Store};
use crate::tiers::{
    PAGE_BYTES, Recovered, RecoveredBlock, RecoveryVisitor, StreamId, TierNamespace,
};
use crate::types::NamespaceId;

struct Claims<'a> {
    store: &'a Store,
    flash: &'a Flash,
    /// Each namespace's number and arrival here; none: it is not wanted.
    spaces: HashMap<[u8; 32], Option<(NamespaceId, u64)>>,
}

impl Store {
    /// Claims what is on flash. Runs once, beside everything else.
    #[doc(hidden)]
    pub fn recover_flash(&self) {
        let Some(flash) = &self.flash else { return };
        let mut claims = Claims { store: self, flash, spaces: HashMap::new() };
        let recovered = flash.tier().recover(&mut claims);
        drop(claims);
        let mut inner = self.lock();
        let recovery = &mut inner.cold().recovery;
        recovery.is_running = false;
        (recovery.dropped, recovery.dropped_spaces) = Default::default();
        if let Ok(recovered) = recovered {
            recovery.so_far = recovered;
            log::say(Event::FlashRecovered, |line| {
                line.number("blocks", recovered.blocks)
                    .number("refused", recovered.refused)
                    .number("segments", recovered.segments)
                    .number("took_ms", recovered.took.as_millis() as u64)
                    .number("blocks_per_s", recovered.blocks_per_second() as u64);
            });
        }
        drop(inner);
        self.look_after_devices();
        flash.ring();
    }

    /// The namespace's number; it is registered if its tenant is configured and a place is free.
    fn recovered_space(
        &self,
        inner: &mut Inner,
        namespace: &TierNamespace,
        tenant: usize,
    ) -> Option<(NamespaceId, u64)> {
        let known = inner.namespaces.find(&namespace.fingerprint);
        let id = match known {
            Some(id) => id,
            None => {
                let spec = NamespaceSpec::decode(&namespace.encoding).ok()?;
                let is_it = spec.fingerprint() == namespace.fingerprint
                    && spec.tenant() == inner.tenants[tenant].name;
                if !is_it {
                    return None;
                }
                inner.next_era += 1;
                let (era, since) = (inner.next_era, inner.events.next());
                let epoch = self.epochs.known(&namespace.fingerprint);
                inner.namespaces.add(spec, tenant, epoch, era, since)?
            }
        };
        let space = inner.namespaces.at(id.0);
        (space.tenant == tenant).then_some((id, space.arrival))
    }
}

impl<'a> Claims<'a> {
    fn look(&mut self, inner: &mut Locked<'a>, block: &RecoveredBlock<'_>) -> bool {
        let store = self.store;
        let (tenant, fingerprint) = (block.stream.0 as usize, block.namespace.fingerprint);
        let space = *self
            .spaces
            .entry(fingerprint)
            .or_insert_with(|| store.recovered_space(inner, block.namespace, tenant));
        let Some((id, arrival)) = space else { return false };
        let Some(space) = inner.namespaces.get(id).filter(|space| space.arrival == arrival) else {
            // Its place went to another meanwhile.
            return false;
        };
        let (epoch, version, ns) = (space.epoch, space.version, id.0);
        let is_whole = block.header.parts.len() == usize::from(space.spec.parts());
        let now = store.clock.now();
        let expiry = store.tick_of_unix(inner.opened, block.header.expires_unix_ms);
        let (recovery, key) = (&inner.cold().recovery, block.header.key);
        let is_dropped =
            recovery.dropped_spaces.contains(&fingerprint) || recovery.dropped.contains(&(ns, key));
        let is_ended = expiry != 0 && expiry <= inner.tick_of(now);
        if block.header.epoch != epoch || !is_whole || is_dropped || is_ended {
            return false;
        }
        // What was put since the start wins.
        if let Some(slot) = inner.index.find(ns, key)
            && matches!(inner.index.meta(slot).state(), State::Ready | State::Filling)
        {
            return false;
        }
        let cold = inner.cold();
        if let Some(slot) = cold.index.find(ns, key)
            && !cold.index.segment(cold.index.segment_of(slot)).is_recovered
        {
            return false;
        }
        let first = block.header.parts[0];
        let pages = (block.header.footprint() / PAGE_BYTES as u64) as u32;
        let (length, checksum, spot) = (first.len, first.checksum, block.spot);
        let written = Written { ns, key, version, length, checksum, expiry, pages, spot };
        let is_new = inner.cold().index.find(ns, key).is_none();
        let is_added = inner.add_to_flash(&written, tenant, true).is_ok();
        if is_added && is_new {
            let kind = EventKind::Stored { key, engine_hash: block.header.engine_hash };
            inner.events.push(tenant, id, kind);
        }
        is_added
    }
}

impl RecoveryVisitor for Claims<'_> {
    fn stream(&mut self, tenant: &str) -> Option<StreamId> {
        let inner = self.store.lock();
        let number = inner.tenants.iter().position(|known| known.name == tenant)?;
        Some(StreamId(number as u32))
    }

    fn block(&mut self, block: &RecoveredBlock<'_>) -> bool {
        if self.flash.is_ending() {
            return false;
        }
        let mut inner = self.store.lock();
        let is_wanted = self.look(&mut inner, block);
        let counters = &mut inner.cold().tenants[block.stream.0 as usize].counters;
        if is_wanted {
            counters.recovered += 1;
        } else {
            counters.refused += 1;
        }
        is_wanted
    }

    fn goes_on(&self) -> bool {
        !self.flash.is_ending()
    }

    fn progress(&mut self, so_far: &Recovered) {
        self.store.lock().cold().recovery.so_far = *so_far;
    }
}
