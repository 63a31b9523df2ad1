//! Shared memory changes hands: the arena to a client, a client's staging to the node. Each rides
//! on the one byte of payload of its frame, as a descriptor passed with it (`SCM_RIGHTS`).

use crate::codec::{Body, Malformed, Reader, Write};

/// Bytes of payload that carry a descriptor.
pub const CARRIER_BYTES: u64 = 1;

/// Asks for the arena. As long as this connection lives, its client maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRequest;

impl Body for MapRequest {
    const NAME: &'static str = "map request";

    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(MapRequest)
    }
}

/// The arena's descriptor comes with it: sealed, to be mapped read-only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapReply {
    /// The node whose arena it is.
    pub incarnation: u64,
    /// The arena's size.
    pub bytes: u64,
}

impl Body for MapReply {
    const NAME: &'static str = "map reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.incarnation);
        out.put_u64(self.bytes);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(MapReply { incarnation: reader.u64()?, bytes: reader.u64()? })
    }
}

/// Gives the node this connection's staging, whose descriptor comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageRequest {
    /// Its size; the node looks for itself.
    pub bytes: u64,
}

impl Body for StageRequest {
    const NAME: &'static str = "stage request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.bytes);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(StageRequest { bytes: reader.u64()? })
    }
}

/// The node maps it, until this connection ends or another one comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageReply;

impl Body for StageReply {
    const NAME: &'static str = "stage reply";

    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(StageReply)
    }
}
