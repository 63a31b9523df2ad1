//! Making room: what leaves, whose, and what moves so that free space joins.
//!
//! In this order: a tenant beyond its quota gives of its own; hidden blocks go before any other;
//! then the tenant furthest above its share (`shares.rs`), or the asking one, gives the block that
//! its order names (`classes.rs`); and where enough is free but scattered, blocks move.
//! Pinned blocks stay. What one put evicts and moves is bounded by a small multiple of what it
//! needs, and it lets go of the lock between steps; what does not suffice then is shed.

use parking_lot::MutexGuard;

use crate::arena::{Arena, Extents};
use crate::arena_bytes::copy_between;
use crate::blocks::Leaves;
use crate::classes::Picked;
use crate::index::parts::{Place, part_need, pool_need};
use crate::index::{Slot, State};
use crate::inner::{Inner, Seen};
use crate::shares::{Scarce, Whole, who_gives};
use crate::types::{Instant, ShedReason};

/// Slots that one eviction looks at for hidden blocks.
const SWEEP_EACH: u32 = 64;
/// Slots that a policy may look at for one block to evict, under one hold of the lock.
pub const LOOKS_MAX: u32 = 4096;
/// How many times one put lets a policy look at that many.
pub const LOOKS_TURNS: u32 = 64;
/// Windows that one put clears by moving blocks: a block may need one for each of its extents.
const WINDOWS_MAX: u32 = 8;
/// Blocks that leave under one hold of the lock.
const HOLD_MAX: u32 = 256;
/// One put evicts at most this many times what it needs ...
const EVICTED_TIMES: u32 = 4;
/// ... and one part in this many of the arena, below which no window is cleared ...
const EVICTED_SHARE: u32 = 32;
/// ... and so many granules, for slots and part records.
const EVICTED_MORE: u32 = 64;
/// After a search in vain, the next one is worth its time when one part in this many of what is
/// needed has left.
const RETRY_SHARE: u32 = 64;

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

/// Which blocks may make room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Any,
    /// Any; entries are what is scarce.
    Entry,
    /// Those that hold records of the parts' pool: no other brings one back.
    Pooled,
}

/// What came of an eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evicted {
    /// So many granules left, or as many hidden blocks.
    Some(u32),
    /// All that were looked at are pinned; there are more.
    OutOfLooks,
    Nothing,
}

/// What one put may still do to others' blocks.
struct Work {
    /// Granules that may leave.
    left: u32,
    /// Evictions under this hold of the lock.
    held: u32,
    turns: u32,
    windows: u32,
    /// Granules to leave before the next search for space.
    until_retry: u32,
    is_possible: bool,
}

impl Work {
    fn new(need: Need, arena: u32) -> Work {
        let left = need.granules.saturating_mul(EVICTED_TIMES);
        let left = left.saturating_add(arena / EVICTED_SHARE + EVICTED_MORE);
        Work { left, held: 0, turns: 0, windows: 0, until_retry: 0, is_possible: false }
    }

    /// Lets others have the lock between bounded steps.
    fn breathe(&mut self, inner: &mut MutexGuard<'_, Inner>) {
        if self.held >= HOLD_MAX {
            self.held = 0;
            MutexGuard::bump(inner);
        }
    }

    /// Whether one block more may leave for this put; asked before each.
    fn permit(&mut self, inner: &Inner, need: Need) -> Result<(), ShedReason> {
        if self.left == 0 {
            return Err(inner.why_full());
        }
        if !self.is_possible && !inner.could_fit(need.granules) {
            return Err(inner.why_full());
        }
        self.is_possible = true;
        Ok(())
    }

    fn count(&mut self, evicted: Evicted, reason: ShedReason) -> Result<(), ShedReason> {
        match evicted {
            Evicted::Some(granules) => {
                self.held += 1;
                self.left = self.left.saturating_sub(granules.max(1));
                self.until_retry = self.until_retry.saturating_sub(granules);
                Ok(())
            }
            Evicted::OutOfLooks if self.turns < LOOKS_TURNS => {
                self.turns += 1;
                self.held = HOLD_MAX;
                Ok(())
            }
            Evicted::OutOfLooks | Evicted::Nothing => Err(reason),
        }
    }
}

/// Finds space for a part: a slot, part records, and extents. May let go of the lock while bytes
/// move and between bounded steps; the caller looks again at what it knew.
pub(crate) fn make_room(
    inner: &mut MutexGuard<'_, Inner>,
    arena: &Arena,
    need: Need,
) -> Result<Extents, ShedReason> {
    let mut work = Work::new(need, inner.allocator.granules());
    loop {
        work.breathe(inner);
        if let Some(tenant) = inner.over_quota(need)? {
            work.permit(inner, need).map_err(|_| ShedReason::Quota)?;
            let evicted = inner.evict_of(tenant, need.now, Leaves::Quota, Which::Any);
            work.count(evicted, ShedReason::Quota)?;
            continue;
        }
        let lacks_slot = need.is_new && inner.index.is_full();
        let mut lacks_records = !inner.has_records(part_need(need.part));
        if !lacks_slot && !lacks_records && work.until_retry == 0 {
            if let Some(extents) = inner.allocator.alloc(need.granules) {
                if inner.has_records(pool_need(need.part, &extents)) {
                    return Ok(extents);
                }
                inner.allocator.free(&extents);
                lacks_records = true;
            } else if inner.allocator.free_granules() >= need.granules {
                if work.windows < WINDOWS_MAX && clear_window(inner, arena, need.granules) {
                    work.windows += 1;
                    continue;
                }
                work.until_retry = need.granules / RETRY_SHARE;
            }
        }
        work.permit(inner, need)?;
        if lacks_records {
            let evicted = inner.evict_one(need, Which::Pooled);
            work.count(evicted, ShedReason::Busy)?;
        } else {
            let which = if lacks_slot { Which::Entry } else { Which::Any };
            let evicted = inner.evict_one(need, which);
            work.count(evicted, inner.why_nobody_gives())?;
        }
    }
}

impl Inner {
    /// The part's tenant, if blocks of its own must leave for its quota.
    fn over_quota(&self, need: Need) -> Result<Option<usize>, ShedReason> {
        let number = self.namespaces.at(need.ns).tenant;
        let tenant = &self.tenants[number];
        let Some(quota) = tenant.quota() else { return Ok(None) };
        let granules = u64::from(need.granules);
        // What is leased or being written stays whatever leaves.
        if tenant.leased + tenant.writing + granules > quota {
            self.say_over_quota(number);
            return Err(ShedReason::Quota);
        }
        Ok((tenant.used + granules > quota).then_some(number))
    }

    /// Whether the pool has so many records that nobody was promised.
    fn has_records(&self, records: u32) -> bool {
        self.parts.pool_free() >= self.records_promised + records
    }

    /// Whether a part could lie somewhere if every block left that may.
    fn could_fit(&self, granules: u32) -> bool {
        if self.leased == 0 && self.reads == 0 && self.writing == 0 && self.fillings.len() == 0 {
            return true;
        }
        self.allocator.could_fit(granules, |slot| self.may_move(slot))
    }

    fn may_move(&self, slot: Slot) -> bool {
        self.index.meta(slot).state() == State::Ready && !self.index.slots.is_pinned(slot)
    }

    /// Why nobody gives: with several tenants, what is left is within their shares.
    fn why_nobody_gives(&self) -> ShedReason {
        match self.why_full() {
            ShedReason::Busy if self.tenants.len() > 1 => ShedReason::Quota,
            reason => reason,
        }
    }

    fn why_full(&self) -> ShedReason {
        let is_pinned = self.leased > 0 || self.reads > 0;
        if is_pinned { ShedReason::Leased } else { ShedReason::Busy }
    }

    /// Lets one block go, of whoever has to give.
    fn evict_one(&mut self, need: Need, which: Which) -> Evicted {
        if self.hidden > 0 {
            let taken = self.sweep(SWEEP_EACH, need.now);
            if taken > 0 {
                return Evicted::Some(taken);
            }
        }
        let granules = u64::from(self.allocator.granules());
        let whole = Whole { granules, entries: self.index.capacity().into() };
        let asking = self.namespaces.at(need.ns).tenant;
        let (scarce, is_scattered) = match which {
            Which::Any => (Scarce::Space, self.allocator.free_granules() >= need.granules),
            Which::Entry => (Scarce::Entries, false),
            // Part records are nobody's share.
            Which::Pooled => (Scarce::Entries, true),
        };
        let mut tried = vec![false; self.tenants.len()];
        loop {
            let gives = who_gives(&self.tenants, asking, scarce, whole, is_scattered, &tried);
            let Some(tenant) = gives else { return Evicted::Nothing };
            match self.evict_of(tenant, need.now, Leaves::Evicted, which) {
                Evicted::Nothing => tried[tenant] = true,
                evicted => return evicted,
            }
        }
    }

    /// Lets the block go that the tenant's order names.
    fn evict_of(&mut self, tenant: usize, now: Instant, why: Leaves, which: Which) -> Evicted {
        let (parts, order) = (&self.parts, &mut self.tenants[tenant].order);
        let is_for_pool = which == Which::Pooled;
        if is_for_pool {
            order.rewind_all();
        }
        let picked = order.evict(&mut self.index.slots, LOOKS_MAX, |slots, slot| {
            !slots.is_pinned(slot) && (!is_for_pool || parts.has_pooled(slot))
        });
        if is_for_pool {
            // It passed over blocks that may leave for another reason.
            order.rewind_all();
        }
        let slot = match picked {
            Picked::Slot(slot) => slot,
            Picked::OutOfLooks if !is_for_pool => return Evicted::OutOfLooks,
            Picked::OutOfLooks | Picked::Nothing => return Evicted::Nothing,
        };
        let version = self.namespaces.at(self.index.entry(slot).ns).version;
        let why = match self.see(slot, version, self.tick_of(now)) {
            Seen::Expired => Leaves::Expired,
            _ => why,
        };
        let granules = self.parts.summary(slot).granules;
        self.hide_unordered(slot, why);
        Evicted::Some(granules)
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
                if self.tenants[number].used <= quota {
                    break;
                }
                if self.evict_of(number, now, Leaves::Quota, Which::Any) == Evicted::Nothing {
                    break;
                }
            }
        }
    }
}

/// Joins scattered free space: moves the blocks out of the cheapest window of the arena. False if
/// there is no such window: then blocks have to leave.
fn clear_window(inner: &mut MutexGuard<'_, Inner>, arena: &Arena, granules: u32) -> bool {
    let Inner { allocator, index, parts, .. } = &mut **inner;
    let window = allocator.window_to_clear(granules, |slot| {
        let movable = index.meta(slot).state() == State::Ready && !index.slots.is_pinned(slot);
        movable.then(|| parts.summary(slot).granules)
    });
    let Some(window) = window else { return false };
    inner.allocator.hold(window);
    let mut at = window.first_granule;
    while let Some((slot, next)) = inner.allocator.next_owner(window, at) {
        if !move_block(inner, arena, slot, window.first_granule..window.end()) {
            // Pinned meanwhile, or there is no place for it: the window cannot be emptied.
            break;
        }
        at = next;
    }
    inner.allocator.release();
    true
}

/// Moves those parts of a block that lie in the window to other places. False when it is pinned or
/// there is no place: then the policy's next block leaves, not this one.
fn move_block(
    inner: &mut MutexGuard<'_, Inner>,
    arena: &Arena,
    slot: Slot,
    window: std::ops::Range<u32>,
) -> bool {
    loop {
        if !inner.may_move(slot) {
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
        let Some(room) = inner.allocator.alloc(place.extents.granules()) else { return false };
        if !inner.has_records(pool_need(place.part, &room)) {
            inner.allocator.free(&room);
            return false;
        }
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
    let records = pool_need(place.part, room);
    inner.records_promised += records;
    let hash = MutexGuard::unlocked(inner, || {
        // SAFETY: the read pin above holds the old place, and `room` is not anyone's yet.
        // `tests/stress.rs` would see bytes of another block.
        unsafe { copy_between(arena, room, &place.extents, place.length as usize) }
    });
    inner.records_promised -= records;
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
