//! The smallest log over that format: append, drop, flush, reclaim the oldest, recover.

use std::collections::HashMap;

use keepwarm_prototypes::Random;
use keepwarm_store::checksum::xxh3_64;

use crate::device::Device;
use crate::format::{
    BLOCK, Identity, Kind, Record, SEGMENT_BYTES, Segment, Tie, decode_record, decode_segment,
    encode_record, encode_segment,
};

/// Where a claimed block lies.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    pub segment: usize,
    pub generation: u64,
    pub position: u32,
    offset: usize,
    length: u32,
    payload_checksum: u64,
}

pub struct Log {
    pub device: Device,
    pub index: HashMap<Identity, Claim>,
    tie: Tie,
    node: u64,
    /// The life that each segment is in, if it has one.
    pub lives: Vec<Option<Segment>>,
    /// The segment being written, where its next record goes, and that record's position.
    open: Option<(usize, usize, u32)>,
    /// Header blocks that recovery read.
    pub headers_read: u64,
}

impl Log {
    /// Claims what the headers say; reads no payload.
    pub fn recover(device: Device, node: u64, tie: Tie) -> Log {
        let segments = device.bytes() / SEGMENT_BYTES;
        let lives: Vec<Option<Segment>> = (0..segments)
            .map(|at| decode_segment(device.read(at * SEGMENT_BYTES, BLOCK), node))
            .collect();
        let mut log = Log {
            device,
            index: HashMap::new(),
            tie,
            node,
            lives,
            open: None,
            headers_read: segments as u64,
        };
        // Oldest life first, so that what is newer overrides, drops included.
        let mut order: Vec<(u64, usize)> =
            (0..segments).filter_map(|at| Some((log.lives[at]?.generation, at))).collect();
        order.sort_unstable();
        order.into_iter().for_each(|(_, at)| log.claim_segment(at));
        log
    }

    /// Follows the chain of lengths until a header is not this life's. It does not look beyond:
    /// what lies there may be a payload, and payloads are written by strangers.
    fn claim_segment(&mut self, at: usize) {
        let Some(segment) = self.lives[at] else { return };
        let mut offset = BLOCK;
        for position in 0.. {
            if offset + BLOCK > SEGMENT_BYTES {
                return;
            }
            self.headers_read += 1;
            let place = at * SEGMENT_BYTES + offset;
            let block = self.device.read(place, BLOCK);
            let Some(record) = decode_record(block, &segment, position, self.tie) else { return };
            if offset + record.footprint() > SEGMENT_BYTES {
                return;
            }
            match record.kind {
                Kind::Block => self.index.insert(
                    record.identity,
                    Claim {
                        segment: at,
                        generation: segment.generation,
                        position,
                        offset: place + BLOCK,
                        length: record.length,
                        payload_checksum: record.payload_checksum,
                    },
                ),
                Kind::Drop => self.index.remove(&record.identity),
            };
            offset += record.footprint();
        }
    }

    /// Writes header and payload without a flush between; says where.
    pub fn put(&mut self, identity: Identity, payload: &[u8], random: &mut Random) -> Claim {
        let claim = self.append(Kind::Block, identity, payload, random);
        self.index.insert(identity, claim);
        claim
    }

    /// Durable when it returns: a dropped block must not come back.
    pub fn drop_block(&mut self, identity: Identity, random: &mut Random) {
        self.index.remove(&identity);
        self.append(Kind::Drop, identity, &[], random);
        self.device.flush();
    }

    /// The payload, if its bytes are those the header promised; else the claim vanishes.
    pub fn read(&mut self, identity: &Identity) -> Option<Vec<u8>> {
        let claim = self.index.get(identity)?;
        let payload = self.device.read(claim.offset, claim.length as usize);
        if xxh3_64(payload) == claim.payload_checksum {
            return Some(payload.to_vec());
        }
        self.index.remove(identity);
        None
    }

    fn append(
        &mut self,
        kind: Kind,
        identity: Identity,
        payload: &[u8],
        random: &mut Random,
    ) -> Claim {
        let mut record = Record {
            kind,
            identity,
            length: payload.len() as u32,
            position: 0,
            payload_checksum: xxh3_64(payload),
        };
        let (at, offset, position) = self.room(record.footprint(), random);
        record.position = position;
        let segment = self.lives[at].expect("an open segment has a life");
        let place = at * SEGMENT_BYTES + offset;
        self.device.write(place, &encode_record(&record, &segment, self.tie));
        let mut padded = payload.to_vec();
        padded.resize(payload.len().next_multiple_of(BLOCK), 0);
        self.device.write(place + BLOCK, &padded);
        self.open = Some((at, offset + record.footprint(), position + 1));
        Claim {
            segment: at,
            generation: segment.generation,
            position,
            offset: place + BLOCK,
            length: record.length,
            payload_checksum: record.payload_checksum,
        }
    }

    /// Room in the open segment, or in the one whose life began first.
    fn room(&mut self, footprint: usize, random: &mut Random) -> (usize, usize, u32) {
        assert!(BLOCK + footprint <= SEGMENT_BYTES, "larger than a segment");
        if let Some(open) = self.open
            && open.1 + footprint <= SEGMENT_BYTES
        {
            return open;
        }
        let at = (0..self.lives.len())
            .min_by_key(|&at| self.lives[at].map_or(0, |segment| segment.generation))
            .expect("a device has segments");
        self.index.retain(|_, claim| claim.segment != at);
        let newest = self.lives.iter().flatten().map(|segment| segment.generation).max();
        let mut nonce = [0; 32];
        nonce.copy_from_slice(&random.bytes(32));
        let generation = newest.unwrap_or(0) + 1;
        let life = Segment { node: self.node, device: 0, devices: 1, generation, nonce };
        self.device.write(at * SEGMENT_BYTES, &encode_segment(&life));
        // The old life ends before the first record of the new one can land: one flush a segment.
        self.device.flush();
        self.lives[at] = Some(life);
        (at, BLOCK, 0)
    }
}
