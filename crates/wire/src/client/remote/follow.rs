//! Following events on a connection of its own.

use std::time::Duration;

use keepwarm_store::EventBatch;
use keepwarm_store::types::{MissReason, NamespaceId};

use super::link::{Cut, Link};
use crate::channel::Channel;
use crate::client::events::Position;
use crate::client::transport::Unserved;
use crate::client::{ClientError, EventStream};
use crate::codec::Body;
use crate::deadline::Deadline;
use crate::frames::{Opcode, flags};
use crate::messages::{EventsReply, Since, SubscribeRequest};
use crate::process::ProcessId;

/// How long a node may be silent (it sends a heartbeat every second), or take over one frame.
const SILENCE: Duration = Duration::from_secs(5);

pub(super) struct Follow {
    /// A forked child shares the socket: what it read there its parent would miss.
    process: ProcessId,
    link: Link,
    position: Position,
    silent_from: Deadline,
    over: bool,
}

impl Follow {
    pub(super) fn start(
        mut link: Link,
        namespace: NamespaceId,
        since: Option<Since>,
        until: Deadline,
    ) -> Result<Follow, Cut> {
        let request = SubscribeRequest { namespace, since };
        link.send(Opcode::Subscribe, |out| request.write(out), until)?;
        let from = since.map(|since| (since.incarnation, since.sequence));
        let position = Position::new(link.peer.incarnation, from);
        let silent_from = Deadline::after(SILENCE);
        Ok(Follow { process: ProcessId::here(), link, position, silent_from, over: false })
    }

    /// The next frame; `None` if none began to come in time.
    fn frame(&mut self, until: Deadline) -> Result<Option<EventBatch>, Cut> {
        if !self.link.socket.wait_for_bytes(until)? {
            return Ok(None);
        }
        let whole = Deadline::after(SILENCE);
        let header = self.link.receive_header(whole)?;
        let more = flags::REPLY | flags::MORE;
        let EventsReply(batch) = self.link.receive_part(&header, Opcode::Subscribe, more, whole)?;
        self.silent_from = Deadline::after(SILENCE);
        self.position.saw(&batch);
        Ok(Some(batch))
    }

    fn end(&mut self, cut: Cut) -> ClientError {
        self.over = true;
        match Unserved::from(cut) {
            Unserved::Missed(MissReason::Throttled) => ClientError::NotDone(MissReason::Throttled),
            // Its own deadline is the node's silence.
            Unserved::Missed(_) => ClientError::NotDone(MissReason::StoreDown),
            refused => refused.into(),
        }
    }
}

impl EventStream for Follow {
    fn next_batch(&mut self, wait: Duration) -> Result<EventBatch, ClientError> {
        if self.over || self.process != ProcessId::here() {
            return Err(ClientError::NotDone(MissReason::StoreDown));
        }
        let until = Deadline::after(wait);
        loop {
            match self.frame(until.min(self.silent_from)) {
                Ok(Some(EventBatch::Events { events, .. })) if events.is_empty() => {}
                Ok(Some(batch)) => return Ok(batch),
                Ok(None) if self.silent_from.passed() => return Err(self.end(Cut::Deadline)),
                Ok(None) => {
                    let next = self.position.since().map_or(0, |(_, next)| next);
                    return Ok(EventBatch::Events { events: Vec::new(), next });
                }
                Err(cut) => return Err(self.end(cut)),
            }
        }
    }

    fn since(&self) -> Option<(u64, u64)> {
        self.position.since()
    }
}
