//! Replays request traces at speed: through the store's own policies and others, through tiers,
//! over several replicas; whole, or a sample of the blocks. No bytes move here, only block ids.
//!
//! Uses the store's policies, and for the twin of a node the numbers and pure parts that it makes
//! public for that (`rules`, `ahead`); knows no network and no Python.

pub mod cache;
pub mod costs;
pub mod curve;
pub mod fleet;
pub mod hierarchy;
pub mod interner;
pub mod level;
pub mod lfu;
pub mod links;
pub mod memory;
pub mod opt;
pub mod order;
pub mod outcomes;
pub mod replica;
pub mod requests;
pub mod router;
pub mod sample;
pub mod sketch;
pub mod twin;
