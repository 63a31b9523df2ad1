//! A block device that loses power: of everything written since the last flush, an arbitrary
//! subset of 512 B sectors is there afterwards.

use keepwarm_prototypes::Random;

/// The unit a device writes whole or not at all.
pub const SECTOR: usize = 512;

pub struct Device {
    /// What survives for certain.
    durable: Vec<u8>,
    /// What reads see while the power is on.
    current: Vec<u8>,
    /// Sectors written since the last flush, in order: offset and content.
    unflushed: Vec<(usize, [u8; SECTOR])>,
}

impl Device {
    pub fn new(bytes: usize) -> Device {
        Device { durable: vec![0; bytes], current: vec![0; bytes], unflushed: Vec::new() }
    }

    pub fn bytes(&self) -> usize {
        self.current.len()
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset.is_multiple_of(SECTOR) && bytes.len().is_multiple_of(SECTOR));
        self.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (at, sector) in bytes.chunks_exact(SECTOR).enumerate() {
            let content = sector.try_into().expect("a sector");
            self.unflushed.push((offset + at * SECTOR, content));
        }
    }

    pub fn flush(&mut self) {
        self.durable.copy_from_slice(&self.current);
        self.unflushed.clear();
    }

    pub fn read(&self, offset: usize, len: usize) -> &[u8] {
        &self.current[offset..offset + len]
    }

    /// Power is lost and comes back. How much of the unflushed survives differs by crash: nothing,
    /// everything, and all between; a sector written twice may keep either content.
    pub fn crash(&mut self, random: &mut Random) {
        let survive_in_ten = random.below(11);
        for (offset, content) in self.unflushed.drain(..) {
            if random.below(10) < survive_in_ten {
                self.durable[offset..offset + SECTOR].copy_from_slice(&content);
            }
        }
        self.current.copy_from_slice(&self.durable);
    }
}
