//! Where a batch goes: which records, in which segments, at which pages. Nothing is changed before
//! the whole batch has a place.

use std::ops::Range;

use super::segments::{Segment, Segments, State};
use crate::flash::format::{BlockEntry, Record, SegmentHeader};
use crate::tiers::{PAGE_BYTES, Stream, TierBlock, TierError, TierNamespace};

/// Pages of a segment that a block's own records may take beside its payload: the segment's header,
/// the tenant, the namespace, the block.
pub const OVERHEAD_PAGES: u64 = 3 + crate::flash::format::HEADER_PAGES_MAX as u64;

/// A run of records in one segment, one after another on the device.
pub(in crate::flash) struct Run {
    pub header: SegmentHeader,
    /// A ready segment, to be opened.
    pub is_new: bool,
    pub first_page: u32,
    pub first_position: u32,
    pub records: Vec<Planned>,
    pub end_page: u32,
    fresh_namespaces: Vec<[u8; 32]>,
    pub blocks: u32,
    pub payload_bytes: u64,
    /// Appends that took places in the segment before this one.
    pub turn: u32,
}

pub(in crate::flash) struct Planned {
    pub record: Record,
    /// Page that its header begins at.
    pub page: u32,
    /// The batch's blocks whose payloads follow.
    pub blocks: Range<usize>,
}

/// What is missing.
pub(in crate::flash) enum Lack {
    /// This many ready segments.
    Ready(usize),
    /// It never fits.
    TooLarge(TierError),
}

struct Planner<'a> {
    segments: &'a Segments,
    stream: &'a Stream,
    sequence: u64,
    runs: Vec<Run>,
    /// Namespaces that the last run's segment has from before.
    known: &'a [[u8; 32]],
    ready_used: usize,
}

/// Finds a place for all of a batch.
pub(in crate::flash) fn plan(
    segments: &Segments,
    stream: &Stream,
    sequence: u64,
    blocks: &[TierBlock<'_>],
) -> Result<Vec<Run>, Lack> {
    let mut planner =
        Planner { segments, stream, sequence, runs: Vec::new(), known: &[], ready_used: 0 };
    if let Some(open) = segments.open_of(stream.id).and_then(|open| segments.get(open)) {
        planner.known = &open.namespaces;
        planner.runs.push(Run::at(open, false));
    }
    for (number, block) in blocks.iter().enumerate() {
        planner.place(number, block)?;
    }
    planner.runs.retain(|run| !run.records.is_empty());
    Ok(planner.runs)
}

impl Run {
    fn at(segment: &Segment, is_new: bool) -> Run {
        Run {
            header: segment.header,
            is_new,
            first_page: segment.next_page,
            first_position: segment.position,
            records: Vec::new(),
            end_page: segment.next_page,
            fresh_namespaces: Vec::new(),
            blocks: 0,
            payload_bytes: 0,
            turn: segment.begun,
        }
    }

    fn push(&mut self, record: Record, blocks: Range<usize>) {
        let page = self.end_page;
        self.end_page += record.header_pages() as u32;
        self.records.push(Planned { record, page, blocks });
    }
}

impl Planner<'_> {
    fn place(&mut self, number: usize, block: &TierBlock<'_>) -> Result<(), Lack> {
        let pages = block.footprint() / PAGE_BYTES as u64;
        let limit = u64::from(self.segments.pages());
        if pages + OVERHEAD_PAGES > limit {
            let limit = (limit - OVERHEAD_PAGES) * PAGE_BYTES as u64;
            return Err(Lack::TooLarge(TierError::TooLarge { bytes: block.footprint(), limit }));
        }
        let fits = self.runs.last().is_some_and(|run| {
            u64::from(run.end_page) + self.header_pages(run, block) + pages <= limit
        });
        if !fits {
            self.roll()?;
        }
        let (sequence, known) = (self.sequence, self.known);
        let run = self.runs.last_mut().expect("one that it fits");
        if run.is_new && run.records.is_empty() {
            run.push(Record::Tenant(self.stream.tenant.to_string()), 0..0);
        }
        declare(run, known, block.namespace);
        let last = run.records.last().filter(|last| joins(&last.record, block));
        if last.is_none() {
            let fingerprint = block.namespace.fingerprint;
            run.push(Record::Blocks { fingerprint, sequence, entries: Vec::new() }, number..number);
        }
        let last = run.records.last_mut().expect("pushed or joined");
        if let Record::Blocks { entries, .. } = &mut last.record {
            entries.push(entry_of(block));
        }
        last.blocks.end = number + 1;
        run.end_page += pages as u32;
        run.blocks += 1;
        run.payload_bytes += block.footprint();
        Ok(())
    }

    /// Pages of headers that a block adds to a run, at most.
    fn header_pages(&self, run: &Run, block: &TierBlock<'_>) -> u64 {
        let tenant = u64::from(run.is_new && run.records.is_empty());
        let is_known = is_declared(run, self.known, &block.namespace.fingerprint);
        let namespace = Record::Namespace(block.namespace.clone()).header_pages() as u64;
        let joined = run.records.last().is_some_and(|last| joins(&last.record, block));
        tenant + if is_known { 0 } else { namespace } + u64::from(!joined)
    }

    fn roll(&mut self) -> Result<(), Lack> {
        let next = self.segments.ready().nth(self.ready_used);
        self.ready_used += 1;
        let next = next.and_then(|next| self.segments.get(next));
        self.runs.push(Run::at(next.ok_or(Lack::Ready(self.ready_used))?, true));
        self.known = &[];
        Ok(())
    }
}

fn joins(record: &Record, block: &TierBlock<'_>) -> bool {
    matches!(record, Record::Blocks { fingerprint, .. }
        if *fingerprint == block.namespace.fingerprint)
        && record.has_room_for(block.parts.len())
}

fn is_declared(run: &Run, known: &[[u8; 32]], fingerprint: &[u8; 32]) -> bool {
    known.contains(fingerprint) || run.fresh_namespaces.contains(fingerprint)
}

fn declare(run: &mut Run, known: &[[u8; 32]], namespace: &TierNamespace) {
    if !is_declared(run, known, &namespace.fingerprint) {
        run.push(Record::Namespace(namespace.clone()), 0..0);
        run.fresh_namespaces.push(namespace.fingerprint);
    }
}

fn entry_of(block: &TierBlock<'_>) -> BlockEntry {
    BlockEntry {
        key: block.key,
        epoch: block.epoch,
        engine_hash: block.engine_hash,
        expires_unix_ms: block.expires_unix_ms,
        priority: block.priority,
        parts: block.parts.iter().map(|part| (part.len, part.checksum)).collect(),
    }
}

/// Takes the places of a plan, made under the same lock.
pub(in crate::flash) fn commit(
    segments: &mut Segments,
    stream: &Stream,
    sequence: u64,
    runs: &[Run],
) {
    for run in runs {
        if run.is_new {
            let opened = segments.open(stream.id);
            debug_assert_eq!(opened, run.header.segment);
        }
        let segment = segments.get_mut(run.header.segment).expect("planned with it");
        debug_assert_eq!(segment.state, State::Open);
        segment.next_page = run.end_page;
        segment.position += run.records.len() as u32;
        segment.namespaces.extend(&run.fresh_namespaces);
        debug_assert_eq!(segment.begun, run.turn);
        segment.begun += 1;
        segment.blocks += run.blocks;
        segment.live_bytes += run.payload_bytes;
        segment.oldest = segment.oldest.min(sequence);
    }
    segments.touch(stream.id);
}
