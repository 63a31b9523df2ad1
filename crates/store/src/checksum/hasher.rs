//! Arbitrary pieces in, whole stripes to the kernel, one digest out.

use std::fmt;

use super::kernel::Kernel;
use super::lanes::{Lanes, SECRET_LAST, STRIPE_BYTES};

/// Inputs up to here are hashed by XXH3's formulas for short inputs.
const SHORT_BYTES_MAX: usize = 240;
/// Pieces below this gather in the buffer. Above [`SHORT_BYTES_MAX`], so that no byte of a short
/// input has gone to the kernel before the whole is known to be long.
const BULK_BYTES_MIN: usize = 256;
/// What the kernel never takes: XXH3 hashes the last 64 bytes with another secret, and they must
/// not be read from the source twice (see the module's note).
const KEEP_BYTES: usize = STRIPE_BYTES + 1;
const BUFFER_BYTES: usize = 512;
/// From here a copy goes past the cache: the destination is not read soon by this core, and the
/// lines it would evict are worth more. Below, the fence costs more than it saves.
const STREAM_BYTES_MIN: usize = 8 << 10;
/// Step of the copy through a local buffer where the destination is not aligned to a line.
const BOUNCE_BYTES: usize = 4096;

/// XXH3-64 over a sequence of pieces of any sizes; optionally copies them as it goes.
///
/// ```
/// use keepwarm_store::checksum::{Hasher, xxh3_64};
/// let mut hasher = Hasher::new();
/// hasher.update(b"hello ");
/// hasher.update(b"world");
/// assert_eq!(hasher.digest(), xxh3_64(b"hello world"));
/// ```
#[derive(Clone)]
pub struct Hasher {
    lanes: Lanes,
    buffer: [u8; BUFFER_BYTES],
    /// Bytes in `buffer`; once the input is long at least [`KEEP_BYTES`] of it.
    buffered: usize,
    total_bytes: u64,
    kernel: &'static Kernel,
    /// Whether long copies go past the cache.
    streams: bool,
}

impl Default for Hasher {
    fn default() -> Self {
        Hasher::new()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher")
            .field("kernel", &self.kernel.name())
            .field("total_bytes", &self.total_bytes)
            .finish_non_exhaustive()
    }
}

impl Hasher {
    /// Starts with no bytes, on the fastest kernel of this CPU.
    #[must_use]
    pub fn new() -> Hasher {
        Hasher::with_kernel(Kernel::best())
    }

    /// Starts on a given kernel; for tests and benchmarks.
    #[must_use]
    pub fn with_kernel(kernel: &'static Kernel) -> Hasher {
        Hasher {
            lanes: Lanes::new(),
            buffer: [0; BUFFER_BYTES],
            buffered: 0,
            total_bytes: 0,
            kernel,
            streams: true,
        }
    }

    /// Copies through the cache: for a destination that is read again at once, by whichever core.
    #[must_use]
    pub fn cached(self) -> Hasher {
        Hasher { streams: false, ..self }
    }

    /// Bytes taken so far.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Takes the next piece.
    pub fn update(&mut self, piece: &[u8]) {
        // SAFETY: the slice is readable for its length, and nothing is written without `COPY`.
        // `tests::pieces_do_not_matter` cuts inputs at random places.
        unsafe { self.advance::<false>(std::ptr::null_mut(), piece.as_ptr(), piece.len()) }
    }

    /// Takes the next piece and copies it: `len` bytes from `src` to `dst`. When it returns, the
    /// bytes are visible to whoever learns of them through a later store (non-temporal ones are
    /// fenced).
    ///
    /// # Safety
    /// `src` must be valid for reads of `len` bytes and `dst` for writes of `len` bytes; the two
    /// must not overlap. Other processes may write `src` meanwhile (see the module's note).
    pub unsafe fn update_copy(&mut self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller's promise, passed on unchanged.
        unsafe { self.advance::<true>(dst, src, len) }
    }

    /// The digest of all pieces so far; more may follow.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let held = &self.buffer[..self.buffered];
        if self.total_bytes <= SHORT_BYTES_MAX as u64 {
            return xxhash_rust::xxh3::xxh3_64(held);
        }
        debug_assert!(self.buffered >= STRIPE_BYTES, "a long input keeps its last stripe");
        let mut lanes = self.lanes.clone();
        // SAFETY: (buffered - 1) / 64 stripes lie within `buffered` bytes.
        // `tests::every_kernel_matches_the_reference` covers every length near the boundaries.
        unsafe { (self.kernel.hash)(&mut lanes, held.as_ptr(), (held.len() - 1) / STRIPE_BYTES) };
        if let Some(last) = held.last_chunk::<STRIPE_BYTES>() {
            lanes.take(last, SECRET_LAST);
        }
        lanes.merge(self.total_bytes)
    }

    /// # Safety
    /// `src` readable for `len`; with `COPY`, `dst` writable for `len` and disjoint from `src`.
    unsafe fn advance<const COPY: bool>(&mut self, dst: *mut u8, src: *const u8, len: usize) {
        let fill = self.buffered.next_multiple_of(STRIPE_BYTES) - self.buffered;
        self.total_bytes += len as u64;
        if len < fill + BULK_BYTES_MIN {
            if self.buffered + len > BUFFER_BYTES {
                self.make_room();
            }
            // SAFETY: the caller's promise; `gather` checks the buffer's end.
            return unsafe { self.gather::<COPY>(dst, src, len) };
        }
        // drawn: | buffered | fill | bulk: whole stripes for the kernel | kept: 65 to 128 bytes |
        let stripes = (len - fill - KEEP_BYTES) / STRIPE_BYTES;
        let kept = fill + stripes * STRIPE_BYTES;
        // SAFETY: fill + stripes * 64 + the rest = len, each part within the caller's ranges;
        // `wrapping_add` because `dst` may be null when nothing is copied. The buffer holds whole
        // stripes after `fill`. `tests::pieces_do_not_matter` and
        // `tests::copies_land_at_every_alignment` cut, shift and guard.
        unsafe {
            self.gather::<COPY>(dst, src, fill);
            let whole = self.buffered / STRIPE_BYTES;
            (self.kernel.hash)(&mut self.lanes, self.buffer.as_ptr(), whole);
            self.buffered = 0;
            if COPY {
                self.bulk_copy(dst.add(fill), src.add(fill), stripes);
            } else {
                (self.kernel.hash)(&mut self.lanes, src.add(fill), stripes);
            }
            self.gather::<COPY>(dst.wrapping_add(kept), src.add(kept), len - kept);
        }
    }

    /// Appends to the buffer, and writes out of the buffer: the source is read once.
    ///
    /// # Safety
    /// As [`Hasher::advance`].
    unsafe fn gather<const COPY: bool>(&mut self, dst: *mut u8, src: *const u8, len: usize) {
        assert!(len <= BUFFER_BYTES - self.buffered, "hasher buffer overrun");
        // SAFETY: asserted to fit the buffer; the rest is the caller's promise.
        // `tests::copies_land_at_every_alignment` has guard bytes.
        unsafe {
            let held = self.buffer.as_mut_ptr().add(self.buffered);
            std::ptr::copy_nonoverlapping(src, held, len);
            if COPY {
                std::ptr::copy_nonoverlapping(held.cast_const(), dst, len);
            }
        }
        self.buffered += len;
    }

    /// Hands the buffer's leading stripes to the kernel; 65 to 128 bytes stay.
    fn make_room(&mut self) {
        let stripes = (self.buffered - KEEP_BYTES) / STRIPE_BYTES;
        let taken = stripes * STRIPE_BYTES;
        // SAFETY: `taken` < `buffered` <= the buffer's length. `tests::pieces_do_not_matter`.
        unsafe { (self.kernel.hash)(&mut self.lanes, self.buffer.as_ptr(), stripes) };
        self.buffer.copy_within(taken..self.buffered, 0);
        self.buffered -= taken;
    }

    /// # Safety
    /// `src` readable and `dst` writable for `stripes * 64` bytes, disjoint.
    unsafe fn bulk_copy(&mut self, dst: *mut u8, src: *const u8, stripes: usize) {
        let aligned = dst.align_offset(STRIPE_BYTES) == 0;
        // SAFETY: the caller's promise, passed on; `stream` gets an aligned destination and a
        // fence. `tests::copies_land_at_every_alignment` tries all 64 offsets at sizes above and
        // below the threshold.
        unsafe {
            if !self.streams || stripes * STRIPE_BYTES < STREAM_BYTES_MIN {
                (self.kernel.copy)(&mut self.lanes, dst, src, stripes);
            } else if aligned {
                (self.kernel.stream)(&mut self.lanes, dst, src, stripes);
                fence();
            } else {
                self.bounce(dst, src, stripes);
                fence();
            }
        }
    }

    /// Non-temporal stores need aligned lines, and re-reading the source shifted would hash other
    /// bytes than were copied if its owner writes it; so the bytes pass through a buffer in L1.
    ///
    /// # Safety
    /// As [`Hasher::bulk_copy`]; the caller fences.
    unsafe fn bounce(&mut self, dst: *mut u8, src: *const u8, stripes: usize) {
        let mut step = Bounce([0; BOUNCE_BYTES]);
        let len = stripes * STRIPE_BYTES;
        let mut done = 0;
        while done < len {
            let now = BOUNCE_BYTES.min(len - done);
            // SAFETY: `done + now <= len`, within both of the caller's ranges; `now` is whole
            // stripes, because both of its bounds are. Test as in `bulk_copy`.
            unsafe {
                let held = step.0.as_mut_ptr();
                (self.kernel.copy)(&mut self.lanes, held, src.add(done), now / STRIPE_BYTES);
                stream_unaligned(dst.add(done), held, now);
            }
            done += now;
        }
    }
}

#[repr(align(64))]
struct Bounce([u8; BOUNCE_BYTES]);

/// Makes non-temporal stores visible before any store that follows.
fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of x86-64; the instruction orders stores and touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Copies past the cache where whole lines allow it; the two ends go through it.
///
/// # Safety
/// `src` readable and `dst` writable for `len`, disjoint; the caller fences.
unsafe fn stream_unaligned(dst: *mut u8, src: *const u8, len: usize) {
    let head = dst.align_offset(STRIPE_BYTES).min(len);
    let lines = (len - head) / STRIPE_BYTES;
    let tail = head + lines * STRIPE_BYTES;
    // SAFETY: head + lines * 64 + rest = len, each within the caller's ranges; the lines begin at
    // an aligned address. Test as in `Hasher::bulk_copy`.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, head);
        stream_lines(dst.add(head), src.add(head), lines);
        std::ptr::copy_nonoverlapping(src.add(tail), dst.add(tail), len - tail);
    }
}

/// # Safety
/// `src` readable and `dst` writable for `lines * 64`, disjoint; `dst` aligned to 64.
unsafe fn stream_lines(dst: *mut u8, src: *const u8, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    for quarter in 0..lines * 4 {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        // SAFETY: 16 of the caller's bytes; SSE2 is part of x86-64, and the address is aligned.
        unsafe {
            let data = _mm_loadu_si128(src.add(quarter * 16).cast());
            _mm_stream_si128(dst.add(quarter * 16).cast(), data);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(src, dst, lines * STRIPE_BYTES);
    }
}
