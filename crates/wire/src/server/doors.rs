//! Where peers come in: the Unix socket, and TCP where it is asked for.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::ServerError;
use crate::address::{Address, is_loopback};
use crate::channel::Socket;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Addresses beside the Unix socket, at most.
pub(super) const LISTEN_MAX: usize = 15;

/// A listening socket.
pub(super) struct Door {
    fd: OwnedFd,
    /// With the port that the system chose, where it did.
    pub(super) address: Address,
}

impl Door {
    /// The door of a Unix socket that listens already.
    pub(super) fn unix(fd: OwnedFd, address: Address) -> Door {
        Door { fd, address }
    }

    /// Binds and listens on TCP.
    pub(super) fn tcp(address: &Address) -> Result<Door, ServerError> {
        let failed = |action| {
            move |source: io::Error| ServerError::Listen {
                action,
                address: address.clone(),
                source,
            }
        };
        let (host, port) = address.host_and_port().ok_or_else(|| ServerError::Config {
            setting: "listen",
            found: address.to_string(),
            want: "tcp://host:port or tls://host:port; the socket's path is a setting of its own",
        })?;
        let place = resolve(host, port).map_err(failed("find"))?;
        if matches!(address, Address::Tcp { .. }) && !is_loopback(place.ip()) {
            return Err(ServerError::Exposed { address: address.clone() });
        }
        let fd = bind_and_listen(place).map_err(failed("listen on"))?;
        let bound =
            rustix::net::getsockname(&fd).map_err(|error| failed("ask for")(error.into()))?;
        let port = SocketAddr::try_from(bound).map_or(port, |bound| bound.port());
        Ok(Door { fd, address: address.at_port(port) })
    }

    /// A peer that wants in, if there still is one.
    pub(super) fn accept(&self) -> Result<OwnedFd, Errno> {
        rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC)
    }

    /// The socket of a peer that came in here.
    pub(super) fn socket(&self, peer: OwnedFd) -> io::Result<Socket> {
        match self.address {
            Address::Unix(_) => Socket::unix(peer),
            Address::Tcp { .. } | Address::Tls { .. } => Socket::tcp(peer),
        }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Which doors a peer stands at, within `wait`; none after an interruption either.
pub(super) fn knocked(doors: &[Door], wait: Duration) -> Vec<usize> {
    let mut fds: Vec<_> = doors.iter().map(|door| PollFd::new(door, PollFlags::IN)).collect();
    let timeout = Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) => (0..fds.len()).filter(|place| !fds[*place].revents().is_empty()).collect(),
        Err(_) => Vec::new(),
    }
}

/// The first of a name's addresses. Blocks as long as the system's resolver does: at start only.
fn resolve(host: &str, port: u16) -> io::Result<SocketAddr> {
    if let Ok(host) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(host, port));
    }
    (host, port).to_socket_addrs()?.next().ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn bind_and_listen(place: SocketAddr) -> io::Result<OwnedFd> {
    let family = if place.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    // A restarted node need not wait for the connections of its predecessor to be forgotten.
    sockopt::set_socket_reuseaddr(&fd, true)?;
    rustix::net::bind(&fd, &place)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}
