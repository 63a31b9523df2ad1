//! Blocks in, in two phases on one connection:
//!
//! ```text
//!  client                                   node
//!  PutRequest (keys, parts, lengths)  ──►   reserves
//!             ◄──  PutGrants (per ask: granted, or the outcome already)
//!  PutData (index, payload, XXH3) ...  ──►   into the arena, hashed while hot, committed
//!             ◄──  PutDone (per ask), after the last granted one; or at once if none was granted
//! ```
//!
//! Only granted payloads travel, in the order of the asks, all of them within a time that follows
//! from their bytes. All frames carry one correlation id. A
//! connection that ends in between takes its reservations with it.

use keepwarm_store::types::{BlockKey, Epoch, NamespaceId, PutOutcome};

use super::{read_put_outcome, write_put_outcome};
use crate::codec::{Body, Malformed, Reader, Write, length};

/// Most blocks that one request is granted. Space is taken for all of them before the first byte
/// comes, so a longer batch would hold more of the arena, and more places for incomplete blocks,
/// than it sends soon. What is beyond is shed as busy; clients cut their batches by this.
pub const PUT_BLOCKS_MAX: usize = 256;
/// Most bytes that one request is granted, or one block if that is larger.
pub const PUT_BYTES_MAX: u64 = 64 << 20;

/// One part of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutAsk {
    /// The block.
    pub key: BlockKey,
    /// Which of its parts.
    pub part: u8,
    /// Its bytes.
    pub length: u32,
    /// The engine's own 64-bit hash, for events.
    pub engine_hash: Option<u64>,
}

/// Asks to write blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// The writing side's epoch.
    pub epoch: Epoch,
    /// What would be written, in prompt order.
    pub asks: Vec<PutAsk>,
}

impl Body for PutRequest {
    const NAME: &'static str = "put request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.put_u32(self.epoch.0);
        out.put_u32(length(self.asks.len()));
        for ask in &self.asks {
            out.extend_from_slice(&ask.key.0);
            out.put_u8(ask.part);
            out.put_u32(ask.length);
            out.put_option_u64(ask.engine_hash);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(PutRequest {
            namespace: NamespaceId(reader.u16()?),
            epoch: Epoch(reader.u32()?),
            asks: reader.list(30, |reader| {
                Ok(PutAsk {
                    key: reader.key()?,
                    part: reader.u8()?,
                    length: reader.u32()?,
                    engine_hash: reader.option_u64()?,
                })
            })?,
        })
    }
}

/// What the node says to one ask before any byte travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// Send it.
    Granted,
    /// Do not; this is what becomes of it.
    Decided(PutOutcome),
}

/// Answer to the reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutGrants(pub Vec<Grant>);

impl Body for PutGrants {
    const NAME: &'static str = "put grants";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(length(self.0.len()));
        for grant in &self.0 {
            match grant {
                Grant::Granted => out.extend_from_slice(&[0, 0]),
                Grant::Decided(outcome) => write_put_outcome(out, *outcome),
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let grants = reader.list(2, |reader| match reader.array()? {
            [0, 0] => Ok(Grant::Granted),
            [kind, reason] => read_put_outcome(reader, kind, reason).map(Grant::Decided),
        })?;
        Ok(PutGrants(grants))
    }
}

/// Head of one granted block's bytes, which follow as payload and trailer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutDataHead {
    /// Which of the asks, from 0.
    pub index: u32,
}

impl PutDataHead {
    /// Bytes of this body: fixed, so that it can be received together with the header.
    pub const BYTES: usize = 4;
}

impl Body for PutDataHead {
    const NAME: &'static str = "put data";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.index);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(PutDataHead { index: reader.u32()? })
    }
}

/// What became of every ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutDone(pub Vec<PutOutcome>);

impl Body for PutDone {
    const NAME: &'static str = "put reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(length(self.0.len()));
        self.0.iter().for_each(|outcome| write_put_outcome(out, *outcome));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let outcomes = reader.list(2, |reader| {
            let [kind, reason] = reader.array()?;
            read_put_outcome(reader, kind, reason)
        })?;
        Ok(PutDone(outcomes))
    }
}
