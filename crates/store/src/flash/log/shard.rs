//! One device in service: its queues, its health, and what a device that hangs still has of ours.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Order;
use super::removal_log::RemovalLog;
use super::segments::Segments;
use crate::flash::device::{Device, IoKind, Pipe, Request};
use crate::flash::format::{SEGMENTS_AT, Superblock};
use crate::tiers::{AlignedBuffer, DeviceState, DeviceStatus, Hold, PAGE_BYTES, TierError};

/// Operations in flight of one blocking call.
pub(in crate::flash) const CALL_DEPTH: usize = 32;
/// Queues of one device; each is a descriptor.
pub(in crate::flash) const PIPES_MAX: usize = 64;
/// Reads that may fail in a row before the device is out of service.
const READ_ERRORS_MAX: u64 = 16;

/// One device of the set.
pub(in crate::flash) struct Shard {
    pub number: u8,
    pub device: Arc<dyn Device>,
    pub superblock: Mutex<Superblock>,
    pub segments: Mutex<Segments>,
    /// An append ended somewhere.
    pub ended: Condvar,
    pub removal_log: Mutex<RemovalLog>,
    /// One thread at a time begins lives.
    pub preparing: Mutex<()>,
    pub order: Arc<Order>,
    pub op_timeout: Duration,
    pub counts: Counts,
    health: Mutex<DeviceState>,
    idle: Mutex<Vec<Pipe>>,
    open_pipes: AtomicUsize,
    quarantine: Mutex<Vec<Pipe>>,
}

#[derive(Debug, Default)]
pub(in crate::flash) struct Counts {
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    pub payload_bytes: AtomicU64,
    pub flushes: AtomicU64,
    pub errors: AtomicU64,
    read_errors_in_a_row: AtomicU64,
}

/// What a call does: each a run of whole pages.
pub(in crate::flash) struct Call {
    pub what: &'static str,
    pub requests: Vec<Request>,
    /// Our own memory among the requests' pieces.
    pub buffers: Vec<AlignedBuffer>,
}

impl Call {
    pub fn new(what: &'static str) -> Call {
        Call { what, requests: Vec::new(), buffers: Vec::new() }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let buffer = AlignedBuffer::of(bytes);
        // SAFETY: the call keeps its buffers until its operations are over (`Shard::run`).
        let pieces = vec![unsafe { buffer.piece(bytes.len()) }];
        let (token, kind) = (0, IoKind::Write);
        self.requests.push(Request { token, kind, offset, pieces, hold: None });
        self.buffers.push(buffer);
    }
}

fn flush_request() -> Request {
    Request { token: 0, kind: IoKind::Flush, offset: 0, pieces: Vec::new(), hold: None }
}

impl Shard {
    pub fn new(
        number: u8,
        device: Arc<dyn Device>,
        superblock: Superblock,
        order: Arc<Order>,
        op_timeout: Duration,
    ) -> Shard {
        Shard {
            number,
            device,
            segments: Mutex::new(Segments::new(&superblock)),
            ended: Condvar::new(),
            superblock: Mutex::new(superblock),
            removal_log: Mutex::default(),
            preparing: Mutex::new(()),
            order,
            op_timeout,
            counts: Counts::default(),
            health: Mutex::new(DeviceState::Live),
            idle: Mutex::default(),
            open_pipes: AtomicUsize::new(0),
            quarantine: Mutex::default(),
        }
    }

    pub fn name(&self) -> String {
        self.device.name().to_owned()
    }

    pub fn health(&self) -> DeviceState {
        self.health.lock().clone()
    }

    pub fn is_live(&self) -> bool {
        *self.health.lock() == DeviceState::Live
    }

    pub fn is_fenced(&self) -> bool {
        matches!(*self.health.lock(), DeviceState::Fenced { .. })
    }

    /// Takes the device out of service; the first reason stays.
    pub fn fence(&self, why: String) {
        let mut health = self.health.lock();
        if !matches!(*health, DeviceState::Fenced { .. }) {
            *health = DeviceState::Fenced { why };
        }
    }

    /// The device takes no more; its blocks can be read.
    pub fn stop_writes(&self, why: String) {
        let mut health = self.health.lock();
        if *health == DeviceState::Live {
            *health = DeviceState::ReadOnly { why };
        }
    }

    pub fn fenced(&self) -> Option<TierError> {
        match &*self.health.lock() {
            DeviceState::Fenced { why } => {
                Some(TierError::Fenced { device: self.name(), why: why.clone() })
            }
            _ => None,
        }
    }

    /// Where a page of a segment is on the device.
    pub fn offset(&self, segment: u32, page: u32) -> u64 {
        let segment_bytes = self.segments.lock().segment_bytes;
        SEGMENTS_AT + u64::from(segment) * segment_bytes + u64::from(page) * PAGE_BYTES as u64
    }

    /// A queue of the device, counted.
    pub fn open_pipe(&self, depth: usize) -> Result<Pipe, TierError> {
        if self.open_pipes.fetch_add(1, Ordering::AcqRel) >= PIPES_MAX {
            self.open_pipes.fetch_sub(1, Ordering::AcqRel);
            return Err(TierError::Busy { what: "queues of a device", limit: PIPES_MAX as u64 });
        }
        match self.device.queue(depth) {
            Ok(queue) => Ok(Pipe::new(queue, depth)),
            Err(error) => {
                self.open_pipes.fetch_sub(1, Ordering::AcqRel);
                Err(self.io_error("open a queue", &error))
            }
        }
    }

    /// Gives a queue back: closed if nothing is in flight, else kept until nothing is.
    pub fn close_pipe(&self, pipe: Pipe) {
        if pipe.in_flight() == 0 {
            self.open_pipes.fetch_sub(1, Ordering::AcqRel);
        } else {
            self.quarantine.lock().push(pipe);
        }
    }

    /// Lets go of memory that a hung device has given back.
    pub fn reap(&self) {
        let (mut over, mut given_back) = (Vec::new(), Vec::new());
        let mut quarantine = self.quarantine.lock();
        let mut at = 0;
        while at < quarantine.len() {
            let pipe = &mut quarantine[at];
            given_back.extend(std::iter::from_fn(|| pipe.complete(Duration::ZERO)));
            if pipe.in_flight() > 0 {
                at += 1;
            } else {
                over.push(quarantine.swap_remove(at));
                self.open_pipes.fetch_sub(1, Ordering::AcqRel);
            }
        }
        // What a hold does as it goes is its owner's business, and may take the owner's locks:
        // others wait here with those.
        drop(quarantine);
    }

    /// Operations whose memory a hung device still has.
    pub fn quarantined(&self) -> u64 {
        self.reap();
        self.quarantine.lock().iter().map(|pipe| pipe.in_flight() as u64).sum()
    }

    /// Runs a call to its end and gives its buffers back. `hold` keeps memory that is not the
    /// call's own; it is taken if the device still has it.
    pub fn run(
        &self,
        call: Call,
        hold: &mut Option<Hold>,
    ) -> Result<Vec<AlignedBuffer>, TierError> {
        if let Some(error) = self.fenced() {
            return Err(error);
        }
        let idle = self.idle.lock().pop();
        let mut pipe = match idle {
            Some(pipe) => pipe,
            None => self.open_pipe(CALL_DEPTH)?,
        };
        let result = self.run_on(&mut pipe, call.what, call.requests);
        if pipe.in_flight() > 0 {
            hold.take().into_iter().for_each(|hold| pipe.keep(hold));
            pipe.keep(Box::new(call.buffers));
            self.close_pipe(pipe);
            return Err(result.expect_err("only a failed call leaves operations in flight"));
        }
        let mut idle = self.idle.lock();
        if idle.len() < PIPES_MAX / 4 {
            idle.push(pipe);
        } else {
            drop(idle);
            self.close_pipe(pipe);
        }
        result.map(|()| call.buffers)
    }

    fn run_on(
        &self,
        pipe: &mut Pipe,
        what: &'static str,
        requests: Vec<Request>,
    ) -> Result<(), TierError> {
        let mut waiting = VecDeque::from(requests);
        let mut failure = None;
        loop {
            while failure.is_none()
                && pipe.in_flight() < pipe.depth()
                && let Some(request) = waiting.pop_front()
            {
                pipe.submit(request);
            }
            let Some(oldest) = pipe.oldest() else { break };
            let left = (oldest + self.op_timeout).saturating_duration_since(Instant::now());
            match pipe.complete(left) {
                Some(done) => {
                    self.count(done.kind, done.bytes);
                    if let Err(error) = done.result {
                        failure = Some(self.io_error(what, &error));
                    }
                }
                None if oldest.elapsed() < self.op_timeout => {}
                None => return Err(self.overdue(what)),
            }
        }
        failure.map_or(Ok(()), Err)
    }

    /// Fences a device that did not answer in time.
    pub fn overdue(&self, what: &'static str) -> TierError {
        self.counts.errors.fetch_add(1, Ordering::Relaxed);
        let waited_ms = self.op_timeout.as_millis() as u64;
        self.fence(format!("it did not {what} within {waited_ms} ms"));
        TierError::Deadline { device: self.name(), what, waited_ms }
    }

    pub fn io_error(&self, what: &'static str, error: &std::io::Error) -> TierError {
        self.counts.errors.fetch_add(1, Ordering::Relaxed);
        TierError::Io { device: self.name(), what, error: error.to_string() }
    }

    /// A device whose reads all fail is out of service; one bad place is not.
    pub fn note_read(&self, is_ok: bool) {
        let in_a_row = &self.counts.read_errors_in_a_row;
        if is_ok {
            in_a_row.store(0, Ordering::Relaxed);
        } else if in_a_row.fetch_add(1, Ordering::Relaxed) + 1 >= READ_ERRORS_MAX {
            self.fence(format!("{READ_ERRORS_MAX} reads in a row failed"));
        }
    }

    pub fn count(&self, kind: IoKind, bytes: u64) {
        match kind {
            IoKind::Read => &self.counts.read_bytes,
            IoKind::Write => &self.counts.written_bytes,
            IoKind::Flush => &self.counts.flushes,
        }
        .fetch_add(if kind == IoKind::Flush { 1 } else { bytes }, Ordering::Relaxed);
    }

    /// Reads pages, one buffer for each of these offsets, `pages` pages each.
    pub fn read_pages(
        &self,
        what: &'static str,
        offsets: &[u64],
        pages: usize,
    ) -> Result<Vec<AlignedBuffer>, TierError> {
        let buffers: Vec<AlignedBuffer> =
            offsets.iter().map(|_| AlignedBuffer::new(pages * PAGE_BYTES)).collect();
        let requests = buffers.iter().zip(offsets).map(|(buffer, &offset)| {
            // SAFETY: the call keeps its buffers until its operations are over (`run`).
            let pieces = vec![unsafe { buffer.piece(pages * PAGE_BYTES) }];
            Request { token: 0, kind: IoKind::Read, offset, pieces, hold: None }
        });
        let call = Call { what, requests: requests.collect(), buffers };
        self.run(call, &mut None)
    }

    /// Writes whole pages, each at its offset.
    pub fn write_pages(
        &self,
        what: &'static str,
        writes: Vec<(u64, Vec<u8>)>,
    ) -> Result<(), TierError> {
        let mut call = Call::new(what);
        for (offset, bytes) in writes {
            call.write(offset, &bytes);
        }
        self.run(call, &mut None).map(drop)
    }

    /// Makes what was written survive power loss.
    pub fn flush(&self) -> Result<(), TierError> {
        let call = Call { requests: vec![flush_request()], ..Call::new("flush") };
        self.run(call, &mut None).map(drop)
    }

    pub fn status(&self) -> DeviceStatus {
        let quarantined = self.quarantined();
        let segments = self.segments.lock();
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeviceStatus {
            name: self.name(),
            engine: self.device.engine(),
            state: self.health(),
            capacity_bytes: segments.segment_bytes * segments.count() as u64,
            segments: segments.count() as u32,
            segments_free: segments.free_count() as u32,
            live_bytes: segments.live_bytes(),
            read_bytes: count(&self.counts.read_bytes),
            written_bytes: count(&self.counts.written_bytes),
            payload_bytes: count(&self.counts.payload_bytes),
            flushes: count(&self.counts.flushes),
            errors: count(&self.counts.errors),
            quarantined,
        }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.reap();
        if !self.quarantine.lock().is_empty() {
            // Its operations may still reach the device: no other node may take it meanwhile.
            std::mem::forget(self.device.clone());
        }
    }
}
