//! Blocks in by shared memory: what a put is over the socket (see `put.rs`), but the bytes are in
//! the client's staging, and frames only say where.
//!
//! ```text
//!  client                                      node
//!  PutRequest (opcode put staged)        ──►   reserves
//!              ◄──  PutGrants
//!  copies and hashes pieces into a slot of its staging
//!  StagedData (offset, pieces)           ──►   copies them into the arena, hashing what it stores;
//!                                              a block that is whole and matches is committed
//!              ◄──  StagedTaken                the slot is the client's again
//!  ...
//!              ◄──  PutDone (per ask), after the last granted byte
//! ```
//!
//! The pieces come in the order of the asks, each block's one behind the other.

use crate::codec::{Body, Malformed, Reader, Write, length};

/// Most bytes of a connection's staging that a node takes.
pub const STAGING_BYTES_MAX: u64 = 8 << 20;
/// Most pieces in one frame.
pub const PIECES_MAX: usize = 1024;
/// Where a piece begins is a multiple of this: whole lines of the cache.
pub const PIECE_ALIGN: usize = 64;

/// A run of bytes of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the asks, from 0.
    pub index: u32,
    /// Its bytes.
    pub length: u32,
    /// XXH3-64 of the whole block with the piece that ends it, else 0.
    pub checksum: u64,
}

/// Says where the next granted bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedData {
    /// Where in the staging the first piece begins; the others follow, each at the next multiple
    /// of [`PIECE_ALIGN`].
    pub offset: u32,
    /// What lies there.
    pub pieces: Vec<Piece>,
}

impl StagedData {
    /// As [`Body::write`], from what a caller has; allocates nothing.
    pub fn write_parts(out: &mut Vec<u8>, offset: u32, pieces: &[Piece]) {
        out.put_u32(offset);
        out.put_u32(length(pieces.len()));
        for piece in pieces {
            out.put_u32(piece.index);
            out.put_u32(piece.length);
            out.put_u64(piece.checksum);
        }
    }
}

impl Body for StagedData {
    const NAME: &'static str = "staged data";

    fn write(&self, out: &mut Vec<u8>) {
        StagedData::write_parts(out, self.offset, &self.pieces);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let offset = reader.u32()?;
        let count = reader.count(PIECES_MAX, 16)?;
        let piece = |_| {
            let (index, length) = (reader.u32()?, reader.u32()?);
            Ok(Piece { index, length, checksum: reader.u64()? })
        };
        let pieces = (0..count).map(piece).collect::<Result<_, _>>()?;
        Ok(StagedData { offset, pieces })
    }
}

/// The pieces of one `StagedData` are in the arena, or not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagedTaken {
    /// As in the request.
    pub offset: u32,
}

impl Body for StagedTaken {
    const NAME: &'static str = "staged reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.offset);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(StagedTaken { offset: reader.u32()? })
    }
}
