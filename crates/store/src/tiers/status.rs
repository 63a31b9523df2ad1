//! What a tier says about itself.

/// How a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceState {
    /// In service.
    Live,
    /// Its blocks can be read; it takes no more.
    ReadOnly {
        /// Since what.
        why: String,
    },
    /// Out of service: its share of blocks is gone.
    Fenced {
        /// Since what.
        why: String,
    },
}

/// One device of a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceStatus {
    /// Its path or name.
    pub name: String,
    /// How I/O is done there, such as `io_uring, direct`.
    pub engine: String,
    /// In service or not.
    pub state: DeviceState,
    /// Bytes of its segments.
    pub capacity_bytes: u64,
    /// Segments in all.
    pub segments: u32,
    /// Segments that are free.
    pub segments_free: u32,
    /// Payload bytes of blocks that were not forgotten.
    pub live_bytes: u64,
    /// Bytes read since the start.
    pub read_bytes: u64,
    /// Bytes written since the start, headers included.
    pub written_bytes: u64,
    /// Payload bytes appended since the start.
    pub payload_bytes: u64,
    /// Flushes since the start.
    pub flushes: u64,
    /// Operations that failed since the start.
    pub errors: u64,
    /// Operations past their time whose buffers the device still has.
    pub quarantined: u64,
}

/// A tier's figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierStatus {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Payload bytes that a block may have here.
    pub block_bytes_max: u64,
    /// Its devices; `Spot::device` counts in this order.
    pub devices: Vec<DeviceStatus>,
}

impl TierStatus {
    /// Free segments of devices that take blocks.
    pub fn segments_free(&self) -> u64 {
        let live = self.devices.iter().filter(|device| device.state == DeviceState::Live);
        live.map(|device| u64::from(device.segments_free)).sum()
    }
}
