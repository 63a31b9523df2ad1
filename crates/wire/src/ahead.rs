//! Blocks that a batch of reads will come to, and that are on flash alone: they are on their way
//! before their turn, a bounded window ahead, so that the reads overlap.

use keepwarm_store::Session;
use keepwarm_store::types::{BlockKey, Epoch, NamespaceId};

/// More is asked for when one part in this many of the window is free.
const REFILL_SHARE: u64 = 8;
/// Keys that are asked for at once, at most; should nothing find room, each item asks again.
const KEYS_MAX: usize = 64;

/// Where a batch stands.
pub(crate) struct Ahead {
    /// The first item that was not looked at.
    next: usize,
    /// Bytes of those that were, and whose turn has not gone by.
    bytes: u64,
    window: u64,
}

impl Ahead {
    /// At a batch's first item; none without flash.
    pub(crate) fn of(session: &Session) -> Option<Ahead> {
        let window = session.prefetch_bytes()?;
        Some(Ahead { next: 0, bytes: 0, window })
    }

    /// The batch comes to item `at`; `name` tells an item's key and bytes.
    pub(crate) fn come_to<T>(
        &mut self,
        session: &Session,
        (ns, epoch): (NamespaceId, Epoch),
        items: &[T],
        at: usize,
        name: impl Fn(&T) -> (BlockKey, u64),
    ) {
        if at > 0 {
            self.bytes = self.bytes.saturating_sub(name(&items[at - 1]).1);
        }
        // A little at a time: a window that is let run empty leaves the devices idle.
        if self.next == items.len() || self.bytes > self.window - self.window / REFILL_SHARE {
            return;
        }
        // Each key with its first item's place, and the bytes ahead without it.
        let (mut keys, mut places): (Vec<BlockKey>, Vec<(usize, u64)>) = (Vec::new(), Vec::new());
        self.next = self.next.max(at);
        while self.bytes < self.window && self.next < items.len() && keys.len() < KEYS_MAX {
            let (key, bytes) = name(&items[self.next]);
            // Parts of one block come one after the other.
            if keys.last() != Some(&key) {
                keys.push(key);
                places.push((self.next, self.bytes));
            }
            self.bytes += bytes;
            self.next += 1;
        }
        let seen = session.prefetch(ns, epoch, &keys).seen;
        if let Some(place) = places.get(seen) {
            (self.next, self.bytes) = *place;
        }
    }
}
