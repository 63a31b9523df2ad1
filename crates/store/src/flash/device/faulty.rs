//! A device that fails as it is told: errors, a hang until released, short writes, changed reads.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::{Device, Io, IoDone, IoKind, IoQueue};
use crate::flash::error::OpenError;
use crate::tiers::{Piece, memory_of_mut};

/// What a device does wrong now.
#[derive(Debug, Default)]
pub struct DeviceFaults {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    read_error: Option<i32>,
    write_error: Option<i32>,
    flush_error: Option<i32>,
    hangs: bool,
    /// The next write is kept until released.
    keeps_next: bool,
    keeps: bool,
    short_writes: bool,
    changes_reads: bool,
}

impl DeviceFaults {
    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    /// Reads fail with this error number, or no more.
    pub fn fail_reads(&self, errno: Option<i32>) {
        self.set(|state| state.read_error = errno);
    }

    /// Writes fail with this error number, or no more.
    pub fn fail_writes(&self, errno: Option<i32>) {
        self.set(|state| state.write_error = errno);
    }

    /// Flushes fail with this error number, or no more.
    pub fn fail_flushes(&self, errno: Option<i32>) {
        self.set(|state| state.flush_error = errno);
    }

    /// Nothing completes any more; what is submitted is done once released.
    pub fn hang(&self, hangs: bool) {
        self.set(|state| state.hangs = hangs);
    }

    /// The next write does not complete until released; others do.
    pub fn keep_next_write(&self) {
        self.set(|state| (state.keeps_next, state.keeps) = (true, true));
    }

    /// The write that is kept goes on.
    pub fn release_write(&self) {
        self.set(|state| (state.keeps_next, state.keeps) = (false, false));
    }

    /// Whether a write is kept now.
    pub fn keeps_write(&self) -> bool {
        let state = self.state.lock();
        state.keeps && !state.keeps_next
    }

    /// Writes of more than a page do only their first.
    pub fn shorten_writes(&self, short: bool) {
        self.set(|state| state.short_writes = short);
    }

    /// Reads succeed with one bit changed.
    pub fn change_reads(&self, changes: bool) {
        self.set(|state| state.changes_reads = changes);
    }
}

/// A device over another.
pub struct FaultyDevice {
    below: Arc<dyn Device>,
    faults: Arc<DeviceFaults>,
}

impl FaultyDevice {
    /// As `below`, until told otherwise.
    pub fn new(below: Arc<dyn Device>) -> FaultyDevice {
        FaultyDevice { below, faults: Arc::default() }
    }

    /// What it does wrong.
    pub fn faults(&self) -> &Arc<DeviceFaults> {
        &self.faults
    }
}

impl Device for FaultyDevice {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn engine(&self) -> String {
        self.below.engine()
    }

    fn bytes(&self) -> u64 {
        self.below.bytes()
    }

    fn claim(&self) -> Result<(), OpenError> {
        self.below.claim()
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn IoQueue>> {
        let below = self.below.queue(depth)?;
        let (hung, done, reads) = (VecDeque::new(), VecDeque::new(), Vec::new());
        let faults = self.faults.clone();
        Ok(Box::new(FaultyQueue { below, faults, hung, kept: None, done, reads }))
    }
}

struct FaultyQueue {
    below: Box<dyn IoQueue>,
    faults: Arc<DeviceFaults>,
    hung: VecDeque<Io>,
    kept: Option<Io>,
    done: VecDeque<IoDone>,
    /// Where reads go whose bytes are to be changed.
    reads: Vec<(u64, Piece)>,
}

impl FaultyQueue {
    fn pass(&mut self, mut io: Io, state: State) {
        let error = match io.kind {
            IoKind::Read => state.read_error,
            IoKind::Write => state.write_error,
            IoKind::Flush => state.flush_error,
        };
        if let Some(errno) = error {
            let result = Err(io::Error::from_raw_os_error(errno));
            self.done.push_back(IoDone { token: io.token, result });
            return;
        }
        if state.short_writes && io.kind == IoKind::Write {
            io.pieces.truncate(1);
            // SAFETY: a shorter run of the same memory.
            let first = unsafe { Piece::new(io.pieces[0].at(), crate::tiers::PAGE_BYTES) };
            io.pieces[0] = first;
        }
        if state.changes_reads && io.kind == IoKind::Read {
            self.reads.push((io.token, io.pieces[0]));
        }
        self.below.submit(io);
    }

    fn finish(&mut self, done: IoDone) -> IoDone {
        if let Some(at) = self.reads.iter().position(|(token, _)| *token == done.token) {
            let (_, piece) = self.reads.swap_remove(at);
            // SAFETY: the read is not yet reported, so that its memory is still the queue's.
            let bytes = unsafe { memory_of_mut(&piece) };
            bytes[0] ^= 1;
        }
        done
    }
}

impl IoQueue for FaultyQueue {
    fn submit(&mut self, io: Io) {
        let mut state = self.faults.state.lock();
        if state.keeps_next && io.kind == IoKind::Write {
            state.keeps_next = false;
            self.kept = Some(io);
            return;
        }
        let now = *state;
        drop(state);
        if now.hangs || !self.hung.is_empty() {
            self.hung.push_back(io)
        } else {
            self.pass(io, now)
        }
    }

    fn complete(&mut self, wait: Duration) -> Option<IoDone> {
        let end = Instant::now() + wait;
        let faults = self.faults.clone();
        let mut state = faults.state.lock();
        while state.hangs || (self.kept.is_some() && state.keeps) {
            if faults.changed.wait_until(&mut state, end).timed_out() {
                return None;
            }
        }
        let now = *state;
        drop(state);
        for io in self.kept.take().into_iter().chain(std::mem::take(&mut self.hung)) {
            self.pass(io, now);
        }
        if let Some(done) = self.done.pop_front() {
            return Some(done);
        }
        let done = self.below.complete(end.saturating_duration_since(Instant::now()))?;
        Some(self.finish(done))
    }
}
