//! Lookups and leases: one pass over a prompt's keys.

use std::time::Duration;

use crate::arena::GRANULE_BYTES;
use crate::cold::ColdSlot;
use crate::index::{CHUNK, NONE, Run, Slot};
use crate::inner::{Inner, Seen};
use crate::outcome::{Hit, KEYS_MAX, Lookup};
use crate::policy::Use;
use crate::session::Session;
use crate::types::{BlockKey, Epoch, Instant, LeaseId, MissReason, NamespaceId, Tier};

/// What a restore from DRAM moves in a nanosecond, bytes: a first guess, on the low side for a
/// Unix socket; clients measure their own.
const RESTORE_BYTES_PER_NS: u64 = 4;

/// What a pass over the keys found.
struct Pass {
    hits: Vec<Option<Hit>>,
    slots: Vec<Slot>,
    prefix: u32,
    prefix_bytes: u64,
    miss: Option<MissReason>,
    /// Hits on flash alone, and bytes of those in the prefix.
    cold: Vec<ColdSlot>,
    cold_bytes: u64,
}

impl Session {
    /// Which of `keys` (a prompt's blocks from `first_position` on) are here: one pass, not a use.
    /// With `lease`, all hits stay readable that long (at most 10 s); where a cap does not allow
    /// all of them, none is leased and the answer says so. Keys beyond 65,536 are not looked at.
    pub fn lookup(
        &self,
        ns: NamespaceId,
        epoch: Epoch,
        keys: &[BlockKey],
        // Where in the prompt the keys begin: places a run in a fleet; one node needs it not.
        _first_position: u64,
        lease: Option<Duration>,
    ) -> Lookup {
        let mut inner = match self.enter(ns, epoch) {
            Ok(inner) => inner,
            Err(refused) => return self.no_lookup(ns, epoch, keys, refused.miss_reason()),
        };
        let now = self.store.clock.now();
        inner.expire_leases(now);
        let pass = inner.pass(ns.0, keys, now);
        let hits = pass.slots.len() + pass.cold.len();
        inner.count_lookup(ns.0, keys.len(), hits, pass.miss);
        let mut restore_ns = pass.prefix_bytes / RESTORE_BYTES_PER_NS;
        if !pass.cold.is_empty() {
            restore_ns += inner.found_on_flash(ns.0, pass.cold.len(), pass.cold_bytes);
        }
        let hold = lease.filter(|hold| !hold.is_zero() && hits > 0);
        let held = (pass.slots, pass.cold);
        let leased = hold.and_then(|hold| inner.lease(self.id, ns.0, held, hold, now));
        Lookup {
            prefix: pass.prefix,
            hits: pass.hits,
            miss: pass.miss,
            lease: leased.map(|(id, _)| id),
            lease_ms: leased.map_or(0, |(_, hold)| hold.as_millis() as u32),
            restore_ns,
            epoch: inner.namespaces.at(ns.0).epoch,
            incarnation: self.store.incarnation(),
        }
    }

    /// Nothing hits, for one reason.
    fn no_lookup(
        &self,
        ns: NamespaceId,
        epoch: Epoch,
        keys: &[BlockKey],
        reason: MissReason,
    ) -> Lookup {
        let mut known = epoch;
        let miss = (!keys.is_empty()).then_some(reason);
        if reason != MissReason::Identity {
            let mut inner = self.store.lock();
            known = inner.namespaces.get(ns).map_or(epoch, |space| space.epoch);
            inner.count_lookup(ns.0, keys.len(), 0, miss);
        }
        Lookup {
            prefix: 0,
            hits: vec![None; keys.len()],
            miss,
            lease: None,
            lease_ms: 0,
            restore_ns: 0,
            epoch: known,
            incarnation: self.store.incarnation(),
        }
    }

    /// Marks blocks as used, the last key first, so that a prompt's head leaves last. Returns how
    /// many were here.
    pub fn touch(&self, ns: NamespaceId, epoch: Epoch, keys: &[BlockKey]) -> u32 {
        self.touch_as(ns, epoch, keys, Use::Touched)
    }

    /// Puts blocks that were just stored or read in a prompt's order, so that its head leaves
    /// last; not one more use. Returns how many were here.
    pub fn arrange(&self, ns: NamespaceId, epoch: Epoch, keys: &[BlockKey]) -> u32 {
        self.touch_as(ns, epoch, keys, Use::Arranged)
    }

    fn touch_as(&self, ns: NamespaceId, epoch: Epoch, keys: &[BlockKey], how: Use) -> u32 {
        let Ok(mut inner) = self.enter(ns, epoch) else { return 0 };
        let now = self.store.clock.now();
        inner.touch(ns.0, &keys[..keys.len().min(KEYS_MAX)], how, now)
    }

    /// Makes a lease hold for `hold` from now (at most 10 s, and 60 s from its grant in all).
    /// False when it has ended, cannot hold longer, or is not the session's.
    pub fn renew(&self, lease: LeaseId, hold: Duration) -> bool {
        let mut inner = self.store.lock();
        let now = self.store.clock.now();
        inner.leases.renew(self.id, lease, hold, now)
    }

    /// Ends a lease. Harmless when it has ended or is not the session's.
    pub fn release(&self, lease: LeaseId) {
        let mut inner = self.store.lock();
        if let Some(lease) = inner.leases.release(self.id, lease) {
            inner.end_lease(&lease);
        }
    }
}

impl Inner {
    fn pass(&mut self, ns: u16, keys: &[BlockKey], now: Instant) -> Pass {
        let mut pass = Pass {
            hits: Vec::with_capacity(keys.len()),
            slots: Vec::with_capacity(keys.len()),
            prefix: 0,
            prefix_bytes: 0,
            miss: None,
            cold: Vec::new(),
            cold_bytes: 0,
        };
        let (version, tick) = (self.namespaces.at(ns).version, self.tick_of(now));
        let (mut run, mut found, mut on_flash) = (Run::NONE, [NONE; CHUNK], [NONE; CHUNK]);
        for chunk in keys[..keys.len().min(KEYS_MAX)].chunks(CHUNK) {
            let found = &mut found[..chunk.len()];
            self.index.find_chunk(ns, chunk, found, &mut run);
            found.iter().for_each(|slot| self.parts.prefetch(*slot));
            if self.cold.is_some() {
                self.find_flash_chunk(ns, chunk, found, (version, tick), &mut on_flash);
            }
            for ((key, slot), cold) in chunk.iter().zip(found.iter()).zip(&on_flash) {
                match self.see(*slot, version, tick) {
                    Seen::Ready => self.note_hit(&mut pass, *slot),
                    _ if *cold != NONE => self.note_flash_hit(&mut pass, *cold),
                    seen => self.note_miss(&mut pass, ns, *key, *slot, seen),
                }
            }
        }
        if pass.hits.len() < keys.len() {
            pass.hits.resize(keys.len(), None);
            pass.miss.get_or_insert(MissReason::Throttled);
        }
        pass
    }

    #[inline]
    fn note_hit(&self, pass: &mut Pass, slot: Slot) {
        let summary = self.parts.summary(slot);
        pass.hits.push(Some(Hit {
            tier: Tier::Dram,
            length: summary.length,
            generation: summary.generation,
            checksum: summary.checksum,
        }));
        pass.slots.push(slot);
        if pass.miss.is_none() {
            pass.prefix += 1;
            pass.prefix_bytes += u64::from(summary.granules) * GRANULE_BYTES as u64;
        }
    }

    /// A block that is on flash alone.
    fn note_flash_hit(&self, pass: &mut Pass, slot: ColdSlot) {
        let Some(cold) = &self.cold else { return };
        let (hit, bytes) = cold.hit(slot);
        pass.hits.push(Some(hit));
        pass.cold.push(slot);
        if pass.miss.is_none() {
            pass.prefix += 1;
            pass.cold_bytes += bytes;
        }
    }

    /// A miss; the first one gets a reason, which may take a look into the ghost list.
    #[cold]
    fn note_miss(&mut self, pass: &mut Pass, ns: u16, key: BlockKey, slot: Slot, seen: Seen) {
        pass.hits.push(None);
        self.take_back(slot, seen);
        if pass.miss.is_none() {
            let reason = match seen {
                Seen::Filling => MissReason::Pending,
                _ => self.recall(ns, key),
            };
            pass.miss = Some(reason);
        }
    }

    fn count_lookup(&mut self, ns: u16, keys: usize, hits: usize, miss: Option<MissReason>) {
        let counters = self.counters(ns);
        counters.lookup_hits += hits as u64;
        if let Some(reason) = miss {
            counters.lookup_misses[reason as usize] += 1;
            counters.lookup_after_miss += (keys - hits - 1) as u64;
        }
    }

    /// Leases all slots, and the segments of those on flash, or none; what several keys name, once.
    fn lease(
        &mut self,
        session: u64,
        ns: u16,
        (mut slots, cold): (Vec<Slot>, Vec<ColdSlot>),
        hold: Duration,
        now: Instant,
    ) -> Option<(LeaseId, Duration)> {
        let tenant = self.namespaces.at(ns).tenant;
        let places = slots.len() + cold.len();
        let mut segments = Vec::new();
        let is_granted =
            self.leases.has_room(tenant, places) && self.pin_each_once(&mut slots, tenant) && {
                let pinned = cold.is_empty() || self.pin_segments(&cold, &mut segments);
                if !pinned {
                    slots.iter().for_each(|slot| self.unpin_lease(*slot));
                }
                pinned
            };
        let counters = &mut self.tenants[tenant].counters;
        if !is_granted {
            counters.leases_refused += 1;
            return None;
        }
        counters.leases += 1;
        // A lease is counted by its slots, so it must not keep room for keys that missed.
        slots.shrink_to_fit();
        let flash_of = (ns, self.namespaces.at(ns).version);
        if !segments.is_empty() {
            self.namespaces.at_mut(ns).pins += 1;
        }
        Some(self.leases.grant((session, tenant), slots, (segments, flash_of), hold, now))
    }

    /// Pins every slot once and leaves each in the list once; or pins none.
    fn pin_each_once(&mut self, slots: &mut Vec<Slot>, tenant: usize) -> bool {
        let (mut pinned, mut is_whole) = (0, true);
        for at in 0..slots.len() {
            let slot = slots[at];
            if !self.index.meta_mut(slot).mark() {
                continue;
            }
            if !self.pin_lease(slot, tenant) {
                self.index.meta_mut(slot).unmark();
                is_whole = false;
                break;
            }
            slots[pinned] = slot;
            pinned += 1;
        }
        slots.truncate(pinned);
        slots.iter().for_each(|slot| self.index.meta_mut(*slot).unmark());
        if !is_whole {
            slots.iter().for_each(|slot| self.unpin_lease(*slot));
        }
        is_whole
    }

    fn touch(&mut self, ns: u16, keys: &[BlockKey], how: Use, now: Instant) -> u32 {
        let (version, tick) = (self.namespaces.at(ns).version, self.tick_of(now));
        let tenant = self.namespaces.at(ns).tenant;
        let (mut run, mut found, mut touched) = (Run::NONE, [NONE; CHUNK], 0);
        let mut reversed = [BlockKey::default(); CHUNK];
        for chunk in keys.rchunks(CHUNK) {
            let reversed = &mut reversed[..chunk.len()];
            reversed.iter_mut().zip(chunk.iter().rev()).for_each(|(to, key)| *to = *key);
            let found = &mut found[..chunk.len()];
            self.index.find_chunk(ns, reversed, found, &mut run);
            self.index.prefetch_links(found);
            for slot in found.iter() {
                match self.see(*slot, version, tick) {
                    Seen::Ready => {
                        self.tenants[tenant].order.touch(&mut self.index.slots, *slot, how);
                        if self.cold.is_some() {
                            self.used_in_memory(*slot, how, now);
                        }
                        touched += 1;
                    }
                    seen => self.take_back(*slot, seen),
                }
            }
        }
        touched
    }
}
