//! Puts: from the socket into the arena without a copy in user space, each received piece hashed
//! while it is hot, and visible only if that matches the trailer.

use std::io::IoSliceMut;
use std::time::Duration;

use keepwarm_store::log::{self, Event};
use keepwarm_store::types::{BlockKey, PutOutcome, ShedReason};
use keepwarm_store::{BlockPut, Reserve, WriteGrant};

use super::conversation::Conversation;
use super::counts::add;
use super::ending::Ending;
use super::node::Phase;
use crate::channel::{Channel, Patience, receive_all};
use crate::codec::{Body, decode};
use crate::deadline::Deadline;
use crate::frame_io::{expect, parse_header, receive_hashed};
use crate::frames::{HEADER_BYTES, Opcode, TRAILER_BYTES, Violation, flags};
use crate::messages::{
    Grant, PUT_BLOCKS_MAX, PUT_BYTES_MAX, PutAsk, PutDataHead, PutDone, PutGrants, PutRequest,
};
use crate::raw;

/// Least bytes a second at which the granted blocks of a put must come: a peer that drips would
/// otherwise hold its grants, and places for incomplete blocks, for as long as it likes.
const PUT_RATE_LEAST: u64 = 16 << 20;

const HEAD_BYTES: usize = HEADER_BYTES + PutDataHead::BYTES;

/// Header and body of a block's frame, of which some bytes have arrived.
struct Head {
    bytes: [u8; HEAD_BYTES],
    have: usize,
}

/// One ask between the phases.
pub(super) enum Slot {
    Granted(WriteGrant),
    Decided(PutOutcome),
}

impl Slot {
    /// As the peer hears it.
    pub(super) fn grant(&self) -> Grant {
        match self {
            Slot::Granted(_) => Grant::Granted,
            Slot::Decided(outcome) => Grant::Decided(*outcome),
        }
    }
}

impl<C: Channel> Conversation<'_, C> {
    pub(super) fn put(&mut self, request: &PutRequest) -> Result<(), Ending> {
        let slots = self.reserve(request);
        let grants = PutGrants(slots.iter().map(Slot::grant).collect());
        self.append(Opcode::Put, flags::REPLY | flags::MORE, 0, |out| grants.write(out));
        if grants.0.contains(&Grant::Granted) {
            self.flush()?;
        }
        let mut patience = self.patience().within(self.put_deadline(&slots));
        let last = grants.0.iter().rposition(|grant| *grant == Grant::Granted);
        let mut head = Head { bytes: [0; HEAD_BYTES], have: 0 };
        let mut outcomes = Vec::with_capacity(slots.len());
        for (index, slot) in (0u32..).zip(slots) {
            let is_last = last == Some(outcomes.len());
            outcomes.push(match slot {
                Slot::Granted(grant) => {
                    self.land(index, grant, &mut head, is_last, &mut patience)?
                }
                Slot::Decided(outcome) => outcome,
            });
        }
        self.touch_stored(request, &outcomes);
        self.reply(Opcode::Put, &PutDone(outcomes))
    }

    pub(super) fn reserve(&self, request: &PutRequest) -> Vec<Slot> {
        let loads_first = self.node.loads_bytes() > self.node.config.put_watermark_bytes;
        if loads_first || self.node.phase() != Phase::Serving {
            let blocks = request.asks.len() as u64;
            self.session.count_shed(request.namespace, ShedReason::Watermark, blocks);
            let shed = || Slot::Decided(PutOutcome::Shed(ShedReason::Watermark));
            return request.asks.iter().map(|_| shed()).collect();
        }
        let (mut blocks, mut bytes) = (0, 0);
        let mut reserve = |ask: &PutAsk| {
            let PutAsk { key, part, length: len, engine_hash } = *ask;
            let more = bytes + u64::from(len);
            if blocks == PUT_BLOCKS_MAX || (blocks > 0 && more > PUT_BYTES_MAX) {
                self.session.count_shed(request.namespace, ShedReason::Busy, 1);
                return Slot::Decided(PutOutcome::Shed(ShedReason::Busy));
            }
            let put = BlockPut { key, part, len, engine_hash };
            match self.session.reserve(request.namespace, request.epoch, put) {
                Reserve::Granted(grant) => {
                    (blocks, bytes) = (blocks + 1, more);
                    Slot::Granted(grant)
                }
                Reserve::Present => Slot::Decided(PutOutcome::Present),
                Reserve::Pending => Slot::Decided(PutOutcome::Pending),
                Reserve::Shed(reason) => Slot::Decided(PutOutcome::Shed(reason)),
            }
        };
        request.asks.iter().map(&mut reserve).collect()
    }

    /// When all granted bytes must be here: the time of a stall, and that of the least rate.
    pub(super) fn put_deadline(&self, slots: &[Slot]) -> Deadline {
        let granted = |slot: &Slot| match slot {
            Slot::Granted(grant) => grant.len() as u64,
            Slot::Decided(_) => 0,
        };
        let bytes: u64 = slots.iter().map(granted).sum();
        let nanos = bytes.saturating_mul(1_000_000_000) / PUT_RATE_LEAST;
        Deadline::after(self.node.config.stall.saturating_add(Duration::from_nanos(nanos)))
    }

    /// Receives one granted block, and as much of the next one's head as comes with it. An error
    /// drops the grant and ends the connection.
    fn land(
        &mut self,
        index: u32,
        mut grant: WriteGrant,
        head: &mut Head,
        is_last: bool,
        patience: &mut Patience,
    ) -> Result<PutOutcome, Ending> {
        let length = grant.len();
        self.receive_head(index, length, head, patience)?;
        let mut trailer = [0; TRAILER_BYTES];
        let mut slices: Vec<_> =
            raw::granted(&mut grant).into_iter().map(IoSliceMut::new).collect();
        slices.push(IoSliceMut::new(&mut trailer));
        if !is_last {
            slices.push(IoSliceMut::new(&mut head.bytes));
        }
        let least = length + TRAILER_BYTES;
        let (checksum, received) =
            receive_hashed(self.channel, &mut slices, 0..length, least, patience)?;
        head.have = received - least;
        add(&self.node.counts.bytes_received, length as u64);
        if checksum == u64::from_le_bytes(trailer) {
            return Ok(grant.commit(checksum));
        }
        add(&self.node.counts.puts_corrupt, 1);
        log::say(Event::PutCorrupt, |line| {
            line.number("bytes", length as u64);
        });
        grant.abort(ShedReason::Corrupt);
        Ok(PutOutcome::Shed(ShedReason::Corrupt))
    }

    fn receive_head(
        &mut self,
        index: u32,
        length: usize,
        head: &mut Head,
        patience: &mut Patience,
    ) -> Result<(), Ending> {
        receive_all(self.channel, &mut head.bytes[head.have..], patience)?;
        let (header, body) = head.bytes.split_at(HEADER_BYTES);
        let header = header.first_chunk().map(|bytes| parse_header(bytes, Some(self.version)));
        let header = header.ok_or(Violation::Magic)??;
        if header.body_bytes as usize != PutDataHead::BYTES {
            return Err(Violation::Body { bytes: header.body_bytes }.into());
        }
        header.check(body)?;
        expect(&header, Opcode::PutData, flags::TRAILER)?;
        if header.payload_bytes != length as u64 {
            let (bytes, allowed) = (header.payload_bytes, length as u64);
            return Err(Violation::Payload { bytes, allowed }.into());
        }
        let found: PutDataHead = decode(self.version, body)?;
        match found.index == index && header.correlation == self.correlation {
            true => Ok(()),
            false => Err(Violation::Unexpected("put data out of turn").into()),
        }
    }

    /// What a put brings is what its prompt used, so its head must leave last.
    pub(super) fn touch_stored(&self, request: &PutRequest, outcomes: &[PutOutcome]) {
        let here = request
            .asks
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| matches!(outcome, PutOutcome::Stored | PutOutcome::Present));
        let mut keys: Vec<BlockKey> = here.map(|(ask, _)| ask.key).collect();
        keys.dedup();
        self.session.arrange(request.namespace, request.epoch, &keys);
    }
}
