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

#[test]
fn late_connections_do_not_hold_up_a_drain() {
    for round in 0..10 {
        let node = Node::start(16);
        let (path, over) = (&node.path, &AtomicBool::new(false));
        let some = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut peers = Vec::new();
                while peers.len() < 200 {
                    let Ok(stream) = UnixStream::connect(path) else { break };
                    let mut peer = Peer { stream, correlation: 1 };
                    let hello = peer.frame(1, 0, 0, &greeting(1, VERSION));
                    // The node may have ended it already.
                    let _ = peer.send_bytes(&hello);
                    peers.push(peer);
                    some.store(peers.len() > 20, Ordering::Release);
                }
                some.store(true, Ordering::Release);
                eventually("the drain is over", LONG, || over.load(Ordering::Acquire));
            });
            eventually("clients come", LONG, || some.load(Ordering::Acquire));
            let all_ended = node.server.as_ref().unwrap().drain(SECOND * 3);
            over.store(true, Ordering::Release);
            assert!(all_ended, "round {round}: no call was under way, and the drain waited");
        });
    }
}
