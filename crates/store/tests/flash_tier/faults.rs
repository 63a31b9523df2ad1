//! Devices that fail, fill up, hang, write short, or read wrong: a clean error within the time for
//! one operation, the device named, and the others go on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keepwarm_store::flash::device::{CountingDevice, Device, DeviceFaults, FaultyDevice};
use keepwarm_store::flash::{FlashSettings, FlashTier};
use keepwarm_store::tiers::conformance::{Blocks, Seen, namespace, read_all, read_one, stream};
use keepwarm_store::tiers::{
    AlignedBuffer, DeviceState, Hold, Removal, StreamId, Tier, TierError, TierRead,
};

use super::{devices, settings};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const TIMEOUT: Duration = Duration::from_millis(100);

/// A tier over devices that can be made to fail.
fn faulty(
    memory: &[keepwarm_store::flash::device::MemDevice],
) -> (FlashTier, Vec<Arc<DeviceFaults>>) {
    let over = memory.iter().map(|device| FaultyDevice::new(Arc::new(device.again())));
    let over: Vec<FaultyDevice> = over.collect();
    let faults = over.iter().map(|device| device.faults().clone()).collect();
    let over = over.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
    let settings = FlashSettings { op_timeout: TIMEOUT, ..settings() };
    (FlashTier::over(over, &settings).expect("opened"), faults)
}

fn state(tier: &FlashTier, device: usize) -> DeviceState {
    tier.status().devices[device].state.clone()
}

fn remove_first(tier: &FlashTier, blocks: &Blocks) -> Result<(), TierError> {
    let header = &blocks.0[0].header;
    let (fingerprint, keys) = (header.fingerprint, vec![header.key]);
    tier.remove(&[Removal::Keys { fingerprint, keys }])
}

/// Memory whose owner asks the tier something as it lets go: in the store a hold takes locks that
/// others have while they ask.
struct Asking(Arc<FlashTier>, #[allow(dead_code)] AlignedBuffer);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.status();
    }
}

#[test]
fn what_a_hung_device_gives_back_late_may_take_its_owners_locks() {
    let memory = devices(2, 8);
    let (tier, faults) = faulty(&memory);
    let tier = Arc::new(tier);
    let blocks = Blocks::new(&namespace(1), 0, 1, 9000);
    let spots = blocks.append(&*tier, &stream(1)).unwrap();
    let part = blocks.0[0].header.parts[0];
    let device = usize::from(spots[0].device);
    faults[device].hang(true);
    let mut queue = tier.reads(4).unwrap();
    let buffer = AlignedBuffer::new(part.len as usize);
    let mut read = TierRead::into_buffer(7, spots[0], part, AlignedBuffer::new(9000));
    // SAFETY: the buffer goes into the hold.
    read.pieces = vec![unsafe { buffer.piece(part.len as usize) }];
    read.hold = Box::new(Asking(tier.clone(), buffer));
    queue.submit(read).map_err(|refused| refused.error).unwrap();
    let until = Instant::now() + TIMEOUT * 50;
    let done = std::iter::from_fn(|| Some(queue.complete(TIMEOUT)));
    let done = done.take_while(|_| Instant::now() < until).flatten().next().expect("in time");
    assert!(done.hold.is_none() && matches!(done.result, Err(TierError::Deadline { .. })));
    assert_eq!(tier.status().devices[device].quarantined, 1);
    faults[device].hang(false);
    let (said, heard) = std::sync::mpsc::channel();
    let asked = tier.clone();
    std::thread::spawn(move || said.send(asked.status().devices[device].quarantined));
    assert_eq!(heard.recv_timeout(TIMEOUT * 100), Ok(0), "it lets go, and answers");
}

#[test]
fn a_bad_place_costs_one_read_and_a_bad_device_its_share() {
    let memory = devices(1, 8);
    let (tier, faults) = faulty(&memory);
    let blocks = Blocks::new(&namespace(1), 0, 4, 9000);
    let spots = blocks.append(&tier, &stream(1)).unwrap();
    let place = blocks.0[0].header.parts[0];
    faults[0].fail_reads(Some(EIO));
    let error = read_one(&tier, spots[0], place).unwrap_err();
    assert!(error.to_string().contains("flash-0 failed to read"), "{error}");
    assert_eq!(state(&tier, 0), DeviceState::Live);
    faults[0].fail_reads(None);
    read_all(&tier, blocks.0.iter().map(|block| &block.header).zip(spots.iter().copied()));
    faults[0].fail_reads(Some(EIO));
    for _ in 0..16 {
        assert!(read_one(&tier, spots[0], place).is_err());
    }
    assert!(matches!(state(&tier, 0), DeviceState::Fenced { .. }));
    let error = read_one(&tier, spots[0], place).unwrap_err();
    assert!(error.to_string().contains("16 reads in a row"), "{error}");
    assert!(tier.status().devices[0].errors >= 17);
}

#[test]
fn a_full_or_failing_disk_takes_no_more_and_still_reads() {
    for errno in [EIO, ENOSPC] {
        let memory = devices(2, 8);
        let (tier, faults) = faulty(&memory);
        let before = Blocks::new(&namespace(1), 0, 2, 9000);
        let mut spots = before.append(&tier, &stream(1)).unwrap();
        faults[0].fail_writes(Some(errno));
        let mut after = Vec::new();
        for number in 0..6 {
            let more = Blocks::new(&namespace(1), 10 + number, 1, 9000);
            spots.extend(more.append(&tier, &stream(1)).expect("the other device takes it"));
            after.extend(more.0);
        }
        let DeviceState::ReadOnly { why } = state(&tier, 0) else { panic!("{:?}", tier.status()) };
        assert!(why.contains("append failed") || why.contains("could not begin"), "{why}");
        let all = before.0.iter().chain(&after);
        read_all(&tier, all.map(|block| &block.header).zip(spots.iter().copied()));
        faults[1].fail_writes(Some(errno));
        let error = Blocks::new(&namespace(1), 30, 1, 9000).append(&tier, &stream(1)).unwrap_err();
        assert!(matches!(error, TierError::Io { .. }), "{error}");
        let error = Blocks::new(&namespace(1), 30, 1, 9000).append(&tier, &stream(1)).unwrap_err();
        assert!(matches!(error, TierError::Fenced { .. }), "{error}");
    }
}

#[test]
fn a_failed_flush_is_told_and_the_device_takes_no_more() {
    let memory = devices(1, 8);
    let (tier, faults) = faulty(&memory);
    Blocks::new(&namespace(1), 0, 2, 9000).append(&tier, &stream(1)).unwrap();
    faults[0].fail_flushes(Some(EIO));
    assert!(matches!(tier.flush(), Err(TierError::Io { what: "flush", .. })));
    assert!(matches!(state(&tier, 0), DeviceState::ReadOnly { .. }));
}

#[test]
fn short_writes_are_finished() {
    let memory = devices(1, 8);
    let (tier, faults) = faulty(&memory);
    faults[0].shorten_writes(true);
    let blocks = Blocks::new(&namespace(1), 0, 3, 50_000);
    let spots = blocks.append(&tier, &stream(1)).unwrap();
    read_all(&tier, blocks.0.iter().map(|block| &block.header).zip(spots));
}

#[test]
fn wrong_bytes_are_corrupt_never_ok() {
    let memory = devices(1, 8);
    let (tier, faults) = faulty(&memory);
    let blocks = Blocks::new(&namespace(1), 0, 1, 9000);
    let spot = blocks.append(&tier, &stream(1)).unwrap()[0];
    faults[0].change_reads(true);
    let (header, place) = (&blocks.0[0].header, blocks.0[0].header.parts[0]);
    let read = read_one(&tier, spot, place);
    assert!(matches!(read, Err(TierError::Corrupt { what: "block", .. })), "{read:?}");
    let described = tier.describe(spot, &header.fingerprint, header.key);
    assert!(matches!(described, Err(TierError::Corrupt { what: "header", .. })), "{described:?}");
}

/// A hold that says when it goes.
struct Watched(
    #[expect(dead_code, reason = "it keeps the memory")] AlignedBuffer,
    #[expect(dead_code, reason = "it is counted")] Arc<()>,
);

#[test]
fn a_hanging_device_is_fenced_and_keeps_the_memory_of_reads() {
    let memory = devices(2, 8);
    let (tier, faults) = faulty(&memory);
    let (one, two) =
        (Blocks::new(&namespace(1), 0, 1, 9000), Blocks::new(&namespace(1), 1, 1, 9000));
    let first = one.append(&tier, &stream(1)).unwrap()[0];
    let second = two.append(&tier, &stream(1)).unwrap()[0];
    assert_ne!(first.device, second.device);
    faults[usize::from(first.device)].hang(true);
    let mut queue = tier.reads(4).unwrap();
    let alive = Arc::new(());
    for (token, spot, block) in [(1, first, &one.0[0]), (2, second, &two.0[0])] {
        let place = block.header.parts[0];
        let mut read = TierRead::into_buffer(token, spot, place, AlignedBuffer::new(9000));
        let buffer = *read.hold.downcast::<AlignedBuffer>().expect("its buffer");
        read.hold = Box::new(Watched(buffer, alive.clone()));
        assert!(queue.submit(read).is_ok());
    }
    let begun = Instant::now();
    let done = queue.complete(Duration::from_secs(60)).expect("the other device's read");
    assert_eq!((done.token, done.result), (2, Ok(())));
    drop(done.hold);
    let late = queue.complete(Duration::from_secs(60)).expect("the hung one's, in time");
    assert!(begun.elapsed() < TIMEOUT + Duration::from_secs(5));
    assert_eq!(late.token, 1);
    assert!(matches!(late.result, Err(TierError::Deadline { .. })), "{:?}", late.result);
    assert!(late.hold.is_none(), "the device has the memory still");
    assert!(matches!(state(&tier, first.device.into()), DeviceState::Fenced { .. }));
    assert_eq!(tier.status().devices[usize::from(first.device)].quarantined, 1);
    assert_eq!(Arc::strong_count(&alive), 2, "the memory is kept");
    drop(queue);
    read_all(&tier, [(&two.0[0].header, second)]);
    faults[usize::from(first.device)].hang(false);
    assert_eq!(tier.status().devices[usize::from(first.device)].quarantined, 0);
    assert_eq!(Arc::strong_count(&alive), 1, "the device let go, and so did we");
}

#[test]
fn a_hanging_device_keeps_the_memory_of_appends() {
    let memory = devices(1, 8);
    let (tier, faults) = faulty(&memory);
    Blocks::new(&namespace(1), 0, 1, 9000).append(&tier, &stream(1)).unwrap();
    faults[0].hang(true);
    let blocks = Blocks::new(&namespace(1), 1, 2, 9000);
    let alive = Arc::new(());
    let mut hold: Option<Hold> = Some(Box::new((alive.clone(), "stands for the blocks' pins")));
    let made: Vec<_> = blocks.0.iter().map(|block| block.tier_block()).collect();
    let error = tier.append(&stream(1), tier.sequence(), &made, &mut hold).unwrap_err();
    assert!(matches!(error, TierError::Deadline { what: "append", .. }), "{error}");
    assert!(hold.is_none() && Arc::strong_count(&alive) == 2, "the device may still read it");
    assert!(tier.status().devices[0].quarantined >= 1);
    let again = Instant::now();
    assert!(matches!(
        tier.append(&stream(1), tier.sequence(), &made, &mut None),
        Err(TierError::Fenced { .. })
    ));
    assert!(matches!(remove_first(&tier, &blocks), Err(TierError::Fenced { .. })));
    assert!(again.elapsed() < TIMEOUT, "a fenced device is not waited for");
    faults[0].hang(false);
    assert_eq!(tier.status().devices[0].quarantined, 0);
    assert_eq!(Arc::strong_count(&alive), 1);
}

#[test]
fn a_device_that_missed_a_removal_is_void_when_it_comes_back() {
    let memory = devices(3, 8);
    let (tier, faults) = faulty(&memory);
    let blocks: Vec<Blocks> = (0..9).map(|n| Blocks::new(&namespace(1), n, 1, 9000)).collect();
    let spots: Vec<_> =
        blocks.iter().map(|one| one.append(&tier, &stream(1)).unwrap()[0]).collect();
    tier.flush().unwrap();
    let gone = &blocks[0];
    faults[usize::from(spots[0].device)].fail_writes(Some(EIO));
    assert_eq!(remove_first(&tier, gone), Ok(()), "the others keep it");
    assert!(matches!(state(&tier, spots[0].device.into()), DeviceState::Fenced { .. }));
    drop(tier);
    for _ in 0..2 {
        let (tier, _) = faulty(&memory);
        let seen = Seen::of(&tier);
        assert!(!seen.has(&gone.0[0]), "it was removed");
        assert_eq!(seen.blocks.len(), 6, "its device's share is gone, the others' is there");
        seen.read_all(&tier);
    }
}

#[test]
fn a_device_that_was_away_is_void_when_it_comes_back() {
    let memory = devices(2, 8);
    let (tier, _) = faulty(&memory);
    let blocks: Vec<Blocks> = (0..4).map(|n| Blocks::new(&namespace(1), n, 1, 9000)).collect();
    blocks.iter().for_each(|one| drop(one.append(&tier, &stream(1)).unwrap()));
    drop(tier);
    let (tier, _) = faulty(&memory[..1]);
    let seen = Seen::of(&tier);
    assert_eq!(seen.blocks.len(), 2);
    drop(tier);
    let (tier, _) = faulty(&memory);
    assert_eq!(Seen::of(&tier).blocks.len(), 2, "the one that was away may have missed removals");
    Blocks::new(&namespace(1), 10, 1, 9000).append(&tier, &stream(1)).unwrap();
    drop(tier);
    let (tier, _) = faulty(&memory);
    assert_eq!(Seen::of(&tier).blocks.len(), 3);
}

#[test]
fn queues_are_bounded_and_recovery_reads_headers_only() {
    let memory = devices(1, 40);
    let counting = Arc::new(CountingDevice::new(Arc::new(memory[0].again())));
    let counts = counting.counts().clone();
    let tier = FlashTier::over(vec![counting], &settings()).unwrap();
    for number in 0..30 {
        Blocks::new(&namespace(1), number, 1, 200_000).append(&tier, &stream(1)).unwrap();
    }
    let queues: Vec<_> = (0..200).filter_map(|_| tier.reads(4).ok()).collect();
    let (block, spot) = (Blocks::new(&namespace(1), 50, 1, 9000), Seen::default());
    let spot = {
        drop(spot);
        block.append(&tier, &stream(1)).unwrap()[0]
    };
    let mut opened = Vec::new();
    let mut refusals = 0;
    for mut queue in queues {
        let place = block.0[0].header.parts[0];
        let read = TierRead::into_buffer(1, spot, place, AlignedBuffer::new(9000));
        match queue.submit(read) {
            Ok(()) => opened.push(queue),
            Err(refused) => {
                assert!(matches!(refused.error, TierError::Busy { .. }), "{}", refused.error);
                refusals += 1;
            }
        }
    }
    assert!(opened.len() <= 64 && refusals > 0, "{} queues of a device", opened.len());
    drop(opened);
    tier.status();
    assert!(
        tier.reads(4)
            .unwrap()
            .submit(TierRead::into_buffer(
                1,
                spot,
                block.0[0].header.parts[0],
                AlignedBuffer::new(9000)
            ))
            .is_ok()
    );
    drop(tier);
    let counting = Arc::new(CountingDevice::new(Arc::new(memory[0].again())));
    let again = counting.counts().clone();
    let tier = FlashTier::over(vec![counting], &settings()).unwrap();
    let sum = tier.recover(&mut Seen::default()).unwrap();
    assert_eq!(sum.blocks, 31);
    let read = again.read_bytes.load(std::sync::atomic::Ordering::Relaxed);
    assert!(sum.header_bytes <= read && read < 31 * 200_000 / 4, "{read} bytes of headers");
    assert!(sum.blocks_per_second() > 0.0 && sum.bytes_per_second() > sum.blocks_per_second());
    assert_eq!(tier.segments(StreamId(1)).len() as u64, sum.segments);
    assert!(counts.queues.load(std::sync::atomic::Ordering::Relaxed) < 80);
}
