//! Readers, writers, droppers and bumpers on one small store at once; every read is verified: the
//! bytes are whole, of the key that was asked for, and of the epoch that was asked for.
//!
//! Each writer writes 600 blocks times `KEEPWARM_TEST_SCALE` (1).

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use common::{Random, attach, key, spec};
use keepwarm_store::types::{Clock, Epoch, MissReason, PutOutcome, ShedReason};
use keepwarm_store::{
    BlockPut, Limits, PolicyKind, Reported, Reserve, Session, Store, StoreConfig, SystemClock,
};

const KEYS: u64 = 64;
const PARTS: u8 = 2;
const LENGTHS: [usize; 3] = [4_000, 20_480, 150_000];

struct Shared {
    store: Arc<Store>,
    /// The newest epoch that was asked for.
    epoch: AtomicU32,
    reads: AtomicU64,
    /// Writers still at work; the others go on as long as there are any.
    writers: AtomicU32,
    ops: u64,
}

/// Every word names key, part, epoch and its own place, so that no mix-up goes unseen.
fn fill(bytes: &mut [u8], number: u64, part: u8, epoch: u32) {
    let name = number << 40 | u64::from(part) << 32 | u64::from(epoch);
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = (name ^ (at as u64) << 48).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

fn length_of(number: u64, part: u8) -> usize {
    LENGTHS[((number + u64::from(part)) % 3) as usize]
}

fn write(shared: &Shared, session: &Session, random: &mut Random) {
    let _at_work = AtWork(&shared.writers);
    let ns = attach(session, &spec("default", "stress", PARTS));
    let mut bytes = vec![0; LENGTHS[2]];
    for _ in 0..shared.ops {
        let number = random.below(KEYS);
        let epoch = shared.epoch.load(SeqCst);
        // Now and then a part is left out, and with it the block.
        let parts = if random.chance(100) { 1 } else { PARTS };
        for part in 0..parts {
            let bytes = &mut bytes[..length_of(number, part)];
            let len = bytes.len() as u32;
            let put = BlockPut { key: key(number), part, len, engine_hash: None };
            let Reserve::Granted(mut grant) = session.reserve(ns, Epoch(epoch), put) else {
                continue;
            };
            fill(bytes, number, part, epoch);
            let checksum = grant.write_from(bytes);
            if random.chance(50) {
                continue;
            }
            let outcome = grant.commit(checksum);
            let may = [PutOutcome::Stored, PutOutcome::Shed(ShedReason::Epoch)];
            assert!(may.contains(&outcome), "{outcome:?}");
        }
        if random.chance(100) {
            shared.store.tick();
        }
    }
}

/// One writer less, also when it panics: else the others would go on for ever.
struct AtWork<'a>(&'a AtomicU32);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

fn read(shared: &Shared, session: &Session, random: &mut Random) {
    let ns = attach(session, &spec("default", "stress", PARTS));
    let (mut bytes, mut wanted) = (vec![0; LENGTHS[2]], vec![0; LENGTHS[2]]);
    while shared.writers.load(SeqCst) > 0 {
        let epoch = shared.epoch.load(SeqCst);
        let first = random.below(KEYS);
        let keys: Vec<_> = (first..first + 4).map(|number| key(number % KEYS)).collect();
        let hold = Some(Duration::from_secs(2));
        let found = session.lookup(ns, Epoch(epoch), &keys, 0, hold);
        for at in 0..keys.len() as u64 {
            let (number, part) = ((first + at) % KEYS, random.below(PARTS.into()) as u8);
            let Ok(mut pin) = session.read(ns, Epoch(epoch), key(number), part) else { continue };
            let (bytes, wanted) = (&mut bytes[..pin.len()], &mut wanted[..pin.len()]);
            fill(wanted, number, part, epoch);
            // Twice under one pin: nobody writes, moves or reuses the bytes meanwhile.
            for _ in 0..2 {
                assert_eq!(pin.copy_to(bytes), pin.checksum());
                assert!(bytes == wanted, "key {number} part {part} epoch {epoch}");
            }
            shared.reads.fetch_add(1, SeqCst);
            let generation = pin.generation();
            if random.chance(3) {
                pin.used();
            }
            drop(pin);
            if random.chance(20) {
                let reported = session.report(ns, key(number), part, generation);
                assert_ne!(reported, Reported::Removed, "good bytes are never removed");
            }
        }
        session.touch(ns, Epoch(epoch), &keys[..found.prefix as usize]);
        if let Some(lease) = found.lease.filter(|_| !random.chance(4)) {
            session.release(lease);
        }
    }
}

fn disturb(shared: &Shared, session: &Session, random: &mut Random) {
    let ns = attach(session, &spec("default", "stress", PARTS));
    for op in 0u64.. {
        if shared.writers.load(SeqCst) == 0 {
            break;
        }
        match random.below(100) {
            0 => {
                // As an engine does after a change of weights: bump, wait, then ask with the new.
                let epoch = shared.epoch.load(SeqCst) + 1;
                session.bump_epoch(ns, Epoch(epoch)).expect("no file to fail");
                shared.epoch.fetch_max(epoch, SeqCst);
                let deadline = SystemClock.now().after(Duration::from_millis(5));
                session.wait_epoch_quiet(ns, Epoch(epoch), deadline);
            }
            1 => _ = session.drop_namespace(ns),
            2..30 => _ = session.drop_keys(ns, &[key(random.below(KEYS))]),
            _ => {
                let other = shared.store.session();
                let ns = attach(&other, &spec("default", "stress", PARTS));
                let keys: Vec<_> = (0..KEYS).map(key).collect();
                let epoch = Epoch(shared.epoch.load(SeqCst));
                let found = other.lookup(ns, epoch, &keys, 0, Some(Duration::from_secs(5)));
                assert_ne!(found.miss, Some(MissReason::Identity));
            }
        }
        std::thread::yield_now();
        if op % 64 == 0 {
            shared.store.check().unwrap_or_else(|problem| panic!("{problem}"));
        }
    }
}

fn stress(policy: PolicyKind) {
    let seed = common::seed("stress");
    let mut config = StoreConfig::new(640 * 4096);
    config.policy = policy;
    config.max_blocks = Some(56);
    config.limits = Limits { filling_max: 32, ..Limits::default() };
    let store = Store::open(config, Arc::new(SystemClock)).expect("a store");
    let ops = common::scaled(600);
    let (epoch, reads, writers) = (AtomicU32::new(0), AtomicU64::new(0), AtomicU32::new(3));
    let shared = Shared { store: store.clone(), epoch, reads, writers, ops };
    let jobs: [fn(&Shared, &Session, &mut Random); 7] =
        [write, write, write, read, read, read, disturb];
    std::thread::scope(|scope| {
        for (number, job) in jobs.into_iter().enumerate() {
            let (shared, mut random) = (&shared, Random::new(seed ^ number as u64));
            scope.spawn(move || job(shared, &shared.store.session(), &mut random));
        }
    });
    store.check().unwrap_or_else(|problem| panic!("{problem}"));
    let stats = store.stats();
    assert_eq!((stats.leases, stats.reads_in_flight, stats.writing_bytes), (0, 0, 0));
    let reads = shared.reads.load(SeqCst);
    println!("{}: {reads} verified reads, {:?}", policy.name(), stats.counters);
    assert!(reads > ops / 4, "{reads} reads prove little");
}

#[test]
fn lru_keeps_every_byte_under_contention() {
    stress(PolicyKind::Lru);
}

#[test]
fn s3fifo_keeps_every_byte_under_contention() {
    stress(PolicyKind::S3Fifo);
}
