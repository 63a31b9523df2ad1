//! The connected stream under a link: plain, or under TLS. The choice is made once a call, not once
//! a byte: what moves in one call is up to a mebibyte.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::channel::{Channel, Socket};
use crate::deadline::Deadline;
use crate::tls::TlsStream;

pub(super) enum Way {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

impl Way {
    /// The descriptor, for another thread to wait on or shut down.
    pub(super) fn shared(&self) -> Arc<OwnedFd> {
        match self {
            Way::Plain(socket) => socket.shared(),
            Way::Tls(stream) => stream.shared(),
        }
    }

    /// System calls made since this was last asked.
    pub(super) fn take_system_calls(&mut self) -> u64 {
        match self {
            Way::Plain(socket) => socket.take_system_calls(),
            Way::Tls(stream) => stream.take_system_calls(),
        }
    }
}

impl Channel for Way {
    fn receive(&mut self, to: &mut [IoSliceMut<'_>], until: Deadline) -> io::Result<usize> {
        match self {
            Way::Plain(socket) => socket.receive(to, until),
            Way::Tls(stream) => stream.receive(to, until),
        }
    }

    fn send(&mut self, from: &[IoSlice<'_>], until: Deadline) -> io::Result<usize> {
        match self {
            Way::Plain(socket) => socket.send(from, until),
            Way::Tls(stream) => stream.send(from, until),
        }
    }

    fn peer_is_there(&self) -> bool {
        match self {
            Way::Plain(socket) => socket.peer_is_there(),
            Way::Tls(stream) => stream.peer_is_there(),
        }
    }

    fn wait_for_bytes(&mut self, until: Deadline) -> io::Result<bool> {
        match self {
            Way::Plain(socket) => socket.wait_for_bytes(until),
            Way::Tls(stream) => stream.wait_for_bytes(until),
        }
    }

    fn owed(&mut self, bytes: usize) {
        match self {
            Way::Plain(socket) => socket.owed(bytes),
            Way::Tls(_) => {} // its records are gathered below
        }
    }

    fn passes_descriptors(&self) -> bool {
        match self {
            Way::Plain(socket) => socket.passes_descriptors(),
            Way::Tls(_) => false,
        }
    }

    fn send_descriptor(&mut self, passed: BorrowedFd<'_>, until: Deadline) -> io::Result<()> {
        match self {
            Way::Plain(socket) => socket.send_descriptor(passed, until),
            Way::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn receive_descriptor(&mut self, until: Deadline) -> io::Result<Option<OwnedFd>> {
        match self {
            Way::Plain(socket) => socket.receive_descriptor(until),
            Way::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}
