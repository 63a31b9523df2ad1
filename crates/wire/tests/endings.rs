//! How a node ends, and what it leaves of others.

mod support;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use keepwarm_wire::frames::VERSION;
use keepwarm_wire::{Server, ServerConfig};

use support::peer::{Peer, greeting};
use support::{LONG, Node, SECOND, eventually, store};

/// Whether a socket of this name is still open somewhere; the name itself may be gone.
fn is_open(path: &Path) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    sockets.lines().any(|line| line.ends_with(&*path.to_string_lossy()))
}

#[test]
fn a_drained_node_leaves_the_next_ones_socket_alone() {
    for round in 0..10 {
        let mut node = Node::start(16);
        assert!(node.server.as_ref().unwrap().drain(LONG));
        // Only then may the system give the inode's number to another socket.
        eventually("its socket is closed", LONG, || !is_open(&node.path));
        let next = Server::start(store(16), ServerConfig::new(&node.path)).unwrap();
        node.server.take().unwrap().stop();
        assert!(node.path.exists(), "round {round}: the next node's socket is gone");
        drop(next);
    }
}

#[test]
fn a_start_takes_no_live_socket_at_a_neighbouring_name() {
    let node = Node::start(16);
    let neighbours = ["node.soc~", "node.soc#"].map(|name| node.scratch(name));
    let _live = neighbours.clone().map(|path| UnixListener::bind(path).unwrap());
    let mut node = node;
    node.server.take().unwrap().stop();
    let _server = Server::start(store(16), ServerConfig::new(&node.path)).unwrap();
    for path in &neighbours {
        assert!(UnixStream::connect(path).is_ok(), "{} was taken", path.display());
    }
}
