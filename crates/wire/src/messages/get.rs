//! Blocks out: one request, then per block either its bytes or why not, in the order asked.

use keepwarm_store::types::{BlockKey, Epoch, Generation, GetOutcome, NamespaceId};

use super::{read_get_outcome, write_get_outcome};
use crate::codec::{Body, Malformed, Reader, Write, length};

/// Most outcomes in one frame of misses.
pub const MISSES_MAX: usize = 4096;

/// One part of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetAsk {
    /// The block.
    pub key: BlockKey,
    /// Which of its parts.
    pub part: u8,
    /// Bytes of the buffer it is to land in; another length is a miss.
    pub length: u32,
}

/// Asks for blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// The asking side's epoch.
    pub epoch: Epoch,
    /// What is wanted, in order.
    pub asks: Vec<GetAsk>,
}

impl Body for GetRequest {
    const NAME: &'static str = "get request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.put_u32(self.epoch.0);
        out.put_u32(length(self.asks.len()));
        for ask in &self.asks {
            out.extend_from_slice(&ask.key.0);
            out.put_u8(ask.part);
            out.put_u32(ask.length);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(GetRequest {
            namespace: NamespaceId(reader.u16()?),
            epoch: Epoch(reader.u32()?),
            asks: reader.list(21, |reader| {
                Ok(GetAsk { key: reader.key()?, part: reader.u8()?, length: reader.u32()? })
            })?,
        })
    }
}

/// Head of one block's bytes, which follow as the frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetData {
    /// Which of the asks, from 0.
    pub index: u32,
    /// Version of the place the bytes come from; names it in a report.
    pub generation: Generation,
    /// XXH3-64 of the payload.
    pub checksum: u64,
}

impl GetData {
    /// Bytes of this body: fixed, so that it can be received together with the payload.
    pub const BYTES: usize = 16;
}

impl Body for GetData {
    const NAME: &'static str = "get reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.index);
        out.put_u32(self.generation.0);
        out.put_u64(self.checksum);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(GetData {
            index: reader.u32()?,
            generation: Generation(reader.u32()?),
            checksum: reader.u64()?,
        })
    }
}

/// Outcomes of asks in a row that bring no bytes. A frame without payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetMisses {
    /// The first of the asks.
    pub first: u32,
    /// Never `Ok`; at least one, at most [`MISSES_MAX`].
    pub outcomes: Vec<GetOutcome>,
}

impl Body for GetMisses {
    const NAME: &'static str = "get reply without bytes";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.first);
        out.put_u32(length(self.outcomes.len()));
        self.outcomes.iter().for_each(|outcome| write_get_outcome(out, *outcome));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let first = reader.u32()?;
        let count = reader.count(MISSES_MAX, 2)?;
        if count == 0 {
            return Err(reader.malformed("no outcome in it"));
        }
        let outcomes = (0..count)
            .map(|_| {
                let bytes = reader.array()?;
                read_get_outcome(reader, bytes)
            })
            .collect::<Result<_, _>>()?;
        Ok(GetMisses { first, outcomes })
    }
}
