//! Hands out granules. Numbers only: no pointers, no allocation after `new`, no lock (the store's).

use std::ops::Range;

use super::runs::Runs;
use super::window::Window;
use super::{EXTENTS_MAX, Extent, Extents};

/// Blocks from here up (1 MiB) are placed from the arena's high end, smaller ones from the low
/// end. Holes left by small blocks are then refilled by small blocks, and the stretches that large
/// ones need are not salted with small ones that live longer.
const LARGE_GRANULES: u32 = 256;
/// What [`Allocator::owner`] holds for granules that nobody may move.
const UNOWNED: u32 = u32::MAX;
/// The same for free granules of the window being cleared.
const HELD: u32 = u32::MAX - 1;
/// Owners are below this.
const OWNER_MAX: u32 = HELD;

/// Which granules are free, and who owns the others.
///
/// Metadata is 4.3 bytes a granule, all of it allocated by [`Allocator::new`]: an owner (4 B), a
/// bit, and the tree of `runs.rs`. `alloc` and `free` take O(extents × log granules).
///
/// # Room, from the store's side
/// ```text
/// loop {
///     if let Some(extents) = allocator.alloc(n) { break extents }
///     match allocator.window_to_clear(n, move_cost) {
///         Some(window) => clear(window),                    // as below
///         None => evict the next block, or shed the put if there is none
///     }
/// }
/// ```
/// Clearing a window: [`hold`](Allocator::hold) it; for each [`next_owner`](Allocator::next_owner)
/// in it `alloc` a new place (never inside a held window), copy the bytes, [`set_owner`], `free`
/// the old place (what lies in the window stays held); where there is no place, give up and evict
/// the next block of the eviction order; at the end [`release`](Allocator::release). Whoever reads
/// a block by offset must learn of the move: bump its generation before the old place is freed.
///
/// [`set_owner`]: Allocator::set_owner
///
/// # Waste
/// **Waste** is the share of the arena that is free at the moment when a block is evicted to make
/// room: space that existed and could not be given to the block that wanted it. With the loop
/// above it stays below 3 % for blocks of one size from 128 KiB, and below 12 % for any stationary
/// mix of 64 KiB to 16 MiB, whatever the eviction order; after the mix shifts it is back below
/// 12 % before twice the arena's bytes have been written. `tests/waste.rs` holds it. (Rounding a
/// block up to whole granules comes on top: at most 4,095 B a block.)
pub struct Allocator {
    pub(super) runs: Runs,
    /// Who owns a taken granule; stale for free ones.
    owner: Vec<u32>,
    free: u32,
    window: Option<Window>,
    /// Free granules inside `window`; not in `free`.
    held: u32,
    /// While `free` is in here, a search for a window would most likely be in vain.
    pub(super) barren: Range<u32>,
}

impl Allocator {
    /// The largest arena: 2^31 granules, 8 TiB.
    pub const GRANULES_MAX: u32 = 1 << 31;

    /// All granules free.
    ///
    /// # Panics
    /// If `granules` is zero or above [`Allocator::GRANULES_MAX`]; `Arena::create` refuses such
    /// sizes with an error.
    pub fn new(granules: u32) -> Allocator {
        assert!((1..=Self::GRANULES_MAX).contains(&granules), "{granules} granules");
        let mut runs = Runs::new(granules);
        runs.put(0, granules);
        let owner = vec![UNOWNED; granules as usize];
        Allocator { runs, owner, free: granules, window: None, held: 0, barren: 0..0 }
    }

    /// All granules, free or not.
    pub fn granules(&self) -> u32 {
        self.owner.len() as u32
    }

    /// Granules that `alloc` could hand out if they lay well; those of a held window do not count.
    pub fn free_granules(&self) -> u32 {
        self.free
    }

    /// Bytes of bookkeeping, fixed at the start.
    pub fn metadata_bytes(&self) -> usize {
        size_of_val(&self.owner[..]) + self.runs.metadata_bytes()
    }

    /// Takes `granules` in as few extents as it can, one if there is a run that long. `None`: not
    /// enough free, or too scattered for [`EXTENTS_MAX`] pieces, or `granules` is zero.
    ///
    /// The new place has no owner: it is not moved until [`Allocator::set_owner`] names one.
    pub fn alloc(&mut self, granules: u32) -> Option<Extents> {
        if granules == 0 || granules > self.free {
            return None;
        }
        let mut extents = Extents::default();
        let mut missing = granules;
        while missing > 0 {
            let length = missing.min(self.runs.longest());
            let place = if granules >= LARGE_GRANULES {
                self.runs.highest(length)
            } else {
                self.runs.lowest(length)
            };
            let extent = place.map(|first_granule| Extent { first_granule, granules: length });
            match extent {
                Some(extent) if extents.push(extent) => self.take(extent),
                _ => {
                    self.free(&extents);
                    return None;
                }
            }
            missing -= length;
        }
        debug_assert!(extents.len() <= EXTENTS_MAX);
        Some(extents)
    }

    /// Gives the extents of one `alloc` back; free neighbours become one run.
    ///
    /// # Panics
    /// In debug builds, if a granule of them is already free.
    pub fn free(&mut self, extents: &Extents) {
        for extent in extents.iter() {
            let Some(window) = self.window else {
                self.give(extent.first_granule, extent.end());
                continue;
            };
            let (low, high) = (window.first_granule, window.end());
            self.give(extent.first_granule, extent.end().min(low));
            self.give(extent.first_granule.max(high), extent.end());
            for granule in extent.first_granule.max(low)..extent.end().min(high) {
                debug_assert!(!self.runs.is_free(granule), "granule {granule} freed twice");
                debug_assert_ne!(self.owner[granule as usize], HELD, "{granule} freed twice");
                self.owner[granule as usize] = HELD;
                self.held += 1;
            }
        }
    }

    /// Names who owns a place, so that [`Allocator::window_to_clear`] may ask what moving it costs
    /// and [`Allocator::next_owner`] may name it. `None`: nobody may move it.
    ///
    /// # Panics
    /// If the number is one of the two largest of a `u32`.
    pub fn set_owner(&mut self, extents: &Extents, owner: Option<u32>) {
        assert!(owner.is_none_or(|owner| owner < OWNER_MAX), "owner {owner:?} is reserved");
        for extent in extents.iter() {
            debug_assert!(!self.runs.is_free(extent.first_granule), "{extent:?} is free");
            let range = extent.first_granule as usize..extent.end() as usize;
            self.owner[range].fill(owner.unwrap_or(UNOWNED));
        }
    }

    /// Keeps the window's free granules, and what is freed in it from now on, out of `alloc`'s
    /// reach until [`Allocator::release`].
    ///
    /// # Panics
    /// If another window is held.
    pub fn hold(&mut self, window: Window) {
        assert!(self.window.is_none(), "a window is being cleared already");
        for extent in window.aside.iter() {
            self.take(extent);
        }
        let mut at = window.first_granule;
        while at < window.end() {
            let free = self.runs.free_from(at, window.end() - at);
            if free > 0 {
                self.take(Extent { first_granule: at, granules: free });
                self.owner[at as usize..(at + free) as usize].fill(HELD);
                self.held += free;
            }
            at += free.max(1);
        }
        self.window = Some(window);
    }

    /// Lets go of the held window: what is empty in it is free again. If something is left in it,
    /// the next search waits until a little more is free.
    pub fn release(&mut self) {
        let Some(window) = self.window.take() else { return };
        self.free(&window.aside);
        let (mut at, mut emptied) = (window.first_granule, 0);
        while at < window.end() {
            let rest = &self.owner[at as usize..window.end() as usize];
            let empty = rest.iter().take_while(|&&owner| owner == HELD).count() as u32;
            self.give(at, at + empty);
            at += empty.max(1);
            emptied += empty;
        }
        self.held = 0;
        if emptied < window.granules {
            self.barren = self.free..self.free + window.granules / EXTENTS_MAX as u32;
        }
    }

    /// The window being cleared.
    pub fn held(&self) -> Option<Window> {
        self.window
    }

    /// The owner of the first taken granule of `window` at or after `from`, and the granule to go
    /// on from. Places without an owner are passed over.
    pub fn next_owner(&self, window: Window, from: u32) -> Option<(u32, u32)> {
        (from.max(window.first_granule)..window.end())
            .find_map(|granule| self.owner_of(granule).map(|owner| (owner, granule + 1)))
    }

    /// The owner of a granule, if it is taken and has one.
    pub fn owner_of(&self, granule: u32) -> Option<u32> {
        let owner = self.owner[granule as usize];
        (owner < OWNER_MAX && !self.runs.is_free(granule)).then_some(owner)
    }

    /// Where the run of granules with the owner of `granule` ends: at `high`, at a free granule
    /// or at another owner.
    pub(super) fn owner_run_end(&self, granule: u32, high: u32) -> u32 {
        let owner = self.owner[granule as usize];
        let rest = &self.owner[granule as usize..high as usize];
        let same = rest.iter().take_while(|&&other| other == owner).count() as u32;
        // Free granules keep stale owners; a run may end at one.
        granule + self.runs.taken_from(granule, same)
    }

    /// Compares every count and summary with the bitmap they were made from.
    ///
    /// # Errors
    /// Names the first disagreement.
    pub fn check(&self) -> Result<(), String> {
        let free = self.runs.check()?;
        if free != u64::from(self.free) {
            return Err(format!("{free} granules are free, but {} were counted", self.free));
        }
        let held = self.window.map_or(0, |window| {
            let range = window.first_granule..window.end();
            range.filter(|&granule| self.owner[granule as usize] == HELD).count()
        });
        if held != self.held as usize {
            return Err(format!("{held} granules are held, but {} were counted", self.held));
        }
        Ok(())
    }

    pub(super) fn take(&mut self, extent: Extent) {
        self.runs.take(extent.first_granule, extent.granules);
        self.owner[extent.first_granule as usize..extent.end() as usize].fill(UNOWNED);
        self.free -= extent.granules;
    }

    fn give(&mut self, first: u32, end: u32) {
        if first < end {
            self.runs.put(first, end - first);
            self.free += end - first;
        }
    }
}
