//! A model of one node that is to equal it: memory and flash with the store's own policies, ghost
//! list, flights and numbers, over block numbers alone. Uniform blocks of one part, one namespace,
//! one tenant, no time to live, no leases, no budget of flash.
//!
//! What a request does is what a client over the node's Unix socket does: get the prefix that was
//! found in one call, put the others in one call, touch all. Background work is settled after each
//! request, and blocks come back one after the other. The store does that when it is opened so
//! that nothing moves by itself (`FlashConfig::is_by_hand`); then every block is in the same place
//! in both, whatever the policy. With the store's threads the order of what is in flight at once
//! is anybody's, and rates differ by a little.
//!
//! - `dram.rs`: slots and their order; `places.rs`: where a block is.
//! - `flash.rs`: what moves between the two; `blocks.rs`, `log.rs`: what lies where on flash.

mod blocks;
mod dram;
mod flash;
mod log;
mod model;
mod places;

use keepwarm_store::ahead::Window;
use keepwarm_store::policy::Use;
use keepwarm_store::rules::cold::{Ended, PREFETCH_MAX, PREFETCH_SHARE, TRIES_MAX};
use keepwarm_store::rules::{FIRST_ERA, Ghosts};
use keepwarm_store::types::{BlockKey, MissReason};

use crate::memory::{Found, Memory, Tier};
use dram::Dram;
use flash::{Cold, flight_of};
pub use model::{FlashModel, NodeModel, TwinError};

/// What a node sends at a time: until then it holds the blocks still.
pub const GET_BLOCKS_MAX: usize = 64;
/// The same, in bytes.
pub const GET_BYTES_MAX: u64 = 1 << 20;
/// Blocks of one put on the wire.
pub const PUT_BLOCKS_MAX: usize = 256;
/// Bytes of one put on the wire.
pub const PUT_BYTES_MAX: u64 = 64 << 20;

/// The key that stands for a block number, for whoever replays the same numbers through a store.
pub fn key_of(number: u32) -> BlockKey {
    let mix = |word: u64| {
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    let low = u64::from(number) | mix(u64::from(number)) << 32;
    let high = mix(u64::from(number).wrapping_add(0x9e37_79b9_7f4a_7c15));
    BlockKey((u128::from(high) << 64 | u128::from(low)).to_le_bytes())
}

/// The number that a key of `key_of` stands for.
fn number_of(key: BlockKey) -> u32 {
    u32::from_le_bytes(key.0[..4].try_into().expect("4 of 16 bytes"))
}

/// What moved so far, blocks and segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TwinCounts {
    /// Stored in memory, without those that came back.
    pub stored: u64,
    /// Left memory to make room.
    pub evicted: u64,
    /// Written to flash for the first time.
    pub written: u64,
    /// Written again when their segment went.
    pub rewritten: u64,
    /// Brought back from flash.
    pub promoted: u64,
    /// Segments taken back.
    pub reclaimed: u64,
    /// Not stored: there was no room to write.
    pub shed: u64,
}

/// One node, as a memory that requests meet.
#[derive(Debug)]
pub struct StoreTwin {
    dram: Dram,
    cold: Option<Cold>,
    ghosts: Ghosts,
    counts: TwinCounts,
    capacity_bytes: u64,
    block_bytes: u64,
    granule_bytes: u64,
    call_blocks: Option<usize>,
}

/// How a put of one block went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Granted(u32),
    Present,
    /// The same call brings it.
    Pending,
    Shed,
}

impl StoreTwin {
    /// An empty node.
    ///
    /// # Errors
    /// A model of a node that would not start.
    pub fn new(model: &NodeModel) -> Result<StoreTwin, TwinError> {
        model.check(1)?;
        Ok(StoreTwin {
            dram: Dram::new(model.policy, model.blocks()),
            cold: Cold::new(model)?,
            ghosts: Ghosts::new(model.ghosts(), model.ghost_seed),
            counts: TwinCounts::default(),
            capacity_bytes: model.capacity_bytes,
            block_bytes: model.block_bytes.into(),
            granule_bytes: model.granule_bytes(),
            call_blocks: model.call_blocks.map(|blocks| blocks.max(1) as usize),
        })
    }

    /// What moved so far.
    pub fn counts(&self) -> TwinCounts {
        self.counts
    }

    /// `room.rs`, `make_room`. False: everything is held.
    fn make_room(&mut self) -> bool {
        if !self.dram.is_full() {
            return true;
        }
        let Some((number, marks)) = self.dram.evict() else { return false };
        self.leaves_memory(number, marks);
        let when = Some(self.dram.evictions());
        self.ghosts.remember(FIRST_ERA, key_of(number), MissReason::Evicted, when);
        self.counts.evicted += 1;
        true
    }

    /// A block left flash for good: when it left memory does not count any more.
    fn forget_when(&mut self, number: u32) {
        self.ghosts.remember(FIRST_ERA, key_of(number), MissReason::Evicted, None);
    }

    /// `blocks.rs`, `complete`.
    fn complete(&mut self, slot: u32) {
        let key = key_of(self.dram.number(slot));
        let left = self.ghosts.evicted_since(FIRST_ERA, key, self.dram.evictions());
        self.dram.complete(slot, left);
        self.ghosts.forget(FIRST_ERA, key);
        self.stored_in_memory(slot, left.is_some());
    }

    /// `puts.rs`, `has_room_to_write`: half of the arena may be incomplete, and one block always.
    fn may_write(&self) -> bool {
        let filling = u64::from(self.dram.filling());
        filling == 0 || (filling + 1) * self.granule_bytes <= self.capacity_bytes / 2
    }

    /// A get or a put is over.
    fn end_call(&mut self) {
        if self.call_blocks.is_some() {
            self.settle();
        }
    }

    /// Gets blocks in one call; whether each came.
    fn get(&mut self, blocks: &[u32]) -> Vec<bool> {
        let most = (self.capacity_bytes / PREFETCH_SHARE).min(PREFETCH_MAX);
        let mut ahead = self.cold.as_ref().map(|_| Window::new(most));
        let (mut held, mut came) = (Vec::new(), Vec::with_capacity(blocks.len()));
        let block_bytes = self.block_bytes;
        for (at, &number) in blocks.iter().enumerate() {
            if let Some(window) = &mut ahead {
                let name = |number: &u32| (*number, block_bytes);
                window.come_to(blocks, at, name, |keys| self.prefetch(keys));
            }
            let slot = self.read(number);
            came.push(slot.is_some());
            held.extend(slot);
            let bytes = held.len() as u64 * block_bytes;
            if held.len() == GET_BLOCKS_MAX || bytes >= GET_BYTES_MAX {
                self.sent(&mut held);
            }
        }
        self.sent(&mut held);
        came
    }

    /// Bytes went out: each block was used, and is held no more.
    fn sent(&mut self, held: &mut Vec<u32>) {
        for slot in held.drain(..) {
            self.dram.touch(slot, Use::Read);
            self.used_in_memory(slot, Use::Read);
            self.dram.unpin(slot);
        }
    }

    /// `fetch.rs`, `prefetch`: how many need not be asked for again.
    fn prefetch(&mut self, numbers: &[u32]) -> usize {
        let most = self.capacity_bytes / PREFETCH_SHARE;
        let mut bytes = 0;
        for (at, &number) in numbers.iter().enumerate() {
            if !self.is_on_flash_alone(number) {
                continue;
            }
            let Some(cold) = &mut self.cold else { break };
            bytes += cold.block_bytes();
            if bytes > most || !cold.flights.join(flight_of(number), 0, cold.block_bytes(), false) {
                return at;
            }
        }
        numbers.len()
    }

    fn is_on_flash_alone(&self, number: u32) -> bool {
        let on_flash = |cold: &Cold| cold.blocks.find(number).is_some();
        self.dram.ready(number).is_none() && self.cold.as_ref().is_some_and(on_flash)
    }

    /// `reads.rs`, `read`, and `fetch.rs`, `pin_from_flash`: the slot, held; none where the block
    /// does not come.
    fn read(&mut self, number: u32) -> Option<u32> {
        for tried in 0..=TRIES_MAX {
            if let Some(slot) = self.dram.ready(number) {
                self.dram.pin(slot);
                return Some(slot);
            }
            if tried == TRIES_MAX || !self.is_on_flash_alone(number) {
                return None;
            }
            let (name, cold) = (flight_of(number), self.cold.as_mut()?);
            if !cold.flights.join(name, 0, cold.block_bytes(), true) {
                return None;
            }
            self.promote();
            let cold = self.cold.as_mut()?;
            let ended = cold.flights.ended(name);
            cold.flights.leave(name);
            if ended == Some(Ended::Throttled) {
                return None;
            }
        }
        None
    }

    /// Puts blocks in one call, which goes over the wire in groups.
    fn put(&mut self, blocks: &[u32]) {
        let group = ((PUT_BYTES_MAX / self.block_bytes) as usize).clamp(1, PUT_BLOCKS_MAX);
        let mut here = Vec::with_capacity(blocks.len());
        for group in blocks.chunks(group) {
            let puts: Vec<Put> = group.iter().map(|number| self.reserve(*number)).collect();
            for put in &puts {
                if let Put::Granted(slot) = put {
                    self.complete(*slot);
                    self.counts.stored += 1;
                }
            }
            let start = here.len();
            let is_here = |put: &Put| matches!(put, Put::Granted(_) | Put::Present);
            let stored = group.iter().zip(&puts).filter(|(_, put)| is_here(put));
            here.extend(stored.map(|(number, _)| *number));
            self.touch(&here[start..], Use::Arranged);
        }
        if blocks.len() > group {
            self.touch(&here, Use::Touched);
        }
    }

    /// `puts.rs`, `claim`.
    fn reserve(&mut self, number: u32) -> Put {
        if let Some(slot) = self.dram.find(number) {
            let is_ready = self.dram.ready(number) == Some(slot);
            return if is_ready { Put::Present } else { Put::Pending };
        }
        if let Some(cold) = &mut self.cold
            && let Some(entry) = cold.blocks.find(number)
        {
            cold.blocks.set_used(entry);
            return Put::Present;
        }
        if !self.may_write() || !self.make_room() {
            self.counts.shed += 1;
            return Put::Shed;
        }
        Put::Granted(self.dram.begin(number))
    }

    /// `lookups.rs`, `touch`: tail first.
    fn touch(&mut self, blocks: &[u32], how: Use) {
        for number in blocks.iter().rev() {
            if let Some(slot) = self.dram.ready(*number) {
                self.dram.touch(slot, how);
                self.used_in_memory(slot, how);
            }
        }
    }
}

impl Memory for StoreTwin {
    fn peek(&self, blocks: &[u32], _now_s: f64) -> Found {
        let mut found = Found::default();
        for number in blocks {
            let tier = match self.dram.ready(*number) {
                Some(_) => Tier::Dram,
                None if self.is_on_flash_alone(*number) => Tier::Flash,
                None => break,
            };
            found[tier as usize] += 1;
        }
        found
    }

    fn serve(&mut self, blocks: &[u32], now_s: f64) -> Found {
        let found = self.peek(blocks, now_s);
        let prefix = found.iter().sum::<u32>() as usize;
        let (mut served, most) = (0, self.call_blocks.unwrap_or(usize::MAX));
        for call in blocks[..prefix].chunks(most) {
            let came = self.get(call).iter().take_while(|came| **came).count();
            self.end_call();
            served += came;
            if came < call.len() {
                // What did not come is computed, and everything behind it.
                break;
            }
        }
        for call in blocks[served..].chunks(most) {
            self.put(call);
            self.end_call();
        }
        self.touch(blocks, Use::Touched);
        self.settle();
        found
    }
}
