//! Bytes that change in the arena itself are never given out. Alone in its process, because it
//! looks for the arena among the process's descriptors.

mod support;

use std::fs::{File, OpenOptions, read_dir, read_link, read_to_string};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use keepwarm_store::types::{BlockKey, GetOutcome, MissReason, PutOutcome};
use keepwarm_store::{Store, arena::GRANULE_BYTES};
use keepwarm_wire::{Memory, TransportChoice};

use support::{LONG, Node, attach, content, eventually, get, keys, put, store};

const LENGTH: usize = 3 * GRANULE_BYTES + 17;

/// The memory of the one store in this process, as its node maps it: nobody else can write it.
fn arena() -> (File, Range<u64>) {
    let maps = read_to_string("/proc/self/maps").expect("a process has maps");
    let of_arena = |line: &&str| line.contains("memfd:keepwarm-arena") && line.contains(" rw-s ");
    let ranges = maps.lines().filter(of_arena).filter_map(|line| line.split(' ').next());
    let ranges: Vec<_> = ranges.collect();
    let number = |text| u64::from_str_radix(text, 16).expect("an address");
    let bounds = ranges.iter().flat_map(|range| range.split('-')).map(number);
    let (start, end) = (bounds.clone().min(), bounds.max());
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem");
    (memory.expect("own memory"), start.expect("an arena")..end.expect("an arena"))
}

/// Flips one bit of the block's third granule.
fn damage(key: BlockKey) {
    let ((arena, places), wanted) = (arena(), content(key, LENGTH));
    let mut granule = vec![0; GRANULE_BYTES];
    let mut places = places.step_by(GRANULE_BYTES);
    let start = places.find(|at| {
        arena.read_exact_at(&mut granule, *at).expect("a granule");
        granule == wanted[..GRANULE_BYTES]
    });
    let at = start.expect("the block is in the arena") + 2 * GRANULE_BYTES as u64 + 5;
    let mut byte = [0];
    arena.read_exact_at(&mut byte, at).expect("a byte");
    arena.write_all_at(&[byte[0] ^ 4], at).expect("a byte");
}

fn damaged_bytes_are_a_miss_and_vanish(memory: &Memory, store: &Store) {
    let space = attach(memory, "m");
    let all = keys(1, 3);
    assert_eq!(put(&space, &all, LENGTH, LONG), [PutOutcome::Stored; 3]);
    damage(all[1]);
    let corrupt = GetOutcome::Miss(MissReason::Corrupt);
    assert_eq!(get(&space, &all, LENGTH, LONG), [GetOutcome::Ok, corrupt, GetOutcome::Ok]);
    eventually("the node was told and took it out", LONG, || store.stats().blocks == 2);
    assert_eq!(store.stats().tenants[0].counters.corrupt, 1);
    let found = space.lookup(&all, 0, None, LONG).expect("no misuse");
    assert_eq!((found.prefix, found.miss), (1, Some(MissReason::Corrupt)));
    assert_eq!(put(&space, &all[1..2], LENGTH, LONG), [PutOutcome::Stored]);
    assert_eq!(get(&space, &all, LENGTH, LONG), [GetOutcome::Ok; 3]);
    store.check().expect("the store adds up");
}

#[test]
fn damage_in_the_arena_is_found_over_each_transport() {
    let embedded = store(4);
    let memory = Memory::embedded(embedded.clone());
    damaged_bytes_are_a_miss_and_vanish(&memory, &embedded);
    drop((memory, embedded));
    for transport in [TransportChoice::Unix, TransportChoice::Shm] {
        no_arena();
        let node = Node::start(4);
        let memory = node.connect_by(transport);
        damaged_bytes_are_a_miss_and_vanish(&memory, &node.store);
        let stats = memory.stats();
        assert_eq!((stats.corrupt, stats.suspect_connections), (1, 0));
    }
}

fn no_arena() {
    eventually("the arena is gone", LONG, || {
        let own = read_dir("/proc/self/fd").expect("a process has descriptors");
        let mut targets = own.filter_map(|entry| read_link(entry.ok()?.path()).ok());
        !targets.any(|target| target.to_string_lossy().contains("memfd:keepwarm-arena"))
    });
}
