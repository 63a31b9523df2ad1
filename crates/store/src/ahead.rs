//! Which blocks of a batch of reads are to be on their way from flash before their turn: a bounded
//! window ahead, so that the reads overlap. Numbers only.

/// More is asked for when one part in this many of the window is free.
const REFILL_SHARE: u64 = 8;
/// Keys that are asked for at once, at most; should nothing find room, each item asks again.
const KEYS_MAX: usize = 64;

/// Where a batch stands.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// The first item that was not looked at.
    next: usize,
    /// Bytes of those that were, and whose turn has not gone by.
    bytes: u64,
    max: u64,
}

impl Window {
    /// At a batch's first item, of so many bytes at most.
    pub fn new(max: u64) -> Window {
        Window { next: 0, bytes: 0, max }
    }

    /// The batch comes to item `at`; `name` tells an item's key and bytes. `begin` is told the keys
    /// to bring back, and says how many of them, in order, need not be asked for again.
    pub fn come_to<T, K: PartialEq>(
        &mut self,
        items: &[T],
        at: usize,
        name: impl Fn(&T) -> (K, u64),
        begin: impl FnOnce(&[K]) -> usize,
    ) {
        if at > 0 {
            self.bytes = self.bytes.saturating_sub(name(&items[at - 1]).1);
        }
        // A little at a time: a window that is let run empty leaves the devices idle.
        if self.next == items.len() || self.bytes > self.max - self.max / REFILL_SHARE {
            return;
        }
        // Each key with its first item's place, and the bytes ahead without it.
        let (mut keys, mut places): (Vec<K>, Vec<(usize, u64)>) = (Vec::new(), Vec::new());
        self.next = self.next.max(at);
        while self.bytes < self.max && self.next < items.len() && keys.len() < KEYS_MAX {
            let (key, bytes) = name(&items[self.next]);
            // Parts of one block come one after the other.
            if keys.last() != Some(&key) {
                keys.push(key);
                places.push((self.next, self.bytes));
            }
            self.bytes += bytes;
            self.next += 1;
        }
        if let Some(place) = places.get(begin(&keys)) {
            (self.next, self.bytes) = *place;
        }
    }
}
