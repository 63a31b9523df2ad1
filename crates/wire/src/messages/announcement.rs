//! What a node says of itself to those who place blocks on several nodes.

use crate::codec::{Malformed, Reader, Write};

/// An ordinary node's weight.
pub const WEIGHT_ORDINARY: u32 = 1000;

/// How much a node wants of what is placed on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// How long it has been serving, in milliseconds.
    pub age_ms: u64,
    /// Its share in thousandths of an ordinary node's.
    pub weight_permille: u32,
    /// Whether it takes no new blocks: it is about to go.
    pub draining: bool,
}

impl Announcement {
    /// Of a node that has not said anything yet.
    pub(crate) const NOTHING: Announcement =
        Announcement { age_ms: 0, weight_permille: WEIGHT_ORDINARY, draining: false };

    pub(super) fn write(self, out: &mut Vec<u8>) {
        out.put_u64(self.age_ms);
        out.put_u32(self.weight_permille);
        out.put_u8(self.draining.into());
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Announcement {
            age_ms: reader.u64()?,
            weight_permille: reader.u32()?,
            draining: reader.bool()?,
        })
    }
}
