//! The index: which block is where, at most 48 B an entry, all of it allocated at start.
//!
//! `table` finds a slot by its key, `entry` says what a slot is, `parts` (apart) where its bytes
//! are, `batch` finds many keys at the speed of memory. Knows nothing of tenants, time or arenas.

mod batch;
mod entry;
pub(crate) mod huge;
pub(crate) mod parts;
pub(crate) mod prefetch;
pub(crate) mod table;

pub(crate) use batch::{CHUNK, Run};
pub(crate) use entry::{Entry, Meta, NONE, Slot, State};

use crate::policy::Links;
use crate::types::BlockKey;
use table::Table;

/// Most entries an index can have, so that slot numbers and tags share 32 bits.
pub(crate) const ENTRIES_MAX: u32 = 1 << 28;

/// Entries and what is apart from them, addressed by slot. Links for policies.
#[derive(Debug)]
pub(crate) struct Slots {
    pub entries: Vec<Entry>,
    pub metas: Vec<Meta>,
}

impl Links for Slots {
    #[inline]
    fn prev(&self, slot: Slot) -> Slot {
        self.entries[slot as usize].prev
    }
    #[inline]
    fn next(&self, slot: Slot) -> Slot {
        self.entries[slot as usize].next
    }
    #[inline]
    fn set_prev(&mut self, slot: Slot, prev: Slot) {
        self.entries[slot as usize].prev = prev;
    }
    #[inline]
    fn set_next(&mut self, slot: Slot, next: Slot) {
        self.entries[slot as usize].next = next;
    }
    #[inline]
    fn bits(&self, slot: Slot) -> u8 {
        self.metas[slot as usize].policy
    }
    #[inline]
    fn set_bits(&mut self, slot: Slot, bits: u8) {
        self.metas[slot as usize].policy = bits;
    }
}

impl Slots {
    /// Whether a lease or a read holds the slot.
    #[inline]
    pub fn is_pinned(&self, slot: Slot) -> bool {
        self.entries[slot as usize].reads != 0 || self.metas[slot as usize].leases != 0
    }
}

#[derive(Debug)]
pub(crate) struct Index {
    pub slots: Slots,
    table: Table,
    free_head: Slot,
    /// Slots from here on were never used: they are handed out in order, so that the blocks of a
    /// prompt lie side by side.
    fresh: Slot,
    used: u32,
}

impl Index {
    /// Allocates everything for `entries_max` entries.
    pub fn new(entries_max: u32, seed: [u64; 2]) -> Index {
        assert!(entries_max > 0 && entries_max <= ENTRIES_MAX);
        let slots = Slots {
            entries: huge::filled(entries_max as usize, Entry::FREE),
            metas: huge::filled(entries_max as usize, Meta::FREE),
        };
        let table = Table::new(entries_max, seed);
        Index { slots, table, free_head: NONE, fresh: 0, used: 0 }
    }

    pub fn capacity(&self) -> u32 {
        self.slots.entries.len() as u32
    }

    /// Slots that are not free.
    pub fn used(&self) -> u32 {
        self.used
    }

    pub fn is_full(&self) -> bool {
        self.used == self.capacity()
    }

    /// Bytes allocated at start.
    pub fn bytes(&self) -> usize {
        let entries = self.slots.entries.len() * size_of::<Entry>();
        entries + self.slots.metas.len() * size_of::<Meta>() + self.table.bytes()
    }

    #[inline]
    pub fn entry(&self, slot: Slot) -> &Entry {
        &self.slots.entries[slot as usize]
    }

    #[inline]
    pub fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        &mut self.slots.entries[slot as usize]
    }

    #[inline]
    pub fn meta(&self, slot: Slot) -> &Meta {
        &self.slots.metas[slot as usize]
    }

    #[inline]
    pub fn meta_mut(&mut self, slot: Slot) -> &mut Meta {
        &mut self.slots.metas[slot as usize]
    }

    #[inline]
    pub fn find(&self, ns: u16, key: BlockKey) -> Option<Slot> {
        let hash = self.table.hash(ns, key);
        self.table.find(hash, &self.slots.entries, ns, key)
    }

    /// Takes a free slot for a key that is not here; it begins as filling. None when full.
    pub fn insert(&mut self, ns: u16, key: BlockKey, version: u32) -> Option<Slot> {
        let slot = if self.free_head != NONE {
            let slot = self.free_head;
            self.free_head = self.entry(slot).next;
            slot
        } else if self.fresh < self.capacity() {
            self.fresh += 1;
            self.fresh - 1
        } else {
            return None;
        };
        self.used += 1;
        *self.entry_mut(slot) = Entry { key, ns, version, ..Entry::FREE };
        self.meta_mut(slot).begin();
        self.table.insert(self.table.hash(ns, key), slot);
        Some(slot)
    }

    /// Takes the slot out of the table; nobody finds it any more.
    pub fn unlist(&mut self, slot: Slot) {
        self.table.remove(&self.slots.entries, slot);
    }

    /// Gives back a slot that is no longer listed.
    pub fn free(&mut self, slot: Slot) {
        assert_eq!(self.entry(slot).reads, 0, "a block being read is never freed");
        self.meta_mut(slot).free();
        let next = self.free_head;
        *self.entry_mut(slot) = Entry { next, ..Entry::FREE };
        self.free_head = slot;
        self.used -= 1;
    }

    /// Counts again: states against table, free list and `used`.
    pub fn check(&self) -> Result<(), String> {
        let count = |state| self.slots.metas.iter().filter(|meta| meta.state() == state).count();
        let listed = self.table.check(&self.slots.entries)? as usize;
        let (filling, ready) = (count(State::Filling), count(State::Ready));
        if listed != filling + ready {
            return Err(format!("table lists {listed}, slots say {filling} + {ready}"));
        }
        let free = count(State::Free);
        if free + self.used as usize != self.slots.metas.len() {
            return Err(format!("{free} free slots and {} used", self.used));
        }
        let mut on_list = (self.capacity() - self.fresh) as usize;
        let mut slot = self.free_head;
        while slot != NONE && on_list <= free {
            if self.meta(slot).state() != State::Free {
                return Err(format!("slot {slot} on the free list is not free"));
            }
            on_list += 1;
            slot = self.entry(slot).next;
        }
        if on_list != free {
            return Err(format!("free list has {on_list}, slots say {free}"));
        }
        Ok(())
    }
}
