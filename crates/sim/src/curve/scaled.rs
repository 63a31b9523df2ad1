//! Curves of policies other than LRU: for each capacity a small memory with the policy's own code,
//! over watched blocks alone (miniature simulation: Waldspurger et al., ATC'17).
//!
//! A watched block takes one place of a memory with `capacity × rate` places, a heavy one, which
//! stands for itself alone, `rate` places. Under these policies a block may be there while a block
//! in front of it is not, and most of those in front are not watched. So uses are counted as hits
//! three ways: whatever is in front (too many), if all watched ones in front are there (still too
//! many), and if those of half of the groups are. How much the count falls from half of them to all
//! says how much farther it would fall if everything were watched; half of that fall is the error.

use keepwarm_store::policy::Use;

use super::Point;
use crate::cache::Cache;
use crate::order::OrderKind;
use crate::requests::Requests;
use crate::sample::GROUPS;
use crate::sample::jackknife::{Estimate, Sum, error};
use crate::sample::stack::HEAVY_LANE;
use crate::sample::watch::{Met, Watch};

/// Groups whose blocks are looked at where half of them are.
const HALF: usize = GROUPS.div_ceil(2);
/// 99 % of a normal distribution lies within as many standard deviations.
const Z_99: f64 = 2.576;
/// A memory with fewer places tells nothing.
const PLACES_MIN: f64 = 16.0;
/// What the small memory's own course may add, besides which blocks are in it.
const COURSE: f64 = 0.01;
/// Of LFU: where sessions follow each other, old counts decide for long what stays.
const COURSE_LFU: f64 = 0.02;
/// Ways to count a hit: all watched blocks in front are there; half of the groups' are; whatever.
const WAYS: usize = 3;

/// A small memory.
#[derive(Debug)]
struct Mini {
    /// Blocks that the whole memory has room for; infinite: unbounded.
    capacity: f64,
    cache: Cache,
    /// Whether a block took a heavy one's place.
    is_heavy: Vec<bool>,
    plain: u32,
    heavy: u32,
    /// Blocks and tokens, by way.
    hits: [[Sum; 2]; WAYS],
}

impl Mini {
    fn new(kind: OrderKind, capacity: f64) -> Mini {
        Mini {
            capacity,
            cache: Cache::new(kind, None),
            is_heavy: Vec::new(),
            plain: 0,
            heavy: 0,
            hits: Default::default(),
        }
    }

    fn look(&mut self, asked: &[Asked]) {
        let mut unbroken = [true; WAYS];
        for each in asked {
            let is_here = self.cache.contains(each.met.block);
            let is_of_half = each.met.lane == HEAVY_LANE || each.met.lane < HALF;
            for (way, hits) in self.hits.iter_mut().enumerate() {
                if is_here && unbroken[way] {
                    hits[0].add(each.met.lane, each.met.weight);
                    hits[1].add(each.met.lane, each.met.weight * each.tokens);
                }
            }
            unbroken[0] &= is_here;
            unbroken[1] &= is_here || !is_of_half;
        }
    }

    fn take(&mut self, block: u32, is_heavy: bool, rate: f64) {
        if self.cache.touch(block, Use::Read) {
            if self.is_heavy[block as usize] != is_heavy {
                self.forget(block);
                self.note(block, is_heavy);
            }
            return;
        }
        self.make_room(if is_heavy { rate } else { 1.0 }, rate);
        self.cache.store(block);
        self.note(block, is_heavy);
    }

    fn make_room(&mut self, size: f64, rate: f64) {
        // Sums of ones and rates: a little less than a place's worth may be lost to rounding.
        let places = self.capacity * rate - size + 1e-6;
        while f64::from(self.plain) + f64::from(self.heavy) * rate > places {
            let Some(left) = self.cache.evict() else { return };
            self.forget(left);
        }
    }

    fn note(&mut self, block: u32, is_heavy: bool) {
        if self.is_heavy.len() <= block as usize {
            self.is_heavy.resize(block as usize + 1, false);
        }
        self.is_heavy[block as usize] = is_heavy;
        *if is_heavy { &mut self.heavy } else { &mut self.plain } += 1;
    }

    fn forget(&mut self, block: u32) {
        *if self.is_heavy[block as usize] { &mut self.heavy } else { &mut self.plain } -= 1;
    }
}

/// A watched block of a request.
#[derive(Clone, Copy, Debug)]
struct Asked {
    met: Met,
    tokens: f64,
}

/// One pass over a trace.
#[derive(Debug)]
pub struct ScaledCurve {
    watch: Watch,
    block_tokens: u32,
    /// In growing order of capacity; the last one is unbounded.
    minis: Vec<Mini>,
    course: f64,
    used: [f64; 2],
    watched: [Sum; 2],
    input_tokens: f64,
    asked: Vec<Asked>,
}

impl ScaledCurve {
    /// Nothing has been fed.
    pub fn new(
        block_tokens: u32,
        kind: OrderKind,
        capacities: &[u64],
        seed: u64,
        watched_max: usize,
    ) -> ScaledCurve {
        let mut sizes: Vec<f64> = capacities.iter().map(|&blocks| blocks.max(1) as f64).collect();
        sizes.push(f64::INFINITY);
        sizes.sort_unstable_by(f64::total_cmp);
        sizes.dedup();
        ScaledCurve {
            watch: Watch::new(seed, watched_max),
            block_tokens,
            minis: sizes.into_iter().map(|size| Mini::new(kind, size)).collect(),
            course: if kind == OrderKind::Lfu { COURSE_LFU } else { COURSE },
            used: [0.0; 2],
            watched: Default::default(),
            input_tokens: 0.0,
            asked: Vec::new(),
        }
    }

    /// Takes requests in order of arrival.
    pub fn feed(&mut self, requests: &Requests<'_>) {
        for request in 0..requests.len() {
            self.request(requests.blocks(request), requests.input_tokens[request]);
        }
    }

    fn request(&mut self, ids: &[u64], input_tokens: u32) {
        let size = self.block_tokens;
        self.input_tokens += f64::from(input_tokens);
        self.used[0] += ids.len() as f64;
        self.used[1] += f64::from(input_tokens).min(ids.len() as f64 * f64::from(size));
        self.asked.clear();
        for (position, &id) in ids.iter().enumerate() {
            let position = position as u32;
            let Some(met) = self.watch.meet(id, position) else { continue };
            let before = position.saturating_mul(size);
            let tokens = f64::from(size.min(input_tokens.saturating_sub(before)));
            self.watched[0].add(met.lane, met.weight);
            self.watched[1].add(met.lane, met.weight * tokens);
            self.asked.push(Asked { met, tokens });
        }
        let rate = self.watch.rate();
        for mini in &mut self.minis {
            mini.look(&self.asked);
            for each in self.asked.iter().rev() {
                mini.take(each.met.block, self.watch.is_heavy(each.met.block), rate);
            }
        }
        self.settle();
    }

    fn settle(&mut self) {
        let before = self.watch.rate();
        let gone = self.watch.settle();
        if gone.is_empty() {
            return;
        }
        let rate = self.watch.rate();
        for mini in &mut self.minis {
            for &block in &gone {
                if mini.cache.forget(block) {
                    mini.forget(block);
                }
            }
            mini.cache.thin(rate / before);
            mini.make_room(0.0, rate);
        }
    }

    /// What is watched.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The curve at each of these capacities, all of which `new` was given; none: unbounded.
    pub fn points(&self, capacities: &[Option<u64>]) -> Option<Vec<Point>> {
        let at = |capacity: &Option<u64>| {
            let blocks = capacity.map_or(f64::INFINITY, |blocks| blocks.max(1) as f64);
            let mini = self.minis.iter().position(|each| each.capacity == blocks)?;
            Some(Point { blocks: self.figure(mini, 0), tokens: self.figure(mini, 1) })
        };
        capacities.iter().map(at).collect()
    }

    fn figure(&self, mini: usize, by: usize) -> Estimate {
        let rate = self.watch.rate();
        if rate >= 1.0 {
            return Estimate::exact(self.share(mini, by, 0, None));
        }
        let capacity = self.minis[mini].capacity;
        let [strict, half, loose] = [0, 1, 2].map(|way| self.share(mini, by, way, None));
        // The fall from `loose` grows with the share of blocks watched by some power of it.
        let (seen, seen_half) = (loose - strict, loose - half);
        let power = if seen_half > 0.0 {
            ((seen / seen_half).ln() / (GROUPS as f64 / HALF as f64).ln()).clamp(0.0, 1.0)
        } else {
            1.0
        };
        let whole = (seen * rate.recip().powf(power)).min(loose);
        let value = loose - (seen + whole) / 2.0;
        let each = std::array::from_fn(|group| self.share(mini, by, 0, Some(group)));
        let mut wide = error(&each, rate) + (whole - seen) / 2.0 + self.blur(mini, by, rate);
        if capacity.is_finite() {
            wide += self.course * (1.0 - rate);
        }
        if capacity * rate < PLACES_MIN {
            // All that is sure: no less than nothing, no more than a larger memory has.
            let larger = (mini..self.minis.len())
                .find(|&each| self.minis[each].capacity * rate >= PLACES_MIN)
                .map_or(1.0, |each| self.share(each, by, 0, None));
            wide = wide.max(value).max(larger - value);
        }
        Estimate { value, error: wide }
    }

    /// How many blocks a memory's places stand for is uncertain: by its neighbours' slope.
    fn blur(&self, mini: usize, by: usize, rate: f64) -> f64 {
        let capacity = self.minis[mini].capacity;
        if capacity.is_infinite() {
            return 0.0;
        }
        let deviation = ((1.0 - rate) / (capacity * rate)).sqrt();
        let slope = |one: usize, other: usize| {
            let step = (self.minis[other].capacity / self.minis[one].capacity).ln();
            if !step.is_finite() || step == 0.0 {
                return 0.0;
            }
            (self.share(other, by, 0, None) - self.share(one, by, 0, None)).abs() / step
        };
        let below = if mini > 0 { slope(mini - 1, mini) } else { 0.0 };
        Z_99 * deviation * below.max(slope(mini, mini + 1))
    }

    fn share(&self, mini: usize, by: usize, way: usize, without: Option<usize>) -> f64 {
        let asked = if by == 0 { self.used[0] } else { self.input_tokens };
        let (hits, watched) = (&self.minis[mini].hits[way][by], &self.watched[by]);
        if asked == 0.0 {
            return 0.0;
        }
        let sampled = watched.plain(without);
        let plain = self.used[by] - watched.heavy;
        let of_plain = if sampled > 0.0 { plain * hits.plain(without) / sampled } else { 0.0 };
        (hits.heavy + of_plain) / asked
    }
}
