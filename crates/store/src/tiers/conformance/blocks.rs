//! Blocks for tests: their bytes follow from their key, so that any other byte is seen.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::super::{
    AlignedBuffer, BlockHeader, PartPlace, RecoveredBlock, RecoveryVisitor, Sequence, Spot, Stream,
    StreamId, Tier, TierBlock, TierError, TierNamespace, TierPart, TierRead,
};
use crate::checksum::xxh3_64;
use crate::types::{BlockKey, Epoch};

/// A namespace by number; not one that an engine could have.
pub fn namespace(number: u8) -> TierNamespace {
    let encoding: Arc<[u8]> = vec![number; 100 + usize::from(number)].into();
    TierNamespace { fingerprint: *blake3::hash(&encoding).as_bytes(), encoding }
}

/// A stream by number.
pub fn stream(number: u32) -> Stream {
    Stream { id: StreamId(number), tenant: format!("tenant-{number}").into() }
}

/// One block and the buffers that hold its parts.
pub struct MadeBlock {
    /// Its namespace.
    pub namespace: TierNamespace,
    /// What a header should say of it.
    pub header: BlockHeader,
    buffers: Vec<Arc<AlignedBuffer>>,
}

impl MadeBlock {
    /// A block whose every byte follows from its namespace, key and part.
    pub fn new(namespace: &TierNamespace, number: u64, lengths: &[u32]) -> MadeBlock {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        key[8..].copy_from_slice(&xxh3_64(&number.to_le_bytes()).to_le_bytes());
        let (mut parts, mut buffers, mut first_page) = (Vec::new(), Vec::new(), 0);
        for (part, &len) in lengths.iter().enumerate() {
            let bytes = bytes_of(&namespace.fingerprint, &key, part, len);
            parts.push(PartPlace { first_page, len, checksum: xxh3_64(&bytes) });
            first_page += super::super::pages_of(len) as u32;
            buffers.push(Arc::new(AlignedBuffer::of(&bytes)));
        }
        let header = BlockHeader {
            fingerprint: namespace.fingerprint,
            key: BlockKey(key),
            epoch: Epoch(number as u32 % 5),
            engine_hash: number.is_multiple_of(3).then_some(number * 7),
            expires_unix_ms: number % 2 * 1_900_000_000_000,
            priority: number as u8,
            parts,
        };
        MadeBlock { namespace: namespace.clone(), header, buffers }
    }

    /// A block of one part with these bytes.
    pub fn with_bytes(namespace: &TierNamespace, number: u64, bytes: &[u8]) -> MadeBlock {
        let mut block = MadeBlock::new(namespace, number, &[bytes.len() as u32]);
        block.header.parts[0].checksum = xxh3_64(bytes);
        block.buffers = vec![Arc::new(AlignedBuffer::of(bytes))];
        block
    }

    /// As a tier takes it.
    pub fn tier_block(&self) -> TierBlock<'_> {
        let parts = self.header.parts.iter().zip(&self.buffers).map(|(place, buffer)| TierPart {
            len: place.len,
            checksum: place.checksum,
            // SAFETY: `Blocks::append` gives the tier a hold with these buffers.
            pieces: vec![unsafe { buffer.piece(place.len as usize) }],
        });
        TierBlock {
            namespace: &self.namespace,
            epoch: self.header.epoch,
            key: self.header.key,
            engine_hash: self.header.engine_hash,
            expires_unix_ms: self.header.expires_unix_ms,
            priority: self.header.priority,
            parts: parts.collect(),
        }
    }
}

/// What the bytes of a part are.
fn bytes_of(fingerprint: &[u8; 32], key: &[u8; 16], part: usize, len: u32) -> Vec<u8> {
    let mut hasher = blake3::Hasher::new_keyed(fingerprint);
    hasher.update(key).update(&(part as u64).to_le_bytes());
    let mut bytes = vec![0; len as usize];
    hasher.finalize_xof().fill(&mut bytes);
    bytes
}

/// A batch of blocks.
pub struct Blocks(pub Vec<MadeBlock>);

impl Blocks {
    /// Blocks of one part each, numbered from `first`.
    pub fn new(namespace: &TierNamespace, first: u64, count: u64, len: u32) -> Blocks {
        let make = |number| MadeBlock::new(namespace, number, &[len]);
        Blocks((first..first + count).map(make).collect())
    }

    /// Appends them as taken now.
    ///
    /// # Errors
    /// As the tier.
    pub fn append(&self, tier: &dyn Tier, stream: &Stream) -> Result<Vec<Spot>, TierError> {
        self.append_as_of(tier, stream, tier.sequence())
    }

    /// Appends them.
    ///
    /// # Errors
    /// As the tier.
    pub fn append_as_of(
        &self,
        tier: &dyn Tier,
        stream: &Stream,
        as_of: Sequence,
    ) -> Result<Vec<Spot>, TierError> {
        let blocks: Vec<TierBlock<'_>> = self.0.iter().map(MadeBlock::tier_block).collect();
        let kept: Vec<_> = self.0.iter().flat_map(|block| block.buffers.clone()).collect();
        let mut hold = Some(Box::new(kept) as super::super::Hold);
        let result = tier.append(stream, as_of, &blocks, &mut hold);
        let is_late = matches!(result, Err(TierError::Deadline { .. }));
        assert!(hold.is_some() || is_late, "an append that is over gives its hold back");
        result
    }
}

/// Reads every part of these blocks, 8 at a time, and holds each byte against what it should be.
///
/// # Panics
/// If a read fails or a byte is another.
pub fn read_all<'a>(tier: &dyn Tier, blocks: impl IntoIterator<Item = (&'a BlockHeader, Spot)>) {
    let mut wanted = Vec::new();
    for (header, spot) in blocks {
        let parts = header.parts.iter().enumerate();
        wanted.extend(parts.map(|(part, place)| (header, spot, part, *place)));
    }
    let mut queue = tier.reads(8).expect("a queue");
    let (mut next, mut done) = (0, 0);
    while done < wanted.len() {
        while next < wanted.len() && queue.in_flight() < queue.depth() {
            let (_, spot, _, place) = wanted[next];
            let buffer = AlignedBuffer::new(place.len as usize);
            let read = TierRead::into_buffer(next as u64, spot, place, buffer);
            queue.submit(read).map_err(|refused| refused.error).expect("taken");
            next += 1;
        }
        let read = queue.complete(Duration::from_secs(60)).expect("a read is over in time");
        assert_eq!(read.result, Ok(()), "read {}", read.token);
        let (header, _, part, place) = wanted[read.token as usize];
        let buffer = read.hold.and_then(|hold| hold.downcast::<AlignedBuffer>().ok());
        let buffer = buffer.expect("the buffer that was given");
        let right = bytes_of(&header.fingerprint, &header.key.0, part, place.len);
        assert!(buffer.bytes()[..place.len as usize] == right, "the bytes of {:?}", header.key);
        done += 1;
    }
}

/// One read, to its end.
///
/// # Errors
/// As the tier.
///
/// # Panics
/// If it takes a minute.
pub fn read_one(tier: &dyn Tier, spot: Spot, place: PartPlace) -> Result<(), TierError> {
    let mut queue = tier.reads(1)?;
    let buffer = AlignedBuffer::new(place.len as usize);
    queue.submit(TierRead::into_buffer(1, spot, place, buffer)).map_err(|refused| refused.error)?;
    queue.complete(Duration::from_secs(60)).expect("a read is over in time").result
}

/// Names a block whatever its namespace.
pub type Name = ([u8; 32], BlockKey);

/// A visitor that takes every block, of tenants `tenant-<number>`.
#[derive(Default)]
pub struct Seen {
    /// What was shown, the last of each name.
    pub blocks: HashMap<Name, (Spot, BlockHeader)>,
    /// Lives in the order in which they were shown.
    pub lives: Vec<u32>,
}

impl RecoveryVisitor for Seen {
    fn stream(&mut self, tenant: &str) -> Option<StreamId> {
        tenant.strip_prefix("tenant-")?.parse().ok().map(StreamId)
    }

    fn block(&mut self, block: &RecoveredBlock<'_>) -> bool {
        let header = block.header.clone();
        let own = blake3::hash(&block.namespace.encoding);
        assert_eq!(*own.as_bytes(), header.fingerprint, "a namespace with its own encoding");
        self.lives.push(block.spot.life);
        self.blocks.insert((header.fingerprint, header.key), (block.spot, header));
        true
    }
}

impl Seen {
    /// Recovers a tier.
    ///
    /// # Panics
    /// If that fails, or shows segments out of order.
    pub fn of(tier: &dyn Tier) -> Seen {
        let mut seen = Seen::default();
        let sum = tier.recover(&mut seen).expect("recovered");
        assert_eq!(sum.blocks as usize, seen.lives.len());
        assert_eq!(sum.segments, sum.segments_total);
        assert!(seen.lives.is_sorted(), "oldest life first: {:?}", seen.lives);
        seen
    }

    /// Whether this block was shown.
    pub fn has(&self, block: &MadeBlock) -> bool {
        self.blocks.contains_key(&(block.header.fingerprint, block.header.key))
    }

    /// Reads every byte of what was shown.
    pub fn read_all(&self, tier: &dyn Tier) {
        read_all(tier, self.blocks.values().map(|(spot, header)| (header, *spot)));
    }
}
