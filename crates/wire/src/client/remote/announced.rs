//! What a node says of its share, kept for those who place on several nodes.

use std::sync::Arc;

use super::link::Cut;
use super::{ConnectConfig, ConnectError, Node, Remote};
use crate::client::stats::Counts;
use crate::client::transport::Announced;
use crate::messages::RefusalCode;

/// Of a node among several one silent deadline is enough: the others serve, and a thread asks for
/// it at once.
const FAILURES: u32 = 1;

impl Remote {
    /// The way to one node of several, which count together.
    pub(in crate::client) fn of_fleet(
        config: &ConnectConfig,
        counts: Arc<Counts>,
    ) -> Result<Remote, ConnectError> {
        Remote::with(config, counts, FAILURES)
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
