//! Moving a namespace to a larger epoch.

use keepwarm_store::types::{Epoch, NamespaceId};

use crate::codec::{Body, Malformed, Reader, Write};

/// Asks for the larger epoch and to hear when no lease of the smaller ones is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// The new epoch.
    pub epoch: Epoch,
    /// How long the node may wait for the old leases to end, in milliseconds.
    pub wait_ms: u32,
}

impl Body for EpochRequest {
    const NAME: &'static str = "epoch request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.put_u32(self.epoch.0);
        out.put_u32(self.wait_ms);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(EpochRequest {
            namespace: NamespaceId(reader.u16()?),
            epoch: Epoch(reader.u32()?),
            wait_ms: reader.u32()?,
        })
    }
}

/// The epoch that holds now, durably.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochReply {
    /// Not smaller than the one asked for.
    pub epoch: Epoch,
    /// Whether no lease of a smaller epoch is left.
    pub quiet: bool,
}

impl Body for EpochReply {
    const NAME: &'static str = "epoch reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.epoch.0);
        out.put_u8(self.quiet.into());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(EpochReply { epoch: Epoch(reader.u32()?), quiet: reader.bool()? })
    }
}
