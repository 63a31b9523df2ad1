//! The bytes on the device. Little-endian; every structure begins on a 4 KiB boundary and has its
//! own 4 KiB block, so that a payload can go from the device into arena granules by O_DIRECT.
//!
//! ```text
//! segment | header block | record | record | …            (a record never crosses a segment)
//! record  | header block | payload, padded to 4 KiB |
//! ```

use keepwarm_store::checksum::xxh3_64;

pub const BLOCK: usize = 4096;
pub const SEGMENT_BYTES: usize = 256 << 10;
const VERSION: u16 = 1;
const SEGMENT_MAGIC: u64 = 0x3147_4553_4D52_574B;
const RECORD_MAGIC: u64 = 0x3143_4552_4D52_574B;
const CHECK_AT: usize = 112;
const HEADER_BYTES: usize = 128;

/// What ties a record to one life of its segment; the prototype's question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tie {
    /// Nothing: magic, length and checksum only.
    Nothing,
    /// The segment's generation, counted up with each life, in the record and its checksum.
    Counter,
    /// The generation, and a check keyed with a random 256-bit nonce of the segment's life.
    Nonce,
}

/// One life of a segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    pub node: u64,
    pub device: u8,
    pub devices: u8,
    pub generation: u64,
    pub nonce: [u8; 32],
}

/// Everything that makes a payload this block's and no other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    pub namespace: [u8; 32],
    pub epoch: u32,
    pub key: [u8; 16],
    pub part: u8,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Block,
    /// The identity was dropped; hides older records of it.
    Drop,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    pub kind: Kind,
    pub identity: Identity,
    pub length: u32,
    /// Its number within the segment: the chain may not skip or repeat.
    pub position: u32,
    pub payload_checksum: u64,
}

impl Record {
    /// Bytes on the device, header block included.
    pub fn footprint(&self) -> usize {
        BLOCK + (self.length as usize).next_multiple_of(BLOCK)
    }
}

pub fn encode_segment(segment: &Segment) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[0..8].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
    block[8..10].copy_from_slice(&VERSION.to_le_bytes());
    block[10] = segment.device;
    block[11] = segment.devices;
    block[16..24].copy_from_slice(&segment.node.to_le_bytes());
    block[24..32].copy_from_slice(&segment.generation.to_le_bytes());
    block[32..64].copy_from_slice(&segment.nonce);
    let check = xxh3_64(&block[..CHECK_AT]);
    block[CHECK_AT..CHECK_AT + 8].copy_from_slice(&check.to_le_bytes());
    block
}

pub fn decode_segment(block: &[u8], node: u64) -> Option<Segment> {
    let segment = Segment {
        node: u64_at(block, 16),
        device: block[10],
        devices: block[11],
        generation: u64_at(block, 24),
        nonce: block[32..64].try_into().ok()?,
    };
    (encode_segment(&segment) == block && segment.node == node).then_some(segment)
}

pub fn encode_record(record: &Record, segment: &Segment, tie: Tie) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    block[0..8].copy_from_slice(&RECORD_MAGIC.to_le_bytes());
    block[8..10].copy_from_slice(&VERSION.to_le_bytes());
    block[10] = match record.kind {
        Kind::Block => 1,
        Kind::Drop => 2,
    };
    block[11] = record.identity.part;
    block[12..16].copy_from_slice(&record.length.to_le_bytes());
    block[16..32].copy_from_slice(&record.identity.key);
    block[32..64].copy_from_slice(&record.identity.namespace);
    block[64..68].copy_from_slice(&record.identity.epoch.to_le_bytes());
    block[80..88].copy_from_slice(&record.payload_checksum.to_le_bytes());
    if tie != Tie::Nothing {
        block[68..72].copy_from_slice(&record.position.to_le_bytes());
        block[72..80].copy_from_slice(&segment.generation.to_le_bytes());
    }
    let check = match tie {
        Tie::Nonce => {
            let keyed = blake3::keyed_hash(&segment.nonce, &block[..CHECK_AT]);
            u128::from_le_bytes(keyed.as_bytes()[..16].try_into().expect("16 of 32"))
        }
        _ => u128::from(xxh3_64(&block[..CHECK_AT])),
    };
    block[CHECK_AT..HEADER_BYTES].copy_from_slice(&check.to_le_bytes());
    block
}

/// The record whose header is `block`, if it belongs to this life of the segment and this place in
/// it. Everything is compared with what would have been written: no field goes unchecked.
pub fn decode_record(block: &[u8], segment: &Segment, position: u32, tie: Tie) -> Option<Record> {
    let record = Record {
        kind: match block[10] {
            1 => Kind::Block,
            2 => Kind::Drop,
            _ => return None,
        },
        identity: Identity {
            namespace: block[32..64].try_into().ok()?,
            epoch: u32::from_le_bytes(block[64..68].try_into().ok()?),
            key: block[16..32].try_into().ok()?,
            part: block[11],
        },
        length: u32::from_le_bytes(block[12..16].try_into().ok()?),
        position,
        payload_checksum: u64_at(block, 80),
    };
    (encode_record(&record, segment, tie)[..HEADER_BYTES] == block[..HEADER_BYTES])
        .then_some(record)
}

fn u64_at(block: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(block[at..at + 8].try_into().expect("8 bytes"))
}
