//! A store with a tier of memory behind it, which moves blocks only when told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keepwarm_store::tiers::{
    BlockHeader, Hold, MemMedium, MemTier, ReadQueue, Recovered, RecoveryVisitor, Removal,
    SegmentInfo, SegmentRef, Sequence, Spot, Stream, StreamId, Tier, TierBlock, TierError,
    TierStatus,
};
use keepwarm_store::types::{BlockKey, Clock, Epoch, NamespaceId, PutOutcome};
use keepwarm_store::{FlashCounters, FlashStats, ManualClock, Session, Store, StoreConfig};
use parking_lot::Mutex;

use crate::common::{attach, content, key, put, spec};

/// A tier that counts reads, remembers where blocks went, and fails when told to.
pub struct Watched {
    inner: MemTier,
    pub spots: Mutex<std::collections::HashMap<BlockKey, Spot>>,
    pub queues: AtomicU64,
    pub describes: AtomicU64,
    /// Appends that are still to succeed; after them `Io`.
    pub appends_left: AtomicU64,
    pub fenced: std::sync::atomic::AtomicBool,
    /// What happens once between an append and its answer.
    pub after_append: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Watched {
    pub fn new(medium: &MemMedium) -> Arc<Watched> {
        Arc::new(Watched {
            inner: MemTier::open(medium),
            spots: Mutex::default(),
            queues: AtomicU64::new(0),
            describes: AtomicU64::new(0),
            appends_left: AtomicU64::new(u64::MAX),
            fenced: false.into(),
            after_append: Mutex::default(),
        })
    }

    fn io() -> TierError {
        TierError::Io { device: "memory".into(), what: "write", error: "EIO".into() }
    }
}

impl Tier for Watched {
    fn sequence(&self) -> Sequence {
        self.inner.sequence()
    }
    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        let left = self.appends_left.load(Ordering::SeqCst);
        if left == 0 {
            return Err(Self::io());
        }
        let spots = self.inner.append(stream, as_of, blocks, hold)?;
        self.appends_left.store(left - 1, Ordering::SeqCst);
        let after = self.after_append.lock().take();
        after.into_iter().for_each(|after| after());
        let mut known = self.spots.lock();
        blocks.iter().zip(&spots).for_each(|(block, spot)| _ = known.insert(block.key, *spot));
        Ok(spots)
    }
    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        self.queues.fetch_add(1, Ordering::SeqCst);
        self.inner.reads(depth)
    }
    fn describe(
        &self,
        spot: Spot,
        fingerprint: &[u8; 32],
        key: BlockKey,
    ) -> Result<BlockHeader, TierError> {
        self.describes.fetch_add(1, Ordering::SeqCst);
        self.inner.describe(spot, fingerprint, key)
    }
    fn remove(&self, removals: &[Removal]) -> Result<(), TierError> {
        self.inner.remove(removals)
    }
    fn forget(&self, spot: Spot, bytes: u64) {
        self.inner.forget(spot, bytes)
    }
    fn flush(&self) -> Result<(), TierError> {
        self.inner.flush()
    }
    fn segments(&self, stream: StreamId) -> Vec<SegmentInfo> {
        self.inner.segments(stream)
    }
    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError> {
        self.inner.reclaim(segment)
    }
    fn recover(&self, visitor: &mut dyn RecoveryVisitor) -> Result<Recovered, TierError> {
        self.inner.recover(visitor)
    }
    fn status(&self) -> TierStatus {
        let mut status = self.inner.status();
        if self.fenced.load(Ordering::SeqCst) {
            let why = String::from("told to");
            status.devices[0].state = keepwarm_store::tiers::DeviceState::Fenced { why };
        }
        status
    }
}

pub struct Fixture {
    pub store: Arc<Store>,
    pub clock: Arc<ManualClock>,
    pub tier: Arc<Watched>,
    pub medium: MemMedium,
    pub session: Session,
    pub ns: NamespaceId,
}

pub const EPOCH: Epoch = Epoch(0);

/// A store of so many granules that moves nothing by itself.
pub fn by_hand(granules: u64) -> StoreConfig {
    let mut config = StoreConfig::new(granules * 4096);
    config.flash.is_by_hand = true;
    config
}

impl Fixture {
    /// `granules` of memory, and segments of 256 KiB.
    pub fn new(granules: u64, segments: u32) -> Fixture {
        Fixture::with(by_hand(granules), &MemMedium::new(segments, 256 << 10), "default")
    }

    /// The same medium under a new store, before recovery: as after a kill.
    pub fn restart(self, config: StoreConfig) -> Fixture {
        let medium = self.medium.clone();
        drop(self);
        Fixture::with(config, &medium, "default")
    }

    pub fn with(config: StoreConfig, medium: &MemMedium, tenant: &str) -> Fixture {
        let clock = Arc::new(ManualClock::new());
        let tier = Watched::new(medium);
        let over: Arc<dyn Tier> = tier.clone();
        let store = Store::open_over(config, clock.clone() as Arc<dyn Clock>, Some(over));
        let store = store.expect("a store");
        store.recover_flash();
        let session = store.session();
        let ns = attach(&session, &spec(tenant, "one", 1));
        Fixture { store, clock, tier, medium: medium.clone(), session, ns }
    }

    /// Puts block `number` of so many bytes.
    pub fn put(&self, number: u64, len: usize) {
        let outcome = put(&self.session, self.ns, EPOCH, key(number), 0, &content(number, len));
        assert_eq!(outcome, PutOutcome::Stored, "block {number}");
    }

    /// Reads block `number` and compares every byte.
    pub fn read(&self, number: u64, len: usize) {
        let pin = self.session.read(self.ns, EPOCH, key(number), 0);
        let mut pin = pin.unwrap_or_else(|reason| panic!("block {number}: {reason:?}"));
        let mut bytes = vec![0; pin.len()];
        assert_eq!(pin.copy_to(&mut bytes), pin.checksum());
        assert!(bytes == content(number, len), "block {number}: its own bytes");
        pin.used();
    }

    /// The request that stored it touches it, and a later one does.
    pub fn use_again(&self, ns: NamespaceId, epoch: Epoch, number: u64) {
        for _ in 0..2 {
            assert_eq!(self.session.touch(ns, epoch, &[key(number)]), 1);
        }
    }

    /// Puts a block, uses it, and lets it be written.
    pub fn put_and_write(&self, number: u64, len: usize) {
        self.put(number, len);
        self.use_again(self.ns, EPOCH, number);
        self.store.run_flash_by_hand();
    }

    pub fn flash(&self) -> FlashStats {
        self.store.flash_stats().expect("flash")
    }

    pub fn counters(&self) -> FlashCounters {
        self.flash().counters
    }

    pub fn check(&self) {
        self.store.check().unwrap_or_else(|problem| panic!("{problem}"));
    }

    pub fn lease(&self, numbers: std::ops::Range<u64>) -> keepwarm_store::Lookup {
        let keys: Vec<_> = numbers.map(key).collect();
        self.session.lookup(self.ns, EPOCH, &keys, 0, Some(Duration::from_secs(5)))
    }
}
