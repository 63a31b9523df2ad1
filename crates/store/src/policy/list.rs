//! A doubly linked list over links that someone else keeps. Every policy is made of these.

use super::{Links, NO_SLOT};

/// Front, back and length; the links are elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct List {
    front: u32,
    back: u32,
    len: u32,
}

impl Default for List {
    fn default() -> Self {
        List { front: NO_SLOT, back: NO_SLOT, len: 0 }
    }
}

impl List {
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn back(&self) -> u32 {
        self.back
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
    }

    #[inline]
    pub fn move_to_front<L: Links>(&mut self, links: &mut L, slot: u32) {
        if self.front != slot {
            self.unlink(links, slot);
            self.push_front(links, slot);
        }
    }

    /// The slot furthest back that may leave, taken out; refused ones go to the front.
    pub fn evict<L: Links>(
        &mut self,
        links: &mut L,
        looks: u32,
        mut may_leave: impl FnMut(&L, u32) -> bool,
    ) -> Option<u32> {
        for _ in 0..looks.min(self.len) {
            let slot = self.back;
            if may_leave(links, slot) {
                self.unlink(links, slot);
                return Some(slot);
            }
            self.move_to_front(links, slot);
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
