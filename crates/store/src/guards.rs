//! What holds bytes still: a pin for reading, an exclusive grant for writing. Both let go on drop,
//! so that neither a panic nor a closed connection leaks space.
//!
//! ```text
//!                reserve                commit                 last pin gone
//!   free space ──────────► WriteGrant ─────────► the block's ───────────────► free space
//!        ▲                     │                     │  ▲
//!        └────── drop, abort ──┘                read │  │ drop
//!                                                    ▼  │
//!                                                  ReadPin (many)
//! ```
//! A granule has one owner at a time: the allocator, one grant, or one block.

use std::sync::Arc;

use crate::arena::Extents;
use crate::arena_bytes::{copy_in, copy_out};
use crate::index::Slot;
use crate::pending::FillingId;
use crate::puts::Purpose;
use crate::store::Store;
use crate::types::{Generation, PutOutcome, ShedReason};

/// One part of a block, held still for reading. While it lives its bytes do not change, move or
/// get reused. Counts as a use of the block once [`used`](Self::used) was called.
#[derive(Debug)]
pub struct ReadPin {
    pub(crate) store: Arc<Store>,
    pub(crate) slot: Slot,
    pub(crate) extents: Extents,
    pub(crate) len: u32,
    pub(crate) checksum: u64,
    pub(crate) generation: Generation,
    pub(crate) is_used: bool,
}

impl ReadPin {
    /// The part's bytes as pieces of the arena, in order. Valid while this pin lives; nobody
    /// writes them meanwhile.
    pub fn pieces(&self) -> impl Iterator<Item = (*const u8, usize)> + '_ {
        let pieces = self.store.arena.pieces(&self.extents, self.len());
        pieces.map(|(at, bytes)| (at.cast_const(), bytes))
    }

    /// Bytes of the part.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Never: a part has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// XXH3-64 of the bytes, as computed at their source.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Version of the bytes' place, for a report.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Where in the arena the bytes lie, for a reader that maps it.
    pub fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Says that the reader took all bytes: the block counts as used when the pin goes.
    pub fn used(&mut self) {
        self.is_used = true;
    }

    /// Copies the part into `to` and returns XXH3-64 of what was copied, to be compared with
    /// [`checksum`](Self::checksum).
    ///
    /// # Panics
    /// If `to` is not as long as the part.
    pub fn copy_to(&self, to: &mut [u8]) -> u64 {
        assert_eq!(to.len(), self.len(), "the buffer is as long as the part");
        // SAFETY: this pin holds the extents until it goes; `tests/stress.rs` would see a change.
        unsafe { copy_out(&self.store.arena, &self.extents, to) }
    }
}

impl Drop for ReadPin {
    fn drop(&mut self) {
        self.store.end_read(self.slot, self.is_used);
    }
}

/// Space for one part, for its writer alone. Dropping it gives the space back.
#[derive(Debug)]
pub struct WriteGrant {
    pub(crate) store: Arc<Store>,
    pub(crate) claim: Claim,
    /// Committed or aborted: nothing is left to give back.
    pub(crate) is_settled: bool,
}

/// What a grant is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub ns: u16,
    pub slot: Slot,
    pub filling: FillingId,
    pub part: u8,
    pub len: u32,
    pub engine_hash: Option<u64>,
    pub extents: Extents,
    pub purpose: Purpose,
}

impl WriteGrant {
    /// Where to write, in order. Valid while this grant lives; nobody else touches it meanwhile.
    pub fn pieces(&self) -> impl Iterator<Item = (*mut u8, usize)> + '_ {
        self.store.arena.pieces(&self.claim.extents, self.len())
    }

    /// Bytes of the part.
    pub fn len(&self) -> usize {
        self.claim.len as usize
    }

    /// Never: a part has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.claim.len == 0
    }

    /// Copies `from` into the grant and returns its XXH3-64, for [`commit`](Self::commit).
    ///
    /// # Panics
    /// If `from` is not as long as the part.
    pub fn write_from(&mut self, from: &[u8]) -> u64 {
        assert_eq!(from.len(), self.len(), "the bytes are as many as the part's");
        // SAFETY: the extents are this grant's alone, which is borrowed mutably meanwhile.
        // `tests/stress.rs` would see others' bytes in them.
        unsafe { copy_in(&self.store.arena, &self.claim.extents, from) }
    }

    /// Makes the bytes a part of the block, which becomes visible with its last one. `checksum` is
    /// XXH3-64 of what was written. `Stored`, or `Shed(Epoch)` when the epoch moved on or the
    /// block was dropped meanwhile.
    pub fn commit(mut self, checksum: u64) -> PutOutcome {
        self.is_settled = true;
        self.store.commit(&self.claim, checksum)
    }

    /// Gives the space back and counts why.
    pub fn abort(mut self, reason: ShedReason) {
        self.is_settled = true;
        self.store.abort(&self.claim, Some(reason));
    }
}

impl Drop for WriteGrant {
    fn drop(&mut self) {
        if !self.is_settled {
            self.store.abort(&self.claim, None);
        }
    }
}
