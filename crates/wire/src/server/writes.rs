//! Puts: from the socket into the arena without a copy in user space, each received piece hashed
//! while it is hot, and visible only if that matches the trailer.

use std::io::IoSliceMut;

use keepwarm_store::checksum::Hasher;
use keepwarm_store::types::{BlockKey, PutOutcome, ShedReason};
use keepwarm_store::{BlockPut, Reserve, WriteGrant};

use super::conversation::{Conversation, Ending};
use super::counts::add;
use super::node::Phase;
use crate::channel::{Channel, receive_all, receive_some};
use crate::codec::{Body, decode};
use crate::frame_io::{expect, parse_header};
use crate::frames::{HEADER_BYTES, Opcode, TRAILER_BYTES, Violation, flags};
use crate::messages::{Grant, PutAsk, PutDataHead, PutDone, PutGrants, PutRequest};
use crate::raw;

const HEAD_BYTES: usize = HEADER_BYTES + PutDataHead::BYTES;

/// One ask between the phases.
enum Slot {
    Granted(WriteGrant),
    Decided(PutOutcome),
}

impl<C: Channel> Conversation<'_, C> {
    pub(super) fn put(&mut self, request: &PutRequest) -> Result<(), Ending> {
        let slots = self.reserve(request);
        let grants = slots.iter().map(|slot| match slot {
            Slot::Granted(_) => Grant::Granted,
            Slot::Decided(outcome) => Grant::Decided(*outcome),
        });
        let grants = PutGrants(grants.collect());
        self.append(Opcode::Put, flags::REPLY | flags::MORE, 0, |out| grants.write(out));
        if grants.0.contains(&Grant::Granted) {
            self.flush()?;
        }
        let mut outcomes = Vec::with_capacity(slots.len());
        for (index, slot) in (0u32..).zip(slots) {
            outcomes.push(match slot {
                Slot::Granted(grant) => self.land(index, grant)?,
                Slot::Decided(outcome) => outcome,
            });
        }
        self.touch_stored(request, &outcomes);
        self.reply(Opcode::Put, &PutDone(outcomes))
    }

    fn reserve(&self, request: &PutRequest) -> Vec<Slot> {
        let loads_first = self.node.loads_bytes() > self.node.config.put_watermark_bytes;
        if loads_first || self.node.phase() != Phase::Serving {
            add(&self.node.counts.puts_shed_watermark, request.asks.len() as u64);
            let shed = || Slot::Decided(PutOutcome::Shed(ShedReason::Watermark));
            return request.asks.iter().map(|_| shed()).collect();
        }
        let reserve = |ask: &PutAsk| {
            let PutAsk { key, part, length: len, engine_hash } = *ask;
            let put = BlockPut { key, part, len, engine_hash };
            match self.session.reserve(request.namespace, request.epoch, put) {
                Reserve::Granted(grant) => Slot::Granted(grant),
                Reserve::Present => Slot::Decided(PutOutcome::Present),
                Reserve::Pending => Slot::Decided(PutOutcome::Pending),
                Reserve::Shed(reason) => Slot::Decided(PutOutcome::Shed(reason)),
            }
        };
        request.asks.iter().map(reserve).collect()
    }

    /// Receives one granted block. An error drops the grant and ends the connection.
    fn land(&mut self, index: u32, mut grant: WriteGrant) -> Result<PutOutcome, Ending> {
        self.receive_head(index, grant.len())?;
        let mut hash = Hasher::new();
        let mut patience = self.patience();
        for piece in raw::granted(&mut grant) {
            let mut rest = piece;
            while !rest.is_empty() {
                let mut slices = [IoSliceMut::new(rest)];
                let received = receive_some(self.channel, &mut slices, &mut patience)?;
                hash.update(&rest[..received]);
                rest = &mut rest[received..];
            }
        }
        let mut trailer = [0; TRAILER_BYTES];
        receive_all(self.channel, &mut trailer, &mut patience)?;
        add(&self.node.counts.bytes_received, grant.len() as u64);
        let checksum = hash.digest();
        if checksum == u64::from_le_bytes(trailer) {
            return Ok(grant.commit(checksum));
        }
        add(&self.node.counts.puts_corrupt, 1);
        grant.abort(ShedReason::Corrupt);
        Ok(PutOutcome::Shed(ShedReason::Corrupt))
    }

    fn receive_head(&mut self, index: u32, length: usize) -> Result<(), Ending> {
        let mut head = [0; HEAD_BYTES];
        let mut patience = self.patience();
        receive_all(self.channel, &mut head, &mut patience)?;
        let (header, body) = head.split_at(HEADER_BYTES);
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
    fn touch_stored(&self, request: &PutRequest, outcomes: &[PutOutcome]) {
        let here = request
            .asks
            .iter()
            .zip(outcomes)
            .filter(|(_, outcome)| matches!(outcome, PutOutcome::Stored | PutOutcome::Present));
        let mut keys: Vec<BlockKey> = here.map(|(ask, _)| ask.key).collect();
        keys.dedup();
        self.session.touch(request.namespace, request.epoch, &keys);
    }
}
