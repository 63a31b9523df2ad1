//! A proxy between a client and a node that damages the stream at given bytes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToNode,
    ToClient,
}

/// What happens to every connection, counted in bytes of one way of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// Both ways end before this byte.
    Cut(Way, u64),
    /// The way goes silent before this byte; the other one goes on.
    Silence(Way, u64),
    /// This byte is changed by this mask.
    Flip(Way, u64, u8),
}

struct Shared {
    fault: Mutex<Fault>,
    /// Closed: nothing passes towards the client.
    gate: Mutex<bool>,
    opened: Condvar,
    passed: [AtomicU64; 2],
    over: AtomicBool,
    streams: Mutex<Vec<UnixStream>>,
}

/// A listening proxy; ends with its connections when dropped.
pub struct Proxy {
    /// Where it listens, before a socket.
    pub path: PathBuf,
    /// Where it listens, before a port.
    pub port: u16,
    shared: Arc<Shared>,
    wake: Box<dyn Fn() + Send + Sync>,
}

enum Proxied {
    Path(PathBuf),
    Port(u16),
}

/// Both kinds of sockets read and write alike.
fn alike(stream: TcpStream) -> UnixStream {
    stream.set_nodelay(true).expect("a live socket");
    UnixStream::from(OwnedFd::from(stream))
}

impl Proxy {
    /// Before a node's socket.
    pub fn start(path: PathBuf, node: &Path) -> Proxy {
        let listener = UnixListener::bind(&path).expect("a free path");
        let (node, wake) = (node.to_owned(), path.clone());
        Proxy::between(
            Proxied::Path(path),
            move || listener.accept().map(|(client, _)| client),
            move || UnixStream::connect(&node),
            Box::new(move || drop(UnixStream::connect(&wake))),
        )
    }

    /// Before a node's port on this machine.
    pub fn before_port(node: u16) -> Proxy {
        let listener = TcpListener::bind(("localhost", 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        Proxy::between(
            Proxied::Port(port),
            move || listener.accept().map(|(client, _)| alike(client)),
            move || TcpStream::connect(("localhost", node)).map(alike),
            Box::new(move || drop(TcpStream::connect(("localhost", port)))),
        )
    }

    fn between(
        proxied: Proxied,
        accept: impl Fn() -> io::Result<UnixStream> + Send + 'static,
        connect: impl Fn() -> io::Result<UnixStream> + Send + 'static,
        wake: Box<dyn Fn() + Send + Sync>,
    ) -> Proxy {
        let shared = Arc::new(Shared {
            fault: Mutex::new(Fault::None),
            gate: Mutex::new(true),
            opened: Condvar::new(),
            passed: Default::default(),
            over: AtomicBool::new(false),
            streams: Mutex::new(Vec::new()),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            loop {
                let client = accept();
                if accepting.over.load(Ordering::Acquire) {
                    return;
                }
                let (Ok(client), Ok(node)) = (client, connect()) else { continue };
                join(&accepting, client, node);
            }
        });
        let (path, port) = match proxied {
            Proxied::Path(path) => (path, 0),
            Proxied::Port(port) => (PathBuf::new(), port),
        };
        Proxy { path, port, shared, wake }
    }

    /// For connections made from now on.
    pub fn fault(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
    }

    /// Holds back everything towards clients.
    pub fn close_gate(&self) {
        *self.shared.gate.lock().unwrap() = false;
    }

    pub fn open_gate(&self) {
        *self.shared.gate.lock().unwrap() = true;
        self.shared.opened.notify_all();
    }

    /// Bytes that passed this way on all connections since the last call.
    pub fn take_passed(&self, way: Way) -> u64 {
        self.shared.passed[way as usize].swap(0, Ordering::AcqRel)
    }

    /// Bytes that passed this way so far.
    pub fn passed(&self, way: Way) -> u64 {
        self.shared.passed[way as usize].load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.open_gate();
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the accepting thread.
        (self.wake)();
    }
}

fn join(shared: &Arc<Shared>, client: UnixStream, node: UnixStream) {
    let fault = *shared.fault.lock().unwrap();
    let copy = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
    {
        let mut streams = shared.streams.lock().unwrap();
        if streams.len() > 64 {
            streams.clear();
        }
        streams.extend([copy(&client), copy(&node)]);
    }
    for (way, from, to) in
        [(Way::ToNode, copy(&client), copy(&node)), (Way::ToClient, copy(&node), copy(&client))]
    {
        let shared = shared.clone();
        std::thread::spawn(move || pass(&shared, way, fault, from, to));
    }
}

fn pass(shared: &Shared, way: Way, fault: Fault, mut from: UnixStream, mut to: UnixStream) {
    let mut at = 0u64;
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if way == Way::ToClient {
            let mut open = shared.gate.lock().unwrap();
            while !*open {
                open = shared.opened.wait(open).unwrap();
            }
        }
        let end = at + read as u64;
        let mut through = read;
        match fault {
            Fault::Flip(on, byte, mask) if on == way && (at..end).contains(&byte) => {
                buffer[(byte - at) as usize] ^= mask;
            }
            // Beyond the silent byte everything is still taken, and nothing passed on.
            Fault::Cut(on, byte) | Fault::Silence(on, byte) if on == way && byte < end => {
                through = byte.saturating_sub(at) as usize;
            }
            _ => {}
        }
        // Counted first: whoever has received them finds them counted.
        shared.passed[way as usize].fetch_add(through as u64, Ordering::AcqRel);
        let passed = to.write_all(&buffer[..through]).is_ok();
        if !passed || (through < read && matches!(fault, Fault::Cut(..))) {
            break;
        }
        at = end;
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
