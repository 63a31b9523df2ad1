//! x
/// x
pub struct MemoryLimit;
