//! One connection to a node, after its greeting.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use keepwarm_store::types::{Epoch, MissReason, NamespaceId};

use super::dial::Dialer;
use super::way::Way;
use crate::channel::{Patience, receive_all};
use crate::client::ConnectConfig;
use crate::client::shm::Staging;
use crate::client::transport::{Announced, SpaceCore, Unserved};
use crate::codec::{Body, Malformed, decode};
use crate::deadline::Deadline;
use crate::frame_io::{Broken, expect, flush, parse_header, receive_body, receive_header};
use crate::frames::{
    FrameHead, HEADER_BYTES, Header, Opcode, VERSION, VERSION_OLDEST, Violation, append_frame,
    flags,
};
use crate::messages::{
    Announcement, AttachReply, AttachRequest, DetachReply, DetachRequest, Greeting, GreetingReply,
    Refusal, RefusalCode, StatReply, StatRequest, StatValue, Token,
};
use crate::tls::distrust_in;

/// How long a refused namespace is not asked for again on one connection.
const REFUSED_FOR: Duration = Duration::from_secs(2);

/// How an alert of TLS begins.
const TLS_ALERT: [u8; 2] = [21, 3];

/// Figures beyond which a node is not believed.
const FIGURES_MAX: usize = 1 << 20;

/// Why a call on a connection did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    /// Its time is over.
    #[error("no answer within the deadline")]
    Deadline,
    /// The node is known to be down; nothing was tried.
    #[error("the node is down")]
    Down,
    /// Nobody listens.
    #[error("cannot connect: {0}")]
    Unreachable(io::Error),
    /// The two sides do not trust each other.
    #[error("no trust between client and node: {0}")]
    Untrusted(String),
    /// The stream ended or failed.
    #[error("the connection broke: {0}")]
    Stream(io::Error),
    /// The node broke the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The node ended the connection, and said why.
    #[error("the node turned the connection away: {}", .0.text)]
    TurnedAway(Refusal),
    /// The node refused this request; the connection goes on.
    #[error("{}", .0.text)]
    Refused(Refusal),
    /// The node has too much to do; `ends`: and the connection is over.
    #[error("the node is busy: {}", .refusal.text)]
    Busy { refusal: Refusal, ends: bool },
}

impl From<io::Error> for Cut {
    fn from(error: io::Error) -> Cut {
        if let Some(distrust) = distrust_in(&error) {
            return Cut::Untrusted(distrust.to_string());
        }
        match error.kind() {
            io::ErrorKind::TimedOut => Cut::Deadline,
            _ => Cut::Stream(error),
        }
    }
}

impl From<Broken> for Cut {
    fn from(broken: Broken) -> Cut {
        match broken {
            Broken::Stream(error) => error.into(),
            Broken::Violation(violation) => Cut::Violation(violation),
        }
    }
}

impl Cut {
    /// Which right the client would need, in the node's words.
    pub(super) fn lacking_right(&self) -> Option<&str> {
        match self {
            Cut::Refused(refusal) if refusal.is_of_rights() => Some(&refusal.text),
            _ => None,
        }
    }
}

impl From<Malformed> for Cut {
    fn from(malformed: Malformed) -> Cut {
        Cut::Violation(malformed.into())
    }
}

impl From<Cut> for Unserved {
    fn from(cut: Cut) -> Unserved {
        match cut {
            Cut::Deadline => Unserved::Missed(MissReason::Deadline),
            Cut::Refused(refusal) if refusal.is_identity() => {
                Unserved::Missed(MissReason::Identity)
            }
            Cut::Refused(refusal) => Unserved::Refused(refusal.text),
            Cut::Busy { .. } => Unserved::Missed(MissReason::Throttled),
            Cut::Down
            | Cut::Unreachable(_)
            | Cut::Stream(_)
            | Cut::Violation(_)
            | Cut::Untrusted(_)
            | Cut::TurnedAway(_) => Unserved::Missed(MissReason::StoreDown),
        }
    }
}

impl Refusal {
    /// Whether the client may not do this at all.
    pub(super) fn is_of_rights(&self) -> bool {
        self.code == RefusalCode::Rights
    }

    /// Whether the node will not have this namespace: the blocks miss for it.
    pub(super) fn is_identity(&self) -> bool {
        matches!(self.code, RefusalCode::Identity | RefusalCode::Namespace | RefusalCode::Limit)
    }
}

/// Who answered.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) incarnation: u64,
    pub(super) pid: u32,
    pub(super) name: String,
    /// Whether it gives its arena out over this connection.
    pub(super) offers_memory: bool,
    pub(super) announced: Announced,
}

/// One connection.
pub(super) struct Link {
    pub(super) socket: Way,
    pub(super) version: u16,
    pub(super) peer: Peer,
    /// Whether anything arrived during the call under way.
    pub(super) heard: bool,
    /// Whether it delivered bytes that the node holds otherwise.
    pub(super) suspect: bool,
    /// Blocks of the call under way that did not match.
    pub(super) corrupt: u64,
    pub(super) correlation: u64,
    pub(super) body: Vec<u8>,
    pub(super) out: Vec<u8>,
    /// What puts go through; `Some(None)`: the node took none.
    pub(super) staging: Option<Option<Staging>>,
    /// By a space's number: the node's answer, and whether the space is gone.
    attached: HashMap<u64, (Attached, Arc<AtomicBool>)>,
    /// Spaces of the memory that had gone when this connection last looked.
    departures: u64,
}

/// What the node said to a space on this connection.
enum Attached {
    As(NamespaceId),
    Refused(Refusal, Instant),
}

impl Link {
    /// Connects and greets.
    pub(super) fn open(
        dialer: &Dialer,
        config: &ConnectConfig,
        token: Token,
        until: Deadline,
    ) -> Result<Link, Cut> {
        let socket = dialer.dial(&config.address, until)?;
        let announced = Announced::heard(0, Announcement::NOTHING);
        let (name, offers_memory) = (String::new(), false);
        let peer = Peer { incarnation: 0, pid: 0, name, offers_memory, announced };
        let mut link = Link {
            socket,
            version: VERSION,
            peer,
            heard: false,
            suspect: false,
            corrupt: 0,
            correlation: 0,
            body: Vec::new(),
            out: Vec::new(),
            staging: None,
            attached: HashMap::new(),
            departures: 0,
        };
        let greeting = Greeting {
            version_oldest: VERSION_OLDEST,
            version: VERSION,
            token,
            pid: std::process::id(),
            name: config.name.clone(),
            credential: config.credentials.token.as_ref().map(|token| token.bytes().to_vec()),
        };
        link.send(Opcode::Hello, |out| greeting.write(out), until)?;
        let header = link.first_header(until)?;
        let reply: GreetingReply = link.receive_reply(&header, Opcode::Hello, until)?;
        if !(VERSION_OLDEST..=VERSION).contains(&reply.version) {
            let violation = Violation::Version { found: reply.version, agreed: VERSION };
            return Err(Cut::Violation(violation));
        }
        link.version = reply.version;
        let GreetingReply { incarnation, pid, node: name, capabilities, announcement, .. } = reply;
        let offers_memory = capabilities.iter().any(|name| name == "shm");
        let announced = Announced::heard(incarnation, announcement);
        link.peer = Peer { incarnation, pid, name, offers_memory, announced };
        Ok(link)
    }

    /// The first thing a node says; one that speaks TLS alone is recognised by its alert.
    fn first_header(&mut self, until: Deadline) -> Result<Header, Cut> {
        let mut bytes = [0; HEADER_BYTES];
        let (first, rest) = bytes.split_at_mut(TLS_ALERT.len());
        let mut patience = Patience::until(until);
        receive_all(&mut self.socket, first, &mut patience)?;
        if first == TLS_ALERT && matches!(self.socket, Way::Plain(_)) {
            return Err(Cut::Untrusted(String::from("the node speaks TLS there: use tls://")));
        }
        receive_all(&mut self.socket, rest, &mut patience)?;
        Ok(parse_header(&bytes, None)?)
    }

    /// One request, one reply.
    pub(super) fn ask<B: Body>(
        &mut self,
        opcode: Opcode,
        body: impl FnOnce(&mut Vec<u8>),
        until: Deadline,
    ) -> Result<B, Cut> {
        self.send(opcode, body, until)?;
        let header = self.receive_header(until)?;
        self.receive_reply(&header, opcode, until)
    }

    /// The node's figures, in as many frames as it sends.
    pub(super) fn stat(&mut self, until: Deadline) -> Result<Vec<(String, StatValue)>, Cut> {
        self.send(Opcode::Stat, |out| StatRequest.write(out), until)?;
        let mut figures = Vec::new();
        while figures.len() < FIGURES_MAX {
            let header = self.receive_header(until)?;
            let more = header.flags & flags::MORE;
            let flags = flags::REPLY | more;
            let StatReply(some) = self.receive_part(&header, Opcode::Stat, flags, until)?;
            figures.extend(some);
            if more == 0 {
                return Ok(figures);
            }
        }
        Err(Violation::Unexpected("more figures than any node has").into())
    }

    /// The space's number on this connection; asks for it the first time.
    pub(super) fn namespace(
        &mut self,
        space: &SpaceCore,
        until: Deadline,
    ) -> Result<NamespaceId, Cut> {
        match self.attached.get(&space.id) {
            Some((Attached::As(namespace), _)) => return Ok(*namespace),
            Some((Attached::Refused(refusal, at), _)) if at.elapsed() < REFUSED_FOR => {
                return Err(Cut::Refused(refusal.clone()));
            }
            _ => {}
        }
        let request = AttachRequest {
            encoding: space.spec.encoding().to_vec(),
            key_check: space.key_check,
            epoch: Epoch(space.epoch.load(Ordering::Acquire)),
            terms: space.terms,
        };
        match self.ask::<AttachReply>(Opcode::Attach, |out| request.write(out), until) {
            Ok(AttachReply { namespace, epoch, nearest }) => {
                space.accepted(epoch, (!nearest.is_empty()).then_some(nearest));
                self.attached.insert(space.id, (Attached::As(namespace), space.gone.clone()));
                Ok(namespace)
            }
            Err(Cut::Refused(refusal)) => {
                space.refused(&refusal.text);
                let attached = Attached::Refused(refusal.clone(), Instant::now());
                self.attached.insert(space.id, (attached, space.gone.clone()));
                Err(Cut::Refused(refusal))
            }
            Err(cut) => Err(cut),
        }
    }

    /// Forgets the spaces that have gone, if there are more of them than at the last look, and
    /// leaves the namespaces that no other space uses here.
    pub(super) fn leave_gone(&mut self, departures: u64, until: Deadline) -> Result<(), Cut> {
        if std::mem::replace(&mut self.departures, departures) == departures {
            return Ok(());
        }
        let mut left = Vec::new();
        self.attached.retain(|_, (said, gone)| {
            let gone = gone.load(Ordering::Acquire);
            if let (true, Attached::As(namespace)) = (gone, said) {
                left.push(*namespace);
            }
            !gone
        });
        for (said, _) in self.attached.values() {
            left.retain(|left| !matches!(said, Attached::As(used) if used == left));
        }
        for namespace in left {
            let request = DetachRequest { namespace };
            let reply = self.ask(Opcode::Detach, |out| request.write(out), until);
            match reply {
                // An older node does not know the command: it forgets with the connection.
                Ok(DetachReply(_)) | Err(Cut::Refused(_)) => {}
                Err(cut) => return Err(cut),
            }
        }
        Ok(())
    }

    /// Starts a request under a new correlation id.
    pub(super) fn send(
        &mut self,
        opcode: Opcode,
        body: impl FnOnce(&mut Vec<u8>),
        until: Deadline,
    ) -> Result<(), Cut> {
        self.correlation += 1;
        let head = self.head(opcode, 0, 0);
        self.out.clear();
        append_frame(&mut self.out, head, body)?;
        Ok(flush(&mut self.socket, &mut self.out, &mut Patience::until(until))?)
    }

    /// Head of a frame of the request under way.
    pub(super) fn head(&self, opcode: Opcode, flags: u8, payload_bytes: u64) -> FrameHead {
        let (version, correlation) = (self.version, self.correlation);
        FrameHead { version, code: opcode as u8, flags, correlation, payload_bytes }
    }

    pub(super) fn receive_header(&mut self, until: Deadline) -> Result<Header, Cut> {
        let mut patience = Patience::until(until);
        let header = receive_header(&mut self.socket, Some(self.version), &mut patience)?;
        self.heard = true;
        Ok(header)
    }

    /// The one reply to a request, whose header has arrived.
    pub(super) fn receive_reply<B: Body>(
        &mut self,
        header: &Header,
        opcode: Opcode,
        until: Deadline,
    ) -> Result<B, Cut> {
        self.receive_part(header, opcode, flags::REPLY, until)
    }

    /// A frame of the reply whose header has arrived, with exactly these flags.
    pub(super) fn receive_part<B: Body>(
        &mut self,
        header: &Header,
        opcode: Opcode,
        flags: u8,
        until: Deadline,
    ) -> Result<B, Cut> {
        if header.payload_bytes != 0 {
            let (bytes, allowed) = (header.payload_bytes, 0);
            return Err(Violation::Payload { bytes, allowed }.into());
        }
        self.receive_frame(header, opcode, flags, until)?;
        Ok(decode(self.version, &self.body)?)
    }

    /// Receives such a frame's body, unread.
    pub(super) fn receive_frame(
        &mut self,
        header: &Header,
        opcode: Opcode,
        flags: u8,
        until: Deadline,
    ) -> Result<(), Cut> {
        let mut patience = Patience::until(until);
        receive_body(&mut self.socket, header, &mut self.body, &mut patience)?;
        if header.flags == flags::REPLY | flags::REFUSED {
            return Err(self.refused(header, opcode)?);
        }
        expect(header, opcode, flags)?;
        Ok(self.belongs(header)?)
    }

    pub(super) fn belongs(&self, header: &Header) -> Result<(), Violation> {
        match header.correlation == self.correlation {
            true => Ok(()),
            false => Err(Violation::Unexpected("the answer to another request")),
        }
    }

    /// A refusal of this request, or the end of the connection.
    fn refused(&self, header: &Header, opcode: Opcode) -> Result<Cut, Malformed> {
        use RefusalCode::{
            Failed, Identity, Limit, Namespace, Opcode as Unknown, Rights, Throttled,
        };
        let refusal: Refusal = decode(self.version, &self.body)?;
        let of_request = header.correlation == self.correlation && header.code == opcode as u8;
        let goes_on = matches!(
            refusal.code,
            Failed | Identity | Limit | Namespace | Rights | Throttled | Unknown
        );
        let goes_on = of_request && goes_on && opcode != Opcode::Hello;
        match (refusal.code, goes_on) {
            // Of a namespace a limit is no matter of the moment.
            (Limit, true) if opcode == Opcode::Attach => Ok(Cut::Refused(refusal)),
            (Limit | Throttled, _) => Ok(Cut::Busy { refusal, ends: !goes_on }),
            (_, true) => Ok(Cut::Refused(refusal)),
            (_, false) => Ok(Cut::TurnedAway(refusal)),
        }
    }
}

/// As blocks miss for it: without the right they are not this client's, as with a namespace that
/// the node refuses; `health` says which right.
pub(super) fn of_blocks(cut: Cut) -> Unserved {
    match cut {
        Cut::Refused(refusal) if refusal.is_of_rights() => Unserved::Missed(MissReason::Identity),
        cut => cut.into(),
    }
}
