//! The bytes of a TLS connection.
//!
//! ```text
//!   send:     pieces ──encrypt, record by record──► out ──► socket
//!   receive:  socket ──► incoming ──decrypt──► record ──► the caller's slices
//!                                                 └ what does not fit ─► rest
//! ```
//!
//! Nothing is read ahead of a call, and nothing is sent after one: a call that ends at its deadline
//! leaves a connection that is not used again. Buffers are fixed at the handshake.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, UnbufferedStatus, WriteTraffic,
};

use super::files::{ClientTls, NodeTls};
use super::reasons::{Peer, explain};
use crate::channel::{Channel, Socket};
use crate::deadline::Deadline;

/// Ciphertext received at once: several records, and few enough bytes to stay in a core's cache.
const INCOMING_BYTES: usize = 256 << 10;
/// Plaintext encrypted before it is sent.
const STEP_BYTES: usize = 128 << 10;
/// As much ciphertext: a record of at most 16 KiB carries 22 bytes more.
const OUT_BYTES: usize = STEP_BYTES + (8 << 10);
/// How long the other side has to take the news that it is not trusted.
const ALERT: Duration = Duration::from_millis(100);

enum Connection {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// A socket under TLS, after its handshake.
pub struct TlsStream {
    socket: Socket,
    connection: Box<Connection>,
    incoming: Incoming,
    out: Out,
    /// Plaintext that was decrypted and not taken yet.
    rest: Rest,
}

/// Ciphertext that has arrived: `bytes[start..end]`.
struct Incoming {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

/// Ciphertext to send: `bytes[..end]`.
struct Out {
    bytes: Box<[u8]>,
    end: usize,
}

#[derive(Default)]
struct Rest {
    bytes: Vec<u8>,
    start: usize,
}

impl Rest {
    fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    /// Keeps what a call has no room for.
    fn keep(&mut self, bytes: &[u8]) {
        if self.is_empty() {
            self.bytes.clear();
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }
}

/// What the connection can do next.
enum Next {
    /// It needs more from the socket.
    Receive,
    /// What is in `out` must go first.
    Flush,
    /// Plaintext was handed over.
    Read,
    /// Plaintext of so many bytes was encrypted into `out`.
    Encrypted(usize),
    /// The handshake is over and nothing is left to do.
    Idle,
    /// The other side has ended the stream.
    Closed,
}

/// What a step is for.
enum Want<'a, 'b> {
    /// Decrypted bytes go to the caller's slices, the rest is kept.
    Read(&'a mut [IoSliceMut<'b>], &'a mut usize),
    /// These are encrypted; decrypted bytes are kept.
    Write(&'a [IoSlice<'b>]),
    /// Neither: decrypted bytes are kept.
    Neither,
}

impl TlsStream {
    /// The client's side of a handshake with a node whose certificate must be for `host`.
    ///
    /// # Errors
    /// The sides do not trust each other; `TimedOut` at the deadline; what the system says.
    pub fn connect(
        socket: Socket,
        tls: &ClientTls,
        host: &str,
        until: Deadline,
    ) -> io::Result<TlsStream> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no name of a node"))?;
        let connection = UnbufferedClientConnection::new(tls.0.clone(), name);
        let connection = connection.map_err(|error| explain(&error, Peer::Node))?;
        TlsStream::new(socket, Connection::Client(connection)).handshake(until)
    }

    /// The node's side of a handshake.
    ///
    /// # Errors
    /// As [`TlsStream::connect`].
    pub fn accept(socket: Socket, tls: &NodeTls, until: Deadline) -> io::Result<TlsStream> {
        let connection = UnbufferedServerConnection::new(tls.config.clone());
        let connection = connection.map_err(|error| explain(&error, Peer::Client))?;
        TlsStream::new(socket, Connection::Server(connection)).handshake(until)
    }

    fn new(socket: Socket, connection: Connection) -> TlsStream {
        let zeros = |bytes: usize| vec![0; bytes].into_boxed_slice();
        TlsStream {
            socket,
            connection: Box::new(connection),
            incoming: Incoming { bytes: zeros(INCOMING_BYTES), start: 0, end: 0 },
            out: Out { bytes: zeros(OUT_BYTES), end: 0 },
            rest: Rest::default(),
        }
    }

    fn handshake(mut self, until: Deadline) -> io::Result<TlsStream> {
        let left = || {
            let problem =
                "the other side left during the handshake of TLS: does it speak TLS there?";
            io::Error::new(io::ErrorKind::UnexpectedEof, problem)
        };
        loop {
            match self.step(&mut Want::Neither, until)? {
                Next::Receive => match self.fill(until) {
                    Ok(0) => return Err(left()),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                        return Err(left());
                    }
                    filled => drop(filled?),
                },
                Next::Flush => self.flush(until)?,
                Next::Idle => return Ok(self),
                Next::Closed => return Err(left()),
                Next::Read | Next::Encrypted(_) => {}
            }
        }
    }

    /// The other side's certificate, then those between it and its CA; none if it showed none.
    pub(crate) fn peer_certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        let chain = match &*self.connection {
            Connection::Client(connection) => connection.peer_certificates(),
            Connection::Server(connection) => connection.peer_certificates(),
        };
        chain.map(|chain| chain.iter().cloned().map(CertificateDer::into_owned).collect())
    }

    /// The descriptor, for another thread to wait on or shut down.
    pub fn shared(&self) -> Arc<OwnedFd> {
        self.socket.shared()
    }

    /// System calls made since this was last asked.
    pub fn take_system_calls(&mut self) -> u64 {
        self.socket.take_system_calls()
    }

    /// Always with all that has arrived: what is within a handshake message of several records
    /// is counted from its beginning.
    fn advance(&mut self, want: &mut Want<'_, '_>) -> Result<Next, rustls::Error> {
        let incoming = &mut self.incoming.bytes[self.incoming.start..self.incoming.end];
        let (rest, out) = (&mut self.rest, &mut self.out);
        let (used, next) = match &mut *self.connection {
            Connection::Client(connection) => {
                advance(connection.process_tls_records(incoming), want, rest, out)
            }
            Connection::Server(connection) => {
                advance(connection.process_tls_records(incoming), want, rest, out)
            }
        };
        self.incoming.start += used;
        next
    }

    fn step(&mut self, want: &mut Want<'_, '_>, until: Deadline) -> io::Result<Next> {
        self.advance(want).map_err(|error| {
            self.tell_why(until);
            let peer = match &*self.connection {
                Connection::Client(_) => Peer::Node,
                Connection::Server(_) => Peer::Client,
            };
            explain(&error, peer)
        })
    }

    /// Sends the alert that goes with a failure, if the other side takes it soon; a caller with
    /// less time than that is not kept for it.
    fn tell_why(&mut self, until: Deadline) {
        // Once: the failure itself is met again behind the alert.
        let _ = self.advance(&mut Want::Neither);
        // Who does not listen finds the stream ended.
        let _ = self.flush(Deadline::after(ALERT).min(until));
    }

    /// Receives ciphertext. 0: the stream has ended.
    fn fill(&mut self, until: Deadline) -> io::Result<usize> {
        let Incoming { bytes, start, end } = &mut self.incoming;
        if *start > 0 {
            bytes.copy_within(*start..*end, 0);
            *end -= *start;
            *start = 0;
        }
        if *end == bytes.len() {
            // No record is as long: what fills this is none.
            return Err(explain(&rustls::Error::DecryptError, Peer::Node));
        }
        let received = self.socket.receive(&mut [IoSliceMut::new(&mut bytes[*end..])], until)?;
        *end += received;
        Ok(received)
    }

    fn flush(&mut self, until: Deadline) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.out.end {
            sent +=
                self.socket.send(&[IoSlice::new(&self.out.bytes[sent..self.out.end])], until)?;
        }
        self.out.end = 0;
        Ok(())
    }
}

impl Channel for TlsStream {
    fn receive(&mut self, to: &mut [IoSliceMut<'_>], until: Deadline) -> io::Result<usize> {
        if !self.rest.is_empty() {
            let kept = &self.rest.bytes[self.rest.start..];
            let taken = scatter(kept, to, 0);
            self.rest.start += taken;
            return Ok(taken);
        }
        let mut received = 0;
        loop {
            // A peer whose records never have content must not keep a call beyond its deadline.
            if until.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.step(&mut Want::Read(&mut *to, &mut received), until)? {
                Next::Read if received > 0 => return Ok(received),
                Next::Read | Next::Encrypted(_) => {}
                Next::Flush => self.flush(until)?,
                Next::Closed => return Ok(0),
                Next::Receive | Next::Idle => {
                    if self.fill(until)? == 0 {
                        // Without the end that TLS has for it: whatever was cut off is not known.
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }

    fn send(&mut self, from: &[IoSlice<'_>], until: Deadline) -> io::Result<usize> {
        loop {
            if until.passed() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match self.step(&mut Want::Write(from), until)? {
                Next::Encrypted(bytes) => {
                    self.flush(until)?;
                    return Ok(bytes);
                }
                Next::Flush => self.flush(until)?,
                Next::Read => {}
                Next::Closed => return Err(io::ErrorKind::BrokenPipe.into()),
                Next::Receive | Next::Idle => {
                    if self.fill(until)? == 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
            }
        }
    }

    fn peer_is_there(&self) -> bool {
        let nothing_waits = self.rest.is_empty() && self.incoming.start == self.incoming.end;
        nothing_waits && self.socket.peer_is_there()
    }

    fn wait_for_bytes(&mut self, until: Deadline) -> io::Result<bool> {
        let waits = !self.rest.is_empty() || self.incoming.start < self.incoming.end;
        if waits { Ok(true) } else { self.socket.wait_for_bytes(until) }
    }
}

/// Copies as much as fits behind the first `at` bytes of `to`.
fn scatter(from: &[u8], to: &mut [IoSliceMut<'_>], mut at: usize) -> usize {
    let mut taken = 0;
    for slice in to {
        if at >= slice.len() {
            at -= slice.len();
            continue;
        }
        let room = (slice.len() - at).min(from.len() - taken);
        slice[at..at + room].copy_from_slice(&from[taken..taken + room]);
        taken += room;
        at = 0;
        if taken == from.len() {
            break;
        }
    }
    taken
}

/// Does what the connection's state asks for; returns how much of the incoming bytes is used up.
fn advance<D>(
    status: UnbufferedStatus<'_, '_, D>,
    want: &mut Want<'_, '_>,
    rest: &mut Rest,
    out: &mut Out,
) -> (usize, Result<Next, rustls::Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let next = match state {
        Err(error) => Err(error),
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match traffic.next_record() {
                None => break Ok(Next::Read),
                Some(Err(error)) => break Err(error),
                Some(Ok(record)) => {
                    discard += record.discard;
                    let taken = match want {
                        Want::Read(to, received) => {
                            let taken = scatter(record.payload, to, **received);
                            **received += taken;
                            taken
                        }
                        Want::Write(_) | Want::Neither => 0,
                    };
                    if taken < record.payload.len() {
                        rest.keep(&record.payload[taken..]);
                    }
                }
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, out),
        Ok(ConnectionState::TransmitTlsData(data)) => {
            // It is in `out`, which goes before anything else does.
            data.done();
            Ok(Next::Flush)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Next::Receive),
        Ok(ConnectionState::WriteTraffic(mut traffic)) => match want {
            Want::Write(from) => encrypt(&mut traffic, from, out).map(Next::Encrypted),
            Want::Read(..) | Want::Neither => Ok(Next::Idle),
        },
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Next::Closed),
        Ok(_) => Err(rustls::Error::General(String::from("early data was never offered"))),
    };
    (discard, next)
}

fn encode<D>(
    data: &mut rustls::unbuffered::EncodeTlsData<'_, D>,
    out: &mut Out,
) -> Result<Next, rustls::Error> {
    loop {
        match data.encode(&mut out.bytes[out.end..]) {
            Ok(bytes) => {
                out.end += bytes;
                return Ok(Next::Read);
            }
            Err(EncodeError::InsufficientSize(need)) => {
                // A long chain of certificates, during the handshake alone.
                let mut longer = std::mem::take(&mut out.bytes).into_vec();
                longer.resize(out.end + need.required_size, 0);
                out.bytes = longer.into_boxed_slice();
            }
            Err(error) => return Err(rustls::Error::General(error.to_string())),
        }
    }
}

/// Encrypts pieces of `from`, in order, up to a step's bytes.
fn encrypt<D>(
    traffic: &mut WriteTraffic<'_, D>,
    from: &[IoSlice<'_>],
    out: &mut Out,
) -> Result<usize, rustls::Error> {
    let mut taken = 0;
    for slice in from.iter().filter(|slice| !slice.is_empty()) {
        let piece = &slice[..slice.len().min(STEP_BYTES - taken)];
        match traffic.encrypt(piece, &mut out.bytes[out.end..]) {
            Ok(bytes) => out.end += bytes,
            // Many small pieces have more overhead than is reserved: the next call takes them.
            Err(EncryptError::InsufficientSize(_)) if taken > 0 => break,
            Err(error) => return Err(rustls::Error::General(error.to_string())),
        }
        taken += piece.len();
        if piece.len() < slice.len() || taken == STEP_BYTES {
            break;
        }
    }
    Ok(taken)
}
