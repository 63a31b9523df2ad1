//! Puts: from the caller's buffers to the socket, hashed on the way.

use std::io::IoSlice;
use std::ops::Range;

use keepwarm_store::checksum::Hasher;
use keepwarm_store::types::{Epoch, PutOutcome};

use super::link::{Cut, Link};
use crate::channel::{Patience, send_all};
use crate::client::PutItem;
use crate::client::transport::SpaceCore;
use crate::codec::Body;
use crate::deadline::Deadline;
use crate::frames::{Opcode, Violation, append_frame, flags};
use crate::messages::{
    Grant, PUT_BLOCKS_MAX, PUT_BYTES_MAX, PutAsk, PutDataHead, PutDone, PutGrants, PutRequest,
};
use crate::raw;

/// Bytes hashed and then sent at once: few enough to still be in the core's cache.
const CHUNK_BYTES: usize = 256 << 10;

/// Cuts a batch into what one request is granted at most.
pub(super) fn groups(items: &[PutItem]) -> Vec<Range<usize>> {
    let (mut groups, mut start, mut bytes) = (Vec::new(), 0, 0);
    let is_full = |blocks: usize, bytes: usize, more: usize| {
        blocks == PUT_BLOCKS_MAX || (blocks > 0 && (bytes + more) as u64 > PUT_BYTES_MAX)
    };
    for (place, item) in items.iter().enumerate() {
        if is_full(place - start, bytes, item.len) {
            groups.push(start..place);
            (start, bytes) = (place, 0);
        }
        bytes += item.len;
    }
    groups.push(start..items.len());
    groups
}

/// What a request asks for.
pub(super) fn asks(items: &[PutItem]) -> Vec<PutAsk> {
    let ask = |item: &PutItem| PutAsk {
        key: item.key,
        part: item.part,
        length: crate::codec::length(item.len),
        engine_hash: item.engine_hash,
    };
    items.iter().map(ask).collect()
}

/// Takes what is decided already.
pub(super) fn settle(
    grants: &[Grant],
    outcomes: &mut [Option<PutOutcome>],
) -> Result<(), Violation> {
    if grants.len() != outcomes.len() {
        return Err(Violation::Unexpected("another number of grants than asks"));
    }
    for (outcome, grant) in outcomes.iter_mut().zip(grants) {
        *outcome = match grant {
            Grant::Granted => None,
            Grant::Decided(outcome) => Some(*outcome),
        };
    }
    Ok(())
}

impl Link {
    /// # Safety
    /// As `Space::put_from`.
    pub(super) unsafe fn put(
        &mut self,
        space: &SpaceCore,
        items: &[PutItem],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<(), Cut> {
        let namespace = self.namespace(space, until)?;
        let epoch = Epoch(space.epoch.load(std::sync::atomic::Ordering::Acquire));
        let request = PutRequest { namespace, epoch, asks: asks(items) };
        self.send(Opcode::Put, |out| request.write(out), until)?;

        let header = self.receive_header(until)?;
        let more = flags::REPLY | flags::MORE;
        let PutGrants(grants) = self.receive_part(&header, Opcode::Put, more, until)?;
        settle(&grants, outcomes)?;
        for ((index, item), grant) in (0u32..).zip(items).zip(&grants) {
            if *grant == Grant::Granted {
                // SAFETY: the caller's promise about `items`.
                let from = unsafe { raw::source(item.ptr, item.len) };
                self.send_block(index, from, until)?;
            }
        }
        let header = self.receive_header(until)?;
        let PutDone(done) = self.receive_reply(&header, Opcode::Put, until)?;
        if done.len() != items.len() {
            return Err(Violation::Unexpected("another number of outcomes than asks").into());
        }
        for (place, outcome) in outcomes.iter_mut().zip(done) {
            *place = Some(outcome);
        }
        Ok(())
    }

    fn send_block(&mut self, index: u32, from: &[u8], until: Deadline) -> Result<(), Cut> {
        let head = self.head(Opcode::PutData, flags::TRAILER, from.len() as u64);
        self.out.clear();
        append_frame(&mut self.out, head, |out| PutDataHead { index }.write(out))?;
        let mut hash = Hasher::new();
        let mut patience = Patience::until(until);
        let mut first: &[u8] = &self.out;
        let mut rest = from;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(rest.len().min(CHUNK_BYTES));
            hash.update(chunk);
            let trailer = if after.is_empty() { hash.digest() } else { 0 }.to_le_bytes();
            let last: &[u8] = if after.is_empty() { &trailer } else { &[] };
            let mut slices = [IoSlice::new(first), IoSlice::new(chunk), IoSlice::new(last)];
            send_all(&mut self.socket, &mut slices, &mut patience)?;
            (first, rest) = (&[], after);
        }
        self.heard = true;
        Ok(())
    }
}
