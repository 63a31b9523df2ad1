//! The node's memory: one memfd, handed out in granules of 4 KiB.
//!
//! - `mapping.rs`: [`Arena`], the mapping; the only raw pointers here. `limits.rs`: what this
//!   machine and its cgroups allow, asked before anything is mapped.
//!   `ground.rs`: huge pages and memory nodes.
//! - `extents.rs`: where a block lies. `runs.rs`: which granules are free, and where n in a row
//!   are. `allocator.rs`: [`Allocator`], which hands them out; pure numbers, no pointers.
//! - `window.rs`: which stretch to empty when enough is free but too scattered.
//!
//! Imported by the store and the server; imports nothing of the crate.

mod allocator;
mod extents;
mod ground;
mod limits;
mod mapping;
mod runs;
#[cfg(test)]
mod tests;
mod window;

pub use allocator::Allocator;
pub use extents::{Extent, Extents};
pub use ground::{Ground, HUGE_PAGE_BYTES, HugePages, Pages};
pub use limits::MemoryLimit;
pub use mapping::{Arena, ArenaError};
pub use window::Window;

/// The unit of the allocator, and the alignment of every extent.
pub const GRANULE_BYTES: usize = 4096;
/// The most pieces a block may lie in.
pub const EXTENTS_MAX: usize = 8;
