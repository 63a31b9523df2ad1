//! One connection, from its greeting to its end. `reads.rs`, `writes.rs` and `follows.rs` hold the
//! calls that move more than a frame.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use keepwarm_store::AttachError;
use keepwarm_store::identity::NamespaceSpec;
use keepwarm_store::log::Event;
use keepwarm_store::types::{LeaseId, NamespaceId, Terms};

use super::access::Guest;
use super::counts::{add, figures_for};
use super::ending::Ending;
use super::greeting::{Greeted, greet, refusal};
use super::node::{Node, Phase};
use super::principals::{Principal, Right, Tenants, needed};
use super::sessions::Seat;
use super::shared::{Sharing, check_payload};
use super::told::{say_ending, say_refused};
use crate::channel::{Channel, Patience};
use crate::codec::{Body, Malformed, decode};
use crate::deadline::Deadline;
use crate::frame_io::{empty, flush, receive_body_within};
use crate::frames::{self, FrameHead, Header, Opcode, Violation, append_frame, flags};
use crate::messages::{
    AttachReply, AttachRequest, DetachReply, DetachRequest, DropReply, DropRequest, LookupReply,
    LookupRequest, PingReply, PingRequest, Refusal, RefusalCode, ReleaseReply, ReleaseRequest,
    RenewReply, RenewRequest, ReportReply, ReportRequest, StatReply, StatRequest, TouchReply,
    TouchRequest,
};

/// How long a peer that broke the protocol has to hear so.
const FAREWELL: Duration = Duration::from_millis(100);

/// What clients of a draining node hear.
pub(super) const GOING_DOWN: &str = "the node is going down: connect again when it is back";

/// How soon a long wait notices that the server goes down or the peer has left.
pub(super) const LOOK_UP: Duration = Duration::from_millis(250);

/// Serves one peer, who is the node's own user, until its end. `busy` hears whether a call is
/// under way.
pub fn serve(node: &Node, channel: &mut impl Channel, busy: &dyn Fn(bool)) -> Ending {
    serve_guest(node, channel, &Guest::owner(), busy)
}

/// As [`serve`], for whoever the guest turns out to be.
pub(super) fn serve_guest(
    node: &Node,
    channel: &mut impl Channel,
    guest: &Guest,
    busy: &dyn Fn(bool),
) -> Ending {
    let Greeted { session, version, principal } = match greet(node, channel, guest) {
        Ok(greeted) => greeted,
        Err(ending) => return count(node, ending),
    };
    let mut conversation = Conversation {
        node,
        channel,
        session,
        version,
        principal,
        attached: vec![],
        correlation: 0,
        out: vec![],
        sharing: Sharing::default(),
    };
    let mut body = Vec::new();
    loop {
        // Before each wait: who was let in as a drain began is not waited for.
        let served = match node.phase() {
            Phase::Serving => conversation.next(&mut body, busy),
            _ => Err(Ending::Refused(RefusalCode::Draining)),
        };
        let Err(ending) = served else { continue };
        match &ending {
            Ending::Violated(violation) => {
                conversation.say_farewell(RefusalCode::Violation, violation.to_string());
            }
            Ending::Refused(code) => conversation.say_farewell(*code, String::from(GOING_DOWN)),
            _ => {}
        }
        return count(node, ending);
    }
}

fn count(node: &Node, ending: Ending) -> Ending {
    say_ending(&ending);
    match &ending {
        Ending::Idle => add(&node.counts.idle_closed, 1),
        Ending::Stalled => add(&node.counts.stalled, 1),
        Ending::Violated(_) => add(&node.counts.violations, 1),
        Ending::Refused(RefusalCode::Version) => add(&node.counts.refused_versions, 1),
        Ending::Closed | Ending::Failed(_) | Ending::Refused(_) => {}
    }
    ending
}

/// A peer after its greeting.
pub(super) struct Conversation<'a, C> {
    pub(super) node: &'a Node,
    pub(super) channel: &'a mut C,
    pub(super) session: Seat<'a>,
    pub(super) version: u16,
    pub(super) principal: Arc<Principal>,
    /// What it may follow.
    pub(super) attached: Vec<NamespaceId>,
    /// Of the request under way.
    pub(super) correlation: u64,
    /// Frames not yet sent.
    pub(super) out: Vec<u8>,
    pub(super) sharing: Sharing<'a>,
}

/// What it attached is no longer used by it; other connections of its client count for themselves.
impl<C> Drop for Conversation<'_, C> {
    fn drop(&mut self) {
        for namespace in &self.attached {
            self.session.detach(*namespace);
        }
    }
}

impl<C: Channel> Conversation<'_, C> {
    /// Waits for the next request and serves it.
    fn next(&mut self, body: &mut Vec<u8>, busy: &dyn Fn(bool)) -> Result<(), Ending> {
        let header = self.next_header(busy)?;
        check_payload(header.code, header.payload_bytes)?;
        let mut room = self.node.room();
        let (mut patience, grow) = (self.patience(), |bytes| room.grow(bytes));
        let fits = receive_body_within(self.channel, &header, body, &mut patience, grow)?;
        self.correlation = header.correlation;
        if header.flags != 0 {
            return Err(Violation::Unexpected("flags on a request").into());
        }
        let served = match Opcode::from_code(header.code) {
            _ if !fits => {
                drop(room);
                add(&self.node.counts.throttled, 1);
                let text = String::from("too many large requests at once: try again");
                self.refuse(header.code, RefusalCode::Throttled, text)
            }
            Some(opcode) => self.serve(opcode, body),
            None => {
                let text = format!("opcode {} is unknown to this node: upgrade it", header.code);
                self.refuse(header.code, RefusalCode::Opcode, text)
            }
        };
        // While its room is still held: what is kept between requests is small.
        empty(body);
        busy(false);
        served
    }

    /// Idle up to the first byte, impatient from then on.
    fn next_header(&mut self, busy: &dyn Fn(bool)) -> Result<Header, Ending> {
        let mut bytes = [0; frames::HEADER_BYTES];
        // Where the arena is mapped, each sees by the connection that the other is there.
        let idle = if self.sharing.is_mapped() { Duration::MAX } else { self.node.idle() };
        let idle = Deadline::after(idle);
        let received = loop {
            let until = self.sharing.next_end().map_or(idle, |end| end.min(idle));
            let mut slices = [io::IoSliceMut::new(&mut bytes)];
            match self.channel.receive(&mut slices, until) {
                Err(error) if error.kind() != io::ErrorKind::TimedOut => return Err(error.into()),
                Err(_) if self.sharing.end_stalled() => add(&self.node.counts.holds_ended, 1),
                Err(_) if idle.passed() => return Err(Ending::Idle),
                Err(_) => {}
                Ok(0) => return Err(Ending::Closed),
                Ok(received) => break received,
            }
        };
        busy(true);
        let mut patience = self.patience();
        crate::channel::receive_all(self.channel, &mut bytes[received..], &mut patience)?;
        Ok(crate::frame_io::parse_header(&bytes, Some(self.version))?)
    }

    fn serve(&mut self, opcode: Opcode, body: &[u8]) -> Result<(), Ending> {
        self.node.counts.request(opcode);
        // Before anything of the request is looked at.
        if let Some(text) = self.lacks(needed(opcode)) {
            add(&self.node.counts.refused_rights, 1);
            return self.refuse(opcode as u8, RefusalCode::Rights, text);
        }
        if !matches!(opcode, Opcode::Locate | Opcode::Landed) {
            self.sharing.end_reads();
        }
        match opcode {
            Opcode::Attach => self.attach(self.read(body)?),
            Opcode::Lookup => self.lookup(&self.read(body)?),
            Opcode::Get => self.get(&self.read(body)?),
            Opcode::Put => self.put(&self.read(body)?),
            Opcode::Touch => {
                let TouchRequest { namespace, epoch, keys } = self.read(body)?;
                let here = self.session.touch(namespace, epoch, &keys);
                self.reply(opcode, &TouchReply(here))
            }
            Opcode::Renew => self.renew(self.read(body)?),
            Opcode::Release => {
                let ReleaseRequest { incarnation, lease } = self.read(body)?;
                self.release(incarnation, lease);
                self.reply(opcode, &ReleaseReply)
            }
            Opcode::Report => {
                let ReportRequest { namespace, key, part, generation } = self.read(body)?;
                let found = self.session.report(namespace, key, part, generation);
                self.reply(opcode, &ReportReply(found))
            }
            Opcode::Drop => self.drop_blocks(self.read(body)?),
            Opcode::Epoch => self.epoch(self.read(body)?),
            Opcode::Stat => {
                let StatRequest = self.read(body)?;
                self.stat()
            }
            Opcode::Subscribe => self.follow(self.read(body)?),
            Opcode::Ping => {
                let PingRequest = self.read(body)?;
                let incarnation = self.node.store.incarnation();
                let announcement = self.node.announcement();
                self.reply(opcode, &PingReply { incarnation, announcement })
            }
            Opcode::Detach => {
                let DetachRequest { namespace } = self.read(body)?;
                let attached = self.detach(namespace);
                self.reply(opcode, &DetachReply(attached))
            }
            Opcode::Hello => Err(Violation::Unexpected("a second greeting").into()),
            Opcode::PutData | Opcode::StagedData => {
                Err(Violation::Unexpected("put data without a put").into())
            }
            Opcode::Map | Opcode::Locate | Opcode::Landed | Opcode::Stage | Opcode::PutStaged => {
                self.share(opcode, body)
            }
        }
    }

    fn renew(&mut self, request: RenewRequest) -> Result<(), Ending> {
        let RenewRequest { incarnation, lease, lease_ms } = request;
        let hold = Duration::from_millis(lease_ms.into());
        let held = self.ours(incarnation) && self.session.renew(lease, hold);
        if held {
            self.session.told_lease(hold);
        }
        self.reply(Opcode::Renew, &RenewReply(held))
    }

    fn drop_blocks(&mut self, DropRequest { namespace, keys }: DropRequest) -> Result<(), Ending> {
        let dropped = match keys {
            Some(keys) => self.session.drop_keys(namespace, &keys).map(u64::from),
            None => self.session.drop_namespace(namespace),
        };
        match dropped {
            Ok(dropped) => self.reply(Opcode::Drop, &DropReply(dropped)),
            Err(error) => self.refuse(Opcode::Drop as u8, RefusalCode::Failed, error.to_string()),
        }
    }

    /// Which of these rights the peer lacks, in words.
    pub(super) fn lacks(&self, rights: &[Right]) -> Option<String> {
        let who = &self.principal;
        let lacking = rights.iter().find(|right| !who.rights.has(**right))?;
        let (name, right) = (&who.name, lacking.name());
        Some(format!("principal {name} has no right to {right} on this node: give it that right"))
    }

    /// Why the peer may not use the namespace, if it is one; told from its own words alone.
    fn not_its_tenant(&self, encoding: &[u8]) -> Option<String> {
        let spec = NamespaceSpec::decode(encoding).ok()?;
        let (name, tenant) = (&self.principal.name, spec.tenant());
        match &self.principal.tenants {
            tenants if tenants.has(tenant) => None,
            Tenants::All => None,
            Tenants::Of(names) => Some(format!(
                "principal {name} may use tenant {}, and the namespace is of tenant {tenant}: name \
                 the right tenant, or use that tenant's credentials",
                names.join(", ")
            )),
        }
    }

    fn attach(&mut self, request: AttachRequest) -> Result<(), Ending> {
        let AttachRequest { encoding, key_check, epoch, terms } = request;
        if let Some(text) = self.not_its_tenant(&encoding) {
            say_refused(Event::AttachRefused, &text);
            return self.refuse(Opcode::Attach as u8, RefusalCode::Identity, text);
        }
        // They hold for what everybody stores, and so belong to those who may store.
        let may_write = self.principal.rights.has(Right::Write);
        let terms = if may_write { terms } else { Terms::default() };
        match self.session.attach_on(&encoding, key_check, epoch, terms) {
            Ok(attached) => {
                let nearest = attached.nearest.unwrap_or_default();
                let (namespace, epoch) = (attached.id, attached.epoch);
                // However often it asks, the connection counts once.
                if self.attached.contains(&namespace) {
                    self.session.detach(namespace);
                } else {
                    self.attached.push(namespace);
                }
                self.reply(Opcode::Attach, &AttachReply { namespace, epoch, nearest })
            }
            Err(error) => {
                let code = match error {
                    AttachError::TooMany { .. } | AttachError::TooManyOfTenant { .. } => {
                        RefusalCode::Limit
                    }
                    AttachError::Store(_) => RefusalCode::Failed,
                    _ => RefusalCode::Identity,
                };
                say_refused(Event::AttachRefused, &error);
                self.refuse(Opcode::Attach as u8, code, error.to_string())
            }
        }
    }

    /// False when this connection had not attached it.
    fn detach(&mut self, namespace: NamespaceId) -> bool {
        let place = self.attached.iter().position(|attached| *attached == namespace);
        place.is_some_and(|place| self.session.detach(self.attached.swap_remove(place)))
    }

    fn lookup(&mut self, request: &LookupRequest) -> Result<(), Ending> {
        let lease = match request.lease_ms {
            0 => None,
            lease_ms => Some(Duration::from_millis(lease_ms.into())),
        };
        let LookupRequest { namespace, epoch, first_position, .. } = *request;
        let found = self.session.lookup(namespace, epoch, &request.keys, first_position, lease);
        let (lease, hold) = (found.lease, Duration::from_millis(found.lease_ms.into()));
        let sent = self.reply(Opcode::Lookup, &LookupReply(found));
        match (&sent, lease) {
            (Ok(()), Some(_)) => self.session.told_lease(hold),
            // Nobody will ever know of it.
            (Err(_), Some(lease)) => self.session.release(lease),
            (_, None) => {}
        }
        sent
    }

    /// In as many frames as it takes.
    fn stat(&mut self) -> Result<(), Ending> {
        let mut pages =
            StatReply(figures_for(self.node, &self.principal)).pages().into_iter().peekable();
        while let Some(page) = pages.next() {
            let more = if pages.peek().is_some() { flags::MORE } else { 0 };
            self.append(Opcode::Stat, flags::REPLY | more, 0, |out| page.write(out));
            self.flush()?;
        }
        Ok(())
    }

    fn release(&self, incarnation: u64, lease: LeaseId) {
        if self.ours(incarnation) {
            self.session.release(lease);
        }
    }

    fn ours(&self, incarnation: u64) -> bool {
        incarnation == self.node.store.incarnation()
    }

    pub(super) fn read<B: Body>(&self, body: &[u8]) -> Result<B, Malformed> {
        decode(self.version, body)
    }

    /// Every mebibyte within the stall limit.
    pub(super) fn patience(&self) -> Patience {
        Patience::stall(self.node.config.stall)
    }

    /// Appends a frame of the request under way.
    pub(super) fn append(
        &mut self,
        opcode: Opcode,
        flags: u8,
        payload_bytes: u64,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        self.append_as(opcode as u8, flags, payload_bytes, body);
    }

    fn append_as(
        &mut self,
        code: u8,
        flags: u8,
        payload_bytes: u64,
        body: impl FnOnce(&mut Vec<u8>),
    ) {
        let (version, correlation) = (self.version, self.correlation);
        let head = FrameHead { version, code, flags, correlation, payload_bytes };
        if let Err(violation) = append_frame(&mut self.out, head, body) {
            // A limit of this node's own: the request fails, its connection goes on.
            let text = format!("the answer does not fit: {violation}");
            let flags = flags::REPLY | flags::REFUSED;
            let head = FrameHead { flags, payload_bytes: 0, ..head };
            let refusal = Refusal { code: RefusalCode::Failed, text };
            // A refusal always fits.
            let _ = append_frame(&mut self.out, head, |out| refusal.write(out));
        }
    }

    /// Sends what was appended.
    pub(super) fn flush(&mut self) -> Result<(), Ending> {
        let mut patience = self.patience();
        Ok(flush(self.channel, &mut self.out, &mut patience)?)
    }

    pub(super) fn reply<B: Body>(&mut self, opcode: Opcode, body: &B) -> Result<(), Ending> {
        self.append(opcode, flags::REPLY, 0, |out| body.write(out));
        self.flush()
    }

    /// Refuses the request under way, whose opcode has this wire code.
    pub(super) fn refuse(
        &mut self,
        opcode: u8,
        code: RefusalCode,
        text: String,
    ) -> Result<(), Ending> {
        let flags = flags::REPLY | flags::REFUSED;
        self.append_as(opcode, flags, 0, |out| Refusal { code, text }.write(out));
        self.flush()
    }

    /// Tells a peer why it is being left, if it listens.
    fn say_farewell(&mut self, code: RefusalCode, text: String) {
        self.out.clear();
        let mut out = refusal(self.version, self.correlation, code, text);
        let mut patience = Patience::until(Deadline::after(FAREWELL));
        // It may have gone already; then there is nobody to tell.
        let _ = flush(self.channel, &mut out, &mut patience);
    }
}
