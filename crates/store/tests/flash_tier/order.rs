//! Appends of several threads to one segment: written beside each other, over in the order of their
//! places, since a restart finds a record only behind all that lie before it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{Scope, yield_now};
use std::time::{Duration, Instant};

use keepwarm_store::flash::device::{Device, DeviceFaults, FaultyDevice, MemDevice};
use keepwarm_store::flash::{FlashSettings, FlashTier};
use keepwarm_store::tiers::conformance::{Blocks, Seen, namespace, stream};
use keepwarm_store::tiers::{DeviceState, Spot, Tier, TierError};

use super::{devices, open, settings};

const PATIENCE: Duration = Duration::from_secs(20);
/// Long enough for an append that need not wait.
const A_WHILE: Duration = Duration::from_millis(50);

type Appended = Result<Vec<Spot>, TierError>;

fn keeping(memory: &MemDevice) -> (FlashTier, Arc<DeviceFaults>) {
    let device = FaultyDevice::new(Arc::new(memory.again()));
    let faults = device.faults().clone();
    let settings = FlashSettings { op_timeout: PATIENCE, ..settings() };
    (FlashTier::over(vec![Arc::new(device) as Arc<dyn Device>], &settings).unwrap(), faults)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what} in time");
        yield_now();
    }
}

fn append<'s>(
    scope: &'s Scope<'s, '_>,
    tier: &'s FlashTier,
    blocks: &'s Blocks,
) -> Receiver<Appended> {
    let (said, heard) = channel();
    scope.spawn(move || said.send(blocks.append(tier, &stream(1))));
    heard
}

/// Two appends of which the first's write is kept: what each returned once it is let go.
fn behind(
    tier: &FlashTier,
    faults: &DeviceFaults,
    (first, second): (&Blocks, &Blocks),
    before_release: impl FnOnce(),
) -> (Appended, Appended) {
    let written = || tier.status().devices[0].written_bytes;
    std::thread::scope(|scope| {
        faults.keep_next_write();
        let one = append(scope, tier, first);
        until("the first writes", || faults.keeps_write());
        let before = written();
        let two = append(scope, tier, second);
        until("the second is written", || written() > before);
        assert_eq!(two.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout), "it waits");
        before_release();
        faults.release_write();
        (one.recv_timeout(PATIENCE).unwrap(), two.recv_timeout(PATIENCE).unwrap())
    })
}

fn three() -> [Blocks; 3] {
    [0, 1, 2].map(|number| Blocks::new(&namespace(1), number, 1, 9000))
}

#[test]
fn appends_to_one_segment_are_over_in_order() {
    let memory = devices(1, 8).remove(0);
    let (tier, faults) = keeping(&memory);
    let [zero, one, two] = three();
    zero.append(&tier, &stream(1)).unwrap();
    let (first, second) = behind(&tier, &faults, (&one, &two), || {});
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first[0].segment(), second[0].segment());
    assert!(first[0].header_page < second[0].header_page);
    drop(tier);
    let mut seen = Seen::default();
    assert_eq!(open(&[memory]).recover(&mut seen).unwrap().blocks, 3);
}

#[test]
fn an_append_behind_one_that_failed_has_failed_too() {
    let memory = devices(1, 8).remove(0);
    let (tier, faults) = keeping(&memory);
    let [zero, one, two] = three();
    zero.append(&tier, &stream(1)).unwrap();
    let (first, second) = behind(&tier, &faults, (&one, &two), || faults.fail_writes(Some(5)));
    assert!(matches!(first, Err(TierError::Io { .. })), "{first:?}");
    assert!(second.unwrap_err().to_string().contains("before it"));
    let state = tier.status().devices[0].state.clone();
    assert!(matches!(state, DeviceState::ReadOnly { .. }), "{state:?}");
    drop(tier);
    let mut seen = Seen::default();
    assert_eq!(open(&[memory]).recover(&mut seen).unwrap().blocks, 1);
}
