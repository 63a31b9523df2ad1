//! One node's memory of KV blocks.
//!
//! A request, end to end:
//! ```text
//!  attach   spaces.rs   encoding + key check ─► a namespace number that the session may use
//!  lookup   lookups.rs  keys ─► index ─► hits, a lease that pins them, a reason for the first miss
//!  read     reads.rs    key + part ─► a pin; bytes leave the arena without the lock; pin drops
//!  touch    lookups.rs  the prefix that was used, tail first ─► the tenant's policy
//!  reserve  puts.rs     key + part ─► room (room.rs: evict, move) ─► a grant of extents
//!  commit   puts.rs     checksum ─► the last part makes the block visible (blocks.rs), an event
//! ```
//! What is on flash, and how it gets there and back, is in `cold/`.
//! One lock guards the metadata (`inner.rs`); a call holds it for microseconds and never while
//! bytes move. Epochs go to disk on a thread of their own, without a lock that other calls need.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::arena::Arena;
use crate::cold::{Cold, Flash};
use crate::config::{PolicyKind, StoreConfig};
use crate::epoch_writes::EpochBook;
use crate::epochs::EpochFile;
use crate::error::StoreError;
use crate::events::EventFilter;
use crate::inner::Inner;
use crate::session::Session;
use crate::subscription::Subscription;
use crate::tiers::Tier;
use crate::types::Clock;

/// Slots that one tick looks at for hidden and expired blocks.
const SWEEP_TICK: u32 = 16_384;
/// Blocks of one tenant beyond its quota that one tick lets go.
const SHRINK_TICK: u32 = 1_024;

/// One node's memory of KV blocks. See the module's map.
pub struct Store {
    pub(crate) arena: Arena,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) epochs: Arc<EpochBook>,
    pub(crate) policy: PolicyKind,
    /// Whether epochs survive a restart.
    pub(crate) is_durable: bool,
    inner: Mutex<Inner>,
    incarnation: u64,
    pub(crate) namespaces_max: u16,
    next_session: AtomicU64,
    /// Somewhere the last pin of an older epoch went.
    quiet: Condvar,
    /// There are new events.
    news: Condvar,
    /// The second tier, and who works on it.
    pub(crate) flash: Option<Flash>,
    /// For guards that are made where only a borrow of the store is at hand.
    pub(crate) me: Weak<Store>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

impl Store {
    /// Allocates everything the store will ever need.
    ///
    /// # Errors
    /// A setting that no store can have; memory that is not there; an epoch file that cannot be
    /// read.
    pub fn open(config: StoreConfig, clock: Arc<dyn Clock>) -> Result<Arc<Store>, StoreError> {
        Store::open_over(config, clock, None)
    }

    /// As `open`, with this tier for flash.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_over(
        config: StoreConfig,
        clock: Arc<dyn Clock>,
        tier: Option<Arc<dyn Tier>>,
    ) -> Result<Arc<Store>, StoreError> {
        let settled = crate::settings::settle(config)?;
        let epochs = EpochFile::share(settled.state_dir.clone())?;
        let arena = Arena::create_on(settled.capacity_bytes, settled.populate, settled.huge_pages)?;
        let seeds = crate::settings::random_words();
        let mut inner = Inner::new(&settled, &seeds, clock.now());
        let (depth, by_hand) = (settled.flash.read_depth, settled.flash.is_by_hand);
        let opened = match tier {
            None if !settled.flash.devices.is_empty() => Some(crate::cold::open_tier(&settled)?),
            given => given,
        };
        let flash = match opened {
            Some(tier) => {
                let (status, now) = (tier.status(), clock.now());
                let mut cold =
                    Cold::new(&settled, &settled.flash, &status, [seeds[2], seeds[3]], now);
                cold.recovery.is_running = !by_hand;
                inner.cold = Some(Box::new(cold));
                Some(Flash::new(tier, depth, by_hand)?)
            }
            None => None,
        };
        let store = Arc::new_cyclic(|me| Store {
            arena,
            clock,
            epochs,
            policy: settled.policy,
            is_durable: settled.state_dir.is_some(),
            inner: Mutex::new(inner),
            incarnation: seeds[0],
            namespaces_max: settled.limits.namespaces_max,
            next_session: AtomicU64::new(1),
            quiet: Condvar::new(),
            news: Condvar::new(),
            flash,
            me: me.clone(),
        });
        Flash::start(&store, depth)?;
        Ok(store)
    }

    /// Random number of this opening.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The arena's memfd, for clients to map read-only, and its bytes. None where the system cannot
    /// seal it against writing.
    pub fn shareable(&self) -> Option<(BorrowedFd<'_>, u64)> {
        self.arena.shareable().map(|memfd| (memfd, self.arena.bytes()))
    }

    /// A new session: one for each connection or embedded handle. Its drop releases its leases.
    pub fn session(self: &Arc<Self>) -> Session {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        Session::new(self.clone(), id, self.namespaces_max)
    }

    /// Bounded housekeeping: ends leases, takes back incomplete, expired and hidden blocks, and
    /// what a shrunk quota no longer holds. Call it about ten times a second.
    pub fn tick(&self) {
        let mut inner = self.lock();
        let now = self.clock.now();
        inner.expire_leases(now);
        inner.cancel_abandoned(now);
        if inner.hidden > 0 || inner.has_ttl() {
            inner.sweep(SWEEP_TICK, now);
        }
        inner.shrink(SHRINK_TICK, now);
        if let Some(flash) = &self.flash {
            inner.sweep_flash(SWEEP_TICK, now);
            let forgotten = inner.take_forgotten();
            drop(inner);
            flash.keep_house(self, &forgotten);
        }
    }

    /// Changes a tenant's quota; shrinking it takes blocks back over the next puts and ticks.
    ///
    /// # Errors
    /// An unknown tenant.
    pub fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let found = inner.tenants.iter_mut().find(|known| known.name == tenant);
        found.ok_or_else(|| StoreError::UnknownTenant(tenant.into()))?.quota_bytes = bytes;
        inner.share_out();
        Ok(())
    }

    /// Events from `from` = (incarnation, sequence) on if the ring still holds it, else a resync
    /// and a snapshot first.
    pub fn subscribe(
        self: &Arc<Self>,
        filter: EventFilter,
        from: Option<(u64, u64)>,
    ) -> Subscription {
        Subscription::new(self.clone(), filter, from)
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        let guard = self.inner.lock();
        let events_seen = guard.events.next();
        Locked { store: self, guard, events_seen }
    }
}

/// The metadata, locked. Wakes whoever waits for what changed, as it lets go.
pub(crate) struct Locked<'a> {
    store: &'a Store,
    guard: MutexGuard<'a, Inner>,
    events_seen: u64,
}

impl<'a> Locked<'a> {
    /// What `make_room` needs, which may let go of the lock for a while.
    pub fn room_parts(&mut self) -> (&mut MutexGuard<'a, Inner>, &'a Arena) {
        (&mut self.guard, &self.store.arena)
    }

    /// Waits until the last pin of an older epoch goes somewhere, or for `timeout`.
    pub fn wait_quiet(&mut self, timeout: Duration) {
        self.store.quiet.wait_for(&mut self.guard, timeout);
    }

    /// Waits until some flight from flash ended, or for `timeout`.
    pub fn wait_landed(&mut self, landed: &Condvar, timeout: Duration) {
        landed.wait_for(&mut self.guard, timeout);
    }

    /// Lets go of the lock for this.
    pub fn unlocked<T>(&mut self, work: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(&mut self.guard, work)
    }

    /// Lets others have the lock.
    pub fn bump(&mut self) {
        MutexGuard::bump(&mut self.guard);
    }

    /// Waits until there are new events, or for `timeout`.
    pub fn wait_news(&mut self, timeout: Duration) {
        self.store.news.wait_for(&mut self.guard, timeout);
    }
}

impl Deref for Locked<'_> {
    type Target = Inner;
    fn deref(&self) -> &Inner {
        &self.guard
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.guard
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.guard.events.next() != self.events_seen {
            self.store.news.notify_all();
        }
        if std::mem::take(&mut self.guard.has_quieted) {
            self.store.quiet.notify_all();
        }
        if std::mem::take(&mut self.guard.flash_has_work)
            && let Some(flash) = &self.store.flash
        {
            flash.ring();
        }
    }
}
