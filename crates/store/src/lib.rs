//! Keepwarm's store: keys, arena, index, policies, leases. Knows no network and no Python.

pub mod arena;
pub mod checksum;
pub mod types;
