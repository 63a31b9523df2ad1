//! Bytes that change in the arena itself are never given out. Alone in its process, because it
//! looks for the arena among the process's descriptors.

mod support;

use std::fs::{File, OpenOptions, read_dir, read_link};
use std::os::unix::fs::FileExt;

use keepwarm_store::types::{BlockKey, GetOutcome, MissReason, PutOutcome};
use keepwarm_store::{Store, arena::GRANULE_BYTES};
use keepwarm_wire::Memory;

use support::{LONG, Node, attach, content, eventually, get, keys, put, store};

const LENGTH: usize = 3 * GRANULE_BYTES + 17;

/// The memory of the one store in this process, as a file.
fn arena() -> File {
    let own = read_dir("/proc/self/fd").expect("a process has descriptors");
    let paths = own.filter_map(|entry| Some(entry.ok()?.path()));
    let mut arenas = paths.filter(|path| {
        read_link(path)
            .is_ok_and(|target| target.to_string_lossy().contains("memfd:keepwarm-arena"))
    });
    let path = arenas.next().expect("an arena");
    assert!(arenas.next().is_none(), "one arena");
    OpenOptions::new().read(true).write(true).open(path).expect("the arena opens")
}

/// Flips one bit of the block's third granule.
fn damage(key: BlockKey) {
    let (arena, wanted) = (arena(), content(key, LENGTH));
    let bytes = arena.metadata().expect("a size").len();
    let mut granule = vec![0; GRANULE_BYTES];
    let start = (0..bytes).step_by(GRANULE_BYTES).find(|at| {
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
fn damage_in_the_arena_is_found_over_both_transports() {
    let embedded = store(4);
    let memory = Memory::embedded(embedded.clone());
    damaged_bytes_are_a_miss_and_vanish(&memory, &embedded);
    drop((memory, embedded));
    eventually("the arena is gone", LONG, || {
        let own = read_dir("/proc/self/fd").expect("a process has descriptors");
        let mut targets = own.filter_map(|entry| read_link(entry.ok()?.path()).ok());
        !targets.any(|target| target.to_string_lossy().contains("memfd:keepwarm-arena"))
    });
    let node = Node::start(4);
    damaged_bytes_are_a_miss_and_vanish(&node.connect(), &node.store);
}
