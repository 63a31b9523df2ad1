//! The seam between what a caller sees and how bytes travel.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keepwarm_store::identity::NamespaceSpec;
use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, MissReason, PutOutcome, ShedReason, Terms,
};
use keepwarm_store::{Lookup, Reported};

use super::positions::Run;
use super::stats::Counts;
use super::{
    ClientError, EpochOutcome, EventStream, GetItem, Health, HealthState, NodeHealth, NodeStat,
    PutItem,
};
use crate::deadline::Deadline;
use crate::messages::{Announcement, Since, WEIGHT_ORDINARY};

/// One namespace as its client knows it, whatever the connection.
#[derive(Debug)]
pub(crate) struct SpaceCore {
    /// Number of this handle within its memory.
    pub(crate) id: u64,
    pub(crate) spec: NamespaceSpec,
    pub(crate) key_check: [u8; 8],
    /// What each attach asks for.
    pub(crate) terms: Terms,
    /// Set when nobody has the handle any more: connections forget it then.
    pub(crate) gone: Arc<AtomicBool>,
    /// The epoch of every request.
    pub(crate) epoch: AtomicU32,
    /// Whether a node has accepted it once.
    pub(crate) joined: AtomicBool,
    /// Whether the call that attaches it is still under way.
    pub(crate) attaching: AtomicBool,
    /// What a node said to it last. Only ever tried, never waited for: a fork may find it locked.
    pub(crate) notes: Mutex<Notes>,
}

#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Why it is refused.
    pub(crate) problem: Option<String>,
    /// How it differs from the most similar one that was there before it.
    pub(crate) nearest: Option<String>,
    /// Nodes that have not acknowledged its epoch, when it was last moved to a larger one.
    pub(crate) behind: Vec<String>,
}

impl SpaceCore {
    /// A node accepted it. While it attaches, the node's epoch is adopted: whoever starts after a
    /// bump starts behind it. Later, the first time too, it is not: an engine that started before
    /// the bump, node or no node, must keep missing.
    pub(crate) fn accepted(&self, epoch: Epoch, nearest: Option<String>) {
        if self.attaching.load(Ordering::Acquire) {
            self.epoch.fetch_max(epoch.0, Ordering::AcqRel);
        }
        self.joined.store(true, Ordering::Release);
        if let Ok(mut notes) = self.notes.try_lock() {
            notes.problem = None;
            if nearest.is_some() {
                notes.nearest = nearest;
            }
        }
    }

    /// Which nodes have not acknowledged its larger epoch.
    pub(crate) fn left_behind(&self, nodes: Vec<String>) {
        if let Ok(mut notes) = self.notes.try_lock() {
            notes.behind = nodes;
        }
    }

    /// A node refused it.
    pub(crate) fn refused(&self, problem: &str) {
        if let Ok(mut notes) = self.notes.try_lock() {
            notes.problem = Some(problem.to_owned());
        }
    }
}

/// What a node says of its share among several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announced {
    /// Which life of the node said it.
    pub(crate) incarnation: u64,
    /// When that life began, by this client's clock.
    pub(crate) began: Instant,
    /// Thousandths of an ordinary node's share.
    pub(crate) weight_permille: u32,
    /// It is about to go.
    pub(crate) draining: bool,
}

impl Announced {
    /// As heard just now.
    pub(crate) fn heard(incarnation: u64, said: Announcement) -> Announced {
        let (now, age) = (Instant::now(), Duration::from_millis(said.age_ms.min(AGE_MS_MAX)));
        Announced {
            incarnation,
            began: now.checked_sub(age).unwrap_or(now),
            weight_permille: said.weight_permille.min(WEIGHT_MAX),
            draining: said.draining,
        }
    }
}

/// A node that is older is as old: nothing grows for a week.
const AGE_MS_MAX: u64 = 7 * 86_400_000;

/// A node that wants more than this share of an ordinary one's is not believed.
const WEIGHT_MAX: u32 = 1000 * WEIGHT_ORDINARY;

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unserved {
    /// As a miss reason: deadline, store down, identity.
    Missed(MissReason),
    /// The node said no, in words.
    Refused(String),
}

impl From<Unserved> for ClientError {
    fn from(unserved: Unserved) -> ClientError {
        match unserved {
            Unserved::Missed(reason) => ClientError::NotDone(reason),
            Unserved::Refused(text) => ClientError::Refused(text),
        }
    }
}

/// The outcome of a get's block that was not served.
pub(crate) fn get_rest(reason: MissReason) -> GetOutcome {
    match reason {
        MissReason::Throttled => GetOutcome::Throttled,
        reason => GetOutcome::Miss(reason),
    }
}

/// Why a put's block that was not served is not stored.
pub(crate) fn put_rest(reason: MissReason) -> ShedReason {
    match reason {
        MissReason::Deadline => ShedReason::Deadline,
        MissReason::Identity => ShedReason::Identity,
        MissReason::Throttled => ShedReason::Busy,
        _ => ShedReason::StoreDown,
    }
}

/// A question about the blocks of a prompt.
pub(crate) struct LookupAsk<'a> {
    pub(crate) keys: &'a [BlockKey],
    pub(crate) first_position: u64,
    /// As `Transport::wants_runs` asks.
    pub(crate) runs: &'a [Run],
    pub(crate) lease: Option<Duration>,
}

/// The blocks of a put that are there after it, in prompt order: what is touched.
pub(crate) fn keys_here(items: &[PutItem], outcomes: &[Option<PutOutcome>]) -> Vec<BlockKey> {
    let is_here =
        |outcome: &Option<_>| matches!(outcome, Some(PutOutcome::Stored | PutOutcome::Present));
    let here = items.iter().zip(outcomes).filter(|(_, outcome)| is_here(outcome));
    let mut keys: Vec<BlockKey> = here.map(|(item, _)| item.key).collect();
    keys.dedup();
    keys
}

/// A way to a store. Every method returns by its deadline, and after that nothing writes what it
/// was given.
pub(crate) trait Transport: Send + Sync {
    fn name(&self) -> &'static str;

    fn counts(&self) -> Arc<Counts>;

    fn health(&self) -> Health;

    /// Whether calls are tried.
    fn is_up(&self) -> bool {
        self.health().state == HealthState::Up
    }

    /// How each of several nodes stands.
    fn nodes(&self) -> Vec<NodeHealth> {
        Vec::new()
    }

    /// What the node said of its share last.
    fn announced(&self) -> Option<Announced> {
        None
    }

    /// Asks the node how it is.
    fn ping(&self, _: Deadline) -> Result<(), Unserved> {
        Ok(())
    }

    /// Whether blocks are placed by their runs: then each call's `runs` cover its items, else they
    /// are empty.
    fn wants_runs(&self) -> bool {
        false
    }

    /// Joins now if the store can be reached. `Refused` is the store's own no.
    fn attach(&self, space: &SpaceCore, until: Deadline) -> Result<(), Unserved>;

    /// The space is no longer used, and says so itself.
    fn detach(&self, space: &SpaceCore);

    fn lookup(
        &self,
        space: &SpaceCore,
        ask: &LookupAsk<'_>,
        until: Deadline,
    ) -> Result<Lookup, Unserved>;

    /// Fills in one outcome per item; what is still `None` on an error was not served.
    ///
    /// # Safety
    /// As `Space::get_into`.
    unsafe fn get_into(
        &self,
        space: &SpaceCore,
        items: &[GetItem],
        runs: &[Run],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved>;

    /// As `get_into`.
    ///
    /// # Safety
    /// As `Space::put_from`.
    unsafe fn put_from(
        &self,
        space: &SpaceCore,
        items: &[PutItem],
        runs: &[Run],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved>;

    fn touch(
        &self,
        space: &SpaceCore,
        keys: &[BlockKey],
        runs: &[Run],
        until: Deadline,
    ) -> Result<u32, Unserved>;

    fn renew(&self, lease: LeaseId, hold: Duration, until: Deadline) -> Result<bool, Unserved>;

    fn release(&self, lease: LeaseId, until: Deadline) -> Result<(), Unserved>;

    fn report(
        &self,
        space: &SpaceCore,
        key: BlockKey,
        part: u8,
        generation: Generation,
        until: Deadline,
    ) -> Result<Reported, Unserved>;

    /// `None`: all of the namespace.
    fn drop_blocks(
        &self,
        space: &SpaceCore,
        keys: Option<&[BlockKey]>,
        until: Deadline,
    ) -> Result<u64, Unserved>;

    fn bump_epoch(
        &self,
        space: &SpaceCore,
        epoch: Epoch,
        until: Deadline,
    ) -> Result<EpochOutcome, Unserved>;

    fn stat(&self, until: Deadline) -> Result<NodeStat, Unserved>;

    /// `since` by the node's name, where there are several.
    fn subscribe(
        &self,
        space: &SpaceCore,
        since: &[(String, Since)],
        until: Deadline,
    ) -> Result<Box<dyn EventStream>, Unserved>;

    /// Ends connections and threads; calls after it find the store down.
    fn close(&self);
}
