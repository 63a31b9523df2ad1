//! The store, the dictionary, and what is held between operations.

use std::sync::Arc;
use std::time::Duration;

use keepwarm_store::tiers::{MemMedium, MemTier};
use keepwarm_store::types::{BlockKey, Clock, Epoch, Instant, LeaseId, MissReason, ShedReason};
use keepwarm_store::types::{NamespaceId, PutOutcome};
use keepwarm_store::{
    BlockPut, Counters, FlashAdmission, ManualClock, PolicyKind, ReadPin, Reserve, Session, Store,
    StoreConfig, TenantConfig, WriteGrant,
};

use crate::common::{Random, attach, key, open, open_over, spec};
use crate::dictionary::{Block, Held, Known, Space, Stamp};

const GRANULES: u64 = 256;
pub(super) const KEYS: u64 = 36;
const TTL: Duration = Duration::from_secs(20);
/// Tenant, model, parts.
pub(super) const SPACES: [(&str, &str, u8); 5] = [
    ("default", "one", 1),
    ("default", "three", 3),
    ("quota", "one", 1),
    ("quota", "two", 2),
    ("ttl", "one", 1),
];
const LENGTHS: [u32; 3] = [3_001, 16_384, 81_920];
const OPEN_MAX: usize = 6;

struct OpenGrant {
    grant: WriteGrant,
    space: usize,
    number: u64,
    part: u8,
    filling: u64,
}

pub(super) struct OpenPin {
    pin: ReadPin,
    pub held: Held,
    stamp: Stamp,
}

pub(super) struct OpenLease {
    id: LeaseId,
    pub session: usize,
    pub held: Vec<Held>,
    granted: Instant,
    pub end: Instant,
}

pub struct World {
    pub store: Arc<Store>,
    clock: Arc<ManualClock>,
    pub(super) sessions: Vec<Session>,
    pub(super) spaces: Vec<Space>,
    pub(super) random: Random,
    /// Bytes of all blocks are windows of these.
    noise: Vec<u8>,
    stamps: u64,
    grants: Vec<OpenGrant>,
    pub(super) pins: Vec<OpenPin>,
    pub(super) leases: Vec<OpenLease>,
    pub(super) quota: Option<u64>,
    has_flash: bool,
}

pub(super) fn name_of(space: usize, number: u64) -> BlockKey {
    key(number * 16 + space as u64)
}

/// Each part's length follows from its name, so that every put of it agrees.
fn length_of(number: u64, part: u8) -> u32 {
    LENGTHS[((number + u64::from(part)) % 3) as usize] - (number % 7) as u32
}

impl World {
    /// With `flash`, on that medium; blocks move only by `run_flash_by_hand`.
    pub fn new(policy: PolicyKind, seed: u64, flash: Option<MemMedium>) -> World {
        let mut config = StoreConfig::new(GRANULES * 4096);
        config.policy = policy;
        config.max_blocks = Some(96);
        config.limits.ghosts = Some(64);
        for (name, quota, ttl) in [("quota", Some(200_000), None), ("ttl", None, Some(TTL))] {
            let tenant = TenantConfig::public_default();
            config.tenants.push(TenantConfig {
                name: name.into(),
                quota_bytes: quota,
                ttl,
                ..tenant
            });
        }
        config.flash.is_by_hand = true;
        config.flash.admission = FlashAdmission::All;
        let (store, clock) = match &flash {
            Some(medium) => open_over(config, Arc::new(MemTier::open(medium))),
            None => open(config),
        };
        let sessions = vec![store.session(), store.session()];
        let space = |(at, (tenant, model, parts)): (usize, &(&str, &str, u8))| {
            let spec = spec(tenant, model, *parts);
            let ns = NamespaceId(at as u16);
            sessions.iter().for_each(|session| assert_eq!(attach(session, &spec), ns));
            let ttl = (*tenant == "ttl").then_some(TTL);
            Space { ns, parts: *parts, ttl, epoch: 0, version: 0, known: Default::default() }
        };
        let spaces = SPACES.iter().enumerate().map(space).collect();
        let mut random = Random::new(seed);
        let noise = (0..(1 << 17)).flat_map(|_| random.next().to_le_bytes()).collect();
        World {
            store,
            clock,
            sessions,
            spaces,
            random,
            noise,
            stamps: 0,
            grants: Vec::new(),
            pins: Vec::new(),
            leases: Vec::new(),
            quota: Some(200_000),
            has_flash: flash.is_some(),
        }
    }

    pub fn check(&self) {
        self.store.check().unwrap_or_else(|problem| panic!("{problem}"));
    }

    /// Lets everything go; then nothing may be left held.
    pub fn finish(mut self) -> Counters {
        while !self.pins.is_empty() {
            self.close_pin();
        }
        while !self.grants.is_empty() {
            self.close_grant();
        }
        self.sessions.clear();
        self.check();
        let stats = self.store.stats();
        assert_eq!((stats.leases, stats.leased_bytes, stats.reads_in_flight), (0, 0, 0));
        assert_eq!(stats.writing_bytes, 0);
        stats.counters
    }

    pub fn step(&mut self) {
        if self.has_flash && self.random.chance(6) {
            self.store.run_flash_by_hand();
        }
        match self.random.below(100) {
            0..30 => self.put(),
            30..38 => self.close_grant(),
            38..56 => self.lookup(),
            56..72 => self.read(),
            72..80 => self.close_pin(),
            80..86 => self.touch(),
            86..91 => self.end_lease(),
            91..94 => self.wait(),
            94..95 => self.report_good(),
            95..96 => self.report_bad(),
            96..97 => self.drop_some(),
            97..98 => self.old_epoch(),
            _ => self.rare(),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(super) fn pick(&mut self) -> (usize, u64) {
        let space = self.random.below(SPACES.len() as u64) as usize;
        // Low numbers more often, so that some blocks are hot.
        let bound = self.random.below(KEYS) + 1;
        (space, self.random.below(bound))
    }

    pub(super) fn session(&mut self) -> usize {
        self.random.below(2) as usize
    }

    fn bytes(&self, stamp: Stamp, len: usize) -> &[u8] {
        let start = (stamp.wrapping_mul(0x9e37_79b9) % (self.noise.len() - len) as u64) as usize;
        &self.noise[start..start + len]
    }

    /// Whether a lease or a read holds the instance that the dictionary has now.
    fn is_held(&mut self, space: usize, number: u64) -> bool {
        let now = self.now();
        let version = self.spaces[space].version;
        let Block::Stored { stamps, .. } = &self.spaces[space].block(number).block else {
            return false;
        };
        let held = Held { space, number, version, stamp: stamps[&0] };
        self.pins.iter().any(|pin| pin.held == held)
            || self.leases.iter().any(|lease| lease.end > now && lease.held.contains(&held))
    }

    fn nothing_is_held(&self) -> bool {
        let is_filling = |known: &Known| matches!(known.block, Block::Filling { .. });
        self.pins.is_empty()
            && self.grants.is_empty()
            && self.leases.is_empty()
            && !self.spaces.iter().any(|space| space.known.values().any(is_filling))
    }

    fn put(&mut self) {
        if self.grants.len() == OPEN_MAX {
            return self.close_grant();
        }
        let ((space, number), session) = (self.pick(), self.session());
        let part = self.random.below(self.spaces[space].parts.into()) as u8;
        let len = length_of(number, part);
        let put = BlockPut { key: name_of(space, number), part, len, engine_hash: Some(number) };
        let (ns, epoch) = (self.spaces[space].ns, Epoch(self.spaces[space].epoch));
        let reserved = self.sessions[session].reserve(ns, epoch, put);
        let (now, held) = (self.now(), self.is_held(space, number));
        let block = self.spaces[space].block(number).block.clone();
        let is_taken = matches!(&block, Block::Filling { landed, writing, .. }
            if landed.contains_key(&part) || writing.contains(&part));
        match reserved {
            Reserve::Present => {
                self.spaces[space].saw(number, now);
            }
            Reserve::Pending => assert!(is_taken, "{number}/{part} is pending but {block:?}"),
            Reserve::Granted(grant) => {
                assert!(!is_taken, "{number}/{part} has two writers");
                if !matches!(block, Block::Filling { .. }) {
                    self.spaces[space].missed(number, None, held, now);
                }
                self.stamps += 1;
                let filling = self.spaces[space].begin(number, part, self.stamps, now);
                self.grants.push(OpenGrant { grant, space, number, part, filling });
                if !self.random.chance(4) {
                    let last = self.grants.len() - 1;
                    self.commit(last);
                }
            }
            Reserve::Shed(reason) => {
                let may = matches!(
                    reason,
                    ShedReason::Leased
                        | ShedReason::Quota
                        | ShedReason::Busy
                        | ShedReason::Watermark
                );
                assert!(may && !is_taken, "{number}/{part} is shed as {reason:?}, {block:?}");
                let fits = self.quota.is_none_or(|quota| u64::from(len) + 4096 < quota);
                let must = self.nothing_is_held() && fits && reason != ShedReason::Quota;
                assert!(!must, "shed as {reason:?} though nothing is held");
                if let Block::Stored { .. } = block {
                    self.spaces[space].missed(number, None, held, now);
                }
            }
        }
    }

    fn close_grant(&mut self) {
        if self.grants.is_empty() {
            return;
        }
        let at = self.random.below(self.grants.len() as u64) as usize;
        if !self.random.chance(5) {
            return self.commit(at);
        }
        let OpenGrant { grant, space, number, part, filling } = self.grants.swap_remove(at);
        if self.random.chance(2) {
            grant.abort(ShedReason::Corrupt)
        } else {
            drop(grant)
        }
        if self.spaces[space].is_filling(number, filling) {
            let now = self.now();
            self.spaces[space].abort(number, part, now);
        }
    }

    fn commit(&mut self, at: usize) {
        let OpenGrant { mut grant, space, number, part, filling } = self.grants.swap_remove(at);
        self.stamps += 1;
        let stamp = self.stamps;
        let checksum = grant.write_from(self.bytes(stamp, grant.len()));
        let outcome = grant.commit(checksum);
        let now = self.now();
        if self.spaces[space].is_filling(number, filling) {
            assert_eq!(outcome, PutOutcome::Stored);
            self.spaces[space].land(number, part, stamp, now);
        } else {
            assert_eq!(outcome, PutOutcome::Shed(ShedReason::Epoch));
        }
    }

    fn lookup(&mut self) {
        let ((space, first), session) = (self.pick(), self.session());
        let count = 1 + self.random.below(24);
        let numbers: Vec<u64> = (first..first + count).map(|number| number % KEYS).collect();
        let keys: Vec<_> = numbers.iter().map(|number| name_of(space, *number)).collect();
        let hold = self.random.chance(2).then(|| Duration::from_millis(self.random.below(20_000)));
        let (ns, epoch) = (self.spaces[space].ns, Epoch(self.spaces[space].epoch));
        let found = self.sessions[session].lookup(ns, epoch, &keys, first, hold);
        let now = self.now();
        let prefix = found.hits.iter().take_while(|hit| hit.is_some()).count();
        assert_eq!(found.prefix as usize, prefix);
        assert_eq!(found.miss.is_some(), prefix < keys.len());
        let mut held = Vec::new();
        for (at, (number, hit)) in numbers.iter().zip(&found.hits).enumerate() {
            match hit {
                Some(hit) => {
                    let stamps = self.spaces[space].saw(*number, now);
                    assert_eq!(hit.length, length_of(*number, 0));
                    let version = self.spaces[space].version;
                    held.push(Held { space, number: *number, version, stamp: stamps[&0] });
                }
                None => {
                    let reason = found.miss.filter(|_| at == prefix);
                    let is_held = self.is_held(space, *number);
                    self.spaces[space].missed(*number, reason, is_held, now);
                }
            }
        }
        if let Some(id) = found.lease {
            assert!(hold.is_some() && !held.is_empty());
            let end = now.after(Duration::from_millis(found.lease_ms.into()));
            self.leases.push(OpenLease { id, session, held, granted: now, end });
        }
        self.forget_ended_leases();
    }

    fn forget_ended_leases(&mut self) {
        let now = self.now();
        self.leases.retain(|lease| lease.end > now);
    }

    fn read(&mut self) {
        if self.pins.len() == OPEN_MAX {
            return self.close_pin();
        }
        let ((mut space, mut number), session) = (self.pick(), self.session());
        // Leased blocks more often: they must be readable.
        if !self.leases.is_empty() && self.random.chance(2) {
            let lease = self.random.below(self.leases.len() as u64) as usize;
            let held = &self.leases[lease].held;
            (space, number) = {
                let held = held[self.random.below(held.len() as u64) as usize];
                (held.space, held.number)
            };
        }
        let part = self.random.below(self.spaces[space].parts.into()) as u8;
        let (ns, epoch) = (self.spaces[space].ns, Epoch(self.spaces[space].epoch));
        let read = self.sessions[session].read(ns, epoch, name_of(space, number), part);
        let (now, is_held) = (self.now(), self.is_held(space, number));
        match read {
            Ok(pin) => {
                let stamps = self.spaces[space].saw(number, now);
                let version = self.spaces[space].version;
                let held = Held { space, number, version, stamp: stamps[&0] };
                self.verify(&pin, stamps[&part]);
                self.pins.push(OpenPin { pin, held, stamp: stamps[&part] });
                if !self.random.chance(3) {
                    self.close_pin();
                }
            }
            // No room to come back to; whether it is there the next call tells.
            Err(MissReason::Throttled) if self.has_flash => {}
            Err(reason) => self.spaces[space].missed(number, Some(reason), is_held, now),
        }
    }

    fn verify(&self, pin: &ReadPin, stamp: Stamp) {
        let mut bytes = vec![0; pin.len()];
        assert_eq!(pin.copy_to(&mut bytes), pin.checksum(), "bytes match their checksum");
        assert!(bytes == self.bytes(stamp, pin.len()), "exactly the bytes that were put");
    }

    /// Whatever happened meanwhile, the bytes under a pin are what they were.
    fn close_pin(&mut self) {
        if self.pins.is_empty() {
            return;
        }
        let at = self.random.below(self.pins.len() as u64) as usize;
        let OpenPin { mut pin, stamp, .. } = self.pins.swap_remove(at);
        self.verify(&pin, stamp);
        if self.random.chance(2) {
            pin.used();
        }
    }

    fn touch(&mut self) {
        let ((space, first), session) = (self.pick(), self.session());
        let numbers = first..first + 1 + self.random.below(5);
        let keys: Vec<_> = numbers.map(|number| name_of(space, number % KEYS)).collect();
        let (ns, epoch) = (self.spaces[space].ns, Epoch(self.spaces[space].epoch));
        let touched = self.sessions[session].touch(ns, epoch, &keys);
        assert!(touched as usize <= keys.len());
    }

    fn end_lease(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let at = self.random.below(self.leases.len() as u64) as usize;
        let OpenLease { id, session, .. } = self.leases.swap_remove(at);
        // Another session's release changes nothing; a second one of its own does no harm.
        self.sessions[1 - session].release(id);
        self.sessions[session].release(id);
        self.sessions[session].release(id);
    }

    pub(super) fn renew(&mut self) {
        let now = self.now();
        let hold = Duration::from_millis(self.random.below(15_000));
        for lease in &mut self.leases {
            assert!(!self.sessions[1 - lease.session].renew(lease.id, hold));
            let wanted = now.after(hold.min(Duration::from_secs(10)));
            let last = lease.granted.after(Duration::from_secs(60));
            let holds = self.sessions[lease.session].renew(lease.id, hold);
            lease.end = lease.end.max(wanted.min(last));
            assert_eq!(holds, lease.end >= wanted || wanted.min(last) > now && lease.end < last);
        }
    }

    fn wait(&mut self) {
        let step = match self.random.below(20) {
            0 => 35_000,
            1..5 => self.random.below(4_000),
            _ => self.random.below(200),
        };
        self.clock.advance(Duration::from_millis(step));
        self.store.tick();
        let now = self.now();
        self.spaces.iter_mut().for_each(|space| space.tick(now));
        self.forget_ended_leases();
    }
}
