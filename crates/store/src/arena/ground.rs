//! What the arena's memory lies on: which pages, on which memory nodes. Asked of the machine at
//! start, and said.

use std::fs;
use std::path::Path;

/// Whether the arena is to lie on huge pages, which make copies' page walks and the start cheaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HugePages {
    /// Transparent ones where the kernel gives them to shared memory, else plain pages.
    #[default]
    Auto,
    /// From the pool of reserved ones, or transparent ones; without either there is no arena.
    On,
    /// Plain pages.
    Off,
}

impl HugePages {
    /// All settings.
    pub const ALL: [HugePages; 3] = [HugePages::Auto, HugePages::On, HugePages::Off];

    /// The name in settings.
    pub fn name(self) -> &'static str {
        match self {
            HugePages::Auto => "auto",
            HugePages::On => "on",
            HugePages::Off => "off",
        }
    }
}

/// Which pages an arena lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The machine's small ones.
    Plain,
    /// Huge where the kernel finds some, the rest small.
    Transparent,
    /// Huge, all of them, out of the reserved pool.
    Pool,
}

impl Pages {
    /// The name in figures.
    pub fn name(self) -> &'static str {
        match self {
            Pages::Plain => "plain",
            Pages::Transparent => "transparent",
            Pages::Pool => "pool",
        }
    }
}

/// What an arena lies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ground {
    /// Its pages.
    pub pages: Pages,
    /// Bytes on huge pages once it was populated.
    pub huge_bytes: u64,
    /// Memory nodes that this process may use.
    pub memory_nodes: u32,
    /// Whether it is spread over all of them.
    pub is_interleaved: bool,
}

impl Ground {
    /// Before anything was asked of the machine.
    pub(super) fn of(pages: Pages) -> Ground {
        Ground { pages, huge_bytes: 0, memory_nodes: 1, is_interleaved: false }
    }
}

/// Huge pages of the pool: 2 MiB each.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

const SHMEM: &str = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
const POOL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// What the machine has to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    /// The kernel's mode of transparent huge pages for shared memory; none: it has none.
    pub shmem: Option<String>,
    /// Free pages of the pool.
    pub pool_pages: u64,
}

impl Offer {
    /// Of the machine whose `/sys` lies below `root`.
    pub fn under(root: &Path) -> Offer {
        let modes = fs::read_to_string(root.join(SHMEM)).unwrap_or_default();
        let chosen = modes.split_whitespace().find_map(|mode| mode.strip_prefix('['));
        let free = fs::read_to_string(root.join(POOL)).unwrap_or_default();
        Offer {
            shmem: chosen.map(|mode| mode.trim_end_matches(']').into()),
            pool_pages: free.trim().parse().unwrap_or(0),
        }
    }

    fn gives_transparent(&self) -> bool {
        self.shmem.as_deref().is_some_and(|mode| !matches!(mode, "never" | "deny"))
    }

    /// The pages of an arena of so many bytes.
    ///
    /// # Errors
    /// Huge pages are wanted and there are none: what there is, and what to do.
    pub fn choose(&self, wanted: HugePages, bytes: u64) -> Result<Pages, String> {
        let needed = bytes.div_ceil(HUGE_PAGE_BYTES);
        match wanted {
            HugePages::Off => Ok(Pages::Plain),
            HugePages::Auto if self.gives_transparent() => Ok(Pages::Transparent),
            HugePages::Auto => Ok(Pages::Plain),
            HugePages::On if self.pool_pages >= needed => Ok(Pages::Pool),
            HugePages::On if self.gives_transparent() => Ok(Pages::Transparent),
            HugePages::On => Err(format!(
                "huge pages are on, but /{SHMEM} is {} and the pool has {} pages free of {needed}: \
                 write advise to the former, or run sysctl -w vm.nr_hugepages={needed}, or set \
                 huge_pages to auto",
                self.shmem.as_deref().unwrap_or("not there"),
                self.pool_pages
            )),
        }
    }
}

/// Memory nodes that this process may use, with `/proc` and `/sys` below `root`.
pub(super) fn memory_nodes(root: &Path) -> Vec<u32> {
    let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    let with_memory = fs::read_to_string(root.join("sys/devices/system/node/has_memory"));
    let there = with_memory.ok().map(|list| ranges(&list));
    let allowed = ranges(allowed.unwrap_or("0"));
    allowed.into_iter().filter(|node| there.as_ref().is_none_or(|t| t.contains(node))).collect()
}

/// `0-2,5` as numbers.
fn ranges(list: &str) -> Vec<u32> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // Kernels know at most 1,024 nodes.
        (last < 1024).then_some(first..=last)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// Bytes on huge pages of the mapping that begins at `base`, with `/proc` below `root`.
pub(super) fn huge_bytes(root: &Path, base: usize) -> u64 {
    let maps = fs::read_to_string(root.join("proc/self/smaps")).unwrap_or_default();
    let start = format!("{base:x}-");
    let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start)).skip(1);
    let huge = ["ShmemPmdMapped:", "Shared_Hugetlb:", "Private_Hugetlb:"];
    let mut kib = 0;
    // A mapping's lines begin with a capital, the next mapping with its address.
    for line in lines.by_ref().take_while(|line| line.starts_with(|c: char| c.is_uppercase())) {
        if let Some(rest) = huge.iter().find_map(|name| line.strip_prefix(name)) {
            let number = rest.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
            kib += number.unwrap_or(0);
        }
    }
    kib << 10
}
