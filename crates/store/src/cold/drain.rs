//! Before a node goes: the hottest blocks of memory that are not on flash yet are written there.

use std::time::{Duration, Instant as WallInstant};

use super::queue::{ON_FLASH, Queued};
use super::writer::Batch;
use crate::index::Slot;
use crate::store::Store;

/// Bytes of one append, about.
const BATCH_BYTES: u64 = 8 << 20;

/// What a drain did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Blocks written.
    pub blocks: u64,
    /// Bytes of those, whole pages.
    pub bytes: u64,
    /// Blocks that were not on flash and found no time or no room.
    pub left: u64,
    /// Whether all that is on flash survives a loss of power.
    pub is_flushed: bool,
}

impl Store {
    /// Writes the hottest blocks of memory to flash for at most `time`, whatever admission and
    /// budget say, and makes what is there durable. Call it when no more puts come.
    pub fn drain_flash(&self, time: Duration) -> Drained {
        let Some(flash) = &self.flash else { return Drained::default() };
        let until = WallInstant::now() + time;
        let mut drained = Drained::default();
        let waiting = self.hottest();
        let mut next = waiting.iter().peekable();
        while next.peek().is_some() && WallInstant::now() < until && !flash.is_ending() {
            self.keep_segments_free();
            let batch = self.choose_hot(&mut next);
            let bytes = batch.bytes;
            let (all, written) = (batch.blocks.len(), self.write(batch));
            drained.blocks += written as u64;
            drained.left += (all - written) as u64;
            if written > 0 {
                drained.bytes += bytes * written as u64 / all as u64;
            }
        }
        drained.left += next.count() as u64;
        drained.is_flushed = flash.tier().flush().is_ok();
        drained
    }

    /// Blocks that are not on flash, of each tenant the one that leaves last first, tenants in
    /// turn.
    fn hottest(&self) -> Vec<(usize, Slot)> {
        let mut inner = self.lock();
        let mut by_tenant: Vec<Vec<Slot>> = Vec::new();
        for number in 0..inner.tenants.len() {
            let mut slots = Vec::new();
            inner.tenants[number].order.visit(&inner.index.slots, |slot| slots.push(slot));
            slots.retain(|slot| !inner.cold().marks.has(*slot, ON_FLASH));
            by_tenant.push(slots);
        }
        let longest = by_tenant.iter().map(Vec::len).max().unwrap_or(0);
        // In steps, so that a batch is of one tenant and still nobody waits for another's end.
        const STEP: usize = 64;
        let mut all = Vec::new();
        for step in 0..longest.div_ceil(STEP) {
            for (tenant, slots) in by_tenant.iter().enumerate() {
                let few = slots.iter().skip(step * STEP).take(STEP);
                all.extend(few.map(|slot| (tenant, *slot)));
            }
        }
        all
    }

    fn choose_hot<'a>(
        &self,
        next: &mut std::iter::Peekable<impl Iterator<Item = &'a (usize, Slot)>>,
    ) -> Batch {
        let tier = self.flash.as_ref().expect("called with flash").tier();
        let mut inner = self.lock();
        let now = self.clock.now();
        let tenant = next.peek().map_or(0, |(tenant, _)| *tenant);
        let mut batch = Batch::new(tenant, tier.sequence());
        while let Some((owner, slot)) = next.peek().copied().copied() {
            if owner != tenant || batch.is_full(BATCH_BYTES) {
                break;
            }
            next.next();
            let entry = *inner.index.entry(slot);
            let (ns, key, version) = (entry.ns, entry.key, entry.version);
            let queued = Queued { slot, ns, key, version, is_again: false };
            // Gone or written meanwhile: nothing is lost with it.
            self.take(&mut inner, &mut batch, queued, now);
        }
        batch
    }
}
