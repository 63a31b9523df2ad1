//! Who is let in, and which connections there are.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use keepwarm_store::log::{self, Event};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::conversation::{GOING_DOWN, refusal, serve};
use super::counts::add;
use super::doors::{Door, knocked};
use super::node::{Node, Phase};
use super::peer_user;
use super::socket_file::SocketFile;
use super::told::{about_peer, say_refused};
use super::watch::Watch;
use crate::address::Address;
use crate::channel::Socket;
use crate::deadline::Deadline;
use crate::frames::VERSION;
use crate::messages::RefusalCode;

/// How soon the accepting thread notices that the server goes down.
const LOOK_UP: Duration = Duration::from_millis(100);
/// Pause after the system had no descriptor or thread to give.
const BREATHER: Duration = Duration::from_millis(50);
/// Stack of a connection's thread: nothing on it is larger than a few KiB.
const STACK_BYTES: usize = 256 << 10;

/// One connection, for other threads to end.
struct Entry {
    fd: Arc<OwnedFd>,
    /// Whether a call is under way.
    busy: AtomicBool,
}

/// The node and its connections.
pub(super) struct Listener {
    pub(super) node: Node,
    entries: Mutex<HashMap<u64, Arc<Entry>>>,
    emptier: Condvar,
    next: AtomicU64,
}

impl Listener {
    pub(super) fn new(node: Node) -> Listener {
        let (entries, emptier) = (Mutex::new(HashMap::new()), Condvar::new());
        Listener { node, entries, emptier, next: AtomicU64::new(0) }
    }

    /// Accepts until the node stops serving; then the doors close. The first is the socket's.
    pub(super) fn start(
        self: Arc<Self>,
        file: Arc<SocketFile>,
        mut doors: Vec<Door>,
    ) -> io::Result<JoinHandle<()>> {
        let builder = Builder::new().name(String::from("keepwarm-accept"));
        builder.stack_size(STACK_BYTES).spawn(move || {
            let mut watch = Watch::new(file);
            while self.node.phase() == Phase::Serving {
                self.node.sessions.end_over();
                if let Some(bound) = watch.look(&self.node) {
                    // Who is still in the old one's queue came for this node.
                    while self.accept(&doors[0]) {}
                    doors[0] = Door::unix(bound, doors[0].address.clone());
                }
                for place in knocked(&doors, LOOK_UP) {
                    self.accept(&doors[place]);
                }
            }
        })
    }

    /// Takes one peer in. False: none waits.
    fn accept(self: &Arc<Self>, door: &Door) -> bool {
        match door.accept() {
            Ok(peer) => self.admit(door, peer),
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(_) => {
                std::thread::sleep(BREATHER);
                return false;
            }
        }
        true
    }

    /// Starts a thread for a peer, or says why not.
    fn admit(self: &Arc<Self>, door: &Door, peer: OwnedFd) {
        add(&self.node.counts.accepted, 1);
        if let Err(text) = may_use(&door.address, &peer) {
            add(&self.node.counts.refused_peers, 1);
            let _about = about_peer(&peer);
            say_refused(Event::ConnectionRefused, &text);
            return turn_away(&peer, RefusalCode::Peer, text);
        }
        let clients_max = self.node.config.clients_max;
        if self.connections() >= clients_max {
            add(&self.node.counts.refused_clients, 1);
            let text = format!(
                "all {clients_max} places for clients are taken: close some, or raise clients_max"
            );
            let _about = about_peer(&peer);
            say_refused(Event::ConnectionRefused, &text);
            return turn_away(&peer, RefusalCode::Clients, text);
        }
        let Ok(socket) = door.socket(peer) else { return };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry { fd: socket.shared(), busy: AtomicBool::new(false) });
        self.entries.lock().insert(number, entry.clone());
        add(&self.node.counts.connections, 1);
        let place = Place { listener: self.clone(), number };
        if self.node.phase() != Phase::Serving {
            // It may have come too late for the end of all idle ones.
            return turn_away(&entry.fd, RefusalCode::Draining, String::from(GOING_DOWN));
        }
        let builder = Builder::new().name(format!("keepwarm-{number}")).stack_size(STACK_BYTES);
        let spawned = builder.spawn(move || run(&place, socket, &entry));
        if spawned.is_err() {
            // The closure is gone, and with it the place and the socket: the peer sees an end.
            std::thread::sleep(BREATHER);
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.entries.lock().len()
    }

    /// Ends the connections on which no call is under way.
    pub(super) fn end_idle(&self) {
        self.end(|entry| !entry.busy.load(Ordering::SeqCst));
    }

    /// Ends all connections.
    pub(super) fn end_all(&self) {
        self.end(|_| true);
    }

    fn end(&self, which: impl Fn(&Entry) -> bool) {
        for entry in self.entries.lock().values().filter(|entry| which(entry)) {
            // One that has ended already is what is wanted.
            let _ = rustix::net::shutdown(&entry.fd, Shutdown::Both);
        }
    }

    /// True: no connection is left.
    pub(super) fn wait_until_empty(&self, until: Deadline) -> bool {
        let mut entries = self.entries.lock();
        while !entries.is_empty() {
            if self.emptier.wait_until(&mut entries, until.instant()).timed_out() {
                return entries.is_empty();
            }
        }
        true
    }
}

/// A connection's place among the others; given back even if its thread panics.
struct Place {
    listener: Arc<Listener>,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.listener.entries.lock().remove(&self.number);
        let connections = &self.listener.node.counts.connections;
        connections.fetch_sub(1, Ordering::Relaxed);
        self.listener.emptier.notify_all();
    }
}

fn run(place: &Place, mut socket: Socket, entry: &Entry) {
    let node = &place.listener.node;
    let _about = about_peer(&entry.fd);
    log::say(Event::Connected, |_| {});
    serve(node, &mut socket, &|busy| entry.busy.store(busy, Ordering::SeqCst));
    add(&node.counts.system_calls, socket.take_system_calls());
}

/// The node's own user, or root.
fn may_use(address: &Address, peer: &OwnedFd) -> Result<(), String> {
    let ours = rustix::process::geteuid();
    let theirs = match address {
        Address::Unix(_) => peer_user::of_unix(peer),
        Address::Tcp { .. } | Address::Tls { .. } => peer_user::of_loopback(peer),
    };
    match theirs {
        Ok(theirs) if theirs == ours || theirs.is_root() => Ok(()),
        Ok(theirs) => Err(format!(
            "user {} may not use the node of user {}: run as that user",
            theirs.as_raw(),
            ours.as_raw()
        )),
        Err(error) => Err(format!("the peer's user is unknown: {error}")),
    }
}

/// One frame, if the socket takes it without waiting.
fn turn_away(peer: &OwnedFd, code: RefusalCode, text: String) {
    let frame = refusal(VERSION, 0, code, text);
    let _ = rustix::net::send(peer, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
