//! Why a tier did not do what it was asked, and what the caller can do about it.

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same call will fail again.
    Never,
    /// The same call may succeed later.
    Later,
    /// The same call may succeed once a segment was reclaimed.
    AfterReclaim,
}

/// A tier's failure. The text names the object and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// No free segment.
    #[error("{tier} has no free segment: reclaim the oldest one and call again")]
    NoSegment {
        /// The tier or device.
        tier: String,
    },
    /// More than a segment holds.
    #[error("block of {bytes} bytes does not fit a segment: keep blocks below {limit} bytes")]
    TooLarge {
        /// What it takes.
        bytes: u64,
        /// What fits.
        limit: u64,
    },
    /// The segment began another life.
    #[error("the block's segment was reclaimed: forget the block")]
    Gone,
    /// The bytes are not those that were appended.
    #[error("{what} on {device} does not match its checksum: forget the block")]
    Corrupt {
        /// The device.
        device: String,
        /// What was read.
        what: &'static str,
    },
    /// The device failed this operation.
    #[error("{device} failed to {what}: {error}")]
    Io {
        /// The device.
        device: String,
        /// The operation.
        what: &'static str,
        /// What the system said.
        error: String,
    },
    /// The device did not answer in time; it is fenced now, and what the operation may still touch
    /// is kept.
    #[error("{device} did not {what} within {waited_ms} ms and is fenced: replace it")]
    Deadline {
        /// The device.
        device: String,
        /// The operation.
        what: &'static str,
        /// How long it was waited for.
        waited_ms: u64,
    },
    /// The device is out of service.
    #[error("{device} is out of service: {why}")]
    Fenced {
        /// The device.
        device: String,
        /// Since when and why.
        why: String,
    },
    /// Too much is under way.
    #[error("{what} is at its limit of {limit}: call again when less is under way")]
    Busy {
        /// What is at its limit.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The caller broke the contract.
    #[error("the call does not fit: {0}")]
    Invalid(&'static str),
}

impl TierError {
    /// What the caller does next.
    pub fn retry(&self) -> Retry {
        match self {
            TierError::NoSegment { .. } => Retry::AfterReclaim,
            TierError::Busy { .. } => Retry::Later,
            _ => Retry::Never,
        }
    }
}
