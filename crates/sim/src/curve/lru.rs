//! The curve of LRU with prompts touched tail first, from how far back each block's last use is.
//!
//! A block is in a memory of C blocks if fewer than C others were used since (the stack property:
//! Mattson et al., 1970). Tail first, a block's whole prefix was used after it, so that a block
//! that is there is part of an unbroken prefix: each use can be looked at by itself, in a sample
//! too.

use super::Point;
use super::edges::Edges;
use super::spread::{Amount, Spread};
use crate::requests::Requests;
use crate::sample::GROUPS;
use crate::sample::jackknife::{Estimate, error};
use crate::sample::stack::HEAVY_LANE;
use crate::sample::watch::{Met, Ranks, Watch};

/// Below this many watched blocks in a memory, what its size means in blocks is uncertain.
const FEW: f64 = 16.0;

/// One pass over a trace.
#[derive(Debug)]
pub struct LruCurve {
    watch: Watch,
    block_tokens: u32,
    edges: Edges,
    plain: Spread,
    heavy: Spread,
    /// Uses with a block's number, tokens in blocks; and of these, heavy blocks'.
    used: Amount,
    used_heavy: Amount,
    input_tokens: f64,
    met: Vec<Met>,
}

impl LruCurve {
    /// Nothing has been fed. `asked`: capacities that will be asked for exactly.
    pub fn new(block_tokens: u32, asked: &[u64], seed: u64, watched_max: usize) -> LruCurve {
        let edges = Edges::new(asked);
        LruCurve {
            watch: Watch::new(seed, watched_max),
            block_tokens,
            plain: Spread::new(&edges),
            heavy: Spread::new(&edges),
            edges,
            used: [0.0; 2],
            used_heavy: [0.0; 2],
            input_tokens: 0.0,
            met: Vec::new(),
        }
    }

    /// Takes requests in order of arrival.
    pub fn feed(&mut self, requests: &Requests<'_>) {
        for request in 0..requests.len() {
            self.request(requests.blocks(request), requests.input_tokens[request]);
        }
    }

    fn request(&mut self, ids: &[u64], input_tokens: u32) {
        self.met.clear();
        self.input_tokens += f64::from(input_tokens);
        self.used[0] += ids.len() as f64;
        let size = self.block_tokens;
        self.used[1] += f64::from(input_tokens).min(ids.len() as f64 * f64::from(size));
        for (position, &id) in ids.iter().enumerate() {
            let position = position as u32;
            let Some(met) = self.watch.meet(id, position) else { continue };
            self.met.push(met);
            let tokens = size.min(input_tokens.saturating_sub(position.saturating_mul(size)));
            let amount = [met.weight, met.weight * f64::from(tokens)];
            let ranks = if met.is_new { Ranks::NEVER } else { self.watch.ranks(met.block) };
            if met.lane == HEAVY_LANE {
                self.used_heavy[0] += amount[0];
                self.used_heavy[1] += amount[1];
                self.heavy.add(&self.edges, None, &ranks, amount);
            } else {
                self.plain.add(&self.edges, Some(met.lane), &ranks, amount);
            }
        }
        for met in self.met.iter().rev() {
            self.watch.touch(met.block);
        }
        self.watch.settle();
    }

    /// What is watched.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The curve at each of these capacities; none: unbounded.
    pub fn points(&self, capacities: &[Option<u64>]) -> Vec<Point> {
        let all = Sums::new(self, None);
        let without: Vec<Sums> = (0..GROUPS).map(|group| Sums::new(self, Some(group))).collect();
        let point = |capacity: Option<u64>| {
            let capacity = capacity.map(|blocks| blocks as f64);
            let figure = |by: usize| self.figure(capacity, by, &all, &without);
            Point { blocks: figure(0), tokens: figure(1) }
        };
        capacities.iter().map(|&capacity| point(capacity)).collect()
    }

    fn figure(&self, capacity: Option<f64>, by: usize, all: &Sums, without: &[Sums]) -> Estimate {
        let value = all.rate(self, capacity, by);
        let rate = self.watch.rate();
        if rate >= 1.0 {
            return Estimate::exact(value);
        }
        let each: [f64; GROUPS] =
            std::array::from_fn(|group| without[group].rate(self, capacity, by));
        let chance = error(&each, rate);
        let slope = capacity.map_or(0.0, |blocks| self.blur(blocks, rate, by, all, value));
        Estimate { value, error: chance + slope }
    }

    /// Ranks are estimated, so that the curve is seen blurred along its capacities. From its bend
    /// over one standard deviation of a rank; where few blocks tell, from its rise over four.
    fn blur(&self, blocks: f64, rate: f64, by: usize, all: &Sums, value: f64) -> f64 {
        let deviation = ((1.0 - rate) / (blocks * rate)).sqrt();
        let at = |step: f64| all.rate(self, Some(blocks * (1.0 + step).max(0.0)), by);
        let bend = (at(deviation) + at(-deviation) - 2.0 * value).abs() / 2.0;
        if blocks * rate >= FEW {
            return bend;
        }
        bend.max((at(2.0 * deviation) - at(-2.0 * deviation)).abs() / 2.0)
    }
}

/// Sums of the histograms, from everything or without a group.
struct Sums {
    plain: Vec<Amount>,
    heavy: Vec<Amount>,
}

impl Sums {
    fn new(curve: &LruCurve, without: Option<usize>) -> Sums {
        Sums { plain: curve.plain.sums(without), heavy: curve.heavy.sums(without) }
    }

    /// Hits of a memory this large over what was asked for.
    fn rate(&self, curve: &LruCurve, capacity: Option<f64>, by: usize) -> f64 {
        let asked = if by == 0 { curve.used[0] } else { curve.input_tokens };
        if asked == 0.0 {
            return 0.0;
        }
        let last = self.plain.len() - 1;
        let (bin, share) = match capacity {
            None => (Some(last - 1), 0.0),
            Some(blocks) => curve.edges.at(blocks),
        };
        let sum = |sums: &[Amount]| {
            let below = bin.map_or(0.0, |bin| sums[bin][by]);
            let next = sums[bin.map_or(0, |bin| (bin + 1).min(last - 1))][by];
            below + (next - below) * share
        };
        // Sampled uses say how large the share of hits is; how many uses there were is known.
        let plain = curve.used[by] - curve.used_heavy[by];
        let sampled = self.plain[last][by];
        let hits = if sampled > 0.0 { plain * sum(&self.plain) / sampled } else { 0.0 };
        (sum(&self.heavy) + hits) / asked
    }
}
