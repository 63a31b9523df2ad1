//! What all connections of a server share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use keepwarm_store::Store;
use parking_lot::RwLock;

use super::ServerConfig;
use super::access::Access;
use super::counts::Counts;
use super::sessions::Sessions;
use crate::frame_io::GROWTH_BYTES;
use crate::frames::BODY_BYTES_MAX;
use crate::messages::Announcement;

/// Bytes of buffers for large bodies at once, on all connections.
const BODIES_BYTES_MAX: u64 = 16 * BODY_BYTES_MAX as u64;

/// What one get counts for, at most: its lengths are the client's claim, and a client that does not
/// take what it asked for must not shed everybody's puts.
const LOAD_BYTES_MAX: u64 = 64 << 20;

/// How far a server is from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    Serving = 0,
    /// Connections end after the call under way; puts are shed.
    Draining = 1,
    /// Connections end now.
    Stopped = 2,
}

/// A store, and what is known about serving it.
pub struct Node {
    pub(super) store: Arc<Store>,
    pub(super) config: ServerConfig,
    pub(super) counts: Counts,
    phase: AtomicU8,
    /// Bytes that gets under way have yet to send.
    loads_bytes: AtomicU64,
    bodies_bytes: AtomicU64,
    idle_nanos: AtomicU64,
    /// Why nobody reaches it any more.
    lost: OnceLock<String>,
    began: Instant,
    weight_permille: AtomicU32,
    /// Whether clients are to put elsewhere, long before connections end.
    leaving: AtomicBool,
    pub(super) sessions: Sessions,
    access: RwLock<Arc<Access>>,
}

impl Node {
    /// A node that serves nobody yet.
    pub fn new(store: Arc<Store>, config: ServerConfig) -> Node {
        Node {
            store,
            access: RwLock::new(Arc::default()),
            sessions: Sessions::new(config.clients_max),
            idle_nanos: AtomicU64::new(nanos(config.idle)),
            lost: OnceLock::new(),
            weight_permille: AtomicU32::new(config.weight_permille),
            config,
            counts: Counts::default(),
            phase: AtomicU8::new(Phase::Serving as u8),
            loads_bytes: AtomicU64::new(0),
            bodies_bytes: AtomicU64::new(0),
            began: Instant::now(),
            leaving: AtomicBool::new(false),
        }
    }

    /// What decides who is let in.
    pub(super) fn access(&self) -> Arc<Access> {
        self.access.read().clone()
    }

    pub(super) fn set_access(&self, access: Access) {
        *self.access.write() = Arc::new(access);
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Serving,
            1 => Phase::Draining,
            _ => Phase::Stopped,
        }
    }

    /// How long a connection may ask for nothing.
    pub(super) fn idle(&self) -> Duration {
        Duration::from_nanos(self.idle_nanos.load(Ordering::Relaxed))
    }

    pub(super) fn set_idle(&self, idle: Duration) {
        self.idle_nanos.store(nanos(idle), Ordering::Relaxed);
    }

    /// Why nobody reaches it any more, if so.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.get().cloned()
    }

    /// Nobody reaches it any more; the first reason stays.
    pub(super) fn lose(&self, why: String) {
        let _ = self.lost.set(why);
    }

    /// Phases only ever move on. All of this and of `Entry::busy` is in one order, so that either
    /// a drain sees a connection idle and ends it, or the connection sees the drain.
    pub(super) fn advance(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::SeqCst);
    }

    /// What clients hear of its share.
    pub(super) fn announcement(&self) -> Announcement {
        let leaving = self.leaving.load(Ordering::Acquire) || self.phase() != Phase::Serving;
        Announcement {
            age_ms: u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            weight_permille: self.weight_permille.load(Ordering::Acquire),
            draining: leaving,
        }
    }

    /// Changes what clients hear; they ask about once a second.
    pub(super) fn announce(&self, weight_permille: u32, draining: bool) {
        self.weight_permille.store(weight_permille, Ordering::Release);
        self.leaving.store(draining, Ordering::Release);
    }

    /// Ends the sessions of clients that have no connection, and with them their leases.
    pub fn end_sessions(&self) {
        self.sessions.end_kept();
    }

    /// Counts `bytes` as asked for, until the guard goes.
    pub(super) fn load(&self, bytes: u64) -> Load<'_> {
        let counted = bytes.min(LOAD_BYTES_MAX);
        self.loads_bytes.fetch_add(counted, Ordering::AcqRel);
        Load { node: self, left: bytes, counted }
    }

    pub(super) fn loads_bytes(&self) -> u64 {
        self.loads_bytes.load(Ordering::Acquire)
    }

    /// Room for a body's buffer, which grows as the body arrives.
    pub(super) fn room(&self) -> BodyRoom<'_> {
        BodyRoom { node: self, bytes: 0 }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Bytes that a get has yet to send.
pub(super) struct Load<'a> {
    node: &'a Node,
    left: u64,
    /// Of `left`, what the node's sum holds.
    counted: u64,
}

impl Load<'_> {
    /// Some have been sent.
    pub(super) fn sent(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
        let counted = self.left.min(LOAD_BYTES_MAX);
        self.node.loads_bytes.fetch_sub(self.counted - counted, Ordering::AcqRel);
        self.counted = counted;
    }
}

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.sent(u64::MAX);
    }
}

/// A buffer's share of the common budget. A small one takes none.
pub(super) struct BodyRoom<'a> {
    node: &'a Node,
    bytes: u64,
}

impl BodyRoom<'_> {
    /// Makes it room for a buffer of `bytes`. False: the budget has not as much, and it is as it
    /// was.
    pub(super) fn grow(&mut self, bytes: usize) -> bool {
        let wanted = if bytes > GROWTH_BYTES { bytes as u64 } else { 0 };
        let more = wanted.saturating_sub(self.bytes);
        let before = self.node.bodies_bytes.fetch_add(more, Ordering::AcqRel);
        let fits = before + more <= BODIES_BYTES_MAX;
        match fits {
            true => self.bytes += more,
            false => drop(self.node.bodies_bytes.fetch_sub(more, Ordering::AcqRel)),
        }
        fits
    }
}

impl Drop for BodyRoom<'_> {
    fn drop(&mut self) {
        self.node.bodies_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}
