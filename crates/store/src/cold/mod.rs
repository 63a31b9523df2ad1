//! The second tier, from the store's side: which blocks are on flash, how they get there, and how
//! they come back. Knows tiers (`crate::tiers`) by their trait alone.
//!
//! ```text
//!  complete, used ──admit──► queue ──writer──► tier.append ──► flash index   (admit.rs, writer.rs)
//!  read, prefetch ──join──► flight ──promoter──► tier read ──► memory's index (fetch.rs, …)
//!  no segment free ──reclaim──► used ones written again, the others leave      (reclaim.rs)
//!  restart ──recover──► claimed by headers, verified at first read             (recover.rs)
//! ```
//! - `index.rs`, `entry.rs`, `segments.rs`: where each block is; pure tables.
//! - `queue.rs`, `flights.rs`, `budget.rs`, `counters.rs`: bounded state and figures.
//! - `sight.rs`: what a call sees, and every way in which a block leaves flash.
//! - `workers.rs`: the threads, and what wakes them.
//!
//! All of this but the threads' own state lies behind the store's one lock; no I/O happens under
//! it. Without flash the store has none of it, and a call pays for one look at a pointer.

mod admit;
mod budget;
mod check;
mod closed;
mod counters;
mod drain;
mod entry;
mod fetch;
mod flights;
mod index;
mod pieces;
mod promote;
mod queue;
mod reclaim;
mod recover;
mod removal;
mod rewrite;
mod segments;
mod sight;
mod state;
mod stats;
mod workers;
mod writer;

pub use counters::{FlashCounters, FlashShed};
pub use drain::Drained;
pub(crate) use entry::ColdSlot;
pub use fetch::Prefetched;
pub(crate) use sight::Left;
pub(crate) use state::Cold;
pub use stats::{FlashStats, FlashTenantStats, RecoveryStats};
pub(crate) use workers::{Flash, open_tier};

/// What the second tier decides by; see `crate::rules`.
pub mod rules {
    pub use super::entry::RECORD_BLOCKS_MAX;
    pub use super::fetch::{PREFETCH_MAX, PREFETCH_SHARE, TRIES_MAX};
    pub use super::flights::{Ended, FlightName, Flights};
    pub use super::index::CHUNK_SLOTS;
    pub use super::queue::{ON_FLASH, QUEUED, RETURNING, TOUCHED, USED_SINCE};
    pub use super::reclaim::SPARE;
    pub use super::rewrite::BLOCKS_MAX as REWRITTEN_MAX;
    pub use super::state::{BYTES_PER_ENTRY, FLIGHTS_MAX, FLIGHTS_SHARE, REWRITE_SHARE};
    pub use super::writer::{BATCH_BLOCKS, BATCH_BYTES, LOOKS_MAX, RECLAIMS_MAX};
}
