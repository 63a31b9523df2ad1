//! The threads that move blocks to flash and back, and what wakes them.
//!
//! A thread waits on a bell without the store, takes the store while there is work, and lets go of
//! it again: so a store that nobody else holds ends. Tests run the same steps by hand.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock};

use super::Cold;
use super::closed::ClosedTier;
use super::promote::Promoter;
use super::writer::Wrote;
use crate::config::StoreConfig;
use crate::error::StoreError;
use crate::flash::FlashTier;
use crate::log::{self, Event};
use crate::store::Store;
use crate::tiers::{Spot, Tier};

const STACK_BYTES: usize = 1 << 20;
/// How long an idle thread sleeps before it looks by itself: budgets fill up without a bell.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// Threads that bring blocks back, at most: one fills a few devices.
const PROMOTERS_MAX: usize = 4;
/// Threads that write: two more than there are devices, so that a device is busy while one batch
/// ends and the next is chosen, and while lives begin.
const WRITERS_MORE: usize = 2;
const WRITERS_MAX: usize = 6;

/// Rounds of housekeeping from one look at the devices to the next.
const LOOK_AFTER_TURNS: u32 = 10;

/// Wakes the threads.
#[derive(Debug, Default)]
struct Bell {
    /// How often it was rung; and whether it is for the last time.
    rung: Mutex<(u64, bool)>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        self.rung.lock().0 += 1;
        self.heard.notify_all();
    }

    fn ring_last(&self) {
        self.rung.lock().1 = true;
        self.heard.notify_all();
    }

    fn count(&self) -> u64 {
        self.rung.lock().0
    }

    fn is_last(&self) -> bool {
        self.rung.lock().1
    }

    /// Waits until it was rung more than `seen` times, or `time` is over. False: for the last time.
    fn wait(&self, seen: u64, time: Duration) -> bool {
        let mut rung = self.rung.lock();
        if rung.0 == seen && !rung.1 {
            self.heard.wait_for(&mut rung, time);
        }
        !rung.1
    }
}

/// The tier, and who works on it.
pub(crate) struct Flash {
    tier: RwLock<Arc<dyn Tier>>,
    /// Who opened it: a forked child has neither its threads nor its devices.
    process: u32,
    bell: Arc<Bell>,
    /// Flights ended.
    pub landed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Without threads: what a reader that waits drives itself.
    pub by_hand: Option<Mutex<Promoter>>,
    /// One at a time takes segments back.
    pub reclaiming: Mutex<()>,
    /// One at a time decides whether a segment is to be taken back; inside, how many were.
    pub tidying: Mutex<u64>,
    /// Shared from an append until its blocks are indexed; alone while a segment goes, which
    /// would else look empty and be given away.
    pub settling: RwLock<()>,
    /// The budget was found empty, and said so.
    pub is_short: AtomicBool,
    /// Rounds of housekeeping.
    turns: AtomicU32,
}

impl std::fmt::Debug for Flash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flash").finish_non_exhaustive()
    }
}

impl Flash {
    pub fn new(tier: Arc<dyn Tier>, depth: u32, is_by_hand: bool) -> Result<Flash, StoreError> {
        let by_hand = match is_by_hand {
            true => Some(Mutex::new(Promoter::new(&*tier, depth)?)),
            false => None,
        };
        Ok(Flash {
            tier: RwLock::new(tier),
            process: std::process::id(),
            bell: Arc::default(),
            landed: Condvar::new(),
            threads: Mutex::new(Vec::new()),
            by_hand,
            reclaiming: Mutex::new(()),
            tidying: Mutex::new(0),
            settling: RwLock::new(()),
            is_short: AtomicBool::new(false),
            turns: AtomicU32::new(0),
        })
    }

    /// The tier.
    pub fn tier(&self) -> Arc<dyn Tier> {
        self.tier.read().clone()
    }

    /// There is work.
    pub fn ring(&self) {
        if self.by_hand.is_none() {
            self.bell.ring();
        }
    }

    /// Starts the threads. Without them nothing moves.
    pub fn start(store: &Arc<Store>, depth: u32) -> Result<(), StoreError> {
        let Some(flash) = &store.flash else { return Ok(()) };
        if flash.by_hand.is_some() {
            return Ok(());
        }
        let devices = flash.tier().status().devices.len();
        let mut threads = flash.threads.lock();
        for _ in 0..devices.clamp(1, PROMOTERS_MAX) {
            let promoter = Promoter::new(&*flash.tier(), depth)?;
            threads.push(spawn("keepwarm-fetch", store, |bell, store| {
                fetch(bell, store, promoter);
            })?);
        }
        for _ in 0..(devices + WRITERS_MORE).min(WRITERS_MAX) {
            threads.push(spawn("keepwarm-flash", store, write)?);
        }
        threads.push(spawn("keepwarm-claim", store, |_, store| {
            if let Some(store) = store.upgrade() {
                store.recover_flash();
            }
        })?);
        Ok(())
    }

    /// What is to be done now and then.
    pub fn keep_house(&self, store: &Store, forgotten: &[(Spot, u64)]) {
        Cold::tell(&*self.tier(), forgotten);
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(LOOK_AFTER_TURNS) {
            store.look_after_devices();
        }
    }

    /// Whether the threads are to end.
    pub fn is_ending(&self) -> bool {
        self.bell.is_last()
    }

    /// Ends the threads and waits for them. Twice is harmless; from one of them it waits for the
    /// others.
    pub fn stop(&self) {
        if self.process != std::process::id() {
            std::mem::forget(std::mem::take(&mut *self.threads.lock()));
            return;
        }
        self.bell.ring_last();
        let threads = std::mem::take(&mut *self.threads.lock());
        let me = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != me {
                // A panic was reported by the panic hook already.
                let _ = thread.join();
            }
        }
        self.landed.notify_all();
    }
}

fn spawn(
    name: &str,
    store: &Arc<Store>,
    work: impl FnOnce(&Bell, &Weak<Store>) + Send + 'static,
) -> Result<JoinHandle<()>, StoreError> {
    let flash = store.flash.as_ref().expect("started with flash");
    let (bell, weak) = (flash.bell.clone(), Arc::downgrade(store));
    let named = std::thread::Builder::new().name(name.into()).stack_size(STACK_BYTES);
    named.spawn(move || work(&bell, &weak)).map_err(|error| StoreError::Flash {
        problem: "no thread for it: raise the limit on threads".into(),
        source: Some(error),
    })
}

/// Brings blocks back, as long as there is a store.
fn fetch(bell: &Bell, store: &Weak<Store>, mut promoter: Promoter) {
    loop {
        let seen = bell.count();
        match store.upgrade() {
            Some(store) if !bell.is_last() => while promoter.step(&store) {},
            Some(store) => return promoter.finish(&store),
            None => return,
        }
        if !bell.wait(seen, LOOK_AGAIN) {
            if let Some(store) = store.upgrade() {
                promoter.finish(&store);
            }
            return;
        }
    }
}

/// Writes blocks, as long as there is a store.
fn write(bell: &Bell, store: &Weak<Store>) {
    loop {
        let seen = bell.count();
        match store.upgrade() {
            Some(store) => while !bell.is_last() && store.write_step() == Wrote::Some {},
            None => return,
        }
        if !bell.wait(seen, LOOK_AGAIN) {
            return;
        }
    }
}

impl Store {
    /// Ends what moves blocks to flash and back, and lets go of the devices, so that another store
    /// may open them. What memory holds stays readable; what is on flash alone is throttled.
    pub fn close_flash(&self) {
        if let Some(flash) = &self.flash {
            flash.stop();
            let tier = std::mem::replace(&mut *flash.tier.write(), Arc::new(ClosedTier));
            if flash.process != std::process::id() {
                std::mem::forget(tier);
            }
        }
    }

    /// Moves everything that is to move, in the calling thread: for tests, of a store that was
    /// opened without threads.
    #[doc(hidden)]
    pub fn run_flash_by_hand(&self) {
        let Some(flash) = &self.flash else { return };
        if let Some(promoter) = &flash.by_hand {
            while self.write_step() == Wrote::Some {}
            promoter.lock().run(self);
        }
    }

    /// Whether something waits to be written, is being written, comes back or is being claimed.
    pub fn is_flash_busy(&self) -> bool {
        let inner = self.lock();
        inner.cold.as_ref().is_some_and(|cold| {
            let moves = cold.queue.len() > 0 || cold.writing > 0 || cold.flights.under_way() > 0;
            moves || cold.recovery.is_running
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close_flash();
    }
}

/// Whether a flag was set just now.
pub(super) fn set_now(flag: &AtomicBool) -> bool {
    !flag.swap(true, Ordering::AcqRel)
}

/// Opens the configured devices.
pub(crate) fn open_tier(config: &StoreConfig) -> Result<Arc<dyn Tier>, StoreError> {
    let tier = FlashTier::open(&config.flash.devices, &config.flash.settings);
    let tier =
        tier.map_err(|error| StoreError::Flash { problem: error.to_string(), source: None })?;
    for device in tier.status().devices {
        log::say(Event::DeviceOpened, |line| {
            line.text("device", &device.name)
                .text("engine", &device.engine)
                .number("bytes", device.capacity_bytes);
        });
    }
    Ok(Arc::new(tier))
}
