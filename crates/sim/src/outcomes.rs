//! What became of each request, as columns.

use crate::memory::Tier;

/// One value for each request, in order of arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes {
    /// Which replica served it.
    pub replica: Vec<u32>,
    /// Tokens of its prompt.
    pub input_tokens: Vec<u32>,
    /// Blocks of its prompt that are known.
    pub blocks: Vec<u32>,
    /// Blocks that were not computed again, by tier.
    pub hit_blocks: [Vec<u32>; Tier::ALL.len()],
    /// Their tokens.
    pub hit_tokens: [Vec<u32>; Tier::ALL.len()],
    /// From arrival until all that it restored was here.
    pub restore_s: Vec<f64>,
    /// From then until its prefill began.
    pub wait_s: Vec<f64>,
    /// Prefill.
    pub prefill_s: Vec<f64>,
}

impl Outcomes {
    /// Requests so far.
    pub fn len(&self) -> usize {
        self.replica.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.replica.is_empty()
    }
}
