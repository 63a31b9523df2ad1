//! The socket's name in the file system: private from the first moment, never stolen from a live
//! node, taken over from a dead one, removed only by its owner.
//!
//! ```text
//!  lock the directory ─► is somebody listening at the path? refuse
//!    └► bind a neighbouring name ─► chmod ─► listen ─► rename over the path ─► unlock
//! ```
//!
//! A bound socket that does not listen yet refuses everybody, and a rename is atomic: there is no
//! moment at which a stranger could connect. The lock keeps two starting nodes apart.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::ServerError;
use crate::deadline::Deadline;
use crate::socket_path::{PATH_BYTES_MAX, too_long};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long another node may be in the middle of its start.
const LOCK_WAIT: Duration = Duration::from_secs(5);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Last letters of names to bind before the rename, in the order tried.
const LAST_LETTERS: [u8; 5] = *b"~#+=^";

/// The name of a listening socket.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Who may connect at all; who may talk is decided by the peer's user.
    mode: u32,
    /// Device and inode of the socket; none once the name was removed. Locked while it is bound.
    place: Mutex<Option<(u64, u64)>>,
}

impl SocketFile {
    /// Binds `path` for the users that `mode` lets in, and listens.
    pub(super) fn bind(path: &Path, mode: u32) -> Result<(SocketFile, OwnedFd), ServerError> {
        if let Some(bytes) = too_long(path) {
            let path = path.to_owned();
            return Err(ServerError::PathTooLong { path, bytes, max: PATH_BYTES_MAX });
        }
        let (place, listener) = bind_at(path, mode)?;
        Ok((SocketFile { path: path.into(), mode, place: Mutex::new(Some(place)) }, listener))
    }

    /// Binds the path again if its name was deleted or leads elsewhere now. None: it is as it
    /// should be. The old socket still has the connections that came through it.
    pub(super) fn restore(&self) -> Option<Result<OwnedFd, ServerError>> {
        let mut place = self.place.lock();
        if place.is_none() || place_of(&self.path).ok() == *place {
            return None;
        }
        Some(bind_at(&self.path, self.mode).map(|(bound, listener)| {
            *place = Some(bound);
            listener
        }))
    }

    /// Removes the name if it is still this socket's; at most once, and before the socket closes:
    /// afterwards another node's socket may have the inode's number.
    pub(super) fn remove(&self) {
        let Some(ours) = self.place.lock().take() else { return };
        if place_of(&self.path).is_ok_and(|place| place == ours) {
            // Whoever removes it first, it is gone.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Listens at a path that nobody else listens at; with the device and inode of its name.
fn bind_at(path: &Path, mode: u32) -> Result<((u64, u64), OwnedFd), ServerError> {
    let failed =
        |action| move |source: io::Error| ServerError::Socket { action, path: path.into(), source };
    let _lock = lock_directory(path).map_err(failed("lock the directory of"))?;
    refuse_if_in_use(path)?;
    let (temporary, listener) = bind_beside(path, mode).map_err(failed("bind"))?;
    fs::rename(&temporary, path).map_err(failed("name"))?;
    Ok((place_of(path).map_err(failed("look at"))?, listener))
}

fn place_of(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Held while two nodes could get into each other's way; ends with the descriptor.
fn lock_directory(path: &Path) -> io::Result<fs::File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = fs::File::open(parent.unwrap_or(Path::new(".")))?;
    let until = Deadline::after(LOCK_WAIT);
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::WOULDBLOCK) if !until.passed() => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
}

fn refuse_if_in_use(path: &Path) -> Result<(), ServerError> {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(ServerError::NotASocket { path: path.into() })
        }
        Ok(_) => match listener_at(path) {
            Some(pid) => Err(ServerError::InUse { path: path.into(), pid }),
            None => Ok(()),
        },
    }
}

/// The process that listens at `path`, if one does.
fn listener_at(path: &Path) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path).ok()?) {
        Ok(()) => {
            let peer = rustix::net::sockopt::socket_peercred(&probe).ok()?;
            u32::try_from(peer.pid.as_raw_nonzero().get()).ok()
        }
        // Its queue is full: it lives. Nobody can say which process it is.
        Err(Errno::AGAIN) => Some(0),
        Err(_) => None,
    }
}

/// Names of the same length in the same directory, so that what fits for one fits for all.
fn neighbours(path: &Path) -> impl Iterator<Item = PathBuf> {
    let name = path.file_name().unwrap_or_default().as_bytes();
    LAST_LETTERS.iter().filter(|last| name.last() != Some(*last)).map(move |letter| {
        let mut name = name.to_vec();
        if let Some(last) = name.last_mut() {
            *last = *letter;
        }
        path.with_file_name(OsStr::from_bytes(&name))
    })
}

/// Binds the first neighbouring name that nobody uses and listens.
fn bind_beside(path: &Path, mode: u32) -> io::Result<(PathBuf, OwnedFd)> {
    let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
    for beside in neighbours(path) {
        // Left over from a node that died at this very point, if nobody listens there.
        let is_socket = |metadata: fs::Metadata| metadata.file_type().is_socket();
        if fs::symlink_metadata(&beside).is_ok_and(is_socket) && listener_at(&beside).is_none() {
            fs::remove_file(&beside)?;
        }
        match bind_and_listen(&beside, mode) {
            Ok(listener) => return Ok((beside, listener)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}

fn bind_and_listen(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    rustix::net::listen(&listener, BACKLOG)?;
    Ok(listener)
}
