//! Reads and writes of arena bytes by the store itself, with a place that a pin or a grant holds;
//! the callers are the guards, reports and moves, which do.

use crate::arena::{Arena, Extents};
use crate::checksum::Hasher;

/// XXH3-64 of the first `len` bytes at `extents`.
///
/// # Safety
/// The caller has pinned `extents`: nobody writes them meanwhile.
pub(crate) unsafe fn hash_of(arena: &Arena, extents: &Extents, len: usize) -> u64 {
    let mut hasher = Hasher::new();
    for (at, bytes) in arena.pieces(extents, len) {
        // SAFETY: `pieces` yields mapped ranges of the arena. The caller's pin keeps the place
        // from being freed, moved or granted, so nobody writes it. `tests/stress.rs` would see
        // changing bytes.
        hasher.update(unsafe { std::slice::from_raw_parts(at, bytes) });
    }
    hasher.digest()
}

/// Copies a part to `to`, which is as long, and returns XXH3-64 of what was copied.
///
/// # Safety
/// The caller has pinned `extents`: nobody writes them meanwhile.
pub(crate) unsafe fn copy_out(arena: &Arena, extents: &Extents, mut to: &mut [u8]) -> u64 {
    let mut hasher = Hasher::new();
    for (at, bytes) in arena.pieces(extents, to.len()) {
        let (piece, rest) = to.split_at_mut(bytes);
        // SAFETY: as in `hash_of`; `piece` is `bytes` long, is the caller's alone, and cannot
        // overlap the arena, of which no safe reference exists.
        unsafe { hasher.update_copy(piece.as_mut_ptr(), at, bytes) };
        to = rest;
    }
    hasher.digest()
}

/// Copies `from` to `extents`, and returns its XXH3-64.
///
/// # Safety
/// The caller alone may read or write `extents`.
pub(crate) unsafe fn copy_in(arena: &Arena, extents: &Extents, mut from: &[u8]) -> u64 {
    let mut hasher = Hasher::new();
    for (at, bytes) in arena.pieces(extents, from.len()) {
        let (piece, rest) = from.split_at(bytes);
        // SAFETY: `pieces` yields mapped ranges of the arena; the caller's grant is exclusive, so
        // nobody reads or writes them meanwhile (`tests/stress.rs`). No overlap, as above.
        unsafe { hasher.update_copy(at, piece.as_ptr(), bytes) };
        from = rest;
    }
    hasher.digest()
}

/// Copies `len` bytes between two places of the arena and returns XXH3-64 of what was copied.
///
/// # Safety
/// The caller has pinned `from`, and alone may read or write `to`.
pub(crate) unsafe fn copy_between(arena: &Arena, to: &Extents, from: &Extents, len: usize) -> u64 {
    let (mut targets, mut sources) = (arena.pieces(to, len), arena.pieces(from, len));
    let (mut target, mut source) = (targets.next(), sources.next());
    let mut hasher = Hasher::new();
    while let (Some((to, to_len)), Some((from, from_len))) = (target, source) {
        let bytes = to_len.min(from_len);
        // SAFETY: both are mapped ranges of the arena of at least `bytes` bytes; the allocator
        // never hands out one granule twice, so they do not overlap (its own tests), and each is
        // held by its owner (`tests/stress.rs`).
        unsafe { hasher.update_copy(to, from, bytes) };
        // SAFETY: `bytes` is at most the length of either range.
        let (next_to, next_from) = unsafe { (to.add(bytes), from.add(bytes)) };
        let left = |at, left| (left > 0).then_some((at, left));
        target = left(next_to, to_len - bytes).or_else(|| targets.next());
        source = left(next_from, from_len - bytes).or_else(|| sources.next());
    }
    hasher.digest()
}
