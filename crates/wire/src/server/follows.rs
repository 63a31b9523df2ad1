//! Followers of events: the connection is theirs until its end.

use std::time::Instant;

use keepwarm_store::{Event, EventBatch, EventFilter};

use super::conversation::{Conversation, LOOK_UP};
use super::ending::Ending;
use super::node::Phase;
use crate::channel::Channel;
use crate::codec::Body;
use crate::frames::{Opcode, flags};
use crate::messages::{EventsReply, RefusalCode, SubscribeRequest};

/// Events in one frame.
const FRAME_EVENTS: usize = 16_384;

impl<C: Channel> Conversation<'_, C> {
    pub(super) fn follow(&mut self, request: SubscribeRequest) -> Result<(), Ending> {
        if !self.attached.contains(&request.namespace) {
            let text =
                format!("namespace {} is not attached: attach it first", request.namespace.0);
            return self.refuse(Opcode::Subscribe as u8, RefusalCode::Namespace, text);
        }
        let from = request.since.map(|since| (since.incarnation, since.sequence));
        let filter = EventFilter::Namespace(request.namespace);
        let mut subscription = self.node.store.subscribe(filter, from);
        let heartbeat = self.node.config.heartbeat;
        let mut last_sent = Instant::now();
        while self.node.phase() == Phase::Serving {
            let batch = subscription.next_batch(heartbeat.min(LOOK_UP));
            let empty = matches!(&batch, EventBatch::Events { events, .. } if events.is_empty());
            if !self.channel.peer_is_there() {
                return Err(Ending::Closed);
            }
            if !empty || last_sent.elapsed() >= heartbeat {
                self.send_batch(batch)?;
                last_sent = Instant::now();
            }
        }
        Err(Ending::Closed)
    }

    /// Sends a batch in frames of bounded size.
    fn send_batch(&mut self, batch: EventBatch) -> Result<(), Ending> {
        match batch {
            EventBatch::Resync { .. } => self.send_frame(batch),
            EventBatch::Events { events, next } => {
                let frames = events.chunks(FRAME_EVENTS).len().max(1);
                for frame in 1..=frames {
                    let some = chunk(&events, frame);
                    let after = some.last().map_or(next, |event| event.sequence + 1);
                    let next = if frame == frames { next } else { after };
                    self.send_frame(EventBatch::Events { events: some, next })?;
                }
                Ok(())
            }
            EventBatch::Snapshot { events, last } => {
                let frames = events.chunks(FRAME_EVENTS).len().max(1);
                for frame in 1..=frames {
                    let (events, last) = (chunk(&events, frame), last && frame == frames);
                    self.send_frame(EventBatch::Snapshot { events, last })?;
                }
                Ok(())
            }
        }
    }

    fn send_frame(&mut self, batch: EventBatch) -> Result<(), Ending> {
        let body = EventsReply(batch);
        self.append(Opcode::Subscribe, flags::REPLY | flags::MORE, 0, |out| body.write(out));
        self.flush()
    }
}

/// The events of the `frame`th frame, from 1.
fn chunk(events: &[Event], frame: usize) -> Vec<Event> {
    events.chunks(FRAME_EVENTS).nth(frame - 1).unwrap_or_default().to_vec()
}
