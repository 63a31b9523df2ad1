//! Hit rate against capacity, for all capacities in one pass over a trace.

pub mod edges;
pub mod lru;
pub mod scaled;
pub mod spread;

use crate::sample::jackknife::Estimate;

/// What a memory of some blocks would have found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Of all blocks asked for.
    pub blocks: Estimate,
    /// Of all input tokens, those without a block included.
    pub tokens: Estimate,
}
