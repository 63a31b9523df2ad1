//! Which granules are free, and where the next run of n free ones is: a bitmap, cut into chunks,
//! under a tree that knows the longest free run of every subtree.
//!
//! Every change costs one summary a chunk touched and one tree node a level: O(log granules).

/// Granules a chunk: 2 MiB of arena, one cache line of bitmap.
pub(super) const CHUNK: u32 = 512;
const WORDS: usize = CHUNK as usize / 64;

/// The free runs of a subtree, as far as its parent needs to know them.
#[derive(Clone, Copy, Default, PartialEq)]
struct Node {
    /// Free granules at the left end.
    prefix: u32,
    /// Free granules at the right end.
    suffix: u32,
    /// The longest free run.
    best: u32,
}

/// The set of free granules.
pub(super) struct Runs {
    /// One bit a granule, 1 = free.
    bits: Vec<[u64; WORDS]>,
    /// Free granules of each chunk.
    free: Vec<u16>,
    /// A binary heap: node 1 is the root, leaf c is node `leaves + c`.
    nodes: Vec<Node>,
    leaves: usize,
}

impl Runs {
    /// All of `granules` taken.
    pub(super) fn new(granules: u32) -> Runs {
        let chunks = granules.div_ceil(CHUNK) as usize;
        let leaves = chunks.next_power_of_two();
        Runs {
            bits: vec![[0; WORDS]; chunks],
            free: vec![0; chunks],
            nodes: vec![Node::default(); 2 * leaves],
            leaves,
        }
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of_val(&self.bits[..]) + size_of_val(&self.free[..]) + size_of_val(&self.nodes[..])
    }

    /// The longest free run.
    pub(super) fn longest(&self) -> u32 {
        self.nodes[1].best
    }

    /// Free granules of each chunk.
    pub(super) fn free_by_chunk(&self) -> &[u16] {
        &self.free
    }

    pub(super) fn is_free(&self, granule: u32) -> bool {
        let bit = granule % CHUNK;
        let word = self.bits[(granule / CHUNK) as usize][(bit / 64) as usize];
        word >> (bit % 64) & 1 == 1
    }

    /// Marks granules free. In debug builds panics if one of them already is.
    pub(super) fn put(&mut self, first: u32, granules: u32) {
        self.change(first, granules, |word, mask| {
            debug_assert_eq!(*word & mask, 0, "granules {first} + {granules} freed twice");
            *word |= mask;
        });
    }

    /// Marks granules taken. In debug builds panics if one of them already is.
    pub(super) fn take(&mut self, first: u32, granules: u32) {
        self.change(first, granules, |word, mask| {
            debug_assert_eq!(*word & mask, mask, "granules {first} + {granules} taken twice");
            *word &= !mask;
        });
    }

    /// The lowest place where `granules` in a row are free.
    pub(super) fn lowest(&self, granules: u32) -> Option<u32> {
        if granules == 0 || self.nodes[1].best < granules {
            return None;
        }
        let (mut node, mut first, mut span) = (1, 0, self.leaves as u32 * CHUNK);
        while node < self.leaves {
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            span /= 2;
            if left.best >= granules {
                node *= 2;
            } else if left.suffix + right.prefix >= granules {
                return Some(first + span - left.suffix);
            } else {
                node = 2 * node + 1;
                first += span;
            }
        }
        let bits = &self.bits[node - self.leaves];
        let (start, _) = each_run(bits).find(|&(_, length)| length >= granules)?;
        Some(first + start)
    }

    /// The highest place where `granules` in a row are free.
    pub(super) fn highest(&self, granules: u32) -> Option<u32> {
        if granules == 0 || self.nodes[1].best < granules {
            return None;
        }
        let (mut node, mut first, mut span) = (1, 0, self.leaves as u32 * CHUNK);
        while node < self.leaves {
            let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
            span /= 2;
            if right.best >= granules {
                node = 2 * node + 1;
                first += span;
            } else if left.suffix + right.prefix >= granules {
                return Some(first + span + right.prefix - granules);
            } else {
                node *= 2;
            }
        }
        let bits = &self.bits[node - self.leaves];
        let (start, length) = each_run(bits).filter(|&(_, length)| length >= granules).last()?;
        Some(first + start + length - granules)
    }

    /// How many granules from `granule` on are free in a row, counted up to `limit`.
    pub(super) fn free_from(&self, granule: u32, limit: u32) -> u32 {
        self.alike_from(granule, limit, u64::MAX)
    }

    /// How many granules from `granule` on are taken in a row, counted up to `limit`.
    pub(super) fn taken_from(&self, granule: u32, limit: u32) -> u32 {
        self.alike_from(granule, limit, 0)
    }

    fn alike_from(&self, granule: u32, limit: u32, flip: u64) -> u32 {
        let mut at = granule;
        while at < granule + limit {
            let chunk = at / CHUNK;
            if let Some(end) = scan(&self.bits[chunk as usize], at % CHUNK, flip) {
                return (chunk * CHUNK + end - granule).min(limit);
            }
            at = (chunk + 1) * CHUNK;
        }
        limit
    }

    fn change(&mut self, first: u32, granules: u32, apply: impl Fn(&mut u64, u64)) {
        let end = first + granules;
        let mut at = first;
        while at < end {
            let bit = at % 64;
            let count = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - count)) << bit;
            apply(&mut self.bits[(at / CHUNK) as usize][(at % CHUNK / 64) as usize], mask);
            at += count;
        }
        self.summarise((first / CHUNK) as usize, ((end - 1) / CHUNK) as usize);
    }

    /// Brings the tree up to date over the chunks `low..=high`.
    fn summarise(&mut self, low: usize, high: usize) {
        for chunk in low..=high {
            let (node, free) = leaf(&self.bits[chunk]);
            self.nodes[self.leaves + chunk] = node;
            self.free[chunk] = free;
        }
        let (mut low, mut high) = (self.leaves + low, self.leaves + high);
        let mut span = CHUNK;
        while low > 1 {
            (low, high) = (low / 2, high / 2);
            let mut changed = false;
            for node in low..=high {
                let joined = join(self.nodes[2 * node], self.nodes[2 * node + 1], span);
                changed |= joined != self.nodes[node];
                self.nodes[node] = joined;
            }
            if !changed {
                return;
            }
            span *= 2;
        }
    }

    /// Recomputes every summary from the bitmap; for `Allocator::check`.
    pub(super) fn check(&self) -> Result<u64, String> {
        let mut total = 0;
        for (chunk, bits) in self.bits.iter().enumerate() {
            let (node, free) = leaf(bits);
            let kept = self.nodes[self.leaves + chunk];
            if node == kept && free == self.free[chunk] {
                total += u64::from(free);
            } else {
                return Err(format!("summary of chunk {chunk} disagrees with its bitmap"));
            }
        }
        for node in (1..self.leaves).rev() {
            let span = CHUNK << (self.leaves.ilog2() - node.ilog2() - 1);
            let expected = join(self.nodes[2 * node], self.nodes[2 * node + 1], span);
            if expected != self.nodes[node] {
                return Err(format!("tree node {node} disagrees with its children"));
            }
        }
        Ok(total)
    }
}

/// The parent of two subtrees of `span` granules each.
fn join(left: Node, right: Node, span: u32) -> Node {
    Node {
        prefix: if left.prefix == span { span + right.prefix } else { left.prefix },
        suffix: if right.suffix == span { span + left.suffix } else { right.suffix },
        best: left.best.max(right.best).max(left.suffix + right.prefix),
    }
}

fn leaf(bits: &[u64; WORDS]) -> (Node, u16) {
    let mut node = Node::default();
    let mut free = 0;
    for (start, length) in each_run(bits) {
        free += length as u16;
        node.best = node.best.max(length);
        if start == 0 {
            node.prefix = length;
        }
        if start + length == CHUNK {
            node.suffix = length;
        }
    }
    (node, free)
}

/// The free runs of a chunk, lowest first, as (first granule, length).
fn each_run(bits: &[u64; WORDS]) -> impl Iterator<Item = (u32, u32)> + '_ {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = scan(bits, at, 0)?;
        let end = scan(bits, start, u64::MAX).unwrap_or(CHUNK);
        at = end;
        Some((start, end - start))
    })
}

/// The first bit at or after `from` that is 1 after exclusive-or with `flip`.
fn scan(bits: &[u64; WORDS], from: u32, flip: u64) -> Option<u32> {
    let mut mask = u64::MAX << (from % 64);
    for (at, word) in bits.iter().enumerate().skip((from / 64) as usize) {
        let found = (word ^ flip) & mask;
        if found != 0 {
            return Some(at as u32 * 64 + found.trailing_zeros());
        }
        mask = u64::MAX;
    }
    None
}
