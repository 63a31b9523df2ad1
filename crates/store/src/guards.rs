//! What holds bytes still: a pin for reading, an exclusive grant for writing. Both let go on drop.

use std::sync::Arc;

use crate::store::Store;
use crate::types::{Generation, PutOutcome, ShedReason};

/// One part of a block, held still for reading. While it lives its bytes do not change, move or
/// get reused. Counts as a use of the block once [`used`](Self::used) was called.
#[derive(Debug)]
pub struct ReadPin {
    pub(crate) store: Arc<Store>,
    pub(crate) len: u32,
    pub(crate) checksum: u64,
    pub(crate) generation: Generation,
}

impl ReadPin {
    /// The part's bytes as pieces of the arena, in order. Valid while this pin lives; nobody
    /// writes them meanwhile.
    pub fn pieces(&self) -> impl Iterator<Item = (*const u8, usize)> + '_ {
        let _ = &self.store;
        std::iter::empty()
    }

    /// Bytes of the part.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Never: a part has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// XXH3-64 of the bytes, as computed at their source.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Version of the bytes' place, for a report.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Says that the reader took all bytes: the block counts as used when the pin goes.
    pub fn used(&mut self) {}

    /// Copies the part into `to` (as long as the part) and returns XXH3-64 of what was copied.
    pub fn copy_to(&self, _to: &mut [u8]) -> u64 {
        0
    }
}

/// Space for one part, for its writer alone. Dropping it gives the space back.
#[derive(Debug)]
pub struct WriteGrant {
    pub(crate) store: Arc<Store>,
    pub(crate) len: u32,
}

impl WriteGrant {
    /// Where to write, in order. Valid while this grant lives; nobody else touches it meanwhile.
    pub fn pieces(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        let _ = &self.store;
        std::iter::empty()
    }

    /// Bytes of the part.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Never: a part has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Copies `from` (as long as the part) into the grant and returns its XXH3-64, for `commit`.
    pub fn write_from(&mut self, _from: &[u8]) -> u64 {
        0
    }

    /// Makes the part part of its block; the block becomes visible with its last part. `checksum`
    /// is XXH3-64 of what was written. `Stored`, or `Shed` when the epoch moved on or the block
    /// was dropped meanwhile.
    pub fn commit(self, _checksum: u64) -> PutOutcome {
        PutOutcome::Stored
    }

    /// Gives the space back and counts why.
    pub fn abort(self, _reason: ShedReason) {}
}
