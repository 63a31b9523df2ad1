//! A store without bytes: an allocator, an eviction order, blocks that come and go.

use super::super::{Allocator, Extents, Window};
use crate::checksum::tests::Random;

/// What is evicted next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Order {
    /// The oldest.
    Fifo,
    /// The least recently hit, with hits spread over all blocks and a hot tenth.
    Lru,
}

#[derive(Clone, Copy)]
struct Block {
    extents: Extents,
    older: usize,
    newer: usize,
    /// Its place in `Sim::live`.
    at: usize,
}

/// What happened while granules were written; see `Allocator` for what waste is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub(super) written: u64,
    pub(super) moved: u64,
    pub(super) evictions: u64,
    pub(super) windows: u64,
    pub(super) shed: u64,
    /// Windows that could not be emptied, because a block in them found no other place.
    pub(super) given_up: u64,
    waste_sum: f64,
    pub(super) waste_max: f64,
}

impl Figures {
    pub(super) fn waste_mean(&self) -> f64 {
        self.waste_sum / self.evictions.max(1) as f64
    }

    /// Granules moved for each granule written.
    pub(super) fn moved_share(&self) -> f64 {
        self.moved as f64 / self.written.max(1) as f64
    }
}

const NONE: usize = usize::MAX;

pub(super) struct Sim {
    pub(super) allocator: Allocator,
    pub(super) figures: Figures,
    pub(super) random: Random,
    order: Order,
    blocks: Vec<Option<Block>>,
    vacant: Vec<usize>,
    live: Vec<usize>,
    oldest: usize,
    newest: usize,
    /// Of a thousand blocks, so many are pinned at any time; others after each 1/64 of the arena
    /// written.
    pub(super) pinned_per_mille: u64,
}

impl Sim {
    pub(super) fn new(granules: u32, order: Order, random: Random) -> Sim {
        Sim {
            allocator: Allocator::new(granules),
            figures: Figures::default(),
            random,
            order,
            blocks: Vec::new(),
            vacant: Vec::new(),
            live: Vec::new(),
            oldest: NONE,
            newest: NONE,
            pinned_per_mille: 0,
        }
    }

    /// Writes blocks of the sizes that `size` draws until `granules` have been written.
    pub(super) fn write(&mut self, granules: u64, size: impl Fn(&mut Random) -> u32) -> Figures {
        self.figures = Figures::default();
        while self.figures.written < granules {
            let wanted = size(&mut self.random);
            self.hits();
            self.put(wanted);
        }
        self.allocator.check().expect("bookkeeping");
        self.figures
    }

    fn put(&mut self, granules: u32) {
        let extents = loop {
            if let Some(extents) = self.allocator.alloc(granules) {
                break extents;
            }
            let (blocks, pinned) = (&self.blocks, self.pins());
            let window = self.allocator.window_to_clear(granules, |owner| {
                let block = blocks[owner as usize].expect("an owner is a live block");
                (!pinned(owner as usize)).then(|| block.extents.granules())
            });
            match window {
                Some(window) if self.clear(window) => {}
                _ if !self.evict_next() => {
                    self.figures.shed += 1;
                    return;
                }
                _ => {}
            }
        };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        self.blocks[slot] = Some(Block { extents, older: NONE, newer: NONE, at: self.live.len() });
        self.allocator.set_owner(&extents, Some(slot as u32));
        self.live.push(slot);
        self.push_newest(slot);
        self.figures.written += u64::from(granules);
    }

    fn pins(&self) -> impl Fn(usize) -> bool + use<> {
        let turn = self.figures.written / u64::from(self.allocator.granules() / 64);
        let per_mille = self.pinned_per_mille;
        move |slot| Random(slot as u64 ^ (turn << 32)).below(1000) < per_mille
    }

    /// False if a block in the window found no other place.
    fn clear(&mut self, window: Window) -> bool {
        self.figures.windows += 1;
        self.allocator.hold(window);
        let mut at = window.first_granule;
        let mut cleared = true;
        while let Some((owner, next)) = self.allocator.next_owner(window, at) {
            at = next;
            let old = self.block(owner as usize).extents;
            let Some(new) = self.allocator.alloc(old.granules()) else {
                self.figures.given_up += 1;
                cleared = false;
                break;
            };
            self.allocator.set_owner(&new, Some(owner));
            self.allocator.free(&old);
            self.blocks[owner as usize].as_mut().expect("live").extents = new;
            self.figures.moved += u64::from(old.granules());
        }
        self.allocator.release();
        cleared
    }

    fn evict_next(&mut self) -> bool {
        let mut slot = self.oldest;
        let pinned = self.pins();
        while slot != NONE && pinned(slot) {
            slot = self.block(slot).newer;
        }
        if slot != NONE {
            self.evict(slot);
        }
        slot != NONE
    }

    fn evict(&mut self, slot: usize) {
        let waste =
            f64::from(self.allocator.free_granules()) / f64::from(self.allocator.granules());
        self.figures.evictions += 1;
        self.figures.waste_sum += waste;
        self.figures.waste_max = self.figures.waste_max.max(waste);
        self.unlink(slot);
        let Block { extents, at, .. } = self.block(slot);
        self.allocator.free(&extents);
        self.blocks[slot] = None;
        self.vacant.push(slot);
        self.live.swap_remove(at);
        if let Some(&moved) = self.live.get(at) {
            self.blocks[moved].as_mut().expect("live").at = at;
        }
    }

    fn hits(&mut self) {
        if self.order == Order::Fifo || self.live.is_empty() {
            return;
        }
        for _ in 0..2 {
            let drawn = self.random.below(self.live.len() as u64) as usize;
            let slot = self.live[drawn];
            if slot.is_multiple_of(10) || self.random.below(2) == 0 {
                self.unlink(slot);
                self.push_newest(slot);
            }
        }
    }

    fn block(&self, slot: usize) -> Block {
        self.blocks[slot].expect("live")
    }

    fn push_newest(&mut self, slot: usize) {
        let older = self.newest;
        let block = self.blocks[slot].as_mut().expect("live");
        (block.older, block.newer) = (older, NONE);
        match self.blocks.get_mut(older) {
            Some(Some(block)) => block.newer = slot,
            _ => self.oldest = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: usize) {
        let Block { older, newer, .. } = self.block(slot);
        match self.blocks.get_mut(older) {
            Some(Some(block)) => block.newer = newer,
            _ => self.oldest = newer,
        }
        match self.blocks.get_mut(newer) {
            Some(Some(block)) => block.older = older,
            _ => self.newest = older,
        }
    }
}
