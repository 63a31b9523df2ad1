//! Appends on one device: plan and take the places under the lock, write without it.

use super::plan::{Lack, Run, commit, plan};
use super::segments::RESERVED;
use super::shard::{Call, Shard};
use crate::flash::device::{IoKind, Request};
use crate::flash::format::{RecordPlace, SegmentHeader, encode_record, encode_segment};
use crate::tiers::{
    AlignedBuffer, Hold, PAGE_BYTES, Piece, Sequence, Spot, Stream, TierBlock, TierError,
};

/// Lives begun at a time: one flush for all of them.
pub const BEGIN_MAX: usize = 4;
/// One write is about as large; a batch has several in flight.
const WRITE_BYTES: usize = 2 << 20;
const WRITE_SLACK: usize = 64 << 10;
/// Pieces of one write, at most.
const PIECES_MAX: usize = 512;
/// Another append may take what was made ready for this one.
pub const ATTEMPTS: usize = 8;

impl Shard {
    /// Appends all blocks or none; `NoSegment` changes nothing. Appends to one segment are written
    /// beside each other and end in the order of their places: a restart finds a record only
    /// behind all that lie before it, and what has returned must be found.
    pub fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        let runs = self.take_places(stream, as_of, blocks)?;
        let turns: Vec<Turn<'_>> = runs.iter().map(|run| Turn::of(self, run)).collect();
        let mut result = Ok(());
        for (run, turn) in runs.iter().zip(turns) {
            if result.is_ok() {
                result = self.write_run(run, blocks, hold);
                if let Err(error) = &result {
                    self.stop_writes(format!("an append failed: {error}"));
                }
            }
            if !turn.end(result.is_ok()) && result.is_ok() {
                let error = "one before it in its segment failed".to_owned();
                result = Err(TierError::Io { device: self.name(), what: "append", error });
            }
        }
        if let Err(error) = result {
            runs.iter().for_each(|run| self.disown(run));
            return Err(error);
        }
        Ok(spots_of(self.number, &runs, blocks.len()))
    }

    fn take_places(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
    ) -> Result<Vec<Run>, TierError> {
        for _ in 0..ATTEMPTS {
            let missing = {
                let mut segments = self.segments.lock();
                match plan(&segments, stream, as_of.0, blocks) {
                    Ok(runs) => {
                        commit(&mut segments, stream, as_of.0, &runs);
                        return Ok(runs);
                    }
                    Err(Lack::TooLarge(error)) => return Err(error),
                    Err(Lack::Ready(count)) => count,
                }
            };
            self.make_ready(missing)?;
        }
        Err(TierError::NoSegment { tier: self.name() })
    }

    /// Begins lives until there are so many ready ones.
    fn make_ready(&self, count: usize) -> Result<(), TierError> {
        let _one = self.preparing.lock();
        let taken = {
            let mut segments = self.segments.lock();
            let missing = count.saturating_sub(segments.ready().len());
            if missing == 0 {
                return Ok(());
            }
            if segments.spare() < missing {
                return Err(TierError::NoSegment { tier: self.name() });
            }
            segments.take_free(missing.max(BEGIN_MAX), true)
        };
        self.begin(&taken)
    }

    /// Begins the next life of these segments, which are nobody's: the old life ends, for good,
    /// before the first record of the new one can land.
    pub fn begin(&self, taken: &[u32]) -> Result<(), TierError> {
        let (headers, writes) = self.next_lives(taken);
        let written = self.write_pages("begin a segment", writes).and_then(|()| self.flush());
        let mut segments = self.segments.lock();
        if let Err(error) = written {
            // The old life may be there or not: it counts as there.
            segments.give_back(taken);
            drop(segments);
            self.stop_writes(format!("a segment could not begin: {error}"));
            return Err(error);
        }
        segments.begun(&headers);
        Ok(())
    }

    fn next_lives(&self, taken: &[u32]) -> (Vec<SegmentHeader>, Vec<(u64, Vec<u8>)>) {
        let device = self.superblock.lock().device;
        let headers: Vec<SegmentHeader> = taken
            .iter()
            .map(|&segment| {
                let (life, nonce) = (self.order.next_life(), random());
                SegmentHeader { device, segment, life, nonce }
            })
            .collect();
        let page =
            |header: &SegmentHeader| (self.offset(header.segment, 0), encode_segment(header));
        let writes = headers.iter().map(page).collect();
        (headers, writes)
    }

    /// Begins the next lives if an append took the last that was ready: the next to roll over then
    /// waits for no flush. Appends go on beside it.
    pub fn prepare(&self) {
        let Some(_one) = self.preparing.try_lock() else { return };
        let taken = {
            let mut segments = self.segments.lock();
            if !segments.is_any_open() || segments.ready().len() > 0 {
                return;
            }
            segments.take_free(BEGIN_MAX, true)
        };
        if !taken.is_empty() {
            // A device that fails here takes no more: the next append finds that out.
            let _ = self.begin(&taken);
        }
    }

    fn write_run(
        &self,
        run: &Run,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<(), TierError> {
        let mut call = Call::new("append");
        let mut writes = Writes {
            at: self.offset(run.header.segment, run.first_page),
            pieces: Vec::new(),
            bytes: 0,
        };
        for (position, planned) in (run.first_position..).zip(&run.records) {
            let place = RecordPlace { segment: &run.header, position };
            let buffer = AlignedBuffer::of(&encode_record(&planned.record, place));
            // SAFETY: the call keeps its buffers until its operations are over (`Shard::run`).
            writes.add(unsafe { buffer.piece(buffer.bytes().len()) }, &mut call.requests);
            call.buffers.push(buffer);
            for part in blocks[planned.blocks.clone()].iter().flat_map(|block| &block.parts) {
                part.pieces.iter().for_each(|piece| writes.add(*piece, &mut call.requests));
            }
        }
        writes.cut(&mut call.requests);
        self.run(call, hold).map(drop)
    }

    /// What was planned into these segments is not there.
    fn disown(&self, run: &Run) {
        let mut segments = self.segments.lock();
        if let Some(segment) = segments.get_mut(run.header.segment) {
            segment.live_bytes = segment.live_bytes.saturating_sub(run.payload_bytes);
            segment.blocks -= run.blocks.min(segment.blocks);
        }
    }

    /// Ends, for good, the earlier lives of free segments that keep removals from being forgotten.
    /// Whether there were any.
    pub fn clean(&self) -> Result<bool, TierError> {
        let _one = self.preparing.lock();
        let taken = self.segments.lock().take_unclean(64);
        if taken.is_empty() {
            return Ok(false);
        }
        self.begin(&taken)?;
        Ok(true)
    }

    /// A segment with a begun life, for removals; the reserved one if there is no other.
    pub fn begin_for_removals(&self) -> Result<SegmentHeader, TierError> {
        let _one = self.preparing.lock();
        for _ in 0..=RESERVED {
            let taken = {
                let mut segments = self.segments.lock();
                if let Some(segment) = segments.take_ready() {
                    return Ok(segments.get(segment).expect("a ready one").header);
                }
                segments.take_free(1, false)
            };
            if taken.is_empty() {
                break;
            }
            self.begin(&taken)?;
        }
        Err(TierError::NoSegment { tier: self.name() })
    }
}

/// An append's place among those of one segment. One that goes unwritten, a panic's too, cuts off
/// those behind it.
struct Turn<'a> {
    shard: &'a Shard,
    segment: u32,
    turn: u32,
    is_written: bool,
    is_over: bool,
}

impl<'a> Turn<'a> {
    fn of(shard: &'a Shard, run: &Run) -> Turn<'a> {
        let (segment, turn) = (run.header.segment, run.turn);
        Turn { shard, segment, turn, is_written: false, is_over: false }
    }

    /// Whether a restart finds it.
    fn end(mut self, is_written: bool) -> bool {
        self.is_written = is_written;
        self.take()
    }

    /// Waits for those before it: each ends, since its device's operations do.
    fn take(&mut self) -> bool {
        self.is_over = true;
        let mut segments = self.shard.segments.lock();
        loop {
            let segment = segments.get_mut(self.segment).expect("a segment of its device");
            if segment.ended == self.turn {
                segment.ended += 1;
                segment.is_cut |= !self.is_written;
                let is_found = !segment.is_cut;
                self.shard.ended.notify_all();
                return is_found;
            }
            self.shard.ended.wait(&mut segments);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.take();
        }
    }
}

/// Gathers pieces that lie one after another on the device into writes.
struct Writes {
    at: u64,
    pieces: Vec<Piece>,
    bytes: usize,
}

impl Writes {
    fn add(&mut self, mut piece: Piece, requests: &mut Vec<Request>) {
        loop {
            let room = (WRITE_BYTES + WRITE_SLACK).saturating_sub(self.bytes);
            if piece.padded() <= room {
                break;
            }
            let head = room / PAGE_BYTES * PAGE_BYTES;
            if head > 0 {
                self.push(piece.before(head));
                piece = piece.after(head);
            }
            self.cut(requests);
        }
        self.push(piece);
        if self.bytes >= WRITE_BYTES || self.pieces.len() >= PIECES_MAX {
            self.cut(requests);
        }
    }

    fn push(&mut self, piece: Piece) {
        self.bytes += piece.padded();
        self.pieces.push(piece);
    }

    fn cut(&mut self, requests: &mut Vec<Request>) {
        if self.bytes > 0 {
            let pieces = std::mem::take(&mut self.pieces);
            requests.push(Request {
                token: 0,
                kind: IoKind::Write,
                offset: self.at,
                pieces,
                hold: None,
            });
            self.at += std::mem::take(&mut self.bytes) as u64;
        }
    }
}

fn spots_of(device: u8, runs: &[Run], count: usize) -> Vec<Spot> {
    let mut spots = Vec::with_capacity(count);
    for run in runs {
        for planned in &run.records {
            let crate::flash::format::Record::Blocks { entries, .. } = &planned.record else {
                continue;
            };
            let mut page = planned.page + planned.record.header_pages() as u32;
            for (entry, block) in entries.iter().enumerate() {
                spots.push(Spot {
                    segment: run.header.segment,
                    life: run.header.life,
                    header_page: planned.page as u16,
                    payload_page: page as u16,
                    device,
                    entry: entry as u8,
                    parts: block.parts.len() as u8,
                });
                page += block.payload_pages() as u32;
            }
        }
    }
    debug_assert_eq!(spots.len(), count);
    spots
}

/// 256 bits from the system.
fn random() -> [u8; 32] {
    let mut nonce = [0; 32];
    let got = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(32), "the system's random numbers");
    nonce
}
