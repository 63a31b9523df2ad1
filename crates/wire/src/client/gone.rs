//! The transport of those who can reach nothing.

use std::sync::Arc;
use std::time::Duration;

use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, MissReason, PutOutcome,
};
use keepwarm_store::{Lookup, Reported};

use super::positions::Run;
use super::stats::Counts;
use super::transport::{LookupAsk, SpaceCore, Transport, Unserved};
use super::{EpochOutcome, EventStream, GetItem, Health, HealthState, NodeStat, PutItem};
use crate::deadline::Deadline;
use crate::messages::Since;

/// Stands where no store can be reached, ever: in a forked child of an embedding process.
pub(super) struct Gone {
    why: &'static str,
    counts: Arc<Counts>,
}

impl Gone {
    pub(super) fn new(why: &'static str) -> Gone {
        Gone { why, counts: Arc::default() }
    }
}

const DOWN: Unserved = Unserved::Missed(MissReason::StoreDown);

impl Transport for Gone {
    fn name(&self) -> &'static str {
        "none"
    }

    fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    fn health(&self) -> Health {
        Health {
            state: HealthState::Down,
            last_error: Some(self.why.to_owned()),
            transport: self.name(),
            fallback: None,
            incarnation: None,
            node: None,
        }
    }

    fn attach(&self, _: &SpaceCore, _: Deadline) -> Result<(), Unserved> {
        Err(DOWN)
    }

    fn detach(&self, _: &SpaceCore) {}

    fn lookup(&self, _: &SpaceCore, _: &LookupAsk<'_>, _: Deadline) -> Result<Lookup, Unserved> {
        Err(DOWN)
    }

    unsafe fn get_into(
        &self,
        _: &SpaceCore,
        _: &[GetItem],
        _: &[Run],
        _: &mut [Option<GetOutcome>],
        _: Deadline,
    ) -> Result<(), Unserved> {
        Err(DOWN)
    }

    unsafe fn put_from(
        &self,
        _: &SpaceCore,
        _: &[PutItem],
        _: &[Run],
        _: &mut [Option<PutOutcome>],
        _: Deadline,
    ) -> Result<(), Unserved> {
        Err(DOWN)
    }

    fn touch(
        &self,
        _: &SpaceCore,
        _: &[BlockKey],
        _: &[Run],
        _: Deadline,
    ) -> Result<u32, Unserved> {
        Err(DOWN)
    }

    fn renew(&self, _: LeaseId, _: Duration, _: Deadline) -> Result<bool, Unserved> {
        Err(DOWN)
    }

    fn release(&self, _: LeaseId, _: Deadline) -> Result<(), Unserved> {
        Err(DOWN)
    }

    fn report(
        &self,
        _: &SpaceCore,
        _: BlockKey,
        _: u8,
        _: Generation,
        _: Deadline,
    ) -> Result<Reported, Unserved> {
        Err(DOWN)
    }

    fn drop_blocks(
        &self,
        _: &SpaceCore,
        _: Option<&[BlockKey]>,
        _: Deadline,
    ) -> Result<u64, Unserved> {
        Err(DOWN)
    }

    fn bump_epoch(&self, _: &SpaceCore, _: Epoch, _: Deadline) -> Result<EpochOutcome, Unserved> {
        Err(DOWN)
    }

    fn stat(&self, _: Deadline) -> Result<NodeStat, Unserved> {
        Err(DOWN)
    }

    fn subscribe(
        &self,
        _: &SpaceCore,
        _: &[(String, Since)],
        _: Deadline,
    ) -> Result<Box<dyn EventStream>, Unserved> {
        Err(DOWN)
    }

    fn close(&self) {}
}
