//! The frame: a fixed header, a body, and bytes of blocks apart from both.
//!
//! ```text
//!  0       4         6    7       8             16     20     24        32         40
//!  | magic | version | op | flags | correlation | body | zero | payload | checksum | body ...
//!  |       |         |    |       |             | bytes|      |  bytes  | XXH3-64 of 0..32, body
//!
//!  ... | payload | trailer, if flagged: XXH3-64 of the payload
//! ```
//!
//! Everything is little-endian. The first eight bytes never change between versions. A receiver
//! checks the lengths before it allocates, and the checksum before it believes anything else: a
//! flipped bit in a key must never store under another key. Payload is checked apart: by the
//! checksum in a get's reply, by the trailer in a put. `docs/wire.md` lists every field and what a
//! receiver does with each violation.

use keepwarm_store::checksum::Hasher;

/// First bytes of every frame.
pub const MAGIC: [u8; 4] = *b"KWRM";
/// The version this build speaks best.
pub const VERSION: u16 = 1;
/// The oldest version this build still speaks (N - 1 once there is a second one).
pub const VERSION_OLDEST: u16 = 1;
/// Bytes of a header.
pub const HEADER_BYTES: usize = 40;
/// Most bytes of a body.
pub const BODY_BYTES_MAX: usize = 4 << 20;
/// Most bytes of one payload: a block's part.
pub const PAYLOAD_BYTES_MAX: u64 = u32::MAX as u64;
/// Most keys in one call.
pub const KEYS_MAX: usize = 65_536;
/// Bytes after a put's payload: its XXH3-64.
pub const TRAILER_BYTES: usize = 8;

/// Bytes of the header that the checksum covers.
const CHECKED_BYTES: usize = 32;

/// What a frame is about. Wire codes: append, never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Versions, names, capabilities. Its layout is the same in every version.
    Hello = 1,
    /// Joins a namespace.
    Attach = 2,
    /// Which blocks of a prompt are here.
    Lookup = 3,
    /// Blocks out.
    Get = 4,
    /// Asks to write blocks.
    Put = 5,
    /// One granted block's bytes.
    PutData = 6,
    /// These keys were used.
    Touch = 7,
    /// Prolongs a lease.
    Renew = 8,
    /// Ends a lease.
    Release = 9,
    /// A block's bytes did not match.
    Report = 10,
    /// Removes blocks.
    Drop = 11,
    /// Moves a namespace to a larger epoch.
    Epoch = 12,
    /// The node's figures.
    Stat = 13,
    /// Follows what is stored and removed.
    Subscribe = 14,
    /// Is anybody there.
    Ping = 15,
    /// Leaves a namespace.
    Detach = 16,
    /// Asks for the arena, to be mapped.
    Map = 17,
    /// Where blocks lie in the arena.
    Locate = 18,
    /// Located blocks were copied. Has no answer.
    Landed = 19,
    /// Gives the node a staging.
    Stage = 20,
    /// Asks to write blocks out of the staging.
    PutStaged = 21,
    /// Some granted bytes are in the staging.
    StagedData = 22,
}

impl Opcode {
    /// Every opcode, in wire order.
    pub const ALL: [Opcode; 22] = [
        Opcode::Hello,
        Opcode::Attach,
        Opcode::Lookup,
        Opcode::Get,
        Opcode::Put,
        Opcode::PutData,
        Opcode::Touch,
        Opcode::Renew,
        Opcode::Release,
        Opcode::Report,
        Opcode::Drop,
        Opcode::Epoch,
        Opcode::Stat,
        Opcode::Subscribe,
        Opcode::Ping,
        Opcode::Detach,
        Opcode::Map,
        Opcode::Locate,
        Opcode::Landed,
        Opcode::Stage,
        Opcode::PutStaged,
        Opcode::StagedData,
    ];

    /// The opcode of a wire code.
    pub fn from_code(code: u8) -> Option<Opcode> {
        Opcode::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }
}

/// Bits of the flags byte. Unknown ones are a violation.
pub mod flags {
    /// The frame answers a request.
    pub const REPLY: u8 = 1;
    /// The body is a refusal (see `messages::Refusal`); only with `REPLY`.
    pub const REFUSED: u8 = 2;
    /// Further frames of the same reply follow.
    pub const MORE: u8 = 4;
    /// The payload is followed by its XXH3-64.
    pub const TRAILER: u8 = 8;
    /// All known bits.
    pub const KNOWN: u8 = REPLY | REFUSED | MORE | TRAILER;
}

/// A frame's header, checked as far as that goes without the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The version the frame is spoken in.
    pub version: u16,
    /// The opcode's wire code: an unknown one is refused by name, not a violation.
    pub code: u8,
    /// See [`flags`].
    pub flags: u8,
    /// Chosen by the asking side, repeated in every frame of the answer.
    pub correlation: u64,
    /// Bytes of the body, at most [`BODY_BYTES_MAX`].
    pub body_bytes: u32,
    /// Bytes of the payload, at most [`PAYLOAD_BYTES_MAX`].
    pub payload_bytes: u64,
    checksum: u64,
}

/// A frame that cannot be believed. The receiver says why, if it still can, and closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Not our protocol at all.
    #[error("the peer does not speak keepwarm's protocol (bad magic)")]
    Magic,
    /// A flag or reserved field that no version defines.
    #[error("frame header with unknown flags or a reserved field in use")]
    Reserved,
    /// A version other than the one agreed on.
    #[error("frame in wire version {found}, agreed on was {agreed}")]
    Version {
        /// In the frame.
        found: u16,
        /// In the handshake.
        agreed: u16,
    },
    /// The body would be too large.
    #[error("frame body of {bytes} bytes, at most {BODY_BYTES_MAX} are allowed")]
    Body {
        /// As promised by the header.
        bytes: u32,
    },
    /// The payload would be too large, or none belongs here.
    #[error("frame payload of {bytes} bytes where at most {allowed} are allowed")]
    Payload {
        /// As promised by the header.
        bytes: u64,
        /// Here.
        allowed: u64,
    },
    /// Header and body do not match their checksum.
    #[error("frame header and body do not match their checksum")]
    Checksum,
    /// A frame that does not belong at this point of the conversation.
    #[error("unexpected frame: {0}")]
    Unexpected(&'static str),
    /// A body that does not say what its opcode promises.
    #[error(transparent)]
    Malformed(#[from] crate::codec::Malformed),
}

impl Header {
    /// Reads a header. Lengths and reserved fields are checked here, the checksum by
    /// [`Header::check`] once the body is in.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Header, Violation> {
        if bytes[..4] != MAGIC {
            return Err(Violation::Magic);
        }
        let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| bytes[at + i]));
        let u64_at =
            |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bytes[at + i]));
        let header = Header {
            version: u16::from_le_bytes([bytes[4], bytes[5]]),
            code: bytes[6],
            flags: bytes[7],
            correlation: u64_at(8),
            body_bytes: u32_at(16),
            payload_bytes: u64_at(24),
            checksum: u64_at(32),
        };
        if header.flags & !flags::KNOWN != 0 || u32_at(20) != 0 {
            return Err(Violation::Reserved);
        }
        if header.body_bytes as usize > BODY_BYTES_MAX {
            return Err(Violation::Body { bytes: header.body_bytes });
        }
        if header.payload_bytes > PAYLOAD_BYTES_MAX {
            let (bytes, allowed) = (header.payload_bytes, PAYLOAD_BYTES_MAX);
            return Err(Violation::Payload { bytes, allowed });
        }
        Ok(header)
    }

    /// Checks header and body against the header's checksum.
    pub fn check(&self, body: &[u8]) -> Result<(), Violation> {
        let mut hash = self.hasher();
        hash.update(body);
        self.check_digest(&hash)
    }

    /// What the body's bytes are added to, for one that is not kept whole.
    pub fn hasher(&self) -> Hasher {
        let mut hash = Hasher::new();
        hash.update(&self.to_bytes()[..CHECKED_BYTES]);
        hash
    }

    /// [`Header::check`] with all of the body added to [`Header::hasher`].
    pub fn check_digest(&self, hash: &Hasher) -> Result<(), Violation> {
        match self.checksum == hash.digest() {
            true => Ok(()),
            false => Err(Violation::Checksum),
        }
    }

    /// Whether all bits of `wanted` are set.
    pub fn has(&self, wanted: u8) -> bool {
        self.flags & wanted == wanted
    }

    fn to_bytes(self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.version.to_le_bytes());
        bytes[6] = self.code;
        bytes[7] = self.flags;
        bytes[8..16].copy_from_slice(&self.correlation.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }
}

/// What the writer of a frame decides; lengths and checksum follow from the body.
#[derive(Clone, Copy, Debug)]
pub struct FrameHead {
    /// The version agreed on.
    pub version: u16,
    /// The opcode's wire code.
    pub code: u8,
    /// See [`flags`].
    pub flags: u8,
    /// See [`Header::correlation`].
    pub correlation: u64,
    /// Bytes of payload that will follow.
    pub payload_bytes: u64,
}

/// Appends header and body to `out`; the payload, if any, is the caller's to send after it.
///
/// # Errors
/// The body is larger than any may be; `out` is as it was.
pub fn append_frame(
    out: &mut Vec<u8>,
    head: FrameHead,
    body: impl FnOnce(&mut Vec<u8>),
) -> Result<(), Violation> {
    let start = out.len();
    out.resize(start + HEADER_BYTES, 0);
    body(out);
    let body_bytes = crate::codec::length(out.len() - start - HEADER_BYTES);
    if body_bytes as usize > BODY_BYTES_MAX {
        out.truncate(start);
        return Err(Violation::Body { bytes: body_bytes });
    }
    let FrameHead { version, code, flags, correlation, payload_bytes } = head;
    let mut header =
        Header { version, code, flags, correlation, body_bytes, payload_bytes, checksum: 0 };
    let mut hash = header.hasher();
    hash.update(&out[start + HEADER_BYTES..]);
    header.checksum = hash.digest();
    out[start..start + HEADER_BYTES].copy_from_slice(&header.to_bytes());
    Ok(())
}

/// The best version that both sides speak, if there is one.
pub fn agree(theirs_oldest: u16, theirs: u16) -> Option<u16> {
    let best = theirs.min(VERSION);
    (best >= VERSION_OLDEST.max(theirs_oldest)).then_some(best)
}
