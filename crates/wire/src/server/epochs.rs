//! Epochs: a larger one is acknowledged when the leases and reads of smaller ones have ended.

use std::time::Duration;

use keepwarm_store::StoreError;
use keepwarm_store::types::{Epoch, NamespaceId};

use super::conversation::{Conversation, LOOK_UP};
use super::ending::Ending;
use super::node::Phase;
use crate::channel::Channel;
use crate::deadline::Deadline;
use crate::figures::clock_after;
use crate::frames::Opcode;
use crate::messages::{EpochReply, EpochRequest, RefusalCode};

/// Longest that one epoch request may occupy its connection.
const EPOCH_WAIT_MAX: Duration = Duration::from_secs(60);

impl<C: Channel> Conversation<'_, C> {
    pub(super) fn epoch(&mut self, request: EpochRequest) -> Result<(), Ending> {
        let wait = Duration::from_millis(request.wait_ms.into()).min(EPOCH_WAIT_MAX);
        let until = Deadline::after(wait);
        match self.session.bump_epoch(request.namespace, request.epoch) {
            Ok(epoch) => {
                let quiet = self.wait_quiet(request.namespace, epoch, until)?;
                self.reply(Opcode::Epoch, &EpochReply { epoch, quiet })
            }
            Err(error) => {
                let code = match error {
                    StoreError::NotAttached(_) => RefusalCode::Namespace,
                    _ => RefusalCode::Failed,
                };
                self.refuse(Opcode::Epoch as u8, code, error.to_string())
            }
        }
    }

    /// Whether all leases of smaller epochs end in time; looks up for a peer or server that left.
    fn wait_quiet(
        &self,
        namespace: NamespaceId,
        epoch: Epoch,
        until: Deadline,
    ) -> Result<bool, Ending> {
        loop {
            let left = until.left().unwrap_or_default();
            let look_up = clock_after(left.min(LOOK_UP));
            if self.session.wait_epoch_quiet(namespace, epoch, look_up) {
                return Ok(true);
            }
            if until.passed() {
                return Ok(false);
            }
            if self.node.phase() == Phase::Stopped || !self.channel.peer_is_there() {
                return Err(Ending::Closed);
            }
        }
    }
}
