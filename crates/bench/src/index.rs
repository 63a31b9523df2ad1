//! Nanoseconds a key of the store's index: prompts drawn at random over a full table, each key
//! found, its use written to the policy and its lease state written, on one thread.

use keepwarm_store::index_probe::IndexProbe;
use keepwarm_store::types::BlockKey;
use rustix::time::{ClockId, clock_gettime};

/// Keys of one prompt.
pub const PROMPT_KEYS: usize = 512;

/// A full table, and the prompts that are in it.
pub struct Table {
    probe: IndexProbe,
    keys: Vec<BlockKey>,
    seed: u64,
}

impl Table {
    /// Fills a table: prompt after prompt, so that a prompt's entries lie beside each other, or all
    /// keys in random order, so that none do.
    pub fn new(entries: usize, is_shuffled: bool, seed: u64) -> Table {
        let entries = (entries / PROMPT_KEYS).max(1) * PROMPT_KEYS;
        let mut random = Random(seed);
        let keys: Vec<BlockKey> = (0..entries).map(|_| random.key()).collect();
        let mut order: Vec<u32> = (0..entries as u32).collect();
        if is_shuffled {
            for at in (1..entries).rev() {
                order.swap(at, random.below(at + 1));
            }
        }
        let mut probe = IndexProbe::new(entries as u32);
        order.iter().for_each(|at| probe.insert(keys[*at as usize]));
        Table { probe, keys, seed }
    }

    /// Bytes of the tables for each entry.
    pub fn bytes_an_entry(&self) -> f64 {
        self.probe.bytes() as f64 / self.keys.len() as f64
    }

    /// Looks up `keys` keys of prompts drawn at random; nanoseconds of CPU time a key. The prompts
    /// that one run leases the next one releases.
    ///
    /// # Panics
    /// A key is not found: the index has lost it.
    pub fn run(&mut self, run: u64, keys: usize) -> f64 {
        let mut random = Random(self.seed ^ (1 + run / 2));
        let prompts = self.keys.len() / PROMPT_KEYS;
        let count = (keys / PROMPT_KEYS).max(1);
        let chosen: Vec<usize> = (0..count).map(|_| random.below(prompts) * PROMPT_KEYS).collect();
        let (start, mut hits) = (thread_ns(), 0);
        for first in chosen {
            let prompt = &self.keys[first..first + PROMPT_KEYS];
            hits += self.probe.use_and_lease(prompt, run.is_multiple_of(2)) as usize;
        }
        let time = thread_ns() - start;
        assert_eq!(hits, count * PROMPT_KEYS, "every key is there");
        time as f64 / hits as f64
    }
}

/// The thread's own time, so that neighbours on a shared machine count as little as they can.
fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    fn key(&mut self) -> BlockKey {
        let bits = u128::from(self.next()) << 64 | u128::from(self.next());
        BlockKey(bits.to_le_bytes())
    }
}
