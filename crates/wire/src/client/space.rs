//! [`Space`]: one namespace, and the calls an engine makes. What every transport shares lives
//! here: limits, deadlines, counting, and that a failure is an outcome.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keepwarm_store::identity::NamespaceSpec;
use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, MissReason, PutOutcome,
};
use keepwarm_store::{Lookup, Reported};

use super::events::Seated;
use super::memory::{Process, Shared};
use super::positions::{Positions, Run, runs};
use super::stats::add;
use super::transport::{LookupAsk, SpaceCore, Unserved, get_rest, put_rest};
use super::{ClientError, EventStream};
use crate::deadline::Deadline;
use crate::frames::KEYS_MAX;
use crate::messages::Since;

/// One part of one block, and where it is to land.
#[derive(Clone, Copy, Debug)]
pub struct GetItem {
    /// The block.
    pub key: BlockKey,
    /// Which of its parts.
    pub part: u8,
    /// The buffer.
    pub ptr: *mut u8,
    /// Its bytes: exactly those of the part.
    pub len: usize,
}

/// One part of one block, and where it is now.
#[derive(Clone, Copy, Debug)]
pub struct PutItem {
    /// The block.
    pub key: BlockKey,
    /// Which of its parts.
    pub part: u8,
    /// The buffer.
    pub ptr: *const u8,
    /// Its bytes.
    pub len: usize,
    /// The engine's own 64-bit hash of the block, for events.
    pub engine_hash: Option<u64>,
}

/// How far a larger epoch got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochOutcome {
    /// It holds, and no lease of a smaller one is left: no get that starts now returns old bytes.
    Acknowledged,
    /// It holds; leases of a smaller one were still there at the deadline.
    StillLeased,
    /// The node was not reached, or did not answer in time.
    NotReached,
}

/// One namespace in a memory. Every call returns by its deadline, whatever the node does.
#[derive(Clone)]
pub struct Space {
    shared: Arc<Shared>,
    member: Arc<Member>,
}

/// Detaches when the last clone goes.
struct Member {
    shared: Arc<Shared>,
    core: SpaceCore,
}

impl Drop for Member {
    fn drop(&mut self) {
        self.core.gone.store(true, Ordering::Release);
        self.shared.here().transport.detach(&self.core);
    }
}

impl Space {
    pub(super) fn new(shared: Arc<Shared>, core: SpaceCore) -> Space {
        Space { shared: shared.clone(), member: Arc::new(Member { shared, core }) }
    }

    /// What this space is for.
    pub fn spec(&self) -> &NamespaceSpec {
        &self.core().spec
    }

    /// The epoch of this space's requests.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.core().epoch.load(Ordering::Acquire))
    }

    /// Whether a node has accepted it at least once.
    pub fn joined(&self) -> bool {
        self.core().joined.load(Ordering::Acquire)
    }

    /// Why the node refuses it, if it does.
    pub fn problem(&self) -> Option<String> {
        self.core().notes.try_lock().ok().and_then(|notes| notes.problem.clone())
    }

    /// How it differed from the most similar namespace on the node when it came: explains a hit
    /// rate of zero.
    pub fn nearest(&self) -> Option<String> {
        self.core().notes.try_lock().ok().and_then(|notes| notes.nearest.clone())
    }

    /// The nodes that have not acknowledged the epoch of the last [`Space::bump_epoch`].
    pub fn behind(&self) -> Vec<String> {
        self.core().notes.try_lock().map(|notes| notes.behind.clone()).unwrap_or_default()
    }

    /// Which of a prompt's blocks are here. A failure is a prefix of 0 with its reason. The
    /// answer's `lease_ms` is what can be relied on from now: the node's used to 80%, less the way.
    ///
    /// # Errors
    /// More than 65,536 keys; a closed memory.
    pub fn lookup(
        &self,
        keys: &[BlockKey],
        first_position: u64,
        lease: Option<Duration>,
        deadline: Duration,
    ) -> Result<Lookup, ClientError> {
        let at = Positions { first: first_position, heads: &[] };
        self.lookup_at(keys, Some(at), lease, deadline)
    }

    /// As [`Space::lookup`], for keys of any part of a prompt. `None`: nobody knows which, and with
    /// several nodes and runs of several blocks that is misuse.
    ///
    /// # Errors
    /// As [`Space::lookup`]; positions that cannot be.
    pub fn lookup_at(
        &self,
        keys: &[BlockKey],
        at: Option<Positions<'_>>,
        lease: Option<Duration>,
        deadline: Duration,
    ) -> Result<Lookup, ClientError> {
        let (process, until) = self.begin(keys.len(), deadline)?;
        let runs = self.runs(process, keys, |key| *key, at)?;
        add(&process.counts.lookups, 1);
        let first_position = at.unwrap_or_default().first;
        let ask = LookupAsk { keys, first_position, runs: &runs, lease };
        let found = process.transport.lookup(self.core(), &ask, until);
        Ok(found.unwrap_or_else(|unserved| self.nothing(process, keys.len(), &unserved)))
    }

    /// Gets blocks into the caller's buffers. Anything but `Ok` leaves its buffer undefined. Once
    /// this has returned nothing of ours can still write any of them.
    ///
    /// # Safety
    /// Each item's `ptr` is valid for reads and writes of `len` bytes until this returns, and
    /// nobody else uses those bytes meanwhile; no two items overlap.
    ///
    /// # Errors
    /// More than 65,536 items, a length that no block has, a closed memory.
    pub unsafe fn get_into(
        &self,
        items: &[GetItem],
        deadline: Duration,
    ) -> Result<Vec<GetOutcome>, ClientError> {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.get_into_at(items, None, deadline) }
    }

    /// As [`Space::get_into`], with the places of the items in their prompt.
    ///
    /// # Safety
    /// As [`Space::get_into`].
    ///
    /// # Errors
    /// As [`Space::get_into`]; positions that cannot be, or none where they are needed.
    pub unsafe fn get_into_at(
        &self,
        items: &[GetItem],
        at: Option<Positions<'_>>,
        deadline: Duration,
    ) -> Result<Vec<GetOutcome>, ClientError> {
        check_lengths(items.iter().map(|item| item.len))?;
        let (process, until) = self.begin(items.len(), deadline)?;
        let runs = self.runs(process, items, |item| item.key, at)?;
        add(&process.counts.gets, 1);
        let mut outcomes = vec![None; items.len()];
        // SAFETY: the caller's promise, handed on.
        let served =
            unsafe { process.transport.get_into(self.core(), items, &runs, &mut outcomes, until) };
        let rest = served.err().map_or(MissReason::StoreDown, |e| count_unserved(process, &e));
        let decided = |outcome: Option<_>| outcome.unwrap_or(get_rest(rest));
        let outcomes: Vec<GetOutcome> = outcomes.into_iter().map(decided).collect();
        let landed = items.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == GetOutcome::Ok);
        add(&process.counts.bytes_got, landed.map(|(item, _)| item.len as u64).sum());
        process.counts.got(&outcomes);
        Ok(outcomes)
    }

    /// Puts blocks from the caller's buffers, in prompt order; those that are there afterwards
    /// count as used, tail first.
    ///
    /// # Safety
    /// Each item's `ptr` is valid for reads of `len` bytes until this returns, and nobody writes
    /// those bytes meanwhile.
    ///
    /// # Errors
    /// As [`Space::get_into`].
    pub unsafe fn put_from(
        &self,
        items: &[PutItem],
        deadline: Duration,
    ) -> Result<Vec<PutOutcome>, ClientError> {
        // SAFETY: the caller's promise, handed on.
        unsafe { self.put_from_at(items, None, deadline) }
    }

    /// As [`Space::put_from`], with the places of the items in their prompt.
    ///
    /// # Safety
    /// As [`Space::put_from`].
    ///
    /// # Errors
    /// As [`Space::get_into_at`].
    pub unsafe fn put_from_at(
        &self,
        items: &[PutItem],
        at: Option<Positions<'_>>,
        deadline: Duration,
    ) -> Result<Vec<PutOutcome>, ClientError> {
        check_lengths(items.iter().map(|item| item.len))?;
        let (process, until) = self.begin(items.len(), deadline)?;
        let runs = self.runs(process, items, |item| item.key, at)?;
        add(&process.counts.puts, 1);
        let mut outcomes = vec![None; items.len()];
        // SAFETY: the caller's promise, handed on.
        let served =
            unsafe { process.transport.put_from(self.core(), items, &runs, &mut outcomes, until) };
        let rest = served.err().map_or(MissReason::StoreDown, |e| count_unserved(process, &e));
        let rest = PutOutcome::Shed(put_rest(rest));
        let decided = |outcome: Option<_>| outcome.unwrap_or(rest);
        let outcomes: Vec<PutOutcome> = outcomes.into_iter().map(decided).collect();
        let sent = items.iter().zip(&outcomes).filter(|(_, o)| **o == PutOutcome::Stored);
        add(&process.counts.bytes_put, sent.map(|(item, _)| item.len as u64).sum());
        process.counts.put(&outcomes);
        Ok(outcomes)
    }

    /// Tells which prefix was used, in prompt order; the store counts it tail first. Returns how
    /// many of the blocks are here.
    ///
    /// # Errors
    /// As [`Space::lookup`]; the node did not answer.
    pub fn touch(&self, keys: &[BlockKey], deadline: Duration) -> Result<u32, ClientError> {
        self.touch_at(keys, None, deadline)
    }

    /// As [`Space::touch`], with the places of the keys in their prompt.
    ///
    /// # Errors
    /// As [`Space::touch`]; positions that cannot be, or none where they are needed.
    pub fn touch_at(
        &self,
        keys: &[BlockKey],
        at: Option<Positions<'_>>,
        deadline: Duration,
    ) -> Result<u32, ClientError> {
        let (process, until) = self.begin_other(keys.len(), deadline)?;
        let runs = self.runs(process, keys, |key| *key, at)?;
        counted(process, process.transport.touch(self.core(), keys, &runs, until))
    }

    /// Prolongs a lease: it holds for `hold` from now, at most 10 s, and 60 s in all. False: it has
    /// ended.
    ///
    /// # Errors
    /// The node did not answer; a closed memory.
    pub fn renew(
        &self,
        lease: LeaseId,
        hold: Duration,
        deadline: Duration,
    ) -> Result<bool, ClientError> {
        let (process, until) = self.begin_other(1, deadline)?;
        counted(process, process.transport.renew(lease, hold, until))
    }

    /// Ends a lease. If that does not reach the node, the lease ends by itself.
    ///
    /// # Errors
    /// The node did not answer; a closed memory.
    pub fn release(&self, lease: LeaseId, deadline: Duration) -> Result<(), ClientError> {
        let (process, until) = self.begin_other(1, deadline)?;
        counted(process, process.transport.release(lease, until))
    }

    /// Tells the node that a block's bytes are not what they should be (the engine found out by
    /// itself; what a get finds out it reports itself).
    ///
    /// # Errors
    /// The node did not answer; a closed memory.
    pub fn report(
        &self,
        key: BlockKey,
        part: u8,
        generation: Generation,
        deadline: Duration,
    ) -> Result<Reported, ClientError> {
        let (process, until) = self.begin_other(1, deadline)?;
        counted(process, process.transport.report(self.core(), key, part, generation, until))
    }

    /// Removes blocks. Returns how many were here.
    ///
    /// # Errors
    /// As [`Space::touch`].
    pub fn drop_keys(&self, keys: &[BlockKey], deadline: Duration) -> Result<u64, ClientError> {
        let (process, until) = self.begin_other(keys.len(), deadline)?;
        counted(process, process.transport.drop_blocks(self.core(), Some(keys), until))
    }

    /// Removes all blocks of the namespace. Returns how many were here.
    ///
    /// # Errors
    /// As [`Space::touch`].
    pub fn drop_all(&self, deadline: Duration) -> Result<u64, ClientError> {
        let (process, until) = self.begin_other(0, deadline)?;
        counted(process, process.transport.drop_blocks(self.core(), None, until))
    }

    /// Moves the namespace to a larger epoch, and this space with it, whether or not the node is
    /// reached: what it stores from now on is of the new epoch.
    ///
    /// # Errors
    /// The node tried and failed (it could not make the epoch durable); a closed memory.
    pub fn bump_epoch(
        &self,
        epoch: Epoch,
        deadline: Duration,
    ) -> Result<EpochOutcome, ClientError> {
        let (process, until) = self.begin_other(0, deadline)?;
        self.core().epoch.fetch_max(epoch.0, Ordering::AcqRel);
        match process.transport.bump_epoch(self.core(), epoch, until) {
            Err(Unserved::Refused(text)) => Err(ClientError::Refused(text)),
            Err(unserved) => {
                count_unserved(process, &unserved);
                Ok(EpochOutcome::NotReached)
            }
            Ok(outcome) => Ok(outcome),
        }
    }

    /// Follows what happens in the namespace, from `since` (incarnation, sequence) on if the node
    /// still knows, else with a snapshot first.
    ///
    /// # Errors
    /// The node did not answer; [`SUBSCRIPTIONS_MAX`](super::SUBSCRIPTIONS_MAX) are open; a closed
    /// memory.
    pub fn subscribe(
        &self,
        since: Option<(u64, u64)>,
        deadline: Duration,
    ) -> Result<Box<dyn EventStream>, ClientError> {
        let place = |(incarnation, sequence)| (String::new(), incarnation, sequence);
        self.subscribe_from(&since.map(place).into_iter().collect::<Vec<_>>(), deadline)
    }

    /// As [`Space::subscribe`], with a place for each of several nodes: (name, incarnation,
    /// sequence), as [`EventStream::places`] gives them.
    ///
    /// # Errors
    /// As [`Space::subscribe`].
    pub fn subscribe_from(
        &self,
        since: &[(String, u64, u64)],
        deadline: Duration,
    ) -> Result<Box<dyn EventStream>, ClientError> {
        let (process, until) = self.begin_other(0, deadline)?;
        let seat = process.seats.take().ok_or(ClientError::TooManySubscriptions)?;
        let place = |(node, incarnation, sequence): &(String, u64, u64)| {
            (node.clone(), Since { incarnation: *incarnation, sequence: *sequence })
        };
        let since: Vec<_> = since.iter().map(place).collect();
        let stream = counted(process, process.transport.subscribe(self.core(), &since, until))?;
        Ok(Box::new(Seated { stream, _seat: seat }))
    }

    /// The runs of a call's items, where the transport places by them.
    fn runs<T>(
        &self,
        process: &Process,
        items: &[T],
        key: impl Fn(&T) -> BlockKey,
        at: Option<Positions<'_>>,
    ) -> Result<Vec<Run>, ClientError> {
        match process.transport.wants_runs() {
            true => runs(items, key, self.core().spec.run_blocks(), at),
            false => Ok(Vec::new()),
        }
    }

    fn core(&self) -> &SpaceCore {
        &self.member.core
    }

    fn begin(&self, keys: usize, deadline: Duration) -> Result<(&Process, Deadline), ClientError> {
        match keys {
            0..=KEYS_MAX => self.shared.begin(deadline),
            found => Err(ClientError::TooManyKeys { found }),
        }
    }

    fn begin_other(
        &self,
        keys: usize,
        deadline: Duration,
    ) -> Result<(&Process, Deadline), ClientError> {
        let begun = self.begin(keys, deadline)?;
        add(&begun.0.counts.others, 1);
        Ok(begun)
    }

    /// The answer to a lookup that had none.
    fn nothing(&self, process: &Process, keys: usize, unserved: &Unserved) -> Lookup {
        let reason = count_unserved(process, unserved);
        Lookup {
            prefix: 0,
            hits: vec![None; keys],
            miss: (keys > 0).then_some(reason),
            lease: None,
            lease_ms: 0,
            restore_ns: 0,
            epoch: self.epoch(),
            incarnation: 0,
        }
    }
}

fn counted<T>(process: &Process, served: Result<T, Unserved>) -> Result<T, ClientError> {
    served.map_err(|unserved| {
        count_unserved(process, &unserved);
        unserved.into()
    })
}

/// Counts a cut call; returns the reason as a miss.
fn count_unserved(process: &Process, unserved: &Unserved) -> MissReason {
    match unserved {
        Unserved::Missed(reason) => {
            if *reason == MissReason::Deadline {
                add(&process.counts.deadlines, 1);
            }
            *reason
        }
        Unserved::Refused(_) => MissReason::StoreDown,
    }
}

fn check_lengths(lengths: impl Iterator<Item = usize>) -> Result<(), ClientError> {
    for (index, found) in lengths.enumerate() {
        if found == 0 || u32::try_from(found).is_err() {
            return Err(ClientError::Length { index, found });
        }
    }
    Ok(())
}
