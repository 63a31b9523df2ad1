//! Leaving a namespace that this connection attached.

use keepwarm_store::types::NamespaceId;

use crate::codec::{Body, Malformed, Reader, Write};

/// Says that this connection no longer uses a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetachRequest {
    /// As attached.
    pub namespace: NamespaceId,
}

impl Body for DetachRequest {
    const NAME: &'static str = "detach request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(DetachRequest { namespace: NamespaceId(reader.u16()?) })
    }
}

/// Whether it was attached on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetachReply(pub bool);

impl Body for DetachReply {
    const NAME: &'static str = "detach reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.0.into());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.bool().map(DetachReply)
    }
}
