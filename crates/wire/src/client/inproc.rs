//! The store in this process: each byte is copied once, by the caller's thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use keepwarm_store::types::{
    BlockKey, Epoch, Generation, GetOutcome, LeaseId, MissReason, NamespaceId, PutOutcome,
    ShedReason,
};
use keepwarm_store::{
    BlockPut, EventBatch, EventFilter, Lookup, Reported, Reserve, Session, Store, Subscription,
};

use super::events::Position;
use super::positions::Run;
use super::stats::{Counts, add};
use super::transport::{LookupAsk, SpaceCore, Transport, Unserved, keys_here};
use super::{
    ClientError, EpochOutcome, EventStream, GetItem, Health, HealthState, NodeStat, PutItem,
};
use crate::ahead::Ahead;
use crate::deadline::Deadline;
use crate::figures;
use crate::housekeeping::Housekeeper;
use crate::messages::Since;
use crate::process::ProcessId;
use crate::raw;

/// Namespaces by their handle's number.
type Attached = Vec<(u64, NamespaceId)>;

pub(super) struct InProc {
    process: ProcessId,
    /// Taken only to be forgotten in a forked child, whose store this is not.
    session: Option<Session>,
    attached: Mutex<Attached>,
    house: Mutex<Option<Housekeeper>>,
    counts: Arc<Counts>,
    closed: AtomicBool,
}

impl InProc {
    pub(super) fn new(store: &Arc<Store>) -> InProc {
        InProc {
            process: ProcessId::here(),
            session: Some(store.session()),
            attached: Mutex::new(Vec::new()),
            // Without the thread leases still end when the store looks at them; only later.
            house: Mutex::new(Housekeeper::start(store).ok()),
            counts: Arc::default(),
            closed: AtomicBool::new(false),
        }
    }

    fn session(&self) -> Result<&Session, Unserved> {
        match &self.session {
            Some(session) if !self.closed.load(Ordering::Acquire) => Ok(session),
            _ => Err(Unserved::Missed(MissReason::StoreDown)),
        }
    }

    /// The session and the namespace's number in it.
    fn joined(&self, space: &SpaceCore) -> Result<(&Session, NamespaceId, Epoch), Unserved> {
        let session = self.session()?;
        let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let found = attached.iter().find(|(id, _)| *id == space.id);
        let (_, namespace) = found.ok_or(Unserved::Missed(MissReason::Identity))?;
        Ok((session, *namespace, Epoch(space.epoch.load(Ordering::Acquire))))
    }
}

impl Transport for InProc {
    fn name(&self) -> &'static str {
        "inproc"
    }

    fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    fn health(&self) -> Health {
        let incarnation = self.session.as_ref().map(|session| session.store().incarnation());
        Health {
            state: HealthState::Up,
            last_error: None,
            transport: self.name(),
            fallback: None,
            incarnation,
            node: Some((String::from("embedded"), std::process::id())),
        }
    }

    fn attach(&self, space: &SpaceCore, until: Deadline) -> Result<(), Unserved> {
        let session = self.session()?;
        let epoch = Epoch(space.epoch.load(Ordering::Acquire));
        let attached = session
            .attach_within(
                space.spec.encoding(),
                space.key_check,
                epoch,
                space.terms,
                until.left().unwrap_or_default(),
            )
            .map_err(|refused| Unserved::Refused(refused.to_string()))?;
        space.accepted(attached.epoch, attached.nearest);
        let mut known = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        known.push((space.id, attached.id));
        Ok(())
    }

    fn detach(&self, space: &SpaceCore) {
        let mut known = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = known.iter().position(|(id, _)| *id == space.id) else { return };
        let (_, namespace) = known.swap_remove(place);
        if let Some(session) = &self.session {
            session.detach(namespace);
        }
    }

    fn lookup(
        &self,
        space: &SpaceCore,
        ask: &LookupAsk<'_>,
        _: Deadline,
    ) -> Result<Lookup, Unserved> {
        let (session, namespace, epoch) = self.joined(space)?;
        Ok(session.lookup(namespace, epoch, ask.keys, ask.first_position, ask.lease))
    }

    unsafe fn get_into(
        &self,
        space: &SpaceCore,
        items: &[GetItem],
        _: &[Run],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        let (session, namespace, epoch) = self.joined(space)?;
        let mut ahead = Ahead::of(session);
        for (at, (item, outcome)) in items.iter().zip(outcomes).enumerate() {
            if until.passed() {
                return Err(Unserved::Missed(MissReason::Deadline));
            }
            if let Some(ahead) = &mut ahead {
                let name = |item: &GetItem| (item.key, item.len as u64);
                ahead.come_to(session, (namespace, epoch), items, at, name);
            }
            // SAFETY: the caller's promise about `item`.
            let to = unsafe { raw::destination(item.ptr, item.len) };
            *outcome = Some(self.get_one(session, namespace, epoch, item, to));
        }
        Ok(())
    }

    unsafe fn put_from(
        &self,
        space: &SpaceCore,
        items: &[PutItem],
        _: &[Run],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        let (session, namespace, epoch) = self.joined(space)?;
        for (item, outcome) in items.iter().zip(&mut *outcomes) {
            if until.passed() {
                return Err(Unserved::Missed(MissReason::Deadline));
            }
            // SAFETY: the caller's promise about `item`.
            let from = unsafe { raw::source(item.ptr, item.len) };
            *outcome = Some(put_one(session, namespace, epoch, item, from));
        }
        session.arrange(namespace, epoch, &keys_here(items, outcomes));
        Ok(())
    }

    fn touch(
        &self,
        space: &SpaceCore,
        keys: &[BlockKey],
        _: &[Run],
        _: Deadline,
    ) -> Result<u32, Unserved> {
        let (session, namespace, epoch) = self.joined(space)?;
        Ok(session.touch(namespace, epoch, keys))
    }

    fn renew(&self, lease: LeaseId, hold: Duration, _: Deadline) -> Result<bool, Unserved> {
        Ok(self.session()?.renew(lease, hold))
    }

    fn release(&self, lease: LeaseId, _: Deadline) -> Result<(), Unserved> {
        self.session()?.release(lease);
        Ok(())
    }

    fn report(
        &self,
        space: &SpaceCore,
        key: BlockKey,
        part: u8,
        generation: Generation,
        _: Deadline,
    ) -> Result<Reported, Unserved> {
        let (session, namespace, _) = self.joined(space)?;
        Ok(session.report(namespace, key, part, generation))
    }

    fn drop_blocks(
        &self,
        space: &SpaceCore,
        keys: Option<&[BlockKey]>,
        _: Deadline,
    ) -> Result<u64, Unserved> {
        let (session, namespace, _) = self.joined(space)?;
        let dropped = match keys {
            Some(keys) => session.drop_keys(namespace, keys).map(u64::from),
            None => session.drop_namespace(namespace),
        };
        dropped.map_err(|error| Unserved::Refused(error.to_string()))
    }

    fn bump_epoch(
        &self,
        space: &SpaceCore,
        epoch: Epoch,
        until: Deadline,
    ) -> Result<EpochOutcome, Unserved> {
        let (session, namespace, _) = self.joined(space)?;
        let bumped = session.bump_epoch_within(namespace, epoch, until.left().unwrap_or_default());
        let epoch = bumped.map_err(|error| Unserved::Refused(error.to_string()))?;
        let wait = until.left().unwrap_or_default();
        match session.wait_epoch_quiet(namespace, epoch, figures::clock_after(wait)) {
            true => Ok(EpochOutcome::Acknowledged),
            false => Ok(EpochOutcome::StillLeased),
        }
    }

    fn stat(&self, _: Deadline) -> Result<NodeStat, Unserved> {
        Ok(NodeStat(figures::of_store(&self.session()?.store().stats())))
    }

    fn subscribe(
        &self,
        space: &SpaceCore,
        since: &[(String, Since)],
        _: Deadline,
    ) -> Result<Box<dyn EventStream>, Unserved> {
        let (session, namespace, _) = self.joined(space)?;
        let store = session.store();
        let from = since.first().map(|(_, since)| (since.incarnation, since.sequence));
        let subscription = store.subscribe(EventFilter::Namespace(namespace), from);
        let position = Position::new(store.incarnation(), from);
        Ok(Box::new(Local { process: self.process, subscription: Some(subscription), position }))
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let house = self.house.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut house) = house {
            house.stop();
        }
    }
}

impl InProc {
    fn get_one(
        &self,
        session: &Session,
        namespace: NamespaceId,
        epoch: Epoch,
        item: &GetItem,
        to: &mut [u8],
    ) -> GetOutcome {
        let mut pin = match session.read(namespace, epoch, item.key, item.part) {
            Ok(pin) if pin.len() == to.len() => pin,
            // Another length than the caller's: whatever these bytes are, not what it means.
            Ok(_) => return GetOutcome::Miss(MissReason::Identity),
            Err(MissReason::Pending) => return GetOutcome::Pending,
            Err(MissReason::Throttled) => return GetOutcome::Throttled,
            Err(reason) => return GetOutcome::Miss(reason),
        };
        if pin.copy_to(to) == pin.checksum() {
            pin.used();
            return GetOutcome::Ok;
        }
        add(&self.counts.corrupt, 1);
        let generation = pin.generation();
        drop(pin);
        session.report(namespace, item.key, item.part, generation);
        GetOutcome::Miss(MissReason::Corrupt)
    }
}

fn put_one(
    session: &Session,
    namespace: NamespaceId,
    epoch: Epoch,
    item: &PutItem,
    from: &[u8],
) -> PutOutcome {
    let Ok(len) = u32::try_from(from.len()) else {
        return PutOutcome::Shed(ShedReason::TooLarge);
    };
    let put = BlockPut { key: item.key, part: item.part, len, engine_hash: item.engine_hash };
    match session.reserve(namespace, epoch, put) {
        Reserve::Granted(mut grant) => {
            let checksum = grant.write_from(from);
            grant.commit(checksum)
        }
        Reserve::Present => PutOutcome::Present,
        Reserve::Pending => PutOutcome::Pending,
        Reserve::Shed(reason) => PutOutcome::Shed(reason),
    }
}

impl Drop for InProc {
    fn drop(&mut self) {
        if self.process == ProcessId::here() {
            self.close();
        } else {
            std::mem::forget(self.session.take());
        }
    }
}

struct Local {
    process: ProcessId,
    /// Taken only to be forgotten in a forked child, whose store this is not.
    subscription: Option<Subscription>,
    position: Position,
}

impl EventStream for Local {
    fn next_batch(&mut self, wait: Duration) -> Result<EventBatch, ClientError> {
        let batch = match &mut self.subscription {
            Some(subscription) if self.process == ProcessId::here() => {
                subscription.next_batch(wait)
            }
            _ => return Err(ClientError::NotDone(MissReason::StoreDown)),
        };
        self.position.saw(&batch);
        Ok(batch)
    }

    fn since(&self) -> Option<(u64, u64)> {
        self.position.since()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.process != ProcessId::here() {
            std::mem::forget(self.subscription.take());
        }
    }
}
