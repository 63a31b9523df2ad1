//! A node over a socket.
//!
//! `dial.rs` connects, `link.rs` is one connection, `announced.rs` what its node says of itself,
//! `pool.rs` the few there may be, `breaker.rs` decides whether calls are tried and asks for a lost
//! node in the background; `stripes.rs` spreads a batch, `reads.rs`, `writes.rs` and `follow.rs`
//! move more than a frame. `mapped.rs`, `located.rs` and `staged.rs` are the frames of
//! `client/shm`.

mod announced;
mod breaker;
mod dial;
mod first;
mod follow;
mod link;
mod located;
mod mapped;
mod pool;
mod reads;
mod staged;
mod stripes;
mod way;
mod writes;

pub(super) use self::mapped::{MapLine, NotMapped};

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keepwarm_store::types::{BlockKey, Clock, Epoch, Generation, GetOutcome, LeaseId, PutOutcome};
use keepwarm_store::{Lookup, Reported, SystemClock};

use self::breaker::{Breaker, FAILURES};
use self::dial::Dialer;
use self::link::{Cut, Link, Peer, of_blocks};
use self::pool::{Place, Pool};
use super::legs::Legs;
use super::positions::Run;
use super::stats::{Counts, add};
use super::transport::{Announced, LookupAsk, SpaceCore, Transport, Unserved, keys_here};
use super::{
    ConnectConfig, ConnectError, EpochOutcome, EventStream, GetItem, Health, HealthState, NodeStat,
    PutItem,
};
use crate::channel::Channel;
use crate::codec::Body;
use crate::deadline::Deadline;
use crate::frames::{Opcode, Violation};
use crate::messages::{
    DropReply, DropRequest, EpochReply, EpochRequest, LookupReply, LookupRequest, PingReply,
    PingRequest, ReleaseReply, ReleaseRequest, RenewReply, RenewRequest, ReportReply,
    ReportRequest, Since, Token, TouchReply, TouchRequest,
};
use crate::process::ProcessId;

/// Share of a lease's time that is relied on.
const LEASE_USED_PERCENT: u64 = 80;

/// A node that missed a shorter deadline than this may still be well.
const DEADLINE_TELLING: Duration = Duration::from_millis(10);

/// How long a space that goes may take to tell the node.
const LEAVE_TAKING: Duration = Duration::from_millis(50);

/// The way to one node from one process.
pub(super) struct Remote {
    node: Arc<Node>,
    legs: Legs,
    process: ProcessId,
}

/// What calls and the asking thread share.
struct Node {
    config: ConnectConfig,
    dialer: Dialer,
    token: Token,
    pool: Pool,
    breaker: Breaker,
    counts: Arc<Counts>,
    /// The node's incarnation; 0 before the first greeting.
    incarnation: AtomicU64,
    peer: Mutex<Option<Peer>>,
    /// Spaces that have gone.
    departures: AtomicU64,
}

impl Remote {
    /// Connects nothing yet.
    pub(super) fn new(config: &ConnectConfig) -> Result<Remote, ConnectError> {
        Remote::with(config, Arc::default(), FAILURES)
    }

    fn with(
        config: &ConnectConfig,
        counts: Arc<Counts>,
        failures_max: u32,
    ) -> Result<Remote, ConnectError> {
        let mut token = [0; 16];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
            .map_err(io::Error::from)?;
        let node = Node {
            config: config.clone(),
            dialer: Dialer::new(config),
            token: Token(token),
            pool: Pool::new(config.connections_max),
            breaker: Breaker::new(failures_max),
            counts,
            incarnation: AtomicU64::new(0),
            peer: Mutex::new(None),
            departures: AtomicU64::new(0),
        };
        Ok(Remote { node: Arc::new(node), legs: Legs::default(), process: ProcessId::here() })
    }

    fn call<B: Body>(
        &self,
        opcode: Opcode,
        body: impl FnOnce(&mut Vec<u8>),
        until: Deadline,
    ) -> Result<B, Unserved> {
        Ok(self.node.with_link(until, |link| link.ask(opcode, body, until))?)
    }

    fn call_in<Q: Body, B: Body>(
        &self,
        space: &SpaceCore,
        opcode: Opcode,
        request: impl FnOnce(keepwarm_store::types::NamespaceId) -> Q,
        until: Deadline,
    ) -> Result<B, Unserved> {
        Ok(self.node.with_link(until, |link| {
            let namespace = link.namespace(space, until)?;
            let request = request(namespace);
            link.ask(opcode, |out| request.write(out), until)
        })?)
    }

    fn incarnation(&self) -> u64 {
        self.node.incarnation.load(Ordering::Acquire)
    }
}

impl Node {
    /// Runs `work` on a connection. One on which it was cut is never used again.
    fn with_link<T>(
        self: &Arc<Self>,
        until: Deadline,
        work: impl FnOnce(&mut Link) -> Result<T, Cut>,
    ) -> Result<T, Cut> {
        // No time at all says nothing about the node.
        if until.passed() {
            return Err(Cut::Deadline);
        }
        let begun = Instant::now();
        let mut place = self.place(until)?;
        let link = place.link();
        (link.heard, link.corrupt) = (false, 0);
        let departures = self.departures.load(Ordering::Acquire);
        let result = link.leave_gone(departures, until).and_then(|()| work(link));
        let (heard, suspect) = (link.heard, link.suspect);
        add(&self.counts.corrupt, link.corrupt);
        add(&self.counts.system_calls, link.socket.take_system_calls());
        match &result {
            Ok(_) | Err(Cut::Refused(_)) => {
                self.breaker.worked();
                self.breaker.note(result.as_ref().err().and_then(Cut::lacking_right));
                match suspect {
                    true => add(&self.counts.suspect_connections, 1),
                    false => place.give_back(),
                }
            }
            // An answer too, of a node that is up.
            Err(Cut::Busy { ends, .. }) => {
                self.breaker.worked();
                if !ends {
                    place.give_back();
                }
            }
            // It was answering, or had no chance to.
            Err(Cut::Deadline) if heard || begun.elapsed() < DEADLINE_TELLING => {}
            Err(cut) => self.failed(cut),
        }
        result
    }

    /// A connection that works as far as can be told.
    fn place(self: &Arc<Self>, until: Deadline) -> Result<Place<'_>, Cut> {
        if !self.breaker.lets_pass() {
            self.breaker.watch(self);
            return Err(Cut::Down);
        }
        loop {
            let mut place = self.pool.take(until)?;
            match place.idle() {
                Some(link) if link.socket.peer_is_there() => return Ok(place),
                // Closed by the node meanwhile. Its place goes to the next one.
                Some(_) => continue,
                None => {}
            }
            match self.open(until) {
                Ok(link) => {
                    place.fill(link);
                    return Ok(place);
                }
                Err(cut) => {
                    self.failed(&cut);
                    return Err(cut);
                }
            }
        }
    }

    /// A new connection. A node that was restarted makes the older ones void.
    fn open(&self, until: Deadline) -> Result<Link, Cut> {
        let link = Link::open(&self.dialer, &self.config, self.token, until)?;
        add(&self.counts.connections, 1);
        let before = self.incarnation.swap(link.peer.incarnation, Ordering::AcqRel);
        if let Ok(mut peer) = self.peer.lock() {
            *peer = Some(link.peer.clone());
        }
        if before != link.peer.incarnation {
            self.pool.clear();
            if before != 0 {
                add(&self.counts.reconnects, 1);
            }
        }
        Ok(link)
    }

    /// Counts a failure; enough of them, or a refused connection, and calls are no longer tried.
    /// A node that says it is busy has not failed.
    fn failed(self: &Arc<Self>, cut: &Cut) {
        if matches!(cut, Cut::Busy { .. }) {
            return;
        }
        self.heard_goodbye(cut);
        let at_once = matches!(cut, Cut::Unreachable(_) | Cut::Untrusted(_));
        if self.breaker.failed(cut.to_string(), at_once) {
            self.pool.clear();
            self.breaker.watch(self);
        }
    }

    /// One attempt of the asking thread.
    fn try_again(&self, until: Deadline) -> Result<(), Cut> {
        let before = self.incarnation.load(Ordering::Acquire);
        let mut link = self.open(until)?;
        let PingReply { .. } = link.ask(Opcode::Ping, |out| PingRequest.write(out), until)?;
        if before == link.peer.incarnation {
            add(&self.counts.reconnects, 1);
        }
        self.pool.offer(link);
        Ok(())
    }
}

impl Transport for Remote {
    fn name(&self) -> &'static str {
        self.node.config.address.transport()
    }

    fn counts(&self) -> Arc<Counts> {
        self.node.counts.clone()
    }

    fn health(&self) -> Health {
        let (up, last_error) = self.node.breaker.state();
        let peer = self.node.peer.lock().ok().and_then(|peer| peer.clone());
        Health {
            state: if up { HealthState::Up } else { HealthState::Down },
            last_error,
            transport: self.name(),
            fallback: None,
            incarnation: peer.as_ref().map(|peer| peer.incarnation),
            node: peer.map(|peer| (peer.name, peer.pid)),
        }
    }

    fn is_up(&self) -> bool {
        self.node.breaker.lets_pass()
    }

    fn announced(&self) -> Option<Announced> {
        self.node.announced()
    }

    fn ping(&self, until: Deadline) -> Result<(), Unserved> {
        self.ask_after(until)
    }

    fn attach(&self, space: &SpaceCore, until: Deadline) -> Result<(), Unserved> {
        match self.node.with_link(until, |link| link.namespace(space, until)) {
            Ok(_) => Ok(()),
            Err(Cut::Refused(refusal)) => Err(Unserved::Refused(refusal.text)),
            Err(cut) => Err(cut.into()),
        }
    }

    /// Idle connections hear of it now, those with a call before their next one.
    fn detach(&self, _: &SpaceCore) {
        let departures = self.node.departures.fetch_add(1, Ordering::AcqRel) + 1;
        let until = Deadline::after(LEAVE_TAKING);
        let idle: Vec<_> = std::iter::from_fn(|| self.node.pool.take_idle()).collect();
        for mut place in idle {
            // Without time it stays as it is, and does so before its next call.
            if until.passed() || place.link().leave_gone(departures, until).is_ok() {
                place.give_back();
            }
        }
    }

    fn lookup(
        &self,
        space: &SpaceCore,
        ask: &LookupAsk<'_>,
        until: Deadline,
    ) -> Result<Lookup, Unserved> {
        let lease_ms = ask.lease.map_or(0, milliseconds);
        let mut before = SystemClock.now();
        let answer = self.node.with_link(until, |link| {
            let head = LookupRequest {
                namespace: link.namespace(space, until)?,
                epoch: Epoch(space.epoch.load(Ordering::Acquire)),
                first_position: ask.first_position,
                lease_ms,
                keys: Vec::new(),
            };
            before = SystemClock.now();
            let body = |out: &mut Vec<u8>| LookupRequest::write_parts(out, &head, ask.keys);
            let reply: LookupReply = link.ask(Opcode::Lookup, body, until)?;
            match reply.0.hits.len() == ask.keys.len() {
                true => Ok(reply),
                false => Err(Violation::Unexpected("another number of hits than keys").into()),
            }
        });
        let LookupReply(mut found) = answer.map_err(of_blocks)?;
        let passed = milliseconds(SystemClock.now().since(before));
        let used = u64::from(found.lease_ms) * LEASE_USED_PERCENT / 100;
        found.lease_ms = u32::try_from(used).unwrap_or(u32::MAX).saturating_sub(passed);
        found.lease = found.lease.map(|lease| of_incarnation(lease, found.incarnation));
        Ok(found)
    }

    unsafe fn get_into(
        &self,
        space: &SpaceCore,
        items: &[GetItem],
        _: &[Run],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        if items.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise about `items`.
        unsafe { self.get_striped(space, items, outcomes, until) }
    }

    unsafe fn put_from(
        &self,
        space: &SpaceCore,
        items: &[PutItem],
        _: &[Run],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        if items.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller's promise about `items`.
        if unsafe { self.put_striped(space, items, outcomes, until) }? {
            // The node counted each group as used by itself; the head of all is to leave last. What
            // is stored stays so without an answer.
            let _ = self.touch(space, &keys_here(items, outcomes), &[], until);
        }
        Ok(())
    }

    fn touch(
        &self,
        space: &SpaceCore,
        keys: &[BlockKey],
        _: &[Run],
        until: Deadline,
    ) -> Result<u32, Unserved> {
        let epoch = Epoch(space.epoch.load(Ordering::Acquire));
        let keys = keys.to_vec();
        let request = |namespace| TouchRequest { namespace, epoch, keys };
        let TouchReply(here) = self.call_in(space, Opcode::Touch, request, until)?;
        Ok(here)
    }

    fn renew(&self, lease: LeaseId, hold: Duration, until: Deadline) -> Result<bool, Unserved> {
        let (incarnation, lease_ms) = (self.incarnation(), milliseconds(hold));
        let lease = of_incarnation(lease, incarnation);
        let request = RenewRequest { incarnation, lease, lease_ms };
        let RenewReply(held) = self.call(Opcode::Renew, |out| request.write(out), until)?;
        Ok(held)
    }

    fn release(&self, lease: LeaseId, until: Deadline) -> Result<(), Unserved> {
        let incarnation = self.incarnation();
        let request = ReleaseRequest { incarnation, lease: of_incarnation(lease, incarnation) };
        let ReleaseReply = self.call(Opcode::Release, |out| request.write(out), until)?;
        Ok(())
    }

    fn report(
        &self,
        space: &SpaceCore,
        key: BlockKey,
        part: u8,
        generation: Generation,
        until: Deadline,
    ) -> Result<Reported, Unserved> {
        let request = |namespace| ReportRequest { namespace, key, part, generation };
        let ReportReply(found) = self.call_in(space, Opcode::Report, request, until)?;
        Ok(found)
    }

    fn drop_blocks(
        &self,
        space: &SpaceCore,
        keys: Option<&[BlockKey]>,
        until: Deadline,
    ) -> Result<u64, Unserved> {
        let keys = keys.map(<[_]>::to_vec);
        let request = |namespace| DropRequest { namespace, keys };
        let DropReply(dropped) = self.call_in(space, Opcode::Drop, request, until)?;
        Ok(dropped)
    }

    fn bump_epoch(
        &self,
        space: &SpaceCore,
        epoch: Epoch,
        until: Deadline,
    ) -> Result<EpochOutcome, Unserved> {
        let wait_ms = milliseconds(self.waits(until));
        let request = |namespace| EpochRequest { namespace, epoch, wait_ms };
        let reply: EpochReply = self.call_in(space, Opcode::Epoch, request, until)?;
        match reply.quiet {
            true => Ok(EpochOutcome::Acknowledged),
            false => Ok(EpochOutcome::StillLeased),
        }
    }

    fn stat(&self, until: Deadline) -> Result<NodeStat, Unserved> {
        Ok(NodeStat(self.node.with_link(until, |link| link.stat(until))?))
    }

    fn subscribe(
        &self,
        space: &SpaceCore,
        since: &[(String, Since)],
        until: Deadline,
    ) -> Result<Box<dyn EventStream>, Unserved> {
        if !self.node.breaker.lets_pass() {
            self.node.breaker.watch(&self.node);
            return Err(Cut::Down.into());
        }
        let mut link = self.node.open(until).inspect_err(|cut| self.node.failed(cut))?;
        let namespace = link.namespace(space, until)?;
        let since = since.first().map(|(_, since)| *since);
        Ok(Box::new(follow::Follow::start(link, namespace, since, until)?))
    }

    fn close(&self) {
        self.node.breaker.stop();
        self.legs.close();
        self.node.pool.close();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // In a forked child the locks belong to the parent's threads, and the sockets are only
        // closed, never shut down.
        if self.process == ProcessId::here() {
            self.close();
        }
    }
}

/// A lease's number as callers see it, and back: nodes count leases from 1, so a number kept across
/// a node's restart could otherwise name a lease of the new one.
fn of_incarnation(lease: LeaseId, incarnation: u64) -> LeaseId {
    LeaseId(lease.0 ^ incarnation)
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
