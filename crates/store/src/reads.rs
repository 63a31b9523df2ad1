//! Reads under pins, and reports of bad bytes.

use crate::arena_bytes::hash_of;
use crate::blocks::Leaves;
use crate::guards::ReadPin;
use crate::index::parts::Place;
use crate::index::{Slot, State};
use crate::log::{self, Event};
use crate::outcome::Reported;
use crate::policy::Use;
use crate::session::Session;
use crate::store::{Locked, Store};
use crate::types::{BlockKey, Epoch, Generation, MissReason, NamespaceId};

impl Session {
    /// Holds one part still for reading.
    ///
    /// # Errors
    /// Why it cannot be read. A part beyond the namespace's is absent.
    pub fn read(
        &self,
        ns: NamespaceId,
        epoch: Epoch,
        key: BlockKey,
        part: u8,
    ) -> Result<ReadPin, MissReason> {
        let mut inner = match self.enter(ns, epoch) {
            Ok(inner) => inner,
            Err(refused) => {
                let reason = refused.miss_reason();
                if reason != MissReason::Identity {
                    self.store.lock().counters(ns.0).read_misses[reason as usize] += 1;
                }
                return Err(reason);
            }
        };
        let mut pinned = self.store.pin(&mut inner, ns, key, part);
        if let Err(missed) = pinned
            && inner.cold.is_some()
        {
            pinned = self.store.pin_from_flash(&mut inner, ns, key, part, missed);
        }
        let counters = inner.counters(ns.0);
        match &pinned {
            Ok((_, place)) => {
                counters.reads += 1;
                counters.read_bytes += u64::from(place.length);
            }
            Err(reason) => counters.read_misses[*reason as usize] += 1,
        }
        let (slot, place) = pinned?;
        Ok(ReadPin {
            store: self.store.clone(),
            slot,
            extents: place.extents,
            len: place.length,
            checksum: place.checksum,
            generation: place.generation,
            is_used: false,
        })
    }

    /// A reader found bytes that do not match their checksum: hashes them again in place. Bad ones
    /// take their block with them.
    pub fn report(
        &self,
        ns: NamespaceId,
        key: BlockKey,
        part: u8,
        generation: Generation,
    ) -> Reported {
        let Some(mut inner) = self.lock(ns) else { return Reported::Gone };
        let Ok((slot, place)) = self.store.pin(&mut inner, ns, key, part) else {
            return Reported::Gone;
        };
        if place.generation != generation {
            inner.unpin_read(slot);
            return Reported::Gone;
        }
        drop(inner);
        // SAFETY: the pin keeps the bytes in place while they are hashed without the lock.
        // `tests/stress.rs` would see a good block reported as bad.
        let hash = unsafe { hash_of(&self.store.arena, &place.extents, place.length as usize) };
        let mut inner = self.store.lock();
        let is_good = hash == place.checksum;
        if !is_good && inner.index.meta(slot).state() == State::Ready {
            inner.hide(slot, Leaves::Corrupt);
        }
        inner.unpin_read(slot);
        if !is_good {
            return Reported::Removed;
        }
        inner.counters(ns.0).reports_intact += 1;
        log::say(Event::ReportIntact, |line| inner.name(line, ns.0, Some(key)));
        Reported::Intact
    }
}

impl Store {
    /// Pins a part of a block that is visible in memory for one read.
    pub(crate) fn pin(
        &self,
        inner: &mut Locked<'_>,
        ns: NamespaceId,
        key: BlockKey,
        part: u8,
    ) -> Result<(Slot, Place), MissReason> {
        let slot = inner.find_ready(ns.0, key, self.clock.now())?;
        let place = inner.parts.get(slot, part).ok_or(MissReason::Absent)?;
        if !inner.pin_read(slot) {
            return Err(MissReason::Throttled);
        }
        Ok((slot, place))
    }

    pub(crate) fn end_read(&self, slot: Slot, is_used: bool) {
        let mut inner = self.lock();
        if is_used && inner.index.meta(slot).state() == State::Ready {
            let tenant = inner.tenant_of(slot);
            let inner = &mut *inner;
            inner.tenants[tenant].order.touch(&mut inner.index.slots, slot, Use::Read);
            if inner.cold.is_some() {
                inner.used_in_memory(slot, Use::Read, self.clock.now());
            }
        }
        inner.unpin_read(slot);
    }
}
