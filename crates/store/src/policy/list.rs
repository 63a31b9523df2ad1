//! A doubly linked list over links that someone else keeps. Every policy is made of these.

use super::{Links, NO_SLOT, SKIPPED};

/// The scan for a slot that may leave begins at the back.
const AT_BACK: u32 = NO_SLOT;
/// The scan has passed the front.
const AT_END: u32 = NO_SLOT - 1;

/// Front, back, length and where the scan for a slot that may leave goes on; the links are
/// elsewhere. Slots that the scan passed over keep their places.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    front: u32,
    back: u32,
    len: u32,
    scan: u32,
}

impl Default for List {
    fn default() -> Self {
        List { front: NO_SLOT, back: NO_SLOT, len: 0, scan: AT_BACK }
    }
}

impl List {
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The last slot; `NO_SLOT` if there is none.
    pub fn back(&self) -> u32 {
        self.back
    }

    /// The slot that the scan looks at next; `NO_SLOT` once it has passed the front.
    pub fn candidate(&self) -> u32 {
        match self.scan {
            AT_BACK => self.back,
            AT_END => NO_SLOT,
            slot => slot,
        }
    }

    /// The candidate may not leave: the scan goes on with the next one.
    pub fn skip<L: Links>(&mut self, links: &mut L, slot: u32) {
        let bits = links.bits(slot);
        if bits & SKIPPED == 0 {
            links.set_bits(slot, bits | SKIPPED);
        }
        self.scan_on(links.prev(slot));
    }

    /// The scan begins at the back again.
    pub fn rewind(&mut self) {
        self.scan = AT_BACK;
    }

    fn scan_on(&mut self, slot: u32) {
        self.scan = if slot == NO_SLOT { AT_END } else { slot };
    }

    #[inline]
    pub fn push_front<L: Links>(&mut self, links: &mut L, slot: u32) {
        links.set_prev(slot, NO_SLOT);
        links.set_next(slot, self.front);
        match self.front {
            NO_SLOT => self.back = slot,
            front => links.set_prev(front, slot),
        }
        self.front = slot;
        self.len += 1;
        if self.scan == AT_END {
            self.scan = slot;
        }
    }

    #[inline]
    pub fn unlink<L: Links>(&mut self, links: &mut L, slot: u32) {
        let (prev, next) = (links.prev(slot), links.next(slot));
        match prev {
            NO_SLOT => self.front = next,
            prev => links.set_next(prev, next),
        }
        match next {
            NO_SLOT => self.back = prev,
            next => links.set_prev(next, prev),
        }
        self.len -= 1;
        if self.scan == slot {
            self.scan_on(prev);
        }
    }

    #[inline]
    pub fn move_to_front<L: Links>(&mut self, links: &mut L, slot: u32) {
        if self.front != slot {
            self.unlink(links, slot);
            self.push_front(links, slot);
        }
    }

    /// The next slot of the scan that may leave, taken out.
    pub fn evict<L: Links>(
        &mut self,
        links: &mut L,
        looks: u32,
        mut may_leave: impl FnMut(&L, u32) -> bool,
    ) -> Option<u32> {
        let mut is_last_round = self.scan == AT_BACK;
        for _ in 0..looks {
            if self.candidate() == NO_SLOT {
                self.rewind();
                if is_last_round {
                    return None;
                }
                is_last_round = true;
            }
            let slot = self.candidate();
            if slot == NO_SLOT {
                return None;
            }
            if may_leave(links, slot) {
                self.unlink(links, slot);
                return Some(slot);
            }
            self.skip(links, slot);
        }
        None
    }

    /// Visits from front to back; false when links disagree.
    pub fn visit<L: Links>(&self, links: &L, mut visitor: impl FnMut(u32)) -> bool {
        let (mut slot, mut before, mut count) = (self.front, NO_SLOT, 0);
        while slot != NO_SLOT {
            if count == self.len || links.prev(slot) != before {
                return false;
            }
            visitor(slot);
            count += 1;
            (before, slot) = (slot, links.next(slot));
        }
        count == self.len && self.back == before
    }
}
