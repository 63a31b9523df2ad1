//! The log on the devices. A [`Shard`](shard::Shard) is one device with its segments; what spans
//! devices (the order of things, the set, removals) is in `tier`.
//!
//! ```text
//!            ready (header flushed)     append         roll over            reclaim
//!   free ───────────────────────► ready ──────► open ───────────► closed ─────────► free
//!     ▲                                                             ▲
//!     │ nobody's                                   claimed          │
//!     └──────────────────────── unclaimed ──────────────────────────┘   (after a restart)
//! ```

pub(super) mod append;
pub(super) mod chain;
pub(super) mod plan;
pub(super) mod reads;
pub(super) mod removal_log;
pub(super) mod segments;
pub(super) mod shard;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The order of things in the whole set.
#[derive(Debug, Default)]
pub(super) struct Order {
    sequence: AtomicU64,
    life: AtomicU32,
}

impl Order {
    pub fn new(sequence: u64, life: u32) -> Order {
        Order { sequence: sequence.into(), life: life.into() }
    }

    pub fn next_sequence(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Lives found on the devices are older than the next.
    pub fn at_least_life(&self, life: u32) {
        self.life.fetch_max(life, Ordering::SeqCst);
    }

    pub fn next_life(&self) -> u32 {
        self.life.fetch_add(1, Ordering::SeqCst) + 1
    }
}
