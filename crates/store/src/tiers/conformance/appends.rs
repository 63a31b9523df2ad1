//! Cases within one life of a tier.

use std::time::Duration;

use super::super::{
    AlignedBuffer, DeviceState, Retry, Sequence, StreamId, TierBlock, TierError, TierRead,
};
use super::blocks::{Blocks, MadeBlock, namespace, read_all, read_one, stream};
use super::{Medium, Seen};

pub(super) fn blocks_come_back(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let space = namespace(1);
    let lengths: [&[u32]; 7] =
        [&[1], &[4095], &[4096], &[4097], &[70_000], &[5000, 1, 8192, 3], &[1; 64]];
    let made: Vec<MadeBlock> = (0..)
        .zip(lengths)
        .map(|(number, lengths)| MadeBlock::new(&space, number, lengths))
        .collect();
    let blocks = Blocks(made);
    let spots = blocks.append(tier, &stream(1)).unwrap();
    assert_eq!(spots.len(), blocks.0.len());
    read_all(tier, blocks.0.iter().map(|block| &block.header).zip(spots.iter().copied()));
    for (block, spot) in blocks.0.iter().zip(&spots) {
        assert_eq!(usize::from(spot.parts), block.header.parts.len());
        let header = tier.describe(*spot, &space.fingerprint, block.header.key).unwrap();
        assert_eq!(header, block.header);
    }
    let status = tier.status();
    assert!(status.devices.iter().all(|device| device.state == DeviceState::Live));
    let payload: u64 = blocks.0.iter().map(|block| block.header.footprint()).sum();
    assert_eq!(status.devices.iter().map(|device| device.payload_bytes).sum::<u64>(), payload);
    assert_eq!(status.devices.iter().map(|device| device.live_bytes).sum::<u64>(), payload);
}

pub(super) fn many_reads_are_in_flight(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let blocks = Blocks::new(&namespace(1), 0, 40, 9000);
    let spots = blocks.append(tier, &stream(1)).unwrap();
    let mut queue = tier.reads(16).unwrap();
    assert!(queue.complete(Duration::ZERO).is_none(), "nothing is in flight");
    let mut seen = vec![0; spots.len()];
    let mut next = 0;
    while seen.iter().sum::<u32>() < 40 {
        while next < 40 && queue.in_flight() < queue.depth() {
            let place = blocks.0[next].header.parts[0];
            let buffer = AlignedBuffer::new(9000);
            let read = TierRead::into_buffer(next as u64, spots[next], place, buffer);
            assert!(queue.submit(read).is_ok());
            next += 1;
        }
        let done = queue.complete(Duration::from_secs(60)).expect("over in time");
        assert_eq!(done.result, Ok(()));
        seen[done.token as usize] += 1;
    }
    assert!(seen.iter().all(|times| *times == 1), "each read is over once: {seen:?}");
    assert_eq!(queue.in_flight(), 0);
}

pub(super) fn a_batch_may_mix_namespaces(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let spaces: Vec<_> = (1..5).map(namespace).collect();
    let make = |number: u64| MadeBlock::new(&spaces[number as usize % 4], number, &[100]);
    let blocks = Blocks((0..16).map(make).collect());
    for _ in 0..2 {
        let spots = blocks.append(tier, &stream(1)).unwrap();
        read_all(tier, blocks.0.iter().map(|block| &block.header).zip(spots));
    }
}

pub(super) fn a_large_batch_spans_segments(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let segment = tier.status().segment_bytes;
    let len = (segment / 4) as u32;
    let blocks = Blocks::new(&namespace(1), 0, 8, len);
    let spots = blocks.append(tier, &stream(1)).unwrap();
    read_all(tier, blocks.0.iter().map(|block| &block.header).zip(spots.iter().copied()));
    let mut used: Vec<_> = spots.iter().map(|spot| spot.segment()).collect();
    used.dedup();
    assert!(used.len() >= 2, "eight quarters do not fit one segment");
    let small: Vec<u64> = (0..300).collect();
    let small = small.iter().map(|number| MadeBlock::new(&namespace(2), 100 + number, &[64]));
    let small = Blocks(small.take(20).collect());
    let spots = small.append(tier, &stream(1)).unwrap();
    read_all(tier, small.0.iter().map(|block| &block.header).zip(spots));
}

pub(super) fn streams_have_segments_of_their_own(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let (one, two) = (stream(1), stream(2));
    let ours = Blocks::new(&namespace(1), 0, 4, 5000);
    let theirs = Blocks::new(&namespace(1), 10, 4, 5000);
    let our_spots = ours.append(tier, &one).unwrap();
    let their_spots = theirs.append(tier, &two).unwrap();
    let (own, other) = (tier.segments(one.id), tier.segments(two.id));
    assert!(!own.is_empty() && !other.is_empty());
    assert!(own.iter().all(|mine| other.iter().all(|its| its.segment != mine.segment)));
    assert!(our_spots.iter().all(|spot| own.iter().any(|one| one.segment == spot.segment())));
    assert_eq!(own.iter().map(|one| one.blocks).sum::<u32>(), 4);
    assert_eq!(tier.segments(StreamId(9)), []);
    for info in own {
        tier.reclaim(info.segment).unwrap();
        assert_eq!(tier.reclaim(info.segment), Err(TierError::Gone));
    }
    assert_eq!(tier.segments(one.id), []);
    for (block, spot) in ours.0.iter().zip(our_spots) {
        assert_eq!(read_one(tier, spot, block.header.parts[0]), Err(TierError::Gone));
        let described = tier.describe(spot, &block.namespace.fingerprint, block.header.key);
        assert_eq!(described, Err(TierError::Gone));
    }
    read_all(tier, theirs.0.iter().map(|block| &block.header).zip(their_spots));
}

pub(super) fn a_full_tier_goes_on(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let len = (tier.status().segment_bytes / 3) as u32;
    let mut number = 0;
    let mut append = || {
        number += 1;
        let block = Blocks::new(&namespace(1), number, 1, len);
        block.append(tier, &stream(1)).map(|spots| (block, spots[0]))
    };
    let mut kept = Vec::new();
    let error = loop {
        match append() {
            Ok(one) => kept.push(one),
            Err(error) => break error,
        }
        assert!(kept.len() < 10_000, "a tier is bounded");
    };
    assert_eq!(error.retry(), Retry::AfterReclaim, "{error}");
    for _ in 0..20 {
        let oldest = tier.segments(StreamId(1))[0].segment;
        tier.reclaim(oldest).unwrap();
        kept.retain(|(_, spot)| spot.segment() != oldest);
        kept.push(append().expect("room after a reclaim"));
    }
    let lives: Vec<u32> = tier.segments(StreamId(1)).iter().map(|one| one.segment.life).collect();
    assert!(lives.is_sorted());
    read_all(tier, kept.iter().map(|(block, spot)| (&block.0[0].header, *spot)));
}

pub(super) fn forgotten_blocks_do_not_count(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let blocks = Blocks::new(&namespace(1), 0, 3, 5000);
    let spots = blocks.append(tier, &stream(1)).unwrap();
    let live = || tier.segments(StreamId(1)).iter().map(|one| one.live_bytes).sum::<u64>();
    let each = blocks.0[0].header.footprint();
    for (gone, spot) in spots.iter().enumerate() {
        assert_eq!(live(), each * (3 - gone as u64));
        tier.forget(*spot, each);
    }
    assert_eq!(live(), 0);
    tier.forget(spots[0], each);
    assert_eq!(live(), 0);
}

pub(super) fn what_does_not_fit_is_refused(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let space = namespace(1);
    let limit = tier.status().block_bytes_max;
    let fitting = MadeBlock::new(&space, 1, &[limit as u32]);
    Blocks(vec![fitting]).append(tier, &stream(1)).expect("the largest block");
    let large = Blocks(vec![MadeBlock::new(&space, 2, &[tier.status().segment_bytes as u32])]);
    let error = large.append(tier, &stream(1)).unwrap_err();
    assert!(matches!(error, TierError::TooLarge { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Never);
    let none: Vec<TierBlock<'_>> = vec![TierBlock { parts: Vec::new(), ..large.0[0].tier_block() }];
    let refused = tier.append(&stream(1), Sequence(1), &none, &mut None);
    assert!(matches!(refused, Err(TierError::Invalid(_))));
    let nameless = super::super::Stream { id: StreamId(1), tenant: "".into() };
    let refused = Blocks::new(&space, 3, 1, 1).append(tier, &nameless);
    assert!(matches!(refused, Err(TierError::Invalid(_))));
    assert_eq!(Blocks(Vec::new()).append(tier, &stream(1)), Ok(Vec::new()));
    assert_eq!(Seen::of(tier).blocks.len(), 0, "nothing of an earlier life");
    let again = tier.recover(&mut Seen::default());
    assert!(matches!(again, Err(TierError::Invalid(_))));
}

pub(super) fn a_full_queue_gives_the_read_back(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let blocks = Blocks::new(&namespace(1), 0, 1, 5000);
    let spot = blocks.append(tier, &stream(1)).unwrap()[0];
    let place = blocks.0[0].header.parts[0];
    let read = |token| TierRead::into_buffer(token, spot, place, AlignedBuffer::new(5000));
    let mut queue = tier.reads(2).unwrap();
    assert!(queue.submit(read(1)).is_ok() && queue.submit(read(2)).is_ok());
    let refused = queue.submit(read(3)).expect_err("the queue is full");
    assert_eq!(refused.error.retry(), Retry::Later);
    assert_eq!(refused.read.token, 3);
    assert!(refused.read.hold.downcast::<AlignedBuffer>().is_ok());
    assert!(queue.complete(Duration::from_secs(60)).is_some());
    assert!(queue.submit(read(4)).is_ok());
    assert!(queue.complete(Duration::from_secs(60)).is_some());
    assert!(queue.complete(Duration::from_secs(60)).is_some());
    let mut wrong = read(5);
    wrong.part.checksum ^= 1;
    assert!(queue.submit(wrong).is_ok());
    let done = queue.complete(Duration::from_secs(60)).unwrap();
    assert!(matches!(done.result, Err(TierError::Corrupt { .. })), "{:?}", done.result);
    let mut short = read(6);
    short.part.len += 1;
    assert!(queue.submit(short).is_err(), "pieces and part differ");
}

pub(super) fn a_header_names_its_block(medium: &mut dyn Medium) {
    let tier = &*medium.open();
    let blocks = Blocks::new(&namespace(1), 0, 2, 5000);
    let spots = blocks.append(tier, &stream(1)).unwrap();
    let (space, key) = (namespace(1).fingerprint, blocks.0[1].header.key);
    assert!(tier.describe(spots[1], &space, key).is_ok());
    let other = tier.describe(spots[0], &space, key);
    assert!(matches!(other, Err(TierError::Corrupt { .. })), "{other:?}");
    let other = tier.describe(spots[1], &namespace(2).fingerprint, key);
    assert!(matches!(other, Err(TierError::Corrupt { .. })), "{other:?}");
    let nowhere = super::super::Spot { segment: 1 << 30, ..spots[1] };
    assert_eq!(tier.describe(nowhere, &space, key), Err(TierError::Gone));
}
