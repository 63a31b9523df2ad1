//! Callers' memory that tiers read from and write into, and what keeps it alive meanwhile.
//!
//! ```text
//!   caller ── pieces + hold ──► operation ── done ──► hold back to the caller
//!                                   │ deadline passed, the kernel still has the buffers
//!                                   ▼
//!                               quarantine ── the kernel lets go ──► hold dropped there
//! ```

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;

use crate::checksum::Hasher;

/// The unit of tiers' I/O, and the arena's granule.
pub const PAGE_BYTES: usize = 4096;

/// Whatever keeps the memory of an operation's pieces alive and the operation's own: a grant, pins,
/// a buffer. Given back when the operation is over; kept for as long as it may touch the pieces.
pub type Hold = Box<dyn Any + Send>;

/// A run of memory for I/O: begins on a page, and owns its last page whole.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: a piece is a place and a length; whoever made it promised (`Piece::new`) that the memory
// outlives the operation, on whichever thread that runs. `tests/tier_conformance.rs` runs them.
unsafe impl Send for Piece {}
// SAFETY: as above; sharing a piece shares a number.
unsafe impl Sync for Piece {}

impl Piece {
    /// `bytes` bytes at `at`, a multiple of [`PAGE_BYTES`].
    ///
    /// # Safety
    /// From `at` to the next page boundary after `bytes`, the memory stays mapped until the hold
    /// that goes with the operation is dropped or given back. An append only reads it; a read
    /// writes it, the last page's tail included, and nobody else touches it meanwhile.
    pub unsafe fn new(at: *mut u8, bytes: usize) -> Piece {
        debug_assert!(at.addr().is_multiple_of(PAGE_BYTES) && bytes > 0);
        Piece { at, bytes }
    }

    /// Where it begins.
    pub fn at(&self) -> *mut u8 {
        self.at
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What follows its first `pages` bytes, whole pages and fewer than all.
    pub(crate) fn after(&self, pages: usize) -> Piece {
        assert!(pages.is_multiple_of(PAGE_BYTES) && pages < self.bytes.max(1));
        // SAFETY: within the piece, whose promise covers it.
        Piece { at: unsafe { self.at.add(pages) }, bytes: self.bytes - pages }
    }

    /// Its first `pages` bytes, whole pages and fewer than all.
    pub(crate) fn before(&self, pages: usize) -> Piece {
        assert!(pages.is_multiple_of(PAGE_BYTES) && (1..self.bytes).contains(&pages));
        Piece { at: self.at, bytes: pages }
    }

    /// How long it is with its last page whole.
    pub fn padded(&self) -> usize {
        self.bytes.next_multiple_of(PAGE_BYTES)
    }
}

/// Whether pieces are what tiers take: aligned, `len` bytes together, whole pages but the last.
pub fn are_sound(pieces: &[Piece], len: u32) -> bool {
    let sum: usize = pieces.iter().map(Piece::bytes).sum();
    let whole = pieces.iter().rev().skip(1).all(|piece| piece.bytes.is_multiple_of(PAGE_BYTES));
    let aligned = pieces.iter().all(|piece| piece.at.addr().is_multiple_of(PAGE_BYTES));
    len > 0 && sum == len as usize && whole && aligned && pieces.iter().all(|piece| piece.bytes > 0)
}

/// A piece's memory, its last page whole.
///
/// # Safety
/// The operation that the piece belongs to is under way, and writes it no more.
pub(crate) unsafe fn memory_of<'a>(piece: &Piece) -> &'a [u8] {
    // SAFETY: mapped to its last page's end (`Piece::new`); the caller says that nobody writes.
    unsafe { std::slice::from_raw_parts(piece.at, piece.padded()) }
}

/// A piece's memory, its last page whole, to be written.
///
/// # Safety
/// The read that the piece belongs to is under way, and nobody else touches the memory.
pub(crate) unsafe fn memory_of_mut<'a>(piece: &Piece) -> &'a mut [u8] {
    // SAFETY: as above, exclusively.
    unsafe { std::slice::from_raw_parts_mut(piece.at, piece.padded()) }
}

/// XXH3-64 of the pieces' bytes.
pub(crate) fn hash_of(pieces: &[Piece]) -> u64 {
    let mut hasher = Hasher::new();
    for piece in pieces {
        // SAFETY: `Piece::new`'s promise; no operation writes them now: the caller's is complete.
        // `tests/tier_conformance.rs` compares every byte.
        hasher.update(unsafe { std::slice::from_raw_parts(piece.at, piece.bytes) });
    }
    hasher.digest()
}

/// A copy of the pieces' bytes.
pub(crate) fn gather(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(pieces.iter().map(Piece::bytes).sum());
    for piece in pieces {
        // SAFETY: as in `hash_of`.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.at, piece.bytes) });
    }
    bytes
}

/// Copies `bytes` over the pieces, which are as long together.
pub(crate) fn scatter(pieces: &[Piece], mut bytes: &[u8]) {
    for piece in pieces {
        let (head, rest) = bytes.split_at(piece.bytes);
        // SAFETY: `Piece::new`'s promise: mapped, and this operation's alone. No overlap, since no
        // safe reference to a piece's memory exists meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), piece.at, head.len()) };
        bytes = rest;
    }
}

/// Memory of whole pages, aligned to one; zeroed at first.
#[derive(Debug)]
pub struct AlignedBuffer {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its memory, as a `Vec` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: shared access only reads; operations that write take the buffer by value, as their hold.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// At least `bytes` bytes, at least one page.
    pub fn new(bytes: usize) -> AlignedBuffer {
        let bytes = bytes.max(1).next_multiple_of(PAGE_BYTES);
        let layout = Self::layout(bytes);
        // SAFETY: the layout's size is not zero. Miri and the allocator's own checks see misuse.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        AlignedBuffer { at, bytes }
    }

    /// A buffer that begins with these bytes.
    pub fn of(bytes: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::new(bytes.len());
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        buffer
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, PAGE_BYTES).expect("whole pages below isize::MAX")
    }

    /// All its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: owned, initialised, and only written through `&mut` or by an operation that owns
        // the buffer as its hold.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// All its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }

    /// Its first `bytes` bytes as a piece.
    ///
    /// # Safety
    /// The buffer outlives the operation: for an append its hold keeps the buffer, for a read the
    /// buffer is the hold.
    ///
    /// # Panics
    /// If it has no such many bytes.
    pub unsafe fn piece(&self, bytes: usize) -> Piece {
        assert!((1..=self.bytes).contains(&bytes), "the buffer has {} bytes", self.bytes);
        Piece { at: self.at, bytes }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and nobody else frees it.
        unsafe { dealloc(self.at, Self::layout(self.bytes)) };
    }
}
