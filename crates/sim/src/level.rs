//! One tier of a hierarchy: a cache, what it takes in, and when its blocks end.

use std::collections::VecDeque;

use keepwarm_store::policy::Use;

use crate::cache::Cache;
use crate::memory::Tier;
use crate::order::OrderKind;

/// Which blocks a level takes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Admission {
    /// All.
    #[default]
    All,
    /// Those that a request has asked for before; ever, as the simulator forgets none.
    SecondUse,
}

/// Where a level's blocks come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// From requests, when they are computed or brought back: what is stored, is stored here too.
    #[default]
    Requests,
    /// From the next nearer level, which lets go of them to make room.
    Demotion,
}

/// What a level is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelSettings {
    /// Its place among the others.
    pub tier: Tier,
    /// In blocks, at least 1; none: unbounded.
    pub capacity: Option<u32>,
    /// Which block leaves to make room.
    pub order: OrderKind,
    /// Seconds after which a block ends, however often it was used since it was stored.
    pub ttl_s: Option<f64>,
    /// Which blocks it takes.
    pub admission: Admission,
    /// Where they come from.
    pub source: Source,
}

impl LevelSettings {
    /// A level that takes all that requests store, and keeps it for as long as there is room.
    pub fn new(tier: Tier, capacity: Option<u32>, order: OrderKind) -> LevelSettings {
        let (admission, source) = (Admission::All, Source::Requests);
        LevelSettings { tier, capacity, order, ttl_s: None, admission, source }
    }

    /// Whether it does nothing but what a cache does.
    pub fn is_plain(&self) -> bool {
        let Self { ttl_s, admission, source, .. } = self;
        ttl_s.is_none() && (*admission, *source) == (Admission::All, Source::Requests)
    }
}

/// A level at work.
#[derive(Debug)]
pub struct Level {
    pub(crate) settings: LevelSettings,
    pub(crate) cache: Cache,
    /// When each slot's block ends. Empty without a time to live.
    ends_s: Vec<f64>,
    /// Blocks in the order in which they end; some of them are gone already.
    ending: VecDeque<(f64, u32)>,
}

impl Level {
    /// An empty one.
    pub fn new(settings: LevelSettings) -> Level {
        let cache = Cache::new(settings.order, settings.capacity);
        Level { settings, cache, ends_s: Vec::new(), ending: VecDeque::new() }
    }

    /// Whether a block is here and has not ended. Not a use.
    #[inline]
    pub fn contains(&self, number: u32, now_s: f64) -> bool {
        match (self.cache.slot(number), self.settings.ttl_s) {
            (Some(slot), Some(_)) => self.ends_s[slot as usize] > now_s,
            (slot, _) => slot.is_some(),
        }
    }

    /// Lets go of what has ended.
    pub fn expire(&mut self, now_s: f64) {
        while let Some(&(end_s, number)) = self.ending.front() {
            if end_s > now_s {
                return;
            }
            self.ending.pop_front();
            // It may have left since, and come back: then its end is another.
            if self.cache.slot(number).is_some_and(|slot| self.ends_s[slot as usize] == end_s) {
                self.cache.remove(number);
            }
        }
    }

    /// One use of a block that may be here.
    pub fn touch(&mut self, number: u32) -> bool {
        self.cache.touch(number, Use::Read)
    }

    /// Stores a block that is not here; returns the one that had to leave for it.
    pub fn store(&mut self, number: u32, now_s: f64) -> Option<u32> {
        let leaver = self.cache.store(number);
        if let Some(ttl_s) = self.settings.ttl_s {
            let slot = self.cache.slot(number).expect("just stored") as usize;
            if slot >= self.ends_s.len() {
                self.ends_s.resize(slot + 1, 0.0);
            }
            self.ends_s[slot] = now_s + ttl_s;
            self.ending.push_back((now_s + ttl_s, number));
        }
        leaver
    }
}
