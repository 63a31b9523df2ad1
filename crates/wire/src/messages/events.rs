//! What is stored and removed, as it happens. One request, then frames without end, each flagged
//! `MORE`; events of which there are none are a heartbeat.

use keepwarm_store::types::NamespaceId;
use keepwarm_store::{Event, EventBatch, EventKind};

use super::read_tier;
use crate::codec::{Body, Malformed, Reader, Write, length};

/// Where a follower goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Since {
    /// Of the node that sent it.
    pub incarnation: u64,
    /// The next event it has not seen.
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

/// Some events, the start of a snapshot, or a part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventsReply(pub EventBatch);

impl Body for EventsReply {
    const NAME: &'static str = "events";

    fn write(&self, out: &mut Vec<u8>) {
        match &self.0 {
            EventBatch::Events { events, next } => {
                out.put_u8(1);
                out.put_u64(*next);
                write_events(out, events);
            }
            EventBatch::Resync { incarnation } => {
                out.put_u8(2);
                out.put_u64(*incarnation);
            }
            EventBatch::Snapshot { events, last } => {
                out.put_u8(3);
                out.put_u8((*last).into());
                write_events(out, events);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let batch = match reader.u8()? {
            1 => {
                let next = reader.u64()?;
                EventBatch::Events { events: reader.list(EVENT_BYTES_LEAST, read_event)?, next }
            }
            2 => EventBatch::Resync { incarnation: reader.u64()? },
            3 => {
                let last = reader.bool()?;
                EventBatch::Snapshot { events: reader.list(EVENT_BYTES_LEAST, read_event)?, last }
            }
            _ => return Err(reader.malformed("unknown kind of batch")),
        };
        Ok(EventsReply(batch))
    }
}

/// Bytes of the smallest event, `Cleared`.
const EVENT_BYTES_LEAST: usize = 11;

fn write_events(out: &mut Vec<u8>, events: &[Event]) {
    out.put_u32(length(events.len()));
    for event in events {
        out.put_u64(event.sequence);
        out.put_u16(event.namespace.0);
        match event.kind {
            EventKind::Stored { key, engine_hash } => {
                out.put_u8(1);
                out.extend_from_slice(&key.0);
                out.put_option_u64(engine_hash);
            }
            EventKind::Removed { key, engine_hash, tier } => {
                out.put_u8(2);
                out.extend_from_slice(&key.0);
                out.put_option_u64(engine_hash);
                out.put_u8(tier as u8);
            }
            EventKind::Cleared => out.put_u8(3),
        }
    }
}

fn read_event(reader: &mut Reader<'_>) -> Result<Event, Malformed> {
    let (sequence, namespace) = (reader.u64()?, NamespaceId(reader.u16()?));
    let kind = match reader.u8()? {
        1 => EventKind::Stored { key: reader.key()?, engine_hash: reader.option_u64()? },
        2 => {
            let (key, engine_hash) = (reader.key()?, reader.option_u64()?);
            let tier = read_tier(reader.u8()?);
            let tier = tier.ok_or_else(|| reader.malformed("no tier"))?;
            EventKind::Removed { key, engine_hash, tier }
        }
        3 => EventKind::Cleared,
        _ => return Err(reader.malformed("unknown kind of event")),
    };
    Ok(Event { sequence, namespace, kind })
}
