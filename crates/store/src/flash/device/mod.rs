//! Devices: flat ranges of bytes with queues of I/O. [`FileDevice`] is a file or a block device;
//! the others are for tests: one in memory that loses power, one that fails, one that counts.

mod counting;
mod faulty;
mod file;
mod lock;
mod memory;
mod pipe;
mod threads;
mod uring;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use counting::{CountingDevice, DeviceCounts};
pub use faulty::{DeviceFaults, FaultyDevice};
pub use file::{Engine, FileDevice, OpenMode};
pub use memory::MemDevice;
pub(crate) use pipe::{Done, Pipe, Request};

use super::error::OpenError;
use crate::tiers::Piece;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// From the device into the pieces.
    Read,
    /// From the pieces to the device.
    Write,
    /// Everything written and completed before survives power loss.
    Flush,
}

/// One operation. Offset and pieces are whole pages.
#[derive(Clone, Debug)]
pub struct Io {
    /// The submitter's name for it.
    pub token: u64,
    /// What it does.
    pub kind: IoKind,
    /// Where on the device.
    pub offset: u64,
    /// The memory, in order; their padded lengths count. Empty for a flush.
    pub pieces: Vec<Piece>,
}

impl Io {
    /// Bytes that it moves.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(Piece::padded).sum()
    }
}

/// An operation that is over. Fewer bytes than asked for are not an error: the submitter goes on.
#[derive(Debug)]
pub struct IoDone {
    /// Which one.
    pub token: u64,
    /// Bytes moved.
    pub result: io::Result<usize>,
}

/// Operations of one thread at a time. The submitter keeps their memory until they complete, or
/// until the queue has been dropped **and** nothing was in flight then.
pub trait IoQueue: Send {
    /// Starts an operation; at most as many as the queue was opened for are in flight.
    fn submit(&mut self, io: Io);

    /// The next one that is over, within `wait`.
    fn complete(&mut self, wait: Duration) -> Option<IoDone>;

    /// Readable when one may be over, for waiting on several queues; `None` if there is no such.
    fn ready(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Tells the system of what was submitted, without waiting.
    fn push(&mut self) {}
}

/// A range of bytes.
pub trait Device: Send + Sync {
    /// Its path or name, for messages.
    fn name(&self) -> &str;

    /// How I/O is done here, for people.
    fn engine(&self) -> String;

    /// How many bytes it has.
    fn bytes(&self) -> u64;

    /// Makes it this opener's alone until the device is dropped.
    ///
    /// # Errors
    /// `InUse` if it is another's.
    fn claim(&self) -> Result<(), OpenError> {
        Ok(())
    }

    /// A queue for up to `depth` operations.
    ///
    /// # Errors
    /// What the system said.
    fn queue(&self, depth: usize) -> io::Result<Box<dyn IoQueue>>;
}
