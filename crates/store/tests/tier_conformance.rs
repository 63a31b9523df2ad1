//! The conformance suite of tiers, over each tier there is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keepwarm_store::ManualClock;
use keepwarm_store::flash::device::{Device, MemDevice};
use keepwarm_store::flash::{FlashSettings, FlashTier};
use keepwarm_store::tiers::conformance::{Blocks, Medium, namespace, read_one, run, stream};
use keepwarm_store::tiers::{
    Counting, Faulting, MemMedium, MemTier, Rate, Retry, Throttling, Tier, TierError,
};

struct Mem(MemMedium);

impl Medium for Mem {
    fn open(&mut self) -> Box<dyn Tier> {
        Box::new(MemTier::open(&self.0))
    }
}

#[test]
fn memory() {
    run(&mut || Box::new(Mem(MemMedium::new(12, 512 << 10))));
}

struct Flash(Vec<MemDevice>);

impl Flash {
    fn new(devices: usize) -> Flash {
        let name = |number| format!("flash-{number}");
        Flash((0..devices).map(|n| MemDevice::new(&name(n), (1 << 20) + (12 << 19))).collect())
    }
}

impl Medium for Flash {
    fn open(&mut self) -> Box<dyn Tier> {
        let devices = self.0.iter().map(|one| Arc::new(one.again()) as Arc<dyn Device>).collect();
        let settings = FlashSettings { segment_bytes: Some(512 << 10), ..FlashSettings::default() };
        Box::new(FlashTier::over(devices, &settings).expect("opened"))
    }
}

#[test]
fn flash_on_one_device() {
    run(&mut || Box::new(Flash::new(1)));
}

#[test]
fn flash_on_three_devices() {
    run(&mut || Box::new(Flash::new(3)));
}

/// A wrapper over each tier that a medium opens.
struct Wrapped<M>(M, fn(Box<dyn Tier>) -> Box<dyn Tier>);

impl<M: Medium> Medium for Wrapped<M> {
    fn open(&mut self) -> Box<dyn Tier> {
        (self.1)(self.0.open())
    }
}

const WIDE: Rate = Rate { bytes_per_second: 1 << 40, burst_bytes: 1 << 40 };

fn counted(below: Box<dyn Tier>) -> Box<dyn Tier> {
    Box::new(Counting::new(below))
}

fn throttled(below: Box<dyn Tier>) -> Box<dyn Tier> {
    Box::new(Throttling::new(below, WIDE, WIDE, Arc::new(ManualClock::new())))
}

fn faulting(below: Box<dyn Tier>) -> Box<dyn Tier> {
    Box::new(Faulting::new(below))
}

#[test]
fn wrappers_over_memory() {
    for wrap in [counted, throttled, faulting] {
        run(&mut || Box::new(Wrapped(Mem(MemMedium::new(12, 512 << 10)), wrap)));
    }
}

#[test]
fn wrappers_over_flash() {
    let all = |below| counted(throttled(faulting(below)));
    run(&mut || Box::new(Wrapped(Flash::new(2), all)));
}

#[test]
fn counting_counts_what_passed() {
    let tier = Counting::new(MemTier::open(&MemMedium::new(8, 512 << 10)));
    let blocks = Blocks::new(&namespace(1), 0, 3, 5000);
    let spots = blocks.append(&tier, &stream(1)).unwrap();
    read_one(&tier, spots[0], blocks.0[0].header.parts[0]).unwrap();
    tier.reclaim(spots[0].segment()).unwrap();
    assert!(read_one(&tier, spots[0], blocks.0[0].header.parts[0]).is_err());
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counts = tier.counts();
    assert_eq!(count(&counts.appends), 1);
    assert_eq!(count(&counts.appended_blocks), 3);
    assert_eq!(count(&counts.appended_bytes), 3 * 8192);
    assert_eq!((count(&counts.reads), count(&counts.read_bytes)), (1, 5000));
    assert_eq!((count(&counts.errors), count(&counts.reclaims)), (1, 1));
}

#[test]
fn throttling_lets_a_rate_pass_and_refuses_the_rest_at_once() {
    let clock = Arc::new(ManualClock::new());
    let rate = Rate { bytes_per_second: 8192, burst_bytes: 16_384 };
    let below = MemTier::open(&MemMedium::new(8, 512 << 10));
    let tier = Throttling::new(below, rate, rate, clock.clone());
    let block = |number| Blocks::new(&namespace(1), number, 1, 8000);
    let spot = block(0).append(&tier, &stream(1)).unwrap()[0];
    assert!(block(1).append(&tier, &stream(1)).is_ok(), "the burst is two blocks");
    let error = block(2).append(&tier, &stream(1)).unwrap_err();
    assert_eq!(error.retry(), Retry::Later);
    clock.advance(Duration::from_millis(990));
    assert!(block(2).append(&tier, &stream(1)).is_err());
    clock.advance(Duration::from_millis(20));
    assert!(block(2).append(&tier, &stream(1)).is_ok(), "a second later");
    assert!(block(3).append(&tier, &stream(1)).is_err());
    let place = block(0).0[0].header.parts[0];
    let reads: Vec<bool> = (0..4).map(|_| read_one(&tier, spot, place).is_ok()).collect();
    assert_eq!(reads, [true, true, false, false], "reads have an account of their own");
    clock.advance(Duration::from_secs(60));
    let large = Blocks::new(&namespace(1), 9, 1, 100_000);
    assert!(large.append(&tier, &stream(1)).is_ok(), "larger than the burst, after a pause");
    clock.advance(Duration::from_secs(5));
    assert!(block(4).append(&tier, &stream(1)).is_err(), "and paid off before the next");
}

#[test]
fn faulting_fails_as_told_and_keeps_what_a_device_would() {
    let tier = Faulting::new(MemTier::open(&MemMedium::new(8, 512 << 10)));
    let faults = tier.faults().clone();
    let late = TierError::Deadline { device: "x".into(), what: "append", waited_ms: 1 };
    let blocks = Blocks::new(&namespace(1), 0, 1, 5000);
    faults.fail_append(late.clone());
    faults.keep_holds(true);
    assert_eq!(blocks.append(&tier, &stream(1)), Err(late));
    assert_eq!(tier.release_holds(), 1);
    let spot = blocks.append(&tier, &stream(1)).unwrap()[0];
    let place = blocks.0[0].header.parts[0];
    faults.fail_read(TierError::Gone);
    assert_eq!(read_one(&tier, spot, place), Err(TierError::Gone));
    assert_eq!(tier.release_holds(), 1);
    assert_eq!(read_one(&tier, spot, place), Ok(()));
    faults.fail_reads(Some(TierError::Gone));
    assert_eq!(read_one(&tier, spot, place), Err(TierError::Gone));
    faults.fail_reads(None);
    assert_eq!(read_one(&tier, spot, place), Ok(()));
}
