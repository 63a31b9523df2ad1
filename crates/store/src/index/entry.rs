//! One block's place in the index: 32 B that every call reads, 8 B that some do, and the states
//! that a place goes through.

use super::table::Named;
use crate::policy::SKIPPED;
use crate::types::{BlockKey, Priority};

/// Number of a place in the index.
pub(crate) type Slot = u32;

/// The bit of the policy's byte that one call's own marks take; clear between calls.
const MARKED: u8 = 0x80;

/// The bits of a slot's byte for its state, and where those for its priority begin.
const STATE: u8 = 0b11;
const PRIORITY_SHIFT: u32 = 2;

/// No slot.
pub(crate) const NONE: Slot = u32::MAX;

/// What lookups read and policies write. Aligned, so that it never straddles a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Entry {
    pub key: BlockKey,
    /// Neighbour towards the list's front (policy).
    pub prev: Slot,
    /// Neighbour towards the list's back (policy); number of the filling while incomplete; next
    /// free slot while free.
    pub next: Slot,
    /// Version of the namespace at which the block was stored; hidden once they differ.
    pub version: u32,
    pub ns: u16,
    /// Reads in flight.
    pub reads: u16,
}

/// What leases, time and policies write.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Meta {
    /// Tick at which the block's time ends; 0: never.
    pub expiry: u32,
    /// Leases that hold the block.
    pub leases: u16,
    /// State in the low two bits, priority in the next two.
    state_and_priority: u8,
    /// The policy's own bits.
    pub policy: u8,
}

const _: () = assert!(size_of::<Entry>() == 32 && size_of::<Meta>() == 8);

/// What a slot is. Moves only along the named transitions:
///
/// ```text
///        begin            complete            condemn            free
///  Free ───────► Filling ──────────► Ready ───────────► Condemned ───► Free
///                   └──────────────────┴────────── free ──────────────►
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// On the free list.
    Free,
    /// In the table; parts are missing; in no policy.
    Filling,
    /// In the table and in its tenant's policy; readable unless hidden by version or time.
    Ready,
    /// In neither; waits for its last pin.
    Condemned,
}

impl Entry {
    pub const FREE: Entry =
        Entry { key: BlockKey([0; 16]), prev: NONE, next: NONE, version: 0, ns: 0, reads: 0 };
}

impl Named for Entry {
    #[inline]
    fn ns(&self) -> u16 {
        self.ns
    }

    #[inline]
    fn key(&self) -> BlockKey {
        self.key
    }
}

impl Meta {
    pub const FREE: Meta =
        Meta { expiry: 0, leases: 0, state_and_priority: State::Free as u8, policy: 0 };

    /// Marks the slot for the duration of one call; false when it was marked already.
    #[inline]
    pub fn mark(&mut self) -> bool {
        let is_first = self.policy & MARKED == 0;
        self.policy |= MARKED;
        is_first
    }

    #[inline]
    pub fn unmark(&mut self) {
        self.policy &= !MARKED;
    }

    /// Whether the policy passed over the slot because of a pin; asking clears it.
    #[inline]
    pub fn take_skipped(&mut self) -> bool {
        let was_skipped = self.policy & SKIPPED != 0;
        if was_skipped {
            self.policy &= !SKIPPED;
        }
        was_skipped
    }

    #[inline]
    pub fn state(&self) -> State {
        match self.state_and_priority & STATE {
            0 => State::Free,
            1 => State::Filling,
            2 => State::Ready,
            _ => State::Condemned,
        }
    }

    fn set_state(&mut self, state: State) {
        self.state_and_priority = (self.state_and_priority & !STATE) | state as u8;
    }

    #[inline]
    pub fn priority(&self) -> Priority {
        Priority::new(self.state_and_priority >> PRIORITY_SHIFT).expect("set_priority's")
    }

    pub fn begin(&mut self) {
        assert_eq!(self.state(), State::Free);
        *self = Meta { state_and_priority: State::Filling as u8, ..Meta::FREE };
    }

    pub fn complete(&mut self, priority: Priority) {
        assert_eq!(self.state(), State::Filling);
        self.state_and_priority = priority.number() << PRIORITY_SHIFT;
        self.set_state(State::Ready);
    }

    pub fn condemn(&mut self) {
        assert_eq!(self.state(), State::Ready);
        self.set_state(State::Condemned);
    }

    pub fn free(&mut self) {
        assert_ne!(self.state(), State::Free);
        assert_eq!(self.leases, 0, "a leased block is never freed");
        *self = Meta::FREE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_follows_the_named_transitions() {
        let mut meta = Meta::FREE;
        meta.begin();
        meta.complete(Priority::MAX);
        assert_eq!(meta.state(), State::Ready);
        assert_eq!((meta.state(), meta.priority()), (State::Ready, Priority::MAX));
        meta.condemn();
        assert_eq!((meta.state(), meta.priority()), (State::Condemned, Priority::MAX));
        meta.free();
        assert_eq!(meta.state(), State::Free);
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn a_free_slot_does_not_complete() {
        let mut meta = Meta::FREE;
        meta.complete(Priority::MAX);
    }

    #[test]
    #[should_panic(expected = "leased")]
    fn a_leased_block_is_not_freed() {
        let mut meta = Meta::FREE;
        meta.begin();
        meta.leases = 1;
        meta.free();
    }
}
