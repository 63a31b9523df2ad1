//! The loops without intrinsics: the reference for the others, and the only ones off x86-64.

use super::lanes::{Lanes, SECRET_STEP, STRIPE_BYTES};

/// # Safety
/// `src` is readable for `stripes * 64` bytes.
pub(super) unsafe fn hash(lanes: &mut Lanes, src: *const u8, stripes: usize) {
    // SAFETY: as promised by the caller; with a null destination nothing is written.
    // `tests::nothing_beyond_the_end_is_touched` ends at a guard page.
    unsafe { run::<false>(lanes, std::ptr::null_mut(), src, stripes) }
}

/// # Safety
/// `src` is readable and `dst` writable for `stripes * 64` bytes, and they do not overlap.
pub(super) unsafe fn copy(lanes: &mut Lanes, dst: *mut u8, src: *const u8, stripes: usize) {
    // SAFETY: as promised by the caller. `tests::copies_land_at_every_alignment` has guard bytes.
    unsafe { run::<true>(lanes, dst, src, stripes) }
}

unsafe fn run<const COPY: bool>(lanes: &mut Lanes, dst: *mut u8, src: *const u8, stripes: usize) {
    for index in 0..stripes {
        let mut stripe = [0u8; STRIPE_BYTES];
        // SAFETY: stripe `index` lies within the `stripes * 64` bytes that the caller vouches for
        // on either side; the local copy makes sure that what is hashed is what is written.
        unsafe {
            std::ptr::copy_nonoverlapping(
                src.add(index * STRIPE_BYTES),
                stripe.as_mut_ptr(),
                STRIPE_BYTES,
            );
            if COPY {
                std::ptr::copy_nonoverlapping(
                    stripe.as_ptr(),
                    dst.add(index * STRIPE_BYTES),
                    STRIPE_BYTES,
                );
            }
        }
        lanes.take(&stripe, lanes.position * SECRET_STEP);
        let (_, full) = Lanes::run(lanes.position, 1);
        lanes.position += 1;
        if full {
            lanes.scramble();
            lanes.position = 0;
        }
    }
}
