//! Power loss at any moment, over and over: after each restart a block is claimed and verifies, or
//! is gone. Never one that nobody put, never another key's bytes, never one that was removed; and
//! what was flushed is there.
//!
//! The devices keep an arbitrary subset of the 512-byte sectors written since their last flush. One
//! writer in eight is hostile: its payloads are images of records that name others' keys.

use std::collections::HashMap;

use keepwarm_store::flash::FlashTier;
use keepwarm_store::flash::device::MemDevice;
use keepwarm_store::flash::format::{
    BlockEntry, Record, RecordPlace, SegmentHeader, encode_record,
};
use keepwarm_store::tiers::conformance::{
    Blocks, MadeBlock, Name, Seen, namespace, read_one, stream,
};
use keepwarm_store::tiers::{
    BlockHeader, DeviceState, PAGE_BYTES, Removal, Retry, SegmentRef, Spot, StreamId, Tier,
    TierError,
};

use super::{Random, devices, env, open};

const CRASHES: u64 = 5;
const KEYS: u64 = 60;

/// What is known of one append of a block.
struct Put {
    /// `None`: its append failed in the middle; it may be anywhere.
    spot: Option<Spot>,
    header: BlockHeader,
    is_flushed: bool,
    /// Its header is there, and not its bytes: it never will be.
    is_torn: bool,
    /// Its segment was reclaimed: it may be there or not.
    is_reclaimed: bool,
    removed: Removed,
}

impl Put {
    fn flushed(&mut self) {
        self.is_flushed = self.spot.is_some() && !self.is_torn;
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Removed {
    No,
    /// The removal failed: it may be there or not.
    Maybe,
    Yes,
}

#[derive(Default, Debug)]
struct Tally {
    claimed: u64,
    verified: u64,
    torn: u64,
    removals: u64,
    reclaims: u64,
    cut: u64,
}

struct World {
    random: Random,
    devices: Vec<MemDevice>,
    puts: HashMap<Name, Vec<Put>>,
    is_uniform: bool,
    tally: Tally,
}

#[test]
fn power_loss_costs_only_what_was_not_flushed() {
    let seeds = if env("KEEPWARM_TEST_SCALE", 1) >= 10 { 500 } else { 60 };
    let first = env("KEEPWARM_TEST_SEED", 1);
    println!("seeds {first}.., {seeds} of them, {CRASHES} crashes each");
    let mut sum = Tally::default();
    for seed in first..first + seeds {
        println!("seed {seed}");
        let tally = World::new(seed).run();
        sum.claimed += tally.claimed;
        sum.verified += tally.verified;
        sum.torn += tally.torn;
        sum.removals += tally.removals;
        sum.reclaims += tally.reclaims;
        sum.cut += tally.cut;
    }
    println!("crash: {sum:?}");
    assert!(sum.verified > 100 * seeds && sum.torn > 0 && sum.reclaims > 0 && sum.cut > 0);
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(seed);
        let count = 1 + random.below(3) as usize;
        World {
            devices: devices(count, 7),
            random,
            puts: HashMap::new(),
            is_uniform: seed.is_multiple_of(2),
            tally: Tally::default(),
        }
    }

    fn run(mut self) -> Tally {
        for _ in 0..CRASHES {
            let tier = open(&self.devices);
            self.judge(&tier);
            if self.random.below(2) == 0 {
                let number = self.random.below(self.devices.len() as u64) as usize;
                self.devices[number].cut_power_after(self.random.below(120));
            }
            for _ in 0..10 + self.random.below(40) {
                self.step(&tier);
            }
            self.lose_fenced(&tier);
            for device in &self.devices {
                device.crash(&mut |end| self.random.below(end));
            }
        }
        self.judge(&open(&self.devices));
        self.tally
    }

    /// What is on a device that went out of service may be void from now on.
    fn lose_fenced(&mut self, tier: &FlashTier) {
        let devices = tier.status().devices;
        let is_fenced = |spot: Spot| {
            matches!(devices[usize::from(spot.device)].state, DeviceState::Fenced { .. })
        };
        let puts = self.puts.values_mut().flatten();
        puts.filter(|put| put.spot.is_some_and(is_fenced)).for_each(|put| put.is_flushed = false);
    }

    fn step(&mut self, tier: &FlashTier) {
        match self.random.below(20) {
            0 => {
                if tier.flush().is_ok() && self.all_live(tier) {
                    self.puts.values_mut().flatten().for_each(Put::flushed);
                }
            }
            1 | 2 => self.remove(tier),
            3 => {
                self.reclaim_oldest(tier);
            }
            _ => self.put(tier),
        }
    }

    fn all_live(&mut self, tier: &FlashTier) -> bool {
        let is_live = tier.status().devices.iter().all(|device| device.state == DeviceState::Live);
        self.tally.cut += u64::from(!is_live);
        is_live
    }

    fn remove(&mut self, tier: &FlashTier) {
        let space = namespace(1 + self.random.below(3) as u8);
        let fingerprint = space.fingerprint;
        let (removal, names): (_, Vec<Name>) = if self.random.below(6) == 0 {
            let names = self.puts.keys().filter(|name| name.0 == fingerprint).copied();
            (Removal::Namespace { fingerprint }, names.collect())
        } else {
            let numbers = (0..1 + self.random.below(5)).map(|_| self.random.below(KEYS));
            let keys: Vec<_> =
                numbers.map(|number| MadeBlock::new(&space, number, &[1]).header.key).collect();
            let names = keys.iter().map(|key| (fingerprint, *key)).collect();
            (Removal::Keys { fingerprint, keys }, names)
        };
        let mut result = tier.remove(std::slice::from_ref(&removal));
        while matches!(&result, Err(error) if error.retry() == Retry::AfterReclaim) {
            if !self.reclaim_oldest(tier) {
                break;
            }
            result = tier.remove(std::slice::from_ref(&removal));
        }
        self.tally.removals += u64::from(result.is_ok());
        let own = self.puts.iter_mut().filter(|(name, _)| names.contains(name));
        for put in own.flat_map(|(_, puts)| puts) {
            if result.is_ok() {
                put.removed = Removed::Yes;
            } else if put.removed == Removed::No {
                put.removed = Removed::Maybe;
            }
        }
    }

    /// Frees the oldest segment of any stream; whether there was one.
    fn reclaim_oldest(&mut self, tier: &FlashTier) -> bool {
        let all = (1..4).flat_map(|number| tier.segments(StreamId(number)));
        let Some(oldest) = all.min_by_key(|info| info.segment.life) else { return false };
        assert_eq!(tier.reclaim(oldest.segment), Ok(()));
        self.reclaimed(oldest.segment);
        self.tally.reclaims += 1;
        true
    }

    fn reclaimed(&mut self, segment: SegmentRef) {
        let puts = self.puts.values_mut().flatten();
        let inside = |put: &&mut Put| put.spot.is_some_and(|spot| spot.segment() == segment);
        puts.filter(inside).for_each(|put| put.is_reclaimed = true);
    }

    fn put(&mut self, tier: &FlashTier) {
        let space = namespace(1 + self.random.below(3) as u8);
        let count = 1 + self.random.below(4);
        let blocks = Blocks((0..count).map(|_| self.block(&space)).collect());
        let owner = stream(1 + self.random.below(3) as u32);
        let mut result = blocks.append(tier, &owner);
        while matches!(result, Err(TierError::NoSegment { .. })) {
            if !self.reclaim_oldest(tier) {
                break;
            }
            result = blocks.append(tier, &owner);
        }
        let spots = match result {
            Ok(spots) => spots.into_iter().map(Some).collect(),
            Err(TierError::NoSegment { .. }) => return,
            Err(_) => vec![None; blocks.0.len()],
        };
        for (block, spot) in blocks.0.into_iter().zip(spots) {
            let header = block.header;
            let name = (header.fingerprint, header.key);
            self.puts.entry(name).or_default().push(Put {
                spot,
                header,
                is_flushed: false,
                is_torn: false,
                is_reclaimed: false,
                removed: Removed::No,
            });
        }
    }

    fn block(&mut self, space: &keepwarm_store::tiers::TierNamespace) -> MadeBlock {
        let number = self.random.below(KEYS);
        let mut length = || {
            if self.is_uniform {
                3 * PAGE_BYTES as u32
            } else {
                1 + self.random.below(30_000) as u32
            }
        };
        let lengths = [length(), length()];
        if self.random.below(8) == 0 {
            let bytes = self.hostile(lengths[0] as usize);
            return MadeBlock::with_bytes(space, number, &bytes);
        }
        MadeBlock::new(space, number, &lengths[..1 + self.random.below(2) as usize])
    }

    /// Images of records for another's key, with all that an outsider can know or guess: the
    /// format, a life to come, a likely position; not the nonce.
    fn hostile(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let victim = MadeBlock::new(&namespace(1), 1_000_000 + self.random.below(50), &[1]);
            let entry = BlockEntry {
                key: victim.header.key,
                epoch: victim.header.epoch,
                engine_hash: None,
                expires_unix_ms: 0,
                priority: 0,
                parts: vec![(1, 0)],
            };
            let record = Record::Blocks {
                fingerprint: victim.header.fingerprint,
                sequence: u64::MAX,
                entries: vec![entry],
            };
            let segment = SegmentHeader {
                device: [0; 16],
                segment: self.random.below(7) as u32,
                life: self.random.below(40) as u32,
                nonce: [0; 32],
            };
            let place = RecordPlace { segment: &segment, position: self.random.below(6) as u32 };
            bytes.extend(encode_record(&record, place));
        }
        bytes.truncate(length);
        bytes
    }

    /// Holds what is claimed, and what should be, against each other; then the world is what
    /// survived.
    fn judge(&mut self, tier: &FlashTier) {
        let mut shown = Shown::default();
        tier.recover(&mut shown).expect("recovered");
        for (name, spot, header) in &shown.blocks {
            self.tally.claimed += 1;
            let puts = self.puts.get_mut(name);
            let puts = puts.unwrap_or_else(|| panic!("nobody put {:?}", name.1));
            let known = puts.iter().position(|put| put.spot == Some(*spot));
            let failed = || puts.iter().position(|put| put.spot.is_none() && put.header == *header);
            let Some(at) = known.or_else(failed) else {
                panic!("{:?} was never put at {spot:?}", name.1)
            };
            let put = &mut puts[at];
            put.spot = Some(*spot);
            assert_eq!(put.header, *header, "the header of {:?}", name.1);
            assert!(put.removed != Removed::Yes, "{:?} was removed", name.1);
            let mut reads = header.parts.iter().map(|part| read_one(tier, *spot, *part));
            let failed = reads.find_map(Result::err);
            assert!(
                failed.is_none() || !put.is_flushed,
                "{:?} at {spot:?} was flushed: {failed:?}",
                name.1
            );
            let is_right = failed.is_none();
            self.tally.verified += u64::from(is_right);
            self.tally.torn += u64::from(!is_right);
            (put.is_flushed, put.is_torn) = (is_right, !is_right);
        }
        for (name, puts) in &mut self.puts {
            puts.retain_mut(|put| {
                let is_shown = shown
                    .blocks
                    .iter()
                    .any(|(own, spot, _)| own == name && put.spot == Some(*spot));
                let is_due = put.is_flushed && !put.is_reclaimed && put.removed == Removed::No;
                assert!(is_shown || !is_due, "{:?} was flushed and is lost", name.1);
                put.is_reclaimed = false;
                is_shown
            });
        }
    }
}

/// Takes everything, copies of one key too.
#[derive(Default)]
struct Shown {
    blocks: Vec<(Name, Spot, BlockHeader)>,
}

impl keepwarm_store::tiers::RecoveryVisitor for Shown {
    fn stream(&mut self, tenant: &str) -> Option<StreamId> {
        Seen::default().stream(tenant)
    }

    fn block(&mut self, block: &keepwarm_store::tiers::RecoveredBlock<'_>) -> bool {
        let header = block.header.clone();
        self.blocks.push(((header.fingerprint, header.key), block.spot, header));
        true
    }
}
