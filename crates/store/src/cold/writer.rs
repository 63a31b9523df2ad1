//! Blocks on their way to flash: chosen under the lock, held still by read pins, appended without
//! the lock, then indexed unless they were dropped or outdated meanwhile.
//!
//! A drop that begins after a block was chosen hides it after a restart whatever lands last: the
//! tier orders by the sequence that was taken with the choice.

use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::RwLockReadGuard;

use super::counters::FlashShed;
use super::entry::{RECORD_BLOCKS_MAX, Written, pages_of};
use super::pieces::pieces_of;
use super::queue::{ON_FLASH, QUEUED, Queued, USED_SINCE};
use super::sight::Left;
use super::workers::set_now;
use crate::guards::ReadPin;
use crate::index::State;
use crate::index::parts::Place;
use crate::inner::{Inner, Seen};
use crate::log::{self, Event};
use crate::store::{Locked, Store};
use crate::tiers::{
    Hold, PAGE_BYTES, Retry, Sequence, Spot, Stream, StreamId, TierBlock, TierError, TierNamespace,
    TierPart,
};
use crate::types::{Epoch, Instant, NamespaceId, Priority};

/// Bytes of one append, about.
pub const BATCH_BYTES: u64 = 8 << 20;
/// Blocks of one append.
pub const BATCH_BLOCKS: usize = RECORD_BLOCKS_MAX;
/// Entries of the queue that one choice looks at.
pub const LOOKS_MAX: usize = 1024;
/// How often an append is tried again after a segment was taken back.
pub const RECLAIMS_MAX: u32 = 4;
/// Loads come first: a batch waits this long for them, in so many steps.
const LOADS_FIRST: Duration = Duration::from_millis(5);
const LOADS_STEPS: u32 = 4;

/// What one step of the writer did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrote {
    Some,
    /// Nothing waits, or it may not be written now.
    Nothing,
}

/// Blocks of one tenant that are held still and go to flash together.
pub(super) struct Batch {
    pub tenant: usize,
    pub as_of: Sequence,
    pub blocks: Vec<Chosen>,
    pub pins: Vec<ReadPin>,
    pub bytes: u64,
}

impl Batch {
    pub fn new(tenant: usize, as_of: Sequence) -> Batch {
        Batch { tenant, as_of, blocks: Vec::new(), pins: Vec::new(), bytes: 0 }
    }

    pub fn is_full(&self, bytes: u64) -> bool {
        self.bytes >= bytes || self.blocks.len() == BATCH_BLOCKS
    }
}

/// One of them.
pub(super) struct Chosen {
    pub queued: Queued,
    namespace: TierNamespace,
    epoch: Epoch,
    engine_hash: Option<u64>,
    /// Tick at which its time ends; 0: never.
    expiry: u32,
    expires_unix_ms: u64,
    priority: Priority,
    parts: Vec<Place>,
}

impl Chosen {
    fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| u64::from(part.extents.granules())).sum::<u64>()
            * PAGE_BYTES as u64
    }
}

impl Store {
    /// Writes one batch from the queue.
    pub(super) fn write_step(&self) -> Wrote {
        let Some(flash) = &self.flash else { return Wrote::Nothing };
        self.keep_segments_free();
        let mut inner = self.lock();
        let now = self.clock.now();
        if flash.by_hand.is_none() {
            for _ in 0..LOADS_STEPS {
                if inner.cold().flights.under_way() == 0 || flash.is_ending() {
                    break;
                }
                inner.wait_landed(&flash.landed, LOADS_FIRST);
            }
        }
        let cold = inner.cold();
        if cold.queue.len() == 0 {
            return Wrote::Nothing;
        }
        if !cold.budget.allows(now) {
            drop(inner);
            if set_now(&flash.is_short) {
                log::say(Event::FlashBudget, |_| {});
            }
            return Wrote::Nothing;
        }
        flash.is_short.store(false, Ordering::Release);
        // While recovery runs nothing can be taken back, so what finds no segment waits. Not asked
        // under the lock: what a device gives back late is let go of meanwhile, which takes it.
        let is_recovering = cold.recovery.is_running;
        if is_recovering && inner.unlocked(|| flash.tier().status().segments_free()) == 0 {
            return Wrote::Nothing;
        }
        let Some(tenant) = inner.cold().queue.next_tenant() else { return Wrote::Nothing };
        let batch = self.choose(&mut inner, tenant, now);
        drop(inner);
        self.write(batch);
        self.keep_within_flash_quota(tenant);
        Wrote::Some
    }

    /// Takes a batch from a tenant's queue and pins it.
    fn choose(&self, inner: &mut Locked<'_>, tenant: usize, now: Instant) -> Batch {
        let tier = self.flash.as_ref().expect("a writer has a tier").tier();
        let mut batch = Batch::new(tenant, tier.sequence());
        for _ in 0..LOOKS_MAX {
            if batch.is_full(BATCH_BYTES) {
                break;
            }
            let Some(queued) = inner.cold().queue.pop(tenant) else { break };
            let bytes = batch.bytes + inner.bytes_of(queued.slot);
            if batch.bytes > 0 && bytes > 2 * BATCH_BYTES {
                inner.cold().queue.push_front(tenant, queued);
                break;
            }
            if !self.take(inner, &mut batch, queued, now) {
                inner.count_shed(tenant, FlashShed::Late);
            }
        }
        batch
    }

    /// Pins a block for a batch, if it is still there.
    pub(super) fn take(
        &self,
        inner: &mut Locked<'_>,
        batch: &mut Batch,
        queued: Queued,
        now: Instant,
    ) -> bool {
        let Queued { slot, ns, key, version, .. } = queued;
        let Some(space) = inner.namespaces.get(NamespaceId(ns)) else { return false };
        let is_current = space.version == version && space.tenant == batch.tenant;
        let entry = inner.index.entry(slot);
        let is_it = entry.key == key && entry.ns == ns && entry.version == version;
        if !is_current || !is_it || inner.see(slot, version, inner.tick_of(now)) != Seen::Ready {
            return false;
        }
        if inner.cold().marks.has(slot, ON_FLASH) || !inner.pin_read(slot) {
            inner.cold().marks.clear(slot, QUEUED);
            return false;
        }
        let space = inner.namespaces.at(ns);
        let namespace = TierNamespace {
            fingerprint: space.spec.fingerprint(),
            encoding: space.spec.encoding().into(),
        };
        let epoch = space.epoch;
        let mut parts = Vec::new();
        inner.parts.visit(slot, |place| parts.push(place));
        parts.sort_unstable_by_key(|place| place.part);
        let (expiry, engine_hash) = (inner.index.meta(slot).expiry, inner.parts.engine_hash(slot));
        batch.pins.push(ReadPin {
            store: self.me.upgrade().expect("whoever calls holds the store"),
            slot,
            extents: parts[0].extents,
            len: parts[0].length,
            checksum: parts[0].checksum,
            generation: parts[0].generation,
            is_used: false,
        });
        let expires_unix_ms = self.unix_ms_at(inner.opened, expiry);
        let priority = inner.index.meta(slot).priority();
        let chosen = Chosen {
            queued,
            namespace,
            epoch,
            engine_hash,
            expiry,
            expires_unix_ms,
            priority,
            parts,
        };
        batch.bytes += chosen.bytes();
        batch.blocks.push(chosen);
        inner.cold().writing += 1;
        true
    }

    /// Appends a batch and indexes it. Returns how many of its blocks are on flash now.
    pub(super) fn write(&self, mut batch: Batch) -> usize {
        if batch.blocks.is_empty() {
            return 0;
        }
        let tiered: Vec<TierBlock<'_>> =
            batch.blocks.iter().map(|chosen| self.tier_block(chosen)).collect();
        let mut hold: Option<Hold> = Some(Box::new(std::mem::take(&mut batch.pins)));
        let stream = self.stream(batch.tenant);
        let appended = self.append(&stream, batch.as_of, &tiered, &mut hold);
        let pages: Vec<u32> = tiered.iter().map(pages_of).collect();
        drop(tiered);
        let mut inner = self.lock();
        inner.cold().writing -= batch.blocks.len() as u32;
        let indexed = match appended {
            Ok((ref spots, _)) => self.index_written(&mut inner, &batch, spots, &pages),
            Err(reason) => {
                for chosen in &batch.blocks {
                    let slot = chosen.queued.slot;
                    inner.cold().marks.clear(slot, QUEUED);
                    inner.count_shed(batch.tenant, reason);
                }
                0
            }
        };
        drop((inner, appended));
        // The pins go without the lock: each takes it.
        drop(hold);
        self.flash.as_ref().expect("a writer has a tier").tier().prepare();
        indexed
    }

    fn tier_block<'a>(&self, chosen: &'a Chosen) -> TierBlock<'a> {
        let parts = chosen.parts.iter().map(|place| TierPart {
            len: place.length,
            checksum: place.checksum,
            // SAFETY: the batch's read pins hold the extents, and they are the append's hold.
            pieces: unsafe { pieces_of(&self.arena, &place.extents, place.length) },
        });
        TierBlock {
            namespace: &chosen.namespace,
            epoch: chosen.epoch,
            key: chosen.queued.key,
            engine_hash: chosen.engine_hash,
            expires_unix_ms: chosen.expires_unix_ms,
            priority: chosen.priority.number(),
            parts: parts.collect(),
        }
    }

    pub(super) fn stream(&self, tenant: usize) -> Stream {
        let inner = self.lock();
        let name = inner.cold.as_ref().expect("flash").tenants[tenant].name.clone();
        Stream { id: StreamId(tenant as u32), tenant: name }
    }

    /// Appends, and takes segments back where that needs one. What comes with the spots keeps
    /// their segments until they are indexed.
    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<(Vec<Spot>, RwLockReadGuard<'_, ()>), FlashShed> {
        let tenant = stream.id.0 as usize;
        let flash = self.flash.as_ref().expect("a writer has a tier");
        if !self.keep_within_flash_quota(tenant) {
            return Err(FlashShed::Space);
        }
        for _ in 0..=RECLAIMS_MAX {
            let taken_back = *flash.tidying.lock();
            let settling = flash.settling.read();
            let error = match flash.tier().append(stream, as_of, blocks, hold) {
                Ok(spots) => return Ok((spots, settling)),
                Err(error) => error,
            };
            // Whoever takes segments back waits for this.
            drop(settling);
            match error {
                error if error.retry() == Retry::AfterReclaim => {
                    let mut tidying = flash.tidying.lock();
                    // Another writer may have made room meanwhile.
                    if *tidying == taken_back {
                        if !self.reclaim_one() {
                            return Err(FlashShed::Space);
                        }
                        *tidying += 1;
                    }
                }
                TierError::TooLarge { .. } => return Err(FlashShed::TooLarge),
                _ => {
                    self.look_after_devices();
                    return Err(FlashShed::Device);
                }
            }
        }
        Err(FlashShed::Space)
    }

    fn index_written(
        &self,
        inner: &mut Locked<'_>,
        batch: &Batch,
        spots: &[Spot],
        pages: &[u32],
    ) -> usize {
        let (mut indexed, now) = (0, self.clock.now());
        let all: u64 = pages.iter().map(|pages| u64::from(*pages) * PAGE_BYTES as u64).sum();
        inner.cold().budget.spend(all, now);
        for ((chosen, spot), pages) in batch.blocks.iter().zip(spots).zip(pages) {
            let Queued { slot, ns, key, version, is_again } = chosen.queued;
            let is_here = inner.namespaces.at(ns).version == version
                && inner.index.meta(slot).state() == State::Ready;
            let written = Written {
                ns,
                key,
                version,
                length: chosen.parts[0].length,
                checksum: chosen.parts[0].checksum,
                expiry: chosen.expiry,
                pages: *pages,
                spot: *spot,
            };
            let added = match is_here {
                true => inner.add_to_flash(&written, batch.tenant, false),
                false => Err(FlashShed::Outdated),
            };
            // The pin held the slot: these are the block's own marks, or it is condemned.
            inner.cold().marks.clear(slot, QUEUED);
            match added {
                Ok(()) => {
                    inner.mark_on_flash(slot, 0);
                    inner.cold().marks.clear(slot, USED_SINCE);
                    let bytes = u64::from(*pages) * PAGE_BYTES as u64;
                    inner.count_written(batch.tenant, bytes, is_again);
                    indexed += 1;
                }
                Err(reason) => inner.count_shed(batch.tenant, reason),
            }
        }
        indexed
    }
}

impl Inner {
    /// Adds a block that lies on flash to the index; an older copy of it makes way.
    pub(super) fn add_to_flash(
        &mut self,
        written: &Written,
        tenant: usize,
        is_recovered: bool,
    ) -> Result<(), FlashShed> {
        if !written.fits() {
            return Err(FlashShed::TooLarge);
        }
        // Its device was lost, or its segment began another life, since it was written.
        if self.cold().is_lost(written.spot.segment()) {
            return Err(FlashShed::Device);
        }
        if let Some(old) = self.cold().index.find(written.ns, written.key) {
            self.leave_flash(old, Left::Replaced);
        }
        let cold = self.cold();
        let number = cold.open_segment(written.spot.segment(), tenant, is_recovered);
        cold.index.insert(number, written).ok_or(FlashShed::Index)?;
        self.namespaces.at_mut(written.ns).flash_live += 1;
        Ok(())
    }

    pub(super) fn count_shed(&mut self, tenant: usize, reason: FlashShed) {
        self.cold().tenants[tenant].counters.shed[reason as usize] += 1;
    }

    pub(super) fn count_written(&mut self, tenant: usize, bytes: u64, is_again: bool) {
        let cold = self.cold();
        if !is_again {
            cold.earn_rewrites(bytes);
        }
        let counters = &mut cold.tenants[tenant].counters;
        if is_again {
            counters.rewritten += 1;
            counters.rewritten_bytes += bytes;
        } else {
            counters.written += 1;
            counters.written_bytes += bytes;
        }
    }

    pub(super) fn bytes_of(&self, slot: crate::index::Slot) -> u64 {
        u64::from(self.parts.summary(slot).granules) * PAGE_BYTES as u64
    }

    /// What is known of flash, for who knows that there is flash.
    pub(super) fn cold(&mut self) -> &mut super::Cold {
        self.cold.as_mut().expect("called with flash alone")
    }
}
