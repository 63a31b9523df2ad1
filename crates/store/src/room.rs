//! Making room: what leaves, whose, and what moves so that free space joins.
//!
//! In this order: a tenant beyond its quota gives of its own; hidden blocks go before any other;
//! then the tenant furthest above its share (use over quota, over the arena where it has none)
//! gives the block that its policy names; and where enough is free but scattered, blocks move.
//! Pinned blocks stay. The work of one put is bounded.

use parking_lot::MutexGuard;

use crate::arena::{Arena, Extents};
use crate::arena_bytes::copy_between;
use crate::blocks::Leaves;
use crate::index::parts::{Place, pool_need};
use crate::index::{Slot, State};
use crate::inner::{Inner, Seen};
use crate::policy::Policy;
use crate::tenants::furthest_above;
use crate::types::{Instant, ShedReason};

/// Slots that one eviction looks at for hidden blocks.
const SWEEP_EACH: u32 = 64;
/// Slots that a policy may look at for one block to evict.
const LOOKS_MAX: u32 = 4096;
/// Windows that one put clears by moving blocks; then it evicts.
const WINDOWS_MAX: u32 = 2;

/// Space that a put needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub ns: u16,
    pub part: u8,
    pub granules: u32,
    /// The block is not in the index yet.
    pub is_new: bool,
    pub now: Instant,
}

/// Finds space for a part: a slot, part records, and extents. May let go of the lock while bytes
/// move; the caller looks again at what it knew.
pub(crate) fn make_room(
    inner: &mut MutexGuard<'_, Inner>,
    arena: &Arena,
    need: Need,
) -> Result<Extents, ShedReason> {
    let mut windows = 0;
    loop {
        inner.make_quota_room(need)?;
        let records = inner.records_promised + pool_need(need.part);
        let lacks_slot = need.is_new && inner.index.is_full();
        if lacks_slot || inner.parts.pool_free() < records {
            inner.evict_one(need.now)?;
            continue;
        }
        if let Some(extents) = inner.allocator.alloc(need.granules) {
            return Ok(extents);
        }
        if windows < WINDOWS_MAX && inner.allocator.free_granules() >= need.granules {
            windows += 1;
            if clear_window(inner, arena, need.granules) {
                continue;
            }
        }
        inner.evict_one(need.now)?;
    }
}

impl Inner {
    /// Lets a tenant's own blocks go until the part fits its quota.
    fn make_quota_room(&mut self, need: Need) -> Result<(), ShedReason> {
        let number = self.namespaces.at(need.ns).tenant;
        let Some(quota) = self.tenants[number].quota() else { return Ok(()) };
        if u64::from(need.granules) > quota {
            return Err(ShedReason::Quota);
        }
        while self.tenants[number].used + u64::from(need.granules) > quota {
            if !self.evict_of(number, need.now, Leaves::Quota) {
                return Err(ShedReason::Quota);
            }
        }
        Ok(())
    }

    /// Lets one block go, whoever's it is.
    fn evict_one(&mut self, now: Instant) -> Result<(), ShedReason> {
        if self.hidden > 0 && self.sweep(SWEEP_EACH, now) > 0 {
            return Ok(());
        }
        let arena = u64::from(self.allocator.granules());
        let mut tried = vec![false; self.tenants.len()];
        while let Some(tenant) = furthest_above(&self.tenants, arena, &tried) {
            if self.evict_of(tenant, now, Leaves::Evicted) {
                return Ok(());
            }
            tried[tenant] = true;
        }
        let is_pinned = self.leased > 0 || self.reads > 0;
        Err(if is_pinned { ShedReason::Leased } else { ShedReason::Busy })
    }

    /// Lets the block go that the tenant's policy names. False: all that it named are pinned.
    fn evict_of(&mut self, tenant: usize, now: Instant, why: Leaves) -> bool {
        let policy = &mut self.tenants[tenant].policy;
        let looks = policy.len().saturating_mul(2).saturating_add(2).min(LOOKS_MAX);
        let victim =
            policy.evict(&mut self.index.slots, looks, |slots, slot| !slots.is_pinned(slot));
        let Some(slot) = victim else { return false };
        let version = self.namespaces.at(self.index.entry(slot).ns).version;
        let why = match self.see(slot, version, self.tick_of(now)) {
            Seen::Expired => Leaves::Expired,
            _ => why,
        };
        self.hide_unordered(slot, why);
        true
    }

    /// Looks at the next `slots` slots for blocks that are hidden or whose time has ended, and
    /// takes them back. Returns how many.
    pub fn sweep(&mut self, slots: u32, now: Instant) -> u32 {
        let (tick, capacity, mut taken) = (self.tick_of(now), self.index.capacity(), 0);
        for _ in 0..slots.min(capacity) {
            let slot = self.sweep_at;
            self.sweep_at = if slot + 1 == capacity { 0 } else { slot + 1 };
            if self.index.meta(slot).state() != State::Ready {
                continue;
            }
            let version = self.namespaces.at(self.index.entry(slot).ns).version;
            let seen = self.see(slot, version, tick);
            if seen != Seen::Ready {
                self.take_back(slot, seen);
                taken += 1;
            }
        }
        taken
    }

    /// Brings tenants whose quota shrank back under it, a bounded number of blocks a call.
    pub fn shrink(&mut self, blocks: u32, now: Instant) {
        for number in 0..self.tenants.len() {
            let Some(quota) = self.tenants[number].quota() else { continue };
            for _ in 0..blocks {
                if self.tenants[number].used <= quota || !self.evict_of(number, now, Leaves::Quota)
                {
                    break;
                }
            }
        }
    }
}

/// Joins scattered free space: moves the blocks out of the cheapest window of the arena. True if
/// something changed, so that another try makes sense.
fn clear_window(inner: &mut MutexGuard<'_, Inner>, arena: &Arena, granules: u32) -> bool {
    let Inner { allocator, index, parts, .. } = &mut **inner;
    let window = allocator.window_to_clear(granules, |slot| {
        let movable = index.meta(slot).state() == State::Ready && !index.slots.is_pinned(slot);
        movable.then(|| parts.summary(slot).granules)
    });
    let Some(window) = window else { return false };
    inner.allocator.hold(window);
    let (mut at, mut moved) = (window.first_granule, false);
    while let Some((slot, _)) = inner.allocator.next_owner(window, at) {
        if !move_block(inner, arena, slot, window.first_granule..window.end()) {
            // Pinned meanwhile: the window cannot be emptied.
            break;
        }
        moved = true;
        at = window.first_granule;
    }
    inner.allocator.release();
    moved
}

/// Moves those parts of a block that lie in the window to other places, or evicts the block where
/// there is none. False when it is pinned.
fn move_block(
    inner: &mut MutexGuard<'_, Inner>,
    arena: &Arena,
    slot: Slot,
    window: std::ops::Range<u32>,
) -> bool {
    loop {
        if inner.index.meta(slot).state() != State::Ready || inner.index.slots.is_pinned(slot) {
            return false;
        }
        let mut next: Option<Place> = None;
        inner.parts.visit(slot, |place| {
            let overlaps = place
                .extents
                .iter()
                .any(|e| e.first_granule < window.end && window.start < e.end());
            if overlaps {
                next = Some(place);
            }
        });
        let Some(place) = next else { return true };
        let has_records = inner.parts.pool_free() >= inner.records_promised + pool_need(place.part);
        let room = if has_records { inner.allocator.alloc(place.extents.granules()) } else { None };
        let Some(room) = room else {
            inner.hide(slot, Leaves::Evicted);
            return true;
        };
        match move_part(inner, arena, slot, &place, &room) {
            Moved::Done => {}
            Moved::Gone => return true,
            Moved::Pinned => return false,
        }
    }
}

enum Moved {
    Done,
    Gone,
    Pinned,
}

/// Copies one part to `room` without the lock, under a pin, checks what it copied, and makes that
/// the part's place unless someone pinned or removed the block meanwhile.
fn move_part(
    inner: &mut MutexGuard<'_, Inner>,
    arena: &Arena,
    slot: Slot,
    place: &Place,
    room: &Extents,
) -> Moved {
    if !inner.pin_read(slot) {
        inner.allocator.free(room);
        return Moved::Pinned;
    }
    inner.records_promised += pool_need(place.part);
    let hash = MutexGuard::unlocked(inner, || {
        // SAFETY: the read pin above holds the old place, and `room` is not anyone's yet.
        // `tests/stress.rs` would see bytes of another block.
        unsafe { copy_between(arena, room, &place.extents, place.length as usize) }
    });
    inner.records_promised -= pool_need(place.part);
    let is_listed = inner.index.meta(slot).state() == State::Ready;
    inner.unpin_read(slot);
    if !is_listed {
        inner.allocator.free(room);
        return Moved::Gone;
    }
    if inner.index.slots.is_pinned(slot) {
        inner.allocator.free(room);
        return Moved::Pinned;
    }
    if hash != place.checksum {
        inner.allocator.free(room);
        inner.hide(slot, Leaves::Corrupt);
        return Moved::Gone;
    }
    let generation = inner.next_generation();
    let old = inner.parts.relocate(slot, place.part, room, generation);
    let old = old.expect("the part of a pinned block stays");
    inner.allocator.set_owner(room, Some(slot));
    inner.allocator.free(&old);
    let tenant = inner.tenant_of(slot);
    inner.tenants[tenant].counters.relocated += 1;
    Moved::Done
}
