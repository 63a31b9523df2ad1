//! Removals on one device: a segment of its own, written and flushed before a removal returns. Each
//! device has all of them, so that losing another loses none.
//!
//! When the segment is full, or was left by an earlier life of the node, what is still needed is
//! written to a new one, and the old ones are freed.

use super::shard::Shard;
use crate::flash::format::{Record, RecordPlace, SegmentHeader, encode_record};
use crate::tiers::{PAGE_BYTES, TierError};

/// Pages of the log; bounds what a restart reads.
const LOG_PAGES_MAX: u32 = 2048;
/// Pages in one write.
const WRITE_PAGES: usize = 64;

#[derive(Debug, Default)]
pub(in crate::flash) struct RemovalLog {
    open: Option<Cursor>,
    /// Segments with removals, the open one among them.
    pub segments: Vec<u32>,
}

#[derive(Debug)]
struct Cursor {
    header: SegmentHeader,
    page: u32,
    position: u32,
}

impl Shard {
    /// Writes removals durably: `new` behind the others, or, where there is no room, `all` that is
    /// known to a new segment.
    pub fn log_removals(
        &self,
        new: &[Record],
        all: &dyn Fn() -> Vec<Record>,
    ) -> Result<(), TierError> {
        let mut log = self.removal_log.lock();
        let limit = self.segments.lock().pages().min(LOG_PAGES_MAX);
        let has_room = |cursor: &Cursor| cursor.page + new.len() as u32 <= limit;
        if let Some(cursor) = log.open.as_mut().filter(|cursor| has_room(cursor)) {
            return self.write_removals(cursor, new);
        }
        let all = all();
        if all.len() as u32 >= limit / 2 {
            return Err(TierError::NoSegment { tier: self.name() });
        }
        let header = self.begin_for_removals()?;
        let mut cursor = Cursor { header, page: 1, position: 0 };
        let written = self.write_removals(&mut cursor, &all);
        if let Err(error) = written {
            self.segments.lock().free(header.segment);
            return Err(error);
        }
        let old = std::mem::replace(&mut log.segments, vec![header.segment]);
        let mut segments = self.segments.lock();
        old.into_iter().for_each(|segment| segments.free(segment));
        log.open = Some(cursor);
        Ok(())
    }

    fn write_removals(&self, cursor: &mut Cursor, records: &[Record]) -> Result<(), TierError> {
        for group in records.chunks(WRITE_PAGES) {
            let mut bytes = Vec::with_capacity(group.len() * PAGE_BYTES);
            for (position, record) in (cursor.position..).zip(group) {
                let place = RecordPlace { segment: &cursor.header, position };
                bytes.extend(encode_record(record, place));
            }
            let at = self.offset(cursor.header.segment, cursor.page);
            self.write_pages("write a removal", vec![(at, bytes)])?;
            cursor.page += group.len() as u32;
            cursor.position += group.len() as u32;
        }
        self.flush()
    }
}
