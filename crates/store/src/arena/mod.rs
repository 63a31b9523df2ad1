//! Stand-in until the arena lands.
#![allow(missing_docs)]
mod allocator;
mod extents;
mod runs;
mod window;

pub use allocator::Allocator;
pub use extents::{Extent, Extents};
pub use window::Window;

pub const GRANULE_BYTES: usize = 4096;
pub const EXTENTS_MAX: usize = 8;

#[derive(Debug, thiserror::Error)]
#[error("arena of {0} bytes")]
pub struct ArenaError(u64);

#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    granules: u32,
}
// SAFETY: stand-in.
unsafe impl Send for Arena {}
// SAFETY: stand-in.
unsafe impl Sync for Arena {}

impl Arena {
    pub fn create(bytes: u64, _populate: bool) -> Result<Arena, ArenaError> {
        if bytes > 1 << 40 {
            return Err(ArenaError(bytes));
        }
        let memory = vec![0u8; bytes as usize].leak();
        Ok(Arena { base: memory.as_mut_ptr(), granules: (bytes / GRANULE_BYTES as u64) as u32 })
    }
    pub fn pieces(
        &self,
        extents: &Extents,
        len: usize,
    ) -> impl Iterator<Item = (*mut u8, usize)> + use<> {
        let base = self.base as usize;
        let mut left = len;
        let list: Vec<_> = extents.iter().collect();
        list.into_iter().map(move |extent| {
            let bytes = left.min(extent.granules as usize * GRANULE_BYTES);
            left -= bytes;
            ((base + extent.first_granule as usize * GRANULE_BYTES) as *mut u8, bytes)
        })
    }
    pub fn granules(&self) -> u32 {
        self.granules
    }
}
