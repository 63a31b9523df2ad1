//! How much memory this process may still take: its cgroups' limits and the machine's.

use std::fs;
use std::path::{Path, PathBuf};

/// The tightest of the limits that apply, and what is left under it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// What can still be taken without reclaiming anything that is in use.
    pub available_bytes: u64,
    /// Where that number comes from, for error texts: `MemAvailable of this machine`, or the
    /// cgroup's directory with its limit and use.
    pub source: String,
}

/// Limits above this mean "none": cgroup v1 shows a page-rounded `i64::MAX`.
const UNLIMITED_BYTES: u64 = 1 << 60;
/// A cgroup path has few levels; this bounds the walk to the root.
const CGROUP_DEPTH_MAX: usize = 64;

impl MemoryLimit {
    /// The limit for this process, or `None` where the kernel shows neither.
    pub fn current() -> Option<MemoryLimit> {
        MemoryLimit::under(Path::new("/"))
    }

    /// As [`MemoryLimit::current`], with `/proc` and `/sys` taken from below `root`.
    pub(super) fn under(root: &Path) -> Option<MemoryLimit> {
        let memberships = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let cgroups = memberships.lines().filter_map(|line| cgroup(root, line)).flatten();
        machine(root).into_iter().chain(cgroups).min_by_key(|limit| limit.available_bytes)
    }
}

fn machine(root: &Path) -> Option<MemoryLimit> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = field(&text, "MemAvailable:")?;
    Some(MemoryLimit {
        available_bytes: kib.saturating_mul(1024),
        source: "MemAvailable of this machine".into(),
    })
}

/// The tightest limit from a `/proc/self/cgroup` line's directory up to the root. `None` for the
/// lines of other controllers.
fn cgroup(root: &Path, line: &str) -> Option<Option<MemoryLimit>> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (base, files) = if controllers.is_empty() {
        (root.join("sys/fs/cgroup"), &V2)
    } else if controllers.split(',').any(|controller| controller == "memory") {
        (root.join("sys/fs/cgroup/memory"), &V1)
    } else {
        return None;
    };
    // Inside a container the path may name directories that only the host sees; what exists of it,
    // and the mount's own root, still holds.
    let mut directory = base.join(path.trim_start_matches('/'));
    let mut tightest: Option<MemoryLimit> = None;
    for _ in 0..CGROUP_DEPTH_MAX {
        if let Some(limit) = files.read(&directory)
            && tightest.as_ref().is_none_or(|kept| limit.available_bytes < kept.available_bytes)
        {
            tightest = Some(limit);
        }
        if directory == base || !directory.pop() {
            break;
        }
    }
    Some(tightest)
}

/// The names under which a cgroup version keeps the same numbers.
struct Files {
    limit: &'static str,
    /// Above this one the kernel slows the group down until it gives memory back, and an arena
    /// never does: a limit as good as the other.
    high: Option<&'static str>,
    usage: &'static str,
    inactive_file: &'static str,
}

const V2: Files = Files {
    limit: "memory.max",
    high: Some("memory.high"),
    usage: "memory.current",
    inactive_file: "inactive_file ",
};
const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    high: None,
    usage: "memory.usage_in_bytes",
    inactive_file: "total_inactive_file ",
};

impl Files {
    /// `None` where the directory has no limit.
    fn read(&self, directory: &Path) -> Option<MemoryLimit> {
        let limits = [Some(self.limit), self.high].into_iter().flatten();
        let limits = limits.filter_map(|name| number(directory.join(name)));
        let limit = limits.min().filter(|limit| *limit < UNLIMITED_BYTES)?;
        // Page cache that nobody used lately counts as use but goes as soon as we need the room.
        let stat = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
        let cache = field(&stat, self.inactive_file).unwrap_or(0);
        let used = number(directory.join(self.usage)).unwrap_or(0).saturating_sub(cache);
        Some(MemoryLimit {
            available_bytes: limit.saturating_sub(used),
            source: format!(
                "cgroup {} with limit {limit} bytes and {used} in use",
                directory.display()
            ),
        })
    }
}

fn number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The first number after a line's `name`.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}
