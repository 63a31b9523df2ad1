//! The devices that belong together: what is on each, whether it fits, and which were away.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::device::{Device, IoKind, IoQueue, Pipe, Request};
use super::error::OpenError;
use super::format::{
    COPIES_AT, Found, SEGMENTS_AT, SEGMENTS_MIN, Superblock, VERSION, decode_superblock,
    encode_superblock, segment_bytes_for,
};
use super::settings::FlashSettings;
use crate::tiers::{AlignedBuffer, PAGE_BYTES};

/// Devices of a set, at most.
pub const DEVICES_MAX: usize = 16;
/// How much at either end of a device is zero if it is blank.
const BLANK_BYTES: u64 = 1 << 20;

/// Signs of what others keep: where, what, whose.
const SIGNS: [(usize, &[u8], &str); 8] = [
    (0x438, &[0x53, 0xEF], "an ext file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a Btrfs file system"),
    (512, b"EFI PART", "a partition table"),
    (510, &[0x55, 0xAA], "a partition table or a boot sector"),
    (512, b"LABELONE", "an LVM volume"),
    (0, b"LUKS\xba\xbe", "an encrypted volume"),
    (4086, b"SWAPSPACE2", "swap space"),
];

/// One device as it was found.
struct Candidate {
    device: Arc<dyn Device>,
    /// `None`: blank, or to be erased.
    superblock: Option<Superblock>,
    /// Larger than any serial there.
    serial: u64,
}

/// Looks at the devices and makes one set of them: the superblock that each is to have. Nothing is
/// written yet. `None` in a device's place stays.
pub(super) fn join(
    devices: Vec<Option<Arc<dyn Device>>>,
    settings: &FlashSettings,
) -> Result<Vec<Option<Superblock>>, OpenError> {
    let mut found = Vec::with_capacity(devices.len());
    for device in devices {
        let look = |device: Arc<dyn Device>| {
            device.claim()?;
            look(device, settings)
        };
        found.push(device.map(look).transpose()?);
    }
    fit(&found)?;
    let known: Vec<Superblock> = found.iter().flatten().filter_map(|one| one.superblock).collect();
    let there = found.iter().flatten().count();
    let set = known.first().map_or_else(random, |first| first.set);
    let opens = known.iter().map(|superblock| superblock.opens).max().unwrap_or(0) + 1;
    let newest = known.iter().map(|superblock| superblock.term).max().unwrap_or(0);
    let is_same = known.len() == there
        && known.iter().all(|each| each.term < newest || usize::from(each.members) == there);
    let term = if is_same { newest } else { newest + 1 };
    let member = |candidate: Candidate| {
        let bytes = candidate.device.bytes() / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let fresh = || Superblock {
            device: random(),
            set,
            members: 1,
            device_bytes: bytes,
            segment_bytes: settings.segment_bytes.unwrap_or_else(|| segment_bytes_for(bytes)),
            serial: 0,
            term,
            opens,
            void_before: 0,
        };
        let mut superblock = candidate.superblock.unwrap_or_else(fresh);
        if candidate.superblock.is_some() && superblock.term < newest {
            // It was away, and may have missed removals.
            superblock.void_before = opens << 40;
        }
        superblock = Superblock { members: there as u8, opens, term, ..superblock };
        superblock.serial = candidate.serial + 1;
        superblock
    };
    Ok(found.into_iter().map(|candidate| candidate.map(member)).collect())
}

fn look(device: Arc<dyn Device>, settings: &FlashSettings) -> Result<Candidate, OpenError> {
    let name = device.name().to_owned();
    let segment = settings.segment_bytes.unwrap_or_else(|| segment_bytes_for(device.bytes()));
    let least = SEGMENTS_AT + SEGMENTS_MIN * segment;
    if device.bytes() < least {
        let problem = format!("it has {} bytes: give it {least} or more", device.bytes());
        return Err(OpenError::Mismatch { device: name, problem });
    }
    let mut disk = Disk::open(&*device, settings.op_timeout)?;
    let mut found = Vec::new();
    for at in COPIES_AT {
        found.push(decode_superblock(&disk.read(at, PAGE_BYTES)?.bytes()[..PAGE_BYTES]));
    }
    let sound = found.iter().filter_map(|found| match found {
        Found::Superblock(superblock) => Some(*superblock),
        _ => None,
    });
    let newest = sound.max_by_key(|superblock| superblock.serial);
    let serial = newest.map_or(0, |superblock| superblock.serial);
    if settings.format {
        return Ok(Candidate { device, superblock: None, serial });
    }
    if let Some(superblock) = newest {
        if superblock.device_bytes > device.bytes() {
            let (then, now) = (superblock.device_bytes, device.bytes());
            let problem = format!("it had {then} bytes and has {now}: restore it, or format it");
            return Err(OpenError::Mismatch { device: name, problem });
        }
        return Ok(Candidate { device, superblock: newest, serial });
    }
    for found in &found {
        match *found {
            Found::Version(version) => {
                return Err(OpenError::Version { device: name, version, reads: VERSION });
            }
            Found::Damaged => return Err(OpenError::Damaged { device: name }),
            _ => {}
        }
    }
    match disk.stranger()? {
        Some(what) => Err(OpenError::Foreign { device: name, what }),
        None => Ok(Candidate { device, superblock: None, serial: 0 }),
    }
}

/// Devices of one set, each once.
fn fit(found: &[Option<Candidate>]) -> Result<(), OpenError> {
    let mut seen: Vec<(&Superblock, &str)> = Vec::new();
    for candidate in found.iter().flatten() {
        let Some(superblock) = &candidate.superblock else { continue };
        let device = candidate.device.name().to_owned();
        if let Some((other, name)) = seen.first().filter(|(other, _)| other.set != superblock.set) {
            debug_assert_ne!(other.device, superblock.device);
            let problem = format!(
                "it belongs to another node's set than {name}: give it to that \
                 node, or erase it with format"
            );
            return Err(OpenError::Mismatch { device, problem });
        }
        if let Some((_, name)) = seen.iter().find(|(other, _)| other.device == superblock.device) {
            let problem = format!("it is a copy of {name}: give only one of them");
            return Err(OpenError::Mismatch { device, problem });
        }
        seen.push((superblock, candidate.device.name()));
    }
    Ok(())
}

/// Writes a superblock, one copy after the other, each flushed: one of them is whole at any time.
pub(super) fn write_superblock(
    device: &dyn Device,
    superblock: &Superblock,
    timeout: Duration,
) -> Result<(), OpenError> {
    let mut disk = Disk::open(device, timeout)?;
    for at in COPIES_AT {
        disk.write(at, &encode_superblock(superblock))?;
    }
    Ok(())
}

/// A device before it is in service.
struct Disk<'a> {
    device: &'a dyn Device,
    pipe: Pipe,
    timeout: Duration,
}

impl<'a> Disk<'a> {
    fn open(device: &'a dyn Device, timeout: Duration) -> Result<Disk<'a>, OpenError> {
        let queue: io::Result<Box<dyn IoQueue>> = device.queue(1);
        match queue {
            Ok(queue) => Ok(Disk { device, pipe: Pipe::new(queue, 1), timeout }),
            Err(error) => Err(failed(device, "no queue", &error)),
        }
    }

    fn run(
        &mut self,
        what: &'static str,
        kind: IoKind,
        offset: u64,
        buffer: AlignedBuffer,
    ) -> Result<AlignedBuffer, OpenError> {
        // SAFETY: the buffer is the request's hold; a pipe dropped with it in flight leaks it.
        let piece = unsafe { buffer.piece(buffer.bytes().len()) };
        let pieces = if kind == IoKind::Flush { Vec::new() } else { vec![piece] };
        self.pipe.submit(Request { token: 0, kind, offset, pieces, hold: Some(Box::new(buffer)) });
        let end = Instant::now() + self.timeout;
        let done = self.pipe.complete(end.saturating_duration_since(Instant::now()));
        let Some(done) = done else {
            return Err(failed(self.device, what, &io::ErrorKind::TimedOut.into()));
        };
        done.result.map_err(|error| failed(self.device, what, &error))?;
        let buffer = done.hold.and_then(|hold| hold.downcast::<AlignedBuffer>().ok());
        Ok(*buffer.expect("the buffer that was given"))
    }

    fn read(&mut self, offset: u64, bytes: usize) -> Result<AlignedBuffer, OpenError> {
        self.run("reading failed", IoKind::Read, offset, AlignedBuffer::new(bytes))
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), OpenError> {
        self.run("writing failed", IoKind::Write, offset, AlignedBuffer::of(bytes))?;
        self.run("flushing failed", IoKind::Flush, 0, AlignedBuffer::new(1)).map(drop)
    }

    /// What somebody else keeps here; `None` if both ends are zeros.
    fn stranger(&mut self) -> Result<Option<&'static str>, OpenError> {
        let end = self.device.bytes() / PAGE_BYTES as u64 * PAGE_BYTES as u64;
        let head = self.read(0, BLANK_BYTES.min(end) as usize)?;
        for (at, sign, what) in SIGNS {
            if head.bytes().get(at..at + sign.len()) == Some(sign) {
                return Ok(Some(what));
            }
        }
        let tail = self.read(end.saturating_sub(BLANK_BYTES), BLANK_BYTES.min(end) as usize)?;
        let is_zero = |buffer: &AlignedBuffer| buffer.bytes().iter().all(|byte| *byte == 0);
        Ok((!is_zero(&head) || !is_zero(&tail)).then_some("data that is not ours"))
    }
}

fn failed(device: &dyn Device, what: &'static str, error: &io::Error) -> OpenError {
    OpenError::Io { device: device.name().to_owned(), what, error: error.to_string() }
}

fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    assert_eq!(got, Ok(16), "the system's random numbers");
    bytes
}
