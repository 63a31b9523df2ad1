//! The flash tier: the log of each device, and what spans them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::device::{Device, FileDevice, OpenMode};
use super::error::OpenError;
use super::format::{PAGE_BYTES, Record, RecordPlace, Superblock, decode_record, record_position};
use super::log::Order;
use super::log::plan::OVERHEAD_PAGES;
use super::log::reads::FlashReads;
use super::log::shard::Shard;
use super::lost::LostDevice;
use super::set::{DEVICES_MAX, join, write_superblock};
use super::settings::{FlashPath, FlashSettings};
use crate::tiers::{
    BlockHeader, DeviceState, Hold, ReadQueue, Recovered, RecoveryVisitor, Removal, RemovalTable,
    SegmentInfo, SegmentRef, Sequence, Spot, Stream, StreamId, Tier, TierBlock, TierError,
    TierStatus, check_blocks,
};
use crate::types::BlockKey;

/// Removed keys and namespaces that are remembered at once, about 64 bytes each.
pub const REMOVALS_MAX: usize = 1 << 17;
/// Reads in flight of one queue, at most.
pub const READ_DEPTH_MAX: usize = 256;

/// Blocks on flash.
pub struct FlashTier {
    pub(super) shards: Arc<[Arc<Shard>]>,
    pub(super) order: Arc<Order>,
    pub(super) removals: Mutex<RemovalTable>,
    /// Held while recovery asks whether a block was removed and shows it.
    pub(super) claiming: Mutex<()>,
    pub(super) is_recovered: AtomicBool,
    /// One removal at a time; inside, which devices the set has noted as lost.
    removing: Mutex<u32>,
    /// Which device takes the next batch.
    turn: AtomicUsize,
}

impl std::fmt::Debug for FlashTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<String> = self.shards.iter().map(|shard| shard.name()).collect();
        f.debug_struct("FlashTier").field("devices", &names).finish_non_exhaustive()
    }
}

impl FlashTier {
    /// Opens files and block devices as one tier. One that the system fails to open or read costs
    /// its share; one that is in use, foreign or of another version refuses the whole.
    ///
    /// # Errors
    /// What is wrong with which device, and what to do.
    pub fn open(paths: &[FlashPath], settings: &FlashSettings) -> Result<FlashTier, OpenError> {
        let mode = if settings.format { OpenMode::Format } else { OpenMode::Keep };
        let mut devices = Vec::with_capacity(paths.len());
        for FlashPath { path, bytes } in paths {
            match FileDevice::open(path, *bytes, mode, settings.engine) {
                Ok(device) => devices.push(Arc::new(device) as Arc<dyn Device>),
                Err(error @ OpenError::Io { .. }) if paths.len() > 1 => {
                    devices.push(Arc::new(LostDevice::new(path.display().to_string(), &error)));
                }
                Err(error) => return Err(error),
            }
        }
        FlashTier::over(devices, settings)
    }

    /// As `open`, over any devices.
    ///
    /// # Errors
    /// As `open`.
    pub fn over(
        devices: Vec<Arc<dyn Device>>,
        settings: &FlashSettings,
    ) -> Result<FlashTier, OpenError> {
        if !(1..=DEVICES_MAX).contains(&devices.len()) {
            let problem = format!("a node has 1 to {DEVICES_MAX} devices");
            return Err(OpenError::Mismatch { device: "flash".into(), problem });
        }
        let is_there = |device: &Arc<dyn Device>| device.bytes() > 0;
        let there = devices.iter().map(|device| is_there(device).then(|| device.clone()));
        let members = join(there.collect(), settings)?;
        // Who is not there is in the set's new term already.
        let absent = (0..).zip(&members).filter(|(_, member)| member.is_none());
        let noted = absent.map(|(number, _)| 1 << number).sum();
        let opens = members.iter().flatten().map(|superblock| superblock.opens).max();
        let order = Arc::new(Order::new(opens.unwrap_or(0) << 40, 0));
        let mut shards = Vec::with_capacity(devices.len());
        for (number, (device, member)) in devices.into_iter().zip(members).enumerate() {
            shards.push(Arc::new(enter(number, device, member, &order, settings)));
        }
        if let Some(first) = shards.first().filter(|_| shards.iter().all(|one| one.is_fenced())) {
            let error = first.fenced().map_or_else(String::new, |error| error.to_string());
            return Err(OpenError::Io { device: first.name(), what: "as all devices", error });
        }
        let tier = FlashTier {
            shards: shards.into(),
            order,
            removals: Mutex::default(),
            claiming: Mutex::new(()),
            is_recovered: AtomicBool::new(false),
            removing: Mutex::new(noted),
            turn: AtomicUsize::new(0),
        };
        tier.survey();
        Ok(tier)
    }

    /// Which devices are out of service, one bit each.
    fn lost(&self) -> u32 {
        let bit = |(number, shard): (usize, &Arc<Shard>)| u32::from(shard.is_fenced()) << number;
        self.shards.iter().enumerate().map(bit).sum()
    }

    /// Writes on every device in service that the others were lost: should one come back after a
    /// restart, what it has is void, since it missed removals.
    fn note_losses(&self, noted: &mut u32) {
        while self.lost() != *noted {
            let lost = self.lost();
            let live: Vec<_> = self.shards.iter().filter(|shard| !shard.is_fenced()).collect();
            let terms = live.iter().map(|shard| shard.superblock.lock().term);
            let term = terms.max().unwrap_or(0) + 1;
            for shard in live {
                let mut superblock = shard.superblock.lock();
                (superblock.term, superblock.serial) = (term, superblock.serial + 1);
                let written = write_superblock(&*shard.device, &superblock, shard.op_timeout);
                if let Err(error) = written {
                    shard.fence(format!("it cannot note that another was lost: {error}"));
                }
            }
            *noted = lost;
        }
    }

    /// Forgets removals that hide nothing any more.
    fn prune(&self) {
        let live = self.shards.iter().filter(|shard| !shard.is_fenced());
        let oldest = live.map(|shard| shard.segments.lock().oldest()).min().unwrap_or(u64::MAX);
        self.removals.lock().prune(oldest);
    }

    /// Makes room for so many more removals.
    fn room_for_removals(&self, more: usize) -> Result<(), TierError> {
        loop {
            self.prune();
            if self.removals.lock().len() + more <= REMOVALS_MAX {
                return Ok(());
            }
            let mut is_cleaned = false;
            for shard in self.shards.iter().filter(|shard| shard.is_live()) {
                is_cleaned |= shard.clean().unwrap_or(false);
            }
            if !is_cleaned {
                return Err(TierError::NoSegment { tier: "the table of removals".into() });
            }
        }
    }
}

/// Puts a device into service; one that fails already is lost.
fn enter(
    number: usize,
    device: Arc<dyn Device>,
    member: Option<Superblock>,
    order: &Arc<Order>,
    settings: &FlashSettings,
) -> Shard {
    let is_member = member.is_some();
    let superblock = member.unwrap_or_else(LostDevice::superblock);
    let written = write_superblock(&*device, &superblock, settings.op_timeout);
    let timeout = settings.op_timeout;
    let shard = Shard::new(number as u8, device, superblock, order.clone(), timeout);
    match written {
        Ok(()) if is_member => {}
        Ok(()) => shard.fence("it was not there at the start".into()),
        Err(error) => shard.fence(format!("at the start: {error}")),
    }
    shard
}

/// Removals as records.
fn records_of<'a>(
    removals: impl Iterator<Item = ([u8; 32], u64, Vec<(BlockKey, u64)>)> + 'a,
) -> Vec<Record> {
    let mut records = Vec::new();
    for (fingerprint, whole, keys) in removals {
        if keys.is_empty() {
            records.push(Record::Removals { fingerprint, whole, keys: Vec::new() });
        }
        for keys in keys.chunks(Record::removals_max()) {
            records.push(Record::Removals { fingerprint, whole, keys: keys.to_vec() });
        }
    }
    records
}

impl Tier for FlashTier {
    fn sequence(&self) -> Sequence {
        Sequence(self.order.next_sequence())
    }

    fn append(
        &self,
        stream: &Stream,
        as_of: Sequence,
        blocks: &[TierBlock<'_>],
        hold: &mut Option<Hold>,
    ) -> Result<Vec<Spot>, TierError> {
        check_blocks(stream, blocks)?;
        let is_held = hold.is_some();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (mut full, mut failure) = (None, None);
        for number in 0..self.shards.len() {
            let shard = &self.shards[(turn + number) % self.shards.len()];
            if !shard.is_live() {
                continue;
            }
            match shard.append(stream, as_of, blocks, hold) {
                Ok(spots) => {
                    let bytes: u64 = blocks.iter().map(TierBlock::footprint).sum();
                    shard.counts.payload_bytes.fetch_add(bytes, Ordering::Relaxed);
                    return Ok(spots);
                }
                Err(error @ TierError::NoSegment { .. }) => full = Some(error),
                Err(error @ (TierError::TooLarge { .. } | TierError::Busy { .. })) => {
                    return Err(error);
                }
                // The pieces are the lost device's now: no other may read them.
                Err(error) if hold.is_none() && (is_held || is_late(&error)) => return Err(error),
                Err(error) => failure = Some(error),
            }
        }
        let none = || TierError::Fenced {
            device: "flash".into(),
            why: "no device takes blocks any more".into(),
        };
        Err(full.or(failure).unwrap_or_else(none))
    }

    fn reads(&self, depth: usize) -> Result<Box<dyn ReadQueue>, TierError> {
        if !(1..=READ_DEPTH_MAX).contains(&depth) {
            return Err(TierError::Invalid("a queue has 1 to 256 reads in flight"));
        }
        Ok(Box::new(FlashReads::new(self.shards.clone(), depth)))
    }

    fn describe(
        &self,
        spot: Spot,
        fingerprint: &[u8; 32],
        key: BlockKey,
    ) -> Result<BlockHeader, TierError> {
        let shard = self.shards.get(usize::from(spot.device)).ok_or(TierError::Gone)?;
        let segment = shard.segments.lock().living(spot.segment, spot.life)?.header;
        let offset = shard.offset(spot.segment, spot.header_page.into());
        let buffers = shard.read_pages("read a header", &[offset], 1);
        shard.note_read(buffers.is_ok());
        let buffer = buffers?.remove(0);
        shard.segments.lock().living(spot.segment, spot.life)?;
        let place = RecordPlace { segment: &segment, position: record_position(buffer.bytes()) };
        if let Ok(Some((Record::Blocks { fingerprint: own, entries, .. }, _))) =
            decode_record(buffer.bytes(), place)
            && own == *fingerprint
            && let Some(entry) = entries.get(usize::from(spot.entry))
            && entry.key == key
        {
            return Ok(entry.header(own));
        }
        Err(TierError::Corrupt { device: shard.name(), what: "header" })
    }

    fn remove(&self, removals: &[Removal]) -> Result<(), TierError> {
        let mut noted = self.removing.lock();
        let sequence = self.order.next_sequence();
        self.room_for_removals(removals.iter().map(Removal::entries).sum())?;
        let mut new = RemovalTable::default();
        removals.iter().for_each(|removal| new.add(removal, sequence));
        removals.iter().for_each(|removal| self.removals.lock().add(removal, sequence));
        // A block that recovery asked about before is shown by now; from here on it asks again.
        drop(self.claiming.lock());
        let new = records_of(new.iter());
        let all = || records_of(self.removals.lock().iter());
        let (mut kept, mut failure) = (0, None);
        for shard in self.shards.iter().filter(|shard| !shard.is_fenced()) {
            match shard.is_live().then(|| shard.log_removals(&new, &all)) {
                Some(Ok(())) => kept += 1,
                Some(Err(error @ (TierError::NoSegment { .. } | TierError::Busy { .. }))) => {
                    return Err(error);
                }
                Some(Err(error)) => {
                    shard.fence(format!("it cannot keep a removal: {error}"));
                    failure = Some(error);
                }
                None => shard.fence("it takes no writes and cannot keep a removal".into()),
            }
        }
        self.note_losses(&mut noted);
        let is_kept = kept > 0 && self.shards.iter().any(|shard| shard.is_live());
        let none = || TierError::Fenced {
            device: "flash".into(),
            why: "no device can keep a removal".into(),
        };
        if is_kept { Ok(()) } else { Err(failure.unwrap_or_else(none)) }
    }

    fn forget(&self, spot: Spot, bytes: u64) {
        if let Some(shard) = self.shards.get(usize::from(spot.device)) {
            shard.segments.lock().forget(spot, bytes);
        }
    }

    fn flush(&self) -> Result<(), TierError> {
        let mut result = Ok(());
        for shard in self.shards.iter().filter(|shard| shard.is_live()) {
            if let Err(error) = shard.flush() {
                shard.stop_writes(format!("a flush failed: {error}"));
                result = Err(error);
            }
        }
        result
    }

    fn prepare(&self) {
        self.shards.iter().filter(|shard| shard.is_live()).for_each(|shard| shard.prepare());
    }

    fn segments(&self, stream: StreamId) -> Vec<SegmentInfo> {
        let mut found = Vec::new();
        for shard in self.shards.iter().filter(|shard| !shard.is_fenced()) {
            found.extend(shard.segments.lock().of_stream(shard.number, stream));
        }
        found.sort_unstable_by_key(|info| info.segment.life);
        found
    }

    fn reclaim(&self, segment: SegmentRef) -> Result<(), TierError> {
        let shard = self.shards.get(usize::from(segment.device)).ok_or(TierError::Gone)?;
        shard.segments.lock().reclaim(segment)
    }

    fn recover(&self, visitor: &mut dyn RecoveryVisitor) -> Result<Recovered, TierError> {
        if self.is_recovered.swap(true, Ordering::AcqRel) {
            return Err(TierError::Invalid("recovery runs once"));
        }
        Ok(self.claim_all(visitor))
    }

    fn status(&self) -> TierStatus {
        let devices: Vec<_> = self.shards.iter().map(|shard| shard.status()).collect();
        let live = self.shards.iter().filter(|shard| !shard.is_fenced());
        let segment_bytes = live.map(|shard| shard.segments.lock().segment_bytes).min();
        let segment_bytes = segment_bytes.unwrap_or(0);
        let overhead = OVERHEAD_PAGES * PAGE_BYTES as u64;
        let block_bytes_max = segment_bytes.saturating_sub(overhead);
        debug_assert!(
            devices.iter().all(|device| device.state != DeviceState::Live || device.segments > 0)
        );
        TierStatus { segment_bytes, block_bytes_max, devices }
    }
}

fn is_late(error: &TierError) -> bool {
    matches!(error, TierError::Deadline { .. })
}

impl Drop for FlashTier {
    fn drop(&mut self) {
        // What was appended outlives the process; power loss right after a clean end should cost
        // nothing either.
        for shard in self.shards.iter().filter(|shard| shard.is_live()) {
            let _ = shard.flush();
        }
    }
}
