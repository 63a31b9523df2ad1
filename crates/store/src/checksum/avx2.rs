//! The loops for AVX2: two registers hold the eight accumulators, two a stripe.

use std::arch::x86_64::{
    __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32,
    _mm256_set1_epi64x, _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64,
    _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256,
};

use super::lanes::{Lanes, PRIME32_1, SECRET, SECRET_SCRAMBLE, SECRET_STEP, STRIPE_BYTES};

const DISCARD: u8 = 0;
const CACHED: u8 = 1;
const STREAM: u8 = 2;
/// Half a stripe: one register.
const HALF: usize = 32;
/// How far the lines are asked for ahead of the loads: the hardware's own prefetch stops at each
/// 4 KiB. In a loop of copies alone (Sapphire Rapids) 1 KiB gave two thirds of this speed; in
/// `keepwarm bench` the two are alike.
const PREFETCH_BYTES: usize = 4096;

/// # Safety
/// The CPU has AVX2; `src` is readable for `stripes * 64` bytes.
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

#[target_feature(enable = "avx2")]
unsafe fn run<const SINK: u8>(
    lanes: &mut Lanes,
    mut dst: *mut u8,
    mut src: *const u8,
    mut stripes: usize,
) {
    let secret = SECRET.as_ptr();
    // SAFETY: `lanes.acc` is 64 bytes; every secret offset is at most SECRET_SCRAMBLE, 64 bytes
    // before its end; `dst` and `src` advance by one stripe for each of the `stripes` that the
    // caller vouches for (prefetching has no such need). Each half stripe is loaded once, and
    // that register is both hashed and stored. Tests as named above.
    unsafe {
        let mut acc = load_pair(lanes.acc.as_ptr().cast());
        while stripes > 0 {
            let (count, scramble_due) = Lanes::run(lanes.position, stripes);
            let mut key = secret.add(lanes.position * SECRET_STEP);
            for _ in 0..count {
                _mm_prefetch::<_MM_HINT_T0>(src.wrapping_add(PREFETCH_BYTES).cast());
                let data = load_pair(src);
                match SINK {
                    CACHED => store_pair(dst, data),
                    STREAM => {
                        _mm256_stream_si256(dst.cast(), data[0]);
                        _mm256_stream_si256(dst.add(HALF).cast(), data[1]);
                    }
                    _ => {}
                }
                let keys = load_pair(key);
                acc = [accumulate(acc[0], data[0], keys[0]), accumulate(acc[1], data[1], keys[1])];
                key = key.add(SECRET_STEP);
                src = src.add(STRIPE_BYTES);
                dst = dst.wrapping_add(STRIPE_BYTES);
            }
            lanes.position += count;
            if scramble_due {
                let keys = load_pair(secret.add(SECRET_SCRAMBLE));
                acc = [scramble(acc[0], keys[0]), scramble(acc[1], keys[1])];
                lanes.position = 0;
            }
            stripes -= count;
        }
        store_pair(lanes.acc.as_mut_ptr().cast(), acc);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_pair(from: *const u8) -> [__m256i; 2] {
    // SAFETY: the caller (`run`) vouches for 64 readable bytes.
    unsafe { [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(HALF).cast())] }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_pair(to: *mut u8, pair: [__m256i; 2]) {
    // SAFETY: the caller (`run`) vouches for 64 writable bytes.
    unsafe {
        _mm256_storeu_si256(to.cast(), pair[0]);
        _mm256_storeu_si256(to.add(HALF).cast(), pair[1]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn accumulate(acc: __m256i, data: __m256i, key: __m256i) -> __m256i {
    let keyed = _mm256_xor_si256(data, key);
    let product = _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed));
    let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(data);
    _mm256_add_epi64(acc, _mm256_add_epi64(product, swapped))
}

#[inline]
#[target_feature(enable = "avx2")]
fn scramble(acc: __m256i, key: __m256i) -> __m256i {
    let prime = _mm256_set1_epi64x(PRIME32_1 as i64);
    let mixed = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64::<47>(acc)), key);
    let low = _mm256_mul_epu32(mixed, prime);
    let high = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
    _mm256_add_epi64(low, _mm256_slli_epi64::<32>(high))
}
