//! What a store is opened with. Every limit is known at start.

use std::path::PathBuf;
use std::time::Duration;

use crate::arena::HugePages;
use crate::flash::{FlashPath, FlashSettings};
use crate::identity::{DEFAULT_TENANT, TenantSecret};
use crate::types::Priority;

/// Which block leaves first when room is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum PolicyKind {
    /// Recency with an adaptive share for what was used again.
    #[default]
    Adaptive,
    /// Least recently used first.
    Lru,
    /// Oldest first.
    Fifo,
    /// Two queues with a small probation share.
    S3Fifo,
}

impl PolicyKind {
    /// Every policy, the default first.
    pub const ALL: [PolicyKind; 4] =
        [PolicyKind::Adaptive, PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::S3Fifo];

    /// The policy of this name; `default` names the default.
    pub fn named(name: &str) -> Option<PolicyKind> {
        match name {
            "default" => Some(PolicyKind::default()),
            name => PolicyKind::ALL.into_iter().find(|kind| kind.name() == name),
        }
    }

    /// The name in configuration and metrics.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Adaptive => "adaptive",
            PolicyKind::Lru => "lru",
            PolicyKind::Fifo => "fifo",
            PolicyKind::S3Fifo => "s3fifo",
        }
    }
}

/// One principal's share of the store.
#[derive(Clone, Debug)]
pub struct TenantConfig {
    /// Its name, as in the namespaces' field `tenant`.
    pub name: String,
    /// What its block keys are hashed with.
    pub secret: TenantSecret,
    /// Bytes of the arena that it may hold; none: all of it.
    pub quota_bytes: Option<u64>,
    /// Bytes of flash that it may hold, whole segments; none: all of it.
    pub flash_quota_bytes: Option<u64>,
    /// How long its blocks live after they were stored; none: the store's
    /// default. Also the most that a namespace may ask for.
    pub ttl: Option<Duration>,
    /// Most that a namespace may ask for.
    pub priority_max: Priority,
}

impl TenantConfig {
    /// The tenant of everyone who did not ask for another.
    pub fn public_default() -> TenantConfig {
        let (name, secret) = (DEFAULT_TENANT.to_string(), TenantSecret::public_default());
        TenantConfig {
            name,
            secret,
            quota_bytes: None,
            flash_quota_bytes: None,
            ttl: None,
            priority_max: Priority::MAX,
        }
    }
}

/// Bounds on everything that could grow.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Namespaces known at once, 1 to 4,096. Too low: attach is refused once all are in use.
    pub namespaces_max: u16,
    /// Events kept for subscribers. Too low: a slow subscriber starts over with a snapshot.
    pub event_ring: u32,
    /// Longest part, bytes.
    pub part_bytes_max: u32,
    /// Blocks that may be incomplete at once. Beyond it puts are shed as busy.
    pub filling_max: u32,
    /// Leases at once. Beyond it lookups answer unleased.
    pub leases_max: u32,
    /// Blocks held by all leases together, each counted once for each lease.
    pub lease_slots_max: u32,
    /// Arena bytes granted to writers that have not committed; none: half of the arena. Beyond it
    /// puts are shed, except when nothing else is being written. One of several tenants gets at
    /// most a quarter of the arena, and of the incomplete blocks.
    pub writing_bytes_max: Option<u64>,
    /// Reads in flight beyond which puts are shed, because loads come first.
    pub reads_watermark: u32,
    /// Keys remembered after they left, to tell evicted from absent; none: three times as many as
    /// blocks. Too low: the default policy learns less from what returns.
    pub ghosts: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            namespaces_max: 256,
            event_ring: 65_536,
            part_bytes_max: 64 << 20,
            filling_max: 8_192,
            leases_max: 65_536,
            lease_slots_max: 1 << 21,
            writing_bytes_max: None,
            reads_watermark: 8_192,
            ghosts: None,
        }
    }
}

/// Which blocks are written to flash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum FlashAdmission {
    /// Those that were used after they were stored, or that come back after they were evicted:
    /// what nobody asks for again does not wear flash out.
    #[default]
    Reuse,
    /// All of them: for flash that is to hold whatever memory does not.
    All,
}

impl FlashAdmission {
    /// The name in configuration and metrics.
    pub fn name(self) -> &'static str {
        match self {
            FlashAdmission::Reuse => "reuse",
            FlashAdmission::All => "all",
        }
    }
}

/// The second tier, and how it is used.
#[derive(Clone, Debug)]
pub struct FlashConfig {
    /// Files or block devices, 1 to 16 of them; none: no flash.
    pub devices: Vec<FlashPath>,
    /// How they are opened.
    pub settings: FlashSettings,
    /// Which blocks are written there.
    pub admission: FlashAdmission,
    /// Bytes that may be written in a day, averaged, an hour's share at once; none: no limit. Too
    /// low: blocks are not there after a restart; too high: the device wears out early.
    pub day_bytes: Option<u64>,
    /// Entries of the flash index, 48 B each; none: flash bytes / 64 KiB. Too low: segments go
    /// before flash is full.
    pub blocks_max: Option<u32>,
    /// Blocks that wait to be written, at most. Too low: bursts of puts are not written.
    pub queue_blocks: u32,
    /// How long a read waits for a block to come back from flash; then it is throttled.
    pub read_patience: Duration,
    /// Reads under way at once, for each thread that brings blocks back.
    pub read_depth: u32,
    /// Without threads: nothing moves but by `Store::run_flash_by_hand`. For tests.
    #[doc(hidden)]
    pub is_by_hand: bool,
}

impl Default for FlashConfig {
    fn default() -> FlashConfig {
        FlashConfig {
            devices: Vec::new(),
            settings: FlashSettings::default(),
            admission: FlashAdmission::default(),
            day_bytes: None,
            blocks_max: None,
            queue_blocks: 8_192,
            read_patience: Duration::from_millis(500),
            read_depth: 32,
            is_by_hand: false,
        }
    }
}

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Bytes of the arena, rounded down to whole granules.
    pub capacity_bytes: u64,
    /// Entries of the index; none: capacity / 64 KiB, at least 1,024. Reaching it evicts as bytes
    /// do. Too low: memory stays unused; too high: index tables waste 48 B (and parts 40 B) each.
    pub max_blocks: Option<u32>,
    /// Which block leaves first.
    pub policy: PolicyKind,
    /// Who may store here; `default` is always there.
    pub tenants: Vec<TenantConfig>,
    /// How long blocks live after they were stored; none: until evicted.
    pub ttl: Option<Duration>,
    /// Where epochs are kept across restarts; none: in memory only.
    pub state_dir: Option<PathBuf>,
    /// Whether to touch all of the arena at start, so that no put pays for page faults.
    pub populate: bool,
    /// How the second tier is used, if there is one.
    pub flash: FlashConfig,
    /// Whether the arena is to lie on huge pages.
    pub huge_pages: HugePages,
    /// What the ghost list is hashed with, so that a simulation forgets what the store forgets;
    /// none: random, so that nobody can choose keys that share a place.
    #[doc(hidden)]
    pub ghost_seed: Option<u64>,
    /// Bounds.
    pub limits: Limits,
}

impl StoreConfig {
    /// A store of this many bytes with defaults for all else.
    pub fn new(capacity_bytes: u64) -> StoreConfig {
        StoreConfig {
            capacity_bytes,
            max_blocks: None,
            policy: PolicyKind::default(),
            tenants: Vec::new(),
            ttl: None,
            state_dir: None,
            populate: true,
            flash: FlashConfig::default(),
            huge_pages: HugePages::Auto,
            ghost_seed: None,
            limits: Limits::default(),
        }
    }
}
