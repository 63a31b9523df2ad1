//! What the store knows of flash, behind its lock.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::budget::Budget;
use super::counters::FlashCounters;
use super::entry::ColdSlot;
use super::flights::Flights;
use super::index::{CHUNK_SLOTS, FlashIndex};
use super::queue::{Marks, WriteQueue};
use crate::config::{FlashAdmission, FlashConfig, StoreConfig};
use crate::store::Store;
use crate::tenants::{tick_start, ticks};
use crate::tiers::{PAGE_BYTES, Recovered, SegmentRef, Spot, Tier, TierStatus};
use crate::types::{BlockKey, Instant};

/// Flash bytes for which one entry is allocated unless the user says otherwise.
pub const BYTES_PER_ENTRY: u64 = 64 << 10;
/// Most entries, so that slot numbers and tags share 32 bits.
const ENTRIES_MAX: u64 = 1 << 28;
/// Blocks on their way back at once.
pub const FLIGHTS_MAX: u32 = 1024;
/// Blocks on their way back take at most one part in this many of the arena.
pub const FLIGHTS_SHARE: u64 = 4;
/// Leases and reads hold at most one part in this many of the segments.
const PINNED_SHARE: u32 = 4;
/// Written again: at most one byte for this many that are written for the first time.
pub const REWRITE_SHARE: u64 = 2;
/// A first guess of what flash gives in a nanosecond, bytes; on the low side.
const RATE_GUESS: f64 = 0.5;
/// Bytes over which the rate is averaged.
const RATE_BYTES: f64 = (256 << 20) as f64;
/// Spots that the tier has yet to be told to forget, at most; beyond it its own figure is off.
const FORGOTTEN_MAX: usize = 1 << 16;

/// One tenant's part of it.
#[derive(Debug)]
pub(crate) struct ColdTenant {
    pub name: Arc<str>,
    /// Bytes of flash that it may hold; none: all of it.
    pub quota_bytes: Option<u64>,
    /// Segments that it has.
    pub segments: u32,
    pub counters: FlashCounters,
}

/// How far recovery is.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    pub is_running: bool,
    pub so_far: Recovered,
    /// Keys dropped since it began; what it still finds of them is not wanted.
    pub dropped: HashSet<(u16, BlockKey)>,
    /// Namespaces dropped since it began, by fingerprint.
    pub dropped_spaces: HashSet<[u8; 32]>,
}

/// What the store knows of flash.
#[derive(Debug)]
pub(crate) struct Cold {
    pub index: FlashIndex,
    pub marks: Marks,
    pub queue: WriteQueue,
    pub flights: Flights,
    pub budget: Budget,
    pub tenants: Vec<ColdTenant>,
    pub recovery: Recovery,
    pub admission: FlashAdmission,
    /// Entries of older versions.
    pub hidden: u64,
    /// Where the sweep for hidden and expired entries goes on.
    pub sweep_at: ColdSlot,
    /// Segments that leases or reads hold.
    pub pinned: u32,
    /// Those at most.
    pub pinned_max: u32,
    /// Blocks that the writer has taken from the queue and not yet settled.
    pub writing: u32,
    /// Bytes that may be written again for the sake of their use.
    pub rewrite_credit: u64,
    /// What the tier has yet to hear.
    pub forgotten: Vec<(Spot, u64)>,
    pub block_bytes_max: u64,
    pub segment_bytes: u64,
    pub patience: Duration,
    /// Number of each device's first segment, and of its segments.
    devices: Vec<(u32, u32)>,
    /// Devices whose loss was seen.
    pub lost: Vec<bool>,
    rate_bytes: f64,
    rate_ns: f64,
}

impl Cold {
    /// Everything, allocated at once. `config` is settled, `flash` its part of it.
    pub fn new(
        config: &StoreConfig,
        flash: &FlashConfig,
        status: &TierStatus,
        seed: [u64; 2],
        now: Instant,
    ) -> Cold {
        let mut segments = 0;
        let number = |device: &crate::tiers::DeviceStatus| {
            segments += device.segments;
            (segments - device.segments, device.segments)
        };
        let devices: Vec<_> = status.devices.iter().map(number).collect();
        let capacity = u64::from(segments) * status.segment_bytes;
        // At least a chunk for each segment, whatever is in it.
        let least = u64::from(segments) * u64::from(CHUNK_SLOTS);
        let default = (capacity / BYTES_PER_ENTRY).max(least);
        let blocks = flash.blocks_max.map_or(default, u64::from).clamp(1, ENTRIES_MAX);
        let tenants = config.tenants.iter().map(|tenant| ColdTenant {
            name: tenant.name.as_str().into(),
            quota_bytes: tenant.flash_quota_bytes,
            segments: 0,
            counters: FlashCounters::default(),
        });
        let tenants: Vec<_> = tenants.collect();
        let flying = config.capacity_bytes / FLIGHTS_SHARE;
        Cold {
            index: FlashIndex::new(blocks as u32, segments, seed),
            marks: Marks::new(config.max_blocks.expect("settled")),
            queue: WriteQueue::new(flash.queue_blocks, tenants.len()),
            flights: Flights::new(FLIGHTS_MAX, flying, tenants.len()),
            budget: Budget::new(flash.day_bytes, now),
            lost: vec![false; devices.len()],
            tenants,
            recovery: Recovery::default(),
            admission: flash.admission,
            hidden: 0,
            sweep_at: 0,
            pinned: 0,
            pinned_max: (segments / PINNED_SHARE).max(1),
            writing: 0,
            rewrite_credit: 0,
            forgotten: Vec::new(),
            block_bytes_max: status.block_bytes_max,
            segment_bytes: status.segment_bytes,
            patience: flash.read_patience,
            devices,
            rate_bytes: 0.0,
            rate_ns: 0.0,
        }
    }

    /// The number that a segment of a device has in the index.
    pub fn number_of(&self, at: SegmentRef) -> u32 {
        let (first, count) = self.devices[usize::from(at.device)];
        assert!(at.segment < count, "a segment of its device");
        first + at.segment
    }

    /// Whether what lies there is gone for good: with its device, or with its segment's life.
    pub fn is_lost(&self, at: SegmentRef) -> bool {
        let segment = self.index.segment(self.number_of(at));
        self.lost[usize::from(at.device)] || (segment.is_alive() && segment.at != at)
    }

    /// Segments of a device, by number.
    pub fn segments_of(&self, device: usize) -> std::ops::Range<u32> {
        let (first, count) = self.devices[device];
        first..first + count
    }

    /// Bytes of all segments.
    pub fn capacity_bytes(&self) -> u64 {
        let segments: u64 = self.devices.iter().map(|(_, count)| u64::from(*count)).sum();
        segments * self.segment_bytes
    }

    /// Where a block is, for the tier.
    pub fn spot(&self, slot: ColdSlot, parts: u8) -> Spot {
        let (entry, place) = (self.index.entry(slot), self.index.place(slot));
        let SegmentRef { device, segment, life } =
            self.index.segment(self.index.segment_of(slot)).at;
        Spot {
            segment,
            life,
            header_page: place.header_page,
            payload_page: place.payload_page,
            device,
            entry: entry.in_record(),
            parts,
        }
    }

    /// Begins a segment's life if it has none.
    pub fn open_segment(&mut self, at: SegmentRef, tenant: usize, is_recovered: bool) -> u32 {
        let number = self.number_of(at);
        if !self.index.segment(number).is_alive() {
            self.index.begin(number, at, tenant, is_recovered);
            self.tenants[tenant].segments += 1;
        }
        number
    }

    /// Ends a segment's life; nothing is in it.
    pub fn close_segment(&mut self, number: u32) {
        let segment = self.index.segment(number);
        if segment.is_alive() {
            self.tenants[usize::from(segment.tenant)].segments -= 1;
            self.index.end(number);
        }
    }

    /// Holds a segment: it is not reclaimed meanwhile.
    pub fn pin(&mut self, number: u32) {
        let segment = self.index.segment_mut(number);
        segment.pins += 1;
        self.pinned += u32::from(segment.pins == 1);
    }

    pub fn unpin(&mut self, number: u32) {
        let segment = self.index.segment_mut(number);
        segment.pins -= 1;
        self.pinned -= u32::from(segment.pins == 0);
    }

    /// The tier forgets a block with the next tick.
    pub fn forget(&mut self, slot: ColdSlot, parts: u8) {
        if self.forgotten.len() < FORGOTTEN_MAX {
            let bytes = u64::from(self.index.place(slot).pages()) * PAGE_BYTES as u64;
            let spot = self.spot(slot, parts);
            self.forgotten.push((spot, bytes));
        }
    }

    /// Tells the tier what is no longer pointed to.
    pub fn take_forgotten(&mut self) -> Vec<(Spot, u64)> {
        std::mem::take(&mut self.forgotten)
    }

    /// Bytes came from flash in this time, with reads under way all along.
    pub fn count_rate(&mut self, bytes: u64, time: Duration) {
        self.rate_bytes += bytes as f64;
        self.rate_ns += time.as_nanos() as f64;
        if self.rate_bytes > RATE_BYTES {
            self.rate_bytes /= 2.0;
            self.rate_ns /= 2.0;
        }
    }

    /// What flash gives in a nanosecond, bytes.
    pub fn rate(&self) -> f64 {
        let is_known = self.rate_bytes >= (1 << 20) as f64 && self.rate_ns > 0.0;
        if is_known { self.rate_bytes / self.rate_ns } else { RATE_GUESS }
    }

    /// Time to bring so many bytes back, behind what is on its way already, nanoseconds.
    pub fn restore_ns(&self, bytes: u64) -> u64 {
        ((bytes + self.flights.bytes()) as f64 / self.rate()) as u64
    }

    /// Fresh bytes were written: some may be written again for that.
    pub fn earn_rewrites(&mut self, bytes: u64) {
        let most = 2 * self.segment_bytes;
        self.rewrite_credit = (self.rewrite_credit + bytes / REWRITE_SHARE).min(most);
    }

    /// Tells a tier what was forgotten; not under the store's lock.
    pub fn tell(tier: &dyn Tier, forgotten: &[(Spot, u64)]) {
        forgotten.iter().for_each(|(spot, bytes)| tier.forget(*spot, *bytes));
    }
}

impl Store {
    /// When a tick begins, in milliseconds of Unix time; 0 stays 0: never.
    pub(super) fn unix_ms_at(&self, opened: Instant, tick: u32) -> u64 {
        if tick == 0 {
            return 0;
        }
        let (start, now) = (tick_start(opened, tick), self.clock.now());
        let (ahead, behind) = (start.since(now).as_millis(), now.since(start).as_millis());
        (self.clock.unix_ms() + ahead as u64).saturating_sub(behind as u64).max(1)
    }

    /// The tick that a Unix time is in; 0 stays 0: never.
    pub(super) fn tick_of_unix(&self, opened: Instant, unix_ms: u64) -> u32 {
        if unix_ms == 0 {
            return 0;
        }
        let left = unix_ms.saturating_sub(self.clock.unix_ms());
        ticks(opened, self.clock.now().after(Duration::from_millis(left)))
    }
}
