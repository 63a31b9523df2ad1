//! A block's life: begun, complete, hidden, free. Everything that changes what a slot is.

use crate::arena::Extents;
use crate::events::EventKind;
use crate::index::parts::Place;
use crate::index::{Slot, State};
use crate::inner::{Inner, Seen};
use crate::log::{self, Event};
use crate::types::{BlockKey, Instant, MissReason, NamespaceId, Priority, Tier};

/// Why a complete block leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaves {
    /// Makes room for others.
    Evicted,
    /// Makes room under its tenant's quota.
    Quota,
    /// Its time ended.
    Expired,
    /// Its namespace moved on to a later version.
    Outdated,
    /// Dropped by key.
    Dropped,
    /// Its bytes are bad.
    Corrupt,
}

impl Inner {
    /// Starts an incomplete block; the caller made sure of a slot and a filling.
    pub fn begin(&mut self, ns: u16, key: BlockKey, now: Instant) -> Option<Slot> {
        let version = self.namespaces.at(ns).version;
        let slot = self.index.insert(ns, key, version)?;
        let Some(name) = self.fillings.open(slot, now) else {
            self.index.unlist(slot);
            self.index.free(slot);
            return None;
        };
        self.index.entry_mut(slot).next = name.place;
        let space = self.namespaces.at_mut(ns);
        space.filling += 1;
        self.tenants[space.tenant].filling += 1;
        Some(slot)
    }

    /// All parts are in: the block becomes visible.
    pub fn complete(&mut self, slot: Slot, now: Instant) {
        let entry = *self.index.entry(slot);
        self.fillings.close(entry.next);
        let space = self.namespaces.at_mut(entry.ns);
        space.filling -= 1;
        space.live += 1;
        let (number, era, terms) = (space.tenant, space.era, space.terms);
        let is_back = self.is_returning(slot);
        let tenant = &mut self.tenants[number];
        tenant.filling -= 1;
        let meta = self.index.meta_mut(slot);
        let priority = terms.priority.unwrap_or(Priority::NORMAL).min(tenant.priority_max);
        meta.complete(priority);
        meta.expiry = tenant.expiry(terms.ttl, self.opened, now);
        let left = self.ghosts.evicted_since(era, entry.key, tenant.order.evictions(priority));
        let granules = self.parts.summary(slot).granules;
        tenant.order.insert(&mut self.index.slots, slot, granules, left);
        tenant.blocks += 1;
        tenant.counters.blocks_stored += u64::from(!is_back);
        self.ghosts.forget(era, entry.key);
        let (key, engine_hash) = (entry.key, self.parts.engine_hash(slot));
        let kind = EventKind::Stored { key, engine_hash };
        self.events.push(number, NamespaceId(entry.ns), kind);
        self.stored_in_memory(slot, left.is_some(), now);
    }

    /// A part's bytes are in its extents.
    pub fn land(&mut self, slot: Slot, place: &Place) {
        self.parts.add(slot, place);
        self.allocator.set_owner(&place.extents, Some(slot));
    }

    /// Gives up on an incomplete block: frees the parts that are in. Writers still at it hold
    /// space of their own and find at their commit that it is gone.
    pub fn cancel(&mut self, slot: Slot) {
        let entry = *self.index.entry(slot);
        assert_eq!(self.index.meta(slot).state(), State::Filling);
        self.fillings.close(entry.next);
        let space = self.namespaces.at_mut(entry.ns);
        space.filling -= 1;
        self.tenants[space.tenant].filling -= 1;
        self.index.unlist(slot);
        if let Some(cold) = &mut self.cold {
            cold.marks.take(slot);
        }
        self.free_block(slot);
    }

    /// Takes back what a call found to be no longer visible.
    pub fn take_back(&mut self, slot: Slot, seen: Seen) {
        match seen {
            Seen::Hidden => self.hide(slot, Leaves::Outdated),
            Seen::Expired => self.hide(slot, Leaves::Expired),
            Seen::Ready | Seen::Filling | Seen::Nothing => {}
        }
    }

    /// Takes a complete block out of its policy, the table and sight at once. Its space is free
    /// now, or with its last pin.
    pub fn hide(&mut self, slot: Slot, why: Leaves) {
        let tenant = self.tenant_of(slot);
        self.tenants[tenant].order.remove(&mut self.index.slots, slot);
        self.hide_unordered(slot, why);
    }

    /// The same for a block that its policy has already let go of.
    pub fn hide_unordered(&mut self, slot: Slot, why: Leaves) {
        let entry = *self.index.entry(slot);
        let engine_hash = self.parts.engine_hash(slot);
        self.index.unlist(slot);
        let space = self.namespaces.at_mut(entry.ns);
        let (number, era, is_live) = (space.tenant, space.era, entry.version == space.version);
        let outdated = space.hidden_reason(entry.version);
        if is_live {
            space.live -= 1;
            let kind = EventKind::Removed { key: entry.key, engine_hash, tier: Tier::Dram };
            self.events.push(number, NamespaceId(entry.ns), kind);
        } else {
            // Subscribers were told `Cleared`.
            space.hidden -= 1;
            self.hidden -= 1;
        }
        let is_on_flash = self.leaves_memory(slot, why);
        let makes_room = matches!(why, Leaves::Evicted | Leaves::Quota);
        let granules = self.parts.summary(slot).granules;
        let order = &mut self.tenants[number].order;
        let evictions = order.leave(&self.index.slots, slot, granules, makes_room);
        let reason = match why {
            _ if is_on_flash && !makes_room => None,
            _ if !is_live => Some(outdated).filter(|reason| *reason == MissReason::Epoch),
            Leaves::Evicted => Some(MissReason::Evicted),
            Leaves::Quota => Some(MissReason::Quota),
            Leaves::Expired => Some(MissReason::Expired),
            Leaves::Outdated => Some(MissReason::Epoch),
            Leaves::Corrupt => Some(MissReason::Corrupt),
            Leaves::Dropped => None,
        };
        if why == Leaves::Corrupt {
            log::say(Event::BlockCorrupt, |line| self.name(line, entry.ns, Some(entry.key)));
        }
        match reason {
            Some(reason) => {
                let when = makes_room.then_some(evictions);
                self.ghosts.remember(era, entry.key, reason, when);
            }
            None => self.ghosts.forget(era, entry.key),
        }
        self.tenants[number].blocks -= 1;
        match (is_live, outdated) {
            (true, _) => self.count_leaving(number, why),
            (false, MissReason::Epoch) => self.count_leaving(number, Leaves::Outdated),
            _ => {} // counted when its namespace was dropped
        }
        if self.index.slots.is_pinned(slot) {
            self.index.meta_mut(slot).condemn();
            self.namespaces.at_mut(entry.ns).condemned += 1;
        } else {
            self.free_block(slot);
        }
    }

    fn count_leaving(&mut self, tenant: usize, why: Leaves) {
        let counters = &mut self.tenants[tenant].counters;
        let count = match why {
            Leaves::Evicted => &mut counters.evicted,
            Leaves::Quota => &mut counters.evicted_for_quota,
            Leaves::Expired => &mut counters.expired,
            Leaves::Outdated => &mut counters.outdated,
            Leaves::Dropped => &mut counters.dropped,
            Leaves::Corrupt => &mut counters.corrupt,
        };
        *count += 1;
    }

    /// Frees a condemned block that nothing pins any more.
    #[inline]
    pub fn free_if_last_pin(&mut self, slot: Slot) {
        if self.index.meta(slot).state() == State::Condemned && !self.index.slots.is_pinned(slot) {
            let ns = self.index.entry(slot).ns;
            self.namespaces.at_mut(ns).condemned -= 1;
            self.free_block(slot);
        }
    }

    /// Frees space and slot of a block that is neither listed nor pinned.
    fn free_block(&mut self, slot: Slot) {
        let ns = self.index.entry(slot).ns;
        let tenant = self.namespaces.at(ns).tenant;
        let mut granules = 0;
        let allocator = &mut self.allocator;
        self.parts.clear(slot, |extents| {
            granules += u64::from(extents.granules());
            allocator.free(extents);
        });
        self.tenants[tenant].used -= granules;
        self.namespaces.at_mut(ns).granules -= granules;
        self.index.free(slot);
    }

    /// Hides all complete blocks of a namespace at once, without a look at any, and cancels the
    /// incomplete ones, whose number is bounded. Returns how many were visible.
    pub fn hide_namespace(&mut self, ns: u16) -> u64 {
        for slot in self.fillings.slots() {
            if self.index.entry(slot).ns == ns {
                self.cancel(slot);
            }
        }
        let space = self.namespaces.at_mut(ns);
        let (hidden, on_flash) = space.hide_all();
        self.hidden += hidden;
        let (tenant, version) = (space.tenant, space.version);
        self.events.push(tenant, NamespaceId(ns), EventKind::Cleared);
        self.hid_on_flash(ns, on_flash);
        if version == u32::MAX {
            self.purge(ns);
            self.namespaces.at_mut(ns).restart_versions();
        }
        hidden
    }

    /// Takes back every hidden block of a namespace: once in 2^32 versions, so that none is
    /// mistaken for one of a later version.
    fn purge(&mut self, ns: u16) {
        let version = self.namespaces.at(ns).version;
        for slot in 0..self.index.capacity() {
            if self.index.entry(slot).ns == ns {
                let seen = self.see(slot, version, 0);
                self.take_back(slot, seen);
            }
        }
    }

    /// Charges a writer's space to its tenant.
    pub fn charge_writer(&mut self, ns: u16, extents: &Extents) {
        let granules = u64::from(extents.granules());
        let space = self.namespaces.at_mut(ns);
        space.writers += 1;
        space.granules += granules;
        let tenant = &mut self.tenants[space.tenant];
        tenant.used += granules;
        tenant.writing += granules;
        self.writing += granules;
    }

    /// The writer is done: its space is the block's now (`keep`), or free.
    pub fn settle_writer(&mut self, ns: u16, extents: &Extents, keep: bool) {
        let granules = u64::from(extents.granules());
        let space = self.namespaces.at_mut(ns);
        space.writers -= 1;
        self.writing -= granules;
        let tenant = &mut self.tenants[space.tenant];
        tenant.writing -= granules;
        if !keep {
            space.granules -= granules;
            tenant.used -= granules;
            self.allocator.free(extents);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::ManualClock;
    use crate::config::StoreConfig;
    use crate::identity::{ChainKey, FIELDS, Kind, NamespaceSpec, TenantSecret, Value};
    use crate::outcome::{BlockPut, Reserve};
    use crate::store::Store;
    use crate::types::Epoch;

    fn spec() -> NamespaceSpec {
        let fields = FIELDS.iter().map(|field| {
            let value = match field.kind {
                Kind::Count(_) | Kind::Geometry => Value::Int(1),
                _ => Value::Str("default".into()),
            };
            (field.name.to_string(), value)
        });
        NamespaceSpec::new(fields).expect("a namespace")
    }

    /// The last version before the count starts again: nothing of an old version comes back, and
    /// a block that is still pinned stays pinned.
    #[test]
    fn versions_start_again_without_bringing_blocks_back() {
        let store = Store::open(StoreConfig::new(1 << 20), Arc::new(ManualClock::new())).unwrap();
        let session = store.session();
        let spec = spec();
        let check = ChainKey::new(&spec, &TenantSecret::public_default()).key_check();
        let ns = session.attach(spec.encoding(), check, Epoch(0)).unwrap().id;
        store.lock().namespaces.at_mut(ns.0).version = u32::MAX - 1;
        let put = |number| {
            let key = BlockKey([number; 16]);
            let put = BlockPut { key, part: 0, len: 5, engine_hash: None };
            let Reserve::Granted(mut grant) = session.reserve(ns, Epoch(0), put) else {
                panic!("room")
            };
            let checksum = grant.write_from(b"bytes");
            grant.commit(checksum);
            key
        };
        let keys = [put(1), put(2)];
        let pin = session.read(ns, Epoch(0), keys[0], 0).unwrap();
        assert_eq!(session.drop_namespace(ns).unwrap(), 2);
        assert_eq!(store.lock().namespaces.at(ns.0).version, 0, "started again");
        assert_eq!(session.lookup(ns, Epoch(0), &keys, 0, None).prefix, 0);
        store.check().unwrap();
        put(3);
        drop(pin);
        store.check().unwrap();
        assert_eq!(store.stats().blocks, 1);
    }
}
