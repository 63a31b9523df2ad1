//! The store's metadata: everything behind its one lock.
//!
//! ```text
//!  key ──index──► slot ──parts──► extents ──arena──► bytes
//!                  │ └── tenant's policy (links in the entry)
//!                  └──── namespace (version), leases and reads (pins)
//! ```
//! The bytes themselves are copied outside of the lock: a pin keeps readers' bytes still, and a
//! grant's extents belong to its writer alone. `blocks.rs` changes what a slot is, `room.rs` makes
//! space; the calls of a session are in `lookups.rs`, `reads.rs`, `puts.rs` and `spaces.rs`.

use crate::arena::Allocator;
use crate::cold::Cold;
use crate::config::Limits;
use crate::events::EventRing;
use crate::ghosts::Ghosts;
use crate::index::parts::Parts;
use crate::index::{Index, Slot, State};
use crate::leases::{Lease, Leases};
use crate::namespaces::Namespaces;
use crate::pending::Fillings;
use crate::shares::share_out;
use crate::stats::Counters;
use crate::tenants::{Tenant, ticks};
use crate::types::{BlockKey, Generation, Instant, MissReason, NamespaceId};

pub(crate) struct Inner {
    pub index: Index,
    pub parts: Parts,
    pub allocator: Allocator,
    pub tenants: Vec<Tenant>,
    pub namespaces: Namespaces,
    pub ghosts: Ghosts,
    pub leases: Leases,
    pub fillings: Fillings,
    pub events: EventRing,
    pub limits: Limits,
    /// When the store opened.
    pub opened: Instant,
    /// Complete blocks of older versions, over all namespaces.
    pub hidden: u64,
    /// Reads in flight.
    pub reads: u64,
    /// Granules granted to writers.
    pub writing: u64,
    /// Part records promised to writers.
    pub records_promised: u32,
    /// Granules of blocks under leases, each counted once.
    pub leased: u64,
    pub next_generation: u32,
    /// Where the sweep for hidden and expired blocks goes on.
    pub sweep_at: Slot,
    /// The last pin of an older version went in some namespace; waiters want to know.
    pub has_quieted: bool,
    /// Numbers that stand for a namespace since its last drop.
    pub next_era: u64,
    /// What is known of flash; none without flash.
    pub cold: Option<Box<Cold>>,
    /// Something waits to be written to flash.
    pub flash_has_work: bool,
}

/// What a call sees of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Complete and visible.
    Ready,
    /// Parts are missing.
    Filling,
    /// Complete, but of an older version.
    Hidden,
    /// Complete, but its time has ended.
    Expired,
    /// Nothing.
    Nothing,
}

impl Inner {
    /// What there is at `slot` for a call at tick `now`.
    #[inline]
    pub fn see(&self, slot: Slot, version: u32, now: u32) -> Seen {
        let Some(entry) = self.index.slots.entries.get(slot as usize) else {
            return Seen::Nothing;
        };
        let meta = self.index.meta(slot);
        match (meta.state(), entry.version == version) {
            (State::Ready, true) if meta.expiry != 0 && meta.expiry <= now => Seen::Expired,
            (State::Ready, true) => Seen::Ready,
            (State::Ready, false) => Seen::Hidden,
            (State::Filling, _) => Seen::Filling,
            (State::Free | State::Condemned, _) => Seen::Nothing,
        }
    }

    /// The tick of block expiry that `now` is in.
    pub fn tick_of(&self, now: Instant) -> u32 {
        ticks(self.opened, now)
    }

    /// The slot of a visible block, or why there is none. Takes hidden and expired ones back.
    pub fn find_ready(&mut self, ns: u16, key: BlockKey, now: Instant) -> Result<Slot, MissReason> {
        let Some(slot) = self.index.find(ns, key) else {
            return Err(self.recall(ns, key));
        };
        match self.see(slot, self.namespaces.at(ns).version, self.tick_of(now)) {
            Seen::Ready => Ok(slot),
            Seen::Filling => Err(MissReason::Pending),
            seen => {
                self.take_back(slot, seen);
                Err(self.recall(ns, key))
            }
        }
    }

    /// Why a key is not here, as far as the ghost list knows.
    pub fn recall(&self, ns: u16, key: BlockKey) -> MissReason {
        self.ghosts.recall(self.namespaces.at(ns).era, key).unwrap_or(MissReason::Absent)
    }

    pub fn tenant_of(&self, slot: Slot) -> usize {
        self.namespaces.at(self.index.entry(slot).ns).tenant
    }

    /// Its tenant's counters; those of the first tenant when its place was vacated meanwhile.
    pub fn counters(&mut self, ns: u16) -> &mut Counters {
        let tenant = self.namespaces.get(NamespaceId(ns)).map_or(0, |space| space.tenant);
        &mut self.tenants[tenant].counters
    }

    /// Whether any block may have an end.
    pub fn has_ttl(&self) -> bool {
        let by_tenant = self.tenants.iter().any(Tenant::has_ttl);
        by_tenant || self.namespaces.iter().any(|(_, space)| space.terms.ttl.is_some())
    }

    pub fn share_out(&mut self) {
        share_out(&mut self.tenants, self.allocator.granules().into());
    }

    pub fn next_generation(&mut self) -> Generation {
        self.next_generation = self.next_generation.wrapping_add(1);
        Generation(self.next_generation)
    }

    /// One more lease or read of the block.
    #[inline]
    fn count_pin(&mut self, slot: Slot) {
        let entry = self.index.entry(slot);
        let space = self.namespaces.at_mut(entry.ns);
        if entry.version == space.version {
            space.pins += 1;
        } else {
            space.old_pins += 1;
        }
    }

    #[inline]
    fn uncount_pin(&mut self, slot: Slot) {
        let entry = self.index.entry(slot);
        let space = self.namespaces.at_mut(entry.ns);
        if entry.version == space.version {
            space.pins -= 1;
        } else {
            space.old_pins -= 1;
            self.has_quieted |= space.old_pins == 0;
        }
    }

    /// Pins a block for one read. False when too many read it.
    pub fn pin_read(&mut self, slot: Slot) -> bool {
        let entry = self.index.entry_mut(slot);
        let Some(reads) = entry.reads.checked_add(1) else { return false };
        entry.reads = reads;
        self.reads += 1;
        self.count_pin(slot);
        true
    }

    pub fn unpin_read(&mut self, slot: Slot) {
        self.index.entry_mut(slot).reads -= 1;
        self.reads -= 1;
        self.uncount_pin(slot);
        self.rewind_if_skipped(slot);
        self.free_if_last_pin(slot);
    }

    /// Pins a block for one lease. False when that would exceed what leases may hold.
    #[inline]
    pub fn pin_lease(&mut self, slot: Slot, tenant: usize) -> bool {
        let leases = self.index.meta(slot).leases;
        if leases == u16::MAX {
            return false;
        }
        if leases == 0 {
            let granules = u64::from(self.parts.summary(slot).granules);
            let arena = u64::from(self.allocator.granules());
            let tenant = &mut self.tenants[tenant];
            if self.leased + granules > arena / 2 || tenant.leased + granules > arena / 4 {
                return false;
            }
            self.leased += granules;
            tenant.leased += granules;
        }
        self.index.meta_mut(slot).leases = leases + 1;
        self.count_pin(slot);
        true
    }

    pub fn unpin_lease(&mut self, slot: Slot) {
        let meta = self.index.meta_mut(slot);
        meta.leases -= 1;
        if meta.leases == 0 {
            let granules = u64::from(self.parts.summary(slot).granules);
            let tenant = self.tenant_of(slot);
            self.leased -= granules;
            self.tenants[tenant].leased -= granules;
            self.rewind_if_skipped(slot);
        }
        self.uncount_pin(slot);
        self.free_if_last_pin(slot);
    }

    /// A block that an eviction passed over may be the next to leave now.
    #[inline]
    fn rewind_if_skipped(&mut self, slot: Slot) {
        if !self.index.slots.is_pinned(slot) && self.index.meta_mut(slot).take_skipped() {
            let tenant = self.tenant_of(slot);
            self.tenants[tenant].order.rewind(&self.index.slots, slot);
        }
    }

    pub fn end_lease(&mut self, lease: &Lease) {
        lease.slots.iter().for_each(|slot| self.unpin_lease(*slot));
        let Some(cold) = &mut self.cold else { return };
        if lease.segments.is_empty() {
            return;
        }
        lease.segments.iter().for_each(|segment| cold.unpin(*segment));
        let (ns, version) = lease.flash_of;
        let space = self.namespaces.at_mut(ns);
        if space.version == version {
            space.pins -= 1;
        } else {
            space.old_pins -= 1;
            self.has_quieted |= space.old_pins == 0;
        }
    }

    /// Ends leases whose time has come, a bounded number of them and of their slots.
    pub fn expire_leases(&mut self, now: Instant) -> bool {
        const ENDED_MAX: usize = 256;
        const SLOTS_MAX: usize = 16_384;
        let mut slots = 0;
        for ended in 0..ENDED_MAX {
            // At most one lease more than the slots allow.
            if slots >= SLOTS_MAX {
                break;
            }
            let Some(lease) = self.leases.expire(now) else { return ended > 0 };
            slots += lease.slots.len();
            self.tenants[lease.tenant].counters.leases_expired += 1;
            self.end_lease(&lease);
        }
        true
    }
}
