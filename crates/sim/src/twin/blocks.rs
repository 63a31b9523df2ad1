//! Which blocks lie in which segment, in the order in which they were written: the store's flash
//! index without its keys.

use keepwarm_store::rules::cold::CHUNK_SLOTS;

use super::places::Places;

/// One block's place. It stays when the block is gone, until its segment goes.
#[derive(Clone, Copy, Debug)]
struct Entry {
    number: u32,
    segment: u32,
    is_listed: bool,
    /// Asked for since it was written.
    is_used: bool,
    /// The segment's next entry.
    next: u32,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Segment {
    first: u32,
    last: u32,
    entries: u32,
    live: u32,
}

const EMPTY: Segment = Segment { first: NONE, last: NONE, entries: 0, live: 0 };

/// The index: entries are handed out to segments in chunks, of which there are so many.
#[derive(Debug)]
pub(super) struct Blocks {
    places: Places,
    entries: Vec<Entry>,
    free: Vec<u32>,
    segments: Vec<Segment>,
    chunks_free: u32,
}

impl Blocks {
    pub fn new(segments: u32, blocks_max: u32) -> Blocks {
        Blocks {
            places: Places::default(),
            entries: Vec::new(),
            free: Vec::new(),
            segments: vec![EMPTY; segments as usize],
            chunks_free: blocks_max.div_ceil(CHUNK_SLOTS).max(1),
        }
    }

    /// The entry of a block that is here.
    pub fn find(&self, number: u32) -> Option<u32> {
        self.places.get(number)
    }

    /// Whether a block more may find no chunk.
    pub fn is_full(&self) -> bool {
        self.chunks_free == 0
    }

    pub fn live(&self, segment: u32) -> u32 {
        self.segments[segment as usize].live
    }

    /// Lists a block that is not listed at the end of a segment. False: no chunk is free.
    pub fn insert(&mut self, number: u32, segment: u32) -> bool {
        if self.segments[segment as usize].entries.is_multiple_of(CHUNK_SLOTS) {
            if self.is_full() {
                return false;
            }
            self.chunks_free -= 1;
        }
        let entry = Entry { number, segment, is_listed: true, is_used: false, next: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        let owner = &mut self.segments[segment as usize];
        match owner.last {
            NONE => owner.first = at,
            last => self.entries[last as usize].next = at,
        }
        owner.last = at;
        owner.entries += 1;
        owner.live += 1;
        self.places.set(number, at);
        true
    }

    /// The block is gone from flash.
    pub fn unlist(&mut self, entry: u32) {
        let Entry { number, segment, .. } = self.entries[entry as usize];
        self.entries[entry as usize].is_listed = false;
        self.segments[segment as usize].live -= 1;
        self.places.clear(number);
    }

    pub fn set_used(&mut self, entry: u32) {
        self.entries[entry as usize].is_used = true;
    }

    pub fn is_used(&self, entry: u32) -> bool {
        self.entries[entry as usize].is_used
    }

    pub fn number(&self, entry: u32) -> u32 {
        self.entries[entry as usize].number
    }

    /// Entries of the blocks that are listed in a segment, in order.
    pub fn of(&self, segment: u32) -> impl Iterator<Item = u32> + '_ {
        let entry = |at: u32| self.entries.get(at as usize).map(|entry| (at, entry));
        let first = entry(self.segments[segment as usize].first);
        let all = std::iter::successors(first, move |(_, found)| entry(found.next));
        all.filter(|(_, found)| found.is_listed).map(|(at, _)| at)
    }

    /// A segment's life ends; nothing in it is listed.
    pub fn end(&mut self, segment: u32) {
        let ended = std::mem::replace(&mut self.segments[segment as usize], EMPTY);
        debug_assert_eq!(ended.live, 0);
        self.chunks_free += ended.entries.div_ceil(CHUNK_SLOTS);
        let mut next = ended.first;
        while next != NONE {
            self.free.push(next);
            next = self.entries[next as usize].next;
        }
    }
}
