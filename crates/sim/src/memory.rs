//! What requests meet on their way: one memory or several behind each other.

/// Where a block came from, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// The engine's own memory on the accelerator.
    Device,
    /// The engine's pool in host memory.
    Host,
    /// A node's memory.
    Dram,
    /// A node's flash.
    Flash,
    /// Object storage.
    Object,
}

impl Tier {
    /// All of them, nearest first.
    pub const ALL: [Tier; 5] = [Tier::Device, Tier::Host, Tier::Dram, Tier::Flash, Tier::Object];
}

/// Blocks found in each tier, by `Tier as usize`.
pub type Found = [u32; Tier::ALL.len()];

/// A memory that requests meet in order of arrival. Blocks are numbers of an `Interner`.
pub trait Memory {
    /// Blocks of the unbroken prefix that are here, by the nearest tier that has each. Not a use.
    fn peek(&self, blocks: &[u32], now_s: f64) -> Found;

    /// Serves a request: uses the `found` blocks that it begins with and stores the others. Returns
    /// what `peek` would have returned just before.
    fn serve(&mut self, blocks: &[u32], now_s: f64) -> Found;

    /// Is offered blocks that what is nearer let go of to make room for the request that was served
    /// last. Most memories want none of them.
    fn offer(&mut self, _blocks: &[u32], _now_s: f64) {}
}
