//! Reads of one thread over all devices, straight into the callers' pieces.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::shard::Shard;
use crate::flash::device::{Done, IoKind, Pipe, Request};
use crate::tiers::{
    Piece, ReadDone, ReadQueue, ReadRefused, TierError, TierRead, are_sound, hash_of, pages_of,
};

/// A wait on several queues looks at each again after so long, should one have no descriptor.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

pub(in crate::flash) struct FlashReads {
    shards: Arc<[Arc<Shard>]>,
    depth: usize,
    /// One queue a device, opened at its first read.
    pipes: Vec<Option<Pipe>>,
    /// What each read in flight is to be held against; a pipe's tokens are places here.
    expected: Vec<Option<Expected>>,
    /// Reads of devices that were given up.
    given_up: VecDeque<ReadDone>,
}

struct Expected {
    token: u64,
    device: usize,
    segment: u32,
    life: u32,
    checksum: u64,
    pieces: Vec<Piece>,
}

impl FlashReads {
    pub fn new(shards: Arc<[Arc<Shard>]>, depth: usize) -> FlashReads {
        let pipes = shards.iter().map(|_| None).collect();
        let expected = (0..depth).map(|_| None).collect();
        FlashReads { shards, depth, pipes, expected, given_up: VecDeque::new() }
    }

    fn check(&mut self, read: &TierRead) -> Result<(usize, u64), TierError> {
        if self.in_flight() >= self.depth {
            return Err(TierError::Busy { what: "a queue's reads", limit: self.depth as u64 });
        }
        if !are_sound(&read.pieces, read.part.len) {
            return Err(TierError::Invalid("pieces are whole aligned pages but the last's end"));
        }
        let device = usize::from(read.spot.device);
        let shard = self.shards.get(device).ok_or(TierError::Gone)?;
        if let Some(error) = shard.fenced() {
            return Err(error);
        }
        let page = u64::from(read.spot.payload_page) + u64::from(read.part.first_page);
        {
            let segments = shard.segments.lock();
            segments.living(read.spot.segment, read.spot.life)?;
            if page == 0 || page + pages_of(read.part.len) > u64::from(segments.pages()) {
                return Err(TierError::Invalid("the part does not lie in its segment"));
            }
        }
        if self.pipes[device].is_none() {
            self.pipes[device] = Some(shard.open_pipe(self.depth)?);
        }
        Ok((device, shard.offset(read.spot.segment, page as u32)))
    }

    /// Gives up devices whose oldest read is past its time.
    fn give_up(&mut self) {
        for (device, place) in self.pipes.iter_mut().enumerate() {
            let shard = &self.shards[device];
            let late =
                |pipe: &Pipe| pipe.oldest().is_some_and(|at| at.elapsed() >= shard.op_timeout);
            if !place.as_ref().is_some_and(late) {
                continue;
            }
            let Some(pipe) = place.take() else { continue };
            let error = shard.overdue("read");
            for slot in pipe.tokens() {
                let expected = self.expected[slot as usize].take().expect("a read in flight");
                let (token, result) = (expected.token, Err(error.clone()));
                self.given_up.push_back(ReadDone { token, result, hold: None });
            }
            shard.close_pipe(pipe);
        }
    }

    fn poll_pipes(&mut self, wait: Duration) -> Option<(usize, Done)> {
        for (device, pipe) in self.pipes.iter_mut().enumerate() {
            if let Some(pipe) = pipe.as_mut().filter(|pipe| pipe.in_flight() > 0)
                && let Some(done) = pipe.complete(wait)
            {
                return Some((device, done));
            }
        }
        None
    }

    /// Waits until a read may be over.
    fn wait(&mut self, wait: Duration) -> Option<(usize, Done)> {
        let busy = self.pipes.iter().flatten().filter(|pipe| pipe.in_flight() > 0).count();
        if busy == 1 {
            return self.poll_pipes(wait);
        }
        if let Some(found) = self.poll_pipes(Duration::ZERO) {
            return Some(found);
        }
        self.pipes.iter_mut().flatten().for_each(Pipe::push);
        let pipes = self.pipes.iter().flatten().filter(|pipe| pipe.in_flight() > 0);
        let ready: Vec<_> = pipes.map(Pipe::ready).collect();
        let all = ready.iter().all(Option::is_some);
        let wait = if all { wait } else { wait.min(LOOK_AGAIN) };
        let mut fds: Vec<PollFd<'_>> =
            ready.iter().flatten().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let time = rustix::event::Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        let _ = poll(&mut fds, Some(&time));
        None
    }

    fn finish(&mut self, device: usize, done: Done) -> ReadDone {
        let shard = &self.shards[device];
        let expected = self.expected[done.token as usize].take().expect("a read in flight");
        debug_assert_eq!(expected.device, device);
        shard.count(IoKind::Read, done.bytes);
        shard.note_read(done.result.is_ok());
        let result = match done.result {
            Err(error) => Err(shard.io_error("read", &error)),
            // Looked at after the bytes came: the place was not written again before they did.
            Ok(()) => shard.segments.lock().living(expected.segment, expected.life).map(drop),
        };
        let result = result.and_then(|()| {
            let is_right = hash_of(&expected.pieces) == expected.checksum;
            let corrupt = TierError::Corrupt { device: shard.name(), what: "block" };
            if is_right { Ok(()) } else { Err(corrupt) }
        });
        ReadDone { token: expected.token, result, hold: done.hold }
    }
}

impl ReadQueue for FlashReads {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.expected.iter().flatten().count() + self.given_up.len()
    }

    fn submit(&mut self, read: TierRead) -> Result<(), ReadRefused> {
        let (device, offset) = match self.check(&read) {
            Ok(place) => place,
            Err(error) => return Err(ReadRefused { read, error }),
        };
        let slot = self.expected.iter().position(Option::is_none).expect("room in the queue");
        self.expected[slot] = Some(Expected {
            token: read.token,
            device,
            segment: read.spot.segment,
            life: read.spot.life,
            checksum: read.part.checksum,
            pieces: read.pieces.clone(),
        });
        let pipe = self.pipes[device].as_mut().expect("opened above");
        let (kind, pieces) = (IoKind::Read, read.pieces);
        let is_idle = pipe.in_flight() == 0;
        pipe.submit(Request { token: slot as u64, kind, offset, pieces, hold: Some(read.hold) });
        if is_idle {
            // The device begins while the reads that follow are made ready.
            pipe.push();
        }
        Ok(())
    }

    fn complete(&mut self, wait: Duration) -> Option<ReadDone> {
        let end = Instant::now() + wait;
        loop {
            if let Some(done) = self.given_up.pop_front() {
                return Some(done);
            }
            if self.in_flight() == 0 {
                return None;
            }
            let now = Instant::now();
            let deadlines = self
                .pipes
                .iter()
                .zip(self.shards.iter())
                .filter_map(|(pipe, shard)| Some(pipe.as_ref()?.oldest()? + shard.op_timeout));
            let until = deadlines.min().unwrap_or(end).min(end);
            if let Some((device, done)) = self.wait(until.saturating_duration_since(now)) {
                return Some(self.finish(device, done));
            }
            self.give_up();
            if self.given_up.is_empty() && Instant::now() >= end {
                return None;
            }
        }
    }
}

impl Drop for FlashReads {
    fn drop(&mut self) {
        for (pipe, shard) in self.pipes.iter_mut().zip(self.shards.iter()) {
            pipe.take().into_iter().for_each(|pipe| shard.close_pipe(pipe));
        }
    }
}
