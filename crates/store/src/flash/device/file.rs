//! A file or a block device, past the page cache where that can be.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use super::lock::{FileLock, in_use, until_free};
use super::threads::{THREADS_MAX, ThreadPool};
use super::uring::UringQueue;
use super::{Device, Io, IoKind, IoQueue};
use crate::flash::error::OpenError;
use crate::tiers::{AlignedBuffer, PAGE_BYTES};

/// What a device needs that is a file to be made.
const NO_SIZE: &str = "it does not exist yet: give its size";

/// An open device, and what keeps a file from other nodes.
type Opened = (File, Option<FileLock>);

/// How I/O is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Engine {
    /// io_uring if it works here, else threads.
    #[default]
    Probe,
    /// A pool of threads.
    Threads,
}

/// Whether what is there may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Content stays as it is; only an empty file is given its size.
    Keep,
    /// A file is given its size, whatever it holds.
    Format,
}

/// A file or a block device, this process's alone.
#[derive(Debug)]
pub struct FileDevice {
    name: String,
    file: Arc<File>,
    bytes: u64,
    is_direct: bool,
    io: Method,
    _lock: Option<FileLock>,
}

#[derive(Debug)]
enum Method {
    Uring,
    Threads { pool: Arc<ThreadPool>, why: String },
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ThreadPool")
    }
}

impl FileDevice {
    /// Opens `path`, taking it from every other node. `bytes` is the size of a file that does not
    /// exist yet, and at most that of a block device, which is the default there.
    ///
    /// # Errors
    /// `InUse`; `Mismatch` without a size, or with too large a one; `Io` with what to do.
    pub fn open(
        path: &Path,
        bytes: Option<u64>,
        mode: OpenMode,
        engine: Engine,
    ) -> Result<FileDevice, OpenError> {
        let name = path.display().to_string();
        let is_block = path.metadata().is_ok_and(|data| data.file_type().is_block_device());
        let bytes = bytes.filter(|bytes| *bytes > 0);
        let (file, lock) = if is_block {
            open_block(&name, path)
        } else {
            open_file(&name, path, bytes.is_some())
        }?;
        let bytes = match is_block {
            true => block_bytes(&name, &file, bytes)?,
            false => file_bytes(&name, &file, bytes, mode)?,
        };
        let is_direct = go_direct(&file);
        let file = Arc::new(file);
        let io = choose(&file, engine);
        Ok(FileDevice { name, file, bytes, is_direct, io, _lock: lock })
    }
}

fn failed(name: &str, what: &'static str, error: io::Error) -> OpenError {
    OpenError::Io { device: name.to_owned(), what, error: error.to_string() }
}

fn mismatch(name: &str, problem: String) -> OpenError {
    OpenError::Mismatch { device: name.to_owned(), problem }
}

fn open_block(name: &str, path: &Path) -> Result<Opened, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::EXCL.bits() as i32);
    let opened = until_free(|| {
        options.open(path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    });
    match opened {
        Ok(file) => Ok((file, None)),
        Err(Errno::BUSY) => Err(in_use(name, "another node, a mount or a volume manager")),
        Err(error) => Err(failed(name, "check its rights", error.into())),
    }
}

/// Without a size nothing is made: a slip in the name of a device leaves no file behind.
fn open_file(name: &str, path: &Path, make: bool) -> Result<Opened, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(make).truncate(false).mode(0o600);
    let file = options.open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if !make => mismatch(name, NO_SIZE.into()),
        _ => failed(name, "check its folder and rights", error),
    })?;
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        return Err(mismatch(name, "give a file or a block device".into()));
    }
    let lock = FileLock::take(name, &file)?;
    Ok((file, Some(lock)))
}

fn block_bytes(name: &str, mut file: &File, asked: Option<u64>) -> Result<u64, OpenError> {
    let there = file.seek(SeekFrom::End(0)).map_err(|error| failed(name, "size unknown", error))?;
    match asked {
        Some(asked) if asked > there => {
            let problem = format!("it has {there} bytes, not {asked}: give at most that, or none");
            Err(mismatch(name, problem))
        }
        _ => Ok(asked.unwrap_or(there)),
    }
}

fn file_bytes(
    name: &str,
    file: &File,
    asked: Option<u64>,
    mode: OpenMode,
) -> Result<u64, OpenError> {
    let there = file.metadata().map_err(|error| failed(name, "size unknown", error))?.len();
    if there > 0 && mode == OpenMode::Keep {
        return Ok(there);
    }
    let Some(bytes) = asked.or((there > 0).then_some(there)) else {
        return Err(mismatch(name, NO_SIZE.into()));
    };
    file.set_len(bytes).map_err(|error| failed(name, "check space and limits", error))?;
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // Where space cannot be had in advance, writes may find the disk full: the device then
        // takes no more.
        Ok(()) | Err(Errno::OPNOTSUPP) => Ok(bytes),
        Err(error) => {
            let _ = file.set_len(there);
            Err(failed(
                name,
                "not enough space for its size: free some, or ask for less",
                error.into(),
            ))
        }
    }
}

/// Whether I/O goes past the page cache from now on.
fn go_direct(file: &File) -> bool {
    let Ok(flags) = fcntl_getfl(file) else { return false };
    if fcntl_setfl(file, flags | OFlags::DIRECT).is_err() {
        return false;
    }
    let mut page = AlignedBuffer::new(PAGE_BYTES);
    let is_refused = rustix::io::pread(file, page.bytes_mut(), 0) == Err(Errno::INVAL);
    if is_refused {
        let _ = fcntl_setfl(file, flags);
    }
    !is_refused
}

/// io_uring if a read by it works, else threads, and why.
fn choose(file: &Arc<File>, engine: Engine) -> Method {
    let why = match engine {
        Engine::Threads => "as asked".to_owned(),
        Engine::Probe => match probe(file) {
            Ok(()) => return Method::Uring,
            Err(error) => format!("io_uring: {error}"),
        },
    };
    Method::Threads { pool: ThreadPool::new(file.clone()), why }
}

fn probe(file: &File) -> io::Result<()> {
    let mut queue = UringQueue::new(file, 1)?;
    let page = AlignedBuffer::new(PAGE_BYTES);
    // SAFETY: the page outlives the queue, or is leaked below with an operation in flight.
    let pieces = vec![unsafe { page.piece(PAGE_BYTES) }];
    queue.submit(Io { token: 0, kind: IoKind::Read, offset: 0, pieces });
    match queue.complete(Duration::from_secs(5)) {
        Some(done) => done.result.map(drop),
        None => {
            std::mem::forget(page);
            Err(io::ErrorKind::TimedOut.into())
        }
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn engine(&self) -> String {
        let cache = if self.is_direct { "direct" } else { "through the page cache" };
        match &self.io {
            Method::Uring => format!("io_uring, {cache}"),
            Method::Threads { why, .. } => format!("{THREADS_MAX} threads ({why}), {cache}"),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn queue(&self, depth: usize) -> io::Result<Box<dyn IoQueue>> {
        Ok(match &self.io {
            Method::Uring => Box::new(UringQueue::new(&*self.file, depth)?),
            Method::Threads { pool, .. } => Box::new(pool.queue()?),
        })
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if let Method::Threads { pool, .. } = &self.io {
            pool.end();
        }
    }
}
