//! A device in memory that can lose power: of everything written since the last flush, an arbitrary
//! subset of 512-byte sectors is there afterwards.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Device, Io, IoDone, IoKind, IoQueue};
use crate::flash::error::OpenError;
use crate::tiers::{Piece, memory_of, memory_of_mut};

/// What a device writes whole or not at all.
const SECTOR: usize = 512;

/// One opener's handle of bytes that outlive it.
pub struct MemDevice {
    name: String,
    state: Arc<Mutex<State>>,
    claimed: Arc<AtomicBool>,
    /// This handle is the one that claimed it.
    is_mine: AtomicBool,
}

struct State {
    /// What survives for certain.
    durable: Vec<u8>,
    /// What reads see while the power is on.
    current: Vec<u8>,
    /// Sectors written since the last flush, in order.
    unflushed: Vec<(usize, [u8; SECTOR])>,
    /// Operations until the power goes.
    left: Option<u64>,
}

impl MemDevice {
    /// So many zeros.
    pub fn new(name: &str, bytes: usize) -> MemDevice {
        let state = State {
            durable: vec![0; bytes],
            current: vec![0; bytes],
            unflushed: Vec::new(),
            left: None,
        };
        MemDevice {
            name: name.to_owned(),
            state: Arc::new(Mutex::new(state)),
            claimed: Arc::default(),
            is_mine: AtomicBool::default(),
        }
    }

    /// Another opener's handle of the same bytes.
    pub fn again(&self) -> MemDevice {
        MemDevice {
            name: self.name.clone(),
            state: self.state.clone(),
            claimed: self.claimed.clone(),
            is_mine: AtomicBool::default(),
        }
    }

    /// Power is lost and comes back. `random` says of each sector whether it survived: a number
    /// below its argument. How many do differs by crash; of two writes of a sector, either may.
    pub fn crash(&self, random: &mut dyn FnMut(u64) -> u64) {
        let state = &mut *self.state.lock();
        let survive_in_ten = random(11);
        for (offset, content) in state.unflushed.drain(..) {
            if random(10) < survive_in_ten {
                state.durable[offset..offset + SECTOR].copy_from_slice(&content);
            }
        }
        state.current.copy_from_slice(&state.durable);
        state.left = None;
    }

    /// After so many more operations nothing is done any more: the power goes in the middle of
    /// something. [`crash`](Self::crash) brings it back.
    pub fn cut_power_after(&self, operations: u64) {
        self.state.lock().left = Some(operations);
    }

    /// Changes bytes in place, durably, as rot or a stranger would.
    pub fn tamper(&self, change: &mut dyn FnMut(&mut [u8])) {
        let state = &mut *self.state.lock();
        change(&mut state.current);
        state.durable.copy_from_slice(&state.current);
        state.unflushed.clear();
    }
}

impl State {
    fn run(&mut self, io: &Io) -> io::Result<usize> {
        match &mut self.left {
            Some(0) => return Err(io::Error::other("the power is gone")),
            Some(left) => *left -= 1,
            None => {}
        }
        let (mut at, end) = (io.offset as usize, io.offset as usize + io.bytes());
        if end > self.current.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for piece in &io.pieces {
            match io.kind {
                IoKind::Read => self.read(at, piece),
                IoKind::Write => self.write(at, piece),
                IoKind::Flush => {}
            }
            at += piece.padded();
        }
        if io.kind == IoKind::Flush {
            for (offset, content) in self.unflushed.drain(..) {
                self.durable[offset..offset + SECTOR].copy_from_slice(&content);
            }
        }
        Ok(io.bytes())
    }

    fn read(&self, at: usize, piece: &Piece) {
        // SAFETY: a queue's submitter keeps the memory until the operation completes, which is
        // before this returns, and nobody else touches it. `tests/tier_conformance.rs`.
        unsafe { memory_of_mut(piece) }.copy_from_slice(&self.current[at..at + piece.padded()]);
    }

    fn write(&mut self, at: usize, piece: &Piece) {
        // SAFETY: as above; a write only reads it.
        let bytes = unsafe { memory_of(piece) };
        self.current[at..at + bytes.len()].copy_from_slice(bytes);
        for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            let content = sector.try_into().expect("a sector");
            self.unflushed.push((at + number * SECTOR, content));
        }
    }
}

impl Device for MemDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn engine(&self) -> String {
        "memory".into()
    }

    fn bytes(&self) -> u64 {
        self.state.lock().current.len() as u64
    }

    fn claim(&self) -> Result<(), OpenError> {
        if self.claimed.swap(true, Ordering::AcqRel) {
            return Err(OpenError::InUse { device: self.name.clone(), by: "this process".into() });
        }
        self.is_mine.store(true, Ordering::Release);
        Ok(())
    }

    fn queue(&self, _depth: usize) -> io::Result<Box<dyn IoQueue>> {
        Ok(Box::new(MemQueue { state: self.state.clone(), done: VecDeque::new() }))
    }
}

impl Drop for MemDevice {
    fn drop(&mut self) {
        if self.is_mine.load(Ordering::Acquire) {
            self.claimed.store(false, Ordering::Release);
        }
    }
}

struct MemQueue {
    state: Arc<Mutex<State>>,
    done: VecDeque<IoDone>,
}

impl IoQueue for MemQueue {
    fn submit(&mut self, io: Io) {
        let result = self.state.lock().run(&io);
        self.done.push_back(IoDone { token: io.token, result });
    }

    fn complete(&mut self, _wait: Duration) -> Option<IoDone> {
        self.done.pop_front()
    }
}
