//! Which instruction set does the bulk work; chosen once per process.

use std::sync::OnceLock;

use super::lanes::Lanes;
use super::portable;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// Hashes whole stripes: accumulators, source, number of stripes.
type Hash = unsafe fn(&mut Lanes, *const u8, usize);
/// Hashes whole stripes and writes them out: accumulators, destination, source, stripes.
type Copy = unsafe fn(&mut Lanes, *mut u8, *const u8, usize);

/// The bulk loops for one instruction set. All kernels give equal digests.
#[derive(Clone, Copy)]
pub struct Kernel {
    name: &'static str,
    /// `src` readable for `stripes * 64` bytes, any alignment.
    pub(super) hash: Hash,
    /// As `hash`; `dst` writable for as many bytes, any alignment, no overlap.
    pub(super) copy: Copy,
    /// As `copy`, past the cache; `dst` aligned to 64. The caller fences.
    pub(super) stream: Copy,
}

static PORTABLE: Kernel =
    Kernel { name: "portable", hash: portable::hash, copy: portable::copy, stream: portable::copy };

#[cfg(target_arch = "x86_64")]
static AVX2: Kernel =
    Kernel { name: "avx2", hash: avx2::hash, copy: avx2::copy, stream: avx2::stream };

#[cfg(target_arch = "x86_64")]
static AVX512: Kernel =
    Kernel { name: "avx512", hash: avx512::hash, copy: avx512::copy, stream: avx512::stream };

impl Kernel {
    /// The fastest kernel this CPU can run.
    pub fn best() -> &'static Kernel {
        static BEST: OnceLock<&'static Kernel> = OnceLock::new();
        BEST.get_or_init(|| Kernel::available()[0])
    }

    /// Every kernel this CPU can run, fastest first; never empty.
    pub fn available() -> Vec<&'static Kernel> {
        let mut kernels: Vec<&'static Kernel> = Vec::with_capacity(3);
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") {
                kernels.push(&AVX512);
            }
            if is_x86_feature_detected!("avx2") {
                kernels.push(&AVX2);
            }
        }
        kernels.push(&PORTABLE);
        kernels
    }

    /// `avx512`, `avx2` or `portable`.
    pub fn name(&self) -> &'static str {
        self.name
    }
}
