//! A bare io_uring loop over one file, O_DIRECT: what the device and the file system give.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use io_uring::{IoUring, opcode, types};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fdatasync, open};

use crate::bytes::{Place, Pool};

/// A file, a ring, and as much aligned memory as one call moves.
pub struct RawFile {
    file: OwnedFd,
    ring: IoUring,
    pool: Pool,
    bytes: u64,
    depth: u32,
}

impl RawFile {
    /// Makes (or opens) a file of `bytes`, all of them allocated, for calls of at most `call_bytes`
    /// with `depth` requests in flight.
    ///
    /// # Errors
    /// What the system says: no room, no O_DIRECT there, no io_uring.
    pub fn new(path: &Path, bytes: u64, call_bytes: usize, depth: u32) -> io::Result<RawFile> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        let ring = IoUring::new(depth.next_power_of_two())?;
        Ok(RawFile { file, ring, pool: Pool::new(call_bytes)?, bytes, depth })
    }

    /// Reads `blocks` blocks of `length` bytes, from the `first`th on; seconds.
    ///
    /// # Errors
    /// What the system says, or a read that ends early.
    pub fn read(&mut self, first: u64, blocks: u32, length: u32) -> io::Result<f64> {
        let start = Instant::now();
        self.transfer(first, blocks, length, |file, place, at| {
            opcode::Read::new(file, place.ptr, place.len as u32).offset(at).build()
        })?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Writes as [`RawFile::read`] reads; with `flush` until the device has it.
    ///
    /// # Errors
    /// As [`RawFile::read`].
    pub fn write(&mut self, first: u64, blocks: u32, length: u32, flush: bool) -> io::Result<f64> {
        let start = Instant::now();
        self.transfer(first, blocks, length, |file, place, at| {
            opcode::Write::new(file, place.ptr, place.len as u32).offset(at).build()
        })?;
        if flush {
            fdatasync(&self.file)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    fn transfer(
        &mut self,
        first: u64,
        blocks: u32,
        length: u32,
        entry: impl Fn(types::Fd, Place, u64) -> io_uring::squeue::Entry,
    ) -> io::Result<()> {
        let places = (self.bytes / u64::from(length)).max(1);
        let (mut begun, mut in_flight) = (0, 0);
        let mut problem = None;
        while in_flight > 0 || (begun < blocks && problem.is_none()) {
            while begun < blocks && in_flight < self.depth && problem.is_none() {
                let n = first + u64::from(begun);
                let place = self.pool.block(u64::from(begun), length as usize);
                let at = n % places * u64::from(length);
                let entry = entry(types::Fd(self.file.as_raw_fd()), place, at);
                // SAFETY: the place is one of the pool's, and the loop does not end before every
                // request that it began has completed. `tests/limits.rs` writes and reads back.
                if unsafe { self.ring.submission().push(&entry) }.is_err() {
                    break;
                }
                (begun, in_flight) = (begun + 1, in_flight + 1);
            }
            match self.ring.submit_and_wait(1) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
            for done in self.ring.completion() {
                in_flight -= 1;
                match done.result() {
                    result if result == length as i32 => {}
                    result if result < 0 => {
                        problem = Some(io::Error::from_raw_os_error(-result));
                    }
                    _ => problem = Some(io::ErrorKind::UnexpectedEof.into()),
                }
            }
        }
        problem.map_or(Ok(()), Err)
    }
}
