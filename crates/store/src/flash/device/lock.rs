//! One node a device: `flock` on a file, an exclusive open on a block device.

use std::fs::File;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::flash::error::OpenError;

/// How long a node that is just going, or killed, may take to let go of its device.
const WAIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Tries until it is not busy, or for as long as another may take to go.
pub(super) fn until_free<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let until = Instant::now() + WAIT;
    loop {
        match attempt() {
            Err(Errno::WOULDBLOCK | Errno::BUSY) if Instant::now() < until => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// A file that is this process's alone while it lives.
#[derive(Debug)]
pub(super) struct FileLock {
    file: File,
    /// Whose it is: a forked child has the descriptor too.
    pid: u32,
}

impl FileLock {
    pub fn take(name: &str, file: &File) -> Result<FileLock, OpenError> {
        let failed = |what, error: std::io::Error| OpenError::Io {
            device: name.to_owned(),
            what,
            error: error.to_string(),
        };
        let file = file.try_clone().map_err(|error| failed("out of descriptors", error))?;
        match until_free(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(FileLock { file, pid: std::process::id() }),
            Err(Errno::WOULDBLOCK) => Err(in_use(name, "another node")),
            Err(error) => Err(failed("its file system has no locks", error.into())),
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // Not left to the close alone: a child that was forked meanwhile would go on holding it.
        if self.pid == std::process::id() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

pub(super) fn in_use(name: &str, by: &str) -> OpenError {
    OpenError::InUse { device: name.to_owned(), by: by.to_owned() }
}
