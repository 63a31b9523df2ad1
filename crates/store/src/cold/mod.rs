//! The second tier, from the store's side: which blocks are on flash, how they get there, and how
//! they come back. Knows tiers (`crate::tiers`) by their trait only.

mod entry;
mod index;
mod segments;
