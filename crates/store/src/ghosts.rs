//! What left, and why: tells evicted, expired, outdated and over-quota from never here, and what
//! comes back soon after it made room from what is new.

use crate::types::{BlockKey, MissReason};

/// Ghosts that share a set. A key has two sets, and the oldest ghost of both makes way: so nearly
/// all of the latest are remembered, and a prompt's blocks without gaps between them.
const WAYS: usize = 8;
/// Bits of a ghost's second word for the reason; the one above them says that a policy let the
/// block go to make room, and the others are that policy's count.
const REASON_BITS: u32 = 4;
const MADE_ROOM: u32 = 1 << REASON_BITS;
const WHEN_SHIFT: u32 = REASON_BITS + 1;
/// Bits of a ghost's third word for its turn among all ghosts; the others are for the tag.
const TURN_BITS: u32 = 24;
const TURN_MASK: u32 = (1 << TURN_BITS) - 1;
/// Turns before they begin again are worth at least so many times all places.
const TURNS_AROUND: u32 = 8;

/// A 40-bit tag, a reason, when in the count of what its policy let go, and when among all ghosts:
/// 12 B. Two keys share set and tag once in 2^37 comparisons or less, and then a miss carries the
/// wrong reason; no data hangs on it.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    tag: u32,
    reason_and_when: u32,
    tag_and_turn: u32,
}

const _: () = assert!(size_of::<Ghost>() == 12);

impl Ghost {
    const NONE: Ghost = Ghost { tag: 0, reason_and_when: 0, tag_and_turn: 0 };

    fn is_of(&self, tag: [u32; 2]) -> bool {
        self.tag == tag[0] && self.tag_and_turn >> TURN_BITS == tag[1] && self.reason_and_when != 0
    }

    fn reason(&self) -> Option<MissReason> {
        use MissReason::{Corrupt, Epoch, Evicted, Expired, Quota};
        let code = self.reason_and_when & ((1 << REASON_BITS) - 1);
        [Evicted, Expired, Epoch, Quota, Corrupt].into_iter().find(|r| *r as u32 == code)
    }

    /// How old it is in turns; one without a reason is older than any.
    fn age(&self, turn: u32) -> u32 {
        match self.reason_and_when {
            0 => u32::MAX,
            _ => turn.wrapping_sub(self.tag_and_turn) & TURN_MASK,
        }
    }
}

/// Where a key's ghost may be, and what tells it from others there.
struct Place {
    sets: [usize; 2],
    tag: [u32; 2],
}

/// A bounded list of keys that left. Allocated at start, never larger.
#[derive(Debug)]
pub struct Ghosts {
    sets: Vec<[Ghost; WAYS]>,
    seed: u64,
    /// Ghosts so far.
    count: u64,
    /// So many ghosts, as a power of two, have one turn.
    turn_shift: u32,
}

impl Ghosts {
    /// Room for `ghosts` keys, rounded up.
    pub fn new(ghosts: u32, seed: u64) -> Ghosts {
        let sets = vec![[Ghost::NONE; WAYS]; (ghosts as usize).div_ceil(WAYS).max(1)];
        let bits = 64 - (sets.len() * WAYS * TURNS_AROUND as usize).leading_zeros();
        Ghosts { sets, seed, count: 0, turn_shift: bits.saturating_sub(TURN_BITS) }
    }

    /// Bytes of the list, fixed at start.
    pub fn bytes(&self) -> usize {
        self.sets.len() * size_of::<[Ghost; WAYS]>()
    }

    /// `era` stands for a namespace since its last drop: a new era remembers nothing of the old.
    fn place(&self, era: u64, key: BlockKey) -> Place {
        let bits = u128::from_le_bytes(key.0);
        let mix = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            product as u64 ^ (product >> 64) as u64
        };
        let first = mix(bits as u64 ^ era, (bits >> 64) as u64 ^ self.seed);
        let second = mix(first ^ self.seed, 0x9e37_79b9_7f4a_7c15);
        let set = |bits: u64| ((u128::from(bits) * self.sets.len() as u128) >> 64) as usize;
        let tag = [first as u32, second as u32 >> TURN_BITS];
        Place { sets: [set(first), set(second)], tag }
    }

    fn find(&self, era: u64, key: BlockKey) -> Option<&Ghost> {
        let place = self.place(era, key);
        let ghosts = place.sets.iter().flat_map(|set| &self.sets[*set]);
        ghosts.into_iter().find(|ghost| ghost.is_of(place.tag))
    }

    /// `made_room` is the count of what the block's policy has let go to make room, this one
    /// included; none: it left otherwise.
    pub fn remember(
        &mut self,
        era: u64,
        key: BlockKey,
        reason: MissReason,
        made_room: Option<u32>,
    ) {
        let when = made_room.map_or(0, |when| when << WHEN_SHIFT | MADE_ROOM);
        let Place { sets, tag } = self.place(era, key);
        let turn = (self.count >> self.turn_shift) as u32 & TURN_MASK;
        self.count += 1;
        let ways = sets.into_iter().flat_map(|set| (0..WAYS).map(move |way| (set, way)));
        let (set, way) = ways
            .max_by_key(|(set, way)| {
                let ghost = &self.sets[*set][*way];
                // An older memory of the same key makes way before the oldest of the others.
                (ghost.is_of(tag), ghost.age(turn))
            })
            .expect("two sets");
        self.sets[set][way] = Ghost {
            tag: tag[0],
            reason_and_when: reason as u32 | when,
            tag_and_turn: tag[1] << TURN_BITS | turn,
        };
    }

    /// Why the key left, if that is remembered.
    pub fn recall(&self, era: u64, key: BlockKey) -> Option<MissReason> {
        self.find(era, key)?.reason()
    }

    /// How many blocks a policy that has let go of `count` by now let go since it let go of this
    /// one to make room; none: it did not, or that is forgotten.
    pub fn evicted_since(&self, era: u64, key: BlockKey, count: u32) -> Option<u32> {
        let ghost = self.find(era, key)?;
        let when = ghost.reason_and_when >> WHEN_SHIFT;
        let made_room = ghost.reason_and_when & MADE_ROOM != 0;
        made_room.then(|| (count.wrapping_sub(when) << WHEN_SHIFT) >> WHEN_SHIFT)
    }

    /// The key is here again, or must not be remembered.
    pub fn forget(&mut self, era: u64, key: BlockKey) {
        let place = self.place(era, key);
        for set in place.sets {
            for ghost in self.sets[set].iter_mut().filter(|ghost| ghost.is_of(place.tag)) {
                ghost.reason_and_when = 0;
            }
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
        ghosts.remember(1, key(1), MissReason::Evicted, Some(7));
        ghosts.remember(1, key(1), MissReason::Quota, Some(9));
        assert_eq!(ghosts.recall(1, key(1)), Some(MissReason::Quota));
        assert_eq!(ghosts.recall(2, key(1)), None, "another namespace, or after a drop");
        assert_eq!(ghosts.evicted_since(1, key(1), 12), Some(3));
        let past_the_end = (1u32 << 27) + 4;
        assert_eq!(ghosts.evicted_since(1, key(1), past_the_end), Some((1 << 27) - 5));
        ghosts.remember(1, key(1), MissReason::Epoch, None);
        assert_eq!(ghosts.evicted_since(1, key(1), 12), None, "not to make room");
        ghosts.forget(1, key(1));
        assert_eq!(ghosts.recall(1, key(1)), None);
    }

    #[test]
    fn recalls_what_left_lately_without_gaps_and_never_grows() {
        let mut ghosts = Ghosts::new(20_000, 9);
        let bytes = ghosts.bytes();
        assert_eq!(bytes, 240_000);
        for number in 1..400_000 {
            ghosts.remember(1, key(number), MissReason::Evicted, Some(number as u32));
        }
        let forgotten = |range: std::ops::Range<u128>| {
            range.filter(|number| ghosts.recall(1, key(*number)).is_none()).count()
        };
        assert_eq!(forgotten(390_000..400_000), 0, "of the latest, half as many as places");
        assert!(forgotten(387_000..390_000) < 60, "{}", forgotten(387_000..390_000));
        assert!(forgotten(1..360_000) > 359_990);
        assert_eq!(ghosts.bytes(), bytes);
    }

    /// The largest list counts its turns in steps, and they wrap: age still tells old from new.
    #[test]
    fn turns_begin_again() {
        let mut ghosts = Ghosts::new(64, 9);
        (ghosts.turn_shift, ghosts.count) = (3, (u64::from(TURN_MASK) << 3) - 100);
        for number in 1..1000 {
            ghosts.remember(1, key(number), MissReason::Evicted, None);
        }
        let recalled = |range: std::ops::Range<u128>| {
            range.filter(|number| ghosts.recall(1, key(*number)).is_some()).count()
        };
        assert!(recalled(970..1000) >= 28, "{}", recalled(970..1000));
        assert!(recalled(1..900) <= 2);
    }
}
