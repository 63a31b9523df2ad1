//! A node on this machine, by shared memory: gets are one copy out of the arena, which this process
//! maps read-only; puts are one copy into a staging that the node reads. All else goes over the
//! socket, and so do the bytes where there is no map.
//!
//! `arena.rs` and `staging.rs` are the two mappings, `keeper.rs` asks for the arena, looks out for
//! its node's end, and lets go of it then. Frames are `remote/`'s.
//!
//! ```text
//!  nothing ──asked──► mapped ──node gone, closed, distrusted──► nothing ──a call, node back──► ...
//!                        └ calls under way keep the map they began with until they return
//! ```

mod arena;
mod keeper;
mod staging;

use std::sync::Arc;
use std::time::Duration;

use keepwarm_store::types::{BlockKey, Epoch, Generation, GetOutcome, LeaseId, PutOutcome};
use keepwarm_store::{Lookup, Reported};

pub(super) use self::arena::Arena;
use self::keeper::{Keeper, State};
pub(super) use self::staging::{SLOT_BYTES, SLOTS, STAGING_BYTES, Staging};
use super::positions::Run;
use super::remote::{NotMapped, Remote};
use super::stats::{Counts, add};
use super::transport::{Announced, LookupAsk, SpaceCore, Transport, Unserved};
use super::{
    ConnectConfig, ConnectError, EpochOutcome, EventStream, GetItem, Health, NodeStat, PutItem,
    TransportChoice,
};
use crate::deadline::Deadline;
use crate::messages::Since;
use crate::process::ProcessId;

/// The way to one node on this machine from one process.
pub(super) struct Shm {
    remote: Arc<Remote>,
    state: Arc<State>,
    process: ProcessId,
}

impl Shm {
    /// Maps nothing yet.
    pub(super) fn over(remote: Remote) -> Shm {
        let (remote, state) = (Arc::new(remote), Arc::default());
        Shm { remote, state, process: ProcessId::here() }
    }

    /// Asks for the arena, if the node is there.
    ///
    /// # Errors
    /// Shared memory was insisted on, and the node is there and gives none.
    pub(super) fn connect_first(
        &self,
        config: &ConnectConfig,
        until: Deadline,
    ) -> Result<(), ConnectError> {
        if !self.remote.is_up() {
            return Ok(());
        }
        match Keeper::start_with(&self.remote, &self.state, until) {
            Err(NotMapped::Never(problem)) if config.transport == TransportChoice::Shm => {
                Err(ConnectError::NoSharedMemory { address: config.address.clone(), problem })
            }
            _ => Ok(()),
        }
    }

    /// The map, if there is one. If not, and there could be, asks for one in the background.
    fn arena(&self) -> Option<Arc<Arena>> {
        let arena = self.state.arena();
        if arena.is_none() {
            Keeper::start_if_due(&self.remote, &self.state);
        }
        arena
    }

    fn count_copied(&self, bytes: usize, copies: u64) {
        add(&self.remote.counts().bytes_copied, bytes as u64 * copies);
    }
}

impl Transport for Shm {
    fn name(&self) -> &'static str {
        if self.state.arena().is_some() { "shm" } else { self.remote.name() }
    }

    fn counts(&self) -> Arc<Counts> {
        self.remote.counts()
    }

    fn health(&self) -> Health {
        let fallback = self.state.fallback();
        Health { transport: self.name(), fallback, ..self.remote.health() }
    }

    fn is_up(&self) -> bool {
        self.remote.is_up()
    }

    fn announced(&self) -> Option<Announced> {
        self.remote.announced()
    }

    fn ping(&self, until: Deadline) -> Result<(), Unserved> {
        self.remote.ping(until)
    }

    unsafe fn get_into(
        &self,
        space: &SpaceCore,
        items: &[GetItem],
        runs: &[Run],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        let Some(arena) = self.arena().filter(|_| !items.is_empty()) else {
            // SAFETY: the caller's promise about `items`.
            return unsafe { self.remote.get_into(space, items, runs, outcomes, until) };
        };
        // SAFETY: as above.
        let served = unsafe { self.remote.get_mapped(space, &arena, items, outcomes, until) };
        let landed = items.iter().zip(&*outcomes).filter(|(_, o)| **o == Some(GetOutcome::Ok));
        self.count_copied(landed.map(|(item, _)| item.len).sum(), 1);
        if !served? {
            self.state.distrust(&arena);
        }
        Ok(())
    }

    unsafe fn put_from(
        &self,
        space: &SpaceCore,
        items: &[PutItem],
        runs: &[Run],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        if items.is_empty() || self.arena().is_none() {
            // SAFETY: the caller's promise about `items`.
            return unsafe { self.remote.put_from(space, items, runs, outcomes, until) };
        }
        // SAFETY: as above.
        let served = unsafe { self.remote.put_mapped(space, items, outcomes, until) };
        let stored = items.iter().zip(&*outcomes).filter(|(_, o)| **o == Some(PutOutcome::Stored));
        self.count_copied(stored.map(|(item, _)| item.len).sum(), 2);
        served
    }

    fn attach(&self, space: &SpaceCore, until: Deadline) -> Result<(), Unserved> {
        self.remote.attach(space, until)
    }

    fn detach(&self, space: &SpaceCore) {
        self.remote.detach(space);
    }

    fn lookup(
        &self,
        space: &SpaceCore,
        ask: &LookupAsk<'_>,
        until: Deadline,
    ) -> Result<Lookup, Unserved> {
        self.remote.lookup(space, ask, until)
    }

    fn touch(
        &self,
        space: &SpaceCore,
        keys: &[BlockKey],
        runs: &[Run],
        until: Deadline,
    ) -> Result<u32, Unserved> {
        self.remote.touch(space, keys, runs, until)
    }

    fn renew(&self, lease: LeaseId, hold: Duration, until: Deadline) -> Result<bool, Unserved> {
        self.remote.renew(lease, hold, until)
    }

    fn release(&self, lease: LeaseId, until: Deadline) -> Result<(), Unserved> {
        self.remote.release(lease, until)
    }

    fn report(
        &self,
        space: &SpaceCore,
        key: BlockKey,
        part: u8,
        generation: Generation,
        until: Deadline,
    ) -> Result<Reported, Unserved> {
        self.remote.report(space, key, part, generation, until)
    }

    fn drop_blocks(
        &self,
        space: &SpaceCore,
        keys: Option<&[BlockKey]>,
        until: Deadline,
    ) -> Result<u64, Unserved> {
        self.remote.drop_blocks(space, keys, until)
    }

    fn bump_epoch(
        &self,
        space: &SpaceCore,
        epoch: Epoch,
        until: Deadline,
    ) -> Result<EpochOutcome, Unserved> {
        self.remote.bump_epoch(space, epoch, until)
    }

    fn stat(&self, until: Deadline) -> Result<NodeStat, Unserved> {
        self.remote.stat(until)
    }

    fn subscribe(
        &self,
        space: &SpaceCore,
        since: &[(String, Since)],
        until: Deadline,
    ) -> Result<Box<dyn EventStream>, Unserved> {
        self.remote.subscribe(space, since, until)
    }

    fn close(&self) {
        self.state.close();
        self.remote.close();
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        // In a forked child the map is not there, and the line's end is the parent's to tell.
        if self.process == ProcessId::here() {
            self.close();
        }
    }
}
