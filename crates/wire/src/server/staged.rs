//! Puts out of a client's staging: each byte is read there once, hashed on its way into the arena,
//! and visible only if that is what the client computed at the source. What the client does to its
//! staging meanwhile can only make the two differ.

use std::mem;

use keepwarm_store::WriteGrant;
use keepwarm_store::checksum::Hasher;
use keepwarm_store::log::{self, Event};
use keepwarm_store::types::{PutOutcome, ShedReason};

use super::conversation::Conversation;
use super::counts::add;
use super::ending::Ending;
use super::writes::Slot;
use crate::channel::{Channel, Patience};
use crate::codec::{Body, decode};
use crate::frame_io::{expect, receive_body, receive_header};
use crate::frames::{Opcode, Violation, flags};
use crate::mapping::Mapping;
use crate::messages::{
    Grant, PIECE_ALIGN, PIECES_MAX, Piece, PutDone, PutGrants, PutRequest, RefusalCode, StagedData,
    StagedTaken,
};
use crate::raw;

/// Most bytes of a body that says where pieces are.
const BODY_BYTES: u32 = 8 + 16 * PIECES_MAX as u32;

/// A put's asks while their bytes come, in order.
struct Landing {
    slots: std::iter::Enumerate<std::vec::IntoIter<Slot>>,
    /// The granted block whose bytes are due.
    current: Option<Current>,
    outcomes: Vec<PutOutcome>,
    corrupt: u64,
}

struct Current {
    index: u32,
    grant: WriteGrant,
    done: usize,
    hasher: Hasher,
}

impl<C: Channel> Conversation<'_, C> {
    pub(super) fn put_staged(&mut self, request: &PutRequest) -> Result<(), Ending> {
        if self.sharing.staging.is_none() {
            let text = String::from("this connection has no staging: stage one first");
            return self.refuse(Opcode::PutStaged as u8, RefusalCode::Failed, text);
        }
        let opcode = Opcode::PutStaged;
        let slots = self.reserve(request);
        let mut patience = self.patience().within(self.put_deadline(&slots));
        let grants = PutGrants(slots.iter().map(Slot::grant).collect());
        self.append(opcode, flags::REPLY | flags::MORE, 0, |out| grants.write(out));
        if grants.0.contains(&Grant::Granted) {
            self.flush()?;
        }
        let mut landing = Landing::new(slots);
        landing.next();
        let mut body = Vec::new();
        while landing.current.is_some() {
            let StagedData { offset, pieces } = self.staged_data(&mut body, &mut patience)?;
            let Some(staging) = &self.sharing.staging else { return Err(Ending::Closed) };
            let bytes = landing.take_all(&staging.mapping, offset, &pieces)?;
            add(&self.node.counts.bytes_staged, bytes);
            let taken = StagedTaken { offset };
            let flags = flags::REPLY | flags::MORE;
            self.append(Opcode::StagedData, flags, 0, |out| taken.write(out));
            // The last one goes out with the outcomes.
            if landing.current.is_some() {
                self.flush()?;
            }
        }
        add(&self.node.counts.puts_corrupt, landing.corrupt);
        self.touch_stored(request, &landing.outcomes);
        self.reply(opcode, &PutDone(landing.outcomes))
    }

    fn staged_data(
        &mut self,
        body: &mut Vec<u8>,
        patience: &mut Patience,
    ) -> Result<StagedData, Ending> {
        let header = receive_header(self.channel, Some(self.version), patience)?;
        if header.body_bytes > BODY_BYTES {
            return Err(Violation::Body { bytes: header.body_bytes }.into());
        }
        if header.payload_bytes != 0 {
            let (bytes, allowed) = (header.payload_bytes, 0);
            return Err(Violation::Payload { bytes, allowed }.into());
        }
        receive_body(self.channel, &header, body, patience)?;
        expect(&header, Opcode::StagedData, 0)?;
        match header.correlation == self.correlation {
            true => Ok(decode(self.version, body)?),
            false => Err(Violation::Unexpected("staged data of another put").into()),
        }
    }
}

impl Landing {
    fn new(slots: Vec<Slot>) -> Landing {
        let outcomes = Vec::with_capacity(slots.len());
        Landing { slots: slots.into_iter().enumerate(), current: None, outcomes, corrupt: 0 }
    }

    /// Goes on to the next granted block; what is decided already is passed.
    fn next(&mut self) {
        for (index, slot) in self.slots.by_ref() {
            match slot {
                Slot::Decided(outcome) => self.outcomes.push(outcome),
                Slot::Granted(grant) => {
                    let (index, hasher) = (crate::codec::length(index), Hasher::new());
                    self.current = Some(Current { index, grant, done: 0, hasher });
                    return;
                }
            }
        }
    }

    /// Takes the pieces of one frame; how many bytes.
    fn take_all(
        &mut self,
        staging: &Mapping,
        offset: u32,
        pieces: &[Piece],
    ) -> Result<u64, Violation> {
        let (mut at, mut bytes) = (offset as usize, 0);
        if pieces.is_empty() {
            return Err(Violation::Unexpected("staged data without a piece"));
        }
        for piece in pieces {
            self.take(staging, at, piece)?;
            bytes += u64::from(piece.length);
            at = (at + piece.length as usize).next_multiple_of(PIECE_ALIGN);
        }
        Ok(bytes)
    }

    fn take(&mut self, staging: &Mapping, at: usize, piece: &Piece) -> Result<(), Violation> {
        let length = piece.length as usize;
        let from = staging.at(at, length);
        let from = from.ok_or(Violation::Unexpected("a piece beyond the staging"))?;
        let Some(current) = self.current.as_mut().filter(|due| due.index == piece.index) else {
            return Err(Violation::Unexpected("a piece of a block that is not due"));
        };
        if length == 0 || length > current.grant.len() - current.done {
            return Err(Violation::Unexpected("a piece longer than what is left of its block"));
        }
        raw::copy_staged(&mut current.hasher, &mut current.grant, current.done, from, length);
        current.done += length;
        if current.done < current.grant.len() {
            return Ok(());
        }
        if let Some(Current { grant, hasher, .. }) = mem::take(&mut self.current) {
            let checksum = hasher.digest();
            let outcome = match checksum == piece.checksum {
                true => grant.commit(checksum),
                false => {
                    self.corrupt += 1;
                    log::say(Event::PutCorrupt, |line| {
                        line.number("bytes", grant.len() as u64);
                    });
                    grant.abort(ShedReason::Corrupt);
                    PutOutcome::Shed(ShedReason::Corrupt)
                }
            };
            self.outcomes.push(outcome);
        }
        self.next();
        Ok(())
    }
}
