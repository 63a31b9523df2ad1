//! Places of the arena as pieces for a tier's I/O.

use crate::arena::{Arena, Extents};
use crate::tiers::Piece;

/// A part's place as pieces.
///
/// # Safety
/// Whoever gets them also gets, as the operation's hold, what keeps the extents: a read pin for an
/// append, which only reads them; the writer's grant for a read.
pub(super) unsafe fn pieces_of(arena: &Arena, extents: &Extents, len: u32) -> Vec<Piece> {
    let pieces = arena.pieces(extents, len as usize);
    // SAFETY: `pieces` yields mapped ranges of whole granules, the last one's rest included, since
    // extents are granules; the caller keeps them from being freed, moved or granted. Blocks of
    // wrong bytes would show in `tests/model`.
    pieces.map(|(at, bytes)| unsafe { Piece::new(at, bytes) }).collect()
}
