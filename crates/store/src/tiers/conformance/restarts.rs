//! Cases over several lives of a tier.

use super::super::{RecoveredBlock, RecoveryVisitor, Removal, Sequence, StreamId, Tier, TierError};
use super::Medium;
use super::blocks::{Blocks, MadeBlock, Seen, namespace, read_all, stream};

fn remove(tier: &dyn Tier, blocks: &[MadeBlock]) -> Result<(), TierError> {
    let keys = blocks.iter().map(|block| block.header.key).collect();
    let fingerprint = blocks[0].namespace.fingerprint;
    tier.remove(&[Removal::Keys { fingerprint, keys }])
}

pub(super) fn a_restart_claims_every_block(medium: &mut dyn Medium) {
    let tier = medium.open();
    let first = Blocks::new(&namespace(1), 0, 10, 5000);
    let second = Blocks((20..30).map(|n| MadeBlock::new(&namespace(2), n, &[4000, 9])).collect());
    let mut spots = first.append(&*tier, &stream(1)).unwrap();
    spots.extend(second.append(&*tier, &stream(2)).unwrap());
    drop(tier);
    let tier = medium.open();
    let seen = Seen::of(&*tier);
    assert_eq!(seen.blocks.len(), 20);
    for (block, spot) in first.0.iter().chain(&second.0).zip(&spots) {
        let found = &seen.blocks[&(block.header.fingerprint, block.header.key)];
        assert_eq!(found, &(*spot, block.header.clone()), "where it was, and what it was");
    }
    seen.read_all(&*tier);
    let live = |of| tier.segments(StreamId(of)).iter().map(|one| one.live_bytes).sum::<u64>();
    assert_eq!(live(1), first.0.iter().map(|block| block.header.footprint()).sum::<u64>());
    assert_eq!(live(2), second.0.iter().map(|block| block.header.footprint()).sum::<u64>());
    assert!(tier.segments(StreamId(1)).iter().all(|one| !one.is_open), "nothing is appended to");
    for info in tier.segments(StreamId(1)) {
        tier.reclaim(info.segment).unwrap();
    }
    let more = Blocks::new(&namespace(1), 50, 3, 5000);
    let spots = more.append(&*tier, &stream(1)).unwrap();
    read_all(&*tier, more.0.iter().map(|block| &block.header).zip(spots));
}

pub(super) fn removed_blocks_stay_removed(medium: &mut dyn Medium) {
    let tier = medium.open();
    let blocks = Blocks::new(&namespace(1), 0, 10, 5000);
    let twin = Blocks::new(&namespace(2), 0, 10, 5000);
    blocks.append(&*tier, &stream(1)).unwrap();
    twin.append(&*tier, &stream(1)).unwrap();
    remove(&*tier, &blocks.0[..5]).unwrap();
    let again = Blocks::new(&namespace(1), 2, 2, 5000);
    again.append(&*tier, &stream(1)).unwrap();
    drop(tier);
    for _ in 0..3 {
        let tier = medium.open();
        let seen = Seen::of(&*tier);
        for (number, block) in blocks.0.iter().enumerate() {
            let is_there = number >= 5 || (2..4).contains(&number);
            assert_eq!(seen.has(block), is_there, "block {number}");
        }
        assert!(twin.0.iter().all(|block| seen.has(block)), "another namespace's keys");
        seen.read_all(&*tier);
    }
}

pub(super) fn a_removed_namespace_stays_removed(medium: &mut dyn Medium) {
    let tier = medium.open();
    let (gone, kept) = (namespace(1), namespace(2));
    let before = Blocks::new(&gone, 0, 6, 5000);
    let other = Blocks::new(&kept, 0, 6, 5000);
    before.append(&*tier, &stream(1)).unwrap();
    other.append(&*tier, &stream(1)).unwrap();
    remove(&*tier, &before.0[..1]).unwrap();
    tier.remove(&[Removal::Namespace { fingerprint: gone.fingerprint }]).unwrap();
    let after = Blocks::new(&gone, 3, 2, 5000);
    after.append(&*tier, &stream(1)).unwrap();
    drop(tier);
    for _ in 0..2 {
        let tier = medium.open();
        let seen = Seen::of(&*tier);
        assert_eq!(seen.blocks.len(), 8, "six of one namespace, two of the other");
        assert!(other.0.iter().chain(&after.0).all(|block| seen.has(block)));
    }
}

pub(super) fn taken_before_a_removal(medium: &mut dyn Medium) {
    let tier = medium.open();
    let (early, late) =
        (Blocks::new(&namespace(1), 0, 2, 100), Blocks::new(&namespace(1), 0, 1, 100));
    let taken = tier.sequence();
    remove(&*tier, &early.0).unwrap();
    early.append_as_of(&*tier, &stream(1), taken).unwrap();
    late.append(&*tier, &stream(1)).unwrap();
    drop(tier);
    let tier = medium.open();
    let seen = Seen::of(&*tier);
    assert!(!seen.has(&early.0[1]), "taken before, appended after");
    assert!(seen.has(&late.0[0]), "taken after");
}

/// Wants even numbers, of one tenant.
#[derive(Default)]
struct Choosy(u64);

impl RecoveryVisitor for Choosy {
    fn stream(&mut self, tenant: &str) -> Option<StreamId> {
        (tenant == "tenant-1").then_some(StreamId(7))
    }

    fn block(&mut self, block: &RecoveredBlock<'_>) -> bool {
        assert!(block.sequence > Sequence(0));
        assert_eq!(block.stream, StreamId(7));
        self.0 += 1;
        block.header.priority.is_multiple_of(2)
    }
}

pub(super) fn what_nobody_wants_is_free(medium: &mut dyn Medium) {
    let tier = medium.open();
    let all = tier.status().segments_free();
    let half = Blocks::new(&namespace(1), 0, 4, 5000);
    half.append(&*tier, &stream(1)).unwrap();
    Blocks::new(&namespace(1), 10, 4, 5000).append(&*tier, &stream(2)).unwrap();
    drop(tier);
    let tier = medium.open();
    let mut choosy = Choosy::default();
    let sum = tier.recover(&mut choosy).unwrap();
    assert_eq!((sum.blocks, sum.refused, choosy.0), (2, 2, 4));
    assert_eq!(tier.segments(StreamId(2)), []);
    let own = tier.segments(StreamId(7));
    let live: u64 = own.iter().map(|one| one.live_bytes).sum();
    assert_eq!(live, 2 * half.0[0].header.footprint());
    assert_eq!(tier.status().segments_free() + own.len() as u64, all);
}

/// Keeps the newest copy of a block, as an index does.
struct Newest<'a>(&'a dyn Tier, Seen);

impl RecoveryVisitor for Newest<'_> {
    fn stream(&mut self, tenant: &str) -> Option<StreamId> {
        self.1.stream(tenant)
    }

    fn block(&mut self, block: &RecoveredBlock<'_>) -> bool {
        let name = (block.header.fingerprint, block.header.key);
        if let Some((spot, header)) = self.1.blocks.get(&name) {
            self.0.forget(*spot, header.footprint());
        }
        self.1.block(block)
    }
}

pub(super) fn a_visitor_may_forget(medium: &mut dyn Medium) {
    let tier = medium.open();
    let blocks = Blocks::new(&namespace(1), 0, 4, 5000);
    for _ in 0..3 {
        blocks.append(&*tier, &stream(1)).unwrap();
    }
    drop(tier);
    let tier = medium.open();
    let mut newest = Newest(&*tier, Seen::default());
    assert_eq!(tier.recover(&mut newest).unwrap().blocks, 12);
    let live: u64 = tier.segments(StreamId(1)).iter().map(|one| one.live_bytes).sum();
    assert_eq!(live, 4 * blocks.0[0].header.footprint(), "copies do not count");
    newest.1.read_all(&*tier);
}

pub(super) fn new_blocks_and_recovery(medium: &mut dyn Medium) {
    let tier = medium.open();
    let old = Blocks::new(&namespace(1), 0, 5, 5000);
    old.append(&*tier, &stream(1)).unwrap();
    drop(tier);
    let tier = medium.open();
    let new = Blocks::new(&namespace(1), 3, 5, 5000);
    let spots = new.append(&*tier, &stream(1)).unwrap();
    remove(&*tier, &old.0[..1]).unwrap();
    let seen = Seen::of(&*tier);
    assert_eq!(seen.blocks.len(), 4, "what this life appended is not shown, nor what it removed");
    seen.read_all(&*tier);
    read_all(&*tier, new.0.iter().map(|block| &block.header).zip(spots));
    drop(tier);
    let tier = medium.open();
    assert_eq!(Seen::of(&*tier).blocks.len(), 7, "1 to 7, two of them twice");
}

pub(super) fn removals_outlive_many_restarts(medium: &mut dyn Medium) {
    let kept = Blocks::new(&namespace(1), 1000, 1, 5000);
    let mut gone = Vec::new();
    for round in 0..6 {
        let tier = medium.open();
        if round == 0 {
            kept.append(&*tier, &stream(1)).unwrap();
        }
        let seen = Seen::of(&*tier);
        assert!(round == 0 || seen.has(&kept.0[0]));
        let blocks = Blocks::new(&namespace(1), round * 10, 2, 5000);
        blocks.append(&*tier, &stream(1)).unwrap();
        remove(&*tier, &blocks.0[..1]).unwrap();
        gone.extend(blocks.0.into_iter().take(1));
        assert!(gone[..round as usize].iter().all(|block| !seen.has(block)), "round {round}");
    }
    let tier = medium.open();
    let seen = Seen::of(&*tier);
    assert!(gone.iter().all(|block| !seen.has(block)));
    assert_eq!(seen.blocks.len(), 7);
}
