//! The first connection: what can never work is said at once, what may yet work is waited for.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;

use super::link::Cut;
use super::{ConnectError, Remote};
use crate::deadline::Deadline;
use crate::frames::Violation;
use crate::messages::RefusalCode;
use crate::socket_path::{PATH_BYTES_MAX, too_long};

impl Remote {
    /// Tries the node once. One that is not there is asked for in the background.
    ///
    /// # Errors
    /// What no waiting will change.
    pub(in crate::client) fn connect_first(&self, until: Deadline) -> Result<(), ConnectError> {
        let config = &self.node.config;
        let path = config.path.clone();
        if !(1..=64).contains(&config.connections_max) {
            let (setting, want) = ("connections_max", "1 to 64");
            let found = config.connections_max.to_string();
            return Err(ConnectError::Config { setting, found, want });
        }
        if let Some(bytes) = too_long(&path) {
            return Err(ConnectError::PathTooLong { path, bytes, max: PATH_BYTES_MAX });
        }
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.file_type().is_socket()) {
            return Err(ConnectError::NotASocket { path });
        }
        let cut = match self.node.open(until) {
            Ok(link) => {
                self.node.pool.offer(link);
                return Ok(());
            }
            Err(cut) => cut,
        };
        match cut {
            Cut::Unreachable(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(ConnectError::Denied { path, problem: error.to_string() })
            }
            Cut::TurnedAway(refusal) if refusal.code == RefusalCode::Peer => {
                Err(ConnectError::Denied { path, problem: refusal.text })
            }
            Cut::TurnedAway(refusal) if refusal.code == RefusalCode::Version => {
                Err(ConnectError::Version { path, problem: refusal.text })
            }
            Cut::Violation(violation @ (Violation::Magic | Violation::Version { .. })) => {
                Err(ConnectError::Version { path, problem: violation.to_string() })
            }
            // It is there; the next call connects.
            Cut::Busy { .. } => Ok(()),
            cut => {
                self.node.breaker.failed(cut.to_string(), true);
                self.node.breaker.watch(&self.node);
                Ok(())
            }
        }
    }
}
