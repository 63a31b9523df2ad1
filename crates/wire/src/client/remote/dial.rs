//! Getting a connected socket, within the deadline.
//!
//! Numeric hosts connect at once. A name is looked up by a thread of its own, because the system's
//! resolver knows no deadline; there is one such thread at most, and what it found serves all calls
//! for [`KEPT_FOR`].

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::link::Cut;
use super::way::Way;
use crate::address::{Address, is_loopback};
use crate::channel::{Socket, wait_for};
use crate::client::ConnectConfig;
use crate::credentials::Credentials;
use crate::deadline::Deadline;
use crate::tls::{FilesError, TlsStream, Watched};

/// Pause before connecting again to a node whose queue of connections is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(5);
/// How long a name's addresses are taken for true.
const KEPT_FOR: Duration = Duration::from_secs(30);
/// Addresses of one name that are tried.
const ADDRESSES_MAX: usize = 8;
const STACK_BYTES: usize = 256 << 10;

/// What it takes to reach a node.
pub(super) struct Dialer {
    names: Arc<Names>,
    tls: Option<Watched>,
    /// Whether a token is shown: then never in plain text to another machine.
    has_token: bool,
}

#[derive(Default)]
struct Names {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    found: Option<(Vec<SocketAddr>, Instant)>,
    failed: Option<(io::ErrorKind, String)>,
    asking: bool,
}

impl Names {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Dialer {
    /// For connections as `config` says; nothing is read or asked yet.
    pub(super) fn new(config: &ConnectConfig) -> Dialer {
        let Credentials { files, token } = &config.credentials;
        let under_tls = matches!(config.address, Address::Tls { .. });
        let tls = under_tls.then(|| Watched::new(files.clone()));
        Dialer { names: Arc::default(), tls, has_token: token.is_some() }
    }

    /// Reads what TLS needs, if it is needed.
    pub(super) fn check(&self) -> Result<(), FilesError> {
        self.tls.as_ref().map_or(Ok(()), |tls| tls.now().map(drop))
    }

    /// A connection, under TLS where the address says so.
    pub(super) fn dial(&self, address: &Address, until: Deadline) -> Result<Way, Cut> {
        match address {
            Address::Unix(path) => Ok(Way::Plain(dial_unix(path, until)?)),
            Address::Tcp { host, port } => Ok(Way::Plain(self.dial_host(host, *port, until)?)),
            Address::Tls { host, port } => {
                let untrusted = |error: FilesError| Cut::Untrusted(error.to_string());
                let tls = self.tls.as_ref().map(Watched::now).transpose().map_err(untrusted)?;
                let tls = tls.ok_or_else(|| Cut::Untrusted(String::from("no CA is given")))?;
                let socket = self.dial_host(host, *port, until)?;
                Ok(Way::Tls(Box::new(TlsStream::connect(socket, &tls, host, until)?)))
            }
        }
    }

    fn dial_host(&self, host: &str, port: u16, until: Deadline) -> Result<Socket, Cut> {
        if let Ok(host) = host.parse::<IpAddr>() {
            return self.dial_tcp(SocketAddr::new(host, port), until);
        }
        let mut last = Cut::Unreachable(io::ErrorKind::NotFound.into());
        let addresses = self.addresses(host, port, until)?;
        for (tried, address) in addresses.iter().enumerate() {
            // Each gets its share of the time that is left, so that a dead first one is not all.
            let left = until.left().ok_or(Cut::Deadline)?;
            let others = u32::try_from(addresses.len() - tried).unwrap_or(1);
            match self.dial_tcp(*address, Deadline::after(left / others).min(until)) {
                Ok(socket) => return Ok(socket),
                Err(cut) => last = cut,
            }
        }
        self.names.lock().found = None;
        Err(last)
    }

    fn dial_tcp(&self, address: SocketAddr, until: Deadline) -> Result<Socket, Cut> {
        if self.has_token && self.tls.is_none() && !is_loopback(address.ip()) {
            let problem = "a token is not shown to another machine in plain text: use tls://";
            return Err(Cut::Untrusted(String::from(problem)));
        }
        dial_tcp(address, until)
    }

    fn addresses(&self, host: &str, port: u16, until: Deadline) -> Result<Vec<SocketAddr>, Cut> {
        let mut state = self.names.lock();
        if let Some((found, at)) = &state.found
            && at.elapsed() < KEPT_FOR
        {
            return Ok(found.clone());
        }
        state.found = None;
        if !state.asking {
            state.failed = None;
            let (names, host) = (self.names.clone(), host.to_owned());
            let builder = std::thread::Builder::new().name(String::from("keepwarm-names"));
            let spawned = builder.stack_size(STACK_BYTES).spawn(move || names.ask(&host, port));
            spawned.map_err(Cut::Stream)?;
            state.asking = true;
        }
        loop {
            if let Some((found, _)) = &state.found {
                return Ok(found.clone());
            }
            if let Some((kind, problem)) = &state.failed {
                return Err(Cut::Unreachable(io::Error::new(*kind, problem.clone())));
            }
            let left = until.left().ok_or(Cut::Deadline)?;
            let waited = self.names.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Names {
    fn ask(&self, host: &str, port: u16) {
        let found = (host, port).to_socket_addrs();
        let mut state = self.lock();
        state.asking = false;
        match found.map(|found| found.take(ADDRESSES_MAX).collect::<Vec<_>>()) {
            Ok(found) if !found.is_empty() => state.found = Some((found, Instant::now())),
            Ok(_) => {
                let problem = format!("{host} has no address");
                state.failed = Some((io::ErrorKind::NotFound, problem));
            }
            Err(error) => state.failed = Some((error.kind(), format!("{host}: {error}"))),
        }
        self.changed.notify_all();
    }
}

fn socket(family: AddressFamily) -> Result<OwnedFd, Cut> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .map_err(|error| Cut::Stream(error.into()))
}

fn dial_unix(path: &Path, until: Deadline) -> Result<Socket, Cut> {
    let address =
        SocketAddrUnix::new(path).map_err(|error| Cut::Unreachable(io::Error::from(error)))?;
    let fd = socket(AddressFamily::UNIX)?;
    loop {
        match rustix::net::connect(&fd, &address) {
            Ok(()) => return Ok(Socket::unix(fd)?),
            Err(Errno::INTR) => {}
            // The node's queue is full; nothing tells when it no longer is.
            Err(Errno::AGAIN) => {
                let Some(left) = until.left() else { return Err(Cut::Deadline) };
                // Not by a poll: to it a socket that is not connected has hung up.
                std::thread::sleep(left.min(QUEUE_PAUSE));
            }
            Err(error) => return Err(Cut::Unreachable(error.into())),
        }
    }
}

fn dial_tcp(address: SocketAddr, until: Deadline) -> Result<Socket, Cut> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = socket(family)?;
    match rustix::net::connect(&fd, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            if !wait_for(&fd, PollFlags::OUT, until)? {
                return Err(Cut::Deadline);
            }
            let outcome = rustix::net::sockopt::socket_error(&fd).and_then(|outcome| outcome);
            outcome.map_err(|error| Cut::Unreachable(error.into()))?;
        }
        Err(error) => return Err(Cut::Unreachable(error.into())),
    }
    Ok(Socket::tcp(fd)?)
}
