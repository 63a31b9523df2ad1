//! Readers of blocks that are on flash alone: they join a flight and wait for it, for a bounded
//! time.

use std::time::Instant as WallInstant;

use super::flights::{Ended, FlightName};
use crate::index::parts::Place;
use crate::index::{Slot, State};
use crate::inner::Inner;
use crate::outcome::KEYS_MAX;
use crate::session::Session;
use crate::store::{Locked, Store};
use crate::types::{BlockKey, Epoch, MissReason, NamespaceId};

/// How often a reader begins again because what had come back was gone before it could pin it.
pub const TRIES_MAX: u32 = 3;
/// Blocks that come back ahead of their reads take at most one part in this many of the arena.
pub const PREFETCH_SHARE: u64 = 4;
/// And no more than fills the devices' queues.
pub const PREFETCH_MAX: u64 = 64 << 20;

/// What a prefetch did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefetched {
    /// Blocks on their way.
    pub begun: u32,
    /// How many of the keys, in order, need not be asked for again.
    pub seen: usize,
}

impl Session {
    /// Bytes of blocks that are worth bringing back ahead of their reads; none without flash.
    pub fn prefetch_bytes(&self) -> Option<u64> {
        self.store.flash.as_ref()?;
        Some((self.store.arena.bytes() / PREFETCH_SHARE).min(PREFETCH_MAX))
    }

    /// Begins to bring back those of `keys` that are on flash alone, in order, so that the reads
    /// that follow overlap. Not a use, and no promise: it ends at the first that finds no room.
    pub fn prefetch(&self, ns: NamespaceId, epoch: Epoch, keys: &[BlockKey]) -> Prefetched {
        let mut found = Prefetched { begun: 0, seen: keys.len() };
        let Some(flash) = &self.store.flash else { return found };
        let Ok(mut inner) = self.enter(ns, epoch) else { return found };
        let most = self.store.arena.bytes() / PREFETCH_SHARE;
        let mut bytes = 0;
        for (at, key) in keys[..keys.len().min(KEYS_MAX)].iter().enumerate() {
            let Some((name, length)) = self.store.flight_to(&mut inner, ns.0, *key) else {
                continue;
            };
            bytes += length;
            let tenant = inner.namespaces.at(ns.0).tenant;
            if bytes > most || !inner.cold().flights.join(name, tenant, length, false) {
                found.seen = at;
                break;
            }
            found.begun += 1;
        }
        drop(inner);
        if found.begun > 0 {
            flash.ring();
        }
        found
    }
}

impl Store {
    /// The name of the flight that would bring a block back that is on flash alone, and its bytes.
    fn flight_to(&self, inner: &mut Inner, ns: u16, key: BlockKey) -> Option<(FlightName, u64)> {
        if let Some(slot) = inner.index.find(ns, key)
            && inner.index.meta(slot).state() == State::Ready
        {
            return None;
        }
        let slot = inner.find_flash(ns, key, self.clock.now())?;
        let arrival = inner.namespaces.at(ns).arrival;
        let bytes = u64::from(inner.cold().index.place(slot).pages()) * 4096;
        Some((FlightName { ns, arrival, key }, bytes))
    }

    /// Pins a part of a block that memory does not have, once it is back from flash. `missed`: why
    /// memory does not have it.
    pub(crate) fn pin_from_flash(
        &self,
        inner: &mut Locked<'_>,
        ns: NamespaceId,
        key: BlockKey,
        part: u8,
        missed: MissReason,
    ) -> Result<(Slot, Place), MissReason> {
        let until = WallInstant::now() + inner.cold().patience;
        let (epoch, version) = (inner.namespaces.at(ns.0).epoch, inner.namespaces.at(ns.0).version);
        // Nobody takes the namespace's place while this lets go of the lock.
        inner.namespaces.at_mut(ns.0).entered += 1;
        let mut found = Err(missed);
        for _ in 0..TRIES_MAX {
            match self.await_flight(inner, ns.0, key, until) {
                Some(Ended::Throttled) => {
                    found = Err(MissReason::Throttled);
                    break;
                }
                Some(Ended::Landed | Ended::Gone) if inner.namespaces.at(ns.0).epoch != epoch => {
                    found = Err(MissReason::Epoch);
                    break;
                }
                Some(Ended::Landed | Ended::Gone) => found = self.pin(inner, ns, key, part),
                None => break,
            }
            if found.is_ok() || inner.namespaces.at(ns.0).version != version {
                break;
            }
        }
        inner.namespaces.at_mut(ns.0).entered -= 1;
        found
    }

    /// Waits for a block's flight. None: the block is not on flash.
    fn await_flight(
        &self,
        inner: &mut Locked<'_>,
        ns: u16,
        key: BlockKey,
        until: WallInstant,
    ) -> Option<Ended> {
        let flash = self.flash.as_ref()?;
        let (name, bytes) = self.flight_to(inner, ns, key)?;
        let tenant = inner.namespaces.at(ns).tenant;
        if flash.is_ending() || !inner.cold().flights.join(name, tenant, bytes, true) {
            inner.cold().tenants[tenant].counters.promotions_shed += 1;
            return Some(Ended::Throttled);
        }
        flash.ring();
        if let Some(promoter) = &flash.by_hand {
            inner.unlocked(|| promoter.lock().run(self));
        }
        let mut ended = inner.cold().flights.ended(name);
        while ended.is_none() && !flash.is_ending() {
            let left = until.saturating_duration_since(WallInstant::now());
            if left.is_zero() {
                break;
            }
            inner.wait_landed(&flash.landed, left);
            ended = inner.cold().flights.ended(name);
        }
        inner.cold().flights.leave(name);
        Some(ended.unwrap_or(Ended::Throttled))
    }
}
