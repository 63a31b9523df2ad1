//! Which blocks of a prompt are here: one round trip for the whole prompt.

use keepwarm_store::types::{BlockKey, Epoch, Generation, LeaseId, NamespaceId};
use keepwarm_store::{Hit, Lookup};

use super::{read_miss, read_tier};
use crate::codec::{Body, Malformed, Reader, Write, length};
use crate::frames::KEYS_MAX;

/// Asks for the blocks of one prompt, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// The asking side's epoch.
    pub epoch: Epoch,
    /// Position of the first key in its prompt, in blocks.
    pub first_position: u64,
    /// For how long the hits should stay, in milliseconds; 0 asks for no lease.
    pub lease_ms: u32,
    /// The blocks.
    pub keys: Vec<BlockKey>,
}

impl Body for LookupRequest {
    const NAME: &'static str = "lookup request";

    fn write(&self, out: &mut Vec<u8>) {
        LookupRequest::write_parts(out, self, &self.keys);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(LookupRequest {
            namespace: NamespaceId(reader.u16()?),
            epoch: Epoch(reader.u32()?),
            first_position: reader.u64()?,
            lease_ms: reader.u32()?,
            keys: reader.keys()?,
        })
    }
}

impl LookupRequest {
    /// Writes the request with the caller's `keys` instead of its own, to spare a copy.
    pub fn write_parts(out: &mut Vec<u8>, head: &LookupRequest, keys: &[BlockKey]) {
        out.put_u16(head.namespace.0);
        out.put_u32(head.epoch.0);
        out.put_u64(head.first_position);
        out.put_u32(head.lease_ms);
        out.put_keys(keys);
    }
}

/// Bytes of one record: a miss is all zeros.
const HIT_BYTES: usize = 17;

/// What is here, as the store says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookupReply(pub Lookup);

impl Body for LookupReply {
    const NAME: &'static str = "lookup reply";

    fn write(&self, out: &mut Vec<u8>) {
        let found = &self.0;
        out.put_u32(found.prefix);
        out.put_u8(found.miss.map_or(0, |reason| reason as u8));
        out.put_option_u64(found.lease.map(|lease| lease.0));
        out.put_u32(found.lease_ms);
        out.put_u64(found.restore_ns);
        out.put_u32(found.epoch.0);
        out.put_u64(found.incarnation);
        out.put_u32(length(found.hits.len()));
        out.reserve(found.hits.len() * HIT_BYTES);
        found.hits.iter().for_each(|hit| out.extend_from_slice(&hit_bytes(hit)));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let prefix = reader.u32()?;
        let miss = match reader.u8()? {
            0 => None,
            code => Some(read_miss(reader, code)?),
        };
        let lease = reader.option_u64()?.map(LeaseId);
        let (lease_ms, restore_ns) = (reader.u32()?, reader.u64()?);
        let (epoch, incarnation) = (Epoch(reader.u32()?), reader.u64()?);
        let count = reader.count(KEYS_MAX, HIT_BYTES)?;
        let (records, _) = reader.bytes(count * HIT_BYTES)?.as_chunks();
        let hits: Option<Vec<_>> = records.iter().map(read_hit).collect();
        let hits = hits.ok_or_else(|| reader.malformed("a hit without a tier"))?;
        if prefix as usize > hits.len() {
            return Err(reader.malformed("a prefix longer than the prompt"));
        }
        Ok(LookupReply(Lookup {
            prefix,
            miss,
            lease,
            lease_ms,
            restore_ns,
            epoch,
            incarnation,
            hits,
        }))
    }
}

/// Tier 1, length 4, generation 4, checksum 8.
fn hit_bytes(hit: &Option<Hit>) -> [u8; HIT_BYTES] {
    let mut bytes = [0; HIT_BYTES];
    if let Some(hit) = hit {
        bytes[0] = hit.tier as u8;
        bytes[1..5].copy_from_slice(&hit.length.to_le_bytes());
        bytes[5..9].copy_from_slice(&hit.generation.0.to_le_bytes());
        bytes[9..].copy_from_slice(&hit.checksum.to_le_bytes());
    }
    bytes
}

/// `None`: a hit without a tier.
fn read_hit(bytes: &[u8; HIT_BYTES]) -> Option<Option<Hit>> {
    if *bytes == [0; HIT_BYTES] {
        return Some(None);
    }
    let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
    let u64_at = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]));
    Some(Some(Hit {
        tier: read_tier(bytes[0])?,
        length: u32_at(1),
        generation: Generation(u32_at(5)),
        checksum: u64_at(9),
    }))
}
