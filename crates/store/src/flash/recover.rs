//! What a restart finds: at open, every segment's header and first record, and all removals; later,
//! beside everything else, the blocks.

use std::sync::Arc;
use std::time::Instant;

use super::format::{Record, RecordPlace, decode_record, decode_segment};
use super::log::chain::{Chain, follow, read_each};
use super::log::segments::State;
use super::log::shard::{CALL_DEPTH, Shard};
use super::tier::FlashTier;
use crate::tiers::{
    PAGE_BYTES, Recovered, RecoveredBlock, RecoveryVisitor, Removal, RemovalTable, Sequence, Spot,
    StreamId, TierNamespace,
};

/// Segments followed at once; what they hold is in memory until they are shown.
const WINDOW: usize = 32;

/// A segment on its way to the visitor.
struct Claim<'a> {
    shard: &'a Arc<Shard>,
    chain: Chain,
}

impl FlashTier {
    /// Looks at every segment, and takes in all removals, before anything is served.
    pub(super) fn survey(&self) {
        for shard in self.shards.iter().filter(|shard| !shard.is_fenced()) {
            let mut logs = Vec::new();
            let count = shard.segments.lock().count() as u32;
            for first in (0..count).step_by(CALL_DEPTH) {
                let group: Vec<u32> = (first..count.min(first + CALL_DEPTH as u32)).collect();
                survey_group(shard, &group, &mut logs);
            }
            follow(shard, &mut logs);
            for log in logs {
                take_removals(&mut self.removals.lock(), &log);
                shard.removal_log.lock().segments.push(log.header.segment);
                if log.is_cut {
                    // Removals behind the place are unknown: none of its blocks may be shown.
                    shard.fence("its removals cannot be read".into());
                }
            }
        }
        let lives = self.shards.iter().map(|shard| {
            let segments = shard.segments.lock();
            segments.iter().map(|segment| segment.header.life).max().unwrap_or(0)
        });
        self.order.at_least_life(lives.max().unwrap_or(0));
    }

    pub(super) fn claim_all(&self, visitor: &mut dyn RecoveryVisitor) -> Recovered {
        let begun = Instant::now();
        let mut order = Vec::new();
        for shard in self.shards.iter() {
            let segments = shard.segments.lock();
            let unclaimed = segments.iter().filter(|segment| segment.state == State::Unclaimed);
            order.extend(unclaimed.map(|segment| (segment.header.life, shard, segment.header)));
        }
        order.sort_unstable_by_key(|(life, ..)| *life);
        let mut sum = Recovered { segments_total: order.len() as u64, ..Recovered::default() };
        for window in order.chunks(WINDOW) {
            if !visitor.goes_on() {
                break;
            }
            for claim in self.follow_window(window, &mut sum) {
                self.show(claim, visitor, &mut sum);
                sum.segments += 1;
                sum.took = begun.elapsed();
                visitor.progress(&sum);
            }
        }
        sum.took = begun.elapsed();
        sum
    }

    fn follow_window<'a>(
        &self,
        window: &[(u32, &'a Arc<Shard>, super::format::SegmentHeader)],
        sum: &mut Recovered,
    ) -> Vec<Claim<'a>> {
        let mut claims = Vec::with_capacity(window.len());
        for shard in self.shards.iter() {
            let own = window.iter().filter(|(_, of, _)| Arc::ptr_eq(of, shard));
            let own: Vec<_> = own.collect();
            let mut chains: Vec<Chain> =
                own.iter().map(|(.., header)| Chain::new(*header)).collect();
            if shard.is_fenced() {
                continue;
            }
            sum.header_bytes += follow(shard, &mut chains);
            let of = own.iter().map(|(_, shard, _)| *shard);
            claims.extend(of.zip(chains).map(|(shard, chain)| Claim { shard, chain }));
        }
        claims.sort_unstable_by_key(|claim| claim.chain.header.life);
        claims
    }

    /// Shows a segment's blocks, and takes it into service, or frees it if nobody wants any.
    fn show(&self, claim: Claim<'_>, visitor: &mut dyn RecoveryVisitor, sum: &mut Recovered) {
        let Claim { shard, chain } = claim;
        let mut seen = Seen::of(shard, &chain);
        if let Some(stream) = tenant_of(&chain).and_then(|tenant| visitor.stream(tenant)) {
            seen.stream = stream;
            // Live bytes count from the first block on: the visitor may forget one already.
            if let Some(segment) = shard.segments.lock().get_mut(chain.header.segment) {
                segment.stream = stream;
                segment.next_page = chain.end_page();
            }
            self.show_blocks(shard, &chain, &mut seen, visitor, sum);
        }
        let mut segments = shard.segments.lock();
        let segment = segments.get_mut(chain.header.segment).expect("a segment of the device");
        segment.oldest = seen.oldest;
        if seen.blocks > 0 {
            (segment.state, segment.blocks) = (State::Closed, seen.blocks);
        } else {
            segments.free(chain.header.segment);
        }
    }

    fn show_blocks(
        &self,
        shard: &Shard,
        chain: &Chain,
        seen: &mut Seen,
        visitor: &mut dyn RecoveryVisitor,
        sum: &mut Recovered,
    ) {
        let mut namespaces: Vec<&TierNamespace> = Vec::new();
        for (header_page, record) in &chain.records {
            let (fingerprint, sequence, entries) = match record {
                Record::Namespace(namespace) => {
                    namespaces.push(namespace);
                    continue;
                }
                Record::Blocks { fingerprint, sequence, entries } => {
                    (fingerprint, *sequence, entries)
                }
                _ => continue,
            };
            let declared = namespaces.iter().rev().find(|each| each.fingerprint == *fingerprint);
            let Some(&namespace) = declared else { continue };
            let mut page = header_page + record.header_pages() as u32;
            for (entry, block) in entries.iter().enumerate() {
                let header = block.header(*fingerprint);
                let spot = Spot {
                    segment: chain.header.segment,
                    life: chain.header.life,
                    header_page: *header_page as u16,
                    payload_page: page as u16,
                    device: shard.number,
                    entry: entry as u8,
                    parts: block.parts.len() as u8,
                };
                page += block.payload_pages() as u32;
                if sequence < seen.void_before {
                    continue;
                }
                let (stream, header, sequence) = (seen.stream, &header, Sequence(sequence));
                let block = RecoveredBlock { spot, namespace, stream, header, sequence };
                self.show_block(shard, &block, seen, visitor, sum);
            }
        }
    }

    fn show_block(
        &self,
        shard: &Shard,
        block: &RecoveredBlock<'_>,
        seen: &mut Seen,
        visitor: &mut dyn RecoveryVisitor,
        sum: &mut Recovered,
    ) {
        let _claiming = self.claiming.lock();
        let (header, sequence) = (block.header, block.sequence.0);
        if self.removals.lock().hides(&header.fingerprint, header.key, sequence) {
            sum.removed += 1;
            return;
        }
        let bytes = header.footprint();
        let count = |more: bool| {
            if let Some(segment) = shard.segments.lock().get_mut(block.spot.segment) {
                let live = &mut segment.live_bytes;
                *live = if more { *live + bytes } else { live.saturating_sub(bytes) };
            }
        };
        count(true);
        if visitor.block(block) {
            seen.blocks += 1;
            sum.blocks += 1;
            sum.bytes += bytes;
        } else {
            count(false);
            sum.refused += 1;
        }
    }
}

/// What is known of a segment while it is shown.
struct Seen {
    stream: StreamId,
    void_before: u64,
    oldest: u64,
    blocks: u32,
}

impl Seen {
    fn of(shard: &Shard, chain: &Chain) -> Seen {
        let void_before = shard.superblock.lock().void_before;
        let sequences = chain.records.iter().filter_map(|(_, record)| match record {
            Record::Blocks { sequence, .. } => Some(*sequence),
            _ => None,
        });
        let oldest = sequences.filter(|sequence| *sequence >= void_before).min();
        // What could not be read may be claimed another time, whatever it is.
        let oldest = if chain.is_cut { 0 } else { oldest.unwrap_or(u64::MAX) };
        Seen { stream: StreamId(0), void_before, oldest, blocks: 0 }
    }
}

fn tenant_of(chain: &Chain) -> Option<&str> {
    match chain.records.first() {
        Some((_, Record::Tenant(name))) => Some(name),
        _ => None,
    }
}

/// Reads header and first record of each; those with removals go to `logs`.
fn survey_group(shard: &Shard, group: &[u32], logs: &mut Vec<Chain>) {
    let device = shard.superblock.lock().device;
    let at = |page| group.iter().map(|&segment| shard.offset(segment, page)).collect::<Vec<_>>();
    let headers = read_each(shard, &at(0));
    let firsts = read_each(shard, &at(1));
    for ((&number, header), first) in group.iter().zip(headers).zip(firsts) {
        let mut segments = shard.segments.lock();
        let Some(page) = header else {
            if let Some(segment) = segments.get_mut(number) {
                // It may be readable another time, and then claimed.
                segment.oldest = 0;
            }
            continue;
        };
        let Some(header) = decode_segment(&page.bytes()[..PAGE_BYTES], &device, number) else {
            continue;
        };
        let place = RecordPlace { segment: &header, position: 0 };
        match first.map(|first| decode_record(first.bytes(), place)) {
            Some(Ok(Some((Record::Removals { .. }, _)))) => {
                segments.found(header, State::Removals, u64::MAX);
                logs.push(Chain::new(header));
            }
            Some(Ok(Some(_))) => segments.found(header, State::Unclaimed, 0),
            Some(_) => segments.found(header, State::Free, u64::MAX),
            None => segments.found(header, State::Free, 0),
        }
    }
}

fn take_removals(table: &mut RemovalTable, log: &Chain) {
    for (_, record) in &log.records {
        if let Record::Removals { fingerprint, whole, keys } = record {
            if *whole > 0 {
                table.add(&Removal::Namespace { fingerprint: *fingerprint }, *whole);
            }
            keys.iter().for_each(|(key, sequence)| table.add_key(*fingerprint, *key, *sequence));
        }
    }
}
