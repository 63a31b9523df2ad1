//! The plain dictionary: what must be, may be and must not be in the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use keepwarm_store::types::{Instant, MissReason, NamespaceId};

/// One tick of expiry and a little.
const EARLY: Duration = Duration::from_millis(68);
pub const INCOMPLETE: Duration = Duration::from_secs(30);

/// Names the bytes of one put of one part.
pub type Stamp = u64;

#[derive(Clone, Debug)]
pub enum Block {
    /// Not here.
    Gone,
    Filling {
        id: u64,
        landed: BTreeMap<u8, Stamp>,
        writing: BTreeSet<u8>,
        active: Instant,
    },
    Stored {
        stamps: BTreeMap<u8, Stamp>,
        at: Instant,
    },
}

/// How sure it is that a block is visible, as far as time goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Alive,
    /// Within a tick of its end.
    Ending,
    Ended,
}

/// One key's block, and the reasons that a miss of it may carry besides `absent`.
#[derive(Clone, Debug)]
pub struct Known {
    pub block: Block,
    pub reasons: Vec<MissReason>,
}

pub struct Space {
    pub ns: NamespaceId,
    pub parts: u8,
    pub ttl: Option<Duration>,
    pub epoch: u32,
    /// Moves on with every epoch and drop.
    pub version: u64,
    pub known: HashMap<u64, Known>,
}

/// One instance of a block that a lease or a read holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub space: usize,
    pub number: u64,
    pub version: u64,
    /// Stamp of its part 0: tells one instance of a key from the next.
    pub stamp: Stamp,
}

impl Space {
    pub fn block(&mut self, number: u64) -> &mut Known {
        let gone = || Known { block: Block::Gone, reasons: Vec::new() };
        self.known.entry(number).or_insert_with(gone)
    }

    pub fn life(&self, at: Instant, now: Instant) -> Life {
        match self.ttl {
            Some(ttl) if now.since(at) >= ttl => Life::Ended,
            Some(ttl) if now.since(at) + EARLY >= ttl => Life::Ending,
            _ => Life::Alive,
        }
    }

    /// The stamps of a block that a call just saw.
    pub fn saw(&mut self, number: u64, now: Instant) -> BTreeMap<u8, Stamp> {
        let Block::Stored { stamps, at } = self.block(number).block.clone() else {
            panic!("key {number} is visible but {:?}", self.block(number));
        };
        assert_ne!(self.life(at, now), Life::Ended, "key {number} is visible after its time");
        stamps
    }

    /// A call just missed the block; `reason` is there when the call gave one.
    pub fn missed(&mut self, number: u64, reason: Option<MissReason>, held: bool, now: Instant) {
        let known = self.block(number).clone();
        match known.block {
            Block::Filling { .. } => {
                assert!(reason.is_none_or(|r| r == MissReason::Pending), "{number}: {reason:?}");
                return;
            }
            Block::Gone => {}
            Block::Stored { at, .. } => {
                let life = self.life(at, now);
                assert!(!held || life != Life::Alive, "key {number} is held but missing");
                let mut reasons = vec![MissReason::Evicted, MissReason::Quota];
                if life != Life::Alive {
                    reasons.push(MissReason::Expired);
                }
                *self.block(number) = Known { block: Block::Gone, reasons };
            }
        }
        let known = self.block(number);
        if let Some(reason) = reason {
            let may = reason == MissReason::Absent || known.reasons.contains(&reason);
            assert!(may, "key {number} is missing as {reason:?}, expected {:?}", known.reasons);
        }
    }

    /// Hides everything: another epoch, or dropped.
    pub fn hide_all(&mut self, reason: Option<MissReason>) {
        self.version += 1;
        for known in self.known.values_mut() {
            match (&known.block, reason) {
                (_, None) => known.reasons.clear(),
                (Block::Stored { .. }, Some(reason)) => {
                    // It may have been evicted, or have expired, before.
                    let before = [MissReason::Evicted, MissReason::Quota, MissReason::Expired];
                    known.reasons = before.into_iter().chain([reason]).collect();
                }
                _ => {}
            }
            known.block = Block::Gone;
        }
    }

    pub fn begin(&mut self, number: u64, part: u8, id: u64, now: Instant) -> u64 {
        let known = self.block(number);
        if let Block::Filling { id, writing, landed, active } = &mut known.block {
            assert!(!landed.contains_key(&part) && writing.insert(part), "one writer a part");
            *active = now;
            return *id;
        }
        let writing = BTreeSet::from([part]);
        known.block = Block::Filling { id, landed: BTreeMap::new(), writing, active: now };
        id
    }

    /// Whether the filling that a grant belongs to is still there.
    pub fn is_filling(&self, number: u64, filling: u64) -> bool {
        let known = self.known.get(&number).map(|known| &known.block);
        matches!(known, Some(Block::Filling { id, .. }) if *id == filling)
    }

    pub fn land(&mut self, number: u64, part: u8, stamp: Stamp, now: Instant) {
        let parts = usize::from(self.parts);
        let known = self.block(number);
        let Block::Filling { landed, writing, active, .. } = &mut known.block else {
            panic!("a part landed in {:?}", known.block);
        };
        assert!(writing.remove(&part));
        landed.insert(part, stamp);
        *active = now;
        if landed.len() == parts {
            let stamps = std::mem::take(landed);
            *known = Known { block: Block::Stored { stamps, at: now }, reasons: Vec::new() };
        }
    }

    pub fn abort(&mut self, number: u64, part: u8, now: Instant) {
        let known = self.block(number);
        let Block::Filling { landed, writing, active, .. } = &mut known.block else {
            panic!("a part was given up in {:?}", known.block);
        };
        assert!(writing.remove(&part));
        *active = now;
        if landed.is_empty() && writing.is_empty() {
            known.block = Block::Gone;
        }
    }

    /// Incomplete blocks that nobody wrote for their time are gone after a tick.
    pub fn tick(&mut self, now: Instant) {
        for known in self.known.values_mut() {
            if let Block::Filling { writing, active, .. } = &known.block
                && writing.is_empty()
                && now.since(*active) >= INCOMPLETE
            {
                known.block = Block::Gone;
            }
        }
    }
}
