//! The store over devices that hang, fill up and fail: every call ends in time, what is lost is a
//! miss, and the rest goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keepwarm_store::flash::device::{Device, DeviceFaults, FaultyDevice, MemDevice};
use keepwarm_store::flash::{FlashSettings, FlashTier};
use keepwarm_store::tiers::{DeviceState, Tier};
use keepwarm_store::types::{MissReason, NamespaceId};
use keepwarm_store::{
    FlashAdmission, FlashShed, FlashStats, ManualClock, Session, Store, StoreConfig,
};

use crate::common::{attach, content, key, put, spec};
use crate::fixture::EPOCH;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const LEN: usize = 40_000;
const SEGMENT: u64 = 256 << 10;
/// How long a reader waits for flash here, and a device for an operation.
const PATIENCE: Duration = Duration::from_millis(200);
const OP_TIMEOUT: Duration = Duration::from_millis(800);
/// What a busy machine may add to a wait.
const SLACK: Duration = Duration::from_secs(5);

struct Node {
    session: Session,
    ns: NamespaceId,
    store: Arc<Store>,
    faults: Vec<Arc<DeviceFaults>>,
}

impl Node {
    /// Memory for a few blocks over so many devices, with the store's own threads.
    fn new(devices: usize) -> Node {
        let bytes = ((1 << 20) + 32 * SEGMENT) as usize;
        let over: Vec<FaultyDevice> = (0..devices)
            .map(|number| MemDevice::new(&format!("flash-{number}"), bytes))
            .map(|device| FaultyDevice::new(Arc::new(device)))
            .collect();
        let faults = over.iter().map(|device| device.faults().clone()).collect();
        let over = over.into_iter().map(|device| Arc::new(device) as Arc<dyn Device>).collect();
        let settings = FlashSettings {
            segment_bytes: Some(SEGMENT),
            op_timeout: OP_TIMEOUT,
            ..FlashSettings::default()
        };
        let tier: Arc<dyn Tier> = Arc::new(FlashTier::over(over, &settings).expect("opened"));
        let mut config = StoreConfig::new(80 * 4096);
        config.flash.admission = FlashAdmission::All;
        config.flash.read_patience = PATIENCE;
        let clock = Arc::new(ManualClock::new());
        let store = Store::open_over(config, clock, Some(tier)).expect("a store");
        let session = store.session();
        let ns = attach(&session, &spec("default", "one", 1));
        let node = Node { session, ns, store, faults };
        node.settle();
        node
    }

    fn settle(&self) {
        let until = Instant::now() + Duration::from_secs(30);
        while self.store.is_flash_busy() {
            assert!(Instant::now() < until, "still moving: {:?}", self.flash());
            std::thread::yield_now();
        }
    }

    fn flash(&self) -> FlashStats {
        self.store.flash_stats().expect("flash")
    }

    fn put(&self, numbers: std::ops::Range<u64>) {
        for number in numbers {
            put(&self.session, self.ns, EPOCH, key(number), 0, &content(number, LEN));
            self.settle();
        }
    }

    /// Reads each block: its own bytes or a miss, within a reader's patience.
    fn read(&self, numbers: std::ops::Range<u64>) -> Vec<Result<(), MissReason>> {
        let read = |number| {
            let begun = Instant::now();
            let pin = self.session.read(self.ns, EPOCH, key(number), 0);
            assert!(begun.elapsed() < PATIENCE + SLACK, "{number}: {:?}", begun.elapsed());
            let pin = pin?;
            let mut bytes = vec![0; pin.len()];
            assert_eq!(pin.copy_to(&mut bytes), pin.checksum());
            assert!(bytes == content(number, LEN), "block {number}: its own bytes");
            Ok(())
        };
        numbers.map(read).collect()
    }

    fn is_fenced(&self, device: usize) -> bool {
        matches!(self.flash().devices[device].state, DeviceState::Fenced { .. })
    }

    /// Does the housekeeping until this holds.
    fn keep_house_until(&self, what: &str, holds: impl Fn(&Node) -> bool) {
        let until = Instant::now() + Duration::from_secs(30);
        while !holds(self) {
            assert!(Instant::now() < until, "{what}: {:?}", self.flash());
            self.store.tick();
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_hung_device_costs_its_blocks_and_nobody_waits_for_it() {
    let node = Node::new(2);
    node.put(0..40);
    assert_eq!(node.flash().counters.written, 40);
    node.faults[0].hang(true);
    let during = node.read(0..30);
    let is_fine = |read: &Result<(), MissReason>| {
        matches!(read, Ok(()) | Err(MissReason::Throttled | MissReason::Absent))
    };
    assert!(during.iter().all(is_fine), "{during:?}");
    node.keep_house_until("given up", |node| node.is_fenced(0));
    node.keep_house_until("its blocks vanish", |node| node.flash().counters.lost > 0);
    node.settle();
    let lost = node.flash().counters.lost;
    let after = node.read(0..40);
    assert!(after.iter().any(Result::is_ok), "the other device's: {after:?}");
    assert!(after.iter().all(|read| *read != Err(MissReason::Throttled)), "{after:?}");
    node.put(100..120);
    assert!(node.read(100..120).iter().all(Result::is_ok), "what is put now is kept");
    // What comes late gives its memory back, and nothing else.
    node.faults[0].hang(false);
    node.keep_house_until("given back", |node| node.flash().devices[0].quarantined == 0);
    assert_eq!((node.flash().counters.lost, node.flash().counters.corrupt), (lost, 0));
    node.settle();
    node.store.check().unwrap();
}

#[test]
fn with_its_only_device_hung_a_store_serves_from_memory_and_ends() {
    let node = Node::new(1);
    node.put(0..30);
    node.faults[0].hang(true);
    let reads = node.read(0..30);
    assert!(reads.iter().any(Result::is_err));
    // What is being written to it stays in memory for as long as it may still be read there.
    for number in 200..203 {
        put(&node.session, node.ns, EPOCH, key(number), 0, &content(number, LEN));
    }
    node.keep_house_until("given up", |node| node.is_fenced(0));
    node.settle();
    node.keep_house_until("nothing is on it", |node| node.flash().blocks == 0);
    // Held by what was on its way when they vanished; in the end no tenant is charged for them.
    node.keep_house_until("no segments", |node| node.flash().tenants[0].bytes == 0);
    put(&node.session, node.ns, EPOCH, key(300), 0, &content(300, LEN));
    assert_eq!(node.read(300..301), [Ok(())]);
    let begun = Instant::now();
    node.store.close_flash();
    assert!(begun.elapsed() < OP_TIMEOUT * 4 + SLACK, "{:?}", begun.elapsed());
    node.faults[0].hang(false);
}

#[test]
fn a_full_disk_is_shed_and_what_is_there_stays_readable() {
    let node = Node::new(1);
    node.put(0..20);
    node.faults[0].fail_writes(Some(ENOSPC));
    node.put(100..140);
    let flash = node.flash();
    assert!(matches!(flash.devices[0].state, DeviceState::ReadOnly { .. }), "{flash:?}");
    assert!(flash.counters.shed_for(FlashShed::Device) > 0);
    assert_eq!(node.read(139..140), [Ok(())], "memory goes on");
    assert!(node.read(0..20).iter().all(Result::is_ok));
    node.settle();
    node.store.check().unwrap();
}

#[test]
fn one_device_of_several_fails_and_the_others_take_its_place() {
    let node = Node::new(3);
    node.put(0..45);
    node.faults[1].fail_reads(Some(EIO));
    node.faults[1].fail_writes(Some(EIO));
    for _ in 0..40 {
        node.read(0..45);
        if node.is_fenced(1) {
            break;
        }
    }
    assert!(node.is_fenced(1));
    node.keep_house_until("its blocks vanish", |node| node.flash().counters.lost > 0);
    let reads = node.read(0..45);
    assert!(reads.iter().filter(|read| read.is_ok()).count() >= 20, "two thirds: {reads:?}");
    let is_fine = |read: &Result<(), MissReason>| matches!(read, Ok(()) | Err(MissReason::Absent));
    assert!(reads.iter().all(is_fine), "{reads:?}");
    node.put(0..45);
    assert!(node.read(0..45).iter().all(Result::is_ok), "what was lost is stored again");
    node.settle();
    node.store.check().unwrap();
}
