//! Numbers and pure parts by which a store decides, for whoever predicts what it will do: the very
//! ones that it runs, so that a prediction cannot drift from it.

pub use crate::ghosts::Ghosts;
pub use crate::policy::SKIPPED;
pub use crate::room::{LOOKS_MAX, LOOKS_TURNS};
pub use crate::settings::{BYTES_PER_ENTRY, CAPACITY_MAX, ENTRIES_MIN, GHOSTS_PER_ENTRY};

pub use crate::cold::rules as cold;
pub use crate::flash::rules as log;

/// What the ghost list knows the first namespace of a store by.
pub const FIRST_ERA: u64 = 1;
