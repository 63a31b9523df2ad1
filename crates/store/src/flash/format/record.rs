//! Records: what a segment's chain is made of. Each begins with a header of whole pages, checked
//! with the nonce of its segment's life; a payload may follow.

use super::superblock::VERSION;
use super::{PAGE_BYTES, SegmentHeader, array_at, u16_at, u32_at, u64_at};
use crate::identity::ENCODING_BYTES_MAX;
use crate::tiers::{BlockHeader, PARTS_MAX, PartPlace, TENANT_BYTES_MAX, TierNamespace, pages_of};
use crate::types::{BlockKey, Epoch};

const MAGIC: [u8; 8] = *b"KWRECORD";
const CHECK: std::ops::Range<usize> = 32..64;
const BODY_AT: usize = 64;
const BLOCKS_AT: usize = BODY_AT + 40;
const REMOVALS_AT: usize = BODY_AT + 40;
const ENTRY_BYTES: usize = 40;
const PART_BYTES: usize = 12;
const REMOVAL_BYTES: usize = 24;
/// Pages of a record's header, at most: a namespace's encoding is the longest.
pub const HEADER_PAGES_MAX: usize = (BODY_AT + 36 + ENCODING_BYTES_MAX).div_ceil(PAGE_BYTES);
/// Blocks or removals in one record, at most.
pub const ENTRIES_MAX: usize = 160;

const TENANT: u8 = 1;
const NAMESPACE: u8 = 2;
const BLOCKS: u8 = 3;
const REMOVALS: u8 = 4;

/// Where a record stands: in which life, and as which one of it. Part of its check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPlace<'a> {
    /// The life.
    pub segment: &'a SegmentHeader,
    /// Counted from 0 in that life; the chain may not skip or repeat.
    pub position: u32,
}

/// One block of a record; its payload follows those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Its key.
    pub key: BlockKey,
    /// The epoch it was stored under.
    pub epoch: Epoch,
    /// The engine's own hash.
    pub engine_hash: Option<u64>,
    /// In Unix milliseconds; 0 is never.
    pub expires_unix_ms: u64,
    /// The store's business.
    pub priority: u8,
    /// Length and XXH3-64 of each part.
    pub parts: Vec<(u32, u64)>,
}

impl BlockEntry {
    /// Pages of its payload.
    pub fn payload_pages(&self) -> u64 {
        self.parts.iter().map(|(len, _)| pages_of(*len)).sum()
    }

    /// As tiers tell it.
    pub fn header(&self, fingerprint: [u8; 32]) -> BlockHeader {
        let mut first_page = 0;
        let parts = self.parts.iter().map(|&(len, checksum)| {
            let place = PartPlace { first_page, len, checksum };
            first_page += pages_of(len) as u32;
            place
        });
        BlockHeader {
            fingerprint,
            key: self.key,
            epoch: self.epoch,
            engine_hash: self.engine_hash,
            expires_unix_ms: self.expires_unix_ms,
            priority: self.priority,
            parts: parts.collect(),
        }
    }
}

/// Bytes that an entry takes in a record's header.
pub fn entry_bytes(parts: usize) -> usize {
    ENTRY_BYTES + parts * PART_BYTES
}

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Whose segment it is: its first record, unless it keeps removals.
    Tenant(String),
    /// A namespace that blocks of this segment belong to; before the first of them.
    Namespace(TierNamespace),
    /// Blocks of one namespace, taken at one moment; payloads follow.
    Blocks {
        /// The namespace.
        fingerprint: [u8; 32],
        /// When they were taken.
        sequence: u64,
        /// The blocks, in the order of their payloads.
        entries: Vec<BlockEntry>,
    },
    /// What was removed of one namespace. A segment has either these or blocks.
    Removals {
        /// The namespace.
        fingerprint: [u8; 32],
        /// When all of it was removed; 0 is never.
        whole: u64,
        /// Keys, and when each was removed.
        keys: Vec<(BlockKey, u64)>,
    },
}

impl Record {
    /// Pages of its payload.
    pub fn payload_pages(&self) -> u64 {
        match self {
            Record::Blocks { entries, .. } => entries.iter().map(BlockEntry::payload_pages).sum(),
            _ => 0,
        }
    }

    /// Pages of its header.
    pub fn header_pages(&self) -> usize {
        self.body_end().div_ceil(PAGE_BYTES)
    }

    /// Whether one more block of so many parts fits the header.
    pub fn has_room_for(&self, parts: usize) -> bool {
        let Record::Blocks { entries, .. } = self else { return false };
        entries.len() < ENTRIES_MAX && self.body_end() + entry_bytes(parts) <= PAGE_BYTES
    }

    /// Removed keys that one record holds.
    pub const fn removals_max() -> usize {
        (PAGE_BYTES - REMOVALS_AT) / REMOVAL_BYTES
    }

    fn body_end(&self) -> usize {
        match self {
            Record::Tenant(name) => BODY_AT + name.len(),
            Record::Namespace(namespace) => BODY_AT + 36 + namespace.encoding.len(),
            Record::Blocks { entries, .. } => {
                let bytes = entries.iter().map(|entry| entry_bytes(entry.parts.len()));
                BLOCKS_AT + bytes.sum::<usize>()
            }
            Record::Removals { keys, .. } => REMOVALS_AT + keys.len() * REMOVAL_BYTES,
        }
    }
}

/// A record's header, whole pages.
///
/// # Panics
/// If it is larger than a record may be; the log splits before.
pub fn encode_record(record: &Record, place: RecordPlace<'_>) -> Vec<u8> {
    let pages = record.header_pages();
    let mut body = Vec::with_capacity(pages * PAGE_BYTES);
    body.resize(BODY_AT, 0);
    let (kind, count) = match record {
        Record::Tenant(name) => {
            body.extend_from_slice(name.as_bytes());
            (TENANT, name.len())
        }
        Record::Namespace(namespace) => {
            body.extend_from_slice(&namespace.fingerprint);
            body.extend_from_slice(&(namespace.encoding.len() as u32).to_le_bytes());
            body.extend_from_slice(&namespace.encoding);
            (NAMESPACE, 1)
        }
        Record::Blocks { fingerprint, sequence, entries } => {
            body.extend_from_slice(fingerprint);
            body.extend_from_slice(&sequence.to_le_bytes());
            entries.iter().for_each(|entry| encode_entry(entry, &mut body));
            (BLOCKS, entries.len())
        }
        Record::Removals { fingerprint, whole, keys } => {
            body.extend_from_slice(fingerprint);
            body.extend_from_slice(&whole.to_le_bytes());
            for (key, sequence) in keys {
                body.extend_from_slice(&key.0);
                body.extend_from_slice(&sequence.to_le_bytes());
            }
            (REMOVALS, keys.len())
        }
    };
    assert!(pages <= HEADER_PAGES_MAX && (matches!(kind, NAMESPACE) || pages == 1));
    body.resize(pages * PAGE_BYTES, 0);
    body[..8].copy_from_slice(&MAGIC);
    body[8..10].copy_from_slice(&VERSION.to_le_bytes());
    body[10] = kind;
    body[11] = pages as u8;
    body[12..14].copy_from_slice(&(count as u16).to_le_bytes());
    body[16..20].copy_from_slice(&place.segment.life.to_le_bytes());
    body[20..24].copy_from_slice(&place.position.to_le_bytes());
    body[24..28].copy_from_slice(&(record.payload_pages() as u32).to_le_bytes());
    body[28..32].copy_from_slice(&place.segment.segment.to_le_bytes());
    mend_record(&mut body, &place.segment.nonce);
    body
}

fn encode_entry(entry: &BlockEntry, body: &mut Vec<u8>) {
    body.extend_from_slice(&entry.key.0);
    body.extend_from_slice(&entry.epoch.0.to_le_bytes());
    body.push(u8::from(entry.engine_hash.is_some()));
    body.push(entry.priority);
    body.push(entry.parts.len() as u8);
    body.push(0);
    body.extend_from_slice(&entry.engine_hash.unwrap_or(0).to_le_bytes());
    body.extend_from_slice(&entry.expires_unix_ms.to_le_bytes());
    for (len, checksum) in &entry.parts {
        body.extend_from_slice(&len.to_le_bytes());
        body.extend_from_slice(&checksum.to_le_bytes());
    }
}

fn check_of(header: &[u8], nonce: &[u8; 32]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(nonce);
    hasher.update(&header[..CHECK.start]).update(&header[CHECK.end..]);
    *hasher.finalize().as_bytes()
}

/// Makes a header's check right; also for tests and fuzzers that change it.
pub fn mend_record(header: &mut [u8], nonce: &[u8; 32]) {
    let check = check_of(header, nonce);
    header[CHECK].copy_from_slice(&check);
}

/// Which record of its life a header says it is; proven only by [`decode_record`] with it.
pub fn record_position(bytes: &[u8]) -> u32 {
    if bytes.len() < PAGE_BYTES { 0 } else { u32_at(bytes, 20) }
}

/// The record whose header `bytes` begins with, and the header's pages, if it is the one at this
/// place of this life. `Err`: it may be, but has so many pages, more than `bytes`.
///
/// # Errors
/// How many pages to read.
pub fn decode_record(
    bytes: &[u8],
    place: RecordPlace<'_>,
) -> Result<Option<(Record, usize)>, usize> {
    if bytes.len() < PAGE_BYTES || bytes[..8] != MAGIC || u16_at(bytes, 8) != VERSION {
        return Ok(None);
    }
    let pages = usize::from(bytes[11]);
    let is_here = u32_at(bytes, 16) == place.segment.life
        && u32_at(bytes, 20) == place.position
        && u32_at(bytes, 28) == place.segment.segment;
    let pages_max = if bytes[10] == NAMESPACE { HEADER_PAGES_MAX } else { 1 };
    if !is_here || !(1..=pages_max).contains(&pages) {
        return Ok(None);
    }
    let Some(header) = bytes.get(..pages * PAGE_BYTES) else { return Err(pages) };
    if check_of(header, &place.segment.nonce) != header[CHECK] {
        return Ok(None);
    }
    let Some(record) = decode_body(header) else { return Ok(None) };
    let is_canonical = record.header_pages() == pages && encode_record(&record, place) == header;
    Ok(is_canonical.then_some((record, pages)))
}

/// Total on arbitrary bytes: a header whose check holds was ours, but the next reader may err.
fn decode_body(header: &[u8]) -> Option<Record> {
    let count = usize::from(u16_at(header, 12));
    match header[10] {
        TENANT => {
            let name = header.get(BODY_AT..BODY_AT + count)?;
            let is_name = (1..=TENANT_BYTES_MAX).contains(&count);
            is_name.then(|| String::from_utf8(name.to_vec()).ok())?.map(Record::Tenant)
        }
        NAMESPACE => {
            let len = u32_at(header, BODY_AT + 32) as usize;
            let encoding = header.get(BODY_AT + 36..(BODY_AT + 36).checked_add(len)?)?;
            let fingerprint = array_at(header, BODY_AT);
            let is_sound = count == 1 && len <= ENCODING_BYTES_MAX;
            let namespace = TierNamespace { fingerprint, encoding: encoding.into() };
            is_sound.then_some(Record::Namespace(namespace))
        }
        BLOCKS => {
            let (fingerprint, sequence) = (array_at(header, BODY_AT), u64_at(header, BODY_AT + 32));
            let entries = decode_entries(header, count)?;
            let pages: u64 = entries.iter().map(BlockEntry::payload_pages).sum();
            let is_sound = pages == u64::from(u32_at(header, 24));
            is_sound.then_some(Record::Blocks { fingerprint, sequence, entries })
        }
        REMOVALS if count <= Record::removals_max() => {
            let (fingerprint, whole) = (array_at(header, BODY_AT), u64_at(header, BODY_AT + 32));
            let keys = (0..count).map(|number| {
                let at = REMOVALS_AT + number * REMOVAL_BYTES;
                (BlockKey(array_at(header, at)), u64_at(header, at + 16))
            });
            Some(Record::Removals { fingerprint, whole, keys: keys.collect() })
        }
        _ => None,
    }
}

fn decode_entries(header: &[u8], count: usize) -> Option<Vec<BlockEntry>> {
    if !(1..=ENTRIES_MAX).contains(&count) {
        return None;
    }
    let mut entries = Vec::with_capacity(count);
    let mut at = BLOCKS_AT;
    for _ in 0..count {
        let fixed = header.get(at..at + ENTRY_BYTES)?;
        let parts = usize::from(fixed[22]);
        let places = header.get(at + ENTRY_BYTES..at + entry_bytes(parts))?;
        let has_hash = fixed[20] == 1;
        entries.push(BlockEntry {
            key: BlockKey(array_at(fixed, 0)),
            epoch: Epoch(u32_at(fixed, 16)),
            engine_hash: has_hash.then_some(u64_at(fixed, 24)),
            expires_unix_ms: u64_at(fixed, 32),
            priority: fixed[21],
            parts: places
                .chunks_exact(PART_BYTES)
                .map(|part| (u32_at(part, 0), u64_at(part, 4)))
                .collect(),
        });
        let entry = entries.last()?;
        if !(1..=PARTS_MAX).contains(&parts) || entry.parts.iter().any(|(len, _)| *len == 0) {
            return None;
        }
        at += entry_bytes(parts);
    }
    Some(entries)
}
