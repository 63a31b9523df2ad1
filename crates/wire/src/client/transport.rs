//! The seam between what a caller sees and how bytes travel.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keepwarm_store::identity::NamespaceSpec;
use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, MissReason, PutOutcome,
};
use keepwarm_store::{Lookup, Reported};

use super::positions::Run;
use super::stats::Counts;
use super::{ClientError, EpochOutcome, EventStream, GetItem, Health, NodeStat, PutItem};
use crate::deadline::Deadline;
use crate::messages::Since;

/// One namespace as its client knows it, whatever the connection.
#[derive(Debug)]
pub(crate) struct SpaceCore {
    /// Number of this handle within its memory.
    pub(crate) id: u64,
    pub(crate) spec: NamespaceSpec,
    pub(crate) key_check: [u8; 8],
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

    /// A node refused it.
    pub(crate) fn refused(&self, problem: &str) {
        if let Ok(mut notes) = self.notes.try_lock() {
            notes.problem = Some(problem.to_owned());
        }
    }
}

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

/// A question about the blocks of a prompt.
pub(crate) struct LookupAsk<'a> {
    pub(crate) keys: &'a [BlockKey],
    pub(crate) first_position: u64,
    /// As `Transport::wants_runs` asks.
    #[expect(dead_code, reason = "the transports so far have one node each")]
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

    fn subscribe(
        &self,
        space: &SpaceCore,
        since: Option<Since>,
        until: Deadline,
    ) -> Result<Box<dyn EventStream>, Unserved>;

    /// Ends connections and threads; calls after it find the store down.
    fn close(&self);
}
