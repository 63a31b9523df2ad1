//! Gets: from the socket into the caller's buffers, hashed while landing.
//!
//! The frames of a get's answer come in the order asked, so while one block lands the next one's
//! header is received with its tail, in the same system call:
//!
//! ```text
//!  [header] │ [body, bytes ........│........│........ tail, next header] │ [body, bytes ...
//! ```
//!
//! Bytes land in the buffer of the block that is due, before its body could be checked: until its
//! outcome is `Ok` a buffer's content is undefined anyway.

use std::io::IoSliceMut;

use keepwarm_store::Reported;
use keepwarm_store::types::{Epoch, Generation, GetOutcome, MissReason, NamespaceId};

use super::link::{Cut, Link};
use crate::channel::{Patience, receive_all};
use crate::client::GetItem;
use crate::client::transport::SpaceCore;
use crate::codec::{Body, decode};
use crate::deadline::Deadline;
use crate::frame_io::{expect, parse_header, receive_hashed};
use crate::frames::{HEADER_BYTES, Header, Opcode, Violation, flags};
use crate::messages::{GetAsk, GetData, GetMisses, GetRequest, ReportReply, ReportRequest};
use crate::raw;

/// Reports sent after one get: a way that spoils more is given up on anyway.
const REPORTS_MAX: usize = 16;

/// A header of which some bytes have arrived.
struct Head {
    bytes: [u8; HEADER_BYTES],
    have: usize,
}

impl Link {
    /// # Safety
    /// As `Space::get_into`.
    pub(super) unsafe fn get(
        &mut self,
        space: &SpaceCore,
        items: &[GetItem],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Cut> {
        let namespace = self.namespace(space, until)?;
        let ask = |item: &GetItem| GetAsk {
            key: item.key,
            part: item.part,
            length: crate::codec::length(item.len),
        };
        let epoch = Epoch(space.epoch.load(std::sync::atomic::Ordering::Acquire));
        let request = GetRequest { namespace, epoch, asks: items.iter().map(ask).collect() };
        self.send(Opcode::Get, |out| request.write(out), until)?;

        let mut reports = Vec::new();
        let mut head = Head { bytes: [0; HEADER_BYTES], have: 0 };
        let mut due = 0;
        while due < items.len() {
            let header = self.rest_of(&mut head, until)?;
            if header.payload_bytes == 0 {
                due += self.misses(&header, due, outcomes, until)?;
                continue;
            }
            let item = &items[due];
            // SAFETY: the caller's promise about `items`.
            let to = unsafe { raw::destination(item.ptr, item.len) };
            let last = due + 1 == items.len();
            let landed = self.land(&header, due, to, (!last).then_some(&mut head), until)?;
            outcomes[due] = Some(match landed {
                Ok(()) => GetOutcome::Ok,
                Err(generation) => {
                    self.corrupt += 1;
                    reports.push((item, generation));
                    GetOutcome::Miss(MissReason::Corrupt)
                }
            });
            due += 1;
        }
        self.report_all(namespace, &reports, until)
    }

    fn rest_of(&mut self, head: &mut Head, until: Deadline) -> Result<Header, Cut> {
        let mut patience = Patience::until(until);
        receive_all(&mut self.socket, &mut head.bytes[head.have..], &mut patience)?;
        head.have = 0;
        self.heard = true;
        Ok(parse_header(&head.bytes, Some(self.version))?)
    }

    /// Outcomes without bytes, from block `due` on; how many.
    fn misses(
        &mut self,
        header: &Header,
        due: usize,
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<usize, Cut> {
        let more = flags::REPLY | flags::MORE;
        let misses: GetMisses = self.receive_part(header, Opcode::Get, more, until)?;
        let rest = &mut outcomes[due..];
        if misses.first as usize != due || misses.outcomes.len() > rest.len() {
            return Err(Violation::Unexpected("outcomes of blocks that are not due").into());
        }
        for (place, outcome) in rest.iter_mut().zip(&misses.outcomes) {
            *place = Some(*outcome);
        }
        Ok(misses.outcomes.len())
    }

    /// Lands block `due`, and as much of the `next` header as comes with its tail. `Err` within:
    /// the bytes do not match their checksum.
    fn land(
        &mut self,
        header: &Header,
        due: usize,
        to: &mut [u8],
        mut next: Option<&mut Head>,
        until: Deadline,
    ) -> Result<Result<(), Generation>, Cut> {
        expect(header, Opcode::Get, flags::REPLY | flags::MORE)?;
        self.belongs(header)?;
        if header.payload_bytes != to.len() as u64 {
            let (bytes, allowed) = (header.payload_bytes, to.len() as u64);
            return Err(Violation::Payload { bytes, allowed }.into());
        }
        if header.body_bytes as usize != GetData::BYTES {
            return Err(Violation::Body { bytes: header.body_bytes }.into());
        }
        let mut body = [0; GetData::BYTES];
        let least = body.len() + to.len();
        let mut slices = Vec::with_capacity(3);
        slices.extend([IoSliceMut::new(&mut body), IoSliceMut::new(to)]);
        if let Some(head) = next.as_deref_mut() {
            slices.push(IoSliceMut::new(&mut head.bytes));
        }
        let (hashed, mut patience) = (GetData::BYTES..least, Patience::until(until));
        let (digest, received) =
            receive_hashed(&mut self.socket, &mut slices, hashed, least, &mut patience)?;
        if let Some(head) = next {
            head.have = received - least;
        }
        header.check(&body)?;
        let data: GetData = decode(self.version, &body)?;
        if data.index as usize != due {
            return Err(Violation::Unexpected("bytes of a block that is not due").into());
        }
        let matches = digest == data.checksum;
        Ok(if matches { Ok(()) } else { Err(data.generation) })
    }

    /// Tells the node which blocks did not match. If its own bytes are good, the fault is on the
    /// way, and this connection is not used again.
    pub(super) fn report_all(
        &mut self,
        namespace: NamespaceId,
        reports: &[(&GetItem, Generation)],
        until: Deadline,
    ) -> Result<(), Cut> {
        for (item, generation) in reports.iter().take(REPORTS_MAX) {
            let (key, part, generation) = (item.key, item.part, *generation);
            let request = ReportRequest { namespace, key, part, generation };
            let ReportReply(found) = self.ask(Opcode::Report, |out| request.write(out), until)?;
            if found == Reported::Intact {
                self.suspect = true;
                return Ok(());
            }
        }
        Ok(())
    }
}
