//! What a node says of its share, kept for those who place on several nodes, and how long it may
//! wait for us.

use std::sync::Arc;
use std::time::Duration;

use super::link::Cut;
use super::{ConnectConfig, ConnectError, Node, Remote};
use crate::client::stats::Counts;
use crate::client::transport::{Announced, Unserved};
use crate::codec::Body;
use crate::deadline::Deadline;
use crate::frames::Opcode;
use crate::messages::{PingReply, PingRequest, RefusalCode};

/// Of a node among several one silent deadline is enough: the others serve, and a thread asks for
/// it at once.
const FAILURES: u32 = 1;

/// Kept of a deadline for the answer of a node that waits on our behalf.
const ANSWER_WAY: Duration = Duration::from_millis(50);

impl Remote {
    /// The way to one node of several, which count together.
    pub(in crate::client) fn of_fleet(
        config: &ConnectConfig,
        counts: Arc<Counts>,
    ) -> Result<Remote, ConnectError> {
        Remote::with(config, counts, FAILURES)
    }
}

impl Remote {
    /// Asks the node how it is, and keeps what it says.
    pub(super) fn ask_after(&self, until: Deadline) -> Result<(), Unserved> {
        let PingReply { incarnation, announcement } =
            self.call(Opcode::Ping, |out| PingRequest.write(out), until)?;
        self.node.heard(Announced::heard(incarnation, announcement));
        Ok(())
    }

    /// How long a node may wait on our behalf, so that its answer is still in time.
    pub(super) fn waits(&self, until: Deadline) -> Duration {
        let left = until.left().unwrap_or_default();
        left - (left / 10).max(ANSWER_WAY.min(left / 2))
    }
}

impl Node {
    pub(super) fn announced(&self) -> Option<Announced> {
        self.peer.lock().ok()?.as_ref().map(|peer| peer.announced)
    }

    pub(super) fn heard(&self, announced: Announced) {
        if let Ok(mut peer) = self.peer.lock()
            && let Some(peer) = peer.as_mut()
            && peer.incarnation == announced.incarnation
        {
            peer.announced = announced;
        }
    }

    /// A node that turns its clients away because it goes has drained.
    pub(super) fn heard_goodbye(&self, cut: &Cut) {
        if let Cut::TurnedAway(refusal) = cut
            && refusal.code == RefusalCode::Draining
            && let Some(announced) = self.announced()
        {
            self.heard(Announced { draining: true, ..announced });
        }
    }
}
