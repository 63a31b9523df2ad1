//! A device that counts what is asked of the one below.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Device, Io, IoDone, IoKind, IoQueue};
use crate::flash::error::OpenError;

/// What was asked of a device.
#[derive(Debug, Default)]
pub struct DeviceCounts {
    /// Reads.
    pub reads: AtomicU64,
    /// Their bytes.
    pub read_bytes: AtomicU64,
    /// Writes.
    pub writes: AtomicU64,
    /// Their bytes.
    pub written_bytes: AtomicU64,
    /// Flushes.
    pub flushes: AtomicU64,
    /// Queues opened.
    pub queues: AtomicU64,
}

/// A device over another.
pub struct CountingDevice {
    below: Arc<dyn Device>,
    counts: Arc<DeviceCounts>,
}

impl CountingDevice {
    /// Counts what goes to `below`.
    pub fn new(below: Arc<dyn Device>) -> CountingDevice {
        CountingDevice { below, counts: Arc::default() }
    }

    /// What went there.
    pub fn counts(&self) -> &Arc<DeviceCounts> {
        &self.counts
    }
}

impl Device for CountingDevice {
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
        self.counts.queues.fetch_add(1, Ordering::Relaxed);
        let below = self.below.queue(depth)?;
        Ok(Box::new(CountingQueue { below, counts: self.counts.clone() }))
    }
}

struct CountingQueue {
    below: Box<dyn IoQueue>,
    counts: Arc<DeviceCounts>,
}

impl IoQueue for CountingQueue {
    fn submit(&mut self, io: Io) {
        let (times, bytes) = match io.kind {
            IoKind::Read => (&self.counts.reads, Some(&self.counts.read_bytes)),
            IoKind::Write => (&self.counts.writes, Some(&self.counts.written_bytes)),
            IoKind::Flush => (&self.counts.flushes, None),
        };
        times.fetch_add(1, Ordering::Relaxed);
        if let Some(sum) = bytes {
            sum.fetch_add(io.bytes() as u64, Ordering::Relaxed);
        }
        self.below.submit(io);
    }

    fn complete(&mut self, wait: Duration) -> Option<IoDone> {
        self.below.complete(wait)
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.below.ready()
    }

    fn push(&mut self) {
        self.below.push();
    }
}
