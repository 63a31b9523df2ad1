//! Blocks that a batch of reads will come to, and that are on flash alone: they are on their way
//! before their turn, a bounded window ahead, so that the reads overlap.

use keepwarm_store::Session;
use keepwarm_store::types::{BlockKey, Epoch, NamespaceId};

/// Where a batch stands.
pub(crate) struct Ahead {
    /// The first item that was not looked at.
    next: usize,
    /// Bytes of those that were, and whose turn has not come.
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
        if self.next == items.len() || self.bytes > self.window / 2 {
            return;
        }
        let mut keys: Vec<BlockKey> = Vec::new();
        self.next = self.next.max(at);
        while self.bytes < self.window && self.next < items.len() {
            let (key, bytes) = name(&items[self.next]);
            // Parts of one block come one after the other.
            if keys.last() != Some(&key) {
                keys.push(key);
            }
            self.bytes += bytes;
            self.next += 1;
        }
        session.prefetch(ns, epoch, &keys);
    }
}
