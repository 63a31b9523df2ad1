//! From memory to memory.

use std::hint::black_box;
use std::time::Instant;

use keepwarm_store::checksum::{Kernel, copy_hash};

use crate::bytes::Place;

/// A way to copy a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The C library's.
    Memcpy,
    /// The product's: hashed on the way, past the cache.
    Hashed,
    /// The product's routine without its hash.
    Unhashed,
}

/// Copies each block of `from` to its place in `to`; seconds.
///
/// # Panics
/// Lists or blocks of different lengths.
///
/// # Safety
/// Every place is valid for its length until this returns, `from` for reads and `to` for writes;
/// no place of `to` overlaps another place.
pub unsafe fn copy(way: Way, to: &[Place], from: &[Place]) -> f64 {
    assert!(
        to.len() == from.len() && to.iter().zip(from).all(|(to, from)| to.len == from.len),
        "blocks have a source and a destination of one length"
    );
    let unhashed = unhashed();
    let start = Instant::now();
    for (to, from) in to.iter().zip(from) {
        // SAFETY: the caller's promise, with lengths asserted above. `tests/limits.rs` compares
        // what arrived, and guard bytes beside it, at sizes that are no multiple of a line.
        unsafe {
            match way {
                Way::Memcpy => std::ptr::copy_nonoverlapping(from.ptr, to.ptr, from.len),
                Way::Hashed => _ = black_box(copy_hash(to.ptr, from.ptr, from.len)),
                Way::Unhashed => unhashed(to.ptr, from.ptr, from.len),
            }
        }
    }
    start.elapsed().as_secs_f64()
}

type Copy = unsafe fn(*mut u8, *const u8, usize);

/// The loop that belongs to the kernel which the product's copy uses on this machine.
fn unhashed() -> Copy {
    match Kernel::best().name() {
        #[cfg(target_arch = "x86_64")]
        "avx512" => streams::avx512,
        #[cfg(target_arch = "x86_64")]
        "avx2" => streams::avx2,
        _ => plain,
    }
}

/// # Safety
/// As [`copy`], for one block.
unsafe fn plain(to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

#[cfg(target_arch = "x86_64")]
mod streams {
    //! The loops of `keepwarm_store::checksum`, less what they do with the loaded register.

    use std::arch::x86_64::{
        _MM_HINT_T0, _mm_prefetch, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256,
        _mm512_loadu_si512, _mm512_stream_si512,
    };

    const LINE: usize = 64;
    const PREFETCH_BYTES: usize = 4096;

    /// Cuts a block into the lines that are whole in the destination, and its two ends.
    ///
    /// # Safety
    /// As [`super::copy`]; `lines` copies as many lines as it is told.
    unsafe fn whole(
        to: *mut u8,
        from: *const u8,
        len: usize,
        lines: unsafe fn(*mut u8, *const u8, usize),
    ) {
        let head = to.align_offset(LINE).min(len);
        let count = (len - head) / LINE;
        let tail = head + count * LINE;
        // SAFETY: head + lines + rest = len, each part within the caller's ranges; the lines begin
        // at an aligned address. `tests/limits.rs` shifts both ends.
        unsafe {
            std::ptr::copy_nonoverlapping(from, to, head);
            lines(to.add(head), from.add(head), count);
            std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
            _mm_sfence();
        }
    }

    /// # Safety
    /// As [`super::copy`]; the CPU has AVX-512F.
    pub(super) unsafe fn avx512(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { whole(to, from, len, lines_avx512) }
    }

    /// # Safety
    /// As [`super::copy`]; the CPU has AVX2.
    pub(super) unsafe fn avx2(to: *mut u8, from: *const u8, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { whole(to, from, len, lines_avx2) }
    }

    /// # Safety
    /// `count` lines are readable at `from` and writable at `to`, which is aligned to a line.
    #[target_feature(enable = "avx512f")]
    unsafe fn lines_avx512(mut to: *mut u8, mut from: *const u8, count: usize) {
        for _ in 0..count {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_BYTES).cast());
            // SAFETY: one of the caller's lines; prefetching has no such need.
            unsafe { _mm512_stream_si512(to.cast(), _mm512_loadu_si512(from.cast())) };
            (to, from) = (to.wrapping_add(LINE), from.wrapping_add(LINE));
        }
    }

    /// # Safety
    /// As [`lines_avx512`].
    #[target_feature(enable = "avx2")]
    unsafe fn lines_avx2(mut to: *mut u8, mut from: *const u8, count: usize) {
        for _ in 0..count {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(PREFETCH_BYTES).cast());
            for half in [0, LINE / 2] {
                // SAFETY: half of one of the caller's lines.
                unsafe {
                    let data = _mm256_loadu_si256(from.add(half).cast());
                    _mm256_stream_si256(to.add(half).cast(), data);
                }
            }
            (to, from) = (to.wrapping_add(LINE), from.wrapping_add(LINE));
        }
    }
}
