//! One file per command: what asks, what answers, byte by byte. Knows no sockets.
//!
//! A request that cannot be served as such is answered by a [`Refusal`]; what becomes of a single
//! block is an outcome inside the reply, never a refusal. A code that only a newer node knows is
//! read as the nearest known one: a client must not take its node for broken.

mod announcement;
mod attach;
mod blocks;
mod detach;
mod epoch;
mod events;
mod get;
mod hello;
mod lease;
mod locate;
mod lookup;
mod map;
mod put;
mod staged;
mod stat;

pub use announcement::{Announcement, WEIGHT_ORDINARY};
pub use attach::{AttachReply, AttachRequest};
pub use blocks::{DropReply, DropRequest, ReportReply, ReportRequest, TouchReply, TouchRequest};
pub use detach::{DetachReply, DetachRequest};
pub use epoch::{EpochReply, EpochRequest};
pub use events::{EventsReply, Since, SubscribeRequest};
pub use get::{GetAsk, GetData, GetMisses, GetRequest, MISSES_MAX};
pub use hello::{Greeting, GreetingReply, Token};
pub use lease::{ReleaseReply, ReleaseRequest, RenewReply, RenewRequest};
pub use locate::{
    LOCATED_BLOCKS_MAX, LOCATED_BYTES_MAX, LOCATED_GROUPS_MAX, Landed, LocateReply, LocateRequest,
    Located,
};
pub use lookup::{LookupReply, LookupRequest};
pub use map::{CARRIER_BYTES, MapReply, MapRequest, StageReply, StageRequest};
pub use put::{
    Grant, PUT_BLOCKS_MAX, PUT_BYTES_MAX, PutAsk, PutDataHead, PutDone, PutGrants, PutRequest,
};
pub use staged::{PIECE_ALIGN, PIECES_MAX, Piece, STAGING_BYTES_MAX, StagedData, StagedTaken};
pub use stat::{PingReply, PingRequest, StatReply, StatRequest, StatValue};

use keepwarm_store::types::{GetOutcome, MissReason, PutOutcome, ShedReason, Tier};

use crate::codec::{Body, Malformed, Reader, Write, clipped};

/// Most bytes of any text on the wire.
pub const TEXT_BYTES_MAX: usize = 4096;

/// Why a request is not served. Wire codes: append, never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RefusalCode {
    /// No version in common.
    Version = 1,
    /// As many clients as the node takes are connected.
    Clients = 2,
    /// The frame or its body breaks the protocol; the connection ends.
    Violation = 3,
    /// An opcode this node does not know; the connection goes on.
    Opcode = 4,
    /// The namespace number was not attached on this connection.
    Namespace = 5,
    /// The namespace or its key check is refused; the text names the difference.
    Identity = 6,
    /// A limit of the node is reached.
    Limit = 7,
    /// The node is going down.
    Draining = 8,
    /// The peer's user may not use this node.
    Peer = 9,
    /// The node tried and failed; the text says at what.
    Failed = 10,
    /// The node has no room for this request now; the connection goes on.
    Throttled = 11,
    /// The peer has not the right that the request needs; the connection goes on.
    Rights = 12,
}

impl RefusalCode {
    fn from_code(code: u8) -> Option<RefusalCode> {
        use RefusalCode::*;
        const ALL: [RefusalCode; 12] = [
            Version, Clients, Violation, Opcode, Namespace, Identity, Limit, Draining, Peer,
            Failed, Throttled, Rights,
        ];
        ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// The body of a refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: RefusalCode,
    /// What happened, to which object, what to do.
    pub text: String,
}

impl Body for Refusal {
    const NAME: &'static str = "refusal";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u8(self.code as u8);
        out.put_counted(clipped(&self.text, TEXT_BYTES_MAX).as_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let code = match reader.u8()? {
            0 => return Err(reader.malformed("no refusal code")),
            code => RefusalCode::from_code(code).unwrap_or(RefusalCode::Failed),
        };
        Ok(Refusal { code, text: reader.text(TEXT_BYTES_MAX)? })
    }
}

/// The miss reason of a wire code.
pub fn miss_from_code(code: u8) -> Option<MissReason> {
    use MissReason::*;
    const ALL: [MissReason; 11] = [
        Absent, Evicted, Expired, Epoch, Quota, Pending, Corrupt, Throttled, Deadline, StoreDown,
        Identity,
    ];
    ALL.get(usize::from(code).checked_sub(1)?).copied()
}

/// The shed reason of a wire code.
pub fn shed_from_code(code: u8) -> Option<ShedReason> {
    use ShedReason::*;
    const ALL: [ShedReason; 11] = [
        Leased, Quota, Watermark, TooLarge, Epoch, Corrupt, Busy, Deadline, StoreDown, Identity,
        Invalid,
    ];
    ALL.get(usize::from(code).checked_sub(1)?).copied()
}

/// The tier of a wire code.
pub fn tier_from_code(code: u8) -> Option<Tier> {
    [Tier::Dram, Tier::Flash, Tier::Object].get(usize::from(code).checked_sub(1)?).copied()
}

/// A miss reason; one that only a newer node knows is a miss all the same.
fn read_miss(reader: &Reader<'_>, code: u8) -> Result<MissReason, Malformed> {
    match code {
        0 => Err(reader.malformed("no miss reason")),
        code => Ok(miss_from_code(code).unwrap_or(MissReason::Absent)),
    }
}

/// A tier; one that only a newer node knows is taken for the slowest.
fn read_tier(code: u8) -> Option<Tier> {
    match code {
        0 => None,
        code => Some(tier_from_code(code).unwrap_or(Tier::Object)),
    }
}

/// A get's outcome in two bytes. `Ok` never travels so: its bytes do.
fn write_get_outcome(out: &mut Vec<u8>, outcome: GetOutcome) {
    let (kind, reason) = match outcome {
        GetOutcome::Ok => (0, 0),
        GetOutcome::Pending => (1, 0),
        GetOutcome::Throttled => (2, 0),
        GetOutcome::Miss(reason) => (3, reason as u8),
    };
    out.extend_from_slice(&[kind, reason]);
}

fn read_get_outcome(reader: &Reader<'_>, bytes: [u8; 2]) -> Result<GetOutcome, Malformed> {
    match bytes {
        [1, 0] => Ok(GetOutcome::Pending),
        [2, 0] => Ok(GetOutcome::Throttled),
        [3, reason] => Ok(GetOutcome::Miss(read_miss(reader, reason)?)),
        _ => Err(reader.malformed("unknown outcome of a get")),
    }
}

/// A put's outcome in two bytes.
fn write_put_outcome(out: &mut Vec<u8>, outcome: PutOutcome) {
    let (kind, reason) = match outcome {
        PutOutcome::Stored => (1, 0),
        PutOutcome::Present => (2, 0),
        PutOutcome::Pending => (3, 0),
        PutOutcome::Shed(reason) => (4, reason as u8),
    };
    out.extend_from_slice(&[kind, reason]);
}

fn read_put_outcome(reader: &Reader<'_>, kind: u8, reason: u8) -> Result<PutOutcome, Malformed> {
    match (kind, reason) {
        (1, 0) => Ok(PutOutcome::Stored),
        (2, 0) => Ok(PutOutcome::Present),
        (3, 0) => Ok(PutOutcome::Pending),
        (4, 0) => Err(reader.malformed("no shed reason")),
        (4, reason) => Ok(PutOutcome::Shed(shed_from_code(reason).unwrap_or(ShedReason::Busy))),
        _ => Err(reader.malformed("unknown outcome of a put")),
    }
}
