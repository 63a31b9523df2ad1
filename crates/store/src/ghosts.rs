//! What left, and why: tells evicted, expired, outdated and over-quota from never here.

use crate::types::{BlockKey, MissReason};

/// Ghosts that share a place; the oldest of them is forgotten first.
const WAYS: usize = 4;

/// A 64-bit tag and a reason: 12 B. Two keys share a tag once in 2^64, and then a miss carries
/// the wrong reason; no data hangs on it.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    tag: [u32; 2],
    reason: u32,
}

const _: () = assert!(size_of::<Ghost>() == 12);

/// A bounded, set-associative list of keys that left. Allocated at start, never larger.
#[derive(Debug)]
pub(crate) struct Ghosts {
    sets: Vec<[Ghost; WAYS]>,
    seed: u64,
}

impl Ghosts {
    /// Room for `ghosts` keys, rounded up.
    pub fn new(ghosts: u32, seed: u64) -> Ghosts {
        let empty = Ghost { tag: [0; 2], reason: 0 };
        Ghosts { sets: vec![[empty; WAYS]; (ghosts as usize).div_ceil(WAYS).max(1)], seed }
    }

    pub fn bytes(&self) -> usize {
        self.sets.len() * size_of::<[Ghost; WAYS]>()
    }

    /// `era` stands for a namespace since its last drop: a new era remembers nothing of the old.
    fn place(&self, era: u64, key: BlockKey) -> (usize, [u32; 2]) {
        let bits = u128::from_le_bytes(key.0);
        let low = bits as u64 ^ era;
        let high = (bits >> 64) as u64 ^ self.seed;
        let product = u128::from(low) * u128::from(high);
        let tag = product as u64 ^ (product >> 64) as u64;
        let set = ((u128::from(tag) * self.sets.len() as u128) >> 64) as usize;
        (set, [tag as u32, (tag >> 32) as u32])
    }

    pub fn remember(&mut self, era: u64, key: BlockKey, reason: MissReason) {
        let (set, tag) = self.place(era, key);
        let ways = &mut self.sets[set];
        // An older memory of the same key makes way before the oldest of the others.
        let last = ways.iter().position(|ghost| ghost.tag == tag).unwrap_or(WAYS - 1);
        ways.copy_within(..last, 1);
        ways[0] = Ghost { tag, reason: reason as u32 };
    }

    pub fn recall(&self, era: u64, key: BlockKey) -> Option<MissReason> {
        use MissReason::{Corrupt, Epoch, Evicted, Expired, Quota};
        let (set, tag) = self.place(era, key);
        let ghost = self.sets[set].iter().find(|ghost| ghost.tag == tag && ghost.reason != 0)?;
        let is_it = |reason: &MissReason| *reason as u32 == ghost.reason;
        [Evicted, Expired, Epoch, Quota, Corrupt].into_iter().find(is_it)
    }

    pub fn forget(&mut self, era: u64, key: BlockKey) {
        let (set, tag) = self.place(era, key);
        for ghost in self.sets[set].iter_mut().filter(|ghost| ghost.tag == tag) {
            ghost.reason = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u128) -> BlockKey {
        BlockKey(number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_le_bytes())
    }

    #[test]
    fn remembers_the_last_reason_until_forgotten() {
        let mut ghosts = Ghosts::new(64, 9);
        assert_eq!(ghosts.recall(1, key(1)), None);
        ghosts.remember(1, key(1), MissReason::Evicted);
        ghosts.remember(1, key(1), MissReason::Quota);
        assert_eq!(ghosts.recall(1, key(1)), Some(MissReason::Quota));
        assert_eq!(ghosts.recall(2, key(1)), None, "another namespace, or after a drop");
        ghosts.forget(1, key(1));
        assert_eq!(ghosts.recall(1, key(1)), None);
    }

    #[test]
    fn recalls_most_of_what_left_lately_and_never_grows() {
        let mut ghosts = Ghosts::new(1000, 9);
        let bytes = ghosts.bytes();
        assert_eq!(bytes, 12_000);
        for number in 1..100_000 {
            ghosts.remember(1, key(number), MissReason::Evicted);
        }
        let recalled = |range: std::ops::Range<u128>| {
            range.filter(|number| ghosts.recall(1, key(*number)).is_some()).count()
        };
        assert!(recalled(99_600..100_000) > 370, "{}", recalled(99_600..100_000));
        assert!(recalled(1..90_000) < 10);
        assert_eq!(ghosts.bytes(), bytes);
    }
}
