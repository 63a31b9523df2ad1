//! Many keys at once, at the speed of memory rather than of its latency.
//!
//! The blocks of a prompt tend to sit side by side, because slots are handed out in order: so the
//! neighbour of the last hit is tried first, and costs a comparison. Where that fails, a group of
//! keys is found in three passes (hash, cell, entry), each of which only starts loads that the
//! next one uses, so that the loads of a whole group overlap.

use super::prefetch::prefetch;
use super::{Index, NONE, Slot};
use crate::types::BlockKey;

/// Keys of one call to `find_chunk`, at most.
pub(crate) const CHUNK: usize = 128;

/// Keys whose loads overlap: about what a core can have in flight.
const GROUP: usize = 32;

/// How far ahead of a run its entries are loaded.
const AHEAD: u32 = 16;

/// Where a run of neighbours stands, carried from chunk to chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// Slot at which the next key is expected; `NONE` outside of a run.
    expected: Slot,
    /// 1 or -1, as a wrapping number.
    step: u32,
}

impl Run {
    pub const NONE: Run = Run { expected: NONE, step: 1 };
}

impl Index {
    /// Finds the slots of up to `CHUNK` keys, `NONE` where there is none, and leaves their entries
    /// and metas in the cache.
    #[inline]
    pub fn find_chunk(&self, ns: u16, keys: &[BlockKey], found: &mut [Slot], run: &mut Run) {
        debug_assert!(keys.len() <= CHUNK && keys.len() == found.len());
        let mut at = 0;
        while at < keys.len() {
            at += self.follow(ns, &keys[at..], &mut found[at..], run);
            let end = keys.len().min(at + GROUP);
            if at < end {
                self.find_group(ns, &keys[at..end], &mut found[at..end], run);
                at = end;
            }
        }
    }

    /// Follows a run of neighbours as far as it goes; returns how many keys it covered.
    #[inline]
    fn follow(&self, ns: u16, keys: &[BlockKey], found: &mut [Slot], run: &mut Run) -> usize {
        let entries = &self.slots.entries;
        for (at, key) in keys.iter().enumerate() {
            let Some(entry) = entries.get(run.expected as usize) else { return at };
            // A free slot's key is zero and its namespace is 0: it is told apart by its state.
            if entry.key != *key || entry.ns != ns || !self.is_listed(run.expected) {
                run.expected = NONE;
                return at;
            }
            found[at] = run.expected;
            let ahead = run.expected.wrapping_add(run.step.wrapping_mul(AHEAD)) as usize;
            prefetch(entries, ahead);
            prefetch(&self.slots.metas, ahead);
            run.expected = run.expected.wrapping_add(run.step);
        }
        keys.len()
    }

    #[inline]
    fn is_listed(&self, slot: Slot) -> bool {
        use super::State::{Filling, Ready};
        matches!(self.meta(slot).state(), Filling | Ready)
    }

    #[inline]
    fn find_group(&self, ns: u16, keys: &[BlockKey], found: &mut [Slot], run: &mut Run) {
        let mut hashes = [const { None }; GROUP];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            let value = self.table.hash(ns, *key);
            self.table.prefetch(value);
            *hash = Some(value);
        }
        let hashes = &hashes[..keys.len()];
        for (hash, slot) in hashes.iter().flatten().zip(found.iter_mut()) {
            *slot = self.table.candidate(*hash);
            prefetch(&self.slots.entries, *slot as usize);
            prefetch(&self.slots.metas, *slot as usize);
        }
        for ((hash, key), slot) in hashes.iter().flatten().zip(keys).zip(found.iter_mut()) {
            let Some(entry) = self.slots.entries.get(*slot as usize) else { continue };
            if entry.key != *key || entry.ns != ns {
                // A tag that matched by chance: search again, in full.
                let again = self.table.find(*hash, &self.slots.entries, ns, *key);
                *slot = again.unwrap_or(NONE);
            }
        }
        if let [.., before, last] = *found
            && (last == before.wrapping_add(1) || before == last.wrapping_add(1))
            && before != NONE
            && last != NONE
        {
            let step = last.wrapping_sub(before);
            *run = Run { expected: last.wrapping_add(step), step };
        }
    }

    /// Starts loading the list neighbours of these slots, for a policy that will move them.
    #[inline]
    pub fn prefetch_links(&self, slots: &[Slot]) {
        for slot in slots {
            if let Some(entry) = self.slots.entries.get(*slot as usize) {
                prefetch(&self.slots.entries, entry.prev as usize);
                prefetch(&self.slots.entries, entry.next as usize);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> BlockKey {
        let spread = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        BlockKey(u128::from(number).wrapping_mul(spread).to_le_bytes())
    }

    /// Batched and single search agree: runs both ways, gaps, strangers, other namespaces.
    #[test]
    fn a_chunk_finds_what_single_searches_find() {
        let mut index = Index::new(4096, [3, 5]);
        for number in 0..4000 {
            index.insert(1, key(number), 0).unwrap();
        }
        for number in (0..4000).step_by(7) {
            let slot = index.find(1, key(number)).unwrap();
            index.unlist(slot);
            index.free(slot);
        }
        let mut state = 11u64;
        let (mut run, mut found) = (Run::NONE, [NONE; CHUNK]);
        for round in 0..2_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let first = (state >> 33) % 4000;
            let pick = |i: u64| match round % 4 {
                0 => first + i,
                1 => (first + 500).saturating_sub(i),
                2 => (first + i * i * 31) % 5000,
                _ => first + i * 2,
            };
            let keys: Vec<_> = (0..CHUNK as u64).map(|i| key(pick(i))).collect();
            let ns = if round % 9 == 8 { 2 } else { 1 };
            index.find_chunk(ns, &keys, &mut found, &mut run);
            for (key, slot) in keys.iter().zip(found) {
                assert_eq!(index.find(ns, *key).unwrap_or(NONE), slot);
            }
        }
    }

    /// The all-zero key in namespace 0 looks like a free slot's.
    #[test]
    fn a_free_slot_is_never_found() {
        let mut index = Index::new(16, [3, 5]);
        let zero = BlockKey([0; 16]);
        let keys: Vec<_> = (1..5).map(key).chain([zero]).collect();
        for number in 1..6 {
            index.insert(0, key(number), 0).unwrap();
        }
        let last = index.find(0, key(5)).unwrap();
        index.unlist(last);
        index.free(last);
        let (mut run, mut found) = (Run::NONE, [NONE; 2]);
        index.find_chunk(0, &keys[2..4], &mut found, &mut run);
        let mut one = [0];
        index.find_chunk(0, &[zero], &mut one, &mut run);
        assert_eq!(one, [NONE]);
    }
}
