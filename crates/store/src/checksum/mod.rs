//! XXH3-64 (seed 0, default secret), alone or fused with a copy, over one run of bytes or many.
//!
//! - `lanes.rs`: the eight accumulators and the constants of XXH3; no memory access.
//! - `portable.rs`, `avx2.rs`, `avx512.rs`: the same three loops (hash, hash and copy, hash and
//!   stream past the cache) per instruction set; [`Kernel`] picks one at run time.
//! - `hasher.rs`: cuts arbitrary pieces into stripes; everything public goes through it.
//!
//! Inputs of at most 240 bytes have formulas of their own in XXH3; those are xxhash-rust's.
//!
//! **Each source byte is read once.** A source may be shared memory that its owner is overwriting
//! (a lease ran out while the reader was stopped); the digest is always that of the bytes which
//! arrived in the destination, never of a second look at the source.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod hasher;
mod kernel;
mod lanes;
mod portable;
#[cfg(test)]
pub(crate) mod tests;

pub use hasher::Hasher;
pub use kernel::Kernel;

/// The XXH3-64 digest of `bytes`.
#[must_use]
pub fn xxh3_64(bytes: &[u8]) -> u64 {
    let mut hasher = Hasher::new();
    hasher.update(bytes);
    hasher.digest()
}

/// Copies `len` bytes and returns their XXH3-64 digest, at about the price of the copy alone.
///
/// For a block that lies in several pieces use [`Hasher::update_copy`] once per piece.
///
/// # Safety
/// `src` must be valid for reads of `len` bytes and `dst` for writes of `len` bytes; the two must
/// not overlap. Other processes may write `src` meanwhile; then some mix of old and new bytes
/// arrives, and the digest is that of the mix.
#[must_use]
pub unsafe fn copy_hash(dst: *mut u8, src: *const u8, len: usize) -> u64 {
    let mut hasher = Hasher::new();
    // SAFETY: the caller's promise, passed on unchanged. `tests::copies_land_at_every_alignment`
    // puts guard bytes around the destination.
    unsafe { hasher.update_copy(dst, src, len) };
    hasher.digest()
}
