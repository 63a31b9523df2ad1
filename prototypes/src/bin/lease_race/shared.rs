//! What node and reader share: the arena's layout, the control page, mapping.

use std::io::BufRead;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{MapFlags, ProtFlags, mmap};

/// Places in the arena; each has a page for a header and room for a payload.
pub const PLACES: usize = 8;
pub const PAYLOAD_BYTES_MAX: usize = 256 << 10;
pub const PLACE_BYTES: usize = 4096 + PAYLOAD_BYTES_MAX;
pub const ARENA_BYTES: usize = PLACES * PLACE_BYTES;
pub const CONTROL_BYTES: usize = 4096;

/// Where the reader stops itself, as seen from its copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stop {
    Before,
    Amid,
    After,
}

pub const STOPS: [Stop; 3] = [Stop::Before, Stop::Amid, Stop::After];

/// A mapping; lives until the process ends, unless unmapped.
#[derive(Clone, Copy)]
pub struct Map(*mut u8);

impl Map {
    pub fn new(memfd: impl AsFd, bytes: usize, access: ProtFlags) -> rustix::io::Result<Map> {
        // SAFETY: a new shared mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, memfd, 0) };
        base.map(|base| Map(base.cast()))
    }

    pub fn payload(self, place: usize) -> *mut u8 {
        self.at(place * PLACE_BYTES + 4096)
    }

    /// The checksum that lies next to the bytes: what one must not trust.
    pub fn header(self, place: usize) -> &'static AtomicU64 {
        // SAFETY: aligned to a page, inside the arena, mapped until the process ends.
        unsafe { AtomicU64::from_ptr(self.at(place * PLACE_BYTES).cast()) }
    }

    /// A place's generation in the control page.
    pub fn generation(self, place: usize) -> &'static AtomicU64 {
        // SAFETY: aligned, inside the control page, mapped until the process ends. A reader's map
        // is read-only, and it only loads.
        unsafe { AtomicU64::from_ptr(self.at(place * 8).cast()) }
    }

    pub fn unmap(self, bytes: usize) {
        // SAFETY: the caller is done with it; no reference into it is kept anywhere.
        unsafe { rustix::mm::munmap(self.0.cast(), bytes) }.expect("unmap");
    }

    fn at(self, offset: usize) -> *mut u8 {
        assert!(offset < ARENA_BYTES);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(offset) }
    }
}

/// The reader's half of the generation protocol: the word is read after the last byte.
pub fn generation_after(control: Map, place: usize) -> u64 {
    fence(Ordering::Acquire);
    control.generation(place).load(Ordering::Relaxed)
}

/// The node's half: the word changes before the first byte does.
pub fn bump_generation(control: Map, place: usize) {
    control.generation(place).fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
}

/// The next line's numbers; `None` at the end of the stream.
pub fn numbers(from: &mut impl BufRead) -> Option<Vec<u64>> {
    let mut line = String::new();
    let read = from.read_line(&mut line).expect("the pipe is readable");
    (read > 0).then(|| line.split_whitespace().map(|word| word.parse().expect("number")).collect())
}
