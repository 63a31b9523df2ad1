//! Uses by the capacity that would have held them: one histogram from all that is watched, and one
//! without each group.

use super::edges::Edges;
use crate::sample::GROUPS;
use crate::sample::watch::Ranks;

/// Uses, and their tokens.
pub type Amount = [f64; 2];

/// Sixteen histograms over the same bins, most of whose counts are kept once.
#[derive(Debug)]
pub struct Spread {
    all: Vec<Amount>,
    /// Uses whose bin is the same whichever group is left out.
    same: Vec<Amount>,
    /// Of these, what each group gave.
    own: Vec<Amount>,
    /// Uses whose bin depends on the group that is left out, by group.
    apart: Vec<Amount>,
}

impl Spread {
    /// Empty, with bins for these edges.
    pub fn new(edges: &Edges) -> Spread {
        let bins = edges.bins();
        let (one, many) = (vec![[0.0; 2]; bins], vec![[0.0; 2]; bins * GROUPS]);
        Spread { all: one.clone(), same: one, own: many.clone(), apart: many }
    }

    /// Adds a use. `group`: the block's; none for heavy blocks, which are in all sixteen.
    #[inline]
    pub fn add(&mut self, edges: &Edges, group: Option<usize>, ranks: &Ranks, amount: Amount) {
        let bins = self.all.len();
        plus(&mut self.all[edges.bin(ranks.all)], amount);
        let (low, high) = ranks
            .without
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(low, high), &rank| (low.min(rank), high.max(rank)));
        let bin = edges.bin(low);
        if bin == edges.bin(high) {
            plus(&mut self.same[bin], amount);
            if let Some(group) = group {
                plus(&mut self.own[group * bins + bin], amount);
            }
            return;
        }
        for (left_out, &rank) in ranks.without.iter().enumerate() {
            if group != Some(left_out) {
                plus(&mut self.apart[left_out * bins + edges.bin(rank)], amount);
            }
        }
    }

    /// Sums up to and with each bin, from everything or without a group.
    pub fn sums(&self, without: Option<usize>) -> Vec<Amount> {
        let bins = self.all.len();
        let mut sum = [0.0; 2];
        let one = |bin: usize| match without {
            None => self.all[bin],
            Some(group) => {
                let (own, apart) = (self.own[group * bins + bin], self.apart[group * bins + bin]);
                let same = self.same[bin];
                [same[0] - own[0] + apart[0], same[1] - own[1] + apart[1]]
            }
        };
        (0..bins)
            .map(|bin| {
                plus(&mut sum, one(bin));
                sum
            })
            .collect()
    }
}

#[inline]
fn plus(to: &mut Amount, amount: Amount) {
    to[0] += amount[0];
    to[1] += amount[1];
}
