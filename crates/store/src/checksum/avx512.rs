//! The loops for AVX-512F: one register holds all eight accumulators, one a stripe.

use std::arch::x86_64::{
    __m512i, _MM_HINT_T0, _mm_prefetch, _mm512_add_epi64, _mm512_loadu_si512, _mm512_mul_epu32,
    _mm512_set1_epi64, _mm512_shuffle_epi32, _mm512_slli_epi64, _mm512_srli_epi64,
    _mm512_storeu_si512, _mm512_stream_si512, _mm512_xor_si512,
};

use super::lanes::{Lanes, PRIME32_1, SECRET, SECRET_SCRAMBLE, SECRET_STEP, STRIPE_BYTES};

const DISCARD: u8 = 0;
const CACHED: u8 = 1;
const STREAM: u8 = 2;
/// How far the lines are asked for ahead of the loads: the hardware's own prefetch stops at each
/// 4 KiB. In a loop of copies alone (Sapphire Rapids) 1 KiB gave two thirds of this speed; in
/// `keepwarm bench` the two are alike.
const PREFETCH_BYTES: usize = 4096;

/// # Safety
/// The CPU has AVX-512F; `src` is readable for `stripes * 64` bytes.
pub(super) unsafe fn hash(lanes: &mut Lanes, src: *const u8, stripes: usize) {
    // SAFETY: as promised by the caller (`Kernel::available` asks the CPU); nothing is written.
    // `tests::nothing_beyond_the_end_is_touched` ends at a guard page.
    unsafe { run::<DISCARD>(lanes, std::ptr::null_mut(), src, stripes) }
}

/// # Safety
/// As [`hash`]; `dst` is writable for `stripes * 64` bytes and does not overlap `src`.
pub(super) unsafe fn copy(lanes: &mut Lanes, dst: *mut u8, src: *const u8, stripes: usize) {
    // SAFETY: as promised by the caller. `tests::copies_land_at_every_alignment` has guard bytes.
    unsafe { run::<CACHED>(lanes, dst, src, stripes) }
}

/// # Safety
/// As [`copy`]; `dst` is aligned to 64, and the caller fences before anyone else reads it.
pub(super) unsafe fn stream(lanes: &mut Lanes, dst: *mut u8, src: *const u8, stripes: usize) {
    debug_assert_eq!(dst.align_offset(STRIPE_BYTES), 0);
    // SAFETY: as promised by the caller. `tests::copies_land_at_every_alignment` has guard bytes.
    unsafe { run::<STREAM>(lanes, dst, src, stripes) }
}

#[target_feature(enable = "avx512f")]
unsafe fn run<const SINK: u8>(
    lanes: &mut Lanes,
    mut dst: *mut u8,
    mut src: *const u8,
    mut stripes: usize,
) {
    let secret = SECRET.as_ptr();
    // SAFETY: `lanes.acc` is 64 bytes; every secret offset is at most SECRET_SCRAMBLE, 64 bytes
    // before its end; `dst` and `src` advance by one stripe for each of the `stripes` that the
    // caller vouches for (prefetching has no such need). Each stripe is loaded once, and that
    // register is both hashed and stored. Tests as named above.
    unsafe {
        let mut acc = _mm512_loadu_si512(lanes.acc.as_ptr().cast());
        while stripes > 0 {
            let (count, scramble_due) = Lanes::run(lanes.position, stripes);
            let mut key = secret.add(lanes.position * SECRET_STEP);
            for _ in 0..count {
                _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(PREFETCH_BYTES).cast());
                let data = _mm512_loadu_si512(src.cast());
                match SINK {
                    CACHED => _mm512_storeu_si512(dst.cast(), data),
                    STREAM => _mm512_stream_si512(dst.cast(), data),
                    _ => {}
                }
                acc = accumulate(acc, data, _mm512_loadu_si512(key.cast()));
                key = key.add(SECRET_STEP);
                src = src.add(STRIPE_BYTES);
                dst = dst.wrapping_add(STRIPE_BYTES);
            }
            lanes.position += count;
            if scramble_due {
                acc = scramble(acc, _mm512_loadu_si512(secret.add(SECRET_SCRAMBLE).cast()));
                lanes.position = 0;
            }
            stripes -= count;
        }
        _mm512_storeu_si512(lanes.acc.as_mut_ptr().cast(), acc);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn accumulate(acc: __m512i, data: __m512i, key: __m512i) -> __m512i {
    let keyed = _mm512_xor_si512(data, key);
    let product = _mm512_mul_epu32(keyed, _mm512_srli_epi64::<32>(keyed));
    let swapped = _mm512_shuffle_epi32::<0b01_00_11_10>(data);
    _mm512_add_epi64(acc, _mm512_add_epi64(product, swapped))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn scramble(acc: __m512i, key: __m512i) -> __m512i {
    let prime = _mm512_set1_epi64(PRIME32_1 as i64);
    let mixed = _mm512_xor_si512(_mm512_xor_si512(acc, _mm512_srli_epi64::<47>(acc)), key);
    let low = _mm512_mul_epu32(mixed, prime);
    let high = _mm512_mul_epu32(_mm512_srli_epi64::<32>(mixed), prime);
    _mm512_add_epi64(low, _mm512_slli_epi64::<32>(high))
}
