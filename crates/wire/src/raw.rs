//! The only place of this crate where raw memory becomes slices: pieces of the arena under a guard,
//! and callers' buffers under their promise. And one socket option that has no safe form.

use std::os::fd::{AsRawFd, OwnedFd};

use keepwarm_store::checksum::Hasher;
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

/// Copies `len` bytes from `from` into the granted part, from byte `at` on, and hashes what is
/// stored. `from` lies in a mapping that its owner may be writing: then a mix arrives, and the hash
/// is that of the mix.
///
/// # Panics
/// The part has not as many bytes from there on.
pub(crate) fn copy_staged(
    hasher: &mut Hasher,
    grant: &mut WriteGrant,
    at: usize,
    mut from: *const u8,
    len: usize,
) {
    assert!(at + len <= grant.len(), "{len} bytes at {at} of {}", grant.len());
    let (mut skip, mut left) = (at, len);
    for (start, bytes) in grant.pieces() {
        let skipped = skip.min(bytes);
        let now = (bytes - skipped).min(left);
        skip -= skipped;
        if now > 0 {
            // SAFETY: `skipped + now` lie within the piece, which belongs to this grant alone,
            // borrowed exclusively here; `from` is readable for what is left of `len`, because
            // `Mapping::at` gave it out for as much, and cannot overlap the arena, whose pages no
            // client's memory has. `tests/shm_attacks.rs` scribbles over it meanwhile.
            unsafe {
                hasher.update_copy(start.add(skipped), from, now);
                from = from.add(now);
            }
        }
        left -= now;
    }
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

/// Lets a socket be readable only once `bytes` are there, or its peer has ended. False: refused.
pub(crate) fn wake_at(socket: &OwnedFd, bytes: usize) -> bool {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the call reads one integer, which outlives it, through a descriptor that is open. The
    // tests of `channel` wait for less than they asked for, and would hang.
    let done = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            (&raw const bytes).cast(),
            size_of_val(&bytes) as libc::socklen_t,
        )
    };
    done == 0
}
