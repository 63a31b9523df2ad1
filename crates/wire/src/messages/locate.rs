//! Where blocks lie in the arena, for a client that maps it.
//!
//! ```text
//!  client                                      node
//!  LocateRequest (group 1)               ──►   pins its blocks
//!  LocateRequest (group 2)               ──►     pins its blocks
//!              ◄── LocateReply 1                (waits in the socket while 1 is copied)
//!  copies group 1, looks at the hold's end
//!  LocateRequest (group 3, landed: 1)    ──►   lets go of group 1, pins group 3
//!              ◄── LocateReply 2 ...
//!  Landed (the last groups), one way     ──►   lets go
//! ```
//!
//! A group is named by its request's correlation. Its pins end when it has landed, when the time of
//! the reply's hold is over, with any other request, and with the connection.

use keepwarm_store::arena::{EXTENTS_MAX, Extent, Extents};
use keepwarm_store::types::{BlockKey, Epoch, Generation, GetOutcome, NamespaceId};

use super::{GetAsk, read_get_outcome, write_get_outcome};
use crate::codec::{Body, Malformed, Reader, Write, length};

/// Groups of one connection at once: one that is copied, one under way.
pub const LOCATED_GROUPS_MAX: usize = 2;
/// Most blocks of a group; what is beyond is throttled.
pub const LOCATED_BLOCKS_MAX: usize = 128;
/// Most bytes of a group, or one block if that is larger.
pub const LOCATED_BYTES_MAX: u64 = 32 << 20;

/// What became of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Landed {
    /// The correlation of its request.
    pub group: u64,
    /// Places in the group of located blocks whose bytes were not used, in order; the others count
    /// as used.
    pub unused: Vec<u32>,
}

impl Landed {
    fn write_to(&self, out: &mut Vec<u8>) {
        out.put_u64(self.group);
        out.put_u32(length(self.unused.len()));
        self.unused.iter().for_each(|index| out.put_u32(*index));
    }

    fn read_from(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let group = reader.u64()?;
        let count = reader.count(LOCATED_BLOCKS_MAX, 4)?;
        let unused = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
        Ok(Landed { group, unused })
    }
}

impl Body for Landed {
    const NAME: &'static str = "landed";

    fn write(&self, out: &mut Vec<u8>) {
        self.write_to(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Landed::read_from(reader)
    }
}

/// Asks where blocks lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateRequest {
    /// As attached.
    pub namespace: NamespaceId,
    /// The asking side's epoch.
    pub epoch: Epoch,
    /// Groups that need no pins any more.
    pub landed: Vec<Landed>,
    /// What is wanted, in order.
    pub asks: Vec<GetAsk>,
}

impl LocateRequest {
    /// As [`Body::write`], from what a caller has; allocates nothing.
    pub fn write_parts(
        out: &mut Vec<u8>,
        (namespace, epoch): (NamespaceId, Epoch),
        landed: &[Landed],
        asks: impl ExactSizeIterator<Item = GetAsk>,
    ) {
        out.put_u16(namespace.0);
        out.put_u32(epoch.0);
        out.put_u32(length(landed.len()));
        landed.iter().for_each(|landed| landed.write_to(out));
        out.put_u32(length(asks.len()));
        for ask in asks {
            out.extend_from_slice(&ask.key.0);
            out.put_u8(ask.part);
            out.put_u32(ask.length);
        }
    }
}

impl Body for LocateRequest {
    const NAME: &'static str = "locate request";

    fn write(&self, out: &mut Vec<u8>) {
        let head = (self.namespace, self.epoch);
        LocateRequest::write_parts(out, head, &self.landed, self.asks.iter().copied());
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (namespace, epoch) = (NamespaceId(reader.u16()?), Epoch(reader.u32()?));
        let count = reader.count(LOCATED_GROUPS_MAX, 12)?;
        let landed = (0..count).map(|_| Landed::read_from(reader)).collect::<Result<_, _>>()?;
        let asks = reader.list(size_of::<BlockKey>() + 5, |reader| {
            Ok(GetAsk { key: reader.key()?, part: reader.u8()?, length: reader.u32()? })
        })?;
        Ok(LocateRequest { namespace, epoch, landed, asks })
    }
}

/// A pinned block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Version of its place; names it in a report.
    pub generation: Generation,
    /// XXH3-64 of its bytes: what was copied is valid only if it has this one.
    pub checksum: u64,
    /// Where its bytes lie, in order; as many as were asked for.
    pub extents: Extents,
}

/// Where the blocks of a group lie, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocateReply {
    /// How long the pins hold from now, in milliseconds.
    pub hold_ms: u32,
    /// One for each ask; `Err` is never `Ok`.
    pub places: Vec<Result<Located, GetOutcome>>,
}

impl LocateReply {
    /// As [`Body::read`], into a list that is kept from group to group.
    ///
    /// # Errors
    /// As [`Body::read`].
    pub fn read_into(
        reader: &mut Reader<'_>,
        places: &mut Vec<Result<Located, GetOutcome>>,
    ) -> Result<u32, Malformed> {
        let hold_ms = reader.u32()?;
        let count = reader.count(crate::frames::KEYS_MAX, 2)?;
        places.clear();
        places.reserve(count);
        for _ in 0..count {
            places.push(read_place(reader)?);
        }
        Ok(hold_ms)
    }
}

impl Body for LocateReply {
    const NAME: &'static str = "locate reply";

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u32(self.hold_ms);
        out.put_u32(length(self.places.len()));
        for place in &self.places {
            match place {
                Ok(located) => write_located(out, located),
                Err(outcome) => write_get_outcome(out, *outcome),
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut places = Vec::new();
        let hold_ms = LocateReply::read_into(reader, &mut places)?;
        Ok(LocateReply { hold_ms, places })
    }
}

/// 0 and the number of extents, where an outcome has its kind and reason.
fn write_located(out: &mut Vec<u8>, located: &Located) {
    out.extend_from_slice(&[0, located.extents.len() as u8]);
    out.put_u32(located.generation.0);
    out.put_u64(located.checksum);
    for extent in located.extents.iter() {
        out.put_u32(extent.first_granule);
        out.put_u32(extent.granules);
    }
}

fn read_place(reader: &mut Reader<'_>) -> Result<Result<Located, GetOutcome>, Malformed> {
    let [kind, count] = reader.array()?;
    if kind != 0 {
        return read_get_outcome(reader, [kind, count]).map(Err);
    }
    if !(1..=EXTENTS_MAX).contains(&usize::from(count)) {
        return Err(reader.malformed("a block of no extents, or of more than any has"));
    }
    let (generation, checksum) = (Generation(reader.u32()?), reader.u64()?);
    let mut extents = Extents::default();
    for _ in 0..count {
        let extent = Extent { first_granule: reader.u32()?, granules: reader.u32()? };
        let ends = extent.first_granule.checked_add(extent.granules).is_some();
        if extent.granules == 0 || !ends || !extents.push(extent) {
            return Err(reader.malformed("an extent that no arena has"));
        }
    }
    let sum = extents.iter().try_fold(0u32, |sum, extent| sum.checked_add(extent.granules));
    match sum {
        Some(_) => Ok(Ok(Located { generation, checksum, extents })),
        None => Err(reader.malformed("extents longer than any arena")),
    }
}
