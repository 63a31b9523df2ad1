//! Puts by shared memory: the calling thread copies and hashes the granted blocks into slots of the
//! connection's staging, and says where they are; the node takes them from there meanwhile.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use keepwarm_store::checksum::Hasher;
use keepwarm_store::types::{Epoch, PutOutcome};

use super::link::{Cut, Link};
use super::writes::{asks, settle};
use crate::channel::{Channel, Patience, STEP_BYTES};
use crate::client::PutItem;
use crate::client::shm::{SLOT_BYTES, SLOTS, STAGING_BYTES, Staging};
use crate::client::transport::SpaceCore;
use crate::codec::Body;
use crate::deadline::Deadline;
use crate::frame_io::flush;
use crate::frames::{Opcode, Violation, append_frame, flags};
use crate::messages::{
    CARRIER_BYTES, Grant, PIECE_ALIGN, PIECES_MAX, Piece, PutDone, PutGrants, PutRequest,
    StageReply, StageRequest, StagedData, StagedTaken,
};
use crate::raw;

/// The slots of a put under way.
struct Ring {
    /// The slot that is filled, and how far.
    slot: usize,
    filled: usize,
    pieces: Vec<Piece>,
    /// Offsets of the slots that the node has not taken yet.
    given: VecDeque<u32>,
}

impl Link {
    /// Gives the node this connection's staging, the first time. False: it does not take one.
    pub(super) fn has_staging(&mut self, until: Deadline) -> Result<bool, Cut> {
        if let Some(known) = &self.staging {
            return Ok(known.is_some());
        }
        self.staging = Some(None);
        let Ok((staging, memfd)) = Staging::new() else { return Ok(false) };
        self.correlation += 1;
        let head = self.head(Opcode::Stage, 0, CARRIER_BYTES);
        self.out.clear();
        let request = StageRequest { bytes: STAGING_BYTES };
        append_frame(&mut self.out, head, |out| request.write(out))?;
        flush(&mut self.socket, &mut self.out, &mut Patience::until(until))?;
        self.socket.send_descriptor(memfd.as_fd(), until)?;
        let header = self.receive_header(until)?;
        match self.receive_reply::<StageReply>(&header, Opcode::Stage, until) {
            Ok(StageReply) => {
                self.staging = Some(Some(staging));
                Ok(true)
            }
            Err(Cut::Refused(_)) => Ok(false),
            Err(cut) => Err(cut),
        }
    }

    /// As [`Link::put`], through the staging.
    ///
    /// # Safety
    /// As `Space::put_from`.
    pub(super) unsafe fn put_staged(
        &mut self,
        space: &SpaceCore,
        items: &[PutItem],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Cut> {
        let namespace = self.namespace(space, until)?;
        let epoch = Epoch(space.epoch.load(std::sync::atomic::Ordering::Acquire));
        let request = PutRequest { namespace, epoch, asks: asks(items) };
        self.send(Opcode::PutStaged, |out| request.write(out), until)?;
        let header = self.receive_header(until)?;
        let more = flags::REPLY | flags::MORE;
        let PutGrants(grants) = self.receive_part(&header, Opcode::PutStaged, more, until)?;
        settle(&grants, outcomes)?;
        let mut ring =
            Ring { slot: 0, filled: 0, pieces: Vec::new(), given: VecDeque::with_capacity(SLOTS) };
        for ((index, item), grant) in (0u32..).zip(items).zip(&grants) {
            if *grant == Grant::Granted {
                // SAFETY: the caller's promise about `items`.
                let from = unsafe { raw::source(item.ptr, item.len) };
                self.stage_block(&mut ring, index, from, until)?;
            }
        }
        self.give_slot(&mut ring, until)?;
        while !ring.given.is_empty() {
            self.slot_taken(&mut ring, until)?;
        }
        let header = self.receive_header(until)?;
        let PutDone(done) = self.receive_reply(&header, Opcode::PutStaged, until)?;
        if done.len() != items.len() {
            return Err(Violation::Unexpected("another number of outcomes than asks").into());
        }
        for (place, outcome) in outcomes.iter_mut().zip(done) {
            *place = Some(outcome);
        }
        Ok(())
    }

    /// Copies one block into as many slots as it takes; each that is full goes to the node.
    fn stage_block(
        &mut self,
        ring: &mut Ring,
        index: u32,
        mut from: &[u8],
        until: Deadline,
    ) -> Result<(), Cut> {
        let mut hasher = Hasher::new().cached();
        while !from.is_empty() {
            if ring.filled >= SLOT_BYTES || ring.pieces.len() == PIECES_MAX {
                self.give_slot(ring, until)?;
            }
            if until.passed() {
                return Err(Cut::Deadline);
            }
            let step = from.len().min(SLOT_BYTES - ring.filled).min(STEP_BYTES);
            let (piece, rest) = from.split_at(step);
            let Some(Some(staging)) = &mut self.staging else {
                return Err(Violation::Unexpected("a put without a staging").into());
            };
            staging.copy(&mut hasher, ring.slot * SLOT_BYTES + ring.filled, piece);
            let checksum = if rest.is_empty() { hasher.digest() } else { 0 };
            let length = crate::codec::length(piece.len());
            ring.pieces.push(Piece { index, length, checksum });
            ring.filled = (ring.filled + step).next_multiple_of(PIECE_ALIGN);
            from = rest;
        }
        Ok(())
    }

    /// Gives what is in the slot to the node, and goes on to the next one once it is free.
    fn give_slot(&mut self, ring: &mut Ring, until: Deadline) -> Result<(), Cut> {
        if ring.pieces.is_empty() {
            return Ok(());
        }
        let offset = crate::codec::length(ring.slot * SLOT_BYTES);
        let head = self.head(Opcode::StagedData, 0, 0);
        self.out.clear();
        let body = |out: &mut Vec<u8>| StagedData::write_parts(out, offset, &ring.pieces);
        append_frame(&mut self.out, head, body)?;
        flush(&mut self.socket, &mut self.out, &mut Patience::until(until))?;
        ring.given.push_back(offset);
        ring.pieces.clear();
        ring.filled = 0;
        ring.slot = (ring.slot + 1) % SLOTS;
        if ring.given.len() == SLOTS {
            self.slot_taken(ring, until)?;
        }
        Ok(())
    }

    fn slot_taken(&mut self, ring: &mut Ring, until: Deadline) -> Result<(), Cut> {
        let header = self.receive_header(until)?;
        let more = flags::REPLY | flags::MORE;
        let taken: StagedTaken = self.receive_part(&header, Opcode::StagedData, more, until)?;
        match ring.given.pop_front() == Some(taken.offset) {
            true => Ok(()),
            false => Err(Violation::Unexpected("a slot that was not given").into()),
        }
    }
}
