//! Touch, report, drop: small commands about blocks that move no bytes.

use keepwarm_store::Reported;
use keepwarm_store::types::{BlockKey, Epoch, Generation, NamespaceId};

use crate::codec::{Body, Malformed, Reader, Write};

/// Tells which prefix was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TouchRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// The asking side's epoch.
    pub epoch: Epoch,
    /// In prompt order; the node touches them tail first.
    pub keys: Vec<BlockKey>,
}

impl Body for TouchRequest {
    const NAME: &'static str = "touch request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.put_u32(self.epoch.0);
        out.put_keys(&self.keys);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(TouchRequest {
            namespace: NamespaceId(reader.u16()?),
            epoch: Epoch(reader.u32()?),
            keys: reader.keys()?,
        })
    }
}

/// How many of the keys are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchReply(pub u32);

impl Body for TouchReply {
    const NAME: &'static str = "touch reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u32().map(TouchReply)
    }
}

/// Tells that bytes did not match the checksum they came with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// The block.
    pub key: BlockKey,
    /// Which of its parts.
    pub part: u8,
    /// As in the get's reply.
    pub generation: Generation,
}

impl Body for ReportRequest {
    const NAME: &'static str = "report request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.extend_from_slice(&self.key.0);
        out.put_u8(self.part);
        out.put_u32(self.generation.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(ReportRequest {
            namespace: NamespaceId(reader.u16()?),
            key: reader.key()?,
            part: reader.u8()?,
            generation: Generation(reader.u32()?),
        })
    }
}

/// What the node found when it checked again. Wire codes: 1 removed, 2 intact, 3 gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportReply(pub Reported);

impl Body for ReportReply {
    const NAME: &'static str = "report reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(match self.0 {
            Reported::Removed => 1,
            Reported::Intact => 2,
            Reported::Gone => 3,
        });
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        match reader.u8()? {
            1 => Ok(ReportReply(Reported::Removed)),
            2 => Ok(ReportReply(Reported::Intact)),
            3 => Ok(ReportReply(Reported::Gone)),
            _ => Err(reader.malformed("unknown finding")),
        }
    }
}

/// Removes blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// Which; `None` for all of the namespace.
    pub keys: Option<Vec<BlockKey>>,
}

impl Body for DropRequest {
    const NAME: &'static str = "drop request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.put_u8(self.keys.is_none().into());
        out.put_keys(self.keys.as_deref().unwrap_or_default());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let namespace = NamespaceId(reader.u16()?);
        match (reader.bool()?, reader.keys()?) {
            (false, keys) => Ok(DropRequest { namespace, keys: Some(keys) }),
            (true, keys) if keys.is_empty() => Ok(DropRequest { namespace, keys: None }),
            (true, _) => Err(reader.malformed("keys where all are meant")),
        }
    }
}

/// How many blocks are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DropReply(pub u64);

impl Body for DropReply {
    const NAME: &'static str = "drop reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        reader.u64().map(DropReply)
    }
}
