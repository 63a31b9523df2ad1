//! The best that a memory of a given size could have done, by someone who knows what comes.

use std::collections::BinaryHeap;

use crate::memory::{Found, Memory, Tier};

/// Never used again.
const NEVER: u32 = u32::MAX;
/// Keys of blocks that are not here. No block that is here has it: nothing is used next by the
/// first request.
const ABSENT: u64 = 0;
/// Entries of the heap that are worth a sweep, when as many of them are of no use any more.
const SWEEP_MIN: usize = 1 << 16;

/// A whole trace's blocks, and Belady's rule over them: what is used again last leaves first.
///
/// A block's next use is the next request that has it, wherever in its prompt; of blocks with one
/// and the same next use the one deepest in its prompt leaves first, so that what is kept is a
/// prefix wherever ids mean prefixes. A block that would leave at once is not taken in. Hits count
/// only while the prefix is unbroken, as everywhere.
///
/// Keeps 8 bytes for each block of each request, and 12 for each distinct block, until it has run.
#[derive(Debug, Default)]
pub struct Opt {
    blocks: Vec<u32>,
    /// Where each request's blocks end.
    ends: Vec<usize>,
    distinct: usize,
}

impl Opt {
    /// Takes a request, in order of arrival; one without blocks says nothing.
    pub fn push(&mut self, blocks: &[u32]) {
        if blocks.is_empty() {
            return;
        }
        self.distinct = blocks.iter().fold(self.distinct, |most, &at| most.max(at as usize + 1));
        self.blocks.extend_from_slice(blocks);
        self.ends.push(self.blocks.len());
    }

    /// Bytes that it holds while it runs, about.
    pub fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * 8 + self.distinct as u64 * 28
    }

    /// Replays all requests through a memory of `capacity` blocks; each one's hits.
    pub fn run(&self, capacity: u32) -> Vec<u32> {
        let next = self.next_uses();
        let mut memory = Foreseen::new(self.distinct, capacity as usize);
        let mut begin = 0;
        let mut hits = Vec::with_capacity(self.ends.len());
        for &end in &self.ends {
            let blocks = &self.blocks[begin..end];
            hits.push(blocks.iter().take_while(|number| memory.contains(**number)).count() as u32);
            for (position, (&number, &next)) in blocks.iter().zip(&next[begin..end]).enumerate() {
                memory.use_or_store(number, key(next, position));
            }
            begin = end;
        }
        hits
    }

    /// For each block of each request, the next request that has it.
    fn next_uses(&self) -> Vec<u32> {
        let mut next = vec![NEVER; self.blocks.len()];
        let mut later = vec![NEVER; self.distinct];
        for request in (0..self.ends.len()).rev() {
            let begin = if request == 0 { 0 } else { self.ends[request - 1] };
            let blocks = &self.blocks[begin..self.ends[request]];
            for (at, &number) in blocks.iter().enumerate() {
                next[begin + at] = later[number as usize];
            }
            for &number in blocks {
                later[number as usize] = u32::try_from(request).unwrap_or(NEVER);
            }
        }
        next
    }
}

/// What leaves first has the highest.
fn key(next: u32, position: usize) -> u64 {
    u64::from(next) << 32 | u64::from(u32::try_from(position).unwrap_or(u32::MAX))
}

/// A memory whose blocks' next uses are known.
struct Foreseen {
    /// Each block's key.
    keys: Vec<u64>,
    /// Candidates to leave; those whose key is another by now are passed over.
    heap: BinaryHeap<(u64, u32)>,
    len: usize,
    capacity: usize,
}

impl Foreseen {
    fn new(distinct: usize, capacity: usize) -> Foreseen {
        Foreseen { keys: vec![ABSENT; distinct], heap: BinaryHeap::new(), len: 0, capacity }
    }

    fn contains(&self, number: u32) -> bool {
        self.keys[number as usize] != ABSENT
    }

    fn use_or_store(&mut self, number: u32, key: u64) {
        if !self.contains(number) {
            if self.len == self.capacity && !self.make_room(key) {
                return;
            }
            self.len += 1;
        }
        self.keys[number as usize] = key;
        self.heap.push((key, number));
        if self.heap.len() > SWEEP_MIN.max(self.len * 2) {
            let keys = &self.keys;
            self.heap.retain(|(key, number)| keys[*number as usize] == *key);
        }
    }

    /// Lets go of what is used again last, unless that comes before `key`.
    fn make_room(&mut self, key: u64) -> bool {
        while let Some(&(last, number)) = self.heap.peek() {
            if self.keys[number as usize] != last {
                self.heap.pop();
                continue;
            }
            if last <= key {
                return false;
            }
            self.heap.pop();
            self.keys[number as usize] = ABSENT;
            self.len -= 1;
            return true;
        }
        false
    }
}

/// What `Opt` found, as a memory: give it the very requests that `Opt` took, one after the other.
pub struct Foretold {
    hits: std::vec::IntoIter<u32>,
    tier: Tier,
}

impl Foretold {
    /// The hits of each request that has blocks.
    pub fn new(hits: Vec<u32>, tier: Tier) -> Foretold {
        Foretold { hits: hits.into_iter(), tier }
    }

    fn found(&self, hits: u32) -> Found {
        let mut found = Found::default();
        found[self.tier as usize] = hits;
        found
    }
}

impl Memory for Foretold {
    fn peek(&self, _blocks: &[u32], _now_s: f64) -> Found {
        self.found(self.hits.as_slice().first().copied().unwrap_or(0))
    }

    fn serve(&mut self, _blocks: &[u32], _now_s: f64) -> Found {
        let hits = self.hits.next().unwrap_or(0);
        self.found(hits)
    }
}
