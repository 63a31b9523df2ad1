//! Room on flash: the oldest segment of the tenant furthest above its share goes. What was used
//! since it was written is written again first, within a bound, and the rest leaves.

use super::index::FlashIndex;
use super::queue::USED_SINCE;
use super::sight::Left;
use super::state::Cold;
use crate::index::table::Named;
use crate::inner::Inner;
use crate::log::{self, Event};
use crate::shares::UNQUOTED_SHARE;
use crate::store::Store;
use crate::tiers::{DeviceState, SegmentInfo, SegmentRef, StreamId};

/// Segments that are kept free, so that what is written again has a place to go to.
pub const SPARE: u64 = 1;
/// Entries that leave under one hold of the lock.
const HOLD_MAX: u32 = 512;

impl Cold {
    /// Whether a segment's blocks may be taken out of it now.
    fn may_leave(&self, at: SegmentRef) -> bool {
        let segment = self.index.segment(self.number_of(at));
        segment.pins == 0 && (segment.at == at || !segment.is_alive())
    }

    fn is_dead(&self, at: SegmentRef) -> bool {
        self.index.segment(self.number_of(at)).live == 0
    }

    /// How far a tenant is above its share of flash: its quota, or its part of what quotas leave,
    /// as in memory. Were it all of flash without a quota, who keeps to one would give first.
    fn pressure(&self, tenant: usize) -> f64 {
        let own = &self.tenants[tenant];
        let share = own.quota_bytes.unwrap_or_else(|| self.unquoted_share()).max(1);
        f64::from(own.segments) * self.segment_bytes as f64 / share as f64
    }

    fn unquoted_share(&self) -> u64 {
        let capacity = self.capacity_bytes();
        let quotas = self.tenants.iter().filter_map(|tenant| tenant.quota_bytes);
        let quotas = quotas.fold(0, u64::saturating_add);
        let unquoted = self.tenants.iter().filter(|tenant| tenant.quota_bytes.is_none()).count();
        let left = capacity.saturating_sub(quotas).max(capacity / UNQUOTED_SHARE);
        left / unquoted.max(1) as u64
    }
}

impl Store {
    /// Takes segments back until a few are free, and the index has room.
    pub(super) fn keep_segments_free(&self) {
        let Some(flash) = &self.flash else { return };
        let mut tidying = flash.tidying.lock();
        loop {
            let status = flash.tier().status();
            let is_live = status.devices.iter().any(|device| device.state == DeviceState::Live);
            let is_short = is_live && status.segments_free() < SPARE;
            let is_full = |index: &FlashIndex| index.is_full();
            if !is_short && !is_full(&self.lock().cold().index) {
                return;
            }
            if !self.reclaim_one() {
                return;
            }
            *tidying += 1;
        }
    }

    /// Takes a segment of the tenant back if it may not begin one more. False: none could be had.
    pub(super) fn keep_within_flash_quota(&self, tenant: usize) -> bool {
        let flash = self.flash.as_ref().expect("called with flash");
        if self.is_within_flash_quota(tenant) {
            return true;
        }
        let mut tidying = flash.tidying.lock();
        let is_within = self.is_within_flash_quota(tenant);
        if !is_within && self.reclaim_of(tenant) {
            *tidying += 1;
            return true;
        }
        is_within
    }

    fn is_within_flash_quota(&self, tenant: usize) -> bool {
        let mut inner = self.lock();
        let cold = inner.cold();
        let own = &cold.tenants[tenant];
        let held = u64::from(own.segments) * cold.segment_bytes;
        own.quota_bytes.is_none_or(|quota| held <= quota)
    }

    /// A stream's segments on devices that take blocks, oldest life first.
    fn segments_of(&self, tenant: usize) -> Vec<SegmentInfo> {
        let flash = self.flash.as_ref().expect("called with flash");
        let status = flash.tier().status();
        let is_live = |info: &SegmentInfo| {
            status.devices[usize::from(info.segment.device)].state == DeviceState::Live
        };
        let mut infos = flash.tier().segments(StreamId(tenant as u32));
        infos.retain(is_live);
        infos
    }

    /// Takes one segment back, of whoever is furthest above its share. False: there is none.
    pub(super) fn reclaim_one(&self) -> bool {
        let mut order: Vec<usize> = {
            let mut inner = self.lock();
            let cold = inner.cold();
            let mut order: Vec<usize> = (0..cold.tenants.len()).collect();
            order.sort_by(|a, b| cold.pressure(*b).total_cmp(&cold.pressure(*a)));
            order
        };
        let all: Vec<Vec<SegmentInfo>> =
            order.iter().map(|tenant| self.segments_of(*tenant)).collect();
        // What holds nothing goes first, whoever's it is.
        let dead = {
            let mut inner = self.lock();
            let cold = inner.cold();
            let mut infos = all.iter().flatten().filter(|info| !info.is_open);
            infos.find(|i| cold.is_dead(i.segment) && cold.may_leave(i.segment)).copied()
        };
        if let Some(dead) = dead
            && self.reclaim(dead.segment)
        {
            return true;
        }
        order.drain(..).any(|tenant| self.reclaim_of(tenant))
    }

    /// Takes the tenant's oldest segment back; an open one only where it has no other.
    pub(super) fn reclaim_of(&self, tenant: usize) -> bool {
        let mut infos = self.segments_of(tenant);
        infos.sort_by_key(|info| info.is_open);
        infos.iter().any(|info| {
            let may = self.lock().cold().may_leave(info.segment);
            may && self.reclaim(info.segment)
        })
    }

    /// Takes one segment back. False: something holds it.
    fn reclaim(&self, at: SegmentRef) -> bool {
        let flash = self.flash.as_ref().expect("called with flash");
        let _one_at_a_time = flash.reclaiming.lock();
        if self.lock().cold().recovery.is_running {
            return false;
        }
        self.write_again(at);
        let _alone = flash.settling.write();
        let number = {
            let mut inner = self.lock();
            let number = inner.cold().number_of(at);
            let segment = inner.cold().index.segment(number);
            if segment.is_alive() && segment.at != at {
                return false;
            }
            number
        };
        if !self.empty_segment(number, Left::Evicted) {
            return false;
        }
        let is_free = flash.tier().reclaim(at).is_ok();
        if is_free {
            self.lock().cold().close_segment(number);
        }
        is_free
    }

    /// Takes every block out of a segment. False: a lease or a read holds it.
    fn empty_segment(&self, number: u32, why: Left) -> bool {
        let mut inner = self.lock();
        let (mut next, most) = {
            let index = &inner.cold().index;
            (index.first_of(number), index.capacity())
        };
        // A chain has no more entries than there are.
        for step in 1..=most {
            let Some(slot) = next else { break };
            if inner.cold().index.segment(number).pins > 0 && why == Left::Evicted {
                return false;
            }
            if inner.cold().index.entry(slot).is_listed() {
                inner.leave_flash(slot, why);
            }
            next = inner.cold().index.next_of(slot);
            if step % HOLD_MAX == 0 {
                inner.bump();
                // Only one at a time takes segments back, and only that ends a chain.
            }
        }
        let is_free = inner.cold().index.segment(number).pins == 0;
        let forgotten = inner.cold().take_forgotten();
        drop(inner);
        if let Some(flash) = &self.flash {
            Cold::tell(&*flash.tier(), &forgotten);
        }
        is_free
    }

    /// A device that failed takes its blocks along: they vanish, counted.
    pub(super) fn look_after_devices(&self) {
        let Some(flash) = &self.flash else { return };
        let status = flash.tier().status();
        for (device, found) in status.devices.iter().enumerate() {
            let DeviceState::Fenced { why } = &found.state else { continue };
            let segments = {
                let mut inner = self.lock();
                let cold = inner.cold();
                if std::mem::replace(&mut cold.lost[device], true) {
                    drop(inner);
                    self.close_lost(device);
                    continue;
                }
                cold.segments_of(device)
            };
            log::say(Event::DeviceFenced, |line| {
                line.text("device", &found.name).text("reason", why);
            });
            let _one_at_a_time = flash.reclaiming.lock();
            for number in segments {
                if self.empty_segment(number, Left::Lost) {
                    self.lock().cold().close_segment(number);
                }
            }
        }
    }

    /// Segments of a lost device that leases or reads still held when their blocks vanished would
    /// count for their tenants for ever.
    fn close_lost(&self, device: usize) {
        let Some(_one_at_a_time) = self.flash.as_ref().and_then(|f| f.reclaiming.try_lock()) else {
            return;
        };
        let mut inner = self.lock();
        let cold = inner.cold();
        for number in cold.segments_of(device) {
            let segment = cold.index.segment(number);
            if segment.is_alive() && segment.live == 0 && segment.pins == 0 {
                cold.close_segment(number);
            }
        }
    }
}

impl Inner {
    /// Slots of a segment's blocks that were used since they were written, at most so many bytes
    /// of them; the credit is spent.
    pub(super) fn take_used(&mut self, number: u32, max: usize) -> Vec<super::ColdSlot> {
        let (mut used, mut next) = (Vec::new(), self.cold().index.first_of(number));
        while let Some(slot) = next {
            let Some(cold) = &mut self.cold else { break };
            next = cold.index.next_of(slot);
            let entry = *cold.index.entry(slot);
            let bytes = u64::from(cold.index.place(slot).pages()) * 4096;
            if !entry.is_listed() || cold.rewrite_credit < bytes || used.len() == max {
                continue;
            }
            let in_memory = self.index.find(entry.ns(), entry.key());
            let is_used = entry.is_used()
                || in_memory.is_some_and(|memory| cold.marks.has(memory, USED_SINCE));
            let is_current = entry.is_of_version(self.namespaces.at(entry.ns()).version);
            if is_used && is_current {
                cold.rewrite_credit -= bytes;
                used.push(slot);
            }
        }
        used
    }
}
