//! The place of a device that could not be opened: nothing, out of service, named.

use std::io;

use super::device::{Device, IoQueue};
use super::error::OpenError;
use super::format::{SEGMENT_BYTES_MIN, SEGMENTS_AT, Superblock};

pub(super) struct LostDevice {
    name: String,
    why: String,
}

impl LostDevice {
    pub fn new(name: String, error: &OpenError) -> LostDevice {
        LostDevice { name, why: error.to_string() }
    }

    /// Of no segment.
    pub fn superblock() -> Superblock {
        Superblock {
            device: [0; 16],
            set: [0; 16],
            members: 1,
            device_bytes: SEGMENTS_AT,
            segment_bytes: SEGMENT_BYTES_MIN,
            serial: 0,
            term: 0,
            opens: 0,
            void_before: 0,
        }
    }
}

impl Device for LostDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn engine(&self) -> String {
        "none".into()
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn queue(&self, _depth: usize) -> io::Result<Box<dyn IoQueue>> {
        Err(io::Error::other(self.why.clone()))
    }
}
