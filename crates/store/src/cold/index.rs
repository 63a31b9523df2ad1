//! The flash index: which block is in which segment, at most 48 B an entry with its share of the
//! table, all of it allocated at start.
//!
//! ```text
//!  key ──table──► slot           segment ──► chunk ──next──► chunk ──next──► chunk
//!                  └── slot / 32 = chunk       │ 32 slots, in the order of their records
//!                                              └── names its segment
//! ```
//! A segment's entries are handed out in order, in chunks that the segment owns alone. So an entry
//! needs no links and no segment number; reclaiming a segment walks its chunks; and what one batch
//! wrote lies side by side. An entry that is gone stays, unlisted, until its segment is reclaimed:
//! so do its bytes.

use super::entry::{ColdEntry, ColdPlace, ColdSlot, Written};
use super::segments::{NO_CHUNK, Segment};
use crate::index::huge::filled;
use crate::index::prefetch::prefetch;
use crate::index::table::{Named, Table};
use crate::index::{CHUNK, NONE};
use crate::tiers::SegmentRef;
use crate::types::BlockKey;

/// Slots of a chunk.
pub const CHUNK_SLOTS: u32 = 32;
/// Keys whose loads overlap.
const GROUP: usize = 32;

/// Slots that a segment owns.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Whose it is; of a free one nobody's.
    segment: u32,
    /// The segment's next one, or the next free one.
    next: u32,
    /// Slots handed out.
    filled: u32,
}

#[derive(Debug)]
pub(crate) struct FlashIndex {
    entries: Vec<ColdEntry>,
    places: Vec<ColdPlace>,
    chunks: Vec<Chunk>,
    free_chunk: u32,
    free_chunks: u32,
    table: Table,
    segments: Vec<Segment>,
    listed: u32,
}

impl FlashIndex {
    /// Allocates everything for so many blocks, rounded up to chunks, and so many segments.
    pub fn new(blocks_max: u32, segments: u32, seed: [u64; 2]) -> FlashIndex {
        let chunks = blocks_max.div_ceil(CHUNK_SLOTS).max(1);
        let slots = chunks * CHUNK_SLOTS;
        let chain = |next| Chunk { segment: NONE, next, filled: 0 };
        let linked = (1..=chunks).map(|next| chain(if next < chunks { next } else { NO_CHUNK }));
        FlashIndex {
            entries: filled(slots as usize, ColdEntry::EMPTY),
            places: filled(slots as usize, ColdPlace::default()),
            chunks: linked.collect(),
            free_chunk: 0,
            free_chunks: chunks,
            // Five cells for four entries, 5 B each: a search that fails looks at 13 cells, which
            // is a cache line or two.
            table: Table::with_cells(slots, slots as usize / 4 * 5, seed),
            segments: vec![Segment::default(); segments as usize],
            listed: 0,
        }
    }

    /// Slots, used or not.
    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Blocks that are found under their keys.
    pub fn listed(&self) -> u32 {
        self.listed
    }

    /// Bytes allocated at start.
    pub fn bytes(&self) -> usize {
        size_of_val(&self.entries[..])
            + size_of_val(&self.places[..])
            + size_of_val(&self.chunks[..])
            + size_of_val(&self.segments[..])
            + self.table.bytes()
    }

    #[inline]
    pub fn entry(&self, slot: ColdSlot) -> &ColdEntry {
        &self.entries[slot as usize]
    }

    pub fn entry_mut(&mut self, slot: ColdSlot) -> &mut ColdEntry {
        &mut self.entries[slot as usize]
    }

    #[inline]
    pub fn place(&self, slot: ColdSlot) -> &ColdPlace {
        &self.places[slot as usize]
    }

    /// Starts loading what a hit needs besides its entry.
    #[inline]
    pub fn prefetch_place(&self, slot: ColdSlot) {
        prefetch(&self.places, slot as usize);
    }

    /// Number of the segment that a block lies in.
    #[inline]
    pub fn segment_of(&self, slot: ColdSlot) -> u32 {
        self.chunks[(slot / CHUNK_SLOTS) as usize].segment
    }

    #[inline]
    pub fn segment(&self, number: u32) -> &Segment {
        &self.segments[number as usize]
    }

    pub fn segment_mut(&mut self, number: u32) -> &mut Segment {
        &mut self.segments[number as usize]
    }

    /// Segments with a life, by number.
    pub fn segments(&self) -> impl Iterator<Item = (u32, &Segment)> {
        let numbered = self.segments.iter().enumerate();
        numbered.filter(|(_, s)| s.is_alive()).map(|(number, s)| (number as u32, s))
    }

    #[inline]
    pub fn find(&self, ns: u16, key: BlockKey) -> Option<ColdSlot> {
        self.table.find(self.table.hash(ns, key), &self.entries, ns, key)
    }

    /// Finds the slots of those keys whose place in `found` is not `NONE` as it comes in; the
    /// loads of a group of them overlap. `NONE` where there is none.
    pub fn find_chunk(&self, ns: u16, keys: &[BlockKey], found: &mut [ColdSlot]) {
        debug_assert!(keys.len() <= CHUNK && keys.len() == found.len());
        let mut wanted = [0u8; CHUNK];
        let mut count = 0;
        for (at, slot) in found.iter().enumerate() {
            wanted[count] = at as u8;
            count += usize::from(*slot != NONE);
        }
        let mut hashes = [const { None }; GROUP];
        for group in wanted[..count].chunks(GROUP) {
            for (hash, at) in hashes.iter_mut().zip(group) {
                let value = self.table.hash(ns, keys[usize::from(*at)]);
                self.table.prefetch(value);
                *hash = Some(value);
            }
            for (hash, at) in hashes.iter().flatten().zip(group) {
                let slot = self.table.candidate(*hash);
                prefetch(&self.entries, slot as usize);
                found[usize::from(*at)] = slot;
            }
            for (hash, at) in hashes.iter().flatten().zip(group) {
                let (key, slot) = (keys[usize::from(*at)], &mut found[usize::from(*at)]);
                let Some(entry) = self.entries.get(*slot as usize) else { continue };
                if entry.key != key || entry.ns() != ns {
                    let again = self.table.find(*hash, &self.entries, ns, key);
                    *slot = again.unwrap_or(NONE);
                }
            }
        }
    }

    /// Begins a segment's life; it has none.
    pub fn begin(&mut self, number: u32, at: SegmentRef, tenant: usize, is_recovered: bool) {
        let segment = self.segment_mut(number);
        assert!(!segment.is_alive() && at.life != 0, "a segment has one life at a time");
        *segment = Segment { at, tenant: tenant as u16, is_recovered, ..Segment::default() };
    }

    /// Adds a block that is not listed, at the end of its segment. None: no chunk is free.
    pub fn insert(&mut self, number: u32, written: &Written) -> Option<ColdSlot> {
        let last = self.segments[number as usize].last;
        let chunk = match self.chunks.get(last as usize) {
            Some(chunk) if chunk.filled < CHUNK_SLOTS => last,
            _ => self.take_chunk(number)?,
        };
        let filled = &mut self.chunks[chunk as usize].filled;
        let slot = chunk * CHUNK_SLOTS + *filled;
        *filled += 1;
        self.entries[slot as usize] = ColdEntry::new(written);
        self.places[slot as usize] = ColdPlace::new(written);
        self.table.insert(self.table.hash(written.ns, written.key), slot);
        self.listed += 1;
        let segment = self.segment_mut(number);
        segment.live += 1;
        segment.live_pages += written.pages;
        Some(slot)
    }

    fn take_chunk(&mut self, number: u32) -> Option<u32> {
        let chunk = self.free_chunk;
        let taken = self.chunks.get_mut(chunk as usize)?;
        self.free_chunk = taken.next;
        self.free_chunks -= 1;
        *taken = Chunk { segment: number, next: NO_CHUNK, filled: 0 };
        let segment = &mut self.segments[number as usize];
        match segment.last {
            NO_CHUNK => segment.first = chunk,
            last => self.chunks[last as usize].next = chunk,
        }
        segment.last = chunk;
        Some(chunk)
    }

    /// Whether a block more may find no chunk in some segment.
    pub fn is_full(&self) -> bool {
        self.free_chunks == 0
    }

    /// Takes a listed block out of the table; its bytes stay until its segment goes.
    pub fn unlist(&mut self, slot: ColdSlot) {
        self.table.remove(&self.entries, slot);
        self.entries[slot as usize].unlist();
        let pages = self.place(slot).pages();
        self.listed -= 1;
        let number = self.segment_of(slot);
        let segment = self.segment_mut(number);
        segment.live -= 1;
        segment.live_pages -= pages;
    }

    /// The segment's first slot, listed or not.
    pub fn first_of(&self, number: u32) -> Option<ColdSlot> {
        let first = self.segment(number).first;
        (first != NO_CHUNK).then(|| first * CHUNK_SLOTS)
    }

    /// The slot after this one in its segment, listed or not.
    pub fn next_of(&self, slot: ColdSlot) -> Option<ColdSlot> {
        let chunk = &self.chunks[(slot / CHUNK_SLOTS) as usize];
        if slot % CHUNK_SLOTS + 1 < chunk.filled {
            return Some(slot + 1);
        }
        (chunk.next != NO_CHUNK).then(|| chunk.next * CHUNK_SLOTS)
    }

    /// Ends a segment's life: nothing in it is listed or pinned.
    pub fn end(&mut self, number: u32) {
        let segment = std::mem::take(self.segment_mut(number));
        assert!(segment.live == 0 && segment.pins == 0, "a segment in use is never reclaimed");
        if segment.first == NO_CHUNK {
            return;
        }
        let mut chunk = segment.first;
        loop {
            self.free_chunks += 1;
            let Chunk { next, .. } = self.chunks[chunk as usize];
            self.chunks[chunk as usize].segment = NONE;
            self.chunks[chunk as usize].filled = 0;
            if next == NO_CHUNK {
                self.chunks[chunk as usize].next = self.free_chunk;
                break;
            }
            chunk = next;
        }
        self.free_chunk = segment.first;
    }

    /// Counts again: table, chains, segments, free chunks.
    pub fn check(&self) -> Result<(), String> {
        let listed = self.table.check(&self.entries)?;
        if listed != self.listed {
            return Err(format!("flash table lists {listed}, kept {}", self.listed));
        }
        let (mut in_chains, mut owned) = (0, 0);
        for (number, segment) in self.segments() {
            let (mut live, mut pages, mut at) = (0, 0, self.first_of(number));
            while let Some(slot) = at {
                let entry = self.entry(slot);
                if self.segment_of(slot) != number {
                    return Err(format!("flash slot {slot} is in the chain of segment {number}"));
                }
                owned += u32::from(slot % CHUNK_SLOTS == 0);
                if entry.is_listed() {
                    live += 1;
                    pages += self.place(slot).pages();
                    if self.find(entry.ns(), entry.key) != Some(slot) {
                        return Err(format!("flash slot {slot} is listed but not found"));
                    }
                }
                at = self.next_of(slot);
            }
            if (live, pages) != (segment.live, segment.live_pages) {
                let kept = (segment.live, segment.live_pages);
                return Err(format!(
                    "flash segment {number}: counted {live} blocks, {pages} pages, kept {kept:?}"
                ));
            }
            in_chains += live;
        }
        if in_chains != self.listed {
            return Err(format!("flash chains list {in_chains}, kept {}", self.listed));
        }
        let chunks = self.chunks.len() as u32;
        if owned + self.free_chunks != chunks {
            return Err(format!(
                "{owned} chunks owned, {} free, {chunks} in all",
                self.free_chunks
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::tiers::Spot;

    fn key(number: u64) -> BlockKey {
        let spread = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        BlockKey(u128::from(number).wrapping_mul(spread).to_le_bytes())
    }

    fn at(segment: u32, life: u32) -> SegmentRef {
        SegmentRef { device: 0, segment, life }
    }

    fn written(number: u64) -> Written {
        let pages = (number % 5) as u32 + 1;
        let spot = Spot {
            segment: 0,
            life: 1,
            header_page: number as u16,
            payload_page: number as u16 + 1,
            device: 0,
            entry: (number % 64) as u8,
            parts: 1,
        };
        let (length, checksum) = (pages * 4096, number);
        let (key, version) = (key(number), number as u32);
        Written { ns: 3, key, version, length, checksum, expiry: 7, pages, spot }
    }

    #[test]
    fn an_entry_with_its_share_of_everything_takes_no_more_than_said() {
        // One segment of 64 MiB holds 1,024 blocks of 64 KiB.
        let index = FlashIndex::new(1 << 20, 1 << 10, [1, 2]);
        let each = index.bytes() as f64 / f64::from(index.capacity());
        assert!(each <= 48.0, "{each} B an entry");
    }

    /// Segments begin, fill, lose blocks and end, against a dictionary.
    #[test]
    fn finds_what_a_dictionary_finds_and_gives_all_chunks_back() {
        let mut index = FlashIndex::new(512, 8, [3, 5]);
        let mut model: HashMap<u64, (ColdSlot, u32)> = HashMap::new();
        let mut state = 7u64;
        let mut random = |end: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % end
        };
        for life in 1..2_000 {
            let segment = random(8) as u32;
            if !index.segment(segment).is_alive() {
                index.begin(segment, at(segment, life), 0, false);
            }
            for _ in 0..random(60) {
                let number = random(600);
                if let Some((slot, _)) = model.remove(&number) {
                    index.unlist(slot);
                } else if let Some(slot) = index.insert(segment, &written(number)) {
                    model.insert(number, (slot, segment));
                } else {
                    assert!(index.is_full());
                }
            }
            let numbers: Vec<u64> = (0..CHUNK as u64).map(|i| i * 5).collect();
            let keys: Vec<BlockKey> = numbers.iter().map(|number| key(*number)).collect();
            let mut found: Vec<ColdSlot> = (0..CHUNK as u32).map(|at| at % 3).collect();
            found.iter_mut().filter(|at| **at == 2).for_each(|at| *at = NONE);
            let skipped: Vec<bool> = found.iter().map(|at| *at == NONE).collect();
            index.find_chunk(3, &keys, &mut found);
            for ((number, slot), skipped) in numbers.iter().zip(&found).zip(skipped) {
                let known = model.get(number).map_or(NONE, |(slot, _)| *slot);
                assert_eq!(*slot, if skipped { NONE } else { known });
                if *slot != NONE {
                    let (entry, place, said) =
                        (index.entry(*slot), index.place(*slot), written(*number));
                    assert!(entry.is_of_version(*number as u32) && !entry.is_used());
                    assert_eq!(entry.in_record(), said.spot.entry);
                    assert_eq!({ place.expiry }, 7);
                    assert_eq!(
                        (place.pages(), { place.payload_page }),
                        (said.pages, said.spot.payload_page)
                    );
                }
            }
            if random(4) == 0 {
                let gone = random(8) as u32;
                model.retain(|_, (slot, segment)| {
                    let stays = *segment != gone;
                    if !stays {
                        index.unlist(*slot);
                    }
                    stays
                });
                if index.segment(gone).is_alive() {
                    index.end(gone);
                }
            }
            index.check().unwrap();
        }
    }

    #[test]
    #[should_panic(expected = "never reclaimed")]
    fn a_segment_with_blocks_does_not_end() {
        let mut index = FlashIndex::new(32, 1, [3, 5]);
        index.begin(0, at(0, 1), 0, false);
        index.insert(0, &written(1));
        index.end(0);
    }
}
