//! A node's arena, mapped read-only: where a get's bytes are copied from.

use std::io;
use std::os::fd::OwnedFd;

use keepwarm_store::arena::{Extents, GRANULE_BYTES};
use keepwarm_store::checksum::Hasher;

use crate::channel::STEP_BYTES;
use crate::deadline::Deadline;
use crate::mapping::Mapping;
use crate::messages::MapReply;

/// Bytes made present at once; whether to go on is looked at in between.
const POPULATE_BYTES: usize = 64 << 20;

/// A mapped arena of one incarnation. Its node may write it at any moment; what a pin of the node's
/// holds still stays as it is, and only the checksum of a reply says that it did.
#[derive(Debug)]
pub(in crate::client) struct Arena {
    mapping: Mapping,
    incarnation: u64,
}

impl Arena {
    pub(in crate::client) fn map(memfd: &OwnedFd, reply: MapReply) -> io::Result<Arena> {
        let mapping = Mapping::of_arena(memfd, reply.bytes)?;
        Ok(Arena { mapping, incarnation: reply.incarnation })
    }

    /// Of the node whose arena it is.
    pub(in crate::client) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Makes the pages from `offset` on present, up to the end or until `stop`; where it stopped.
    pub(super) fn populate(&self, mut offset: usize, stop: impl Fn() -> bool) -> usize {
        while offset < self.mapping.bytes() && !stop() {
            let step = POPULATE_BYTES.min(self.mapping.bytes() - offset);
            self.mapping.populate(offset, step);
            offset += step;
        }
        offset
    }

    /// Copies a block of `len` bytes to `to` and returns the XXH3-64 of what arrived there, looking
    /// at the deadline between steps. None: the extents are not as long, or reach beyond the arena.
    ///
    /// # Safety
    /// `to` is valid for writes of `len` bytes, and nobody else uses them.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; what has arrived is undefined.
    pub(in crate::client) unsafe fn copy(
        &self,
        extents: &Extents,
        to: *mut u8,
        len: usize,
        until: Deadline,
    ) -> io::Result<Option<u64>> {
        let mut hasher = Hasher::new();
        let mut done = 0;
        for extent in extents.iter() {
            let bytes = (extent.granules as usize * GRANULE_BYTES).min(len - done);
            let offset = extent.first_granule as usize * GRANULE_BYTES;
            let Some(from) = self.mapping.at(offset, bytes) else { return Ok(None) };
            let mut copied = 0;
            while copied < bytes {
                if until.passed() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                let step = STEP_BYTES.min(bytes - copied);
                // SAFETY: `from` was given out for `bytes`, and this value, which holds the
                // mapping, is borrowed; `done + copied + step <= len`, the caller's to write. The
                // two cannot overlap: nothing else lies in the mapping. The node may write it
                // meanwhile: that is what the digest is for (`tests/shm_races.rs`).
                unsafe { hasher.update_copy(to.add(done + copied), from.add(copied), step) };
                copied += step;
            }
            done += bytes;
        }
        Ok((done == len).then(|| hasher.digest()))
    }
}
