//! Huge pages and memory nodes, as other machines show them.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::ground::{Offer, huge_bytes, memory_nodes};
use super::super::{Arena, ArenaError, HUGE_PAGE_BYTES, HugePages, Pages};

/// A machine in a folder, removed at the end.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Machine {
        let root = std::env::temp_dir().join(format!("kw-ground-{name}-{}", std::process::id()));
        for (file, text) in files {
            let path = root.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Machine(root)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SHMEM: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
const POOL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
const MIB: u64 = 1 << 20;

#[test]
fn pages_follow_the_setting_and_the_machine() {
    let never = "always within_size advise [never] deny force\n";
    let advise = "always within_size [advise] never deny force\n";
    let cases = [
        ("a", never, "0\n", [Some(Pages::Plain), None]),
        ("b", advise, "0\n", [Some(Pages::Transparent); 2]),
        ("c", never, "32\n", [Some(Pages::Plain), Some(Pages::Pool)]),
        ("d", advise, "31\n", [Some(Pages::Transparent); 2]),
        ("e", advise, "32\n", [Some(Pages::Transparent), Some(Pages::Pool)]),
    ];
    for (name, shmem, pool, [auto, on]) in cases {
        let machine = Machine::new(name, &[(SHMEM, shmem), (POOL, pool)]);
        let offer = Offer::under(&machine.0);
        let chosen = |wanted| offer.choose(wanted, 64 * MIB).ok();
        assert_eq!((chosen(HugePages::Auto), chosen(HugePages::On)), (auto, on), "{offer:?}");
        assert_eq!(chosen(HugePages::Off), Some(Pages::Plain));
    }
}

#[test]
fn what_is_missing_is_said_with_what_to_do() {
    let offer = Offer { shmem: Some("never".into()), pool_pages: 3 };
    let text = offer.choose(HugePages::On, 64 * MIB + 1).unwrap_err();
    assert!(text.contains("shmem_enabled is never"), "{text}");
    assert!(text.contains("3 pages free of 33"), "{text}");
    assert!(text.contains("vm.nr_hugepages=33"), "{text}");
    let none = Offer::under(Path::new("/nonexistent"));
    assert!(none.choose(HugePages::On, MIB).unwrap_err().contains("is not there"));
}

#[test]
fn nodes_are_those_with_memory_that_the_process_may_use() {
    let nodes = |allowed: &str, there: &str| {
        let status = format!("Name:\tx\nMems_allowed_list:\t{allowed}\n");
        let has = "sys/devices/system/node/has_memory";
        let machine = Machine::new("nodes", &[("proc/self/status", &status), (has, there)]);
        memory_nodes(&machine.0)
    };
    assert_eq!(nodes("0", "0\n"), [0]);
    assert_eq!(nodes("0-3", "0,2-3\n"), [0, 2, 3]);
    assert_eq!(nodes("1", "0-1\n"), [1]);
    assert_eq!(nodes("0-99999999", "0\n"), [] as [u32; 0]);
    assert!(!memory_nodes(Path::new("/")).is_empty(), "this machine has memory");
}

#[test]
fn huge_bytes_are_those_of_the_one_mapping() {
    let smaps = "7f0000000000-7f0000400000 rw-s 0 00:01 5 /memfd:keepwarm-arena (deleted)\n\
                 Size:               4096 kB\n\
                 ShmemPmdMapped:     2048 kB\n\
                 Shared_Hugetlb:        0 kB\n\
                 7f0000400000-7f0000800000 rw-s 0 00:01 6 /memfd:other\n\
                 ShmemPmdMapped:     4096 kB\n";
    let machine = Machine::new("smaps", &[("proc/self/smaps", smaps)]);
    assert_eq!(huge_bytes(&machine.0, 0x7f00_0000_0000), 2048 << 10);
    assert_eq!(huge_bytes(&machine.0, 0x7f00_0000_1000), 0);
}

/// On whatever machine this runs: an arena that was promised huge pages has them.
#[test]
fn this_machine_keeps_its_word() {
    let bytes = 2 * HUGE_PAGE_BYTES;
    match Arena::create_on(bytes, true, HugePages::On) {
        Ok(arena) => {
            let ground = arena.ground();
            assert_ne!(ground.pages, Pages::Plain);
            let whole = ground.pages != Pages::Pool || ground.huge_bytes == bytes;
            assert!(whole, "{ground:?}");
            arena.touch_pages();
        }
        Err(ArenaError::HugePages { problem, .. }) => assert!(problem.contains("huge_pages")),
        Err(other) => panic!("{other}"),
    }
    let plain = Arena::create_on(bytes, true, HugePages::Off).unwrap();
    assert_eq!((plain.ground().pages, plain.ground().huge_bytes), (Pages::Plain, 0));
    let refused = Arena::create_on(bytes + 4096, true, HugePages::On);
    assert!(!matches!(refused, Ok(arena) if arena.ground().pages == Pages::Pool));
}
