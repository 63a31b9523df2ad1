//! Tiers against a naive model of them: each an LRU list with times, searched from end to end, on
//! drawn traces. Seeds are fixed; a failure names its seed.

mod common;

use std::collections::HashSet;

use common::{Draw, drawn};
use keepwarm_sim::cache::Touch;
use keepwarm_sim::hierarchy::Hierarchy;
use keepwarm_sim::level::{Admission, LevelSettings, Source};
use keepwarm_sim::memory::{Found, Memory, Tier};
use keepwarm_sim::order::OrderKind;

struct NaiveLevel {
    settings: LevelSettings,
    /// Blocks and when they were stored; the next to leave at the end.
    blocks: Vec<(u32, f64)>,
}

impl NaiveLevel {
    fn has(&self, block: u32) -> bool {
        self.blocks.iter().any(|each| each.0 == block)
    }

    fn touch(&mut self, block: u32) {
        let at = self.blocks.iter().position(|each| each.0 == block).expect("here");
        let moved = self.blocks.remove(at);
        self.blocks.insert(0, moved);
    }

    fn store(&mut self, block: u32, now_s: f64) -> Option<u32> {
        let is_full = Some(self.blocks.len() as u32) == self.settings.capacity;
        let left = if is_full { self.blocks.pop().map(|each| each.0) } else { None };
        self.blocks.insert(0, (block, now_s));
        left
    }
}

struct NaiveTiers {
    levels: Vec<NaiveLevel>,
    asked: HashSet<u32>,
}

impl NaiveTiers {
    fn admits(&self, at: usize, block: u32) -> bool {
        self.levels[at].settings.admission == Admission::All || self.asked.contains(&block)
    }

    fn serve(&mut self, blocks: &[u32], now_s: f64) -> Found {
        for level in &mut self.levels {
            if let Some(ttl_s) = level.settings.ttl_s {
                level.blocks.retain(|(_, stored_s)| stored_s + ttl_s > now_s);
            }
        }
        let nearest: Vec<Option<usize>> =
            blocks.iter().map(|block| self.levels.iter().position(|l| l.has(*block))).collect();
        let mut found = Found::default();
        for at in nearest.iter().map_while(|at| *at) {
            found[self.levels[at].settings.tier as usize] += 1;
        }
        let mut left = Vec::new();
        for at in 0..self.levels.len() {
            let mut leaves = Vec::new();
            for (block, nearest) in blocks.iter().zip(&nearest).rev() {
                if nearest.is_some_and(|nearest| nearest < at) {
                    continue;
                }
                if self.levels[at].has(*block) {
                    self.levels[at].touch(*block);
                } else if self.levels[at].settings.source == Source::Requests
                    && self.admits(at, *block)
                {
                    leaves.extend(self.levels[at].store(*block, now_s));
                }
            }
            for block in left {
                let takes = self.levels[at].settings.source == Source::Demotion;
                if takes && !self.levels[at].has(block) && self.admits(at, block) {
                    leaves.extend(self.levels[at].store(block, now_s));
                }
            }
            left = leaves;
        }
        self.asked.extend(blocks);
        found
    }
}

/// Some tiers, each with settings drawn for it.
fn drawn_levels(draw: &mut Draw) -> Vec<LevelSettings> {
    let lru = OrderKind::named("lru").expect("a policy");
    let mut levels = Vec::new();
    for tier in Tier::ALL {
        if draw.below(4) == 0 {
            continue;
        }
        let capacity = (draw.below(8) > 0).then(|| 1 + draw.below(50) as u32);
        let mut level = LevelSettings::new(tier, capacity, lru);
        level.ttl_s = (draw.below(3) == 0).then(|| 5.0 + draw.below(200) as f64);
        if draw.below(3) == 0 {
            level.admission = Admission::SecondUse;
        }
        if !levels.is_empty() && draw.below(2) == 0 {
            level.source = Source::Demotion;
        }
        levels.push(level);
    }
    levels
}

#[test]
fn tiers_are_what_naive_ones_are() {
    for seed in 1..=60u64 {
        let mut draw = Draw(seed);
        let levels = drawn_levels(&mut draw);
        let mut fast = Hierarchy::new(&levels, Touch::TailFirst);
        let naive = |settings: &LevelSettings| NaiveLevel { settings: *settings, blocks: vec![] };
        let mut slow =
            NaiveTiers { levels: levels.iter().map(naive).collect(), asked: HashSet::new() };
        let mut now_s = 0.0;
        for (at, blocks) in drawn(seed, 300, 12).iter().enumerate() {
            now_s += draw.below(4) as f64;
            let peeked = fast.peek(blocks, now_s);
            let found = fast.serve(blocks, now_s);
            assert_eq!(peeked, found, "seed {seed}, request {at}: a peek is no guess");
            assert_eq!(found, slow.serve(blocks, now_s), "seed {seed}, request {at}: {levels:?}");
            for (level, blocks) in slow.levels.iter().map(|l| (l.settings, l.blocks.len())) {
                assert_eq!(fast.len()[level.tier as usize] as usize, blocks, "seed {seed}, {at}");
            }
        }
    }
}

#[test]
fn what_a_nearer_memory_offers_is_as_if_it_were_a_level_of_one_and_the_same() {
    let lru = OrderKind::named("lru").expect("a policy");
    let host = LevelSettings::new(Tier::Host, Some(20), lru);
    let mut dram = LevelSettings::new(Tier::Dram, Some(60), lru);
    dram.source = Source::Demotion;
    for seed in 1..=10u64 {
        let mut whole = Hierarchy::new(&[host, dram], Touch::TailFirst);
        let mut near = Hierarchy::new(&[host], Touch::TailFirst);
        let mut far = Hierarchy::new(&[dram], Touch::TailFirst);
        near.follow();
        for (at, blocks) in drawn(seed, 400, 6).iter().enumerate() {
            let mut found = near.serve(blocks, 0.0);
            let rest = &blocks[found.iter().sum::<u32>() as usize..];
            let below = far.serve(rest, 0.0);
            far.offer(near.leavers(), 0.0);
            found.iter_mut().zip(below).for_each(|(found, more)| *found += more);
            // Heads are the last to leave, so that no block behind a gap is in the nearer memory.
            assert_eq!(found, whole.serve(blocks, 0.0), "seed {seed}, request {at}");
        }
    }
}
