//! Joining a namespace: its numbers hold on the connection that attached it.

use std::time::Duration;

use keepwarm_store::types::{Epoch, NamespaceId, Priority, Terms};

use super::TEXT_BYTES_MAX;
use crate::codec::{Body, Malformed, Reader, Write, clipped};

/// Most bytes of a namespace's encoding.
const ENCODING_BYTES_MAX: usize = 16 << 10;

/// The priority of an attach that names none.
const UNNAMED: u8 = u8::MAX;

/// Asks to use a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// Canonical encoding of everything that makes bytes interchangeable.
    pub encoding: Vec<u8>,
    /// Shows that both sides derive the same keys.
    pub key_check: [u8; 8],
    /// At least this epoch.
    pub epoch: Epoch,
    /// For the blocks stored from then on. A time to live counts in whole milliseconds.
    pub terms: Terms,
}

impl Body for AttachRequest {
    const NAME: &'static str = "attach request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_counted(&self.encoding);
        out.extend_from_slice(&self.key_check);
        out.put_u32(self.epoch.0);
        out.put_u64(self.terms.ttl.map_or(0, |ttl| (ttl.as_millis() as u64).max(1)));
        out.put_u8(self.terms.priority.map_or(UNNAMED, Priority::number));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(AttachRequest {
            encoding: reader.counted_bytes(ENCODING_BYTES_MAX)?.to_vec(),
            key_check: reader.array()?,
            epoch: Epoch(reader.u32()?),
            terms: read_terms(reader)?,
        })
    }
}

fn read_terms(reader: &mut Reader<'_>) -> Result<Terms, Malformed> {
    let ttl = Some(reader.u64()?).filter(|ms| *ms > 0).map(Duration::from_millis);
    let priority = match reader.u8()? {
        UNNAMED => None,
        number => Some(Priority::new(number).ok_or_else(|| reader.malformed("no such priority"))?),
    };
    Ok(Terms { ttl, priority })
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
