//! What a connection shares with its client's memory: the arena given out, blocks located in it and
//! not yet landed, and the client's staging.
//!
//! All of it ends with the connection, whatever becomes of the client.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keepwarm_store::ReadPin;
use keepwarm_store::types::GetOutcome;

use super::conversation::Conversation;
use super::counts::add;
use super::ending::Ending;
use super::node::{Load, Node};
use super::principals::Right;
use crate::ahead::Ahead;
use crate::channel::{Channel, receive_all};
use crate::codec::Body;
use crate::deadline::Deadline;
use crate::frames::{Opcode, Violation, flags};
use crate::mapping::Mapping;
use crate::messages::{
    CARRIER_BYTES, LOCATED_BLOCKS_MAX, LOCATED_BYTES_MAX, LOCATED_GROUPS_MAX, Landed, LocateReply,
    LocateRequest, Located, MapReply, MapRequest, RefusalCode, STAGING_BYTES_MAX, StageReply,
    StageRequest,
};

/// Bytes of all clients' stagings at once; beyond it clients put over their sockets. The memory is
/// theirs; what is bounded is how much of it this node maps.
const STAGINGS_BYTES_MAX: u64 = 1 << 30;

/// Longest that located blocks are held, however long the node lets a peer stall.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// Blocks of one request, pinned.
struct Group<'a> {
    /// Its request's correlation.
    name: u64,
    /// With their places among the asks.
    pins: Vec<(u32, ReadPin)>,
    until: Deadline,
    /// Counts its bytes as asked for, as long as it lives.
    _load: Load<'a>,
}

/// A connection's share in memory.
#[derive(Default)]
pub(super) struct Sharing<'a> {
    groups: VecDeque<Group<'a>>,
    pub(super) staging: Option<Staging<'a>>,
    arena: Option<GivenOut<'a>>,
}

impl Sharing<'_> {
    /// Lets go of everything located: nothing of it counts as used.
    pub(super) fn end_reads(&mut self) {
        self.groups.clear();
    }

    /// Lets go of what was held for as long as was said. True: of something.
    pub(super) fn end_stalled(&mut self) -> bool {
        let before = self.groups.len();
        self.groups.retain(|group| !group.until.passed());
        self.groups.len() < before
    }

    /// When the first hold ends.
    pub(super) fn next_end(&self) -> Option<Deadline> {
        self.groups.iter().map(|group| group.until).min()
    }

    /// Whether the client maps the arena: then the connection is how each sees the other's end.
    pub(super) fn is_mapped(&self) -> bool {
        self.arena.is_some()
    }

    /// Uses count tail first, so that a prompt's head leaves last.
    fn land(&mut self, landed: &Landed) {
        let Some(at) = self.groups.iter().position(|group| group.name == landed.group) else {
            // Its hold was over.
            return;
        };
        let Some(group) = self.groups.remove(at) else { return };
        for (index, mut pin) in group.pins.into_iter().rev() {
            if landed.unused.binary_search(&index).is_err() {
                pin.used();
            }
        }
    }
}

/// Counts an arena given out, until its connection ends.
struct GivenOut<'a>(&'a Node);

impl Drop for GivenOut<'_> {
    fn drop(&mut self) {
        self.0.counts.arena_maps.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's staging, and its share of what all of them may be.
pub(super) struct Staging<'a> {
    pub(super) mapping: Mapping,
    node: &'a Node,
    bytes: u64,
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        self.node.counts.stagings_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// What a node offers to a client on this channel, beside what all of them do.
pub(super) fn offers_memory(node: &Node, channel: &impl Channel) -> bool {
    channel.passes_descriptors() && node.store.shareable().is_some()
}

impl<'a, C: Channel> Conversation<'a, C> {
    /// Serves what only clients on this machine ask.
    pub(super) fn share(&mut self, opcode: Opcode, body: &[u8]) -> Result<(), Ending> {
        match opcode {
            Opcode::Map => self.map(self.read(body)?),
            Opcode::Locate => self.locate(&self.read(body)?),
            Opcode::Stage => self.stage(self.read(body)?),
            Opcode::PutStaged => self.put_staged(&self.read(body)?),
            _ => {
                // Has no answer.
                self.sharing.land(&self.read(body)?);
                Ok(())
            }
        }
    }

    /// Whether this peer may read the whole arena.
    fn may_map(&self) -> Result<(), String> {
        if !self.channel.passes_descriptors() {
            return Err(String::from(
                "the arena is given out over the node's unix socket only: connect there",
            ));
        }
        // Once more for those whose frames must be read before they can be refused.
        self.lacks(&[Right::Arena]).map_or(Ok(()), Err)
    }

    fn map(&mut self, MapRequest: MapRequest) -> Result<(), Ending> {
        let opcode = Opcode::Map;
        if let Err(text) = self.may_map() {
            return self.refuse(opcode as u8, RefusalCode::Failed, text);
        }
        let node = self.node;
        let Some((memfd, bytes)) = node.store.shareable() else {
            let text = "this node's system cannot seal its arena against writing: use the socket";
            return self.refuse(opcode as u8, RefusalCode::Failed, String::from(text));
        };
        if !self.sharing.is_mapped() {
            add(&node.counts.arena_maps, 1);
            self.sharing.arena = Some(GivenOut(node));
        }
        let reply = MapReply { incarnation: node.store.incarnation(), bytes };
        self.append(opcode, flags::REPLY, CARRIER_BYTES, |out| reply.write(out));
        self.flush()?;
        Ok(self.channel.send_descriptor(memfd, Deadline::after(node.config.stall))?)
    }

    fn locate(&mut self, request: &LocateRequest) -> Result<(), Ending> {
        request.landed.iter().for_each(|landed| self.sharing.land(landed));
        self.sharing.end_stalled();
        if let Err(text) = self.may_map() {
            return self.refuse(Opcode::Locate as u8, RefusalCode::Failed, text);
        }
        let node = self.node;
        let hold = node.config.stall.min(HOLD_MAX);
        let asked = request.asks.iter().map(|ask| u64::from(ask.length)).sum();
        let full = self.sharing.groups.len() >= LOCATED_GROUPS_MAX;
        let (mut pins, mut bytes) = (Vec::new(), 0);
        let mut ahead = Ahead::of(&self.session);
        let mut place = |index, ask: &crate::messages::GetAsk| {
            if let Some(ahead) = &mut ahead {
                let name = |ask: &crate::messages::GetAsk| (ask.key, u64::from(ask.length));
                let namespace = (request.namespace, request.epoch);
                ahead.come_to(&self.session, namespace, &request.asks, index as usize, name);
            }
            let more = bytes + u64::from(ask.length);
            let beyond =
                pins.len() == LOCATED_BLOCKS_MAX || (!pins.is_empty() && more > LOCATED_BYTES_MAX);
            if full || beyond {
                return Err(GetOutcome::Throttled);
            }
            let pin = self.pin((request.namespace, request.epoch), ask)?;
            bytes = more;
            let (generation, checksum) = (pin.generation(), pin.checksum());
            let located = Located { generation, checksum, extents: *pin.extents() };
            pins.push((index, pin));
            Ok(located)
        };
        let places = (0u32..).zip(&request.asks).map(|(index, ask)| place(index, ask)).collect();
        add(&node.counts.bytes_located, bytes);
        if !pins.is_empty() {
            let (name, until) = (self.correlation, Deadline::after(hold));
            let group = Group { name, pins, until, _load: node.load(asked) };
            self.sharing.groups.push_back(group);
        }
        let hold_ms = u32::try_from(hold.as_millis()).unwrap_or(u32::MAX);
        self.reply(Opcode::Locate, &LocateReply { hold_ms, places })
    }

    fn stage(&mut self, StageRequest { bytes }: StageRequest) -> Result<(), Ending> {
        let opcode = Opcode::Stage as u8;
        let node = self.node;
        let memfd = match self.channel.passes_descriptors() {
            true => self.channel.receive_descriptor(Deadline::after(node.config.stall))?,
            false => {
                let mut patience = self.patience();
                receive_all(self.channel, &mut [0; CARRIER_BYTES as usize], &mut patience)?;
                None
            }
        };
        // Of the one before, first.
        self.sharing.staging = None;
        let refused = match (self.may_map(), memfd) {
            (Err(text), _) => (RefusalCode::Failed, text),
            (_, None) => (RefusalCode::Failed, String::from("no descriptor came with the staging")),
            (Ok(()), Some(memfd)) => match Staging::map(node, &memfd, bytes) {
                Ok(staging) => {
                    self.sharing.staging = Some(staging);
                    return self.reply(Opcode::Stage, &StageReply);
                }
                Err(refused) => refused,
            },
        };
        let (code, text) = refused;
        self.refuse(opcode, code, text)
    }
}

impl<'a> Staging<'a> {
    fn map(
        node: &'a Node,
        memfd: &impl std::os::fd::AsFd,
        bytes: u64,
    ) -> Result<Staging<'a>, (RefusalCode, String)> {
        if !(1..=STAGING_BYTES_MAX).contains(&bytes) {
            let text = format!("staging of {bytes} bytes: give 1 to {STAGING_BYTES_MAX}");
            return Err((RefusalCode::Failed, text));
        }
        let sum = node.counts.stagings_bytes.fetch_add(bytes, Ordering::AcqRel) + bytes;
        let give_back = || node.counts.stagings_bytes.fetch_sub(bytes, Ordering::AcqRel);
        if sum > STAGINGS_BYTES_MAX {
            give_back();
            let text = format!("all {STAGINGS_BYTES_MAX} bytes for stagings are taken");
            return Err((RefusalCode::Failed, text));
        }
        match Mapping::of_staging(memfd, bytes) {
            Ok(mapping) => Ok(Staging { mapping, node, bytes }),
            Err(error) => {
                give_back();
                Err((RefusalCode::Failed, format!("staging is not taken: {error}")))
            }
        }
    }
}

/// A frame that brings a descriptor has its carrier as payload; all other requests have none.
pub(super) fn payload_bytes(opcode: Option<Opcode>) -> u64 {
    if opcode == Some(Opcode::Stage) { CARRIER_BYTES } else { 0 }
}

/// Fails for a payload that does not belong to a request of this opcode.
pub(super) fn check_payload(code: u8, bytes: u64) -> Result<(), Violation> {
    let allowed = payload_bytes(Opcode::from_code(code));
    if bytes == allowed { Ok(()) } else { Err(Violation::Payload { bytes, allowed }) }
}
