//! Which stretch of the arena to empty when enough is free but too scattered.

use super::runs::CHUNK;
use super::{Allocator, EXTENTS_MAX, Extent, Extents};

/// Below this share of the arena free (1/32) it is cheaper to evict one block more than to move
/// others about.
const SLACK_SHARE: u32 = 32;
/// How many of the emptiest regions are looked at granule by granule.
const CANDIDATES: usize = 8;

/// A stretch of granules to empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Its first granule.
    pub first_granule: u32,
    /// Its length.
    pub granules: u32,
    /// What the owners in it cost to move, as `move_cost` said: granules to copy.
    pub cost: u32,
    /// Runs that are free already and, with the window, make up what is wanted; held with it, so
    /// that no block moved out of the window lands in them.
    pub(super) aside: Extents,
}

impl Window {
    /// One past the last granule.
    pub fn end(self) -> u32 {
        self.first_granule + self.granules
    }
}

impl Allocator {
    /// After `alloc(granules)` failed: the cheapest window that, once empty, lets it succeed.
    /// `None`: evict instead (too little is free, or what is in the way is pinned, or moving would
    /// cost more than twice what is wanted).
    ///
    /// `move_cost(owner)` says how many granules moving that owner copies (all of its extents), or
    /// `None` if it is pinned. Places without an owner count as pinned.
    ///
    /// Looks once at each chunk of 2 MiB and then closely at a few; takes O(arena / 2 MiB +
    /// granules). Does not allocate.
    pub fn window_to_clear(
        &mut self,
        granules: u32,
        mut move_cost: impl FnMut(u32) -> Option<u32>,
    ) -> Option<Window> {
        let enough = granules.max(self.granules() / SLACK_SHARE);
        if granules == 0 || self.free_granules() < enough || self.held().is_some() {
            return None;
        }
        // All but one of the extents may come from runs that exist; they are set aside, so that
        // the window is looked for elsewhere.
        let mut aside = Extents::default();
        let mut missing = granules;
        for _ in 0..EXTENTS_MAX - 1 {
            let length = self.runs.longest().min(missing - 1);
            let Some(first_granule) = self.runs.lowest(length) else { break };
            let extent = Extent { first_granule, granules: length };
            self.take(extent);
            aside.push(extent);
            missing -= length;
        }
        let found = self.cheapest(missing, &mut move_cost);
        self.free(&aside);
        found
            .filter(|window| window.cost <= granules.saturating_mul(2))
            .map(|window| Window { aside, ..window })
    }

    fn cheapest(
        &self,
        granules: u32,
        move_cost: &mut impl FnMut(u32) -> Option<u32>,
    ) -> Option<Window> {
        let chunks = self.runs.free_by_chunk().len();
        let span = ((granules.div_ceil(CHUNK) + 1) as usize).min(chunks);
        let mut best: Option<Window> = None;
        for first in self.emptiest(span) {
            let low = first as u32 * CHUNK;
            let high = (low + span as u32 * CHUNK).min(self.granules());
            let found = self.slide(low, high, granules, move_cost);
            if let Some(window) = found
                && best.is_none_or(|best| window.cost < best.cost)
            {
                best = Some(window);
            }
        }
        best
    }

    /// The first chunks of the regions of `span` chunks with the most free granules.
    fn emptiest(&self, span: usize) -> impl Iterator<Item = usize> {
        let free = self.runs.free_by_chunk();
        let mut top: [Option<(u32, usize)>; CANDIDATES] = [None; CANDIDATES];
        let mut sum: u32 = free[..span].iter().map(|&free| u32::from(free)).sum();
        for first in 0..=free.len() - span {
            if first > 0 {
                sum += u32::from(free[first + span - 1]);
                sum -= u32::from(free[first - 1]);
            }
            // Ordered, emptiest first; a region that overlaps a better one brings nothing new.
            let rank = top.iter().position(|kept| kept.is_none_or(|(kept, _)| kept < sum));
            let overlaps = |kept: &Option<(u32, usize)>| {
                kept.is_some_and(|(kept, at)| kept >= sum && at + span > first)
            };
            if let Some(rank) = rank
                && !top.iter().any(overlaps)
            {
                top[rank..].rotate_right(1);
                top[rank] = Some((sum, first));
            }
        }
        top.into_iter().flatten().map(|(_, first)| first)
    }

    /// The cheapest window of `granules` within `low..high`, by two cursors a window apart.
    fn slide(
        &self,
        low: u32,
        high: u32,
        granules: u32,
        move_cost: &mut impl FnMut(u32) -> Option<u32>,
    ) -> Option<Window> {
        let mut best: Option<Window> = None;
        // The window is `tail..head`; `cost` sums its owners, each neighbouring run of one owner
        // once. A pinned granule restarts the window behind it.
        let (mut tail, mut cost) = (low, 0u32);
        let mut head = low;
        while head < high {
            if self.runs.is_free(head) {
                head += 1;
            } else if let Some(owner) = self.owner_of(head) {
                let entering = head == tail || self.owner_of(head - 1) != Some(owner);
                match move_cost(owner) {
                    Some(more) if entering => cost = cost.saturating_add(more),
                    Some(_) => {}
                    None => (tail, cost) = (head + 1, 0),
                }
                head += 1;
            } else {
                head += 1;
                (tail, cost) = (head, 0);
            }
            if head - tail < granules {
                continue;
            }
            if best.is_none_or(|best| cost < best.cost) {
                best =
                    Some(Window { first_granule: tail, granules, cost, aside: Extents::default() });
            }
            let leaving = self.owner_of(tail);
            tail += 1;
            if let Some(owner) = leaving
                && (tail == head || self.owner_of(tail) != Some(owner))
            {
                cost = cost.saturating_sub(move_cost(owner).unwrap_or(0));
            }
        }
        best
    }
}
