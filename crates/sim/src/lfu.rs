//! Least frequently used leaves first: a yardstick, which no node has.

use keepwarm_store::policy::{Links, NO_SLOT, Use};

/// Blocks that were used equally often: a list, the latest use in front.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    uses: u32,
    front: u32,
    back: u32,
    /// The bucket of the next lower count; `NO_SLOT` for the lowest.
    lower: u32,
    higher: u32,
}

/// Counts of uses since a block was stored, forgotten when it leaves. The lowest count leaves
/// first; of equal ones, the one whose last use is oldest. All steps are O(1): buckets of equal
/// counts in a chain, as a use moves a block by one bucket.
///
/// Not suitable where what is used changes with time: a block that was used often keeps its place
/// against all that came later, however long ago that was. On merged coding-agent sessions it loses
/// nearly everything.
#[derive(Debug)]
pub struct Lfu {
    buckets: Vec<Bucket>,
    spare: Vec<u32>,
    /// The bucket of each slot.
    bucket_of: Vec<u32>,
    lowest: u32,
    len: u32,
}

impl Default for Lfu {
    fn default() -> Self {
        let (buckets, spare, bucket_of) = (Vec::new(), Vec::new(), Vec::new());
        Lfu { buckets, spare, bucket_of, lowest: NO_SLOT, len: 0 }
    }
}

impl Lfu {
    /// Takes in a slot that is not here, with one use.
    pub fn insert<L: Links>(&mut self, links: &mut L, slot: u32) {
        let bucket = self.bucket_of_count(1, NO_SLOT);
        if slot as usize >= self.bucket_of.len() {
            self.bucket_of.resize(slot as usize + 1, NO_SLOT);
        }
        self.push_front(links, slot, bucket);
        self.len += 1;
    }

    /// One more use of a slot that is here; none more where it was only arranged.
    pub fn touch<L: Links>(&mut self, links: &mut L, slot: u32, how: Use) {
        let bucket = self.bucket_of[slot as usize];
        let to = match how {
            Use::Arranged => bucket,
            Use::Read | Use::Touched => {
                let uses = self.buckets[bucket as usize].uses.saturating_add(1);
                self.bucket_of_count(uses, bucket)
            }
        };
        self.unlink(links, slot);
        self.push_front(links, slot, to);
        self.free_if_empty(bucket);
    }

    /// Forgets a slot that is here.
    pub fn remove<L: Links>(&mut self, links: &mut L, slot: u32) {
        let bucket = self.bucket_of[slot as usize];
        self.unlink(links, slot);
        self.free_if_empty(bucket);
        self.len -= 1;
    }

    /// Picks the slot that leaves next, and forgets it; none: there is none.
    pub fn evict<L: Links>(&mut self, links: &mut L) -> Option<u32> {
        if self.lowest == NO_SLOT {
            return None;
        }
        let slot = self.buckets[self.lowest as usize].back;
        self.remove(links, slot);
        Some(slot)
    }

    /// Slots in it.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bucket of this count, made where there is none: right above `lower`, or the lowest.
    fn bucket_of_count(&mut self, uses: u32, lower: u32) -> u32 {
        let above = match lower {
            NO_SLOT => self.lowest,
            lower if self.buckets[lower as usize].uses == uses => return lower,
            lower => self.buckets[lower as usize].higher,
        };
        if above != NO_SLOT && self.buckets[above as usize].uses == uses {
            return above;
        }
        let made = Bucket { uses, front: NO_SLOT, back: NO_SLOT, lower, higher: above };
        let at = match self.spare.pop() {
            Some(at) => {
                self.buckets[at as usize] = made;
                at
            }
            None => {
                self.buckets.push(made);
                self.buckets.len() as u32 - 1
            }
        };
        match lower {
            NO_SLOT => self.lowest = at,
            lower => self.buckets[lower as usize].higher = at,
        }
        if above != NO_SLOT {
            self.buckets[above as usize].lower = at;
        }
        at
    }

    fn free_if_empty(&mut self, bucket: u32) {
        let Bucket { front, lower, higher, .. } = self.buckets[bucket as usize];
        if front != NO_SLOT {
            return;
        }
        match lower {
            NO_SLOT => self.lowest = higher,
            lower => self.buckets[lower as usize].higher = higher,
        }
        if higher != NO_SLOT {
            self.buckets[higher as usize].lower = lower;
        }
        self.spare.push(bucket);
    }

    fn push_front<L: Links>(&mut self, links: &mut L, slot: u32, bucket: u32) {
        self.bucket_of[slot as usize] = bucket;
        let list = &mut self.buckets[bucket as usize];
        links.set_prev(slot, NO_SLOT);
        links.set_next(slot, list.front);
        match list.front {
            NO_SLOT => list.back = slot,
            front => links.set_prev(front, slot),
        }
        list.front = slot;
    }

    fn unlink<L: Links>(&mut self, links: &mut L, slot: u32) {
        let list = &mut self.buckets[self.bucket_of[slot as usize] as usize];
        let (prev, next) = (links.prev(slot), links.next(slot));
        match prev {
            NO_SLOT => list.front = next,
            prev => links.set_next(prev, next),
        }
        match next {
            NO_SLOT => list.back = prev,
            next => links.set_prev(next, prev),
        }
    }
}
