//! Blocks whose segment goes although they were used since they were written: read once more, and
//! appended to their tenant's newest segment.

use std::time::Duration;

use super::ColdSlot;
use super::entry::{RECORD_BLOCKS_MAX, Written, pages_of};
use crate::index::State;
use crate::index::table::Named;
use crate::store::Store;
use crate::tiers::{
    AlignedBuffer, BlockHeader, Hold, SegmentRef, Spot, Tier, TierBlock, TierNamespace, TierPart,
    TierRead,
};
use crate::types::BlockKey;

/// Blocks of a segment that are written again, at most.
pub const BLOCKS_MAX: usize = 4096;
/// Reads under way at once.
const DEPTH: usize = 8;
/// Bytes of one append, about.
const BATCH_BYTES: u64 = 8 << 20;
/// How long to wait for one read; the tier's own time for it ends before.
const READ_WAIT: Duration = Duration::from_secs(60);

/// A block to be written again.
struct Again {
    ns: u16,
    key: BlockKey,
    version: u32,
    expiry: u32,
    spot: Spot,
    namespace: TierNamespace,
}

/// One that was read.
struct Read {
    again: Again,
    header: BlockHeader,
    parts: Vec<AlignedBuffer>,
}

impl Store {
    /// Writes those blocks of a segment again that were used, as far as the credit for it goes.
    pub(super) fn write_again(&self, at: SegmentRef) {
        let Some(flash) = &self.flash else { return };
        let (tenant, chosen) = {
            let mut inner = self.lock();
            let number = inner.cold().number_of(at);
            let segment = *inner.cold().index.segment(number);
            if segment.at != at || !inner.cold().budget.allows(self.clock.now()) {
                return;
            }
            let slots = inner.take_used(number, BLOCKS_MAX);
            let chosen: Vec<Again> = slots.iter().map(|slot| again(&mut inner, *slot)).collect();
            (usize::from(segment.tenant), chosen)
        };
        let (mut batch, mut bytes) = (Vec::new(), 0);
        for again in chosen {
            let Some(read) = read(&*flash.tier(), again) else { continue };
            bytes += read.header.footprint();
            batch.push(read);
            if bytes >= BATCH_BYTES || batch.len() == RECORD_BLOCKS_MAX {
                self.append_again(tenant, std::mem::take(&mut batch));
                bytes = 0;
            }
        }
        self.append_again(tenant, batch);
    }

    fn append_again(&self, tenant: usize, batch: Vec<Read>) {
        let Some(flash) = &self.flash else { return };
        if batch.is_empty() {
            return;
        }
        let as_of = flash.tier().sequence();
        // What was dropped before this moment must not be written with it.
        let mut batch: Vec<Read> = {
            let mut inner = self.lock();
            let mut is_here = |again: &Again| {
                let slot = inner.cold().index.find(again.ns, again.key);
                slot.is_some_and(|slot| inner.cold().spot(slot, again.spot.parts) == again.spot)
            };
            batch.into_iter().filter(|read| is_here(&read.again)).collect()
        };
        let buffers: Vec<Vec<AlignedBuffer>> =
            batch.iter_mut().map(|read| std::mem::take(&mut read.parts)).collect();
        let blocks: Vec<TierBlock<'_>> =
            batch.iter().zip(&buffers).map(|(read, parts)| tier_block(read, parts)).collect();
        let pages: Vec<u32> = blocks.iter().map(pages_of).collect();
        let stream = self.stream(tenant);
        let mut hold: Option<Hold> = Some(Box::new(buffers));
        let _settling = flash.settling.read();
        let appended = flash.tier().append(&stream, as_of, &blocks, &mut hold);
        drop(blocks);
        // A device that failed is looked after by the next housekeeping: whoever takes segments
        // back must not wait for that here.
        let Ok(spots) = appended else { return };
        let now = self.clock.now();
        let mut inner = self.lock();
        for ((read, spot), pages) in batch.iter().zip(spots).zip(pages) {
            let Again { ns, key, version, expiry, spot: old, .. } = read.again;
            let first = read.header.parts[0];
            let bytes = u64::from(pages) * 4096;
            inner.cold().budget.spend(bytes, now);
            let slot = inner.cold().index.find(ns, key);
            let is_current = inner.namespaces.at(ns).version == version;
            if slot.is_none_or(|slot| !is_current || inner.cold().spot(slot, old.parts) != old) {
                continue;
            }
            let (length, checksum) = (first.len, first.checksum);
            let written = Written { ns, key, version, length, checksum, expiry, pages, spot };
            if inner.add_to_flash(&written, tenant, false).is_ok() {
                if let Some(memory) = inner.index.find(ns, key)
                    && inner.index.meta(memory).state() == State::Ready
                {
                    inner.mark_on_flash(memory, 0);
                }
                inner.count_written(tenant, bytes, true);
            }
        }
    }
}

fn again(inner: &mut crate::inner::Inner, slot: ColdSlot) -> Again {
    let entry = *inner.cold().index.entry(slot);
    let space = inner.namespaces.at(entry.ns());
    let (version, parts) = (space.version, space.spec.parts());
    let namespace = TierNamespace {
        fingerprint: space.spec.fingerprint(),
        encoding: space.spec.encoding().into(),
    };
    let cold = inner.cold();
    let (expiry, spot) = (cold.index.place(slot).expiry, cold.spot(slot, parts));
    Again { ns: entry.ns(), key: entry.key, version, expiry, spot, namespace }
}

/// Reads a block whole, verified. None: it cannot be had, and leaves with its segment.
fn read(tier: &dyn Tier, again: Again) -> Option<Read> {
    let header = tier.describe(again.spot, &again.namespace.fingerprint, again.key).ok()?;
    let mut queue = tier.reads(DEPTH).ok()?;
    let mut parts = Vec::with_capacity(header.parts.len());
    for few in header.parts.chunks(DEPTH) {
        let mut came: Vec<Option<AlignedBuffer>> = few.iter().map(|_| None).collect();
        let mut is_whole = true;
        for (token, part) in (0u64..).zip(few) {
            let buffer = AlignedBuffer::new(part.len as usize);
            let read = TierRead::into_buffer(token, again.spot, *part, buffer);
            is_whole &= queue.submit(read).is_ok();
        }
        while queue.in_flight() > 0 {
            let Some(done) = queue.complete(READ_WAIT) else { continue };
            let buffer = done.hold.and_then(|hold| hold.downcast::<AlignedBuffer>().ok());
            match (done.result, buffer) {
                (Ok(()), Some(buffer)) => came[done.token as usize] = Some(*buffer),
                _ => is_whole = false,
            }
        }
        if !is_whole {
            return None;
        }
        parts.extend(came.into_iter().flatten());
    }
    (parts.len() == header.parts.len()).then_some(Read { again, header, parts })
}

fn tier_block<'a>(read: &'a Read, buffers: &[AlignedBuffer]) -> TierBlock<'a> {
    let parts = read.header.parts.iter().zip(buffers).map(|(place, buffer)| TierPart {
        len: place.len,
        checksum: place.checksum,
        // SAFETY: the buffers are the append's hold, wherever they are moved to.
        pieces: vec![unsafe { buffer.piece(place.len as usize) }],
    });
    TierBlock {
        namespace: &read.again.namespace,
        epoch: read.header.epoch,
        key: read.again.key,
        engine_hash: read.header.engine_hash,
        expires_unix_ms: read.header.expires_unix_ms,
        priority: read.header.priority,
        parts: parts.collect(),
    }
}
