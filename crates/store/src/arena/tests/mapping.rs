//! The mapping and the limits it is checked against.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::super::limits::MemoryLimit;
use super::super::mapping::bind_interleaved;
use super::super::{Allocator, Arena, ArenaError, Extents, GRANULE_BYTES, Pages};
use crate::checksum::{Hasher, xxh3_64};

const MIB: u64 = 1 << 20;

#[test]
fn sizes_that_no_arena_has_are_refused() {
    for bytes in [0, 1, 4095, 4097, MIB + 1, 1 << 44, 1 << 63, u64::MAX, u64::MAX - 4095] {
        let error = Arena::create(bytes, true).expect_err("no such arena");
        assert!(matches!(error, ArenaError::Size { .. }), "{bytes}: {error}");
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    }
}

#[test]
fn too_large_for_this_machine_names_both_numbers() {
    let error = Arena::create(1 << 43, true).expect_err("no machine has 8 TiB to spare");
    let available = MemoryLimit::current().expect("linux shows MemAvailable").available_bytes;
    assert!(available < 1 << 43, "run this test on a smaller machine");
    assert!(matches!(error, ArenaError::Memory { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&(1u64 << 43).to_string()), "{text}");
    assert!(text.contains("choose a smaller arena or raise the limit"), "{text}");
}

#[test]
fn the_limit_is_asked_before_anything_is_mapped() {
    let limit = |mib: u64| {
        Some(MemoryLimit { available_bytes: mib * MIB, source: "cgroup /x with limit".into() })
    };
    let error =
        Arena::create_within(8 * MIB, true, limit(71), Pages::Plain).expect_err("8 + 64 > 71");
    let text = error.to_string();
    assert!(text.contains("8388608") && text.contains("74448896"), "{text}");
    assert!(text.contains("cgroup /x"), "{text}");
    assert!(Arena::create_within(8 * MIB, true, limit(72), Pages::Plain).is_ok());
}

/// A container may forbid it; then it says so, and the arena works as before.
#[test]
fn pages_can_be_spread() {
    use std::io::ErrorKind::{PermissionDenied, Unsupported};
    let arena = Arena::create(8 * MIB, false).expect("8 MiB");
    let mut first = [0; 16];
    first[0] = 1;
    let extents = Allocator::new(arena.granules()).alloc(1).expect("a granule");
    let (at, _) = arena.pieces(&extents, 1).next().expect("a piece");
    let spread = |mask| {
        let base = std::ptr::NonNull::new(at).expect("not null");
        bind_interleaved(base, 4096, mask).map_err(|error| error.kind())
    };
    assert!(matches!(spread(&first), Ok(()) | Err(PermissionDenied | Unsupported)));
    assert!(spread(&[0; 16]).is_err(), "no node at all");
    arena.touch_pages();
}

/// `dc`: not copied on fork.
#[test]
fn a_forked_child_has_no_arena() {
    let arena = Arena::create(8 * MIB, false).expect("8 MiB");
    let extents = Allocator::new(arena.granules()).alloc(1).expect("a granule");
    let (at, _) = arena.pieces(&extents, 1).next().expect("a piece");
    let maps = fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut is_arena, mut flags) = (false, None);
    for line in maps.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).ok();
        if let Some((start, end)) = range.and_then(|(a, b)| Some((number(a)?, number(b)?))) {
            is_arena = (start..end).contains(&(at as usize));
        } else if is_arena && line.starts_with("VmFlags:") {
            flags = Some(line.to_string());
        }
    }
    let flags = flags.expect("the arena is mapped");
    assert!(flags.split(' ').any(|flag| flag == "dc"), "{flags}");
}

/// What a client that holds the descriptor may do: map it read-only, and nothing else.
#[test]
fn what_is_given_out_cannot_be_written() {
    use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
    use rustix::io::{Errno, pwrite};
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let arena = Arena::create(8 * MIB, true).expect("8 MiB");
    let memfd = arena.shareable().expect("this system seals");
    let map = |access| {
        // SAFETY: a new mapping at an address of the kernel's choice, kept to the process's end.
        unsafe { mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, memfd, 0) }.map(drop)
    };
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert_eq!(map(ProtFlags::READ | ProtFlags::WRITE), Err(Errno::PERM));
    assert_eq!(pwrite(memfd, &[1], 0), Err(Errno::PERM));
    assert_eq!(ftruncate(memfd, 4096), Err(Errno::PERM));
    assert_eq!(ftruncate(memfd, 16 * MIB), Err(Errno::PERM));
    assert_eq!(fallocate(memfd, punch, 0, 4096), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(memfd, SealFlags::WRITE), Err(Errno::PERM));
    assert_eq!(map(ProtFlags::READ), Ok(()));
    arena.touch_pages();
}

#[test]
fn bytes_come_back() {
    for populate in [false, true] {
        let arena = Arena::create(8 * MIB, populate).expect("8 MiB");
        assert_eq!(arena.granules(), 2048);
        let stat = rustix::fs::fstat(arena.as_fd()).expect("fstat");
        assert_eq!(stat.st_size as u64, arena.bytes());
        arena.touch_pages();
        let mut allocator = Allocator::new(arena.granules());
        let scattered = scattered(&mut allocator);
        assert!(scattered.len() > 1, "{scattered:?}");
        let len = scattered.bytes() - 777;
        let source: Vec<u8> = (0..len).map(|at| ((at * 31) >> 3) as u8).collect();
        let mut hasher = Hasher::new();
        let mut at = 0;
        for (piece, bytes) in arena.pieces(&scattered, len) {
            // SAFETY: the place was just allocated, nobody else knows it; `at + bytes <= len`.
            unsafe { hasher.update_copy(piece, source[at..].as_ptr(), bytes) };
            at += bytes;
        }
        assert_eq!(at, len);
        assert_eq!(hasher.digest(), xxh3_64(&source));
        let mut back = Vec::new();
        for (piece, bytes) in arena.pieces(&scattered, len) {
            // SAFETY: written above, not written meanwhile.
            back.extend_from_slice(unsafe { std::slice::from_raw_parts(piece, bytes) });
        }
        assert!(back == source);
    }
}

/// A place of several extents: every second run of five granules is taken.
fn scattered(allocator: &mut Allocator) -> Extents {
    let runs: Vec<Extents> = std::iter::from_fn(|| allocator.alloc(5)).collect();
    runs.iter().step_by(2).for_each(|run| allocator.free(run));
    allocator.alloc(27).expect("six pieces of five")
}

#[test]
fn pieces_end_with_the_bytes() {
    let arena = Arena::create(MIB, false).expect("1 MiB");
    let mut allocator = Allocator::new(arena.granules());
    let extents = scattered(&mut allocator);
    for len in [0, 1, GRANULE_BYTES, 5 * GRANULE_BYTES, 5 * GRANULE_BYTES + 1, extents.bytes()] {
        let total: usize = arena.pieces(&extents, len).map(|(_, bytes)| bytes).sum();
        assert_eq!(total, len);
        assert!(arena.pieces(&extents, len).all(|(_, bytes)| bytes > 0));
    }
}

#[test]
#[should_panic(expected = "reaches beyond")]
fn an_extent_beyond_the_arena_panics() {
    let arena = Arena::create(MIB, false).expect("1 MiB");
    let extents = Allocator::new(1024).alloc(1024).expect("all of another arena");
    arena.pieces(&extents, extents.bytes()).for_each(drop);
}

#[test]
fn two_threads_share_the_arena() {
    let arena = Arena::create(MIB, true).expect("1 MiB");
    let mut allocator = Allocator::new(arena.granules());
    let places: Vec<Extents> = (0..2).map(|_| allocator.alloc(64).expect("room")).collect();
    std::thread::scope(|scope| {
        for (fill, place) in (1u8..).zip(&places) {
            let arena = &arena;
            scope.spawn(move || {
                for (piece, bytes) in arena.pieces(place, place.bytes()) {
                    // SAFETY: each thread has a place of its own.
                    unsafe { piece.write_bytes(fill, bytes) };
                }
            });
        }
    });
    for (fill, place) in (1u8..).zip(&places) {
        for (piece, bytes) in arena.pieces(place, place.bytes()) {
            // SAFETY: the writers have ended.
            let written = unsafe { std::slice::from_raw_parts(piece, bytes) };
            assert!(written.iter().all(|&byte| byte == fill));
        }
    }
}

/// A directory that looks like `/` to `MemoryLimit::under`; removed when dropped.
struct FakeRoot(PathBuf);

impl FakeRoot {
    fn new(name: &str, files: &[(&str, &str)]) -> FakeRoot {
        let directory = format!("keepwarm-limits-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(directory);
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("has a parent")).expect("create directory");
            fs::write(path, text).expect("write");
        }
        FakeRoot(root)
    }

    fn limit(&self) -> Option<MemoryLimit> {
        MemoryLimit::under(&self.0)
    }
}

impl Drop for FakeRoot {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal: 9 kB\nMemAvailable:    1000 kB\n");

#[test]
fn without_cgroups_the_machine_decides() {
    let root = FakeRoot::new("machine", &[MEMINFO]);
    let limit = root.limit().expect("MemAvailable");
    assert_eq!(limit.available_bytes, 1_024_000);
    assert!(limit.source.contains("MemAvailable"), "{limit:?}");
    assert_eq!(FakeRoot::new("nothing", &[]).limit(), None);
}

#[test]
fn cgroup_v2_counts_the_tightest_ancestor() {
    let root = FakeRoot::new(
        "v2",
        &[
            MEMINFO,
            ("proc/self/cgroup", "0::/pod/app\n"),
            ("sys/fs/cgroup/pod/app/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/app/memory.current", "5\n"),
            ("sys/fs/cgroup/pod/memory.max", "500000\n"),
            ("sys/fs/cgroup/pod/memory.current", "300000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 100000\nactive_file 7\n"),
        ],
    );
    let limit = root.limit().expect("a limit");
    assert_eq!(limit.available_bytes, 300_000);
    assert!(limit.source.contains("limit 500000 bytes and 200000 in use"), "{limit:?}");
}

#[test]
fn where_the_kernel_begins_to_slow_a_group_down_is_a_limit_too() {
    let root = FakeRoot::new(
        "v2-high",
        &[
            MEMINFO,
            ("proc/self/cgroup", "0::/app\n"),
            ("sys/fs/cgroup/app/memory.max", "600000\n"),
            ("sys/fs/cgroup/app/memory.high", "400000\n"),
            ("sys/fs/cgroup/app/memory.current", "150000\n"),
        ],
    );
    assert_eq!(root.limit().expect("a limit").available_bytes, 250_000);
}

#[test]
fn cgroup_v1_and_paths_only_the_host_sees() {
    let root = FakeRoot::new(
        "v1",
        &[
            MEMINFO,
            ("proc/self/cgroup", "9:cpu:/\n4:foo,memory:/host/only\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "800000\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n"),
        ],
    );
    assert_eq!(root.limit().expect("a limit").available_bytes, 0, "over the limit is zero left");
    let root = FakeRoot::new(
        "v1-none",
        &[
            MEMINFO,
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "900000\n"),
        ],
    );
    assert_eq!(root.limit().expect("the machine's").available_bytes, 1_024_000);
}
