//! The mapping of the arena's memfd: the only place where granules become pointers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use super::ground::{self, Ground, HUGE_PAGE_BYTES, HugePages, Offer, Pages, memory_nodes};
use super::limits::MemoryLimit;
use super::{Allocator, Extents, GRANULE_BYTES};
use crate::log::{self, Event};

/// Left over for the process itself (tables, stacks, connections) when the arena is sized.
const RESERVE_BYTES: u64 = 64 << 20;

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The size is not one an arena can have.
    #[error("arena of {bytes} bytes {problem}; choose a multiple of 4096 between 4096 and 2^43")]
    Size {
        /// What was asked for.
        bytes: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The machine or a cgroup does not have the room.
    #[error(
        "arena of {bytes} bytes does not fit: {available} bytes are available ({source_of_limit}), \
         of which {reserve} are kept for the process; choose a smaller arena or raise the limit",
        reserve = RESERVE_BYTES
    )]
    Memory {
        /// What was asked for.
        bytes: u64,
        /// What could be taken.
        available: u64,
        /// Which limit says so.
        source_of_limit: String,
    },
    /// Huge pages are wanted and there are none.
    #[error("arena of {bytes} bytes: {problem}")]
    HugePages {
        /// What was asked for.
        bytes: u64,
        /// What there is, and what to do.
        problem: String,
    },
    /// The kernel refused a call although the checks passed.
    #[error("arena of {bytes} bytes: {call} failed: {error}; check ulimit -v and /dev/shm limits")]
    Os {
        /// What was asked for.
        bytes: u64,
        /// The call.
        call: &'static str,
        /// Its error.
        error: std::io::Error,
    },
}

/// One memfd, mapped read-write for the life of the value. Nothing outside this process writes it.
///
/// Gives out raw pointers only: which bytes may be touched when is the store's business (write
/// grants are exclusive, reads are pinned), not the mapping's.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    bytes: u64,
    memfd: OwnedFd,
    ground: Ground,
    /// Whether nobody can map it writable any more, nor change its size.
    is_sealed: bool,
    /// Who mapped it: a child that was forked has no mapping.
    process: u32,
}

// SAFETY: the mapping belongs to the value alone, lives until drop and is not tied to a thread;
// methods only compute addresses in it. `tests::mapping::two_threads_share_the_arena`.
unsafe impl Send for Arena {}
// SAFETY: as above; `&Arena` gives no access to the bytes except through raw pointers.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps a new memfd of `bytes`, zeroed. With `populate` all pages exist when it returns, so
    /// that no later access waits for, or dies of, a page that cannot be had.
    ///
    /// # Errors
    /// [`ArenaError::Size`] for sizes that no arena has, [`ArenaError::Memory`] when the machine or
    /// a cgroup has not enough left (asked before anything is mapped), [`ArenaError::Os`].
    pub fn create(bytes: u64, populate: bool) -> Result<Arena, ArenaError> {
        Arena::create_on(bytes, populate, HugePages::Auto)
    }

    /// As [`Arena::create`], with a word on huge pages.
    ///
    /// # Errors
    /// As [`Arena::create`], and [`ArenaError::HugePages`] where they are on and there are none.
    pub fn create_on(bytes: u64, populate: bool, huge: HugePages) -> Result<Arena, ArenaError> {
        let offer = Offer::under(Path::new("/"));
        let chosen = offer.choose(huge, bytes);
        let pages = chosen.map_err(|problem| ArenaError::HugePages { bytes, problem })?;
        // Pages of the pool were set aside: no limit on other memory is about them.
        let limit = if pages == Pages::Pool { None } else { MemoryLimit::current() };
        Arena::create_within(bytes, populate, limit, pages)
    }

    pub(super) fn create_within(
        bytes: u64,
        populate: bool,
        limit: Option<MemoryLimit>,
        pages: Pages,
    ) -> Result<Arena, ArenaError> {
        check_size(bytes, pages)?;
        if let Some(limit) = limit
            && bytes.saturating_add(RESERVE_BYTES) > limit.available_bytes
        {
            return Err(ArenaError::Memory {
                bytes,
                available: limit.available_bytes,
                source_of_limit: limit.source,
            });
        }
        let os = |call| move |error: Errno| ArenaError::Os { bytes, call, error: error.into() };
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if pages == Pages::Pool {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let memfd = memfd_create("keepwarm-arena", flags).map_err(os("memfd_create"))?;
        ftruncate(&memfd, bytes).map_err(os("ftruncate"))?;
        let length = usize::try_from(bytes).map_err(|_| os("mmap")(Errno::NOMEM))?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new shared mapping at an address of the kernel's choice overlaps nothing.
        // `tests::mapping::bytes_come_back` writes and reads it whole.
        let base =
            unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, &memfd, 0) }
                .map_err(os("mmap"))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| os("mmap")(Errno::NOMEM))?;
        // Mapped first, sealed second: from here on nobody maps it writable, the node included. A
        // system without this seal still has an arena, only none that is given out.
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        let is_sealed = fcntl_add_seals(&memfd, seals).is_ok();
        let (ground, process) = (Ground::of(pages), std::process::id());
        let mut arena = Arena { base, bytes, memfd, ground, is_sealed, process };
        arena.interleave();
        arena.prepare(populate).map_err(os("populating"))?;
        if populate && pages != Pages::Plain {
            let base = arena.base.as_ptr().addr();
            arena.ground.huge_bytes = ground::huge_bytes(Path::new("/"), base);
        }
        Ok(arena)
    }

    /// Where a block's first `len` bytes lie, piece by piece.
    ///
    /// Reading or writing through the pointers is up to the caller: valid for the arena's life, and
    /// free of races only under the store's pins and grants.
    ///
    /// # Panics
    /// If `len` exceeds the extents, or an extent reaches beyond the arena.
    pub fn pieces(&self, extents: &Extents, len: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        assert!(len <= extents.bytes(), "{len} bytes in {} of extents", extents.bytes());
        let (base, granules) = (self.base, self.granules());
        let mut rest = len;
        let extents = *extents;
        (0..extents.len()).map_while(move |at| {
            let extent = extents.get(at)?;
            assert!(extent.end() <= granules, "{extent:?} reaches beyond {granules} granules");
            let piece = rest.min(extent.granules as usize * GRANULE_BYTES);
            rest -= piece;
            let offset = extent.first_granule as usize * GRANULE_BYTES;
            // SAFETY: `extent.end() <= granules`, so the offset lies inside the mapping.
            // `tests::mapping::an_extent_beyond_the_arena_panics`.
            (piece > 0).then(|| (unsafe { base.as_ptr().add(offset) }, piece))
        })
    }

    /// The memfd for other processes to map read-only: sealed, so that it can neither be written
    /// nor resized through it. None on a system that cannot seal it so.
    pub fn shareable(&self) -> Option<BorrowedFd<'_>> {
        self.is_sealed.then(|| self.memfd.as_fd())
    }

    /// What it lies on.
    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Spreads the pages to come over all memory nodes: one alone would slow down whoever runs on
    /// another, and run full first.
    fn interleave(&mut self) {
        let nodes = memory_nodes(Path::new("/"));
        self.ground.memory_nodes = nodes.len() as u32;
        if nodes.len() < 2 {
            return;
        }
        let mut mask = [0_u64; 16];
        nodes.iter().for_each(|node| mask[*node as usize / 64] |= 1 << (node % 64));
        match bind_interleaved(self.base, self.bytes as usize, &mask) {
            Ok(()) => self.ground.is_interleaved = true,
            Err(error) => log::say(Event::MachineLimit, |line| {
                line.text("limit", "memory nodes");
                line.text("figure", format_args!("mbind over {} nodes: {error}", nodes.len()));
                line.text("todo", "give the container CAP_SYS_NICE, or run under numactl -i all");
            }),
        }
    }

    /// The arena's size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The arena's size in granules.
    pub fn granules(&self) -> u32 {
        (self.bytes / GRANULE_BYTES as u64) as u32
    }

    fn prepare(&self, populate: bool) -> Result<(), Errno> {
        let (start, length) = (self.base.as_ptr().cast(), self.bytes as usize);
        // Where the kernel then finds no huge page free, the rest is small ones: nothing is lost.
        let advice = match self.ground.pages {
            Pages::Transparent => Some(Advice::LinuxHugepage),
            Pages::Plain => Some(Advice::LinuxNoHugepage),
            Pages::Pool => None,
        };
        if let Some(advice) = advice {
            // SAFETY: advises on this value's own mapping; contents do not change. A kernel without
            // huge pages refuses.
            let _ = unsafe { madvise(start, length, advice) };
        }
        // A child that a fork makes has no business here: it could neither lock nor count what it
        // does to blocks that the parent hands out.
        // SAFETY: as above; this process keeps its mapping.
        unsafe { madvise(start, length, Advice::LinuxDontFork) }?;
        if !populate {
            return Ok(());
        }
        // Unlike MAP_POPULATE, this says when it did not succeed.
        // SAFETY: as above.
        match unsafe { madvise(start, length, Advice::LinuxPopulateWrite) } {
            Err(Errno::INVAL) => {
                self.touch_pages();
                Ok(())
            }
            other => other,
        }
    }

    /// For kernels before 5.14.
    pub(super) fn touch_pages(&self) {
        for granule in 0..self.granules() as usize {
            // SAFETY: inside the mapping, which nobody else has seen yet.
            // `tests::mapping::bytes_come_back` calls it.
            unsafe { self.base.as_ptr().add(granule * GRANULE_BYTES).write_volatile(0) };
        }
    }
}

impl AsFd for Arena {
    /// The memfd; close-on-exec.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A forked child has no such mapping; something else may be at its address.
            return;
        }
        // SAFETY: the mapping made in `create`, unmapped once; pointers from `pieces` are
        // documented to end with the arena.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes as usize) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// The mapping's policy for pages that it does not have yet.
pub(super) fn bind_interleaved(
    base: NonNull<u8>,
    bytes: usize,
    mask: &[u64; 16],
) -> std::io::Result<()> {
    let (start, mode) = (base.as_ptr(), libc::MPOL_INTERLEAVE);
    let bits = 64 * mask.len() as libc::c_ulong;
    // SAFETY: a policy on the caller's own mapping, which does not touch contents; the mask
    // outlives the call and has as many bits as said. `tests::mapping::pages_can_be_spread`.
    let answer = unsafe { libc::syscall(libc::SYS_mbind, start, bytes, mode, mask, bits, 0) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

fn check_size(bytes: u64, pages: Pages) -> Result<(), ArenaError> {
    let granules = bytes / GRANULE_BYTES as u64;
    let problem = if bytes == 0 {
        "holds nothing"
    } else if !bytes.is_multiple_of(GRANULE_BYTES as u64) {
        "is not a whole number of granules"
    } else if pages == Pages::Pool && !bytes.is_multiple_of(HUGE_PAGE_BYTES) {
        "is not a whole number of huge pages of 2 MiB"
    } else if granules > u64::from(Allocator::GRANULES_MAX) {
        "is larger than 8 TiB"
    } else {
        return Ok(());
    };
    Err(ArenaError::Size { bytes, problem })
}
