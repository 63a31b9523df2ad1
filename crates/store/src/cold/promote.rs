//! Brings blocks back: reads of many flights under way at once, straight into reserved extents.
//! Each part is verified by the tier before its block becomes visible.
//!
//! ```text
//!  flight ──claim (puts.rs)──► grants ──submit──► device ──verified──► commit ──► in memory
//!                │ no room                          │ bad, gone, failed
//!                └──────────► throttled             └──► the grants' space is free again
//! ```
//! A grant is its read's hold: where a device may still write a buffer after its time, the tier
//! keeps the grant, and with it the extents, until it cannot.

use std::collections::HashMap;
use std::time::{Duration, Instant as WallInstant};

use super::entry::ColdSlot;
use super::flights::{Ended, FlightName};
use super::pieces::pieces_of;
use super::queue::RETURNING;
use super::sight::Left;
use crate::error::StoreError;
use crate::guards::WriteGrant;
use crate::index::State;
use crate::log::{self, Event};
use crate::outcome::BlockPut;
use crate::puts::{Purpose, claim};
use crate::store::{Locked, Store};
use crate::tiers::{PartPlace, ReadDone, ReadQueue, Spot, Tier, TierError, TierRead};
use crate::types::NamespaceId;

/// How long to wait for a read while more could be started: new flights are begun as they come.
const WAIT_SHORT: Duration = Duration::from_micros(200);
/// The same when no more can be started.
const WAIT_LONG: Duration = Duration::from_millis(50);
/// Bits of a token for the part's number.
const PART_BITS: u32 = 8;

/// One block on its way.
struct Job {
    name: FlightName,
    segment: u32,
    /// Tick at which its time ends.
    expiry: u32,
    bytes: u64,
    /// Parts that are back, with their checksums.
    landed: Vec<(WriteGrant, u64)>,
    checksums: Vec<u64>,
    left: usize,
    failed: Option<TierError>,
}

/// What a job begins with.
struct Begun {
    job: Job,
    spot: Spot,
    parts: Vec<PartPlace>,
    grants: Vec<WriteGrant>,
}

/// Reads of one thread.
pub(crate) struct Promoter {
    queue: Box<dyn ReadQueue>,
    jobs: HashMap<u64, Job>,
    next: u64,
    /// Since when reads have been under way without a break, and bytes that came since.
    busy: Option<(WallInstant, u64)>,
}

impl Promoter {
    pub fn new(tier: &dyn Tier, depth: u32) -> Result<Promoter, StoreError> {
        let queue = tier
            .reads(depth as usize)
            .map_err(|error| StoreError::Flash { problem: error.to_string(), source: None })?;
        Ok(Promoter { queue, jobs: HashMap::new(), next: 0, busy: None })
    }

    /// Starts what waits, as far as the queue's depth goes, and settles one read. False: nothing
    /// is under way.
    pub fn step(&mut self, store: &Store) -> bool {
        while self.queue.in_flight() < self.queue.depth() && self.start(store) {}
        if self.jobs.is_empty() {
            self.count_rate(store);
            return false;
        }
        self.busy.get_or_insert_with(|| (WallInstant::now(), 0));
        let is_full = self.queue.in_flight() >= self.queue.depth();
        if let Some(done) = self.queue.complete(if is_full { WAIT_LONG } else { WAIT_SHORT }) {
            self.settle(store, done);
        }
        true
    }

    /// Everything that waits, and everything under way.
    pub fn run(&mut self, store: &Store) {
        while self.step(store) {}
    }

    /// Settles what is under way, and begins nothing more.
    pub fn finish(&mut self, store: &Store) {
        while !self.jobs.is_empty() {
            if let Some(done) = self.queue.complete(WAIT_LONG) {
                self.settle(store, done);
            }
        }
    }

    /// Begins one flight. False: none waits.
    fn start(&mut self, store: &Store) -> bool {
        let mut inner = store.lock();
        let Some(name) = inner.cold().flights.start() else { return false };
        let begun = match store.begin_flight(&mut inner, name) {
            Ok(begun) => begun,
            Err(ended) => {
                store.end_flight(&mut inner, name, ended);
                return true;
            }
        };
        drop(inner);
        let Begun { job, spot, parts, grants } = begun;
        let id = self.next;
        self.next += 1;
        self.jobs.insert(id, job);
        for (grant, part) in grants.into_iter().zip(parts) {
            let token = id << PART_BITS | u64::from(grant.claim.part);
            // SAFETY: the grant holds the extents for its writer alone, and is the read's hold.
            let pieces = unsafe { pieces_of(&store.arena, &grant.claim.extents, part.len) };
            let read = TierRead { token, spot, part, pieces, hold: Box::new(grant) };
            // A block may have more parts than there is room for now, or ever at once.
            while self.queue.in_flight() >= self.queue.depth() {
                let done = self.queue.complete(WAIT_LONG);
                done.into_iter().for_each(|done| self.settle(store, done));
            }
            if let Err(refused) = self.queue.submit(read) {
                let (hold, result) = (Some(refused.read.hold), Err(refused.error));
                self.settle(store, ReadDone { token, result, hold });
            }
        }
        true
    }

    fn settle(&mut self, store: &Store, done: ReadDone) {
        let id = done.token >> PART_BITS;
        let part = (done.token & ((1 << PART_BITS) - 1)) as usize;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let grant = done.hold.and_then(|hold| hold.downcast::<WriteGrant>().ok());
        job.left -= 1;
        match (done.result, grant) {
            (Ok(()), Some(grant)) => job.landed.push((*grant, job.checksums[part])),
            (Ok(()), None) => job.failed = Some(TierError::Invalid("a read that lost its hold")),
            // The grant goes here, without the lock, and its space with it.
            (Err(error), _) => job.failed = Some(error),
        }
        if job.left == 0 {
            let job = self.jobs.remove(&id).expect("it was there");
            if let Some((_, bytes)) = &mut self.busy {
                *bytes += job.bytes;
            }
            store.land(job);
        }
    }

    fn count_rate(&mut self, store: &Store) {
        if let Some((since, bytes)) = self.busy.take()
            && bytes > 0
        {
            store.lock().cold().count_rate(bytes, since.elapsed());
        }
    }
}

impl Store {
    fn end_flight(&self, inner: &mut Locked<'_>, name: FlightName, ended: Ended) {
        inner.cold().flights.end(name, ended);
        if ended == Ended::Throttled
            && let Some(space) = inner.namespaces.get(NamespaceId(name.ns))
        {
            let tenant = space.tenant;
            inner.cold().tenants[tenant].counters.promotions_shed += 1;
        }
        if let Some(flash) = &self.flash {
            flash.landed.notify_all();
        }
    }

    /// The block's slot on flash, if it is visible and memory neither has nor gets it.
    fn flight_source(&self, inner: &mut Locked<'_>, name: FlightName) -> Result<ColdSlot, Ended> {
        let FlightName { ns, arrival, key } = name;
        let space = inner.namespaces.get(NamespaceId(ns));
        if space.is_none_or(|space| space.arrival != arrival) {
            return Err(Ended::Gone);
        }
        let now = self.clock.now();
        if let Some(slot) = inner.index.find(ns, key) {
            match inner.index.meta(slot).state() {
                State::Ready if inner.find_ready(ns, key, now).is_ok() => {
                    return Err(Ended::Landed);
                }
                State::Filling => return Err(Ended::Landed),
                _ => {}
            }
        }
        inner.find_flash(ns, key, now).ok_or(Ended::Gone)
    }

    /// Finds where the block's parts are, and claims room for each.
    fn begin_flight(&self, inner: &mut Locked<'_>, name: FlightName) -> Result<Begun, Ended> {
        let FlightName { ns, key, .. } = name;
        let slot = self.flight_source(inner, name)?;
        let count = inner.namespaces.at(ns).spec.parts();
        let cold = inner.cold();
        let (spot, segment) = (cold.spot(slot, count), cold.index.segment_of(slot));
        let (entry, place) = (*cold.index.entry(slot), *cold.index.place(slot));
        let first = PartPlace { first_page: 0, len: entry.length, checksum: entry.checksum };
        let bytes = u64::from(place.pages()) * 4096;
        // From here to the end of the job the segment stays.
        cold.pin(segment);
        inner.namespaces.at_mut(ns).entered += 1;
        let parts = match count {
            1 => Ok(vec![first]),
            _ => self.describe_parts(inner, name, spot),
        };
        let claimed = parts.and_then(|parts| {
            self.flight_source(inner, name)?;
            let grants = self.claim_parts(inner, name, &parts)?;
            Ok((parts, grants))
        });
        inner.namespaces.at_mut(ns).entered -= 1;
        let (parts, grants) = claimed.inspect_err(|_| inner.cold().unpin(segment))?;
        let checksums = parts.iter().map(|part| part.checksum).collect();
        let (landed, left) = (Vec::new(), parts.len());
        let expiry = place.expiry;
        debug_assert_eq!(entry.key, key);
        let job = Job { name, segment, expiry, bytes, landed, checksums, left, failed: None };
        Ok(Begun { job, spot, parts, grants })
    }

    /// Where each part is, from the record's header. Lets go of the lock.
    fn describe_parts(
        &self,
        inner: &mut Locked<'_>,
        name: FlightName,
        spot: Spot,
    ) -> Result<Vec<PartPlace>, Ended> {
        let tier = self.flash.as_ref().expect("a flight has a tier").tier();
        let fingerprint = inner.namespaces.at(name.ns).spec.fingerprint();
        let described = inner.unlocked(|| tier.describe(spot, &fingerprint, name.key));
        match described {
            Ok(header) if header.parts.len() == usize::from(spot.parts) => Ok(header.parts),
            Ok(_) => Err(self.failed_flight(inner, name, &TierError::Gone)),
            Err(error) => Err(self.failed_flight(inner, name, &error)),
        }
    }

    fn claim_parts(
        &self,
        inner: &mut Locked<'_>,
        name: FlightName,
        parts: &[PartPlace],
    ) -> Result<Vec<WriteGrant>, Ended> {
        let FlightName { ns, key, .. } = name;
        let mut grants: Vec<WriteGrant> = Vec::with_capacity(parts.len());
        for (part, place) in (0u8..).zip(parts) {
            let put = BlockPut { key, part, len: place.len, engine_hash: None };
            let claimed = claim(inner, ns, put, self.clock.now(), Purpose::Return);
            let Ok(claim) = claimed else {
                // Their drop takes the lock.
                inner.unlocked(|| drop(std::mem::take(&mut grants)));
                return Err(Ended::Throttled);
            };
            inner.cold().marks.set(claim.slot, RETURNING);
            let store = self.me.upgrade().expect("whoever calls holds the store");
            grants.push(WriteGrant { store, claim, is_settled: false });
        }
        Ok(grants)
    }

    /// All parts of a job are settled.
    fn land(&self, mut job: Job) {
        let mut inner = self.lock();
        let FlightName { ns, .. } = job.name;
        inner.cold().unpin(job.segment);
        let ended = match job.failed.take() {
            Some(error) => self.failed_flight(&mut inner, job.name, &error),
            None => {
                let tenant = inner.namespaces.at(ns).tenant;
                let is_here = self.commit_return(&mut inner, &mut job.landed, job.expiry);
                let counters = &mut inner.cold().tenants[tenant].counters;
                if is_here {
                    counters.promoted += 1;
                    counters.promoted_bytes += job.bytes;
                }
                // Dropped or outdated meanwhile: whoever waits finds that out.
                if is_here { Ended::Landed } else { Ended::Gone }
            }
        };
        if !job.landed.is_empty() {
            inner.unlocked(|| drop(std::mem::take(&mut job.landed)));
        }
        self.end_flight(&mut inner, job.name, ended);
    }

    /// A tier did not give a block: what that means for the block and its waiters.
    fn failed_flight(&self, inner: &mut Locked<'_>, name: FlightName, error: &TierError) -> Ended {
        let now = self.clock.now();
        match error {
            TierError::Corrupt { device, .. } => {
                log::say(Event::FlashCorrupt, |line| {
                    line.text("device", device);
                });
                self.take_from_flash(inner, name, Left::Corrupt);
                Ended::Gone
            }
            TierError::Gone => {
                self.take_from_flash(inner, name, Left::Lost);
                Ended::Gone
            }
            TierError::Io { .. } | TierError::Deadline { .. } | TierError::Fenced { .. } => {
                inner.unlocked(|| self.look_after_devices());
                let is_lost = inner.find_flash(name.ns, name.key, now).is_none();
                if is_lost { Ended::Gone } else { Ended::Throttled }
            }
            _ => Ended::Throttled,
        }
    }

    fn take_from_flash(&self, inner: &mut Locked<'_>, name: FlightName, why: Left) {
        if let Some(slot) = inner.cold().index.find(name.ns, name.key) {
            inner.leave_flash(slot, why);
        }
    }
}
