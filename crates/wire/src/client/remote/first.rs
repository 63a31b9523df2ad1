//! The first connection: what can never work is said at once, what may yet work is waited for.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::link::Cut;
use super::{ConnectError, Remote};
use crate::address::Address;
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
        let address = config.address.clone();
        if !(1..=64).contains(&config.connections_max) {
            let (setting, want) = ("connections_max", "1 to 64");
            let found = config.connections_max.to_string();
            return Err(ConnectError::Config { setting, found, want });
        }
        if !(1..=16).contains(&config.stripes) {
            let (setting, want) = ("stripes", "1 to 16");
            let found = config.stripes.to_string();
            return Err(ConnectError::Config { setting, found, want });
        }
        if let Address::Unix(path) = &address {
            check_path(path)?;
        }
        self.node.dialer.check()?;
        let cut = match self.node.open(until) {
            Ok(link) => {
                self.node.pool.offer(link);
                return Ok(());
            }
            Err(cut) => cut,
        };
        match cut {
            Cut::Unreachable(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(ConnectError::Denied { address, problem: format!("run as its user, {error}") })
            }
            Cut::TurnedAway(refusal) if refusal.code == RefusalCode::Peer => {
                Err(ConnectError::Denied { address, problem: refusal.text })
            }
            Cut::TurnedAway(refusal) if refusal.code == RefusalCode::Version => {
                Err(ConnectError::Version { address, problem: refusal.text })
            }
            Cut::Violation(violation @ (Violation::Magic | Violation::Version { .. })) => {
                Err(ConnectError::Version { address, problem: violation.to_string() })
            }
            Cut::Untrusted(problem) => Err(ConnectError::Untrusted { address, problem }),
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

fn check_path(path: &Path) -> Result<(), ConnectError> {
    let path = path.to_owned();
    if let Some(bytes) = too_long(&path) {
        return Err(ConnectError::PathTooLong { path, bytes, max: PATH_BYTES_MAX });
    }
    match fs::metadata(&path) {
        Ok(found) if !found.file_type().is_socket() => Err(ConnectError::NotASocket { path }),
        _ => Ok(()),
    }
}
