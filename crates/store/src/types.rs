//! The words every part shares: keys, epochs, generations, reasons. Numbers in `repr(u8)` enums are
//! wire codes: append, never renumber.

use std::fmt;
use std::time::Duration;

/// A block's name in the index: exactly 128 bits, compared in full.
///
/// Keys are outputs of a keyed hash (see `identity`), so any 8 of its bytes are uniformly
/// distributed and serve as hash-table bits without further mixing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct BlockKey(pub [u8; 16]);

impl BlockKey {
    /// The first eight bytes, little-endian: the table's hash.
    #[inline]
    pub fn low_bits(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Debug for BlockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Namespace version. A larger one hides every block of the smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Epoch(pub u32);

/// Version of a block's place in the arena: changes before the place is reused or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Generation(pub u32);

/// A node's own number for an attached namespace; valid for one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct NamespaceId(pub u16);

/// Names one lookup's pins; valid for one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct LeaseId(pub u64);

/// Where a hit's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Tier {
    /// The node's arena.
    Dram = 1,
    /// Local flash.
    Flash = 2,
    /// Object storage.
    Object = 3,
}

/// Why a block could not be restored. Closed; each value is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MissReason {
    /// Never stored here, or so long ago that the ghost list forgot it, or dropped.
    Absent = 1,
    /// Was here; made room for others.
    Evicted = 2,
    /// Was here; its time to live ended.
    Expired = 3,
    /// Stored under another epoch than the one asked for.
    Epoch = 4,
    /// Was here; its tenant exceeded its quota.
    Quota = 5,
    /// Being written right now.
    Pending = 6,
    /// The bytes did not match their checksum.
    Corrupt = 7,
    /// The node sheds load.
    Throttled = 8,
    /// No answer within the deadline.
    Deadline = 9,
    /// The node is unreachable, or its breaker is open.
    StoreDown = 10,
    /// The node refused this namespace.
    Identity = 11,
}

/// Why a put was not stored. Closed; each value is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ShedReason {
    /// Everything that could make room is leased or being read.
    Leased = 1,
    /// The tenant's quota leaves no room.
    Quota = 2,
    /// Stores are shed because loads come first.
    Watermark = 3,
    /// Larger than a block may be here.
    TooLarge = 4,
    /// The put's epoch is not the namespace's.
    Epoch = 5,
    /// What arrived did not match its checksum.
    Corrupt = 6,
    /// Too many writes are under way.
    Busy = 7,
    /// Not finished within the deadline.
    Deadline = 8,
    /// The node is unreachable, or its breaker is open.
    StoreDown = 9,
    /// The node refused this namespace.
    Identity = 10,
    /// Part number or length does not fit the namespace, or the length is not that of the block
    /// that is here.
    Invalid = 11,
}

/// What became of one block of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PutOutcome {
    /// This call's bytes are in; visible once all parts are.
    Stored,
    /// The same key was already complete.
    Present,
    /// Another writer is at it.
    Pending,
    /// Not stored.
    Shed(ShedReason),
}

/// What became of one block of a get. On anything but `Ok` the destination is undefined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GetOutcome {
    /// The bytes landed and match their checksum.
    Ok,
    /// Being written right now.
    Pending,
    /// The node sheds load; try again later.
    Throttled,
    /// Not restored.
    Miss(MissReason),
}

/// Time since an arbitrary start, suspended time included (`CLOCK_BOOTTIME`), so that leases end
/// even across a suspended machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// This much later.
    pub fn after(self, wait: Duration) -> Instant {
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        Instant(self.0.saturating_add(nanos))
    }

    /// Time from `earlier` to here; zero if `earlier` is later.
    pub fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The store's only source of time; tests bring their own.
pub trait Clock: Send + Sync {
    /// Now, in nanoseconds of a clock that never goes back.
    fn now(&self) -> Instant;

    /// Now, in milliseconds of Unix time: what outlives a restart is dated with it.
    fn unix_ms(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |since| since.as_millis() as u64)
    }
}

/// How long a namespace's blocks stay in memory against others of the same tenant: 0 leaves first,
/// 3 last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// How many there are.
    pub const COUNT: usize = 4;
    /// Leaves first.
    pub const MIN: Priority = Priority(0);
    /// What nobody asked to change.
    pub const NORMAL: Priority = Priority(1);
    /// Leaves last.
    pub const MAX: Priority = Priority(3);

    /// The priority of this number, from 0 to 3.
    pub fn new(number: u8) -> Option<Priority> {
        (usize::from(number) < Priority::COUNT).then_some(Priority(number))
    }

    /// Its number.
    pub fn number(self) -> u8 {
        self.0
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What an attach asks for the blocks that are stored in the namespace from then on. What it does
/// not name stays as an earlier attach left it. The tenant's configuration bounds both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// How long blocks live after they were stored.
    pub ttl: Option<std::time::Duration>,
    /// How long they stay in memory against others of the tenant.
    pub priority: Option<Priority>,
}
