//! The flash tier against power loss, failing and hanging devices, rot, strangers' data, and on
//! real files and loop devices.

mod codec;
mod crash;
mod damage;
mod faults;
mod files;
mod kill;
mod order;

use std::sync::Arc;

use keepwarm_store::flash::device::{Device, MemDevice};
use keepwarm_store::flash::{FlashSettings, FlashTier};

/// A generator whose numbers follow from its seed.
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.any()) * u128::from(end)) >> 64) as u64
    }
}

/// Bytes of a segment here.
pub const SEGMENT: u64 = 256 << 10;

/// Small segments.
pub fn settings() -> FlashSettings {
    FlashSettings { segment_bytes: Some(SEGMENT), ..FlashSettings::default() }
}

/// Devices in memory of so many segments each.
pub fn devices(count: usize, segments: u64) -> Vec<MemDevice> {
    let bytes = ((1 << 20) + segments * SEGMENT) as usize;
    (0..count).map(|number| MemDevice::new(&format!("flash-{number}"), bytes)).collect()
}

/// A tier over new handles of these devices.
pub fn open(devices: &[MemDevice]) -> FlashTier {
    let again = devices.iter().map(|device| Arc::new(device.again()) as Arc<dyn Device>);
    FlashTier::over(again.collect(), &settings()).expect("opened")
}

/// A number from the environment.
pub fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
