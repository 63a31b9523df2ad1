//! Looks about once a second whether the socket's name still leads to this node.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keepwarm_store::log::{self, Event};

use super::ServerError;
use super::node::Node;
use super::socket_file::SocketFile;

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(1);
/// Times in a row that binding the path again may fail: its folder may come back.
const TRIES: u32 = 3;

/// Keeps an eye on the name of a node's socket.
pub(super) struct Watch {
    file: Arc<SocketFile>,
    looked: Instant,
    failed: u32,
}

impl Watch {
    pub(super) fn new(file: Arc<SocketFile>) -> Watch {
        Watch { file, looked: Instant::now(), failed: 0 }
    }

    /// A new socket, if the name had to be bound again. Where it cannot be, the node is lost:
    /// clients that are connected go on, new ones never come.
    pub(super) fn look(&mut self, node: &Node) -> Option<OwnedFd> {
        if self.looked.elapsed() < PERIOD || node.lost().is_some() {
            return None;
        }
        self.looked = Instant::now();
        match self.file.restore() {
            None => self.failed = 0,
            Some(Ok(socket)) => {
                self.failed = 0;
                log::say(Event::SocketRebound, |line| {
                    line.text("path", node.config.path.display());
                });
                return Some(socket);
            }
            Some(Err(error)) => {
                self.failed += 1;
                // Another node there is there to stay.
                if self.failed >= TRIES || matches!(error, ServerError::InUse { .. }) {
                    log::say(Event::SocketLost, |line| {
                        line.text("path", node.config.path.display()).text("reason", &error);
                    });
                    node.lose(error.to_string());
                }
            }
        }
        None
    }
}
