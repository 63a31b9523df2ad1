//! The segments of one device: which are free, open, closed, and what is alive in each.

use std::collections::VecDeque;

use crate::flash::format::{SegmentHeader, Superblock};
use crate::tiers::{PAGE_BYTES, SegmentInfo, SegmentRef, Spot, StreamId, TierError};

/// Segments that appends leave, for the log of removals.
pub const RESERVED: usize = 1;
/// Streams that have an open segment on one device; beyond, the longest idle one's is closed.
const OPEN_MAX: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::flash) enum State {
    /// Its bytes are of no interest; an earlier life may still be claimed after a crash.
    Free,
    /// A life has begun and is flushed; nothing is written in it.
    Ready,
    /// Takes a stream's appends.
    Open,
    /// Full, or not appended to any more.
    Closed,
    /// Left by an earlier life of the node; recovery has not come to it yet.
    Unclaimed,
    /// Holds removals.
    Removals,
}

#[derive(Clone, Debug)]
pub(in crate::flash) struct Segment {
    pub state: State,
    pub header: SegmentHeader,
    pub stream: StreamId,
    /// Namespaces that were written to it; of an open one.
    pub namespaces: Vec<[u8; 32]>,
    pub next_page: u32,
    pub position: u32,
    /// Appends that took places in this life, and those of them that are over, in this order.
    pub begun: u32,
    pub ended: u32,
    /// One of them failed: a restart finds nothing that lies behind it.
    pub is_cut: bool,
    pub blocks: u32,
    pub live_bytes: u64,
    /// No block that recovery might claim here is older. `u64::MAX`: there is none.
    pub oldest: u64,
}

pub(in crate::flash) struct Segments {
    pub segment_bytes: u64,
    list: Vec<Segment>,
    free: VecDeque<u32>,
    ready: VecDeque<u32>,
    /// The longest idle first.
    open: Vec<(StreamId, u32)>,
}

impl Segments {
    /// All free, none with a life.
    pub fn new(superblock: &Superblock) -> Segments {
        let count = superblock.segments();
        let segment = |segment| Segment {
            state: State::Free,
            header: SegmentHeader { device: superblock.device, segment, life: 0, nonce: [0; 32] },
            stream: StreamId(0),
            namespaces: Vec::new(),
            next_page: 1,
            position: 0,
            begun: 0,
            ended: 0,
            is_cut: false,
            blocks: 0,
            live_bytes: 0,
            oldest: u64::MAX,
        };
        Segments {
            segment_bytes: superblock.segment_bytes,
            list: (0..count).map(segment).collect(),
            free: (0..count).collect(),
            ready: VecDeque::new(),
            open: Vec::new(),
        }
    }

    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Pages of a segment, its header's among them.
    pub fn pages(&self) -> u32 {
        (self.segment_bytes / PAGE_BYTES as u64) as u32
    }

    pub fn free_count(&self) -> usize {
        self.free.len() + self.ready.len()
    }

    pub fn live_bytes(&self) -> u64 {
        self.list.iter().map(|segment| segment.live_bytes).sum()
    }

    pub fn get(&self, segment: u32) -> Option<&Segment> {
        self.list.get(segment as usize)
    }

    pub fn get_mut(&mut self, segment: u32) -> Option<&mut Segment> {
        self.list.get_mut(segment as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Segment> {
        self.list.iter()
    }

    /// What a restart found in a segment; it is not free then.
    pub fn found(&mut self, header: SegmentHeader, state: State, oldest: u64) {
        let segment = &mut self.list[header.segment as usize];
        (segment.header, segment.state, segment.oldest) = (header, state, oldest);
        if state != State::Free {
            self.free.retain(|other| *other != header.segment);
        }
    }

    /// The life that a spot or a reference names, while it lasts.
    pub fn living(&self, segment: u32, life: u32) -> Result<&Segment, TierError> {
        let found = self.get(segment).filter(|found| found.header.life == life);
        let is_living = |found: &&Segment| !matches!(found.state, State::Free | State::Ready);
        found.filter(is_living).ok_or(TierError::Gone)
    }

    /// The open segment of a stream.
    pub fn open_of(&self, stream: StreamId) -> Option<u32> {
        self.open.iter().find(|(owner, _)| *owner == stream).map(|(_, segment)| *segment)
    }

    /// Whether some stream appends here.
    pub fn is_any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Lives that appends may take, the first to be used first.
    pub fn ready(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.ready.iter().copied()
    }

    /// How many segments an append may use beside the ready ones.
    pub fn spare(&self) -> usize {
        self.free.len().saturating_sub(RESERVED)
    }

    /// Takes up to `count` free segments to begin their next life; all, or but the reserved.
    pub fn take_free(&mut self, count: usize, reserve: bool) -> Vec<u32> {
        let there = if reserve { self.spare() } else { self.free.len() };
        self.free.drain(..count.min(there)).collect()
    }

    /// The lives of these segments begun, and are flushed.
    pub fn begun(&mut self, headers: &[SegmentHeader]) {
        for header in headers {
            self.restart(header.segment, State::Ready);
            let segment = &mut self.list[header.segment as usize];
            (segment.header, segment.oldest) = (*header, u64::MAX);
            self.ready.push_back(header.segment);
        }
    }

    /// Their lives did not begin.
    pub fn give_back(&mut self, segments: &[u32]) {
        self.free.extend(segments);
    }

    /// Takes one ready segment for removals.
    pub fn take_ready(&mut self) -> Option<u32> {
        let segment = self.ready.pop_back()?;
        self.list[segment as usize].state = State::Removals;
        Some(segment)
    }

    /// Opens the first ready segment for a stream, closing the one it had.
    pub fn open(&mut self, stream: StreamId) -> u32 {
        self.close(stream);
        if self.open.len() >= OPEN_MAX {
            self.close(self.open[0].0);
        }
        let segment = self.ready.pop_front().expect("planned with it");
        let opened = &mut self.list[segment as usize];
        (opened.state, opened.stream) = (State::Open, stream);
        self.open.push((stream, segment));
        segment
    }

    /// A stream's segment takes no more.
    pub fn close(&mut self, stream: StreamId) {
        if let Some(at) = self.open.iter().position(|(owner, _)| *owner == stream) {
            let (_, segment) = self.open.remove(at);
            let closed = &mut self.list[segment as usize];
            closed.state = State::Closed;
            closed.namespaces = Vec::new();
        }
    }

    /// A stream's segment was appended to just now.
    pub fn touch(&mut self, stream: StreamId) {
        if let Some(at) = self.open.iter().position(|(owner, _)| *owner == stream) {
            self.open[at..].rotate_left(1);
        }
    }

    /// Frees a segment. What may be claimed in it after a crash, it keeps.
    pub fn free(&mut self, segment: u32) {
        let stream = self.list[segment as usize].stream;
        if self.open_of(stream) == Some(segment) {
            self.close(stream);
        }
        self.restart(segment, State::Free);
        self.free.push_back(segment);
    }

    fn restart(&mut self, segment: u32, state: State) {
        let segment = &mut self.list[segment as usize];
        segment.state = state;
        segment.namespaces = Vec::new();
        (segment.next_page, segment.position, segment.blocks) = (1, 0, 0);
        (segment.begun, segment.ended, segment.is_cut) = (0, 0, false);
        segment.live_bytes = 0;
    }

    pub fn reclaim(&mut self, at: SegmentRef) -> Result<(), TierError> {
        let segment = self.living(at.segment, at.life)?;
        match segment.state {
            State::Unclaimed => return Err(TierError::Busy { what: "recovery", limit: 1 }),
            State::Removals => return Err(TierError::Gone),
            _ if segment.begun > segment.ended => {
                let limit = (segment.begun - segment.ended).into();
                return Err(TierError::Busy { what: "appends to the segment", limit });
            }
            _ => {}
        }
        self.free(at.segment);
        Ok(())
    }

    pub fn forget(&mut self, spot: Spot, bytes: u64) {
        let segment = self.get_mut(spot.segment).filter(|found| found.header.life == spot.life);
        if let Some(segment) = segment {
            segment.live_bytes = segment.live_bytes.saturating_sub(bytes);
        }
    }

    pub fn of_stream(
        &self,
        device: u8,
        stream: StreamId,
    ) -> impl Iterator<Item = SegmentInfo> + '_ {
        let holds = |segment: &&Segment| matches!(segment.state, State::Open | State::Closed);
        let own = self.list.iter().filter(holds).filter(move |found| found.stream == stream);
        own.map(move |found| SegmentInfo {
            segment: SegmentRef { device, segment: found.header.segment, life: found.header.life },
            blocks: found.blocks,
            live_bytes: found.live_bytes,
            used_bytes: u64::from(found.next_page) * PAGE_BYTES as u64,
            is_open: found.state == State::Open,
        })
    }

    /// No block that recovery might ever claim on this device is older.
    pub fn oldest(&self) -> u64 {
        self.list.iter().map(|segment| segment.oldest).min().unwrap_or(u64::MAX)
    }

    /// Free segments whose earlier life might still be claimed.
    pub fn take_unclean(&mut self, count: usize) -> Vec<u32> {
        let is_unclean = |segment: &&u32| self.list[**segment as usize].oldest < u64::MAX;
        let taken: Vec<u32> = self.free.iter().filter(is_unclean).take(count).copied().collect();
        self.free.retain(|segment| !taken.contains(segment));
        taken
    }
}
