//! A tier in memory: the twin of flash for tests, and what the trait means in the fewest words. Not
//! for use as a cache: it copies, and holds one lock for everything.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::block::{
    BlockHeader, PartPlace, Removal, SegmentInfo, SegmentRef, Sequence, Spot, Stream, StreamId,
    TierBlock, TierNamespace, pages_of,
};
use super::error::TierError;
use super::pieces::{Hold, PAGE_BYTES, gather, hash_of, scatter};
use super::reads::{ReadDone, ReadQueue, ReadRefused, TierRead};
use super::recovery::{Recovered, RecoveredBlock, RecoveryVisitor};
use super::removals::RemovalTable;
use super::status::{DeviceState, DeviceStatus, TierStatus};
use super::{Tier, check_blocks};
use crate::types::BlockKey;

const NAME: &str = "memory";
/// Removed keys that are remembered at once.
const REMOVALS_MAX: usize = 4096;
/// Blocks in a segment: an entry's number has 16 bits.
const BLOCKS_MAX: usize = 1 << 16;

/// What outlives a [`MemTier`]: open another tier over it for a restart.
#[derive(Clone)]
pub struct MemMedium(Arc<Mutex<Medium>>);

struct Medium {
    segment_bytes: u64,
    segments: Vec<Segment>,
    removals: RemovalTable,
    sequence: u64,
    life: u32,
    payload_bytes: u64,
}

struct Segment {
    life: u32,
    state: State,
    tenant: Arc<str>,
    stream: StreamId,
    used: u64,
    live: u64,
    first_sequence: u64,
    blocks: Vec<Stored>,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Free,
    Open,
    Closed,
    /// Of an earlier life of the node, and not yet claimed.
    Unclaimed,
}

struct Stored {
    namespace: TierNamespace,
    header: BlockHeader,
    sequence: u64,
    parts: Vec<Vec<u8>>,
}

impl MemMedium {
    /// An empty medium of so many segments of so many bytes.
    pub fn new(segments: u32, segment_bytes: u64) -> MemMedium {
        let segments = (0..segments).map(|_| Segment::free()).collect();
        MemMedium(Arc::new(Mutex::new(Medium {
            segment_bytes,
            segments,
            removals: RemovalTable::default(),
            sequence: 0,
            life: 0,
            payload_bytes: 0,
        })))
    }

    /// Changes a byte of a stored block, as rot would. Whether there was such a block.
    pub fn corrupt(&self, spot: Spot) -> bool {
        let mut medium = self.0.lock();
        let segment = medium.segments.get_mut(spot.segment as usize);
        let stored = segment.and_then(|s| s.blocks.get_mut(usize::from(spot.header_page)));
        stored.map(|stored| stored.parts[0][0] ^= 1).is_some()
    }
}

impl Segment {
    fn free() -> Segment {
        Segment {
            life: 0,
            state: State::Free,
            tenant: "".into(),
            stream: StreamId(0),
            used: 0,
            live: 0,
            first_sequence: u64::MAX,
            blocks: Vec::new(),
        }
    }
}

/// Blocks in memory, in segments.
pub struct MemTier {
    medium: MemMedium,
    recovered: Mutex<bool>,
    /// Held while recovery asks whether a block was removed and shows it.
    claiming: Mutex<()>,
}

impl MemTier {
    /// A tier over what is there; the blocks of an earlier one wait for `recover`.
    pub fn open(medium: &MemMedium) -> MemTier {
        for segment in &mut medium.0.lock().segments {
            if segment.state != State::Free {
                segment.state = State::Unclaimed;
            }
        }
        MemTier { medium: medium.clone(), recovered: Mutex::new(false), claiming: Mutex::new(()) }
    }
}

impl Medium {
    /// Where each block goes, or which segment is missing.
    fn plan(&self, stream: StreamId, blocks: &[TierBlock<'_>]) -> Result<Vec<usize>, TierError> {
        let open = |s: &Segment| s.state == State::Open && s.stream == stream;
        let mut at = self.segments.iter().position(open);
        let mut free: VecDeque<usize> =
            (0..self.segments.len()).filter(|&at| self.segments[at].state == State::Free).collect();
        let room = |at: usize| self.segment_bytes - self.segments[at].used;
        let mut left = at.map_or(0, room);
        let mut count = at.map_or(0, |at| self.segments[at].blocks.len());
        let mut places = Vec::with_capacity(blocks.len());
        for block in blocks {
            let bytes = block.footprint() + PAGE_BYTES as u64;
            if bytes > self.segment_bytes {
                let limit = self.segment_bytes - PAGE_BYTES as u64;
                return Err(TierError::TooLarge { bytes, limit });
            }
            if at.is_none() || bytes > left || count == BLOCKS_MAX {
                let tier = NAME.to_owned();
                at = Some(free.pop_front().ok_or(TierError::NoSegment { tier })?);
                (left, count) = (self.segment_bytes, 0);
            }
            left -= bytes;
            count += 1;
            places.extend(at);
        }
        Ok(places)
    }

    fn begin(&mut self, at: usize, stream: &Stream) {
        for segment in &mut self.segments {
            if segment.state == State::Open && segment.stream == stream.id {
                segment.state = State::Closed;
            }
        }
        self.life += 1;
        let (life, tenant) = (self.life, stream.tenant.clone());
        self.segments[at] =
            Segment { life, state: State::Open, tenant, stream: stream.id, ..Segment::free() };
    }

    fn find(&self, spot: Spot) -> Result<&Stored, TierError> {
        let segment = self.segments.get(spot.segment as usize).ok_or(TierError::Gone)?;
        if segment.life != spot.life || segment.state == State::Free {
            return Err(TierError::Gone);
        }
        segment.blocks.get(usize::from(spot.header_page)).ok_or(TierError::Gone)
    }

    fn read(&self, read: &TierRead) -> Result<(), TierError> {
        let stored = self.find(read.spot)?;
        let place = stored.header.parts.iter().position(|place| *place == read.part);
        let corrupt = TierError::Corrupt { device: NAME.into(), what: "block" };
        let bytes = &stored.parts[place.ok_or_else(|| corrupt.clone())?];
        scatter(&read.pieces, bytes);
        if hash_of(&read.pieces) == read.part.checksum { Ok(()) } else { Err(corrupt) }
    }

    /// Segments that recovery has to come to, oldest life first.
    fn unclaimed(&self) -> Vec<usize> {
        let is_unclaimed = |at: &usize| self.segments[*at].state == State::Unclaimed;
        let mut order: Vec<usize> = (0..self.segments.len()).filter(is_unclaimed).collect();
        order.sort_unstable_by_key(|&at| self.segments[at].life);
        order
    }

    /// A block that was not removed, with its segment's life.
    fn show(
        &self,
        at: usize,
        number: usize,
    ) -> Option<(TierNamespace, BlockHeader, Sequence, u32)> {
        let stored = &self.segments[at].blocks[number];
        let header = &stored.header;
        let is_removed = self.removals.hides(&header.fingerprint, header.key, stored.sequence);
        let (namespace, header) = (stored.namespace.clone(), header.clone());
        let life = self.segments[at].life;
        (!is_removed).then_some((namespace, header, Sequence(stored.sequence), life))
    }

    /// Forgets removals that no block in any segment is older than.
    fn prune(&mut self) {
        let used = self.segments.iter().filter(|segment| segment.state != State::Free);
        let oldest = used.map(|segment| segment.first_sequence).min().unwrap_or(u64::MAX);
        self.removals.prune(oldest);
    }
}

/// What a tier writes down about a block.
pub(crate) fn header_of(block: &TierBlock<'_>) -> BlockHeader {
    let mut first_page = 0;
    let parts = block.parts.iter().map(|part| {
        let place = PartPlace { first_page, len: part.len, checksum: part.checksum };
        first_page += pages_of(part.len) as u32;
        place
    });
    BlockHeader {
        fingerprint: block.namespace.fingerprint,
        key: block.key,
        epoch: block.epoch,
        engine_hash: block.engine_hash,
        expires_unix_ms: block.expires_unix_ms,
        priority: block.priority,
        parts: parts.collect(),
    }
}

impl Tier for MemTier {
    fn sequence(&self) -> Sequence {
        let mut medium = self.medium.0.lock();
        medium.sequence += 1;
        Sequence(medium.sequence)
    }

    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        _hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        check_blocks(stream, blocks)?;
        let medium = &mut *self.medium.0.lock();
        let places = medium.plan(stream.id, blocks)?;
        let mut spots = Vec::with_capacity(blocks.len());
        for (block, at) in blocks.iter().zip(places) {
            let is_open = |s: &Segment| s.state == State::Open && s.stream == stream.id;
            if !is_open(&medium.segments[at]) {
                medium.begin(at, stream);
            }
            let segment = &mut medium.segments[at];
            spots.push(Spot {
                segment: at as u32,
                life: segment.life,
                header_page: segment.blocks.len() as u16,
                payload_page: 0,
                device: 0,
                entry: 0,
                parts: block.parts.len() as u8,
            });
            segment.used += block.footprint() + PAGE_BYTES as u64;
            segment.live += block.footprint();
            segment.first_sequence = segment.first_sequence.min(as_of.0);
            medium.payload_bytes += block.footprint();
            segment.blocks.push(Stored {
                namespace: block.namespace.clone(),
                header: header_of(block),
                sequence: as_of.0,
                parts: block.parts.iter().map(|part| gather(&part.pieces)).collect(),
            });
        }
        Ok(spots)
    }

    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        let queue = MemReads { medium: self.medium.clone(), depth, pending: VecDeque::new() };
        Ok(Box::new(queue))
    }

    fn describe(
        &self,
        spot: Spot,
        fingerprint: &[u8; 32],
        key: BlockKey,
    ) -> Result<BlockHeader, TierError> {
        let medium = self.medium.0.lock();
        let header = &medium.find(spot)?.header;
        if header.fingerprint != *fingerprint || header.key != key {
            return Err(TierError::Corrupt { device: NAME.into(), what: "header" });
        }
        Ok(header.clone())
    }

    fn remove(&self, removals: &[Removal]) -> Result<(), TierError> {
        let mut locked = self.medium.0.lock();
        let medium = &mut *locked;
        medium.sequence += 1;
        medium.prune();
        let more: usize = removals.iter().map(Removal::entries).sum();
        if medium.removals.len() + more > REMOVALS_MAX {
            return Err(TierError::NoSegment { tier: NAME.into() });
        }
        removals.iter().for_each(|removal| medium.removals.add(removal, medium.sequence));
        drop(locked);
        drop(self.claiming.lock());
        Ok(())
    }

    fn forget(&self, spot: Spot, bytes: u64) {
        let mut medium = self.medium.0.lock();
        if let Some(segment) = medium.segments.get_mut(spot.segment as usize)
            && segment.life == spot.life
        {
            segment.live = segment.live.saturating_sub(bytes);
        }
    }

    fn flush(&self) -> Result<(), TierError> {
        Ok(())
    }

    fn segments(&self, stream: StreamId) -> Vec<SegmentInfo> {
        let medium = self.medium.0.lock();
        let mut found: Vec<SegmentInfo> = (0..medium.segments.len())
            .map(|at| (at, &medium.segments[at]))
            .filter(|(_, segment)| matches!(segment.state, State::Open | State::Closed))
            .filter(|(_, segment)| segment.stream == stream)
            .map(|(at, segment)| SegmentInfo {
                segment: SegmentRef { device: 0, segment: at as u32, life: segment.life },
                blocks: segment.blocks.len() as u32,
                live_bytes: segment.live,
                used_bytes: segment.used,
                is_open: segment.state == State::Open,
            })
            .collect();
        found.sort_unstable_by_key(|info| info.segment.life);
        found
    }

    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError> {
        let mut medium = self.medium.0.lock();
        let at = segment.segment as usize;
        let found = medium.segments.get_mut(at).filter(|found| found.life == segment.life);
        let found = found.filter(|found| found.state != State::Free).ok_or(TierError::Gone)?;
        if found.state == State::Unclaimed {
            return Err(TierError::Busy { what: "recovery", limit: 1 });
        }
        *found = Segment::free();
        Ok(())
    }

    fn recover(&self, visitor: &mut dyn RecoveryVisitor) -> Result<Recovered, TierError> {
        if std::mem::replace(&mut *self.recovered.lock(), true) {
            return Err(TierError::Invalid("recovery runs once"));
        }
        let begun = Instant::now();
        let order = self.medium.0.lock().unclaimed();
        let mut sum = Recovered { segments_total: order.len() as u64, ..Recovered::default() };
        for at in order {
            self.claim(at, visitor, &mut sum);
            sum.segments += 1;
            sum.took = begun.elapsed();
            visitor.progress(&sum);
        }
        Ok(sum)
    }

    fn status(&self) -> TierStatus {
        let medium = self.medium.0.lock();
        let free = medium.segments.iter().filter(|segment| segment.state == State::Free).count();
        let device = DeviceStatus {
            name: NAME.into(),
            engine: "memory".into(),
            state: DeviceState::Live,
            capacity_bytes: medium.segment_bytes * medium.segments.len() as u64,
            segments: medium.segments.len() as u32,
            segments_free: free as u32,
            live_bytes: medium.segments.iter().map(|segment| segment.live).sum(),
            read_bytes: 0,
            written_bytes: medium.payload_bytes,
            payload_bytes: medium.payload_bytes,
            flushes: 0,
            errors: 0,
            quarantined: 0,
        };
        let block_bytes_max = medium.segment_bytes - PAGE_BYTES as u64;
        let segment_bytes = medium.segment_bytes;
        TierStatus { segment_bytes, block_bytes_max, devices: vec![device] }
    }
}

impl MemTier {
    /// Shows a segment's blocks, without the lock: the visitor may call the tier.
    fn claim(&self, at: usize, visitor: &mut dyn RecoveryVisitor, sum: &mut Recovered) {
        let tenant = self.medium.0.lock().segments[at].tenant.clone();
        let Some(stream) = visitor.stream(&tenant) else {
            self.medium.0.lock().segments[at] = Segment::free();
            return;
        };
        let count = {
            let segment = &mut self.medium.0.lock().segments[at];
            (segment.stream, segment.live) = (stream, 0);
            segment.blocks.len()
        };
        let mut taken = 0;
        for number in 0..count {
            let _claiming = self.claiming.lock();
            let Some((namespace, header, sequence, life)) = self.medium.0.lock().show(at, number)
            else {
                sum.removed += 1;
                continue;
            };
            let spot = Spot {
                segment: at as u32,
                life,
                header_page: number as u16,
                payload_page: 0,
                device: 0,
                entry: 0,
                parts: header.parts.len() as u8,
            };
            let bytes = header.footprint();
            let (namespace, header) = (&namespace, &header);
            self.medium.0.lock().segments[at].live += bytes;
            if visitor.block(&RecoveredBlock { spot, namespace, stream, header, sequence }) {
                taken += 1;
                sum.blocks += 1;
                sum.bytes += bytes;
            } else {
                self.medium.0.lock().segments[at].live -= bytes;
                sum.refused += 1;
            }
        }
        let segment = &mut self.medium.0.lock().segments[at];
        if taken == 0 {
            *segment = Segment::free();
        } else {
            segment.state = State::Closed;
        }
    }
}

struct MemReads {
    medium: MemMedium,
    depth: usize,
    pending: VecDeque<TierRead>,
}

impl ReadQueue for MemReads {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn submit(&mut self, read: TierRead) -> Result<(), ReadRefused> {
        if self.pending.len() == self.depth {
            let error = TierError::Busy { what: "a queue's reads", limit: self.depth as u64 };
            return Err(ReadRefused { read, error });
        }
        if !super::are_sound(&read.pieces, read.part.len) {
            let error = TierError::Invalid("pieces are whole aligned pages but the last's end");
            return Err(ReadRefused { read, error });
        }
        self.pending.push_back(read);
        Ok(())
    }

    fn complete(&mut self, _wait: Duration) -> Option<ReadDone> {
        let read = self.pending.pop_front()?;
        let result = self.medium.0.lock().read(&read);
        Some(ReadDone { token: read.token, result, hold: Some(read.hold) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::xxh3_64;

    #[test]
    fn the_checksum_of_a_part_is_that_of_its_bytes() {
        let buffer = super::super::AlignedBuffer::of(b"some bytes");
        // SAFETY: the buffer outlives the call.
        let piece = unsafe { buffer.piece(10) };
        assert_eq!(hash_of(&[piece]), xxh3_64(b"some bytes"));
        assert_eq!(gather(&[piece]), b"some bytes");
    }
}
