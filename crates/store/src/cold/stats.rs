//! Flash's part of what a metrics page needs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::counters::FlashCounters;
use crate::store::Store;
use crate::tiers::DeviceStatus;

/// One tenant's blocks on flash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashTenantStats {
    /// Bytes of its segments.
    pub bytes: u64,
    /// What they may be at most.
    pub quota_bytes: Option<u64>,
    /// Its share of the counts.
    pub counters: FlashCounters,
}

/// How far recovery is, or was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RecoveryStats {
    /// Whether it still runs.
    pub is_running: bool,
    /// Segments followed.
    pub segments: u64,
    /// Segments to be followed.
    pub segments_total: u64,
    /// Blocks claimed.
    pub blocks: u64,
    /// How long it has taken.
    pub took: Duration,
    /// Blocks claimed a second.
    pub blocks_per_second: f64,
}

/// Flash, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct FlashStats {
    /// Bytes of all segments.
    pub capacity_bytes: u64,
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Blocks that are found, hidden ones included.
    pub blocks: u64,
    /// Entries that the index can hold.
    pub blocks_max: u64,
    /// Bytes of index tables allocated at start, and of memory's marks.
    pub index_bytes: u64,
    /// Bytes of index tables for one entry.
    pub index_bytes_per_entry: f64,
    /// Blocks that wait to be written.
    pub queued: u64,
    /// Blocks that are being written.
    pub writing: u64,
    /// Blocks on their way back.
    pub returning: u64,
    /// Segments that leases and reads hold.
    pub pinned_segments: u64,
    /// Those at most.
    pub pinned_segments_max: u64,
    /// Whether the bytes that may be written in a day are used up.
    pub is_short_of_budget: bool,
    /// What flash gives, bytes a second, as measured; it makes restore estimates.
    pub restore_bytes_per_second: f64,
    /// Bytes written to devices over bytes of blocks written for the first time; 0 before any.
    pub amplification: f64,
    /// Recovery of an earlier life's blocks.
    pub recovery: RecoveryStats,
    /// Its devices.
    pub devices: Vec<DeviceStatus>,
    /// Sum over tenants.
    pub counters: FlashCounters,
    /// By tenant, in the store's order.
    pub tenants: Vec<FlashTenantStats>,
}

impl Store {
    /// Flash's figures; none without flash.
    pub fn flash_stats(&self) -> Option<FlashStats> {
        let flash = self.flash.as_ref()?;
        let status = flash.tier().status();
        let mut inner = self.lock();
        let cold = inner.cold();
        let mut counters = FlashCounters::default();
        cold.tenants.iter().for_each(|tenant| counters.add(&tenant.counters));
        let device_bytes: u64 = status.devices.iter().map(|device| device.written_bytes).sum();
        let fresh = counters.written_bytes.max(1) as f64;
        let so_far = cold.recovery.so_far;
        let index_bytes = (cold.index.bytes() + cold.marks.bytes()) as u64;
        let blocks_max = u64::from(cold.index.capacity());
        Some(FlashStats {
            capacity_bytes: cold.capacity_bytes(),
            segment_bytes: cold.segment_bytes,
            blocks: cold.index.listed().into(),
            blocks_max,
            index_bytes,
            index_bytes_per_entry: cold.index.bytes() as f64 / blocks_max as f64,
            queued: cold.queue.len() as u64,
            writing: cold.writing.into(),
            returning: cold.flights.under_way() as u64,
            pinned_segments: cold.pinned.into(),
            pinned_segments_max: cold.pinned_max.into(),
            is_short_of_budget: flash.is_short.load(Ordering::Acquire),
            restore_bytes_per_second: cold.rate() * 1e9,
            amplification: if counters.written > 0 { device_bytes as f64 / fresh } else { 0.0 },
            recovery: RecoveryStats {
                is_running: cold.recovery.is_running,
                segments: so_far.segments,
                segments_total: so_far.segments_total,
                blocks: so_far.blocks,
                took: so_far.took,
                blocks_per_second: so_far.blocks_per_second(),
            },
            devices: status.devices,
            counters,
            tenants: cold
                .tenants
                .iter()
                .map(|tenant| FlashTenantStats {
                    bytes: u64::from(tenant.segments) * cold.segment_bytes,
                    quota_bytes: tenant.quota_bytes,
                    counters: tenant.counters,
                })
                .collect(),
        })
    }
}
