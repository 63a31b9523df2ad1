//! Puts, in two phases: reserve space, then commit what was written there.

use crate::arena::GRANULE_BYTES;
use crate::guards::{Claim, WriteGrant};
use crate::index::Slot;
use crate::index::parts::{Place, granules_of, pool_need};
use crate::inner::{Inner, Seen};
use crate::outcome::{BlockPut, Reserve};
use crate::pending::PartState;
use crate::room::{Need, make_room};
use crate::session::Session;
use crate::store::{Locked, Store};
use crate::types::{Epoch, Instant, NamespaceId, PutOutcome, ShedReason};

/// One of several tenants gets at most one part in this many of the arena and of the places of
/// incomplete blocks for what it is writing.
const TENANT_SHARE: u32 = 4;

/// What a put finds under its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Present,
    Pending,
    /// A complete block whose part has another length.
    Misfit,
    /// An incomplete block that lacks this part.
    Lacking(Slot),
    Nothing,
}

/// What space is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A put.
    Put,
    /// A block that comes back from flash.
    Return,
}

/// Why a put goes no further.
pub(crate) enum Stop {
    Present,
    Pending,
    Shed(ShedReason),
}

impl Session {
    /// Asks for space for one part of a block. `Granted` space is the caller's until it commits or
    /// drops the grant.
    pub fn reserve(&self, ns: NamespaceId, epoch: Epoch, put: BlockPut) -> Reserve {
        let mut inner = match self.enter(ns, epoch) {
            Ok(inner) => inner,
            Err(refused) => return Reserve::Shed(refused.shed_reason()),
        };
        let now = self.store.clock.now();
        inner.expire_leases(now);
        let claim = claim(&mut inner, ns.0, put, now, Purpose::Put);
        let counters = inner.counters(ns.0);
        match claim {
            Ok(claim) => {
                Reserve::Granted(WriteGrant { store: self.store.clone(), claim, is_settled: false })
            }
            Err(Stop::Present) => {
                counters.present += 1;
                Reserve::Present
            }
            Err(Stop::Pending) => {
                counters.pending += 1;
                Reserve::Pending
            }
            Err(Stop::Shed(reason)) => {
                counters.shed[reason as usize] += 1;
                Reserve::Shed(reason)
            }
        }
    }
}

/// Claims space for a part, or says why not.
pub(crate) fn claim(
    inner: &mut Locked<'_>,
    ns: u16,
    put: BlockPut,
    now: Instant,
    purpose: Purpose,
) -> Result<Claim, Stop> {
    inner.fits(ns, put).map_err(Stop::Shed)?;
    let found = inner.find_for_put(ns, put, now, purpose);
    let is_new = match found {
        Found::Present => return Err(Stop::Present),
        Found::Misfit => return Err(Stop::Shed(ShedReason::Invalid)),
        Found::Pending => return Err(Stop::Pending),
        Found::Lacking(_) => false,
        Found::Nothing => true,
    };
    inner.has_room_to_write(ns, put).map_err(Stop::Shed)?;
    if is_new && inner.lacks_place(ns) {
        inner.cancel_abandoned(now);
        if inner.lacks_place(ns) {
            return Err(Stop::Shed(ShedReason::Busy));
        }
    }
    let version = inner.namespaces.at(ns).version;
    let need = Need { ns, part: put.part, granules: granules_of(put.len), is_new, now };
    inner.namespaces.at_mut(ns).entered += 1;
    let (guard, arena) = inner.room_parts();
    let extents = make_room(guard, arena, need).map_err(Stop::Shed);
    inner.namespaces.at_mut(ns).entered -= 1;
    let extents = extents?;
    // The lock may have been let go while blocks moved: look again.
    let again = inner.find_for_put(ns, put, now, purpose);
    let slot = match (again, inner.has_room_to_write(ns, put)) {
        _ if inner.namespaces.at(ns).version != version => Err(Stop::Shed(ShedReason::Epoch)),
        (Found::Present, _) => Err(Stop::Present),
        (Found::Misfit, _) => Err(Stop::Shed(ShedReason::Invalid)),
        (Found::Pending, _) => Err(Stop::Pending),
        (_, Err(reason)) => Err(Stop::Shed(reason)),
        (Found::Lacking(slot), Ok(())) => Ok(slot),
        (Found::Nothing, Ok(())) if inner.lacks_place(ns) => Err(Stop::Shed(ShedReason::Busy)),
        (Found::Nothing, Ok(())) => {
            inner.begin(ns, put.key, now).ok_or(Stop::Shed(ShedReason::Busy))
        }
    };
    let slot = match slot {
        Ok(slot) => slot,
        Err(stop) => {
            inner.allocator.free(&extents);
            return Err(stop);
        }
    };
    let place = inner.index.entry(slot).next;
    let (filling, state) = inner.fillings.at(place);
    state.begin(put.part, now);
    inner.records_promised += pool_need(put.part, &extents);
    inner.charge_writer(ns, &extents);
    let BlockPut { part, len, engine_hash, .. } = put;
    Ok(Claim { ns, slot, filling, part, len, engine_hash, extents, purpose })
}

impl Inner {
    /// What no put may be.
    fn fits(&self, ns: u16, put: BlockPut) -> Result<(), ShedReason> {
        let limits = &self.limits;
        if put.part >= self.namespaces.at(ns).spec.parts() || put.len == 0 {
            return Err(ShedReason::Invalid);
        }
        let granules = granules_of(put.len);
        if put.len > limits.part_bytes_max || granules > self.allocator.granules() {
            return Err(ShedReason::TooLarge);
        }
        Ok(())
    }

    /// What this moment does not allow.
    fn has_room_to_write(&self, ns: u16, put: BlockPut) -> Result<(), ShedReason> {
        let (limits, granules) = (&self.limits, granules_of(put.len));
        let bytes = |granules: u64| granules * GRANULE_BYTES as u64;
        let max = limits.writing_bytes_max.expect("settled");
        let too_many = |writing, max| writing > 0 && bytes(writing + u64::from(granules)) > max;
        let tenant = &self.tenants[self.namespaces.at(ns).tenant];
        let share = if self.tenants.len() > 1 { TENANT_SHARE } else { 1 };
        let arena = bytes(self.allocator.granules().into());
        if self.reads > u64::from(limits.reads_watermark)
            || too_many(self.writing, max)
            || too_many(tenant.writing, arena / u64::from(share))
        {
            return Err(ShedReason::Watermark);
        }
        Ok(())
    }

    /// No place for one more incomplete block, in all or of this tenant.
    fn lacks_place(&self, ns: u16) -> bool {
        let share = if self.tenants.len() > 1 { TENANT_SHARE } else { 1 };
        let tenant = &self.tenants[self.namespaces.at(ns).tenant];
        self.fillings.is_full() || tenant.filling >= self.limits.filling_max.div_ceil(share)
    }

    /// What is under the key; takes back what is hidden or whose time has ended.
    fn find_for_put(&mut self, ns: u16, put: BlockPut, now: Instant, purpose: Purpose) -> Found {
        let Some(slot) = self.index.find(ns, put.key) else {
            return self.find_flash_for_put(ns, put, now, purpose);
        };
        let seen = self.see(slot, self.namespaces.at(ns).version, self.tick_of(now));
        match seen {
            Seen::Ready => match self.parts.get(slot, put.part) {
                Some(place) if place.length == put.len => Found::Present,
                _ => Found::Misfit,
            },
            Seen::Filling if purpose == Purpose::Put && self.is_returning(slot) => Found::Present,
            Seen::Filling => {
                let place = self.index.entry(slot).next;
                match self.fillings.at(place).1.part(put.part) {
                    PartState::Missing => Found::Lacking(slot),
                    PartState::Writing | PartState::Landed => Found::Pending,
                }
            }
            seen => {
                self.take_back(slot, seen);
                self.find_flash_for_put(ns, put, now, purpose)
            }
        }
    }

    /// What is on flash under a key that memory does not have.
    fn find_flash_for_put(
        &mut self,
        ns: u16,
        put: BlockPut,
        now: Instant,
        purpose: Purpose,
    ) -> Found {
        if self.cold.is_none() || purpose == Purpose::Return {
            return Found::Nothing;
        }
        match self.flash_length(ns, put.key, now) {
            None => Found::Nothing,
            Some(length) if put.part == 0 && length != put.len => Found::Misfit,
            Some(_) => Found::Present,
        }
    }

    /// Gives up on incomplete blocks that nobody writes any more; returns how many.
    pub fn cancel_abandoned(&mut self, now: Instant) -> usize {
        let abandoned = self.fillings.abandoned(now);
        for slot in &abandoned {
            let tenant = self.tenant_of(*slot);
            self.tenants[tenant].counters.incomplete += 1;
            self.cancel(*slot);
        }
        abandoned.len()
    }
}

impl Inner {
    /// A writer's bytes are in place: they become the block's. None: it was cancelled meanwhile, by
    /// an epoch or a drop, and the space is free again. Else whether the block is complete now.
    fn land_claim(&mut self, claim: &Claim, checksum: u64, now: Instant) -> Option<bool> {
        self.records_promised -= pool_need(claim.part, &claim.extents);
        let Some(filling) = self.fillings.get(claim.filling) else {
            self.settle_writer(claim.ns, &claim.extents, false);
            return None;
        };
        let version = self.namespaces.at(claim.ns).version;
        assert_eq!(version, self.index.entry(claim.slot).version, "else it was cancelled");
        filling.land(claim.part, now);
        let is_complete = filling.is_complete(self.namespaces.at(claim.ns).spec.parts());
        self.settle_writer(claim.ns, &claim.extents, true);
        let Claim { part, len: length, extents, .. } = *claim;
        let generation = self.next_generation();
        self.land(claim.slot, &Place { part, length, checksum, generation, extents });
        if claim.engine_hash.is_some() {
            self.parts.set_engine_hash(claim.slot, claim.engine_hash);
        }
        if is_complete {
            self.complete(claim.slot, now);
        }
        Some(is_complete)
    }
}

impl Store {
    pub(crate) fn commit(&self, claim: &Claim, checksum: u64) -> PutOutcome {
        let now = self.clock.now();
        let mut inner = self.lock();
        let landed = inner.land_claim(claim, checksum, now);
        let counters = inner.counters(claim.ns);
        if landed.is_none() {
            counters.shed[ShedReason::Epoch as usize] += 1;
            return PutOutcome::Shed(ShedReason::Epoch);
        }
        counters.stored += 1;
        counters.stored_bytes += u64::from(claim.len);
        PutOutcome::Stored
    }

    /// All parts of a block are back from flash, and verified: it becomes visible, and ends when it
    /// would have ended. False: it was cancelled meanwhile. Takes the parts.
    pub(crate) fn commit_return(
        &self,
        inner: &mut Locked<'_>,
        parts: &mut Vec<(WriteGrant, u64)>,
        expiry: u32,
    ) -> bool {
        let (now, mut is_complete) = (self.clock.now(), false);
        let mut settled = std::mem::take(parts);
        for (grant, checksum) in &mut settled {
            grant.is_settled = true;
            is_complete = inner.land_claim(&grant.claim, *checksum, now) == Some(true);
            if is_complete {
                inner.index.meta_mut(grant.claim.slot).expiry = expiry;
            }
        }
        is_complete
    }

    pub(crate) fn abort(&self, claim: &Claim, reason: Option<ShedReason>) {
        let mut inner = self.lock();
        let now = self.clock.now();
        inner.records_promised -= pool_need(claim.part, &claim.extents);
        inner.settle_writer(claim.ns, &claim.extents, false);
        if let Some(filling) = inner.fillings.get(claim.filling) {
            filling.abort(claim.part, now);
            if filling.is_empty() {
                inner.cancel(claim.slot);
            }
        }
        if claim.purpose == Purpose::Return {
            return;
        }
        let counters = inner.counters(claim.ns);
        match reason {
            Some(reason) => counters.shed[reason as usize] += 1,
            None => counters.aborted += 1,
        }
    }
}
