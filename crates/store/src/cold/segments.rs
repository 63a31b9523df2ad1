//! A segment's life, from the index's side.

use crate::tiers::SegmentRef;

/// No chunk.
pub(crate) const NO_CHUNK: u32 = u32::MAX;

/// One segment of flash: all of it belongs to one tenant, and goes as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Where it is, and which life of it; a life of 0: none.
    pub at: SegmentRef,
    pub tenant: u16,
    /// Claimed after a restart.
    pub is_recovered: bool,
    /// Its chain of chunks.
    pub first: u32,
    pub last: u32,
    /// Blocks listed.
    pub live: u32,
    /// Pages of those.
    pub live_pages: u32,
    /// Leases and reads that hold it.
    pub pins: u32,
}

impl Segment {
    /// Whether it has a life.
    pub fn is_alive(&self) -> bool {
        self.at.life != 0
    }
}

impl Default for Segment {
    fn default() -> Segment {
        Segment {
            at: SegmentRef { device: 0, segment: 0, life: 0 },
            tenant: 0,
            is_recovered: false,
            first: NO_CHUNK,
            last: NO_CHUNK,
            live: 0,
            live_pages: 0,
            pins: 0,
        }
    }
}
