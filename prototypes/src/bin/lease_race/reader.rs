//! The reader process: maps what the node passed, and is stopped at the worst moments.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

use keepwarm_prototypes::argument;
use keepwarm_store::checksum::{Hasher, xxh3_64};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use rustix::process::{Signal, getpid, kill_process};

use crate::shared::{
    ARENA_BYTES, CONTROL_BYTES, Map, PAYLOAD_BYTES_MAX, STOPS, Stop, generation_after, numbers,
};

/// Arguments: `reader`, the arena's descriptor, the control page's.
pub fn run() {
    let (arena_fd, control_fd) = (inherited(1), inherited(2));
    let arena = Map::new(arena_fd, ARENA_BYTES, ProtFlags::READ).expect("read-only arena");
    let control = Map::new(control_fd, CONTROL_BYTES, ProtFlags::READ).expect("read-only control");
    let mut requests = std::io::stdin().lock();
    let mut landing = vec![0u8; PAYLOAD_BYTES_MAX];
    while let Some(request) = numbers(&mut requests) {
        let [stop, place, length, checksum, generation] = request[..] else {
            answer(&seal_checks(arena_fd));
            continue;
        };
        let (stop, place, length) = (STOPS[stop as usize], place as usize, length as usize);
        let digest = read(arena, place, &mut landing[..length], stop);
        let generation_now = generation_after(control, place);
        let header_now = arena.header(place).load(std::sync::atomic::Ordering::Acquire);
        answer(&[
            u64::from(digest == header_now),
            u64::from(generation == generation_now),
            u64::from(digest == checksum),
            // What really arrived, hashed apart from the copy.
            xxh3_64(&landing[..length]),
        ]);
    }
}

/// The fused copy, in two halves, with the process stopped where the request says.
fn read(arena: Map, place: usize, landing: &mut [u8], stop: Stop) -> u64 {
    let source = arena.payload(place).cast_const();
    let half = landing.len() / 2;
    let mut hasher = Hasher::new();
    let stop_at = |here| {
        if stop == here {
            kill_process(getpid(), Signal::STOP).expect("stop myself");
        }
    };
    stop_at(Stop::Before);
    // SAFETY: a place holds PAYLOAD_BYTES_MAX bytes, and `landing` is no longer; the node may write
    // meanwhile, which is what the program is about.
    unsafe { hasher.update_copy(landing.as_mut_ptr(), source, half) };
    stop_at(Stop::Amid);
    // SAFETY: as above, the other half.
    unsafe {
        let rest = landing.len() - half;
        hasher.update_copy(landing.as_mut_ptr().add(half), source.add(half), rest);
    };
    stop_at(Stop::After);
    hasher.digest()
}

/// What a client that holds the descriptor can and cannot do: 1 for each that went as it should.
fn seal_checks(memfd: BorrowedFd<'static>) -> Vec<u64> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let page = [0u8; 4096];
    let own_path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&memfd));
    let reopened = rustix::fs::open(own_path, OFlags::RDWR, Mode::empty());
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let refused = |result: Result<(), Errno>| u64::from(result == Err(Errno::PERM));
    vec![
        refused(Map::new(memfd, ARENA_BYTES, both).map(drop)),
        refused(reopened.and_then(|fd| Map::new(fd.as_fd(), ARENA_BYTES, both)).map(drop)),
        refused(rustix::io::pwrite(memfd, &page, 0).map(drop)),
        refused(rustix::fs::ftruncate(memfd, 4096)),
        refused(rustix::fs::ftruncate(memfd, 2 * ARENA_BYTES as u64)),
        refused(rustix::fs::fallocate(memfd, punch, 0, 4096)),
        refused(rustix::fs::fcntl_add_seals(memfd, rustix::fs::SealFlags::WRITE)),
        u64::from(upgrade_refused(memfd)),
        u64::from(Map::new(memfd, ARENA_BYTES, ProtFlags::READ).is_ok()),
    ]
}

/// A read-only map can neither be made writable nor have its pages removed.
fn upgrade_refused(memfd: BorrowedFd<'static>) -> bool {
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping of one page, used by nobody else; both calls below act on it alone.
    unsafe {
        let page = rustix::mm::mmap(null, 4096, ProtFlags::READ, MapFlags::SHARED, memfd, 0)
            .expect("map a page");
        let writable = rustix::mm::mprotect(page, 4096, MprotectFlags::READ | MprotectFlags::WRITE);
        let removed = rustix::mm::madvise(page, 4096, Advice::LinuxRemove);
        writable.is_err() && removed.is_err()
    }
}

fn inherited(position: usize) -> BorrowedFd<'static> {
    let number = argument(position, u64::MAX) as i32;
    assert!(number > 2, "descriptor {number}");
    // SAFETY: the node leaves these two descriptors open across exec, and nobody here closes them.
    unsafe { BorrowedFd::borrow_raw(number) }
}

fn answer(words: &[u64]) {
    let line: Vec<String> = words.iter().map(u64::to_string).collect();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", line.join(" ")).and_then(|()| out.flush()).expect("the node listens");
}
