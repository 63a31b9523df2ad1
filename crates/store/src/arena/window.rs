//! Which stretch of the arena to empty when enough is free but too scattered.

use super::runs::CHUNK;
use super::{Allocator, EXTENTS_MAX, Extent, Extents};

/// Below this share of the arena free (1/32) it is cheaper to evict one block more than to move
/// others about.
const SLACK_SHARE: u32 = 32;
/// Only owners of at most this share of what is wanted (1/4) are moved.
const MOVABLE_SHARE: u32 = 4;
/// How many of the emptiest regions are looked at granule by granule.
const CANDIDATES: usize = 8;

/// How many runs of granules [`Allocator::could_fit`] looks at.
const RUNS_MAX: u32 = 32_768;

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
    /// `None` if it is pinned; it is asked several times and must not change its mind meanwhile.
    /// Owners above a quarter of `granules` are left where they are.
    /// Places without an owner count as pinned. Where no long window is free of pinned blocks the
    /// answer is one for an eighth of what is wanted: `alloc` may have to fail and this be asked up
    /// to eight times.
    ///
    /// Looks once at each chunk of 2 MiB and then closely at a few; takes O(arena / 2 MiB +
    /// granules). Does not allocate.
    pub fn window_to_clear(
        &mut self,
        granules: u32,
        move_cost: impl Fn(u32) -> Option<u32>,
    ) -> Option<Window> {
        let enough = granules.max(self.granules() / SLACK_SHARE);
        if granules == 0 || self.free_granules() < enough || self.held().is_some() {
            return None;
        }
        let free = self.free_granules();
        if self.barren.contains(&free) {
            return None;
        }
        // What is nearly as large as the block that found no place would find none either.
        let cost_of =
            |owner: u32| move_cost(owner).filter(|&cost| cost <= granules / MOVABLE_SHARE);
        let found =
            self.one_window(granules, &cost_of).or_else(|| self.one_of_eight(granules, &cost_of));
        // A search in vain is not repeated after each of the evictions that follow.
        let retry = if found.is_some() { 0 } else { granules / EXTENTS_MAX as u32 };
        self.barren = free..free + retry;
        found
    }

    /// Whether `granules` could lie in few enough pieces if all that `may_leave` left. Looks at a
    /// bounded number of runs, and says yes where those do not tell.
    pub fn could_fit(&self, granules: u32, may_leave: impl Fn(u32) -> bool) -> bool {
        // The longest runs so far, apart from the one at `at`.
        let mut longest = [0u32; EXTENTS_MAX];
        let (mut at, mut run) = (0, 0u32);
        for _ in 0..RUNS_MAX {
            if at >= self.granules() {
                return false;
            }
            let (end, occupant) = self.run_at(at, self.granules().min(at + granules));
            let stays = match occupant {
                Occupant::Nobody => false,
                Occupant::Owner(owner) => !may_leave(owner),
                Occupant::Unknown => true,
            };
            if stays {
                let shortest = longest.iter_mut().min().expect("eight of them");
                *shortest = run.max(*shortest);
                run = 0;
            } else {
                run += end - at;
                let shortest = longest.iter().min().expect("eight of them");
                let sum: u32 = longest.iter().sum();
                if sum - shortest + run >= granules {
                    return true;
                }
            }
            at = end;
        }
        true
    }

    /// All extents but one from the longest free runs, the last one from the window.
    fn one_window(
        &mut self,
        granules: u32,
        move_cost: &impl Fn(u32) -> Option<u32>,
    ) -> Option<Window> {
        let mut aside = Extents::default();
        let mut missing = granules;
        for _ in 0..EXTENTS_MAX - 1 {
            let length = self.runs.longest().min(missing - 1);
            if !self.set_aside(length, &mut aside) {
                break;
            }
            missing -= length;
        }
        self.cheapest_beside(missing, aside, move_cost)
    }

    /// Where pinned blocks are everywhere, no long window is without one. Every extent of an eighth
    /// serves; the caller's loop comes back until there are eight.
    fn one_of_eight(
        &mut self,
        granules: u32,
        move_cost: &impl Fn(u32) -> Option<u32>,
    ) -> Option<Window> {
        let eighth = granules.div_ceil(EXTENTS_MAX as u32);
        let mut aside = Extents::default();
        while aside.len() < EXTENTS_MAX - 1 && self.set_aside(eighth, &mut aside) {}
        self.cheapest_beside(eighth, aside, move_cost)
    }

    fn set_aside(&mut self, granules: u32, aside: &mut Extents) -> bool {
        let Some(first_granule) = self.runs.lowest(granules) else { return false };
        let extent = Extent { first_granule, granules };
        self.take(extent);
        aside.push(extent)
    }

    /// The cheapest window apart from the runs set aside, which are given back.
    fn cheapest_beside(
        &mut self,
        granules: u32,
        aside: Extents,
        move_cost: &impl Fn(u32) -> Option<u32>,
    ) -> Option<Window> {
        let found = self.cheapest(granules, move_cost);
        let outside = found.map_or(0, |window| self.free_granules() - self.free_in(window));
        self.free(&aside);
        found
            .filter(|window| window.cost <= granules.saturating_mul(2).min(outside))
            .map(|window| Window { aside, ..window })
    }

    fn cheapest(&self, granules: u32, move_cost: &impl Fn(u32) -> Option<u32>) -> Option<Window> {
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
            // Ordered, emptiest first; most regions end here.
            if sum <= top[CANDIDATES - 1].map_or(0, |(kept, _)| kept) {
                continue;
            }
            // Of regions that overlap, the emptiest stays.
            let overlaps = |&(_, at): &(u32, usize)| at + span > first;
            if top.iter().flatten().any(|kept| overlaps(kept) && kept.0 >= sum) {
                continue;
            }
            for kept in &mut top {
                *kept = kept.filter(|kept| !overlaps(kept));
            }
            top.sort_unstable_by_key(|kept| std::cmp::Reverse(*kept));
            if let Some(rank) = top.iter().position(|kept| kept.is_none_or(|kept| kept.0 < sum)) {
                top[rank..].rotate_right(1);
                top[rank] = Some((sum, first));
            }
        }
        top.into_iter().flatten().map(|(_, first)| first)
    }

    /// The cheapest window of `granules` within `low..high` that begins where a run of free
    /// granules or of one owner begins, by two cursors a window apart.
    fn slide(
        &self,
        low: u32,
        high: u32,
        granules: u32,
        move_cost: &impl Fn(u32) -> Option<u32>,
    ) -> Option<Window> {
        let mut best: Option<Window> = None;
        // The window begins at `tail`; `cost` sums the runs of `tail..head`, which reach to its
        // end or beyond. An owner with two runs in it counts twice.
        let (mut tail, mut head, mut cost) = (low, low, 0u32);
        while tail + granules <= high {
            if head < tail + granules {
                let (end, occupant) = self.run_at(head, high);
                match run_cost(occupant, move_cost) {
                    Some(more) => cost = cost.saturating_add(more),
                    None => (tail, cost) = (end, 0),
                }
                head = end;
                continue;
            }
            if best.is_none_or(|best| cost < best.cost) {
                let aside = Extents::default();
                best = Some(Window { first_granule: tail, granules, cost, aside });
            }
            let (end, occupant) = self.run_at(tail, high);
            cost = cost.saturating_sub(run_cost(occupant, move_cost).unwrap_or(0));
            tail = end;
        }
        best
    }

    fn free_in(&self, window: Window) -> u32 {
        let (mut at, mut free) = (window.first_granule, 0);
        while at < window.end() {
            let run = self.runs.free_from(at, window.end() - at);
            free += run;
            at += run;
            at += self.runs.taken_from(at, window.end() - at);
        }
        free
    }

    /// Where the run at `granule` ends, and who has it.
    fn run_at(&self, granule: u32, high: u32) -> (u32, Occupant) {
        if self.runs.is_free(granule) {
            return (granule + self.runs.free_from(granule, high - granule), Occupant::Nobody);
        }
        let end = self.owner_run_end(granule, high);
        (end, self.owner_of(granule).map_or(Occupant::Unknown, Occupant::Owner))
    }
}

#[derive(Clone, Copy)]
enum Occupant {
    Nobody,
    Owner(u32),
    Unknown,
}

fn run_cost(occupant: Occupant, move_cost: &impl Fn(u32) -> Option<u32>) -> Option<u32> {
    match occupant {
        Occupant::Nobody => Some(0),
        Occupant::Owner(owner) => move_cost(owner),
        Occupant::Unknown => None,
    }
}
