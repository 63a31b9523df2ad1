//! A node's memory as slots: which block is in which, in what order they leave, what holds them.

use keepwarm_store::PolicyKind;
use keepwarm_store::policy::{AnyPolicy, Links, NO_SLOT, Policy, Use};
use keepwarm_store::rules::{LOOKS_MAX, LOOKS_TURNS, SKIPPED};

use super::places::Places;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Space is granted, its bytes are on their way.
    Filling,
    Ready,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u32,
    prev: u32,
    next: u32,
    /// The policy's.
    bits: u8,
    /// What the block is to flash, as the store's own marks say it.
    marks: u8,
    state: State,
    /// Reads that hold it.
    pins: u16,
}

#[derive(Debug)]
struct Slots(Vec<Slot>);

impl Links for Slots {
    fn prev(&self, slot: u32) -> u32 {
        self.0[slot as usize].prev
    }

    fn next(&self, slot: u32) -> u32 {
        self.0[slot as usize].next
    }

    fn set_prev(&mut self, slot: u32, prev: u32) {
        self.0[slot as usize].prev = prev;
    }

    fn set_next(&mut self, slot: u32, next: u32) {
        self.0[slot as usize].next = next;
    }

    fn bits(&self, slot: u32) -> u8 {
        self.0[slot as usize].bits
    }

    fn set_bits(&mut self, slot: u32, bits: u8) {
        self.0[slot as usize].bits = bits;
    }
}

/// Slots, which blocks are in them, and their order.
#[derive(Debug)]
pub(super) struct Dram {
    slots: Slots,
    places: Places,
    policy: AnyPolicy,
    capacity: u32,
    /// Given back last, taken first.
    free: Vec<u32>,
    filling: u32,
    evictions: u32,
}

impl Dram {
    pub fn new(policy: PolicyKind, capacity: u32) -> Dram {
        Dram {
            slots: Slots(Vec::new()),
            places: Places::default(),
            policy: AnyPolicy::new(policy),
            capacity,
            free: Vec::new(),
            filling: 0,
            evictions: 0,
        }
    }

    /// The block's slot, complete or not.
    pub fn find(&self, number: u32) -> Option<u32> {
        self.places.get(number)
    }

    pub fn ready(&self, number: u32) -> Option<u32> {
        self.find(number).filter(|slot| self.slots.0[*slot as usize].state == State::Ready)
    }

    pub fn number(&self, slot: u32) -> u32 {
        self.slots.0[slot as usize].number
    }

    /// Blocks whose bytes are on their way.
    pub fn filling(&self) -> u32 {
        self.filling
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.0.len() as u32 == self.capacity
    }

    /// Blocks that made room so far; wraps.
    pub fn evictions(&self) -> u32 {
        self.evictions
    }

    /// Takes a free slot for a block; there is one.
    pub fn begin(&mut self, number: u32) -> u32 {
        let slot = Slot {
            number,
            prev: NO_SLOT,
            next: NO_SLOT,
            bits: 0,
            marks: 0,
            state: State::Filling,
            pins: 0,
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots.0[at as usize] = slot;
                at
            }
            None => {
                self.slots.0.push(slot);
                self.slots.0.len() as u32 - 1
            }
        };
        self.places.set(number, at);
        self.filling += 1;
        at
    }

    /// The block's bytes are in; `left` as policies take it.
    pub fn complete(&mut self, slot: u32, left: Option<u32>) {
        self.filling -= 1;
        self.slots.0[slot as usize].state = State::Ready;
        self.policy.insert(&mut self.slots, slot, left);
    }

    pub fn touch(&mut self, slot: u32, how: Use) {
        self.policy.touch(&mut self.slots, slot, how);
    }

    /// Lets the block go that the policy names. Its number and marks; none: all are held.
    pub fn evict(&mut self) -> Option<(u32, u8)> {
        let mut turns = 0;
        let slot = loop {
            if self.policy.is_empty() {
                return None;
            }
            let enough = self.policy.len().saturating_mul(4).saturating_add(4);
            let looks = enough.min(LOOKS_MAX);
            let may_leave = |slots: &Slots, slot: u32| slots.0[slot as usize].pins == 0;
            match self.policy.evict(&mut self.slots, looks, may_leave) {
                Some(slot) => break slot,
                None if looks == enough || turns == LOOKS_TURNS => return None,
                None => turns += 1,
            }
        };
        self.evictions = self.evictions.wrapping_add(1);
        let left = &mut self.slots.0[slot as usize];
        left.state = State::Free;
        let (number, marks) = (left.number, std::mem::take(&mut left.marks));
        self.places.clear(number);
        self.free.push(slot);
        Some((number, marks))
    }

    pub fn pin(&mut self, slot: u32) {
        self.slots.0[slot as usize].pins += 1;
    }

    /// An eviction that passed over the block may take it now.
    pub fn unpin(&mut self, slot: u32) {
        let held = &mut self.slots.0[slot as usize];
        held.pins -= 1;
        if held.pins == 0 && held.bits & SKIPPED != 0 {
            held.bits &= !SKIPPED;
            self.policy.rewind();
        }
    }

    pub fn has(&self, slot: u32, marks: u8) -> bool {
        self.slots.0[slot as usize].marks & marks != 0
    }

    pub fn mark(&mut self, slot: u32, marks: u8) {
        self.slots.0[slot as usize].marks |= marks;
    }

    pub fn unmark(&mut self, slot: u32, marks: u8) {
        self.slots.0[slot as usize].marks &= !marks;
    }
}
