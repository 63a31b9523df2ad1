//! x
/// x
pub struct Arena;
/// x
pub struct ArenaError;
