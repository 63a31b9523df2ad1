//! What a call sees on flash, and every way in which a block leaves it.

use super::entry::{ColdSlot, VERSION_BITS};
use super::queue::{ON_FLASH, RETURNING, USED_SINCE};
use super::state::Cold;
use crate::blocks::Leaves;
use crate::events::EventKind;
use crate::index::table::Named;
use crate::index::{CHUNK, NONE, Slot, State};
use crate::inner::{Inner, Seen};
use crate::outcome::Hit;
use crate::tiers::{PAGE_BYTES, Spot};
use crate::types::{BlockKey, Generation, Instant, MissReason, NamespaceId, Tier};

/// Why a block leaves flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Makes room for others.
    Evicted,
    /// Its time ended.
    Expired,
    /// Its namespace moved on to a later version.
    Outdated,
    /// Dropped by key, or its namespace's place goes to another.
    Dropped,
    /// Its bytes are bad.
    Corrupt,
    /// Its device is gone.
    Lost,
    /// There is a newer copy on flash.
    Replaced,
}

impl Cold {
    /// What there is at a slot for a call at tick `now`.
    #[inline]
    pub fn see(&self, slot: ColdSlot, version: u32, now: u32) -> Seen {
        let (entry, expiry) = (self.index.entry(slot), self.index.place(slot).expiry);
        if !entry.is_listed() {
            Seen::Nothing
        } else if !entry.is_of_version(version) {
            Seen::Hidden
        } else if expiry != 0 && expiry <= now {
            Seen::Expired
        } else {
            Seen::Ready
        }
    }

    /// What a lookup says of a block that is on flash alone, and the bytes that come back with it.
    pub fn hit(&self, slot: ColdSlot) -> (Hit, u64) {
        let entry = self.index.entry(slot);
        let life = self.index.segment(self.index.segment_of(slot)).at.life;
        let hit = Hit {
            tier: Tier::Flash,
            length: entry.length,
            generation: Generation(life),
            checksum: entry.checksum,
        };
        (hit, u64::from(self.index.place(slot).pages()) * PAGE_BYTES as u64)
    }

    /// Finds those keys of a chunk that memory does not have: `NONE` for the others, and where
    /// there is nothing to see.
    pub fn find_chunk(
        &self,
        ns: u16,
        keys: &[BlockKey],
        found: &mut [ColdSlot],
        (version, now): (u32, u32),
    ) {
        self.index.find_chunk(ns, keys, found);
        found.iter().for_each(|slot| self.index.prefetch_place(*slot));
        for slot in found.iter_mut().filter(|slot| **slot != NONE) {
            if self.see(*slot, version, now) != Seen::Ready {
                *slot = NONE;
            }
        }
    }
}

impl Inner {
    /// For each key of a chunk that memory does not have ready, its slot on flash.
    pub fn find_flash_chunk(
        &self,
        ns: u16,
        keys: &[BlockKey],
        slots: &[Slot],
        now: (u32, u32),
        found: &mut [ColdSlot; CHUNK],
    ) {
        let Some(cold) = &self.cold else { return };
        let mut is_any = false;
        for (found, slot) in found.iter_mut().zip(slots) {
            let is_here = match self.see(*slot, now.0, now.1) {
                Seen::Ready => true,
                Seen::Filling => !cold.marks.has(*slot, RETURNING),
                Seen::Hidden | Seen::Expired | Seen::Nothing => false,
            };
            *found = if is_here { NONE } else { 0 };
            is_any |= !is_here;
        }
        if is_any {
            cold.find_chunk(ns, keys, &mut found[..keys.len()], now);
        }
    }

    /// The slot on flash of a visible block. Takes a hidden or expired one back.
    pub fn find_flash(&mut self, ns: u16, key: BlockKey, now: Instant) -> Option<ColdSlot> {
        let cold = self.cold.as_ref()?;
        let slot = cold.index.find(ns, key)?;
        match cold.see(slot, self.namespaces.at(ns).version, self.tick_of(now)) {
            Seen::Ready => return Some(slot),
            Seen::Hidden => self.leave_flash(slot, Left::Outdated),
            Seen::Expired => self.leave_flash(slot, Left::Expired),
            Seen::Filling | Seen::Nothing => {}
        }
        None
    }

    /// A lookup found so many blocks on flash alone, of so many bytes in its prefix: the time to
    /// bring those back, nanoseconds.
    pub fn found_on_flash(&mut self, ns: u16, blocks: usize, bytes: u64) -> u64 {
        let tenant = self.namespaces.at(ns).tenant;
        let Some(cold) = &mut self.cold else { return 0 };
        cold.tenants[tenant].counters.lookup_hits += blocks as u64;
        cold.restore_ns(bytes)
    }

    /// Holds the segments of these blocks, each once; all or none: there are as many held as may
    /// be.
    pub fn pin_segments(&mut self, slots: &[ColdSlot], segments: &mut Vec<u32>) -> bool {
        let Some(cold) = &mut self.cold else { return false };
        segments.extend(slots.iter().map(|slot| cold.index.segment_of(*slot)));
        segments.sort_unstable();
        segments.dedup();
        segments.shrink_to_fit();
        let more = segments.iter().filter(|number| cold.index.segment(**number).pins == 0).count();
        if cold.pinned + more as u32 > cold.pinned_max {
            segments.clear();
            return false;
        }
        segments.iter().for_each(|number| cold.pin(*number));
        true
    }

    /// What the tier has yet to hear.
    pub fn take_forgotten(&mut self) -> Vec<(Spot, u64)> {
        self.cold.as_mut().map_or_else(Vec::new, |cold| cold.take_forgotten())
    }

    /// Namespace and key of the visible block in a slot of flash, if memory does not have it too.
    pub fn visible_on_flash_alone(&self, slot: ColdSlot) -> Option<(u16, BlockKey, Option<u64>)> {
        let entry = self.cold.as_ref()?.index.entry(slot);
        let (ns, key) = (entry.ns(), entry.key);
        let is_visible = entry.is_listed() && entry.is_of_version(self.namespaces.at(ns).version);
        let in_memory = self.index.find(ns, key).map(|slot| self.index.meta(slot).state());
        (is_visible && in_memory != Some(State::Ready)).then_some((ns, key, None))
    }

    /// Bytes of the first part of a visible block on flash; asking for it is a use.
    pub fn flash_length(&mut self, ns: u16, key: BlockKey, now: Instant) -> Option<u32> {
        let slot = self.find_flash(ns, key, now)?;
        let entry = self.cold.as_mut()?.index.entry_mut(slot);
        entry.set_used();
        Some(entry.length)
    }

    /// Whether an incomplete block is one that comes back from flash: it is here all the while.
    #[inline]
    pub fn is_returning(&self, slot: Slot) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.marks.has(slot, RETURNING))
    }

    /// Takes a listed block out of the flash index. What memory has of it stays.
    pub fn leave_flash(&mut self, slot: ColdSlot, why: Left) {
        let Some(cold) = &mut self.cold else { return };
        let entry = *cold.index.entry(slot);
        let (ns, key) = (entry.ns(), entry.key);
        let space = self.namespaces.at_mut(ns);
        let (number, era, version) = (space.tenant, space.era, space.version);
        cold.forget(slot, space.spec.parts());
        cold.index.unlist(slot);
        let age = version.wrapping_sub(entry.version()) & ((1 << VERSION_BITS) - 1);
        let is_live = age == 0;
        let hidden_as = space.hidden_reason(version.wrapping_sub(age));
        let in_memory = self.index.find(ns, key);
        if let Some(memory) = in_memory
            && cold.marks.has(memory, ON_FLASH)
        {
            cold.marks.clear(memory, ON_FLASH | USED_SINCE);
            space.in_both -= u64::from(is_live);
        }
        if !is_live {
            space.flash_hidden -= 1;
            cold.hidden -= 1;
        } else {
            space.flash_live -= 1;
        }
        if is_live && why != Left::Replaced {
            let kind = EventKind::Removed { key, engine_hash: None, tier: Tier::Flash };
            self.events.push(number, NamespaceId(ns), kind);
        }
        let counters = &mut cold.tenants[number].counters;
        match why {
            Left::Replaced => {}
            _ if !is_live && hidden_as == MissReason::Absent => {} // counted with its namespace
            _ if !is_live => counters.outdated += 1,
            Left::Evicted => counters.evicted += 1,
            Left::Expired => counters.expired += 1,
            Left::Outdated => counters.outdated += 1,
            Left::Dropped => counters.dropped += 1,
            Left::Corrupt => counters.corrupt += 1,
            Left::Lost => counters.lost += 1,
        }
        if in_memory.is_some() || why == Left::Replaced {
            return;
        }
        let reason = match why {
            _ if !is_live => Some(hidden_as).filter(|reason| *reason == MissReason::Epoch),
            Left::Evicted => Some(MissReason::Evicted),
            Left::Expired => Some(MissReason::Expired),
            Left::Outdated => Some(MissReason::Epoch),
            Left::Corrupt => Some(MissReason::Corrupt),
            Left::Dropped | Left::Lost | Left::Replaced => None,
        };
        match reason {
            Some(reason) => self.ghosts.remember(era, key, reason, None),
            None => self.ghosts.forget(era, key),
        }
    }

    /// A copy of a visible block of memory is on flash.
    pub fn mark_on_flash(&mut self, slot: Slot, marks: u8) {
        let Some(cold) = &mut self.cold else { return };
        if !cold.marks.has(slot, ON_FLASH) {
            self.namespaces.at_mut(self.index.entry(slot).ns).in_both += 1;
        }
        cold.marks.set(slot, ON_FLASH | marks);
    }

    /// A namespace was dropped with so many blocks that were on flash alone.
    pub fn count_dropped_on_flash(&mut self, ns: u16, blocks: u64) {
        let tenant = self.namespaces.at(ns).tenant;
        if let Some(cold) = &mut self.cold {
            cold.tenants[tenant].counters.dropped += blocks;
        }
    }

    /// A block leaves memory: what becomes of its copy on flash. True: that copy stays, so the
    /// block is still here.
    pub fn leaves_memory(&mut self, slot: Slot, why: Leaves) -> bool {
        let Some(cold) = &mut self.cold else { return false };
        let marks = cold.marks.take(slot);
        if marks & ON_FLASH == 0 {
            return false;
        }
        let entry = *self.index.entry(slot);
        let space = self.namespaces.at_mut(entry.ns);
        space.in_both -= u64::from(entry.version == space.version);
        let Some(flash) = cold.index.find(entry.ns, entry.key) else { return false };
        if marks & USED_SINCE != 0 {
            cold.index.entry_mut(flash).set_used();
        }
        match why {
            Leaves::Evicted | Leaves::Quota => return true,
            Leaves::Expired => self.leave_flash(flash, Left::Expired),
            Leaves::Outdated => self.leave_flash(flash, Left::Outdated),
            Leaves::Dropped => self.leave_flash(flash, Left::Dropped),
            Leaves::Corrupt => self.leave_flash(flash, Left::Corrupt),
        }
        false
    }

    /// Looks at the next slots for entries that are hidden or whose time has ended.
    pub fn sweep_flash(&mut self, slots: u32, now: Instant) {
        let tick = self.tick_of(now);
        for _ in 0..slots {
            let Some(cold) = &mut self.cold else { return };
            let slot = cold.sweep_at;
            cold.sweep_at = if slot + 1 == cold.index.capacity() { 0 } else { slot + 1 };
            let entry = cold.index.entry(slot);
            if !entry.is_listed() {
                continue;
            }
            let version = self.namespaces.at(entry.ns()).version;
            match cold.see(slot, version, tick) {
                Seen::Hidden => self.leave_flash(slot, Left::Outdated),
                Seen::Expired => self.leave_flash(slot, Left::Expired),
                Seen::Ready | Seen::Filling | Seen::Nothing => {}
            }
        }
    }

    /// All of a namespace's blocks on flash became hidden at once. Before the bits that an entry
    /// keeps of its version come round again, all of them leave. Asked twice in a round, so that
    /// those that were hidden just now can wait for the next time; the sweep has found the others
    /// long before, and then nothing is walked through under the lock.
    pub fn hid_on_flash(&mut self, ns: u16, hidden: u64) {
        let space = self.namespaces.at(ns);
        let (version, older) = (space.version, space.flash_hidden - hidden);
        let Some(cold) = &mut self.cold else { return };
        cold.hidden += hidden;
        let is_due = version.is_multiple_of(1 << (VERSION_BITS - 1)) && older > 0;
        if is_due || version == u32::MAX {
            self.clear_flash_of(ns, 0..u32::MAX, Left::Outdated);
        }
    }

    /// Takes the blocks of a namespace out that lie in these slots.
    pub fn clear_flash_of(&mut self, ns: u16, slots: std::ops::Range<u32>, why: Left) {
        let capacity = self.cold.as_ref().map_or(0, |cold| cold.index.capacity());
        for slot in slots.start..slots.end.min(capacity) {
            let Some(cold) = &self.cold else { return };
            let entry = cold.index.entry(slot);
            if entry.is_listed() && entry.ns() == ns {
                self.leave_flash(slot, why);
            }
        }
    }
}
