//! The one limit on a Unix socket's path.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Most bytes of a path: what the system's address structure holds, less the closing zero.
pub(crate) const PATH_BYTES_MAX: usize = 107;

/// The path's length, if it is too long.
pub(crate) fn too_long(path: &Path) -> Option<usize> {
    let bytes = path.as_os_str().as_bytes().len();
    (bytes > PATH_BYTES_MAX).then_some(bytes)
}
