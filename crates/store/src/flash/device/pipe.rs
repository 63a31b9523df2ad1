//! A queue with what its operations need kept: memory, deadlines, and the rest of short transfers.
//! Whoever gives up on a device keeps its pipes until nothing is in flight in them.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use super::{Io, IoKind, IoQueue};
use crate::tiers::{Hold, PAGE_BYTES, Piece};

/// An operation to run to its end.
pub(crate) struct Request {
    pub token: u64,
    pub kind: IoKind,
    pub offset: u64,
    pub pieces: Vec<Piece>,
    /// Keeps the pieces.
    pub hold: Option<Hold>,
}

/// A request that is over.
pub(crate) struct Done {
    pub token: u64,
    pub kind: IoKind,
    pub result: io::Result<()>,
    pub bytes: u64,
    pub hold: Option<Hold>,
}

struct Pending {
    request: Request,
    begun: Instant,
    /// Bytes already moved; the request's pieces are what is left.
    moved: u64,
}

pub(crate) struct Pipe {
    queue: Box<dyn IoQueue>,
    pending: Vec<Option<Pending>>,
    in_flight: usize,
    /// Memory of operations in flight beside their own holds.
    kept: Vec<Hold>,
}

impl Pipe {
    pub fn new(queue: Box<dyn IoQueue>, depth: usize) -> Pipe {
        let pending = (0..depth).map(|_| None).collect();
        Pipe { queue, pending, in_flight: 0, kept: Vec::new() }
    }

    pub fn depth(&self) -> usize {
        self.pending.len()
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Keeps memory until the pipe is dropped.
    pub fn keep(&mut self, hold: Hold) {
        self.kept.push(hold);
    }

    /// # Panics
    /// If as many as the depth are in flight.
    pub fn submit(&mut self, request: Request) {
        let slot = self.pending.iter().position(Option::is_none).expect("room in the pipe");
        let pending = Pending { request, begun: Instant::now(), moved: 0 };
        self.queue.submit(io_of(&pending, slot));
        self.pending[slot] = Some(pending);
        self.in_flight += 1;
    }

    /// The next request that is over, within `wait`.
    pub fn complete(&mut self, wait: Duration) -> Option<Done> {
        let end = Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let done = self.queue.complete(left)?;
            let slot = done.token as usize;
            let pending = self.pending[slot].as_mut().expect("a pending operation");
            let result = match done.result {
                Ok(bytes) => match pending.advance(bytes) {
                    Ok(true) => Ok(()),
                    Ok(false) => {
                        let io = io_of(pending, slot);
                        self.queue.submit(io);
                        continue;
                    }
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            let pending = self.pending[slot].take().expect("a pending operation");
            self.in_flight -= 1;
            let Request { token, kind, hold, .. } = pending.request;
            return Some(Done { token, kind, result, bytes: pending.moved, hold });
        }
    }

    /// When the oldest operation in flight was submitted.
    pub fn oldest(&self) -> Option<Instant> {
        self.pending.iter().flatten().map(|pending| pending.begun).min()
    }

    /// What is in flight, by its submitter's names.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.pending.iter().flatten().map(|pending| pending.request.token)
    }

    pub fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.queue.ready()
    }

    pub fn push(&mut self) {
        self.queue.push();
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // The device may still write this memory: it is never given back.
            std::mem::forget(std::mem::take(&mut self.pending));
            std::mem::forget(std::mem::take(&mut self.kept));
        }
    }
}

impl Pending {
    /// Whether that was all; else the pieces are what is left, whole pages of it.
    fn advance(&mut self, bytes: usize) -> io::Result<bool> {
        let pieces = &mut self.request.pieces;
        let all: usize = pieces.iter().map(Piece::padded).sum();
        if bytes >= all {
            self.moved += all as u64;
            return Ok(true);
        }
        let whole = bytes / PAGE_BYTES * PAGE_BYTES;
        if whole == 0 {
            let is_write = self.request.kind == IoKind::Write;
            return Err(if is_write {
                io::ErrorKind::WriteZero
            } else {
                io::ErrorKind::UnexpectedEof
            }
            .into());
        }
        self.moved += whole as u64;
        self.request.offset += whole as u64;
        let mut skip = whole;
        pieces.retain_mut(|piece| {
            let padded = piece.padded();
            if skip >= padded {
                skip -= padded;
                return false;
            }
            *piece = piece.after(std::mem::take(&mut skip));
            true
        });
        Ok(false)
    }
}

fn io_of(pending: &Pending, slot: usize) -> Io {
    let Request { kind, offset, pieces, .. } = &pending.request;
    Io { token: slot as u64, kind: *kind, offset: *offset, pieces: pieces.clone() }
}
