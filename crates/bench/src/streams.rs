//! A bare request-and-reply loop over a stream: what moving bytes between two processes takes.
//!
//! ```text
//!  get:  client  32 B: get, blocks, length, first    ──►  server
//!        client  ◄──  per block: head, payload out of the pool
//!  put:  client  32 B: put, …, then per block: head, payload  ──►  server, into the pool
//!        client  ◄──  one byte
//! ```
//! No keys, no index, no hash; messages, steps and socket buffers are as large as the product's.
//! Several streams share the blocks of a call evenly, each on a thread of its own on both sides.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, SocketFlags, accept_with};

use crate::bytes::{Place, Pool};
use crate::tls::{Acceptor, Connector, Session};

/// Most bytes that one system call moves.
const STEP_BYTES: usize = 1 << 20;
/// Most bytes that a receive waits for at once, as the product's do: woken for each segment, a
/// receiver that is faster than its peer is slower than both.
const GATHER_BYTES: usize = STEP_BYTES / 4;
/// Bytes before each payload: a frame's header and its body.
const HEAD_BYTES: usize = 60;
const REQUEST_BYTES: usize = 32;
const GET: u64 = 1;
const PUT: u64 = 2;

/// Either end of one connection.
enum Stream {
    Plain(Socket),
    Secure(Box<Session<Socket>>),
}

/// A connected, blocking socket.
pub(crate) struct Socket {
    fd: OwnedFd,
    wakes_at: usize,
}

impl Socket {
    /// Takes what is there, and waits in `poll` alone: a receive that waits by itself, once it has
    /// taken a part of what it waits for, is not woken for a rest that is smaller.
    fn gather_exact(&mut self, mut to: &mut [u8]) -> io::Result<()> {
        while !to.is_empty() {
            self.wake_at(to.len().min(GATHER_BYTES));
            let step = to.len().min(STEP_BYTES);
            match rustix::net::recv(&self.fd, &mut to[..step], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((received, _)) => to = &mut to[received..],
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&self.fd, PollFlags::IN)], None)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Unix sockets wake for a first byte whatever they are told.
    fn wake_at(&mut self, bytes: usize) {
        if self.wakes_at == bytes {
            return;
        }
        self.wakes_at = bytes;
        let bytes = libc::c_int::try_from(bytes).unwrap_or(1);
        // SAFETY: the call reads one integer, which outlives it, through an open descriptor; where
        // it fails, as for a closed one, nothing has changed. `tests/limits.rs` moves blocks whose
        // length is no multiple of what is waited for.
        let _ = unsafe {
            libc::setsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVLOWAT,
                (&raw const bytes).cast(),
                size_of_val(&bytes) as libc::socklen_t,
            )
        };
    }
}

impl Read for Socket {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let step = to.len().min(STEP_BYTES);
        Ok(rustix::net::recv(&self.fd, &mut to[..step], RecvFlags::empty())?.0)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let step = from.len().min(STEP_BYTES);
        Ok(rustix::net::send(&self.fd, &from[..step], SendFlags::NOSIGNAL)?)
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut control = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&self.fd, from, &mut control, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    /// Sends a head and a payload.
    ///
    /// # Safety
    /// `place` is readable for its length until this returns.
    unsafe fn send(&mut self, place: Place) -> io::Result<()> {
        let head = [0u8; HEAD_BYTES];
        // SAFETY: the caller's promise. `tests/limits.rs` gets and puts and compares.
        let payload = unsafe { std::slice::from_raw_parts(place.ptr.cast_const(), place.len) };
        match self {
            Stream::Plain(socket) => {
                let mut slices = [IoSlice::new(&head), IoSlice::new(payload)];
                let mut left = &mut slices[..];
                while !left.is_empty() {
                    let sent = socket.write_vectored(left)?;
                    IoSlice::advance_slices(&mut left, sent);
                }
                Ok(())
            }
            Stream::Secure(session) => {
                session.write_all(&head)?;
                session.write_all(payload)?;
                session.flush()
            }
        }
    }

    /// Receives a head and a payload.
    ///
    /// # Safety
    /// `place` is writable for its length, and used by nobody else, until this returns.
    unsafe fn receive(&mut self, place: Place) -> io::Result<()> {
        self.read_exact(&mut [0u8; HEAD_BYTES])?;
        // SAFETY: the caller's promise. `tests/limits.rs` gets and puts and compares.
        let payload = unsafe { std::slice::from_raw_parts_mut(place.ptr, place.len) };
        self.read_exact(payload)
    }

    fn read_exact(&mut self, to: &mut [u8]) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.gather_exact(to),
            Stream::Secure(session) => session.read_exact(to),
        }
    }

    fn write_all(&mut self, from: &[u8]) -> io::Result<()> {
        match self {
            Stream::Plain(socket) => socket.write_all(from),
            Stream::Secure(session) => {
                session.write_all(from)?;
                session.flush()
            }
        }
    }
}

fn request(op: u64, places: &[Place], first: u64) -> [u8; REQUEST_BYTES] {
    let length = places.first().map_or(0, |place| place.len as u64);
    let mut bytes = [0; REQUEST_BYTES];
    for (slot, word) in bytes.chunks_exact_mut(8).zip([op, places.len() as u64, length, first]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The client's end: one stream or several.
pub struct Client {
    streams: Vec<Stream>,
}

impl Client {
    /// Takes over connected, blocking sockets; with a connector it greets over TLS at once.
    ///
    /// # Errors
    /// What TLS says.
    pub fn new(sockets: Vec<OwnedFd>, tls: Option<&Connector>) -> io::Result<Client> {
        let open = |socket| {
            let socket = Socket { fd: socket, wakes_at: 1 };
            Ok(match tls {
                None => Stream::Plain(socket),
                Some(tls) => Stream::Secure(Box::new(tls.connect(socket)?)),
            })
        };
        Ok(Client { streams: sockets.into_iter().map(open).collect::<io::Result<_>>()? })
    }

    /// Receives blocks, the server's pool read from block `first` on; seconds.
    ///
    /// # Errors
    /// What the system, or TLS, says.
    ///
    /// # Safety
    /// Each place is writable for its length, which is one and the same, and used by nobody else
    /// until this returns; no two overlap.
    pub unsafe fn get(&mut self, places: &[Place], first: u64) -> io::Result<f64> {
        self.each(places, first, |stream, places, first| {
            stream.write_all(&request(GET, places, first))?;
            // SAFETY: the caller's promise, for a part of its places.
            places.iter().try_for_each(|place| unsafe { stream.receive(*place) })
        })
    }

    /// Sends blocks into the server's pool, from its block `first` on; seconds until it has them.
    ///
    /// # Errors
    /// What the system, or TLS, says.
    ///
    /// # Safety
    /// Each place is readable for its length, which is one and the same, until this returns.
    pub unsafe fn put(&mut self, places: &[Place], first: u64) -> io::Result<f64> {
        self.each(places, first, |stream, places, first| {
            stream.write_all(&request(PUT, places, first))?;
            // SAFETY: the caller's promise, for a part of its places.
            places.iter().try_for_each(|place| unsafe { stream.send(*place) })?;
            stream.read_exact(&mut [0])
        })
    }

    fn each(
        &mut self,
        places: &[Place],
        first: u64,
        work: impl Fn(&mut Stream, &[Place], u64) -> io::Result<()> + Sync,
    ) -> io::Result<f64> {
        let share = places.len().div_ceil(self.streams.len().max(1)).max(1);
        let start = Instant::now();
        let mut parts = self.streams.iter_mut().zip(places.chunks(share)).zip(0u64..);
        let work = &work;
        std::thread::scope(|scope| {
            let own = parts.next();
            let others: Vec<_> = parts
                .map(|((stream, part), n)| {
                    scope.spawn(move || work(stream, part, first + n * share as u64))
                })
                .collect();
            let mut done = own.map_or(Ok(()), |((stream, part), _)| work(stream, part, first));
            for other in others {
                let ended = other.join().unwrap_or_else(|_| Err(io::Error::other("a panic")));
                done = done.and(ended);
            }
            done
        })?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Serves whoever connects to `listener` out of a pool of `pool_bytes`, until the process ends.
/// `buffers`: what each socket's kernel buffers are set to, if at all.
///
/// # Errors
/// There is no such pool, or nothing can be accepted.
pub fn serve(
    listener: &OwnedFd,
    pool_bytes: usize,
    buffers: Option<usize>,
    tls: Option<Acceptor>,
) -> io::Result<()> {
    let pool = Arc::new(Pool::new(pool_bytes)?);
    let tls = tls.map(Arc::new);
    loop {
        let socket = accept_with(listener, SocketFlags::CLOEXEC)?;
        if let Some(bytes) = buffers {
            rustix::net::sockopt::set_socket_send_buffer_size(&socket, bytes)?;
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
        }
        // Only TCP knows this one.
        let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
        let (pool, tls) = (pool.clone(), tls.clone());
        std::thread::spawn(move || {
            let socket = Socket { fd: socket, wakes_at: 1 };
            let stream = match tls {
                None => Ok(Stream::Plain(socket)),
                Some(tls) => tls.accept(socket).map(|session| Stream::Secure(Box::new(session))),
            };
            // A client that goes away ends its own thread alone.
            let _ = stream.and_then(|mut stream| converse(&mut stream, &pool));
        });
    }
}

fn converse(stream: &mut Stream, pool: &Pool) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    loop {
        stream.read_exact(&mut request)?;
        let word = |n: usize| {
            let bytes = request[8 * n..8 * n + 8].try_into().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        let (op, blocks, length, first) = (word(0), word(1), word(2) as usize, word(3));
        for n in first..first + blocks {
            // SAFETY: a place of the pool, which outlives this. Streams that put to one place at
            // once mix its bytes, which mean nothing. `tests/limits.rs` gets and puts.
            unsafe {
                match op {
                    GET => stream.send(pool.block(n, length))?,
                    _ => stream.receive(pool.block(n, length))?,
                }
            }
        }
        if op == PUT {
            stream.write_all(&[1])?;
        }
    }
}
