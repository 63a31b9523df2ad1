//! Which blocks of memory are written to flash: those that were used after they were stored, or
//! that come back after they were evicted; or all, if so configured.

use super::counters::FlashShed;
use super::queue::{ON_FLASH, QUEUED, Queued, RETURNING, TOUCHED, USED_SINCE};
use crate::config::FlashAdmission;
use crate::index::Slot;
use crate::inner::Inner;
use crate::policy::Use;
use crate::types::Instant;

impl Inner {
    /// A block became complete. `returning`: it was evicted not long ago.
    pub fn stored_in_memory(&mut self, slot: Slot, returning: bool, now: Instant) {
        let Some(cold) = &mut self.cold else { return };
        if cold.marks.has(slot, RETURNING) {
            cold.marks.clear(slot, RETURNING);
            let entry = self.index.entry(slot);
            // It may have left flash while it came back.
            if cold.index.find(entry.ns, entry.key).is_some() {
                self.mark_on_flash(slot, USED_SINCE);
            }
        } else if returning || cold.admission == FlashAdmission::All {
            self.admit(slot, now);
        }
    }

    /// A complete block was used. Who stores a block touches it in the same request, so the first
    /// touch does not count as one more use; a read does.
    #[inline]
    pub fn used_in_memory(&mut self, slot: Slot, how: Use, now: Instant) {
        let Some(cold) = &mut self.cold else { return };
        let is_reuse = match how {
            Use::Read => true,
            Use::Touched => cold.marks.has(slot, TOUCHED),
            Use::Arranged => return,
        };
        cold.marks.set(slot, TOUCHED);
        if !is_reuse || cold.marks.has(slot, QUEUED) {
            return;
        }
        if cold.marks.has(slot, ON_FLASH) {
            cold.marks.set(slot, USED_SINCE);
        } else {
            self.admit(slot, now);
        }
    }

    /// Puts a block into the queue.
    fn admit(&mut self, slot: Slot, now: Instant) {
        let entry = *self.index.entry(slot);
        let tenant = self.namespaces.at(entry.ns).tenant;
        let bytes =
            u64::from(self.parts.summary(slot).granules) * crate::arena::GRANULE_BYTES as u64;
        let Some(cold) = &mut self.cold else { return };
        let queued =
            Queued { slot, ns: entry.ns, key: entry.key, version: entry.version, is_again: false };
        let pushed = if bytes > cold.block_bytes_max {
            Err(FlashShed::TooLarge)
        } else if cold.tenants[tenant].quota_bytes.is_some_and(|quota| quota < cold.segment_bytes) {
            Err(FlashShed::Space)
        } else if cold.queue.push(tenant, queued) {
            Ok(())
        } else if !cold.budget.allows(now) {
            Err(FlashShed::Budget)
        } else {
            Err(FlashShed::Queue)
        };
        let counters = &mut cold.tenants[tenant].counters;
        match pushed {
            Ok(()) => {
                cold.marks.set(slot, QUEUED);
                counters.admitted += 1;
                self.flash_has_work = true;
            }
            Err(reason) => counters.shed[reason as usize] += 1,
        }
    }
}
