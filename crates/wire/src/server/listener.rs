//! Who is let in, and which connections there are.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use keepwarm_store::log::{self, Event};
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};

use super::access::Guest;
use super::conversation::{GOING_DOWN, serve_guest};
use super::counts::add;
use super::doors::{Door, knocked};
use super::greeting::refusal;
use super::node::{Node, Phase};
use super::principals::Shown;
use super::socket_file::SocketFile;
use super::told::{about_peer, say_refused};
use super::watch::Watch;
use crate::address::Address;
use crate::channel::{Channel, Socket};
use crate::deadline::Deadline;
use crate::frames::VERSION;
use crate::messages::RefusalCode;
use crate::tls::{TlsStream, distrust_in};

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
    /// Who it is, once that is known.
    guest: OnceLock<Guest>,
    /// Whether the system told of somebody who may come in.
    is_expected: bool,
}

impl Entry {
    /// Whether nothing is known of it yet: it may be anybody, and may never say a word.
    fn is_stranger(&self) -> bool {
        !self.is_expected && !self.guest.get().is_some_and(Guest::is_let_in)
    }
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
        let under_tls = matches!(door.address, Address::Tls { .. });
        let guest = (!under_tls).then(|| Guest::local(&door.address, &peer));
        let hopeless = guest.as_ref().and_then(|guest| guest.hopeless(&self.node.access()));
        if let Some(text) = hopeless {
            add(&self.node.counts.refused_peers, 1);
            let _about = about_peer(&peer);
            say_refused(Event::ConnectionRefused, &text);
            return turn_away(door, &peer, RefusalCode::Peer, text);
        }
        let clients_max = self.node.config.clients_max;
        if self.connections() >= clients_max && !self.make_place() {
            add(&self.node.counts.refused_clients, 1);
            let text = format!(
                "all {clients_max} places for clients are taken: close some, or raise clients_max"
            );
            let _about = about_peer(&peer);
            say_refused(Event::ConnectionRefused, &text);
            return turn_away(door, &peer, RefusalCode::Clients, text);
        }
        let Ok(socket) = door.socket(peer) else { return };
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let is_expected =
            guest.as_ref().is_some_and(|guest| guest.is_expected(&self.node.access()));
        let guest = guest.map_or_else(OnceLock::new, OnceLock::from);
        let (fd, busy) = (socket.shared(), AtomicBool::new(false));
        let entry = Arc::new(Entry { fd, busy, guest, is_expected });
        self.entries.lock().insert(number, entry.clone());
        add(&self.node.counts.connections, 1);
        let place = Place { listener: self.clone(), number };
        if self.node.phase() != Phase::Serving {
            // It may have come too late for the end of all idle ones.
            return turn_away(door, &entry.fd, RefusalCode::Draining, String::from(GOING_DOWN));
        }
        let builder = Builder::new().name(format!("keepwarm-{number}")).stack_size(STACK_BYTES);
        let spawned = builder.spawn(move || run(&place, socket, &entry));
        if spawned.is_err() {
            // The closure is gone, and with it the place and the socket: the peer sees an end.
            std::thread::sleep(BREATHER);
        }
    }

    /// Ends the oldest stranger, so that those who never say who they are cannot keep out others,
    /// not for the time of a handshake either. False: all places are of peers that were let in.
    fn make_place(&self) -> bool {
        let mut entries = self.entries.lock();
        let strangers = entries.iter().filter(|(_, entry)| entry.is_stranger());
        let Some(oldest) = strangers.map(|(number, _)| *number).min() else { return false };
        let ended = entries.remove(&oldest);
        drop(entries);
        if let Some(entry) = ended {
            // Its thread waits for nothing else, and finds the stream ended.
            let _ = rustix::net::shutdown(&entry.fd, Shutdown::Both);
            let _about = about_peer(&entry.fd);
            let text = "its place was needed before it had said who it is";
            say_refused(Event::ConnectionRefused, &text);
        }
        add(&self.node.counts.refused_clients, 1);
        true
    }

    pub(super) fn connections(&self) -> usize {
        self.entries.lock().len()
    }

    /// Ends the connections on which no call is under way.
    pub(super) fn end_idle(&self) {
        self.end(|entry| !entry.busy.load(Ordering::SeqCst));
    }

    /// Ends the connections of those who would not be let in now.
    pub(super) fn end_unwelcome(&self) {
        let access = self.node.access();
        self.end(|entry| entry.guest.get().is_some_and(|guest| !guest.may_stay(&access)));
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
    if let Some(guest) = entry.guest.get() {
        converse(node, &mut socket, guest, entry);
        return add(&node.counts.system_calls, socket.take_system_calls());
    }
    let Some(mut stream) = under_tls(node, socket) else { return };
    let shown = stream.peer_certificates().map_or(Shown::Nothing, Shown::Certificate);
    let guest = entry.guest.get_or_init(|| Guest::new("tls", shown));
    converse(node, &mut stream, guest, entry);
    add(&node.counts.system_calls, stream.take_system_calls());
}

fn converse(node: &Node, channel: &mut impl Channel, guest: &Guest, entry: &Entry) {
    serve_guest(node, channel, guest, &|busy| entry.busy.store(busy, Ordering::SeqCst));
}

/// The handshake of TLS. None: it failed, and the peer was told why as far as it listens.
fn under_tls(node: &Node, socket: Socket) -> Option<TlsStream> {
    let access = node.access();
    let until = Deadline::after(node.config.handshake);
    match TlsStream::accept(socket, access.tls.as_ref()?, until) {
        Ok(stream) => Some(stream),
        Err(error) => {
            add(&node.counts.refused_tls, 1);
            match distrust_in(&error) {
                Some(distrust) => say_refused(Event::ConnectionRefused, distrust),
                None => say_refused(Event::Disconnected, &error),
            }
            None
        }
    }
}

/// One frame, if the socket takes it without waiting. Under TLS nothing: before a handshake no word
/// of ours could be told from anybody's, and plain text would look like a node without TLS.
fn turn_away(door: &Door, peer: &OwnedFd, code: RefusalCode, text: String) {
    if matches!(door.address, Address::Tls { .. }) {
        return;
    }
    let frame = refusal(VERSION, 0, code, text);
    let _ = rustix::net::send(peer, &frame, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}
