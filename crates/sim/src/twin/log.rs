//! A device's log as page counts: which segments are free, ready, open or full, and where a batch
//! of equal blocks goes.
//!
//! ```text
//!  segment | header | tenant | namespace | record header | block | block | … | record header | …
//!            1 page   1        as long as it is   1, one for each append
//! ```

use std::collections::VecDeque;

use keepwarm_store::rules::log::{ATTEMPTS, BEGIN_MAX, RESERVED};

/// Pages of a segment's header, and of the record that names its tenant.
const SEGMENT_HEADER_PAGES: u32 = 1;
const TENANT_PAGES: u32 = 1;
/// Pages of the header of a record of blocks: so many as one append has at most.
const RECORD_PAGES: u32 = 1;

/// No segment can be had: take one back and append again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoSegment;

/// One segment's part of an append.
struct Run {
    is_new: bool,
    segment: u32,
    end_page: u32,
    blocks: u32,
}

#[derive(Debug)]
pub(super) struct Log {
    pages: u32,
    block_pages: u32,
    namespace_pages: u32,
    next_page: Vec<u32>,
    free: VecDeque<u32>,
    ready: VecDeque<u32>,
    open: Option<u32>,
    /// Segments that hold blocks, oldest life first.
    living: Vec<u32>,
}

impl Log {
    pub fn new(segments: u32, pages: u32, block_pages: u32, namespace_pages: u32) -> Log {
        Log {
            pages,
            block_pages,
            namespace_pages,
            next_page: vec![SEGMENT_HEADER_PAGES; segments as usize],
            free: (0..segments).collect(),
            ready: VecDeque::new(),
            open: None,
            living: Vec::new(),
        }
    }

    pub fn free_count(&self) -> usize {
        self.free.len() + self.ready.len()
    }

    /// Segments that hold blocks, oldest life first.
    pub fn living(&self) -> &[u32] {
        &self.living
    }

    pub fn is_open(&self, segment: u32) -> bool {
        self.open == Some(segment)
    }

    /// Appends so many blocks, all or none; the segment of each.
    pub fn append(&mut self, blocks: usize) -> Result<Vec<u32>, NoSegment> {
        for _ in 0..ATTEMPTS {
            match self.plan(blocks) {
                Ok(runs) => return Ok(self.commit(&runs)),
                Err(ready) => self.make_ready(ready)?,
            }
        }
        Err(NoSegment)
    }

    /// A place for each block, or how many ready segments that takes.
    fn plan(&self, blocks: usize) -> Result<Vec<Run>, usize> {
        let at = |segment: u32, is_new| Run {
            is_new,
            segment,
            end_page: self.next_page[segment as usize],
            blocks: 0,
        };
        let mut runs: Vec<Run> = self.open.map(|open| at(open, false)).into_iter().collect();
        let mut ready_used = 0;
        for _ in 0..blocks {
            let fits =
                |run: &Run| run.end_page + self.header_pages(run) + self.block_pages <= self.pages;
            if !runs.last().is_some_and(fits) {
                ready_used += 1;
                let next = self.ready.get(ready_used - 1).ok_or(ready_used)?;
                runs.push(at(*next, true));
            }
            let run = runs.last_mut().expect("one that it fits");
            run.end_page += self.header_pages(run) + self.block_pages;
            run.blocks += 1;
        }
        runs.retain(|run| run.blocks > 0);
        Ok(runs)
    }

    /// Pages of headers before a run's next block. An open segment has named tenant and namespace.
    fn header_pages(&self, run: &Run) -> u32 {
        match (run.blocks, run.is_new) {
            (0, true) => TENANT_PAGES + self.namespace_pages + RECORD_PAGES,
            (0, false) => RECORD_PAGES,
            _ => 0,
        }
    }

    fn commit(&mut self, runs: &[Run]) -> Vec<u32> {
        let mut segments = Vec::new();
        for run in runs {
            if run.is_new {
                let opened = self.ready.pop_front();
                debug_assert_eq!(opened, Some(run.segment));
                self.open = opened;
                self.living.push(run.segment);
            }
            self.next_page[run.segment as usize] = run.end_page;
            segments.extend(std::iter::repeat_n(run.segment, run.blocks as usize));
        }
        segments
    }

    fn take_free(&mut self, count: usize) {
        let count = count.min(self.free.len().saturating_sub(RESERVED));
        self.ready.extend(self.free.drain(..count));
    }

    fn make_ready(&mut self, count: usize) -> Result<(), NoSegment> {
        let missing = count.saturating_sub(self.ready.len());
        if self.free.len().saturating_sub(RESERVED) < missing {
            return Err(NoSegment);
        }
        if missing > 0 {
            self.take_free(missing.max(BEGIN_MAX));
        }
        Ok(())
    }

    /// What a writer does after each batch: the next to roll over finds a segment ready.
    pub fn prepare(&mut self) {
        if self.open.is_some() && self.ready.is_empty() {
            self.take_free(BEGIN_MAX);
        }
    }

    /// Frees a segment.
    pub fn reclaim(&mut self, segment: u32) {
        if self.is_open(segment) {
            self.open = None;
        }
        self.living.retain(|living| *living != segment);
        self.next_page[segment as usize] = SEGMENT_HEADER_PAGES;
        self.free.push_back(segment);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 16 pages: a header, then a tenant's, a namespace's and a record's page, 12 blocks of a page.
    #[test]
    fn a_segment_holds_what_its_headers_leave() {
        let mut log = Log::new(8, 16, 1, 1);
        assert_eq!(log.append(12), Ok(vec![0; 12]));
        assert_eq!(log.append(1), Ok(vec![1]), "there was not a page left");
        // Each append of its own costs a header: 11 pages are left, for five and a half.
        for _ in 0..5 {
            assert_eq!(log.append(1), Ok(vec![1]));
        }
        assert_eq!(log.append(2), Ok(vec![2, 2]));
        assert_eq!(log.living(), [0, 1, 2]);
    }

    #[test]
    fn one_segment_stays_free_and_the_oldest_comes_back_last() {
        let mut log = Log::new(4, 16, 1, 1);
        assert_eq!(log.append(36).map(|places| places.len()), Ok(36));
        assert_eq!(log.append(1), Err(NoSegment));
        assert_eq!(log.free_count(), 1);
        log.reclaim(0);
        assert_eq!(log.append(1), Ok(vec![3]));
        assert_eq!(log.living(), [1, 2, 3]);
    }
}
