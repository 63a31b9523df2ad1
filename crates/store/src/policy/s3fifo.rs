//! S3-FIFO: a small queue on probation before a main queue with second chances.

use super::list::List;
use super::{Links, NO_SLOT, Policy, Use};

/// Whether the slot is in the main queue.
const MAIN: u8 = 0b100;
/// Uses since it was last looked at, at most 3.
const USES: u8 = 0b011;
/// Blocks in the main queue are kept when the small one holds less than one part in this many.
const SMALL_SHARE: u32 = 10;
/// Uses on probation that earn a place in the main queue.
const EARNS_MAIN: u8 = 2;

/// New blocks enter a small queue (a tenth); those used twice there, and those that come back soon
/// after they left, go on to the main queue, where a used block gets another round for each use. A
/// touch writes two bits and moves nothing.
///
/// Not suitable where a block is used again only after more new blocks than a tenth of the memory
/// (long conversations between many others): it leaves on probation, before its second use, and a
/// node whose prompts all grow slowly does better with recency. Runs do not leave tail first.
#[derive(Debug, Default)]
pub struct S3Fifo {
    small: List,
    main: List,
}

impl S3Fifo {
    fn list_of(&mut self, bits: u8) -> &mut List {
        if bits & MAIN != 0 { &mut self.main } else { &mut self.small }
    }

    fn move_to_main<L: Links>(&mut self, links: &mut L, slot: u32, uses: u8) {
        let bits = links.bits(slot);
        self.list_of(bits).unlink(links, slot);
        links.set_bits(slot, MAIN | uses);
        self.main.push_front(links, slot);
    }
}

impl Policy for S3Fifo {
    fn insert<L: Links>(&mut self, links: &mut L, slot: u32, left: Option<u32>) {
        let bits = if left.is_some_and(|since| since <= self.len()) { MAIN } else { 0 };
        links.set_bits(slot, bits);
        self.list_of(bits).push_front(links, slot);
    }

    #[inline]
    fn touch<L: Links>(&mut self, links: &mut L, slot: u32, how: Use) {
        let bits = links.bits(slot);
        if how != Use::Arranged && bits & USES < USES {
            links.set_bits(slot, bits + 1);
        }
    }

    fn remove<L: Links>(&mut self, links: &mut L, slot: u32) {
        self.list_of(links.bits(slot)).unlink(links, slot);
    }

    fn evict<L: Links>(
        &mut self,
        links: &mut L,
        looks: u32,
        mut may_leave: impl FnMut(&L, u32) -> bool,
    ) -> Option<u32> {
        // Patient at first: used blocks get another round. Then uses no longer count, so that a
        // queue of much used blocks cannot eat all looks.
        let patient = (looks / 2).min(self.len().saturating_mul(4));
        let mut is_last_round = false;
        for look in 0..looks {
            let (small, main) = (self.small.candidate(), self.main.candidate());
            if small == NO_SLOT && main == NO_SLOT {
                self.rewind();
                if is_last_round {
                    return None;
                }
                is_last_round = true;
                continue;
            }
            let small_is_large = self.small.len().saturating_mul(SMALL_SHARE) >= self.len();
            let from_small = small != NO_SLOT && (small_is_large || main == NO_SLOT);
            let slot = if from_small { small } else { main };
            let (is_patient, uses) = (look < patient, links.bits(slot) & USES);
            if is_patient && from_small && uses >= EARNS_MAIN {
                self.move_to_main(links, slot, 0);
            } else if is_patient && !from_small && uses > 0 {
                self.move_to_main(links, slot, uses - 1);
            } else if may_leave(links, slot) {
                self.remove(links, slot);
                return Some(slot);
            } else if from_small {
                self.small.skip(links, slot);
            } else {
                self.main.skip(links, slot);
            }
        }
        None
    }

    #[inline]
    fn rewind(&mut self) {
        self.small.rewind();
        self.main.rewind();
    }

    fn len(&self) -> u32 {
        self.small.len() + self.main.len()
    }

    fn visit<L: Links>(&self, links: &L, mut visitor: impl FnMut(u32)) -> bool {
        self.main.visit(links, &mut visitor) && self.small.visit(links, visitor)
    }
}
