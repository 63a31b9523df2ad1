//! The blocks that are used most, by counting in bounded memory.
//!
//! A counter is kept for each block that comes by. When the table is full, the lower half of the
//! older counters is dropped; `floor` is the largest count so dropped, so that whoever has no
//! counter was used at most `floor` times, and a new counter has missed at most that (the guarantee
//! of lossy counting and Space-Saving). What came in lately is spared, so that a block that is used
//! often is not dropped before its second use.

/// Counters at most.
const COUNTERS_MAX: usize = 32_768;
/// Of these, the newest that are spared.
const SPARED: u32 = 8_192;
/// Heavy blocks at most; the lightest are made plain again beyond that.
pub const HEAVY_MAX: usize = 4_096;
/// A block is heavy from this many uses on, and one in `SHARE` of all.
const USES_MIN: u32 = 64;
const SHARE: u64 = 2_000;
const PLAIN: u32 = u32::MAX;

/// A block's counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    hash: u64,
    /// Uses that were counted.
    pub uses: u32,
    /// Uses that may have been missed before, at most.
    pub missed_max: u32,
    born: u32,
    /// Where the block is in the prompts that it is in, from 0.
    pub position: u32,
    heavy: u32,
}

const FREE: Counter =
    Counter { hash: 0, uses: 0, missed_max: 0, born: 0, position: 0, heavy: PLAIN };

/// Counters by hash, in a table of twice as many places.
#[derive(Debug)]
pub struct Heavy {
    table: Vec<Counter>,
    held: usize,
    born: u32,
    floor: u32,
    uses: u64,
}

/// What a use found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// A plain block.
    Plain,
    /// A plain block that has just become worth watching by itself: call `promote`.
    Rising,
    /// A heavy block, with what was given to `promote`.
    Heavy(u32),
}

impl Default for Heavy {
    fn default() -> Heavy {
        Heavy { table: vec![FREE; 2 * COUNTERS_MAX], held: 0, born: 0, floor: 0, uses: 0 }
    }
}

impl Heavy {
    /// Counts a use.
    #[inline]
    pub fn count(&mut self, hash: u64, position: u32) -> Counted {
        self.uses += 1;
        let mut place = self.place(hash);
        if self.table[place].uses == 0 {
            if self.held == COUNTERS_MAX {
                self.prune();
                place = self.place(hash);
            }
            self.held += 1;
            self.born = self.born.wrapping_add(1);
            let born = self.born;
            let missed_max = self.floor;
            self.table[place] = Counter { hash, uses: 1, missed_max, born, position, heavy: PLAIN };
            return Counted::Plain;
        }
        let counter = &mut self.table[place];
        counter.uses = counter.uses.saturating_add(1);
        if counter.heavy != PLAIN {
            return Counted::Heavy(counter.heavy);
        }
        let rises = counter.uses >= USES_MIN && u64::from(counter.uses) * SHARE >= self.uses;
        if rises { Counted::Rising } else { Counted::Plain }
    }

    /// From now on the block is heavy, and `tag` is given back for it. It must have a counter.
    pub fn promote(&mut self, hash: u64, tag: u32) {
        let place = self.place(hash);
        debug_assert!(self.table[place].uses > 0 && tag != PLAIN, "only what is counted rises");
        self.table[place].heavy = tag;
    }

    /// Makes the lighter half of the heavy blocks plain again; their hashes and tags.
    pub fn demote(&mut self) -> Vec<(u64, u32)> {
        // Of equal ones by hash: however many are equal, it is half.
        let mut all: Vec<(u32, u64)> = self.heavies().map(|each| (each.uses, each.hash)).collect();
        all.sort_unstable();
        let lighter = &all[..all.len() / 2];
        let plain = |&(_, hash): &(u32, u64)| {
            let place = self.place(hash);
            (hash, std::mem::replace(&mut self.table[place].heavy, PLAIN))
        };
        lighter.iter().map(plain).collect()
    }

    /// The counters of heavy blocks, in no order.
    pub fn heavies(&self) -> impl Iterator<Item = &Counter> {
        self.table.iter().filter(|each| each.uses > 0 && each.heavy != PLAIN)
    }

    /// A block's counter, if it is heavy.
    pub fn heavy(&self, hash: u64) -> Option<&Counter> {
        Some(&self.table[self.place(hash)]).filter(|each| each.uses > 0 && each.heavy != PLAIN)
    }

    /// Uses in all.
    pub fn uses(&self) -> u64 {
        self.uses
    }

    /// The place of a hash, or the free one where it would be.
    #[inline]
    fn place(&self, hash: u64) -> usize {
        let mask = self.table.len() - 1;
        let mut place = (hash >> 20) as usize & mask;
        // Ends: half of all places are free.
        while self.table[place].uses != 0 && self.table[place].hash != hash {
            place = (place + 1) & mask;
        }
        place
    }

    fn prune(&mut self) {
        let (born, spared) = (self.born, SPARED);
        let is_kept = |each: &Counter| each.heavy != PLAIN || born.wrapping_sub(each.born) < spared;
        let mut old: Vec<u32> = self
            .table
            .iter()
            .filter(|each| each.uses > 0 && !is_kept(each))
            .map(|each| each.uses.saturating_add(each.missed_max))
            .collect();
        // More than half of the counters are neither heavy nor new.
        let middle = old.len() / 2;
        let (_, &mut limit, _) = old.select_nth_unstable(middle);
        self.floor = self.floor.max(limit);
        let before = std::mem::replace(&mut self.table, vec![FREE; 2 * COUNTERS_MAX]);
        self.held = 0;
        for counter in before.iter().filter(|each| each.uses > 0) {
            if is_kept(counter) || counter.uses.saturating_add(counter.missed_max) > limit {
                let place = self.place(counter.hash);
                self.table[place] = *counter;
                self.held += 1;
            }
        }
    }
}

impl Counter {
    /// What was given to `promote`.
    pub fn tag(&self) -> u32 {
        self.heavy
    }
}

#[cfg(test)]
mod tests {
    use super::super::mix;
    use super::*;

    #[test]
    fn heavy_blocks_are_counted_exactly_among_many_that_come_once() {
        let mut heavy = Heavy::default();
        let mut promoted = Vec::new();
        for turn in 0..1_000_000_u64 {
            // Ten blocks with 0.5 % each; all others once.
            let id = if turn % 20 == 0 { (turn / 20) % 10 } else { 1_000 + turn };
            let hash = mix(id, 1);
            if heavy.count(hash, 0) == Counted::Rising {
                heavy.promote(hash, promoted.len() as u32);
                promoted.push(id);
            }
        }
        promoted.sort_unstable();
        assert_eq!(promoted, (0..10).collect::<Vec<_>>());
        for counter in heavy.heavies() {
            assert_eq!((counter.uses, counter.missed_max), (5_000, 0));
        }
        assert!(u64::from(heavy.floor) < 1_000_000 / SHARE, "floor {}", heavy.floor);
    }

    #[test]
    fn half_of_the_heavy_blocks_are_plain_again_even_if_all_are_equal() {
        let mut heavy = Heavy::default();
        let hashes: Vec<u64> = (0..101).map(|id| mix(id, 5)).collect();
        for (tag, &hash) in hashes.iter().enumerate() {
            heavy.count(hash, 0);
            heavy.promote(hash, tag as u32);
        }
        heavy.count(hashes[7], 0);
        let demoted = heavy.demote();
        assert_eq!((demoted.len(), heavy.heavies().count()), (50, 51));
        for (hash, tag) in demoted {
            assert_eq!(hash, hashes[tag as usize]);
            assert!(tag != 7 && heavy.heavy(hash).is_none());
        }
    }

    #[test]
    fn what_has_no_counter_was_used_no_more_often_than_the_floor() {
        let mut heavy = Heavy::default();
        let mut truth = vec![0_u32; 200_000];
        let mut state = 7_u64;
        for turn in 0..2_000_000_u64 {
            state = mix(turn, state);
            // Low ids far more often than high ones.
            let id = ((state % 200_000) * ((state >> 20) % 200_000) / 200_000) as usize;
            truth[id] += 1;
            heavy.count(mix(id as u64, 3), 0);
        }
        for (id, &uses) in truth.iter().enumerate() {
            let counter = heavy.table[heavy.place(mix(id as u64, 3))];
            match counter.uses {
                0 => assert!(uses <= heavy.floor),
                _ => {
                    assert!(counter.uses <= uses && uses <= counter.uses + counter.missed_max);
                }
            }
        }
    }
}
