//! The hash table: open addressing with linear probing over 4-byte cells, two for each entry.
//!
//! A cell holds a slot number + 1 in its low bits (as many as the largest needs) and bits of the
//! hash in the rest, so that a probe touches an entry almost only when it is the right one. The
//! hash is keyed at random: whoever chooses keys cannot choose where they collide.

use super::entry::{NONE, Slot};
use super::prefetch::prefetch;
use crate::types::BlockKey;

#[derive(Debug)]
pub(crate) struct Table {
    cells: Vec<u32>,
    slot_bits: u32,
    seed: [u64; 2],
}

/// What a slot's entry is called.
pub(crate) trait Named {
    fn ns(&self) -> u16;
    fn key(&self) -> BlockKey;
}

/// A key's hash, spread over all 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash(u64);

impl Table {
    /// A table for `entries_max` entries, two cells for each, seeded at random.
    pub fn new(entries_max: u32, seed: [u64; 2]) -> Table {
        Table::with_cells(entries_max, 2 * entries_max as usize, seed)
    }

    /// The same with another number of cells, more than entries: fewer take less memory and more
    /// probes.
    pub fn with_cells(entries_max: u32, cells: usize, seed: [u64; 2]) -> Table {
        let cells = super::huge::filled(cells.max(16), 0);
        Table { cells, slot_bits: u32::BITS - entries_max.leading_zeros(), seed }
    }

    pub fn bytes(&self) -> usize {
        self.cells.len() * size_of::<u32>()
    }

    #[inline]
    pub fn hash(&self, ns: u16, key: BlockKey) -> KeyHash {
        let bits = u128::from_le_bytes(key.0);
        let low = bits as u64 ^ self.seed[0];
        let high = (bits >> 64) as u64 ^ self.seed[1] ^ (u64::from(ns) << 48);
        let product = u128::from(low) * u128::from(high);
        KeyHash(product as u64 ^ (product >> 64) as u64)
    }

    #[inline]
    fn home(&self, hash: KeyHash) -> usize {
        ((u128::from(hash.0) * self.cells.len() as u128) >> 64) as usize
    }

    #[inline]
    fn tag(&self, hash: KeyHash) -> u32 {
        // Low bits: `home` uses the high ones.
        (hash.0 as u32) << self.slot_bits
    }

    #[inline]
    fn slot_of(&self, cell: u32) -> Slot {
        (cell & ((1 << self.slot_bits) - 1)).wrapping_sub(1)
    }

    #[inline]
    fn tag_of(&self, cell: u32) -> u32 {
        (cell >> self.slot_bits) << self.slot_bits
    }

    #[inline]
    fn after(&self, position: usize) -> usize {
        if position + 1 == self.cells.len() { 0 } else { position + 1 }
    }

    /// Starts loading the cells at which a search for `hash` begins.
    #[inline]
    pub fn prefetch(&self, hash: KeyHash) {
        prefetch(&self.cells, self.home(hash));
    }

    /// The first slot whose tag matches, without looking at it: right but for a few in 1,000.
    #[inline]
    pub fn candidate(&self, hash: KeyHash) -> Slot {
        let (mut position, tag) = (self.home(hash), self.tag(hash));
        loop {
            let cell = self.cells[position];
            if cell == 0 {
                return NONE;
            }
            if self.tag_of(cell) == tag {
                return self.slot_of(cell);
            }
            position = self.after(position);
        }
    }

    /// Position and slot of the key.
    #[inline]
    fn position<E: Named>(
        &self,
        hash: KeyHash,
        entries: &[E],
        ns: u16,
        key: BlockKey,
    ) -> Option<(usize, Slot)> {
        let (mut position, tag) = (self.home(hash), self.tag(hash));
        // Ends at an empty cell: there are more cells than entries.
        loop {
            let cell = self.cells[position];
            if cell == 0 {
                return None;
            }
            if self.tag_of(cell) == tag {
                let slot = self.slot_of(cell);
                let entry = &entries[slot as usize];
                if entry.key() == key && entry.ns() == ns {
                    return Some((position, slot));
                }
            }
            position = self.after(position);
        }
    }

    #[inline]
    pub fn find<E: Named>(
        &self,
        hash: KeyHash,
        entries: &[E],
        ns: u16,
        key: BlockKey,
    ) -> Option<Slot> {
        self.position(hash, entries, ns, key).map(|(_, slot)| slot)
    }

    /// Adds a key that is not there.
    pub fn insert(&mut self, hash: KeyHash, slot: Slot) {
        let mut position = self.home(hash);
        while self.cells[position] != 0 {
            position = self.after(position);
        }
        self.cells[position] = self.tag(hash) | (slot + 1);
    }

    /// Takes out a key that is there, and moves those behind it up so that no search breaks off.
    pub fn remove<E: Named>(&mut self, entries: &[E], slot: Slot) {
        let (ns, key) = (entries[slot as usize].ns(), entries[slot as usize].key());
        let found = self.position(self.hash(ns, key), entries, ns, key);
        let (mut hole, at) = found.expect("a listed slot is in the table");
        assert_eq!(at, slot, "one key, one slot");
        let mut position = self.after(hole);
        while self.cells[position] != 0 {
            let entry = &entries[self.slot_of(self.cells[position]) as usize];
            let home = self.home(self.hash(entry.ns(), entry.key()));
            // How far the cell lies from its home; it may move up at most that far.
            if self.distance(home, position) >= self.distance(hole, position) {
                self.cells[hole] = self.cells[position];
                hole = position;
            }
            position = self.after(position);
        }
        self.cells[hole] = 0;
    }

    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.cells.len() - from }
    }

    /// Counts full cells and checks that each leads to itself.
    pub fn check<E: Named>(&self, entries: &[E]) -> Result<u32, String> {
        let mut full = 0;
        for &cell in self.cells.iter().filter(|cell| **cell != 0) {
            let slot = self.slot_of(cell);
            let entry = entries.get(slot as usize).ok_or(format!("table names slot {slot}"))?;
            let hash = self.hash(entry.ns(), entry.key());
            if self.find(hash, entries, entry.ns(), entry.key()) != Some(slot) {
                return Err(format!("slot {slot} is in the table but not found by its key"));
            }
            full += 1;
        }
        Ok(full)
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::Entry;
    use super::*;
    use std::collections::HashMap;

    fn key(number: u64) -> BlockKey {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        BlockKey(bytes)
    }

    /// Keys that differ in few bits, at the highest load, against a dictionary.
    #[test]
    fn finds_what_a_dictionary_finds() {
        const N: u32 = 64;
        let mut entries = vec![Entry::FREE; N as usize];
        let mut table = Table::new(N, [0x1234_5678_9abc_def1, 0xfedc_ba98_7654_3211]);
        let mut model: HashMap<u64, Slot> = HashMap::new();
        let mut free: Vec<Slot> = (0..N).collect();
        let mut state = 7u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let number = (state >> 40) % 100;
            let hash = table.hash(1, key(number));
            let found = table.find(hash, &entries, 1, key(number));
            assert_eq!(found, model.get(&number).copied());
            assert_eq!(table.find(table.hash(2, key(number)), &entries, 2, key(number)), None);
            if let Some(slot) = found {
                table.remove(&entries, slot);
                model.remove(&number);
                free.push(slot);
            } else if let Some(slot) = free.pop() {
                entries[slot as usize] = Entry { key: key(number), ns: 1, ..Entry::FREE };
                table.insert(hash, slot);
                model.insert(number, slot);
            }
            assert_eq!(table.check(&entries), Ok(model.len() as u32));
        }
    }
}
