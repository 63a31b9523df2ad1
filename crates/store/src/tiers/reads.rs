//! Reads with many in flight: submit up to the queue's depth, complete in any order.

use std::time::Duration;

use super::block::{PartPlace, Spot};
use super::error::TierError;
use super::pieces::{AlignedBuffer, Hold, Piece};

/// One part to be read.
pub struct TierRead {
    /// The caller's name for it.
    pub token: u64,
    /// Where its block is.
    pub spot: Spot,
    /// Which part: for the first, what the index knows; for others, what `describe` said.
    pub part: PartPlace,
    /// Where to, `part.len` bytes together; whole pages but the last, whose page is written whole.
    pub pieces: Vec<Piece>,
    /// What keeps the pieces.
    pub hold: Hold,
}

impl TierRead {
    /// A read into a buffer of its own, which is the hold.
    pub fn into_buffer(token: u64, spot: Spot, part: PartPlace, buffer: AlignedBuffer) -> TierRead {
        // SAFETY: the buffer becomes the hold. `tests/tier_conformance.rs`.
        let pieces = vec![unsafe { buffer.piece(part.len as usize) }];
        TierRead { token, spot, part, pieces, hold: Box::new(buffer) }
    }
}

/// A read that is over.
pub struct ReadDone {
    /// Which one.
    pub token: u64,
    /// `Ok`: the pieces hold the part's bytes, which match its checksum. Otherwise their content
    /// is undefined.
    pub result: Result<(), TierError>,
    /// What kept the pieces; `None` if the device still has them, then it is kept in quarantine.
    pub hold: Option<Hold>,
}

/// A read that was not taken.
pub struct ReadRefused {
    /// The read, hold included.
    pub read: TierRead,
    /// Why.
    pub error: TierError,
}

/// Reads of one thread. Every submitted read is completed exactly once, within the tier's time for
/// one operation, whatever the device does.
pub trait ReadQueue: Send {
    /// Reads in flight, at most.
    fn depth(&self) -> usize;

    /// Reads submitted and not completed.
    fn in_flight(&self) -> usize;

    /// Starts a read. The system may learn of it only with the next [`complete`](Self::complete).
    ///
    /// # Errors
    /// `Busy` at the depth; `Gone`, `Fenced`, `Invalid`: nothing was started.
    // A refusal carries the read back, and refusals are rare.
    #[allow(clippy::result_large_err)]
    fn submit(&mut self, read: TierRead) -> Result<(), ReadRefused>;

    /// The next read that is over, within `wait`. `None`: none was, or none is in flight.
    fn complete(&mut self, wait: Duration) -> Option<ReadDone>;
}
