//! The only place of this crate where raw memory becomes slices: pieces of the arena under a guard,
//! and callers' buffers under their promise.

use keepwarm_store::{ReadPin, WriteGrant};

/// The pinned part's bytes, in order.
pub(crate) fn pinned(pin: &ReadPin) -> impl Iterator<Item = &[u8]> {
    pin.pieces().map(|(start, bytes)| {
        // SAFETY: a piece lies within the arena's mapping, which outlives the pin's store, and
        // while the pin lives nobody writes it (tests/races.rs stops a reader across eviction).
        unsafe { std::slice::from_raw_parts(start, bytes) }
    })
}

/// The granted part's space, in order.
pub(crate) fn granted(grant: &mut WriteGrant) -> Vec<&mut [u8]> {
    let piece = |(start, bytes): (*mut u8, usize)| {
        // SAFETY: pieces of one grant do not overlap, lie within the arena's mapping and belong to
        // this grant alone, which is borrowed exclusively here (tests/races.rs writes beside
        // readers and checks every byte).
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    };
    grant.pieces().map(piece).collect()
}

/// A caller's buffer to write into.
///
/// # Safety
/// `start` is valid for reads and writes of `bytes` bytes for `'a`, and nobody else uses them.
pub(crate) unsafe fn destination<'a>(start: *mut u8, bytes: usize) -> &'a mut [u8] {
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: by this function's contract, which `Space::get_into` hands on to its caller
    // (tests/conformance.rs fills guard bytes around every buffer and checks them).
    unsafe { std::slice::from_raw_parts_mut(start, bytes) }
}

/// A caller's buffer to read from.
///
/// # Safety
/// `start` is valid for reads of `bytes` bytes for `'a`, and nobody writes them meanwhile.
pub(crate) unsafe fn source<'a>(start: *const u8, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: by this function's contract, which `Space::put_from` hands on to its caller.
    unsafe { std::slice::from_raw_parts(start, bytes) }
}
