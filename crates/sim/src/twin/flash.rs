//! What moves between memory and flash: admission, the writer's batches, segments taken back,
//! blocks written again, blocks brought back. Each function says which of the store's it follows.

use std::collections::VecDeque;

use keepwarm_store::FlashAdmission;
use keepwarm_store::policy::Use;
use keepwarm_store::rules::cold::{
    BATCH_BLOCKS, BATCH_BYTES, Ended, FLIGHTS_MAX, FLIGHTS_SHARE, FlightName, Flights, LOOKS_MAX,
    ON_FLASH, QUEUED, RECLAIMS_MAX, RETURNING, REWRITE_SHARE, REWRITTEN_MAX, SPARE, TOUCHED,
    USED_SINCE,
};
use keepwarm_store::rules::log::{OVERHEAD_PAGES, PAGE_BYTES};

use super::blocks::Blocks;
use super::log::{Log, NoSegment};
use super::{NodeModel, StoreTwin, TwinError, key_of, number_of};

/// A block that is to be written, and the slot that it was in.
#[derive(Clone, Copy, Debug)]
struct Queued {
    slot: u32,
    number: u32,
}

/// Why a block leaves flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Evicted,
    /// There is a newer copy.
    Replaced,
}

/// What a node knows of its flash.
#[derive(Debug)]
pub(super) struct Cold {
    pub blocks: Blocks,
    log: Log,
    queue: VecDeque<Queued>,
    queue_max: usize,
    pub flights: Flights,
    admission: FlashAdmission,
    rewrite_credit: u64,
    segment_bytes: u64,
    /// Bytes of a block on flash, whole pages.
    block_bytes: u64,
    is_too_large: bool,
}

impl Cold {
    /// As the model says; it has flash.
    ///
    /// # Errors
    /// Flash that no node opens.
    pub fn new(model: &NodeModel) -> Result<Option<Cold>, TwinError> {
        let Some(flash) = &model.flash else { return Ok(None) };
        let segments = flash.segments()?;
        let pages = flash.segment_bytes / PAGE_BYTES as u64;
        let block_pages = u64::from(model.block_bytes).div_ceil(PAGE_BYTES as u64);
        let log = Log::new(segments, pages as u32, block_pages as u32, flash.namespace_pages);
        let flying = model.capacity_bytes / FLIGHTS_SHARE;
        Ok(Some(Cold {
            blocks: Blocks::new(segments, flash.blocks_max(segments)),
            log,
            queue: VecDeque::new(),
            queue_max: flash.queue_blocks as usize,
            flights: Flights::new(FLIGHTS_MAX, flying, 1),
            admission: flash.admission,
            rewrite_credit: 0,
            segment_bytes: flash.segment_bytes,
            block_bytes: block_pages * PAGE_BYTES as u64,
            is_too_large: block_pages + OVERHEAD_PAGES > pages,
        }))
    }

    /// Bytes of a block on its way back.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    fn earn_rewrites(&mut self) {
        let most = 2 * self.segment_bytes;
        let earned = self.block_bytes / REWRITE_SHARE;
        self.rewrite_credit = (self.rewrite_credit + earned).min(most);
    }
}

/// The flight that brings a block back.
pub(super) fn flight_of(number: u32) -> FlightName {
    FlightName { ns: 0, arrival: 1, key: key_of(number) }
}

impl StoreTwin {
    /// `admit.rs`, `stored_in_memory`.
    pub(super) fn stored_in_memory(&mut self, slot: u32, is_returning: bool) {
        let Some(cold) = &self.cold else { return };
        if self.dram.has(slot, RETURNING) {
            self.dram.unmark(slot, RETURNING);
            if cold.blocks.find(self.dram.number(slot)).is_some() {
                self.dram.mark(slot, ON_FLASH | USED_SINCE);
            }
        } else if is_returning || cold.admission == FlashAdmission::All {
            self.admit(slot);
        }
    }

    /// `admit.rs`, `used_in_memory`.
    pub(super) fn used_in_memory(&mut self, slot: u32, how: Use) {
        if self.cold.is_none() {
            return;
        }
        let is_reuse = match how {
            Use::Read => true,
            Use::Touched => self.dram.has(slot, TOUCHED),
            Use::Arranged => return,
        };
        self.dram.mark(slot, TOUCHED);
        if !is_reuse || self.dram.has(slot, QUEUED) {
            return;
        }
        if self.dram.has(slot, ON_FLASH) {
            self.dram.mark(slot, USED_SINCE);
        } else {
            self.admit(slot);
        }
    }

    /// `admit.rs`, `admit`.
    fn admit(&mut self, slot: u32) {
        let Some(cold) = &mut self.cold else { return };
        if !cold.is_too_large && cold.queue.len() < cold.queue_max {
            cold.queue.push_back(Queued { slot, number: self.dram.number(slot) });
            self.dram.mark(slot, QUEUED);
        }
    }

    /// `sight.rs`, `leaves_memory`, for blocks that make room.
    pub(super) fn leaves_memory(&mut self, number: u32, marks: u8) {
        let Some(cold) = &mut self.cold else { return };
        if marks & ON_FLASH != 0
            && marks & USED_SINCE != 0
            && let Some(entry) = cold.blocks.find(number)
        {
            cold.blocks.set_used(entry);
        }
    }

    /// Background work up to its end: what waits to be written is written, batch after batch.
    pub fn settle(&mut self) {
        while self.write_step() {}
    }

    /// `writer.rs`, `write_step`. False: nothing waits.
    fn write_step(&mut self) -> bool {
        self.keep_segments_free();
        let Some(cold) = &mut self.cold else { return false };
        if cold.queue.is_empty() {
            return false;
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for _ in 0..LOOKS_MAX {
            if bytes >= BATCH_BYTES || batch.len() == BATCH_BLOCKS {
                break;
            }
            let Some(queued) = cold.queue.pop_front() else { break };
            if self.dram.ready(queued.number) != Some(queued.slot) {
                continue;
            }
            if self.dram.has(queued.slot, ON_FLASH) {
                self.dram.unmark(queued.slot, QUEUED);
                continue;
            }
            bytes += cold.block_bytes;
            batch.push(queued);
        }
        if !batch.is_empty() {
            self.write(&batch);
        }
        true
    }

    /// `writer.rs`, `write` and `index_written`.
    fn write(&mut self, batch: &[Queued]) {
        let appended = self.append(batch.len());
        for (place, queued) in batch.iter().enumerate() {
            self.dram.unmark(queued.slot, QUEUED);
            let segment = appended.as_ref().map(|segments| segments[place]);
            if segment.is_some_and(|segment| self.add_to_flash(queued.number, segment)) {
                self.dram.mark(queued.slot, ON_FLASH);
                self.dram.unmark(queued.slot, USED_SINCE);
                self.counts.written += 1;
                self.cold.iter_mut().for_each(Cold::earn_rewrites);
            }
        }
        if let Some(cold) = &mut self.cold {
            cold.log.prepare();
        }
    }

    /// `writer.rs`, `append`: takes segments back where that needs one.
    fn append(&mut self, blocks: usize) -> Option<Vec<u32>> {
        for _ in 0..=RECLAIMS_MAX {
            match self.cold.as_mut()?.log.append(blocks) {
                Ok(segments) => return Some(segments),
                Err(NoSegment) => self.reclaim_one().then_some(())?,
            }
        }
        None
    }

    /// `writer.rs`, `add_to_flash`: an older copy makes way.
    fn add_to_flash(&mut self, number: u32, segment: u32) -> bool {
        if let Some(old) = self.cold.as_ref().and_then(|cold| cold.blocks.find(number)) {
            self.leave_flash(old, Left::Replaced);
        }
        self.cold.as_mut().is_some_and(|cold| cold.blocks.insert(number, segment))
    }

    /// `sight.rs`, `leave_flash`.
    fn leave_flash(&mut self, entry: u32, why: Left) {
        let Some(cold) = &mut self.cold else { return };
        let number = cold.blocks.number(entry);
        cold.blocks.unlist(entry);
        let in_memory = self.dram.find(number);
        if let Some(slot) = in_memory
            && self.dram.has(slot, ON_FLASH)
        {
            self.dram.unmark(slot, ON_FLASH | USED_SINCE);
        }
        if in_memory.is_none() && why == Left::Evicted {
            self.forget_when(number);
        }
    }

    /// `reclaim.rs`, `keep_segments_free`.
    fn keep_segments_free(&mut self) {
        while let Some(cold) = &self.cold {
            let is_short = (cold.log.free_count() as u64) < SPARE;
            if !(is_short || cold.blocks.is_full()) || !self.reclaim_one() {
                return;
            }
        }
    }

    /// `reclaim.rs`, `reclaim_one` and `reclaim_of`: what holds nothing first, then the oldest; an
    /// open one only where there is no other.
    fn reclaim_one(&mut self) -> bool {
        let Some(cold) = &self.cold else { return false };
        let living = cold.log.living();
        let mut closed = living.iter().filter(|segment| !cold.log.is_open(**segment));
        let oldest = closed.clone().next();
        let dead = closed.find(|segment| cold.blocks.live(**segment) == 0);
        let Some(&segment) = dead.or(oldest).or(living.first()) else { return false };
        self.write_again(segment);
        let Some(cold) = &mut self.cold else { return false };
        let listed: Vec<u32> = cold.blocks.of(segment).collect();
        for entry in listed {
            self.leave_flash(entry, Left::Evicted);
        }
        if let Some(cold) = &mut self.cold {
            cold.log.reclaim(segment);
            cold.blocks.end(segment);
        }
        self.counts.reclaimed += 1;
        true
    }

    /// `reclaim.rs`, `take_used`, and `rewrite.rs`.
    fn write_again(&mut self, segment: u32) {
        let Some(cold) = &mut self.cold else { return };
        let (bytes, mut used) = (cold.block_bytes, Vec::new());
        for entry in cold.blocks.of(segment) {
            if cold.rewrite_credit < bytes || used.len() == REWRITTEN_MAX {
                break;
            }
            let number = cold.blocks.number(entry);
            let in_memory = self.dram.find(number);
            let is_used = cold.blocks.is_used(entry)
                || in_memory.is_some_and(|slot| self.dram.has(slot, USED_SINCE));
            if is_used {
                cold.rewrite_credit -= bytes;
                used.push(number);
            }
        }
        let batch_blocks = (BATCH_BYTES.div_ceil(bytes) as usize).min(BATCH_BLOCKS);
        for batch in used.chunks(batch_blocks) {
            // Where no segment is ready these leave with the others.
            let Some(cold) = &mut self.cold else { return };
            let Ok(segments) = cold.log.append(batch.len()) else { continue };
            for (&number, segment) in batch.iter().zip(segments) {
                if !self.add_to_flash(number, segment) {
                    continue;
                }
                self.counts.rewritten += 1;
                if let Some(slot) = self.dram.ready(number) {
                    self.dram.mark(slot, ON_FLASH);
                }
            }
        }
    }

    /// `promote.rs`, `run`: every flight that waits, one after the other.
    pub(super) fn promote(&mut self) {
        while let Some(name) = self.cold.as_mut().and_then(|cold| cold.flights.start()) {
            let ended = self.bring_back(number_of(name.key));
            if let Some(cold) = &mut self.cold {
                cold.flights.end(name, ended);
            }
        }
    }

    /// `promote.rs`, `begin_flight` and `land`.
    fn bring_back(&mut self, number: u32) -> Ended {
        if self.dram.find(number).is_some() {
            return Ended::Landed;
        }
        if self.cold.as_ref().is_none_or(|cold| cold.blocks.find(number).is_none()) {
            return Ended::Gone;
        }
        if !self.may_write() || !self.make_room() {
            return Ended::Throttled;
        }
        let slot = self.dram.begin(number);
        self.dram.mark(slot, RETURNING);
        self.complete(slot);
        self.counts.promoted += 1;
        Ended::Landed
    }
}
