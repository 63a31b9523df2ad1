//! Several levels behind each other, nearest first.
//!
//! ```text
//!   request ──► device ──► host ──► dram ──► flash ──► object
//!               a block is served by the nearest level that has it
//!               what is served from afar, or computed, is stored in every nearer level,
//!               and in those behind that take what requests store
//!               what leaves a level to make room goes to the next one if that takes such
//! ```
//! A level behind the one that serves a block does not see the use.

use crate::cache::Touch;
use crate::level::{Admission, Level, LevelSettings, Source};
use crate::memory::{Found, Memory, Tier};

/// No level has the block.
const NOWHERE: u8 = u8::MAX;

/// Levels of one memory, or of one engine.
#[derive(Debug)]
pub struct Hierarchy {
    levels: Vec<Level>,
    touch: Touch,
    /// Blocks that were asked for; kept where a level admits second uses only.
    asked: Vec<bool>,
    /// The nearest level of each block of the request that is served.
    nearest: Vec<u8>,
    /// What left the level before, to make room; after a request, the last level.
    leavers: Vec<u32>,
    /// Whether somebody behind wants to know what leaves the last level.
    is_followed: bool,
}

impl Hierarchy {
    /// Empty levels, nearest first, at most one of each tier; there may be none.
    pub fn new(levels: &[LevelSettings], touch: Touch) -> Hierarchy {
        assert!(levels.is_sorted_by(|a, b| a.tier < b.tier), "levels are in order of their tiers");
        let levels = levels.iter().map(|settings| Level::new(*settings)).collect();
        let (asked, nearest, leavers) = (Vec::new(), Vec::new(), Vec::new());
        Hierarchy { levels, touch, asked, nearest, leavers, is_followed: false }
    }

    /// From now on `leavers` says what leaves the last level.
    pub fn follow(&mut self) {
        self.is_followed = true;
    }

    /// What the last request made the last level let go of.
    pub fn leavers(&self) -> &[u32] {
        &self.leavers
    }

    /// Blocks in each tier.
    pub fn len(&self) -> Found {
        let mut blocks = Found::default();
        for level in &self.levels {
            blocks[level.settings.tier as usize] = level.cache.len();
        }
        blocks
    }

    /// Whether nothing is here.
    pub fn is_empty(&self) -> bool {
        self.levels.iter().all(|level| level.cache.is_empty())
    }

    fn nearest(&self, number: u32, now_s: f64) -> u8 {
        let place = self.levels.iter().position(|level| level.contains(number, now_s));
        place.map_or(NOWHERE, |at| at as u8)
    }

    fn tier(&self, level: u8) -> Tier {
        self.levels[level as usize].settings.tier
    }

    /// Finds every block of the request, beyond the first gap too.
    fn find(&mut self, blocks: &[u32], now_s: f64) -> Found {
        let mut found = Found::default();
        let mut is_unbroken = true;
        self.nearest.clear();
        for &number in blocks {
            let level = self.nearest(number, now_s);
            is_unbroken &= level != NOWHERE;
            if is_unbroken {
                found[self.tier(level) as usize] += 1;
            }
            self.nearest.push(level);
        }
        found
    }

    /// Whether the level takes a block that a request stores or that a nearer level lets go of.
    fn admits(&self, level: usize, number: u32) -> bool {
        match self.levels[level].settings.admission {
            Admission::All => true,
            Admission::SecondUse => self.asked.get(number as usize).copied().unwrap_or(false),
        }
    }

    /// Takes what a nearer level let go of; adds what this one lets go of for it to `leavers`.
    fn take_leavers(&mut self, at: usize, came: &[u32], now_s: f64) {
        if self.levels[at].settings.source != Source::Demotion {
            return;
        }
        for &number in came {
            if !self.levels[at].cache.contains(number) && self.admits(at, number) {
                let leaver = self.levels[at].store(number, now_s);
                self.leavers.extend(leaver);
            }
        }
    }

    /// The request's own blocks at one level.
    fn serve_at(&mut self, at: usize, blocks: &[u32], now_s: f64) {
        match self.touch {
            Touch::TailFirst => {
                (0..blocks.len()).rev().for_each(|place| self.take(at, blocks, place, now_s));
            }
            Touch::HeadFirst => {
                (0..blocks.len()).for_each(|place| self.take(at, blocks, place, now_s));
            }
        }
    }

    /// One block of the request at one level.
    fn take(&mut self, at: usize, blocks: &[u32], place: usize, now_s: f64) {
        let (number, nearest) = (blocks[place], self.nearest[place] as usize);
        if nearest < at || self.levels[at].touch(number) {
            return;
        }
        if self.levels[at].settings.source == Source::Requests && self.admits(at, number) {
            let leaver = self.levels[at].store(number, now_s);
            self.leavers.extend(leaver);
        }
    }

    fn remember_asked(&mut self, blocks: &[u32]) {
        let is_asked = |level: &Level| level.settings.admission == Admission::SecondUse;
        if !self.levels.iter().any(is_asked) {
            return;
        }
        for &number in blocks {
            if number as usize >= self.asked.len() {
                self.asked.resize(number as usize + 1, false);
            }
            self.asked[number as usize] = true;
        }
    }
}

impl Memory for Hierarchy {
    fn peek(&self, blocks: &[u32], now_s: f64) -> Found {
        let mut found = Found::default();
        let levels = blocks.iter().map(|number| self.nearest(*number, now_s));
        for level in levels.take_while(|level| *level != NOWHERE) {
            found[self.tier(level) as usize] += 1;
        }
        found
    }

    fn serve(&mut self, blocks: &[u32], now_s: f64) -> Found {
        if let [level] = &mut self.levels[..]
            && level.settings.is_plain()
            && !self.is_followed
        {
            let mut found = Found::default();
            found[level.settings.tier as usize] = level.cache.serve(blocks, self.touch);
            return found;
        }
        self.levels.iter_mut().for_each(|level| level.expire(now_s));
        let found = self.find(blocks, now_s);
        self.leavers.clear();
        for at in 0..self.levels.len() {
            let came = std::mem::take(&mut self.leavers);
            self.serve_at(at, blocks, now_s);
            self.take_leavers(at, &came, now_s);
        }
        self.remember_asked(blocks);
        found
    }

    fn offer(&mut self, blocks: &[u32], now_s: f64) {
        self.levels.iter_mut().for_each(|level| level.expire(now_s));
        self.leavers.clear();
        self.leavers.extend_from_slice(blocks);
        for at in 0..self.levels.len() {
            let came = std::mem::take(&mut self.leavers);
            self.take_leavers(at, &came, now_s);
        }
    }
}
