//! A two-way stream of bytes on which no wait is without an end.
//!
//! The one implementation that serves is [`Socket`]: non-blocking calls, with a `poll` up to the
//! deadline when there is nothing to do. The calling thread moves the bytes itself, at most
//! [`STEP_BYTES`] at a time, so that once a call has returned nothing of ours can still write its
//! buffers.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::deadline::Deadline;
use crate::raw;

/// Most bytes that one system call moves; the deadline is looked at in between.
pub const STEP_BYTES: usize = 1 << 20;

/// Bytes asked for of each socket's kernel buffers; the system may give less.
const BUFFER_BYTES: usize = 1 << 20;

/// After how long a silent TCP peer is taken for gone.
const VANISHED: Duration = Duration::from_secs(16);

/// Most bytes that a wait on TCP waits for: a quarter of a step, which is still in the core's cache
/// when it is hashed. Without it a receiver that is faster than its peer is woken for every 50 KiB,
/// at a third of its processor time.
const GATHER_BYTES: usize = STEP_BYTES / 4;

/// A two-way stream of bytes.
pub trait Channel {
    /// Receives at least one byte into `to`, in order. 0: the peer has ended the stream.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; what the system says.
    fn receive(&mut self, to: &mut [IoSliceMut<'_>], until: Deadline) -> io::Result<usize>;

    /// Sends at least one byte of `from`, in order.
    ///
    /// # Errors
    /// `TimedOut` at the deadline; what the system says.
    fn send(&mut self, from: &[IoSlice<'_>], until: Deadline) -> io::Result<usize>;

    /// Whether the peer is still there, as far as can be told without waiting.
    fn peer_is_there(&self) -> bool;

    /// Waits until there is something to receive, or the stream has failed. False: not before the
    /// deadline.
    ///
    /// # Errors
    /// What the system says.
    fn wait_for_bytes(&mut self, until: Deadline) -> io::Result<bool>;

    /// Says that the peer owes at least this many bytes more. A receive that has to wait may then
    /// wait for several at once, but never for more than these: nobody is woken for crumbs.
    fn owed(&mut self, _bytes: usize) {}

    /// Whether descriptors can be passed this way.
    fn passes_descriptors(&self) -> bool {
        false
    }

    /// Sends one byte, and with it a descriptor.
    ///
    /// # Errors
    /// As [`Channel::send`]; `Unsupported` where descriptors cannot be passed.
    fn send_descriptor(&mut self, _: BorrowedFd<'_>, _: Deadline) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Receives one byte and the descriptor that came with it; none: only the byte came.
    ///
    /// # Errors
    /// As [`Channel::receive`]; `Unsupported` where descriptors cannot be passed.
    fn receive_descriptor(&mut self, _: Deadline) -> io::Result<Option<OwnedFd>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// How long a transfer may take: up to a moment, or as long as each mebibyte moves in time, or
/// whichever of the two comes first.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    until: Deadline,
    last: Option<Deadline>,
    renewed_by: Option<Duration>,
    moved: usize,
}

impl Patience {
    /// Up to this moment.
    pub fn until(until: Deadline) -> Patience {
        Patience { until, last: None, renewed_by: None, moved: 0 }
    }

    /// As long as each [`STEP_BYTES`] move within `stall`.
    pub fn stall(stall: Duration) -> Patience {
        let until = Deadline::after(stall);
        Patience { until, last: None, renewed_by: Some(stall), moved: 0 }
    }

    /// At most up to `last`, however well it moves.
    pub fn within(self, last: Deadline) -> Patience {
        Patience { until: self.until.min(last), last: Some(last), ..self }
    }

    fn moved(&mut self, bytes: usize) {
        self.moved += bytes;
        if let Some(stall) = self.renewed_by
            && self.moved >= STEP_BYTES
        {
            self.moved = 0;
            let until = Deadline::after(stall);
            self.until = self.last.map_or(until, |last| last.min(until));
        }
    }
}

/// Sends all of `from`.
///
/// # Errors
/// As [`Channel::send`].
pub fn send_all(
    channel: &mut impl Channel,
    mut from: &mut [IoSlice<'_>],
    patience: &mut Patience,
) -> io::Result<()> {
    IoSlice::advance_slices(&mut from, 0);
    while !from.is_empty() {
        let sent = channel.send(from, patience.until)?;
        patience.moved(sent);
        IoSlice::advance_slices(&mut from, sent);
    }
    Ok(())
}

/// Receives until `to` is full.
///
/// # Errors
/// As [`Channel::receive`]; `UnexpectedEof` if the peer ends the stream before.
pub fn receive_all(
    channel: &mut impl Channel,
    mut to: &mut [u8],
    patience: &mut Patience,
) -> io::Result<()> {
    while !to.is_empty() {
        let received = receive_some(channel, &mut [IoSliceMut::new(to)], patience)?;
        to = &mut to[received..];
    }
    Ok(())
}

/// Receives some bytes; the end of the stream is an error.
///
/// # Errors
/// As [`receive_all`].
pub fn receive_some(
    channel: &mut impl Channel,
    to: &mut [IoSliceMut<'_>],
    patience: &mut Patience,
) -> io::Result<usize> {
    let received = channel.receive(to, patience.until)?;
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    patience.moved(received);
    Ok(received)
}

/// A connected stream socket in non-blocking mode.
#[derive(Debug)]
pub struct Socket {
    fd: Arc<OwnedFd>,
    system_calls: u64,
    is_unix: bool,
    /// What a wait on TCP waits for, as the system was told last.
    gathered: usize,
}

impl Socket {
    /// Takes over a connected Unix socket.
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub fn unix(fd: OwnedFd) -> io::Result<Socket> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        // A wish: without it transfers are cut into smaller steps.
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&fd, BUFFER_BYTES);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&fd, BUFFER_BYTES);
        Ok(Socket { fd: Arc::new(fd), system_calls: 0, is_unix: true, gathered: 1 })
    }

    /// Takes over a connected TCP socket. A peer that vanished without a word is noticed within
    /// [`VANISHED`], whether or not something is being sent to it.
    ///
    /// # Errors
    /// It cannot be made non-blocking.
    pub fn tcp(fd: OwnedFd) -> io::Result<Socket> {
        use rustix::net::sockopt;
        rustix::io::ioctl_fionbio(&fd, true)?;
        // Frames are whole when they are sent: waiting for more only delays them.
        sockopt::set_tcp_nodelay(&fd, true)?;
        // Wishes: deadlines hold without them. Buffers are left to the system, which sizes them by
        // what the way takes.
        let _ = sockopt::set_socket_keepalive(&fd, true);
        let _ = sockopt::set_tcp_keepidle(&fd, VANISHED / 2);
        let _ = sockopt::set_tcp_keepintvl(&fd, VANISHED / 8);
        let _ = sockopt::set_tcp_keepcnt(&fd, 4);
        let vanished_ms = u32::try_from(VANISHED.as_millis()).unwrap_or(u32::MAX);
        let _ = sockopt::set_tcp_user_timeout(&fd, vanished_ms);
        Ok(Socket { fd: Arc::new(fd), system_calls: 0, is_unix: false, gathered: 1 })
    }

    /// The descriptor, for another thread to shut down.
    pub fn shared(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// System calls made since this was last asked.
    pub fn take_system_calls(&mut self) -> u64 {
        std::mem::take(&mut self.system_calls)
    }

    /// Waits until the socket is ready for one of `events`.
    fn wait(&mut self, events: PollFlags, until: Deadline) -> io::Result<()> {
        self.system_calls += 1;
        match wait_for(&self.fd, events, until)? {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Waits until `fd` is ready for one of `events` or has failed. False: not before the deadline.
pub(crate) fn wait_for(fd: impl AsFd, events: PollFlags, until: Deadline) -> io::Result<bool> {
    loop {
        let left = until.left().unwrap_or_default();
        let timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        match poll(&mut [PollFd::new(&fd, events)], Some(&timeout)) {
            Ok(0) if until.passed() => return Ok(false),
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
    }
}

impl Channel for Socket {
    fn receive(&mut self, to: &mut [IoSliceMut<'_>], until: Deadline) -> io::Result<usize> {
        loop {
            // Also before the first attempt: a peer that always has one more byte must not keep a
            // call beyond its deadline.
            if until.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.system_calls += 1;
            let received = match &mut *to {
                [one] => {
                    let step = one.len().min(STEP_BYTES);
                    rustix::net::recv(&self.fd, &mut one[..step], RecvFlags::empty())
                        .map(|(received, _)| received)
                }
                many => rustix::io::readv(&self.fd, within_step_mut(many)),
            };
            match received {
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, until)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn send(&mut self, from: &[IoSlice<'_>], until: Deadline) -> io::Result<usize> {
        loop {
            if until.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.system_calls += 1;
            let sent = send_step(&self.fd, within_step(from));
            match sent {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn peer_is_there(&self) -> bool {
        let events = PollFlags::IN | PollFlags::RDHUP;
        let mut fds = [PollFd::new(&self.fd, events)];
        // Readable outside of a call means that the peer has closed, or talks out of turn.
        matches!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0))
    }

    fn wait_for_bytes(&mut self, until: Deadline) -> io::Result<bool> {
        wait_for(&self.fd, PollFlags::IN, until)
    }

    fn owed(&mut self, bytes: usize) {
        let wanted = bytes.clamp(1, GATHER_BYTES);
        // Unix sockets wake for a first byte whatever they are told.
        if !self.is_unix && wanted != self.gathered && raw::wake_at(&self.fd, wanted) {
            self.system_calls += 1;
            self.gathered = wanted;
        }
    }

    fn passes_descriptors(&self) -> bool {
        self.is_unix
    }

    fn send_descriptor(&mut self, passed: BorrowedFd<'_>, until: Deadline) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let passed = [passed];
        loop {
            if until.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&passed));
            self.system_calls += 1;
            let byte = [IoSlice::new(&[0])];
            match rustix::net::sendmsg(&self.fd, &byte, &mut control, SendFlags::NOSIGNAL) {
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, until)?,
                Err(Errno::INTR) => {}
                other => return Ok(other.map(|_| ())?),
            }
        }
    }

    fn receive_descriptor(&mut self, until: Deadline) -> io::Result<Option<OwnedFd>> {
        // Room for one: the system closes what else a peer may pass.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut byte = [0];
        loop {
            if until.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut control = RecvAncillaryBuffer::new(&mut space);
            self.system_calls += 1;
            let mut bytes = [IoSliceMut::new(&mut byte)];
            let flags = RecvFlags::CMSG_CLOEXEC;
            match rustix::net::recvmsg(&self.fd, &mut bytes, &mut control, flags) {
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, until)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(received) if received.bytes == 0 => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(_) => {
                    let mut passed = control.drain().filter_map(|message| match message {
                        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
                        _ => None,
                    });
                    return Ok(passed.next());
                }
            }
        }
    }
}

/// `NOSIGNAL`: a peer that went away is an error here, never a signal to the process.
fn send_step(fd: &OwnedFd, from: &[IoSlice<'_>]) -> Result<usize, Errno> {
    match from {
        [one] => rustix::net::send(fd, &one[..one.len().min(STEP_BYTES)], SendFlags::NOSIGNAL),
        many => {
            let mut control = SendAncillaryBuffer::default();
            rustix::net::sendmsg(fd, many, &mut control, SendFlags::NOSIGNAL)
        }
    }
}

/// The longest head of `slices` of at most [`STEP_BYTES`], or the first one.
fn within_step<'a, 'b>(slices: &'a [IoSlice<'b>]) -> &'a [IoSlice<'b>] {
    &slices[..count_within_step(slices.iter().map(|slice| slice.len()))]
}

fn within_step_mut<'a, 'b>(slices: &'a mut [IoSliceMut<'b>]) -> &'a mut [IoSliceMut<'b>] {
    let count = count_within_step(slices.iter().map(|slice| slice.len()));
    &mut slices[..count]
}

/// How many of these lengths fit a step and the system's limit on pieces; at least one.
fn count_within_step(lengths: impl Iterator<Item = usize>) -> usize {
    let mut bytes = 0usize;
    let fitting = lengths.take(1024).take_while(|length| {
        bytes = bytes.saturating_add(*length);
        bytes <= STEP_BYTES
    });
    fitting.count().max(1)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn pair() -> (Socket, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
        let (far, _) = listener.accept().expect("it was connected to");
        let socket = |stream: TcpStream| Socket::tcp(stream.into()).expect("a connected socket");
        (socket(near), socket(far))
    }

    fn is_woken(socket: &Socket, within: Duration) -> bool {
        wait_for(&socket.fd, PollFlags::IN, Deadline::after(within)).expect("it can be polled")
    }

    #[test]
    fn a_wait_gathers_what_is_owed_and_no_more() {
        let (mut near, mut far) = pair();
        let (soon, late) = (Duration::from_millis(50), Duration::from_secs(10));
        let mut patience = Patience::until(Deadline::after(late));
        near.owed(GATHER_BYTES);
        send_all(&mut far, &mut [IoSlice::new(&[7; 100])], &mut patience).expect("sent");
        assert!(!is_woken(&near, soon), "woken for a crumb of what is owed");
        near.owed(100);
        assert!(is_woken(&near, late), "all that is owed is here");
        receive_all(&mut near, &mut [0; 100], &mut patience).expect("received");
        near.owed(2 * GATHER_BYTES);
        let sent = vec![7; GATHER_BYTES];
        send_all(&mut far, &mut [IoSlice::new(&sent)], &mut patience).expect("sent");
        assert!(is_woken(&near, late), "a wait never waits for more than it gathers");
    }

    #[test]
    fn a_peer_that_owes_and_ends_is_noticed() {
        let (mut near, far) = pair();
        near.owed(GATHER_BYTES);
        drop(far);
        assert!(is_woken(&near, Duration::from_secs(10)));
        let mut to = [0; 8];
        let until = Deadline::after(Duration::from_secs(10));
        let received = near.receive(&mut [IoSliceMut::new(&mut to)], until);
        assert_eq!(received.expect("an orderly end"), 0);
    }
}
