//! The fast replay against naive ones: lists that are searched from end to end, for each policy, on
//! drawn traces. Seeds are fixed; a failure names its seed.

mod common;

use std::collections::HashMap;

use common::drawn;
use keepwarm_sim::cache::{Cache, Touch};
use keepwarm_sim::opt::Opt;
use keepwarm_sim::order::OrderKind;

/// A policy as plainly as it can be written. Blocks in lists, the next to leave at the end.
trait Naive {
    fn contains(&self, block: u32) -> bool;
    fn touch(&mut self, block: u32);
    /// `since`: evictions since this block's own; none: it never made room.
    fn insert(&mut self, block: u32, since: Option<u32>);
    fn evict(&mut self) -> u32;
    fn len(&self) -> usize;
}

/// LRU, and FIFO where uses do not count.
struct Line {
    blocks: Vec<u32>,
    uses_count: bool,
}

impl Naive for Line {
    fn contains(&self, block: u32) -> bool {
        self.blocks.contains(&block)
    }

    fn touch(&mut self, block: u32) {
        if self.uses_count {
            self.blocks.retain(|each| *each != block);
            self.blocks.insert(0, block);
        }
    }

    fn insert(&mut self, block: u32, _since: Option<u32>) {
        self.blocks.insert(0, block);
    }

    fn evict(&mut self) -> u32 {
        self.blocks.pop().expect("a block")
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

#[derive(Default)]
struct Counts {
    /// Uses, and when the last one was.
    blocks: HashMap<u32, (u32, u64)>,
    clock: u64,
}

impl Naive for Counts {
    fn contains(&self, block: u32) -> bool {
        self.blocks.contains_key(&block)
    }

    fn touch(&mut self, block: u32) {
        self.clock += 1;
        let uses = self.blocks[&block].0 + 1;
        self.blocks.insert(block, (uses, self.clock));
    }

    fn insert(&mut self, block: u32, _since: Option<u32>) {
        self.clock += 1;
        self.blocks.insert(block, (1, self.clock));
    }

    fn evict(&mut self) -> u32 {
        let least = self.blocks.iter().min_by_key(|(_, uses)| **uses).expect("a block");
        let block = *least.0;
        self.blocks.remove(&block);
        block
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

/// S3-FIFO: a small queue and a main one, uses counted up to three.
#[derive(Default)]
struct TwoQueues {
    small: Vec<u32>,
    main: Vec<u32>,
    uses: HashMap<u32, u32>,
}

impl Naive for TwoQueues {
    fn contains(&self, block: u32) -> bool {
        self.small.contains(&block) || self.main.contains(&block)
    }

    fn touch(&mut self, block: u32) {
        let uses = self.uses.entry(block).or_default();
        *uses = (*uses + 1).min(3);
    }

    fn insert(&mut self, block: u32, since: Option<u32>) {
        let is_return = since.is_some_and(|since| since as usize <= self.len());
        self.uses.insert(block, 0);
        if is_return { self.main.insert(0, block) } else { self.small.insert(0, block) }
    }

    fn evict(&mut self) -> u32 {
        let mut looks = 0;
        loop {
            // Half of four looks for each block, and of four more: then uses count no longer.
            let is_patient = looks < (self.len() * 4 + 4) / 2;
            looks += 1;
            let is_small = self.main.is_empty()
                || (!self.small.is_empty() && self.small.len() * 10 >= self.len());
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let block = queue.pop().expect("a block");
            match (is_small, self.uses[&block]) {
                (true, 2..) if is_patient => {
                    self.uses.insert(block, 0);
                    self.main.insert(0, block);
                }
                (false, uses @ 1..) if is_patient => {
                    self.uses.insert(block, uses - 1);
                    self.main.insert(0, block);
                }
                _ => return block,
            }
        }
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }
}

/// The default's two lists and its clock. Shares are counted as the store does, in parts of 2^32.
#[derive(Default)]
struct TwoLists {
    probation: Vec<u32>,
    protected: Vec<u32>,
    stamps: HashMap<u32, u8>,
    clock: u8,
    came: usize,
    returns: u64,
}

impl TwoLists {
    fn learn(&mut self, is_return: bool) {
        let len = self.len().max(1) as u64;
        match is_return {
            true => self.returns += ((1 << 32) - self.returns) / len,
            false => self.returns -= self.returns / len,
        }
    }

    fn protected_max(&self) -> usize {
        let (least, most) = ((1u64 << 32) / 10, (1u64 << 32) / 20 * 7);
        let returns = (self.returns * 2).min(1 << 32) >> 16;
        let share = least + ((most - least) >> 16) * returns;
        ((self.len() as u64 * (share >> 16)) >> 16) as usize
    }
}

impl Naive for TwoLists {
    fn contains(&self, block: u32) -> bool {
        self.probation.contains(&block) || self.protected.contains(&block)
    }

    /// Each use is certain (a read): the block is protected, and last in turn to leave.
    fn touch(&mut self, block: u32) {
        self.probation.retain(|each| *each != block);
        self.protected.retain(|each| *each != block);
        // The stamp has four bits.
        if self.clock.wrapping_sub(self.stamps[&block]) % 16 >= 2 {
            self.learn(false);
        }
        self.protected.insert(0, block);
        self.stamps.insert(block, self.clock);
    }

    fn insert(&mut self, block: u32, since: Option<u32>) {
        self.came += 1;
        if self.came >= self.len() / 32 {
            (self.came, self.clock) = (0, self.clock.wrapping_add(1));
        }
        self.stamps.insert(block, self.clock);
        if since.is_some_and(|since| since as usize <= self.len() * 3 / 2) {
            self.learn(true);
            self.protected.insert(0, block);
        } else {
            self.probation.insert(0, block);
        }
    }

    fn evict(&mut self) -> u32 {
        while self.protected.len() > self.protected_max() {
            let block = self.protected.pop().expect("too many");
            self.probation.insert(0, block);
        }
        self.probation.pop().or_else(|| self.protected.pop()).expect("a block")
    }

    fn len(&self) -> usize {
        self.probation.len() + self.protected.len()
    }
}

fn naive(policy: &str) -> Box<dyn Naive> {
    match policy {
        "lru" => Box::new(Line { blocks: Vec::new(), uses_count: true }),
        "fifo" => Box::new(Line { blocks: Vec::new(), uses_count: false }),
        "lfu" => Box::<Counts>::default(),
        "s3fifo" => Box::<TwoQueues>::default(),
        "adaptive" => Box::<TwoLists>::default(),
        policy => panic!("no naive {policy}"),
    }
}

fn naive_hits(requests: &[Vec<u32>], policy: &str, capacity: usize, touch: Touch) -> Vec<u32> {
    let mut memory = naive(policy);
    let (mut left, mut evictions): (HashMap<u32, u32>, u32) = (HashMap::new(), 0);
    let mut use_or_store = |memory: &mut dyn Naive, block: u32| {
        if memory.contains(block) {
            return memory.touch(block);
        }
        if memory.len() == capacity {
            evictions += 1;
            left.insert(memory.evict(), evictions);
        }
        let since = left.remove(&block).map(|at| evictions - at);
        memory.insert(block, since);
    };
    let hits = |blocks: &Vec<u32>| {
        let hits = blocks.iter().take_while(|block| memory.contains(**block)).count() as u32;
        match touch {
            Touch::TailFirst => blocks.iter().rev().for_each(|b| use_or_store(&mut *memory, *b)),
            Touch::HeadFirst => blocks.iter().for_each(|b| use_or_store(&mut *memory, *b)),
        }
        hits
    };
    requests.iter().map(hits).collect()
}

#[test]
fn every_policy_is_what_a_naive_one_is() {
    for seed in 1..=8u64 {
        let requests = drawn(seed, 700, 12);
        for policy in OrderKind::names() {
            for (capacity, touch) in
                [(1, Touch::TailFirst), (7, Touch::HeadFirst), (60, Touch::TailFirst)]
            {
                let kind = OrderKind::named(policy).expect("a policy");
                let mut cache = Cache::new(kind, Some(capacity));
                let fast: Vec<u32> = requests.iter().map(|each| cache.serve(each, touch)).collect();
                let slow = naive_hits(&requests, policy, capacity as usize, touch);
                assert_eq!(fast, slow, "seed {seed}: {policy} of {capacity}, {touch:?}");
                assert!(cache.len() <= capacity);
            }
        }
    }
}

/// Looks through everything that is here, and through all that comes.
fn naive_opt(requests: &[Vec<u32>], capacity: usize) -> Vec<u32> {
    let mut here: HashMap<u32, (usize, usize)> = HashMap::new();
    let mut hits = Vec::new();
    for (at, blocks) in requests.iter().enumerate() {
        hits.push(blocks.iter().take_while(|block| here.contains_key(block)).count() as u32);
        for (position, block) in blocks.iter().enumerate() {
            let later = requests[at + 1..].iter().position(|each| each.contains(block));
            let key = (later.map_or(usize::MAX, |later| at + 1 + later), position);
            if !here.contains_key(block) && here.len() == capacity {
                let (last, last_key) = here.iter().max_by_key(|(_, key)| **key).expect("a block");
                let (last, last_key) = (*last, *last_key);
                if last_key <= key {
                    continue;
                }
                here.remove(&last);
            }
            here.insert(*block, key);
        }
    }
    hits
}

#[test]
fn opt_is_what_a_naive_one_is_and_beats_every_policy() {
    for seed in 1..=6u64 {
        let requests = drawn(seed, 250, 10);
        let mut opt = Opt::default();
        requests.iter().for_each(|blocks| opt.push(blocks));
        for capacity in [1, 5, 40] {
            let hits = opt.run(capacity);
            // Which of two never used again leaves first may differ; how many hit may not.
            let sum = |hits: &[u32]| hits.iter().sum::<u32>();
            assert_eq!(
                sum(&hits),
                sum(&naive_opt(&requests, capacity as usize)),
                "seed {seed}, {capacity} blocks"
            );
            for policy in OrderKind::names() {
                let mut cache = Cache::new(OrderKind::named(policy).unwrap(), Some(capacity));
                let serve = |each: &Vec<u32>| cache.serve(each, Touch::TailFirst);
                let others: u32 = requests.iter().map(serve).sum();
                assert!(sum(&hits) >= others, "seed {seed}: {policy} of {capacity} hits more");
            }
        }
    }
}
