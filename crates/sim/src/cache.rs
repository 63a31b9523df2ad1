//! One bounded memory of blocks: what is here, in which order it leaves, and what left lately.

use keepwarm_store::policy::Use;

use crate::links::SlotLinks;
use crate::order::{Order, OrderKind};

/// Never here, or left for another reason than to make room.
const NOWHERE: u32 = u32::MAX;
/// Left to make room: the other bits are the count of those that had left by then, itself included.
const LEFT: u32 = 1 << 31;
const LEFT_MASK: u32 = (1 << 30) - 1;
/// Slots that a cache may have: the places' bits below `LEFT`.
pub const SLOTS_MAX: u32 = 1 << 30;

/// In which direction a request's blocks are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Touch {
    /// The last block first, so that a prompt's head leaves last: what a node's clients do.
    #[default]
    TailFirst,
    /// The first block first.
    HeadFirst,
}

/// Blocks by number, each in a slot of its own while it is here. What left is remembered exactly
/// and for as long as the cache lives, where a node's list of those is bounded; its policies ask
/// for no more than both know.
#[derive(Debug)]
pub struct Cache {
    order: Order,
    links: SlotLinks,
    /// Where each block is: a slot, or when it left.
    places: Vec<u32>,
    /// Each slot's block.
    numbers: Vec<u32>,
    spare: Vec<u32>,
    len: u32,
    capacity: u32,
    /// Blocks that left to make room; wraps.
    evictions: u32,
}

impl Cache {
    /// An empty one; `capacity` in blocks, at least 1; none: unbounded.
    pub fn new(kind: OrderKind, capacity: Option<u32>) -> Cache {
        assert!(capacity != Some(0), "a cache holds a block at least");
        Cache {
            order: Order::new(kind),
            links: SlotLinks::default(),
            places: Vec::new(),
            numbers: Vec::new(),
            spare: Vec::new(),
            len: 0,
            capacity: capacity.unwrap_or(SLOTS_MAX).min(SLOTS_MAX),
            evictions: 0,
        }
    }

    /// Blocks that are here.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a block is here. Not a use.
    #[inline]
    pub fn contains(&self, number: u32) -> bool {
        self.slot(number).is_some()
    }

    /// A block's slot: stays the same while it is here, and is below the capacity.
    #[inline]
    pub fn slot(&self, number: u32) -> Option<u32> {
        self.places.get(number as usize).copied().filter(|place| *place < LEFT)
    }

    /// Blocks of the unbroken prefix that are here. Not a use.
    #[inline]
    pub fn prefix(&self, blocks: &[u32]) -> u32 {
        blocks.iter().take_while(|number| self.contains(**number)).count() as u32
    }

    /// A block is used. False: it is not here.
    #[inline]
    pub fn touch(&mut self, number: u32, how: Use) -> bool {
        let slot = self.slot(number);
        if let Some(slot) = slot {
            self.order.touch(&mut self.links, slot, how);
        }
        slot.is_some()
    }

    /// Stores a block that is not here; returns the one that had to leave for it.
    #[inline]
    pub fn store(&mut self, number: u32) -> Option<u32> {
        let leaver = if self.len >= self.capacity { self.evict() } else { None };
        if number as usize >= self.places.len() {
            self.places.resize(number as usize + 1, NOWHERE);
        }
        let place = self.places[number as usize];
        assert!(place >= LEFT, "block {number} is here already");
        let since = self.evictions.wrapping_sub(place) & LEFT_MASK;
        let left = (place != NOWHERE).then_some(since);
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.numbers.push(NOWHERE);
            self.numbers.len() as u32 - 1
        });
        self.numbers[slot as usize] = number;
        self.places[number as usize] = slot;
        self.links.renew(slot);
        self.order.insert(&mut self.links, slot, left);
        self.len += 1;
        leaver
    }

    /// Uses a block that is here, else stores it. Returns whether it was here, and what left.
    #[inline]
    pub fn take(&mut self, number: u32) -> (bool, Option<u32>) {
        match self.touch(number, Use::Read) {
            true => (true, None),
            false => (false, self.store(number)),
        }
    }

    /// A block leaves, though not to make room. False: it is not here.
    pub fn remove(&mut self, number: u32) -> bool {
        let Some(slot) = self.slot(number) else { return false };
        self.order.remove(&mut self.links, slot);
        self.free(slot, NOWHERE);
        true
    }

    /// A number will name another block: nothing is known of it any more, not even when it left.
    /// False: it was not here.
    pub fn forget(&mut self, number: u32) -> bool {
        let was_here = self.remove(number);
        if let Some(place) = self.places.get_mut(number as usize) {
            *place = NOWHERE;
        }
        was_here
    }

    /// Only this share of all blocks is simulated from now on: what left before is as much nearer.
    pub fn thin(&mut self, share: f64) {
        for place in &mut self.places {
            if *place != NOWHERE && *place & LEFT != 0 {
                let since = self.evictions.wrapping_sub(*place) & LEFT_MASK;
                let since = (f64::from(since) * share) as u32;
                *place = LEFT | (self.evictions.wrapping_sub(since) & LEFT_MASK);
            }
        }
    }

    /// The block that leaves next makes room; returns it.
    pub fn evict(&mut self) -> Option<u32> {
        let slot = self.order.evict(&mut self.links)?;
        self.evictions = self.evictions.wrapping_add(1);
        Some(self.free(slot, LEFT | (self.evictions & LEFT_MASK)))
    }

    fn free(&mut self, slot: u32, place: u32) -> u32 {
        let number = self.numbers[slot as usize];
        self.places[number as usize] = place;
        self.spare.push(slot);
        self.len -= 1;
        number
    }

    /// Serves a request as the reference values define it: hits are the blocks of the unbroken
    /// prefix; then all blocks are used, and stored where they are not here. Returns the hits.
    pub fn serve(&mut self, blocks: &[u32], touch: Touch) -> u32 {
        let hits = self.prefix(blocks);
        match touch {
            Touch::TailFirst => blocks.iter().rev().for_each(|number| _ = self.take(*number)),
            Touch::HeadFirst => blocks.iter().for_each(|number| _ = self.take(*number)),
        }
        hits
    }
}
