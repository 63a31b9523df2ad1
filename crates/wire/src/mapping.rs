//! Shared memory of another process, or for one: a descriptor, mapped.
//!
//! Gives out raw pointers only, and only within bounds: what lies there may be written by its owner
//! at any moment, so nobody may hold a reference to it. Each byte of it is read once (see
//! `keepwarm_store::checksum`), and what was read is checked.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::process::ProcessId;

/// How the kernel's own memory file system is called (`TMPFS_MAGIC`).
const MEMORY_FILES: u64 = 0x0102_1994;

/// A shared mapping, for the life of the value. A forked child does not have it.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    process: ProcessId,
}

// SAFETY: the mapping belongs to the value alone, lives until its drop and is not tied to a thread;
// methods only compute addresses in it. `tests/races.rs` reads one from several threads.
unsafe impl Send for Mapping {}
// SAFETY: as above; `&Mapping` gives no access to the bytes except through raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a node's arena for reading.
    ///
    /// # Errors
    /// It is not sealed, or has another size; what the system says.
    pub(crate) fn of_arena(memfd: impl AsFd, bytes: u64) -> io::Result<Mapping> {
        check_sealed(&memfd, bytes, SealFlags::FUTURE_WRITE)?;
        Mapping::map(memfd, bytes, ProtFlags::READ)
    }

    /// Maps a client's staging for reading. Whatever the client does with it, no access ever ends
    /// in a signal: it cannot shrink, and is not of a kind whose pages may not be had (huge ones
    /// that nobody has reserved).
    ///
    /// # Errors
    /// It is not sealed against shrinking and growing, has another size, or is of such a kind; what
    /// the system says.
    pub(crate) fn of_staging(memfd: impl AsFd, bytes: u64) -> io::Result<Mapping> {
        check_sealed(&memfd, bytes, SealFlags::empty())?;
        if fstatfs(&memfd)?.f_type as u64 != MEMORY_FILES {
            return Err(io::Error::other("it is memory of a kind whose pages may be missing"));
        }
        Mapping::map(memfd, bytes, ProtFlags::READ)
    }

    fn map(memfd: impl AsFd, bytes: u64, access: ProtFlags) -> io::Result<Mapping> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new shared mapping at an address of the kernel's choice overlaps nothing.
        // `tests::*` reads and writes whole ones.
        let base =
            unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memfd, 0) }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Mapping { base, bytes, process: ProcessId::here() };
        // A child of a fork connects by itself; it must not keep a dead node's memory alive.
        // SAFETY: advises on this value's own mapping; this process keeps it.
        unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxDontFork) }?;
        // SAFETY: as above; contents do not change. Where huge pages are not to be had, nothing is
        // lost.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        Ok(mapping)
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of `len` bytes from `offset` on; none if they reach beyond the end.
    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.bytes);
        // SAFETY: inside the mapping, just checked.
        fits.then(|| unsafe { self.base.as_ptr().add(offset) })
    }

    /// Makes the pages of a range present for reading, so that later accesses do not wait. Where
    /// the system cannot, they are made present by the accesses.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        if let Some(at) = self.at(offset, len) {
            // SAFETY: a range of this value's own mapping; contents do not change.
            let _ = unsafe { madvise(at.cast(), len, Advice::LinuxPopulateRead) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child something else may be at its address.
        if self.process == ProcessId::here() {
            // SAFETY: the mapping made in `map`, unmapped once; pointers from `at` are not used
            // beyond the value's life, which their users hold.
            let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
            debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
        }
    }
}

/// New shared memory of a fixed size, mapped read-write, and its descriptor for the peer.
///
/// # Errors
/// What the system says.
pub(crate) fn staging(bytes: u64) -> io::Result<(Mapping, OwnedFd)> {
    let memfd = memfd_create("keepwarm-staging", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memfd, bytes)?;
    fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    let mapping = Mapping::map(&memfd, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
    Ok((mapping, memfd))
}

/// It has this size, and will keep it.
fn check_sealed(memfd: impl AsFd, bytes: u64, more: SealFlags) -> io::Result<()> {
    let refuse = |text| Err(io::Error::other(text));
    let seals = fcntl_get_seals(&memfd).unwrap_or(SealFlags::empty());
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | more) {
        return refuse("it is no memory that is sealed against changes of its size");
    }
    match fstat(&memfd)?.st_size as u64 == bytes {
        true => Ok(()),
        false => refuse("it has another size than was said"),
    }
}
