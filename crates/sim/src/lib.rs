//! Replays request traces at speed: through the store's own policies and others, through tiers,
//! over several replicas; whole, or a sample of the blocks. No bytes move here, only block ids.
//!
//! Uses the store's public policies and nothing else of it; knows no network and no Python.

pub mod cache;
pub mod curve;
pub mod interner;
pub mod lfu;
pub mod links;
pub mod memory;
pub mod order;
pub mod requests;
pub mod sample;
pub mod sketch;
