//! Blocks in memory that are to be written to flash, and what each slot of memory is to flash.

use std::collections::VecDeque;

use crate::index::Slot;
use crate::types::BlockKey;

/// What a block in memory is to flash; one byte for each of memory's slots, beside the index.
#[derive(Debug)]
pub(crate) struct Marks(Vec<u8>);

/// It waits in the queue, or is being written.
pub const QUEUED: u8 = 1;
/// A copy of it is on flash.
pub const ON_FLASH: u8 = 2;
/// Used since its copy on flash was written.
pub const USED_SINCE: u8 = 4;
/// It is being brought back: incomplete, yet here.
pub const RETURNING: u8 = 8;
/// Touched since it was stored, which the very request that stored it does.
pub const TOUCHED: u8 = 16;

impl Marks {
    pub fn new(slots: u32) -> Marks {
        Marks(vec![0; slots as usize])
    }

    #[inline]
    pub fn has(&self, slot: Slot, mark: u8) -> bool {
        self.0[slot as usize] & mark != 0
    }

    #[inline]
    pub fn set(&mut self, slot: Slot, mark: u8) {
        self.0[slot as usize] |= mark;
    }

    #[inline]
    pub fn clear(&mut self, slot: Slot, marks: u8) {
        self.0[slot as usize] &= !marks;
    }

    /// Takes all marks of a slot that changes hands.
    pub fn take(&mut self, slot: Slot) -> u8 {
        std::mem::take(&mut self.0[slot as usize])
    }

    pub fn get(&self, slot: Slot) -> u8 {
        self.0[slot as usize]
    }

    pub fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// A block that is to be written. It stays evictable meanwhile: whether it is still there is looked
/// up when its turn comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub slot: Slot,
    pub ns: u16,
    pub key: BlockKey,
    pub version: u32,
    /// It was on flash before, and its segment goes.
    pub is_again: bool,
}

/// Blocks to be written, by tenant, in the order in which they were chosen.
#[derive(Debug)]
pub(crate) struct WriteQueue {
    by_tenant: Vec<VecDeque<Queued>>,
    /// Whose turn it is.
    turn: usize,
    len: usize,
    max: usize,
    /// What one tenant may have.
    share: usize,
}

/// One of several tenants gets at most one part in this many of a bounded queue.
pub(crate) const TENANT_SHARE: usize = 4;

impl WriteQueue {
    pub fn new(max: u32, tenants: usize) -> WriteQueue {
        let parts = if tenants > 1 { TENANT_SHARE } else { 1 };
        let (max, by_tenant) = (max as usize, vec![VecDeque::new(); tenants]);
        WriteQueue { by_tenant, turn: 0, len: 0, max, share: max.div_ceil(parts) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// False: no room.
    pub fn push(&mut self, tenant: usize, queued: Queued) -> bool {
        if self.len >= self.max || self.by_tenant[tenant].len() >= self.share {
            return false;
        }
        self.by_tenant[tenant].push_back(queued);
        self.len += 1;
        true
    }

    /// The next tenant that has something.
    pub fn next_tenant(&mut self) -> Option<usize> {
        let tenants = self.by_tenant.len();
        let mut turns = (1..=tenants).map(|step| (self.turn + step) % tenants);
        self.turn = turns.find(|tenant| !self.by_tenant[*tenant].is_empty())?;
        Some(self.turn)
    }

    pub fn pop(&mut self, tenant: usize) -> Option<Queued> {
        let queued = self.by_tenant[tenant].pop_front()?;
        self.len -= 1;
        Some(queued)
    }

    /// Puts one back at the front.
    pub fn push_front(&mut self, tenant: usize, queued: Queued) {
        self.by_tenant[tenant].push_front(queued);
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(number: u8) -> Queued {
        let key = BlockKey([number; 16]);
        Queued { slot: number.into(), ns: 0, key, version: 0, is_again: false }
    }

    #[test]
    fn tenants_take_turns_and_none_fills_the_queue() {
        let mut queue = WriteQueue::new(8, 3);
        assert!(queue.push(0, queued(1)) && queue.push(0, queued(2)));
        assert!(!queue.push(0, queued(3)), "a quarter of it");
        assert!(queue.push(2, queued(4)));
        let mut order = Vec::new();
        while let Some(tenant) = queue.next_tenant() {
            order.push((tenant, queue.pop(tenant).unwrap().slot));
        }
        assert_eq!(order, [(2, 4), (0, 1), (0, 2)]);
        assert_eq!(queue.len(), 0);
    }
}
