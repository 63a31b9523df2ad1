//! I/O by io_uring: one ring a queue, the file registered, no polling thread.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode};

use super::{Io, IoDone, IoKind, IoQueue};
use crate::tiers::Piece;

pub(super) struct UringQueue {
    ring: IoUring,
    slots: Vec<Option<Slot>>,
}

/// An operation in flight: the kernel may look at its vectors until it completes.
struct Slot {
    token: u64,
    _vectors: Vec<libc::iovec>,
}

// SAFETY: the vectors are places and lengths of pieces, which may go to any thread themselves.
unsafe impl Send for Slot {}

impl UringQueue {
    /// # Errors
    /// What the system said: io_uring may be missing, forbidden, or out of locked memory.
    pub fn new(file: &impl AsRawFd, depth: usize) -> io::Result<UringQueue> {
        let entries = u32::try_from(depth.max(1)).unwrap_or(u32::MAX);
        let ring = IoUring::builder().setup_coop_taskrun().build(entries);
        let ring = ring.or_else(|_| IoUring::new(entries))?;
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        Ok(UringQueue { ring, slots: (0..depth.max(1)).map(|_| None).collect() })
    }

    fn reap(&mut self) -> Option<IoDone> {
        let entry = self.ring.completion().next()?;
        let slot = self.slots[entry.user_data() as usize].take().expect("an operation in flight");
        let result = match entry.result() {
            error if error < 0 => Err(io::Error::from_raw_os_error(-error)),
            bytes => Ok(bytes as usize),
        };
        Some(IoDone { token: slot.token, result })
    }
}

impl IoQueue for UringQueue {
    fn submit(&mut self, io: Io) {
        let slot = self.slots.iter().position(Option::is_none).expect("room in the ring");
        let vectors: Vec<libc::iovec> = io.pieces.iter().map(vector_of).collect();
        let (file, count) = (Fixed(0), vectors.len() as u32);
        let entry = match (io.kind, vectors.as_slice()) {
            (IoKind::Flush, _) => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
            (IoKind::Read, [one]) => {
                let read = opcode::Read::new(file, one.iov_base.cast(), one.iov_len as u32);
                read.offset(io.offset).build()
            }
            (IoKind::Write, [one]) => {
                let write = opcode::Write::new(file, one.iov_base.cast(), one.iov_len as u32);
                write.offset(io.offset).build()
            }
            (IoKind::Read, many) => {
                opcode::Readv::new(file, many.as_ptr(), count).offset(io.offset).build()
            }
            (IoKind::Write, many) => {
                opcode::Writev::new(file, many.as_ptr(), count).offset(io.offset).build()
            }
        };
        self.slots[slot] = Some(Slot { token: io.token, _vectors: vectors });
        // SAFETY: the vectors stay in their slot, and the memory they name with the submitter
        // (`IoQueue`'s contract; a pipe that is given up is kept), until the completion is reaped.
        // `flash_faults.rs` looks at memory of operations that outlive their callers.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(slot as u64)) };
        pushed.expect("as many entries as slots");
    }

    fn complete(&mut self, wait: Duration) -> Option<IoDone> {
        self.push();
        if let Some(done) = self.reap() {
            return Some(done);
        }
        if self.slots.iter().all(Option::is_none) || wait.is_zero() {
            return None;
        }
        let time = Timespec::new().sec(wait.as_secs()).nsec(wait.subsec_nanos());
        // Whatever it says (time passed, a signal), the completion queue is the answer.
        let _ = self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time));
        self.reap()
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring has its descriptor open for as long as `self` is borrowed.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }

    fn push(&mut self) {
        if !self.ring.submission().is_empty() {
            // Busy (completions to be reaped first) or a signal: the next call tries again.
            let _ = self.ring.submit();
        }
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        // The ring itself goes later, in the kernel's own time, and would keep the device in use.
        let _ = self.ring.submitter().unregister_files();
    }
}

fn vector_of(piece: &Piece) -> libc::iovec {
    libc::iovec { iov_base: piece.at().cast(), iov_len: piece.padded() }
}
