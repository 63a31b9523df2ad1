//! I/O by a bounded pool of threads, where io_uring is missing or forbidden.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{Io, IoDone, IoKind, IoQueue};
use crate::tiers::{Piece, memory_of, memory_of_mut};

/// Threads of one device.
pub(super) const THREADS_MAX: usize = 16;

/// The threads of one device, started as they are needed. They end with it, each after its
/// operation; a hung one is waited for by nobody.
pub(super) struct ThreadPool {
    file: Arc<File>,
    work: Mutex<Work>,
    come: Condvar,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<(Io, Arc<Mailbox>)>,
    threads: usize,
    idle: usize,
    is_over: bool,
}

struct Mailbox {
    done: Mutex<VecDeque<IoDone>>,
    come: Condvar,
    ready: OwnedFd,
}

impl ThreadPool {
    pub fn new(file: Arc<File>) -> Arc<ThreadPool> {
        Arc::new(ThreadPool { file, work: Mutex::default(), come: Condvar::new() })
    }

    pub fn queue(self: &Arc<Self>) -> io::Result<ThreadQueue> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let mailbox = Mailbox { done: Mutex::default(), come: Condvar::new(), ready };
        Ok(ThreadQueue { pool: self.clone(), mailbox: Arc::new(mailbox) })
    }

    /// No more work; called when the device goes.
    pub fn end(&self) {
        self.work.lock().is_over = true;
        self.come.notify_all();
    }

    fn give(self: &Arc<Self>, io: Io, mailbox: &Arc<Mailbox>) {
        let mut work = self.work.lock();
        work.jobs.push_back((io, mailbox.clone()));
        if work.idle < work.jobs.len() && work.threads < THREADS_MAX {
            work.threads += 1;
            let pool = Arc::downgrade(self);
            let started = std::thread::Builder::new()
                .name("keepwarm-flash".into())
                .stack_size(128 << 10)
                .spawn(move || work_on(&pool));
            if started.is_err() {
                work.threads -= 1;
                if work.threads == 0
                    && let Some((io, mailbox)) = work.jobs.pop_back()
                {
                    mailbox.put(IoDone { token: io.token, result: Err(Errno::AGAIN.into()) });
                }
            }
        }
        self.come.notify_one();
    }

    fn next(&self) -> Option<(Io, Arc<Mailbox>)> {
        let mut work = self.work.lock();
        loop {
            if let Some(job) = work.jobs.pop_front() {
                return Some(job);
            }
            if work.is_over {
                return None;
            }
            work.idle += 1;
            self.come.wait(&mut work);
            work.idle -= 1;
        }
    }
}

fn work_on(pool: &Weak<ThreadPool>) {
    while let Some(pool) = pool.upgrade() {
        let Some((io, mailbox)) = pool.next() else { return };
        let result = run(&pool.file, &io);
        mailbox.put(IoDone { token: io.token, result });
    }
}

impl Mailbox {
    fn put(&self, done: IoDone) {
        self.done.lock().push_back(done);
        self.come.notify_one();
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }
}

fn run(file: &File, io: &Io) -> io::Result<usize> {
    loop {
        let result = match io.kind {
            IoKind::Flush => rustix::fs::fdatasync(file).map(|()| 0),
            IoKind::Read => {
                // SAFETY: `IoQueue`'s contract: the memory is this operation's until it completes,
                // and its submitter outlives it (`flash_faults.rs`).
                let of = |piece: &Piece| IoSliceMut::new(unsafe { memory_of_mut(piece) });
                let mut slices: Vec<IoSliceMut<'_>> = io.pieces.iter().map(of).collect();
                rustix::io::preadv(file, &mut slices, io.offset)
            }
            IoKind::Write => {
                // SAFETY: as above; a write only reads it.
                let of = |piece: &Piece| IoSlice::new(unsafe { memory_of(piece) });
                let slices: Vec<IoSlice<'_>> = io.pieces.iter().map(of).collect();
                rustix::io::pwritev(file, &slices, io.offset)
            }
        };
        if result != Err(Errno::INTR) {
            return Ok(result?);
        }
    }
}

pub(super) struct ThreadQueue {
    pool: Arc<ThreadPool>,
    mailbox: Arc<Mailbox>,
}

impl IoQueue for ThreadQueue {
    fn submit(&mut self, io: Io) {
        self.pool.give(io, &self.mailbox);
    }

    fn complete(&mut self, wait: Duration) -> Option<IoDone> {
        let end = Instant::now() + wait;
        let mut done = self.mailbox.done.lock();
        while done.is_empty() {
            if self.mailbox.come.wait_until(&mut done, end).timed_out() {
                break;
            }
        }
        let first = done.pop_front();
        if done.is_empty() {
            let _ = rustix::io::read(&self.mailbox.ready, &mut [0u8; 8]);
        }
        first
    }

    fn ready(&self) -> Option<BorrowedFd<'_>> {
        Some(self.mailbox.ready.as_fd())
    }
}
