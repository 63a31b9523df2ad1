//! Flash: a tier over 1 to 16 devices, each a log of segments on a file or a raw block device.
//! `docs/flash-format.md` gives the bytes and what survives. It knows neither index nor network.
//!
//! ```text
//! tier ──► log (a shard a device) ──► device (io_uring, threads, or a test's)
//!   └────► format (pure)   ◄──┘
//! ```

pub mod device;
pub mod error;
pub mod format;
mod log;
mod lost;
mod recover;
mod set;
mod settings;
mod tier;

/// What the log on a device decides by; see `crate::rules`.
pub mod rules {
    pub use super::format::{
        PAGE_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENTS_AT, SEGMENTS_MIN,
        segment_bytes_for,
    };
    pub use super::log::append::{ATTEMPTS, BEGIN_MAX};
    pub use super::log::plan::OVERHEAD_PAGES;
    pub use super::log::segments::RESERVED;
}

pub use error::OpenError;
pub use set::DEVICES_MAX;
pub use settings::{FlashPath, FlashSettings};
pub use tier::{FlashTier, READ_DEPTH_MAX, REMOVALS_MAX};
