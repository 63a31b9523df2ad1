//! Counts of what happens on flash, for each tenant.

/// Why a block that was to be written to flash was not. Closed; each value is a metric label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FlashShed {
    /// The queue of blocks to be written was full.
    Queue = 0,
    /// It left memory, or its time ended, before its turn came.
    Late = 1,
    /// The bytes that may be written in a day are used up.
    Budget = 2,
    /// No segment could be had, or the tenant's quota leaves none.
    Space = 3,
    /// The index of flash had no room for one more.
    Index = 4,
    /// No device took it.
    Device = 5,
    /// A segment cannot hold it.
    TooLarge = 6,
    /// Dropped, or outdated by an epoch, while it was written.
    Outdated = 7,
}

impl FlashShed {
    /// All of them, by their codes.
    pub const ALL: [FlashShed; 8] = [
        FlashShed::Queue,
        FlashShed::Late,
        FlashShed::Budget,
        FlashShed::Space,
        FlashShed::Index,
        FlashShed::Device,
        FlashShed::TooLarge,
        FlashShed::Outdated,
    ];

    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            FlashShed::Queue => "queue",
            FlashShed::Late => "late",
            FlashShed::Budget => "budget",
            FlashShed::Space => "space",
            FlashShed::Index => "index",
            FlashShed::Device => "device",
            FlashShed::TooLarge => "too_large",
            FlashShed::Outdated => "outdated",
        }
    }
}

macro_rules! counters {
    ($($(#[doc = $help:literal])* $name:ident,)*) => {
        /// Counts of one tenant's blocks on flash since the store opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct FlashCounters {
            $($(#[doc = $help])* pub $name: u64,)*
            /// Blocks not written, by `FlashShed` code.
            pub shed: [u64; FlashShed::ALL.len()],
        }

        impl FlashCounters {
            /// Every count that is not by reason, by name.
            pub fn singles(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds another's counts.
            pub fn add(&mut self, other: &FlashCounters) {
                $(self.$name += other.$name;)*
                self.shed.iter_mut().zip(other.shed).for_each(|(sum, more)| *sum += more);
            }
        }
    };
}

counters! {
    /// Keys that a lookup found on flash alone.
    lookup_hits,
    /// Blocks chosen to be written.
    admitted,
    /// Blocks written and indexed.
    written,
    /// Bytes of those, whole pages.
    written_bytes,
    /// Blocks written again because they were used since, so that their segment could go.
    rewritten,
    /// Bytes of those, whole pages.
    rewritten_bytes,
    /// Blocks brought back to memory.
    promoted,
    /// Bytes of those.
    promoted_bytes,
    /// Blocks not brought back because there was no room or too much was under way.
    promotions_shed,
    /// Blocks that made room for others.
    evicted,
    /// Blocks whose time to live had ended.
    expired,
    /// Blocks of older epochs taken back.
    outdated,
    /// Blocks dropped by key or with their namespace.
    dropped,
    /// Blocks found to be corrupt.
    corrupt,
    /// Blocks gone with their device.
    lost,
    /// Blocks of an earlier life of the node that were claimed.
    recovered,
    /// Blocks of an earlier life that were not wanted: outdated, expired, no room.
    refused,
}

impl FlashCounters {
    /// Count of one reason for blocks not written.
    pub fn shed_for(&self, reason: FlashShed) -> u64 {
        self.shed[reason as usize]
    }
}
