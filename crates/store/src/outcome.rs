//! What the calls of a session take and answer.

use std::time::Duration;

use crate::guards::WriteGrant;
use crate::types::{
    BlockKey, Epoch, Generation, LeaseId, MissReason, NamespaceId, ShedReason, Tier,
};

/// A namespace that a session may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// The node's number for it.
    pub id: NamespaceId,
    /// The node's epoch, at least the one asked for.
    pub epoch: Epoch,
    /// How it differs from the most similar namespace of the same tenant that was already here:
    /// explains a hit rate that is silently zero. None when this very namespace was here, or none.
    pub nearest: Option<String>,
}

/// A complete, visible block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Where its bytes are.
    pub tier: Tier,
    /// Bytes of its first part.
    pub length: u32,
    /// Version of its first part's place.
    pub generation: Generation,
    /// XXH3-64 of its first part.
    pub checksum: u64,
}

/// The answer to a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Hits before the first miss.
    pub prefix: u32,
    /// One for each key.
    pub hits: Vec<Option<Hit>>,
    /// Why the first missing key is missing.
    pub miss: Option<MissReason>,
    /// Pins all hits; none when not asked for, nothing hit, or a cap is reached.
    pub lease: Option<LeaseId>,
    /// How long the lease holds, milliseconds; 0 without one.
    pub lease_ms: u32,
    /// Estimated time to restore the prefix, nanoseconds.
    pub restore_ns: u64,
    /// The namespace's epoch here.
    pub epoch: Epoch,
    /// The store's incarnation.
    pub incarnation: u64,
}

/// One part of a block that wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockPut {
    /// The block.
    pub key: BlockKey,
    /// Which part, from 0.
    pub part: u8,
    /// Its bytes.
    pub len: u32,
    /// The engine's own name of the block, for events; `Some(0)` counts as none.
    pub engine_hash: Option<u64>,
}

/// The answer to the first phase of a put.
#[derive(Debug)]
pub enum Reserve {
    /// Write the bytes, then commit.
    Granted(WriteGrant),
    /// The block is complete here.
    Present,
    /// Another writer is at this part, or this part is in and others are not yet.
    Pending,
    /// Not now.
    Shed(ShedReason),
}

/// What a report of bad bytes led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    /// The bytes are bad: the block is gone, and the next put of it is stored.
    Removed,
    /// The bytes are good here: the reader's connection is suspect.
    Intact,
    /// The block, or this generation of it, is no longer here.
    Gone,
}

/// Longest that one grant or renewal of a lease holds.
pub const LEASE_MAX: Duration = Duration::from_secs(10);
/// Longest that a lease holds from its first grant, renewals included.
pub const LEASE_TOTAL_MAX: Duration = Duration::from_secs(60);
/// Keys of one call; more are misuse.
pub const KEYS_MAX: usize = 65_536;
