//! Keepwarm's store: keys, arena, index, policies, leases. Knows no network and no Python.

pub mod arena;
pub mod checksum;
pub mod clock;
pub mod config;
pub mod error;
pub mod events;
mod ghosts;
pub mod guards;
pub mod identity;
mod index;
mod leases;
pub mod outcome;
mod pending;
pub mod policy;
pub mod session;
pub mod stats;
pub mod store;
mod tenants;
pub mod types;

pub use clock::{ManualClock, SystemClock};
pub use config::{Limits, PolicyKind, StoreConfig, TenantConfig};
pub use error::{AttachError, StoreError};
pub use events::{Event, EventBatch, EventFilter, EventKind};
pub use guards::{ReadPin, WriteGrant};
pub use outcome::{Attached, BlockPut, Hit, Lookup, Reported, Reserve};
pub use session::Session;
pub use stats::{Counters, NamespaceStats, Stats, TenantStats};
pub use store::{Store, Subscription};
