//! Joining a namespace: its numbers hold on the connection that attached it.

use keepwarm_store::types::{Epoch, NamespaceId};

use super::TEXT_BYTES_MAX;
use crate::codec::{Body, Malformed, Reader, Write, clipped};

/// Most bytes of a namespace's encoding.
const ENCODING_BYTES_MAX: usize = 16 << 10;

/// Asks to use a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// Canonical encoding of everything that makes bytes interchangeable.
    pub encoding: Vec<u8>,
    /// Shows that both sides derive the same keys.
    pub key_check: [u8; 8],
    /// At least this epoch.
    pub epoch: Epoch,
}

impl Body for AttachRequest {
    const NAME: &'static str = "attach request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_counted(&self.encoding);
        out.extend_from_slice(&self.key_check);
        out.put_u32(self.epoch.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(AttachRequest {
            encoding: reader.counted_bytes(ENCODING_BYTES_MAX)?.to_vec(),
            key_check: reader.array()?,
            epoch: Epoch(reader.u32()?),
        })
    }
}

/// The namespace's number here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachReply {
    /// Stands for the namespace in further requests on this connection.
    pub namespace: NamespaceId,
    /// The node's epoch, not smaller than the one asked for.
    pub epoch: Epoch,
    /// How this namespace differs from the most similar one already here; empty if it is not new.
    pub nearest: String,
}

impl Body for AttachReply {
    const NAME: &'static str = "attach reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.put_u32(self.epoch.0);
        out.put_counted(clipped(&self.nearest, TEXT_BYTES_MAX).as_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(AttachReply {
            namespace: NamespaceId(reader.u16()?),
            epoch: Epoch(reader.u32()?),
            nearest: reader.text(TEXT_BYTES_MAX)?,
        })
    }
}
