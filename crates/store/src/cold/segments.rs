//! A segment's life, from the index's side.

/// No chunk.
pub(crate) const NO_CHUNK: u32 = u32::MAX;

/// One segment of flash: all of it belongs to one tenant, and goes as a whole.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Which life; 0: none.
    pub life: u32,
    pub tenant: u16,
    /// It leaves: its blocks are being taken out.
    pub is_leaving: bool,
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

impl Default for Segment {
    fn default() -> Segment {
        Segment {
            life: 0,
            tenant: 0,
            is_leaving: false,
            first: NO_CHUNK,
            last: NO_CHUNK,
            live: 0,
            live_pages: 0,
            pins: 0,
        }
    }
}
