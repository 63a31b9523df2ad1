//! Links of the simulator's own, over which the store's policies order its blocks.

use keepwarm_store::policy::{Links, NO_SLOT};

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

/// Two links and a policy's byte for each slot; grows with the slots in use.
#[derive(Debug, Default)]
pub struct SlotLinks {
    links: Vec<Link>,
    bits: Vec<u8>,
}

impl SlotLinks {
    /// Makes room for this slot, with no trace of what a policy knew of its last block.
    pub fn renew(&mut self, slot: u32) {
        let at = slot as usize;
        if at >= self.links.len() {
            self.links.resize(at + 1, Link { prev: NO_SLOT, next: NO_SLOT });
            self.bits.resize(at + 1, 0);
        }
        self.bits[at] = 0;
    }
}

impl Links for SlotLinks {
    #[inline]
    fn prev(&self, slot: u32) -> u32 {
        self.links[slot as usize].prev
    }

    #[inline]
    fn next(&self, slot: u32) -> u32 {
        self.links[slot as usize].next
    }

    #[inline]
    fn set_prev(&mut self, slot: u32, prev: u32) {
        self.links[slot as usize].prev = prev;
    }

    #[inline]
    fn set_next(&mut self, slot: u32, next: u32) {
        self.links[slot as usize].next = next;
    }

    #[inline]
    fn bits(&self, slot: u32) -> u8 {
        self.bits[slot as usize]
    }

    #[inline]
    fn set_bits(&mut self, slot: u32, bits: u8) {
        self.bits[slot as usize] = bits;
    }
}
