//! Gets: from the arena to the socket without a copy in user space.

use std::io::IoSlice;

use keepwarm_store::ReadPin;
use keepwarm_store::types::{Epoch, GetOutcome, MissReason, NamespaceId};

use super::conversation::Conversation;
use super::counts::add;
use super::ending::Ending;
use super::node::Load;
use crate::ahead::Ahead;
use crate::channel::{Channel, STEP_BYTES, send_all};
use crate::codec::Body;
use crate::frame_io::empty;
use crate::frames::{Opcode, flags};
use crate::messages::{GetAsk, GetData, GetMisses, GetRequest, MISSES_MAX};
use crate::raw;

/// Blocks held and sent at once, at most: few pins, few pieces per system call.
const BATCH_BLOCKS: usize = 64;

/// Blocks whose heads lie in `Conversation::out` and whose bytes follow them:
///
/// ```text
///  out:   head 0 | head 1 | misses, head 2 ...     ends[i] = where head i ends
///  sent:  head 0, pieces of pin 0, head 1, pieces of pin 1, ...
/// ```
struct Batch {
    pins: Vec<ReadPin>,
    ends: Vec<usize>,
    bytes: usize,
    misses: GetMisses,
}

impl<C: Channel> Conversation<'_, C> {
    pub(super) fn get(&mut self, request: &GetRequest) -> Result<(), Ending> {
        let asked = request.asks.iter().map(|ask| u64::from(ask.length)).sum();
        let mut load = self.node.load(asked);
        let misses = GetMisses { first: 0, outcomes: Vec::new() };
        let mut batch = Batch { pins: Vec::new(), ends: Vec::new(), bytes: 0, misses };
        let mut ahead = Ahead::of(&self.session);
        for (index, ask) in (0u32..).zip(&request.asks) {
            let place = (request.namespace, request.epoch);
            if let Some(ahead) = &mut ahead {
                let name = |ask: &GetAsk| (ask.key, u64::from(ask.length));
                ahead.come_to(&self.session, place, &request.asks, index as usize, name);
            }
            match self.pin(place, ask) {
                Ok(pin) => {
                    self.append_misses(&mut batch);
                    self.append_hit(&mut batch, index, pin);
                }
                Err(outcome) => {
                    if batch.misses.outcomes.is_empty() {
                        batch.misses.first = index;
                    }
                    batch.misses.outcomes.push(outcome);
                    load.sent(ask.length.into());
                }
            }
            if batch.misses.outcomes.len() == MISSES_MAX {
                self.append_misses(&mut batch);
            }
            if batch.bytes >= STEP_BYTES || batch.pins.len() == BATCH_BLOCKS {
                self.send(&mut batch, &mut load)?;
            }
        }
        self.append_misses(&mut batch);
        self.send(&mut batch, &mut load)
    }

    pub(super) fn pin(
        &self,
        (namespace, epoch): (NamespaceId, Epoch),
        ask: &GetAsk,
    ) -> Result<ReadPin, GetOutcome> {
        match self.session.read(namespace, epoch, ask.key, ask.part) {
            Ok(pin) if pin.len() == ask.length as usize => Ok(pin),
            // Another length than the buffer's: whatever these bytes are, not what is meant.
            Ok(_) => Err(GetOutcome::Miss(MissReason::Identity)),
            Err(MissReason::Pending) => Err(GetOutcome::Pending),
            Err(MissReason::Throttled) => Err(GetOutcome::Throttled),
            Err(reason) => Err(GetOutcome::Miss(reason)),
        }
    }

    fn append_hit(&mut self, batch: &mut Batch, index: u32, pin: ReadPin) {
        let (generation, checksum) = (pin.generation(), pin.checksum());
        let (flags, length) = (flags::REPLY | flags::MORE, pin.len());
        self.append(Opcode::Get, flags, length as u64, |out| {
            GetData { index, generation, checksum }.write(out);
        });
        batch.ends.push(self.out.len());
        batch.pins.push(pin);
        batch.bytes += length;
    }

    fn append_misses(&mut self, batch: &mut Batch) {
        if !batch.misses.outcomes.is_empty() {
            let misses = &batch.misses;
            self.append(Opcode::Get, flags::REPLY | flags::MORE, 0, |out| misses.write(out));
            batch.misses.outcomes.clear();
        }
    }

    fn send(&mut self, batch: &mut Batch, load: &mut Load<'_>) -> Result<(), Ending> {
        let mut slices = Vec::with_capacity(2 * batch.pins.len() + 1);
        let mut start = 0;
        for (pin, end) in batch.pins.iter().zip(&batch.ends) {
            slices.push(IoSlice::new(&self.out[start..*end]));
            slices.extend(raw::pinned(pin).map(IoSlice::new));
            start = *end;
        }
        slices.push(IoSlice::new(&self.out[start..]));
        let mut patience = self.patience();
        send_all(self.channel, &mut slices, &mut patience)?;
        empty(&mut self.out);
        batch.ends.clear();
        for mut pin in batch.pins.drain(..) {
            pin.used();
        }
        load.sent(batch.bytes as u64);
        add(&self.node.counts.bytes_sent, batch.bytes as u64);
        batch.bytes = 0;
        Ok(())
    }
}
