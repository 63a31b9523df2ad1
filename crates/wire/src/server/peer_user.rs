//! Which user of this machine is at the other end.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, sockopt};
use rustix::process::Uid;

use crate::channel::wait_for;
use crate::deadline::Deadline;

/// The system answers at once; this is for one that does not.
const ANSWER: Duration = Duration::from_millis(500);

const REQUEST_BYTES: usize = 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
/// Where in the answer these are: behind a header of 16 bytes.
const STATE_AT: usize = 17;
const UID_AT: usize = 80;
const INODE_AT: usize = 84;

/// The number for all users without one of their own here, where nothing else is known.
const NOBODY: u32 = 65_534;

/// Of a peer over a Unix socket.
pub(super) fn of_unix(socket: impl AsFd) -> io::Result<Uid> {
    somebody(sockopt::socket_peercred(socket)?.uid)
}

/// Refuses the number that stands for many: in a user namespace that has not all users in it,
/// everybody outside would else be the node's own user, were it that one.
fn somebody(uid: Uid) -> io::Result<Uid> {
    static ANYBODY: OnceLock<Option<u32>> = OnceLock::new();
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let anybody = *ANYBODY.get_or_init(|| {
        anybody(&read("/proc/self/uid_map"), &read("/proc/sys/kernel/overflowuid"))
    });
    match anybody == Some(uid.as_raw()) {
        true => Err(io::Error::new(io::ErrorKind::NotFound, "its user has no number here")),
        false => Ok(uid),
    }
}

/// The number that users outside of a namespace with this map have in it; none: nobody is outside.
fn anybody(uid_map: &str, overflow: &str) -> Option<u32> {
    let counts =
        uid_map.lines().filter_map(|line| line.split_whitespace().nth(2)?.parse::<u64>().ok());
    let inside: u64 = counts.sum();
    let is_whole = inside >= u64::from(u32::MAX);
    (!is_whole).then(|| overflow.trim().parse().unwrap_or(NOBODY))
}

/// Of a peer over loopback: whoever made its socket. The system tells only of one that is still
/// open, so a peer that closed at once is nobody, not root.
pub(super) fn of_loopback(socket: impl AsFd) -> io::Result<Uid> {
    let gone = || io::Error::from(io::ErrorKind::NotConnected);
    let theirs = rustix::net::getpeername(&socket)?.ok_or_else(gone)?;
    let (theirs, ours) = (SocketAddr::try_from(theirs)?, rustix::net::getsockname(&socket)?);
    let ours = SocketAddr::try_from(ours)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    let asking = rustix::net::socket_with(family, kind, flags, Some(netlink::SOCK_DIAG))?;
    rustix::net::send(&asking, &request(theirs, ours), SendFlags::empty())?;
    if !wait_for(&asking, PollFlags::IN, Deadline::after(ANSWER))? {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut answer = [0; 512];
    let (bytes, _) = rustix::net::recv(&asking, &mut answer[..], RecvFlags::empty())?;
    user(&answer[..bytes])
}

/// Asks for the one socket of `theirs` that is connected to `ours`.
fn request(theirs: SocketAddr, ours: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut out = [0; REQUEST_BYTES];
    out[..4].copy_from_slice(&72u32.to_ne_bytes());
    out[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    out[6..8].copy_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    let (theirs_ip, ours_ip) = (theirs.ip().to_canonical(), ours.ip().to_canonical());
    out[16] = if theirs_ip.is_ipv4() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 };
    out[17] = IPPROTO_TCP;
    out[20..24].copy_from_slice(&u32::MAX.to_ne_bytes()); // sockets in any state
    out[24..26].copy_from_slice(&theirs.port().to_be_bytes());
    out[26..28].copy_from_slice(&ours.port().to_be_bytes());
    for (at, ip) in [(28, theirs_ip), (44, ours_ip)] {
        match ip {
            IpAddr::V4(ip) => out[at..at + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => out[at..at + 16].copy_from_slice(&ip.octets()),
        }
    }
    out[64..].fill(0xff); // no cookie
    out
}

fn user(answer: &[u8]) -> io::Result<Uid> {
    let u32_at = |at: usize| answer.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = answer.get(4..6).and_then(|kind| kind.try_into().ok()).map(u16::from_ne_bytes);
    let is_open = answer.get(STATE_AT) == Some(&TCP_ESTABLISHED) && u32_at(INODE_AT) != Some(0);
    match (kind, u32_at(UID_AT), u32_at(INODE_AT)) {
        (Some(SOCK_DIAG_BY_FAMILY), Some(uid), Some(_)) if is_open => somebody(Uid::from_raw(uid)),
        _ => Err(io::Error::new(io::ErrorKind::NotFound, "the system does not know its socket")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_stands_for_many_is_nobodys() {
        let whole = "         0          0 4294967295\n";
        assert_eq!(anybody(whole, "65534\n"), None, "everybody has a number");
        assert_eq!(anybody("0 100000 65536\n", "65534\n"), Some(65_534), "a container's");
        assert_eq!(anybody("0 1000 1\n1 100000 65535\n", "99\n"), Some(99), "two pieces");
        assert_eq!(anybody("", ""), Some(NOBODY), "where nothing is known");
        assert_eq!(somebody(Uid::ROOT).ok(), Some(Uid::ROOT));
    }
}
