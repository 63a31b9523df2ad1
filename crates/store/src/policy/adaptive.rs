//! Recency with a share for what was used again: the default.

use super::list::List;
use super::{Links, NO_SLOT, Policy, Use};

/// The slot is in the protected list.
const PROTECTED: u8 = 0b01;
/// The block was used again since it was stored, or came back soon after it had left.
const EARNED: u8 = 0b10;
/// When it was last used or arranged: the clock's low bits.
const STAMP: u8 = 0b11_1100;
const STAMP_SHIFT: u32 = 2;

/// The clock moves on when so many parts in one of the blocks were replaced.
const CLOCK_PARTS: u32 = 32;
/// A touch sooner than so many steps of the clock after the block was stored belongs to the same
/// request.
const FRESH_STEPS: u8 = 2;
/// A block returns if no more than so many halves of the policy's length left after it: shorter
/// memory lets prompts as long as all of the memory push out each other.
const RETURN_HALVES: u32 = 3;

/// Shares are fractions of 2^32.
const WHOLE: u64 = 1 << 32;
/// The protected share when nothing returns ...
const SHARE_MIN: u64 = WHOLE / 10;
/// ... and when at least half of the uses are of blocks that have just left.
const SHARE_MAX: u64 = WHOLE / 20 * 7;
/// Slots that one eviction moves back to probation at most: those that a prompt has promoted since
/// the last one, before its new blocks come. Uses never wait for it, since it meets the coldest
/// links.
const DEMOTED_MAX: u32 = 1024;

/// Two lists in the order of use. A new block is on probation. A block that is used again, and one
/// that returns soon after it left, is protected. When one has to leave, what the protected list
/// has too many of goes back to the front of probation first, and the back of probation leaves.
///
/// How much is protected follows how much returns: a tenth of the blocks where the memory holds
/// what is used, up to a third where it is much too small and plain recency would throw out most
/// of it just before its use.
///
/// Runs leave tail first, as a prompt's head is used whenever its tail is: the head earns its
/// place no later, and within a list it stands in front.
///
/// A use is O(1) and writes what one of LRU does; an eviction moves a bounded number of blocks,
/// each of which a use has promoted before.
///
/// Not suitable where what was used most often long ago, and not lately, is what counts: it keeps
/// no counts. Not suitable where every block is used exactly twice in quick succession: the dead
/// ones hold up to the protected share until others earn it. Once the memory holds all that is
/// used, it is LRU with more writing.
#[derive(Debug, Default)]
pub struct Adaptive {
    probation: List,
    protected: List,
    /// Steps, of which a slot's stamp keeps the low bits.
    clock: u8,
    /// Blocks that came since the clock last moved on.
    came: u32,
    /// How many of the uses were of blocks that had just left, of `WHOLE`; lately.
    returns: u64,
}

impl Adaptive {
    fn list_of(&mut self, bits: u8) -> &mut List {
        if bits & PROTECTED != 0 { &mut self.protected } else { &mut self.probation }
    }

    fn stamp(&self) -> u8 {
        (self.clock << STAMP_SHIFT) & STAMP
    }

    /// Steps since the slot was stored, used or arranged; one that waited for a whole turn of the
    /// clock passes for fresh once in a while.
    fn steps_since(&self, bits: u8) -> u8 {
        (self.stamp().wrapping_sub(bits & STAMP) & STAMP) >> STAMP_SHIFT
    }

    /// One more use: of a block that is here, or of one that had just left.
    fn learn(&mut self, is_return: bool) {
        let step = |of: u64| of / u64::from(self.len().max(1));
        self.returns = match is_return {
            true => self.returns + step(WHOLE - self.returns),
            false => self.returns - step(self.returns),
        };
    }

    /// Slots that may be protected now.
    fn protected_max(&self) -> u64 {
        let scaled = (self.returns * 2).min(WHOLE) >> 16;
        let share = SHARE_MIN + ((SHARE_MAX - SHARE_MIN) >> 16) * scaled;
        (u64::from(self.len()) * (share >> 16)) >> 16
    }

    /// Links a slot that is in neither list where it belongs now.
    #[inline]
    fn link<L: Links>(&mut self, links: &mut L, slot: u32, bits: u8) {
        let stamped = (bits & !STAMP) | self.stamp();
        links.set_bits(slot, stamped);
        self.list_of(stamped).push_front(links, slot);
    }

    /// Moves what the protected list has too many of to the front of probation.
    fn demote<L: Links>(&mut self, links: &mut L) {
        for _ in 0..DEMOTED_MAX {
            if u64::from(self.protected.len()) <= self.protected_max() {
                return;
            }
            let slot = self.protected.back();
            self.protected.unlink(links, slot);
            links.set_bits(slot, links.bits(slot) & !PROTECTED);
            self.probation.push_front(links, slot);
        }
    }
}

impl Policy for Adaptive {
    fn insert<L: Links>(&mut self, links: &mut L, slot: u32, left: Option<u32>) {
        self.came += 1;
        if self.came >= self.len() / CLOCK_PARTS {
            (self.came, self.clock) = (0, self.clock.wrapping_add(1));
        }
        let soon = self.len().saturating_mul(RETURN_HALVES) / 2;
        if left.is_some_and(|since| since <= soon) {
            self.learn(true);
            self.link(links, slot, PROTECTED | EARNED);
        } else {
            self.link(links, slot, 0);
        }
    }

    #[inline]
    fn touch<L: Links>(&mut self, links: &mut L, slot: u32, how: Use) {
        let bits = links.bits(slot);
        let is_fresh = self.steps_since(bits) < FRESH_STEPS;
        let is_again = match how {
            Use::Read => true,
            Use::Touched => bits & EARNED != 0 || !is_fresh,
            Use::Arranged => false,
        };
        self.list_of(bits).unlink(links, slot);
        if !is_again {
            return self.link(links, slot, bits);
        }
        if !is_fresh {
            self.learn(false);
        }
        self.link(links, slot, bits | PROTECTED | EARNED);
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
        self.demote(links);
        let mut is_last_round = false;
        for _ in 0..looks {
            let probation = self.probation.candidate();
            let on_probation = probation != NO_SLOT;
            let slot = if on_probation { probation } else { self.protected.candidate() };
            if slot == NO_SLOT {
                self.rewind();
                if is_last_round {
                    return None;
                }
                is_last_round = true;
                continue;
            }
            let list = if on_probation { &mut self.probation } else { &mut self.protected };
            if may_leave(links, slot) {
                list.unlink(links, slot);
                return Some(slot);
            }
            list.skip(links, slot);
        }
        None
    }

    #[inline]
    fn rewind(&mut self) {
        self.probation.rewind();
        self.protected.rewind();
    }

    fn len(&self) -> u32 {
        self.probation.len() + self.protected.len()
    }

    fn visit<L: Links>(&self, links: &L, mut visitor: impl FnMut(u32)) -> bool {
        self.protected.visit(links, &mut visitor) && self.probation.visit(links, visitor)
    }
}
