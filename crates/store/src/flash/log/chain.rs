//! Follows a segment's chain of lengths from its header, by headers only. It never looks for one:
//! what lies beyond the first that is not this life's may be payload, which strangers write.

use super::shard::Shard;
use crate::flash::format::{Record, RecordPlace, SegmentHeader, decode_record};
use crate::tiers::{AlignedBuffer, TierError};

/// How far a segment was followed.
pub(in crate::flash) struct Chain {
    pub header: SegmentHeader,
    /// Each record with the page of its header.
    pub records: Vec<(u32, Record)>,
    next_page: u32,
    /// Pages that the next header takes: more than one only where its first page said so.
    pages: usize,
    is_over: bool,
    /// A read failed: what follows is unknown.
    pub is_cut: bool,
}

impl Chain {
    pub fn new(header: SegmentHeader) -> Chain {
        let records = Vec::new();
        Chain { header, records, next_page: 1, pages: 1, is_over: false, is_cut: false }
    }

    /// One past the last page that its records take.
    pub fn end_page(&self) -> u32 {
        self.next_page
    }

    fn take(&mut self, bytes: &[u8], limit: u32) {
        let place = RecordPlace { segment: &self.header, position: self.records.len() as u32 };
        match decode_record(bytes, place) {
            Err(pages) => self.pages = pages,
            Ok(None) => self.is_over = true,
            Ok(Some((record, pages))) => {
                let end = u64::from(self.next_page) + pages as u64 + record.payload_pages();
                if end > u64::from(limit) {
                    self.is_over = true;
                    return;
                }
                self.records.push((self.next_page, record));
                (self.next_page, self.pages) = (end as u32, 1);
            }
        }
        self.is_over |= u64::from(self.next_page) + self.pages as u64 > u64::from(limit);
    }
}

/// Follows several chains of one device at once, each to its end. Returns the bytes read.
pub(in crate::flash) fn follow(shard: &Shard, chains: &mut [Chain]) -> u64 {
    let limit = shard.segments.lock().pages();
    let mut bytes = 0;
    loop {
        let mut active: Vec<&mut Chain> =
            chains.iter_mut().filter(|chain| !chain.is_over).collect();
        if active.is_empty() {
            return bytes;
        }
        let wanted: Vec<(u64, usize)> = active
            .iter()
            .map(|chain| (shard.offset(chain.header.segment, chain.next_page), chain.pages))
            .collect();
        for (chain, read) in active.iter_mut().zip(read_all(shard, &wanted)) {
            match read {
                Ok(buffer) => {
                    bytes += buffer.bytes().len() as u64;
                    chain.take(buffer.bytes(), limit);
                }
                Err(_) => (chain.is_over, chain.is_cut) = (true, true),
            }
        }
    }
}

/// Reads each of these; all at once, and only if that fails one by one, to tell the bad ones.
fn read_all(shard: &Shard, wanted: &[(u64, usize)]) -> Vec<Result<AlignedBuffer, TierError>> {
    const WHAT: &str = "read a header";
    let one = |&(offset, pages): &(u64, usize)| {
        let read = shard.read_pages(WHAT, &[offset], pages);
        read.map(|mut buffers| buffers.remove(0))
    };
    if wanted.iter().all(|(_, pages)| *pages == 1) {
        let offsets: Vec<u64> = wanted.iter().map(|(offset, _)| *offset).collect();
        if let Ok(buffers) = shard.read_pages(WHAT, &offsets, 1) {
            return buffers.into_iter().map(Ok).collect();
        }
    }
    wanted.iter().map(one).collect()
}

/// Reads pages one each, `None` where that fails.
pub(in crate::flash) fn read_each(shard: &Shard, offsets: &[u64]) -> Vec<Option<AlignedBuffer>> {
    let wanted: Vec<(u64, usize)> = offsets.iter().map(|offset| (*offset, 1)).collect();
    read_all(shard, &wanted).into_iter().map(Result::ok).collect()
}
