//! Places in memory that the loops read and write.

use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// One block's place in the caller's memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Where it begins.
    pub ptr: *mut u8,
    /// Its bytes.
    pub len: usize,
}

// SAFETY: an address and a length, which touch nothing by themselves. Whoever calls a loop with
// places vouches for the memory behind them until it returns, on any thread:
// `tests/limits.rs` moves blocks over two streams, each on a thread of its own.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

/// Memory of the kind that an arena is: a memfd, mapped shared, every page present, on huge pages
/// where the system gives them when asked.
#[derive(Debug)]
pub struct Pool {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the value and is tied to no thread. Loops write it from several
// threads at once, as a node's arena is written; nobody reads meaning into its bytes.
// `tests/limits.rs` serves two streams from one pool.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// `bytes` of memory whose pages all exist.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bytes: usize) -> std::io::Result<Pool> {
        let memfd = memfd_create("keepwarm-bench", MemfdFlags::CLOEXEC)?;
        ftruncate(&memfd, bytes as u64)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        // `tests/limits.rs` fills and reads it whole.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, &memfd, 0) };
        let base = NonNull::new(base?.cast()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let pool = Pool { base, bytes };
        // SAFETY: advice about, and bytes of, the mapping made above, which nobody else knows yet.
        // `tests/limits.rs` as above.
        unsafe {
            // A wish: without it the pages are small ones.
            let _ = madvise(pool.base.as_ptr().cast(), bytes, Advice::LinuxHugepage);
            std::ptr::write_bytes(pool.base.as_ptr(), 0x5a, bytes);
        }
        Ok(pool)
    }

    /// The `n`th block of this length, round and round.
    ///
    /// # Panics
    /// The pool is smaller than one block.
    pub fn block(&self, n: u64, len: usize) -> Place {
        let blocks = self.bytes / len;
        assert!(blocks > 0, "a block larger than the pool");
        let at = (n % blocks as u64) as usize * len;
        Place { ptr: self.base.as_ptr().wrapping_add(at), len }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, with its own length; places are not used beyond the
        // loops, which borrow the pool. Every test of `tests/limits.rs` ends here.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
