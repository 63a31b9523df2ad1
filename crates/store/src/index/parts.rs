//! Where the bytes of each block are: one 32 B record for each part, apart from the index.
//!
//! ```text
//!  first[slot] ── part 0 ──next_part──► part 3 ──next_part──► part 1        (order of arrival)
//!                   │                     │
//!              next_extents          next_extents
//!                   ▼                     ▼
//!              3 extents ──► 3 more     3 extents
//! ```
//! Part 0 has its place at the block's own slot, so that a lookup finds it without a search; other
//! parts, and extents beyond a part's first, take records from a pool that is allocated at start.

use super::entry::{NONE, Slot};
use super::huge::filled;
use super::prefetch::prefetch;
use crate::arena::{EXTENTS_MAX, Extent, Extents, GRANULE_BYTES};
use crate::types::Generation;

/// Extents in one record of the pool.
const EXTENTS_EACH: usize = 3;

/// One part. `length` is 0 where there is none.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Record {
    checksum: u64,
    first_granule: u32,
    length: u32,
    generation: u32,
    next_part: u32,
    next_extents: u32,
    /// At a block's own slot: granules of the whole block. In the pool: the part's number.
    extra: u32,
}

/// A record at a block's own slot; aligned, so that it never straddles a cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Own(Record);

/// A record of the pool that holds extents: (first, granules) three times, and the next one.
type Words = [u32; 8];

const EMPTY: Record = Record {
    checksum: 0,
    first_granule: 0,
    length: 0,
    generation: 0,
    next_part: NONE,
    next_extents: NONE,
    extra: 0,
};

#[derive(Clone, Copy, Debug)]
enum Pooled {
    Free { next: u32 },
    Part(Record),
    Extents(Words),
}

/// One part's place and what its bytes must hash to.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub part: u8,
    pub length: u32,
    pub checksum: u64,
    pub generation: Generation,
    pub extents: Extents,
}

/// What a lookup tells of a block, and what a lease counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub length: u32,
    pub checksum: u64,
    pub generation: Generation,
    /// Granules of all parts.
    pub granules: u32,
}

#[derive(Debug)]
pub(crate) struct Parts {
    first: Vec<Own>,
    /// The engine's own name of each block; 0: none.
    engine_hashes: Vec<u64>,
    pool: Vec<Pooled>,
    pool_head: u32,
    pool_free: u32,
}

/// Granules that hold `length` bytes.
pub(crate) fn granules_of(length: u32) -> u32 {
    length.div_ceil(GRANULE_BYTES as u32)
}

/// Pool records that a part needs besides those for its extents.
pub(crate) fn part_need(part: u8) -> u32 {
    u32::from(part != 0)
}

/// Pool records that a part in these extents needs.
pub(crate) fn pool_need(part: u8, extents: &Extents) -> u32 {
    part_need(part) + (extents.len() - 1).div_ceil(EXTENTS_EACH) as u32
}

impl Parts {
    /// Records for this many blocks, and as many in the pool.
    pub fn new(blocks: u32) -> Parts {
        let pool_len = blocks.max(256);
        let free = |next| Pooled::Free { next: if next == pool_len { NONE } else { next } };
        Parts {
            first: filled(blocks as usize, Own(EMPTY)),
            engine_hashes: vec![0; blocks as usize],
            pool: (1..=pool_len).map(free).collect(),
            pool_head: 0,
            pool_free: pool_len,
        }
    }

    pub fn bytes(&self) -> usize {
        let each = size_of::<Own>() + size_of::<u64>();
        self.first.len() * each + self.pool.len() * size_of::<Pooled>()
    }

    /// Records left in the pool.
    pub fn pool_free(&self) -> u32 {
        self.pool_free
    }

    /// Whether records of the pool come back when the block goes.
    pub fn has_pooled(&self, slot: Slot) -> bool {
        let own = self.own(slot);
        own.next_part != NONE || own.next_extents != NONE
    }

    #[inline]
    pub fn prefetch(&self, slot: Slot) {
        prefetch(&self.first, slot as usize);
    }

    #[inline]
    pub fn summary(&self, slot: Slot) -> Summary {
        let record = self.own(slot);
        Summary {
            length: record.length,
            checksum: record.checksum,
            generation: Generation(record.generation),
            granules: record.extra,
        }
    }

    pub fn engine_hash(&self, slot: Slot) -> Option<u64> {
        let hash = self.engine_hashes[slot as usize];
        (hash != 0).then_some(hash)
    }

    pub fn set_engine_hash(&mut self, slot: Slot, hash: Option<u64>) {
        self.engine_hashes[slot as usize] = hash.unwrap_or(0);
    }

    /// Adds a part that the block does not have yet. The caller made sure of `pool_need` records.
    pub fn add(&mut self, slot: Slot, place: &Place) {
        let mut record = self.record(place);
        let own = *self.own(slot);
        let granules = own.extra + place.extents.granules();
        if place.part == 0 {
            assert_eq!(own.length, 0, "a part is written once");
            record.next_part = own.next_part;
            self.first[slot as usize].0 = record;
        } else {
            record.next_part = own.next_part;
            record.extra = u32::from(place.part);
            self.first[slot as usize].0.next_part = self.take(Pooled::Part(record));
        }
        self.first[slot as usize].0.extra = granules;
    }

    /// The part's place, if it is in.
    pub fn get(&self, slot: Slot, part: u8) -> Option<Place> {
        if part == 0 {
            let own = self.own(slot);
            return (own.length != 0).then(|| self.place(0, own));
        }
        let mut at = self.own(slot).next_part;
        while at != NONE {
            let record = self.part_record(at);
            if record.extra == u32::from(part) {
                return Some(self.place(part, record));
            }
            at = record.next_part;
        }
        None
    }

    /// Visits every part's place.
    pub fn visit(&self, slot: Slot, mut visitor: impl FnMut(Place)) {
        let own = self.own(slot);
        if own.length != 0 {
            visitor(self.place(0, own));
        }
        let mut at = own.next_part;
        while at != NONE {
            let record = self.part_record(at);
            visitor(self.place(record.extra as u8, record));
            at = record.next_part;
        }
    }

    /// Forgets the block's parts and hands each one's extents to `freed`.
    pub fn clear(&mut self, slot: Slot, mut freed: impl FnMut(&Extents)) {
        self.visit(slot, |place| freed(&place.extents));
        let own = std::mem::replace(&mut self.first[slot as usize], Own(EMPTY)).0;
        self.engine_hashes[slot as usize] = 0;
        self.give_back_extents(own.next_extents);
        let mut at = own.next_part;
        while at != NONE {
            let record = *self.part_record(at);
            self.give_back_extents(record.next_extents);
            self.give_back(at);
            at = record.next_part;
        }
    }

    /// The part's bytes were copied to `extents`; returns where they were. The caller made sure
    /// of `pool_need` records.
    pub fn relocate(
        &mut self,
        slot: Slot,
        part: u8,
        extents: &Extents,
        generation: Generation,
    ) -> Option<Extents> {
        let old = self.get(slot, part)?;
        let moved = self.record(&Place { extents: *extents, generation, ..old.clone() });
        let record = match part {
            0 => &mut self.first[slot as usize].0,
            _ => self.part_record_mut(slot, part)?,
        };
        let old_chain = record.next_extents;
        record.first_granule = moved.first_granule;
        record.generation = moved.generation;
        record.next_extents = moved.next_extents;
        self.give_back_extents(old_chain);
        Some(old.extents)
    }

    fn record(&mut self, place: &Place) -> Record {
        let mut extents = [Extent { first_granule: 0, granules: 0 }; EXTENTS_MAX];
        let mut count = 0;
        for extent in place.extents.iter() {
            extents[count] = extent;
            count += 1;
        }
        let extents = &extents[..count];
        assert!(!extents.is_empty() && place.length > 0);
        let mut next = NONE;
        // Back to front, so that each record knows the one after it.
        for few in extents[1..].chunks(EXTENTS_EACH).rev() {
            let mut words: Words = [NONE, 0, NONE, 0, NONE, 0, next, 0];
            for (pair, extent) in words.chunks_exact_mut(2).zip(few) {
                pair.copy_from_slice(&[extent.first_granule, extent.granules]);
            }
            next = self.take(Pooled::Extents(words));
        }
        Record {
            checksum: place.checksum,
            first_granule: extents[0].first_granule,
            length: place.length,
            generation: place.generation.0,
            next_part: NONE,
            next_extents: next,
            extra: 0,
        }
    }

    fn own(&self, slot: Slot) -> &Record {
        &self.first[slot as usize].0
    }

    fn place(&self, part: u8, record: &Record) -> Place {
        // The first extent's length is what the others leave.
        let mut others = 0;
        self.visit_extents(record.next_extents, |extent| others += extent.granules);
        let mut extents = Extents::default();
        let granules = granules_of(record.length) - others;
        let mut push = |extent| assert!(extents.push(extent), "at most EXTENTS_MAX were stored");
        push(Extent { first_granule: record.first_granule, granules });
        self.visit_extents(record.next_extents, push);
        let generation = Generation(record.generation);
        Place { part, length: record.length, checksum: record.checksum, generation, extents }
    }

    fn visit_extents(&self, mut at: u32, mut visitor: impl FnMut(Extent)) {
        while at != NONE {
            let Pooled::Extents(words) = &self.pool[at as usize] else { unreachable!() };
            for pair in words[..2 * EXTENTS_EACH].chunks_exact(2).filter(|pair| pair[1] != 0) {
                visitor(Extent { first_granule: pair[0], granules: pair[1] });
            }
            at = words[6];
        }
    }

    fn part_record(&self, at: u32) -> &Record {
        let Pooled::Part(record) = &self.pool[at as usize] else { unreachable!() };
        record
    }

    fn part_record_mut(&mut self, slot: Slot, part: u8) -> Option<&mut Record> {
        let mut at = self.own(slot).next_part;
        while at != NONE && self.part_record(at).extra != u32::from(part) {
            at = self.part_record(at).next_part;
        }
        match self.pool.get_mut(at as usize) {
            Some(Pooled::Part(record)) => Some(record),
            _ => None,
        }
    }

    fn take(&mut self, what: Pooled) -> u32 {
        let at = self.pool_head;
        let Some(&Pooled::Free { next }) = self.pool.get(at as usize) else {
            unreachable!("the caller made sure of records");
        };
        self.pool[at as usize] = what;
        self.pool_head = next;
        self.pool_free -= 1;
        at
    }

    fn give_back(&mut self, at: u32) {
        self.pool[at as usize] = Pooled::Free { next: self.pool_head };
        self.pool_head = at;
        self.pool_free += 1;
    }

    fn give_back_extents(&mut self, mut at: u32) {
        while at != NONE {
            let Pooled::Extents(words) = self.pool[at as usize] else { unreachable!() };
            self.give_back(at);
            at = words[6];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(part: u8, extents: &[(u32, u32)]) -> Place {
        let mut list = Extents::default();
        for (first_granule, granules) in extents {
            let (first_granule, granules) = (*first_granule, *granules);
            assert!(list.push(Extent { first_granule, granules }));
        }
        let length = list.granules() * GRANULE_BYTES as u32 - 5;
        let generation = Generation(u32::from(part) + 1);
        Place { part, length, checksum: u64::from(part) + 77, generation, extents: list }
    }

    fn assert_same(one: &Place, other: &Place) {
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }

    #[test]
    fn records_are_no_larger_than_said() {
        assert_eq!(size_of::<Own>(), 32);
        assert_eq!(size_of::<Pooled>(), 40);
    }

    #[test]
    fn every_part_and_extent_comes_back_and_goes() {
        let mut parts = Parts::new(4);
        let full = parts.pool_free();
        let many: Vec<_> = (0..EXTENTS_MAX as u32).map(|i| (i * 10, i + 1)).collect();
        let places = [place(3, &many), place(0, &many[..4]), place(1, &[(90, 1)])];
        for (at, place) in places.iter().enumerate() {
            let before = parts.pool_free();
            assert!(parts.get(2, place.part).is_none());
            parts.add(2, place);
            assert_eq!(before - parts.pool_free(), pool_need(place.part, &place.extents));
            assert_eq!(parts.has_pooled(2), parts.pool_free() < full);
            places[..=at].iter().for_each(|p| assert_same(&parts.get(2, p.part).unwrap(), p));
        }
        let granules: u32 = places.iter().map(|place| place.extents.granules()).sum();
        assert_eq!(parts.summary(2).granules, granules);
        assert_eq!(parts.summary(2).length, places[1].length, "of part 0");
        assert!(parts.get(1, 0).is_none() && parts.get(2, 2).is_none());
        let mut freed = 0;
        parts.clear(2, |extents| freed += extents.granules());
        assert_eq!((freed, parts.pool_free()), (granules, full));
        assert!(parts.get(2, 0).is_none() && parts.engine_hash(2).is_none());
    }

    #[test]
    fn a_moved_part_has_its_new_place_and_generation() {
        let mut parts = Parts::new(4);
        let full = parts.pool_free();
        let (zero, five) = (place(0, &[(1, 2), (7, 3)]), place(5, &[(20, 2), (30, 2), (40, 1)]));
        parts.add(1, &zero);
        parts.add(1, &five);
        for (part, before) in [(0, &zero), (5, &five)] {
            let room = place(part, &[(100, before.extents.granules())]).extents;
            let old = parts.relocate(1, part, &room, Generation(99)).unwrap();
            assert_eq!(old, before.extents);
            let after = Place { generation: Generation(99), extents: room, ..before.clone() };
            assert_same(&parts.get(1, part).unwrap(), &after);
        }
        assert!(parts.relocate(1, 4, &zero.extents, Generation(1)).is_none());
        let granules = zero.extents.granules() + five.extents.granules();
        assert_eq!(parts.summary(1).granules, granules);
        parts.clear(1, |_| {});
        assert_eq!(parts.pool_free(), full);
    }
}
