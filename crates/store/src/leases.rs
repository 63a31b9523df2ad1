//! Leases: pins with an end. Who holds which slots until when; the pins themselves, and what they
//! hold in bytes, are with the blocks.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::index::Slot;
use crate::outcome::{LEASE_MAX, LEASE_TOTAL_MAX};
use crate::types::{Instant, LeaseId};

/// One lookup's hits.
#[derive(Debug)]
pub(crate) struct Lease {
    session: u64,
    pub tenant: usize,
    pub slots: Vec<Slot>,
    /// Segments of flash, each once, and whose version of which namespace they are held for.
    pub segments: Vec<u32>,
    pub flash_of: (u16, u32),
    granted: Instant,
    end: Instant,
}

/// All leases; their number and their slots are bounded.
#[derive(Debug)]
pub(crate) struct Leases {
    by_id: HashMap<u64, Lease>,
    by_end: BTreeSet<(Instant, u64)>,
    by_session: BTreeSet<(u64, u64)>,
    next_id: u64,
    slots: usize,
    leases_max: usize,
    slots_max: usize,
    /// Leases and their slots, by tenant.
    held: Vec<[usize; 2]>,
    /// What one tenant may hold.
    share: [usize; 2],
}

/// One of several tenants gets at most one part in this many of leases and of their slots.
const TENANT_SHARE: usize = 4;

impl Leases {
    pub fn new(leases_max: u32, slots_max: u32, tenants: usize) -> Leases {
        let parts = if tenants > 1 { TENANT_SHARE } else { 1 };
        let share = [leases_max, slots_max].map(|max| (max as usize).div_ceil(parts));
        Leases {
            by_id: HashMap::new(),
            by_end: BTreeSet::new(),
            by_session: BTreeSet::new(),
            next_id: 1,
            slots: 0,
            leases_max: leases_max as usize,
            slots_max: slots_max as usize,
            held: vec![[0; 2]; tenants],
            share,
        }
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether one more lease of so many slots stays within the bounds, the tenant's included.
    pub fn has_room(&self, tenant: usize, slots: usize) -> bool {
        let [leases, held] = self.held[tenant];
        self.by_id.len() < self.leases_max
            && self.slots + slots <= self.slots_max
            && leases < self.share[0]
            && held + slots <= self.share[1]
    }

    /// Grants a lease; the caller has pinned the slots. Returns how long it holds.
    pub fn grant(
        &mut self,
        (session, tenant): (u64, usize),
        slots: Vec<Slot>,
        (segments, flash_of): (Vec<u32>, (u16, u32)),
        hold: Duration,
        now: Instant,
    ) -> (LeaseId, Duration) {
        let (id, hold) = (self.next_id, hold.min(LEASE_MAX));
        let end = now.after(hold);
        self.next_id += 1;
        let held = slots.len() + segments.len();
        self.slots += held;
        self.held[tenant][0] += 1;
        self.held[tenant][1] += held;
        self.by_end.insert((end, id));
        self.by_session.insert((session, id));
        self.by_id
            .insert(id, Lease { session, tenant, slots, segments, flash_of, granted: now, end });
        (LeaseId(id), hold)
    }

    /// Makes it hold for `hold` from now, at most `LEASE_MAX`, and `LEASE_TOTAL_MAX` from its
    /// grant. Never shortens. False when it has ended, is not the session's, or holds as long as
    /// it ever may.
    pub fn renew(&mut self, session: u64, id: LeaseId, hold: Duration, now: Instant) -> bool {
        let Some(lease) = self.by_id.get_mut(&id.0) else { return false };
        if lease.session != session || lease.end <= now {
            return false;
        }
        let wanted = now.after(hold.min(LEASE_MAX));
        let end = wanted.min(lease.granted.after(LEASE_TOTAL_MAX));
        if end <= lease.end {
            return lease.end >= wanted;
        }
        self.by_end.remove(&(lease.end, id.0));
        self.by_end.insert((end, id.0));
        lease.end = end;
        true
    }

    /// Takes out a lease of the session; the caller unpins its slots.
    pub fn release(&mut self, session: u64, id: LeaseId) -> Option<Lease> {
        if self.by_id.get(&id.0)?.session != session {
            return None;
        }
        self.take(id.0)
    }

    /// Takes out one lease of the session, if it has any.
    pub fn release_any(&mut self, session: u64) -> Option<Lease> {
        let (_, id) = *self.by_session.range((session, 0)..=(session, u64::MAX)).next()?;
        self.take(id)
    }

    /// Takes out one lease that has ended, if there is any.
    pub fn expire(&mut self, now: Instant) -> Option<Lease> {
        let (end, id) = *self.by_end.first()?;
        if end > now { None } else { self.take(id) }
    }

    /// Every slot of every lease, for checks.
    pub fn for_each_slot(&self, visitor: impl FnMut(Slot)) {
        self.by_id.values().flat_map(|lease| lease.slots.iter().copied()).for_each(visitor);
    }

    /// Namespace and version of every lease that holds segments, for checks.
    pub fn for_each_on_flash(&self, visitor: impl FnMut((u16, u32))) {
        let on_flash = self.by_id.values().filter(|lease| !lease.segments.is_empty());
        on_flash.map(|lease| lease.flash_of).for_each(visitor);
    }

    /// Every segment of every lease, for checks.
    pub fn for_each_segment(&self, visitor: impl FnMut(u32)) {
        self.by_id.values().flat_map(|lease| lease.segments.iter().copied()).for_each(visitor);
    }

    fn take(&mut self, id: u64) -> Option<Lease> {
        let lease = self.by_id.remove(&id)?;
        self.by_end.remove(&(lease.end, id));
        self.by_session.remove(&(lease.session, id));
        let held = lease.slots.len() + lease.segments.len();
        self.slots -= held;
        self.held[lease.tenant][0] -= 1;
        self.held[lease.tenant][1] -= held;
        Some(lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Instant {
        Instant(seconds * 1_000_000_000)
    }

    #[test]
    fn a_lease_ends_by_the_clock() {
        let mut leases = Leases::new(8, 8, 1);
        let (_, hold) = leases.grant((1, 0), vec![4, 5], (Vec::new(), (0, 0)), 2 * SECOND, at(10));
        assert_eq!(hold, 2 * SECOND);
        assert!(leases.expire(at(11)).is_none());
        assert_eq!(leases.expire(at(12)).unwrap().slots, [4, 5]);
        assert!(leases.expire(at(99)).is_none());
        assert_eq!(leases.slots, 0);
    }

    #[test]
    fn renewals_end_after_a_minute_in_all() {
        let mut leases = Leases::new(8, 8, 1);
        let (id, hold) = leases.grant((1, 0), vec![4], (Vec::new(), (0, 0)), 99 * SECOND, at(0));
        assert_eq!(hold, LEASE_MAX);
        for second in (5..50).step_by(5) {
            assert!(leases.renew(1, id, 10 * SECOND, at(second)));
            assert!(leases.expire(at(second + 9)).is_none());
        }
        assert!(leases.renew(1, id, 10 * SECOND, at(54)), "to the last second");
        assert!(!leases.renew(1, id, 10 * SECOND, at(55)), "not beyond");
        assert!(leases.renew(1, id, SECOND, at(55)), "it holds that long anyway");
        assert!(leases.expire(at(59)).is_none());
        assert!(leases.expire(at(60)).is_some());
        assert!(!leases.renew(1, id, SECOND, at(60)));
    }

    #[test]
    fn only_its_own_session_releases_it_and_twice_is_harmless() {
        let mut leases = Leases::new(8, 8, 1);
        let (id, _) = leases.grant((1, 0), vec![4], (Vec::new(), (0, 0)), SECOND, at(0));
        assert!(leases.release(2, id).is_none());
        assert!(!leases.renew(2, id, SECOND, at(0)));
        assert!(leases.release(1, id).is_some());
        assert!(leases.release(1, id).is_none());
    }

    #[test]
    fn number_and_slots_are_bounded() {
        let mut leases = Leases::new(2, 8, 1);
        assert!(leases.has_room(0, 8) && !leases.has_room(0, 9));
        leases.grant((1, 0), vec![1; 3], (Vec::new(), (0, 0)), SECOND, at(0));
        assert!(leases.has_room(0, 5) && !leases.has_room(0, 6));
        leases.grant((2, 0), vec![1], (Vec::new(), (0, 0)), SECOND, at(0));
        assert!(!leases.has_room(0, 0));
        assert!(leases.release_any(1).is_some() && leases.release_any(1).is_none());
        assert!(leases.has_room(0, 7));
    }

    #[test]
    fn one_of_several_tenants_gets_a_quarter() {
        let mut leases = Leases::new(8, 32, 2);
        assert!(leases.has_room(0, 8) && !leases.has_room(0, 9));
        let (id, _) = leases.grant((1, 0), vec![1; 8], (Vec::new(), (0, 0)), SECOND, at(0));
        assert!(!leases.has_room(0, 1) && leases.has_room(1, 8));
        leases.release(1, id);
        leases.grant((1, 0), vec![1], (Vec::new(), (0, 0)), SECOND, at(0));
        leases.grant((1, 0), vec![1], (Vec::new(), (0, 0)), SECOND, at(0));
        assert!(!leases.has_room(0, 1) && leases.has_room(1, 8));
    }
}
