//! What is stored and removed, as it happens. One request, then frames without end, each flagged
//! `MORE`; a frame without events is a heartbeat.

use keepwarm_store::types::{BlockKey, Epoch, NamespaceId, Tier};

use super::tier_from_code;
use crate::codec::{Body, Malformed, Reader, Write, length};

/// The last event a follower has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// Of the node that sent it.
    pub incarnation: u64,
    /// Its number there.
    pub sequence: u64,
}

/// Asks to follow one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscribeRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// Where to go on; `None`, or too long ago: a snapshot first.
    pub since: Option<Since>,
}

impl Body for SubscribeRequest {
    const NAME: &'static str = "subscribe request";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u16(self.namespace.0);
        out.put_option_u64(self.since.map(|since| since.incarnation));
        out.put_u64(self.since.map_or(0, |since| since.sequence));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let namespace = NamespaceId(reader.u16()?);
        let (incarnation, sequence) = (reader.option_u64()?, reader.u64()?);
        let since = incarnation.map(|incarnation| Since { incarnation, sequence });
        if since.is_none() && sequence != 0 {
            return Err(reader.malformed("a sequence without an incarnation"));
        }
        Ok(SubscribeRequest { namespace, since })
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventRecord {
    /// A block became visible.
    Stored {
        /// The block.
        key: BlockKey,
        /// The engine's own hash, if the put carried one.
        engine_hash: Option<u64>,
        /// Where it is.
        tier: Tier,
    },
    /// A block left a tier.
    Removed {
        /// The block.
        key: BlockKey,
        /// The engine's own hash, if the put carried one.
        engine_hash: Option<u64>,
        /// Where it was.
        tier: Tier,
    },
    /// Every block of the namespace is gone: dropped, or of a smaller epoch than this.
    Cleared {
        /// The namespace's epoch from here on.
        epoch: Epoch,
    },
}

/// Some events in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsReply {
    /// Of the sending node.
    pub incarnation: u64,
    /// Number of the last event in here; of the last event at all in a heartbeat.
    pub sequence: u64,
    /// Whether this starts a snapshot: forget all before it. Its frames follow as `Stored`.
    pub resync: bool,
    /// The events.
    pub events: Vec<EventRecord>,
}

impl Body for EventsReply {
    const NAME: &'static str = "events";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.incarnation);
        out.put_u64(self.sequence);
        out.put_u8(self.resync.into());
        out.put_u32(length(self.events.len()));
        self.events.iter().for_each(|event| write_event(out, event));
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(EventsReply {
            incarnation: reader.u64()?,
            sequence: reader.u64()?,
            resync: reader.bool()?,
            events: reader.list(5, read_event)?,
        })
    }
}

fn write_event(out: &mut Vec<u8>, event: &EventRecord) {
    let (kind, key, engine_hash, tier) = match event {
        EventRecord::Stored { key, engine_hash, tier } => (1, key, engine_hash, tier),
        EventRecord::Removed { key, engine_hash, tier } => (2, key, engine_hash, tier),
        EventRecord::Cleared { epoch } => {
            out.put_u8(3);
            out.put_u32(epoch.0);
            return;
        }
    };
    out.put_u8(kind);
    out.extend_from_slice(&key.0);
    out.put_option_u64(*engine_hash);
    out.put_u8(*tier as u8);
}

fn read_event(reader: &mut Reader<'_>) -> Result<EventRecord, Malformed> {
    let kind = reader.u8()?;
    if kind == 3 {
        return Ok(EventRecord::Cleared { epoch: Epoch(reader.u32()?) });
    }
    let (key, engine_hash) = (reader.key()?, reader.option_u64()?);
    let tier = tier_from_code(reader.u8()?).ok_or_else(|| reader.malformed("unknown tier"))?;
    match kind {
        1 => Ok(EventRecord::Stored { key, engine_hash, tier }),
        2 => Ok(EventRecord::Removed { key, engine_hash, tier }),
        _ => Err(reader.malformed("unknown kind of event")),
    }
}
