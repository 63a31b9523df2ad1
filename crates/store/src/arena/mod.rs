//! Stand-in.
#![allow(missing_docs)]
pub const GRANULE_BYTES: usize = 4096;
#[derive(Debug, thiserror::Error)]
#[error("arena")]
pub struct ArenaError;
