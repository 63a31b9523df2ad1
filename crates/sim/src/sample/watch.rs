//! Decides for each use of a block whether it is watched, as what, and for how many it stands.

use super::heavy::{Counted, Counter, HEAVY_MAX, Heavy};
use super::stack::{HEAVY_LANE, Lanes, Stack};
use super::{ByHash, GROUPS, group, mix};

/// Blocks watched at most, heavy ones apart. When there are more, a quarter is let go of.
pub const WATCHED_MAX: usize = 131_072;
/// The least that may be asked for: below, groups are too small to tell an error.
pub const WATCHED_MIN: usize = 1_024;

/// A use of a watched block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Met {
    /// The block's number: small, and another block's once this one is let go of.
    pub block: u32,
    /// Its group, or `HEAVY_LANE`.
    pub lane: usize,
    /// Uses that this one stands for. 0: it only becomes heavy here, and others stand for it.
    pub weight: f64,
    /// No earlier request is known to have used it; of a plain block, none has.
    pub is_new: bool,
}

#[derive(Clone, Copy, Debug)]
struct Watched {
    hash: u64,
    lane: u8,
}

/// The watched blocks and the order of their last uses.
#[derive(Debug)]
pub struct Watch {
    seed: u64,
    limit: u64,
    watched_max: usize,
    numbers: ByHash<u32>,
    watched: Vec<Watched>,
    free: Vec<u32>,
    plain: usize,
    heavies: usize,
    counters: Heavy,
    stack: Stack,
}

impl Watch {
    /// Nothing is watched yet. Another `seed` watches others.
    pub fn new(seed: u64, watched_max: usize) -> Watch {
        Watch {
            seed,
            limit: u64::MAX,
            watched_max: watched_max.max(WATCHED_MIN),
            numbers: ByHash::default(),
            watched: Vec::new(),
            free: Vec::new(),
            plain: 0,
            heavies: 0,
            counters: Heavy::default(),
            stack: Stack::default(),
        }
    }

    /// The share of distinct blocks that is watched now; 1: all.
    pub fn rate(&self) -> f64 {
        if self.limit == u64::MAX { 1.0 } else { self.limit as f64 / 2.0_f64.powi(64) }
    }

    /// Watched blocks: plain, and heavy.
    pub fn len(&self) -> (usize, usize) {
        (self.plain, self.heavies)
    }

    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.watched.len() == self.free.len()
    }

    /// Uses in all.
    pub fn uses(&self) -> u64 {
        self.counters.uses()
    }

    /// The counters of heavy blocks.
    pub fn heavies(&self) -> impl Iterator<Item = &Counter> {
        self.counters.heavies()
    }

    /// The counter of a block, if it is heavy.
    pub fn heavy(&self, id: u64) -> Option<&Counter> {
        self.counters.heavy(mix(id, self.seed))
    }

    /// A use of a block at this place of a prompt. None: it is not watched.
    #[inline]
    pub fn meet(&mut self, id: u64, position: u32) -> Option<Met> {
        let hash = mix(id, self.seed);
        match self.counters.count(hash, position) {
            Counted::Heavy(block) => Some(self.met(block, HEAVY_LANE, 1.0)),
            Counted::Plain if hash > self.limit => None,
            Counted::Plain => Some(self.meet_plain(hash)),
            Counted::Rising => Some(self.raise(hash)),
        }
    }

    fn meet_plain(&mut self, hash: u64) -> Met {
        let lane = group(hash);
        let weight = 1.0 / self.rate();
        let block = match self.numbers.get(&hash) {
            Some(&block) => block,
            None => {
                self.plain += 1;
                self.add(hash, lane)
            }
        };
        self.met(block, lane, weight)
    }

    /// A request that names a block twice has not used it before: it stands in no line yet.
    #[inline]
    fn met(&self, block: u32, lane: usize, weight: f64) -> Met {
        Met { block, lane, weight, is_new: !self.stack.has(block) }
    }

    /// This use counts as a plain block's; from the next one on it is heavy.
    fn raise(&mut self, hash: u64) -> Met {
        self.heavies += 1;
        if hash <= self.limit {
            let met = self.meet_plain(hash);
            self.plain -= 1;
            self.watched[met.block as usize].lane = HEAVY_LANE as u8;
            self.counters.promote(hash, met.block);
            return met;
        }
        let block = self.add(hash, HEAVY_LANE);
        self.counters.promote(hash, block);
        self.met(block, HEAVY_LANE, 0.0)
    }

    fn add(&mut self, hash: u64, lane: usize) -> u32 {
        let watched = Watched { hash, lane: lane as u8 };
        let block = match self.free.pop() {
            Some(block) => {
                self.watched[block as usize] = watched;
                block
            }
            None => {
                self.watched.push(watched);
                (self.watched.len() - 1) as u32
            }
        };
        self.numbers.insert(hash, block);
        block
    }

    /// Blocks that were used since this one was, itself included: an estimate from everything that
    /// is watched, and from all but each group. The block was touched before.
    #[inline]
    pub fn ranks(&self, block: u32) -> Ranks {
        Ranks::new(&self.stack.after(block), self.rate())
    }

    /// The block is the most recent now. After all of a request's ranks, its last block first.
    #[inline]
    pub fn touch(&mut self, block: u32) {
        self.stack.touch(block, self.watched[block as usize].lane as usize);
    }

    /// Whether a watched block is heavy now.
    pub fn is_heavy(&self, block: u32) -> bool {
        usize::from(self.watched[block as usize].lane) == HEAVY_LANE
    }

    /// Keeps the bounds; to be called between requests. Returns the blocks that are let go of:
    /// their numbers are given to others, which come as new.
    pub fn settle(&mut self) -> Vec<u32> {
        let mut gone = Vec::new();
        if self.heavies > HEAVY_MAX {
            self.demote(&mut gone);
        }
        if self.plain > self.watched_max {
            self.lower(&mut gone);
        }
        gone
    }

    fn demote(&mut self, gone: &mut Vec<u32>) {
        for (hash, block) in self.counters.demote() {
            self.heavies -= 1;
            if hash <= self.limit {
                self.plain += 1;
                self.watched[block as usize].lane = group(hash) as u8;
                self.stack.move_lane(block, group(hash));
            } else {
                self.drop(hash, block);
                gone.push(block);
            }
        }
    }

    fn lower(&mut self, gone: &mut Vec<u32>) {
        let plain = |each: &Watched| usize::from(each.lane) < GROUPS;
        let mut hashes: Vec<u64> = self
            .numbers
            .values()
            .map(|&block| &self.watched[block as usize])
            .filter(|each| plain(each))
            .map(|each| each.hash)
            .collect();
        let kept = self.watched_max / 4 * 3;
        let (_, &mut limit, _) = hashes.select_nth_unstable(kept);
        self.limit = limit;
        let above: Vec<(u64, u32)> = self
            .numbers
            .iter()
            .map(|(&hash, &block)| (hash, block))
            .filter(|&(hash, block)| hash > limit && plain(&self.watched[block as usize]))
            .collect();
        for (hash, block) in above {
            self.plain -= 1;
            self.drop(hash, block);
            gone.push(block);
        }
    }

    fn drop(&mut self, hash: u64, block: u32) {
        self.numbers.remove(&hash);
        self.stack.remove(block);
        self.free.push(block);
    }

    /// Plain watched blocks by group, for which `is_counted`.
    pub fn plain_by_group(&self, is_counted: impl Fn(u32) -> bool) -> [u32; GROUPS] {
        let mut counts = [0; GROUPS];
        for &block in self.numbers.values() {
            let lane = usize::from(self.watched[block as usize].lane);
            if lane < GROUPS && is_counted(block) {
                counts[lane] += 1;
            }
        }
        counts
    }
}

/// Estimates of one rank: without each group, and from all.
#[derive(Clone, Copy, Debug)]
pub struct Ranks {
    /// Without each group.
    pub without: [f64; GROUPS],
    /// From all.
    pub all: f64,
}

impl Ranks {
    /// Of a block that was never used before.
    pub const NEVER: Ranks = Ranks { without: [f64::INFINITY; GROUPS], all: f64::INFINITY };

    #[inline]
    fn new(after: &Lanes, rate: f64) -> Ranks {
        let plain: u32 = after[..GROUPS].iter().sum();
        let surely = f64::from(after[HEAVY_LANE] + 1);
        let scale = GROUPS as f64 / (GROUPS - 1) as f64 / rate;
        let mut without = [0.0; GROUPS];
        for (rank, &own) in without.iter_mut().zip(after) {
            *rank = surely + f64::from(plain - own) * scale;
        }
        Ranks { without, all: surely + f64::from(plain) / rate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_is_bounded_and_stands_for_all() {
        let mut watch = Watch::new(7, 4_096);
        let (mut weight, mut uses) = (0.0, 0);
        for request in 0..100_000_u64 {
            // Two heavy blocks, then ten that nobody else uses.
            let own = (0..10).map(|i| 1_000 + request * 10 + i);
            let met: Vec<Met> = [1, 2]
                .into_iter()
                .chain(own)
                .enumerate()
                .filter_map(|(position, id)| watch.meet(id, position as u32))
                .collect();
            weight += met.iter().map(|each| each.weight).sum::<f64>();
            uses += 12;
            met.iter().rev().for_each(|each| watch.touch(each.block));
            watch.settle();
            assert!(watch.len().0 <= 4_096);
        }
        let (plain, heavy) = watch.len();
        assert_eq!((heavy, watch.uses()), (2, uses));
        assert!((3_072..=4_096).contains(&plain), "{plain} plain blocks");
        assert!(watch.watched.len() < 4_096 + 16, "numbers are given again");
        let distinct = plain as f64 / watch.rate();
        assert!((distinct / 1e6 - 1.0).abs() < 0.06, "{distinct} distinct blocks");
        assert!((weight / uses as f64 - 1.0).abs() < 0.06, "{weight} uses");
    }

    #[test]
    fn ranks_are_exact_while_all_are_watched() {
        let mut watch = Watch::new(1, WATCHED_MAX);
        for id in 0..1_000 {
            let met = watch.meet(id, 0).expect("all are watched");
            assert!(met.is_new && met.weight == 1.0);
            watch.touch(met.block);
        }
        for id in 0..1_000 {
            let met = watch.meet(id, 0).expect("all are watched");
            assert!(!met.is_new);
            assert_eq!(watch.ranks(met.block).all, 1_000.0 - id as f64);
        }
    }
}
