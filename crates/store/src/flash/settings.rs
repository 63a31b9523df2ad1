//! What a flash tier is opened with.

use std::path::PathBuf;
use std::time::Duration;

use super::device::Engine;

/// One file or block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashPath {
    /// Where it is.
    pub path: PathBuf,
    /// Its size: of a file that does not exist yet; a block device is taken whole without one.
    pub bytes: Option<u64>,
}

/// How a flash tier is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlashSettings {
    /// Erase the devices first, whatever they hold. The only way to.
    pub format: bool,
    /// Bytes of a segment of a device that is new or formatted: a multiple of 4 KiB, 64 KiB to
    /// 256 MiB. Chosen from the device's size without it.
    pub segment_bytes: Option<u64>,
    /// How long one operation may take before its device is out of service. Too short, and a busy
    /// disk is given up; too long, and callers wait for a dead one.
    pub op_timeout: Duration,
    /// How I/O is done.
    pub engine: Engine,
}

impl Default for FlashSettings {
    fn default() -> FlashSettings {
        FlashSettings {
            format: false,
            segment_bytes: None,
            op_timeout: Duration::from_secs(15),
            engine: Engine::Probe,
        }
    }
}
