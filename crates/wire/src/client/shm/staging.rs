//! What puts are copied into for the node to take: a ring of slots in memory that both map.

use std::io;
use std::os::fd::OwnedFd;

use keepwarm_store::checksum::Hasher;

use crate::mapping::{self, Mapping};

/// Bytes of a slot. It is filled while the node empties the ones before it: large enough that the
/// two messages a slot costs are cheap beside its copy, small enough that all slots stay in the
/// cache that both cores share.
pub(in crate::client) const SLOT_BYTES: usize = 512 << 10;
/// One is filled, one is emptied, and two are on their way, so that neither side waits for the
/// other to wake up.
pub(in crate::client) const SLOTS: usize = 4;
/// What each connection of a client that puts has, at most.
pub(in crate::client) const STAGING_BYTES: u64 = (SLOTS * SLOT_BYTES) as u64;

/// One connection's staging.
#[derive(Debug)]
pub(in crate::client) struct Staging {
    mapping: Mapping,
}

impl Staging {
    /// New memory, and its descriptor for the node.
    pub(in crate::client) fn new() -> io::Result<(Staging, OwnedFd)> {
        let (mapping, memfd) = mapping::staging(STAGING_BYTES)?;
        Ok((Staging { mapping }, memfd))
    }

    /// Copies a piece to `offset`, through the cache: the node reads it next.
    ///
    /// # Panics
    /// The piece reaches beyond the staging.
    pub(in crate::client) fn copy(&mut self, hasher: &mut Hasher, offset: usize, piece: &[u8]) {
        let to = self.mapping.at(offset, piece.len()).expect("a piece lies within its slot");
        // SAFETY: `to` was given out for the piece's length, and the staging, borrowed exclusively,
        // is written by its one connection alone; a caller's buffer does not overlap it. The node
        // reads it only (`mapping::Mapping::of_staging`), and only what it was told of.
        unsafe { hasher.update_copy(to, piece.as_ptr(), piece.len()) };
    }
}
