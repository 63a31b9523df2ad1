//! Keepwarm's store: keys, arena, index, policies, leases. Knows no network and no Python.

pub mod ahead;
pub mod arena;
mod arena_bytes;
mod blocks;
mod check;
pub mod checksum;
mod classes;
pub mod clock;
mod cold;
pub mod config;
mod epoch_writes;
pub mod epochs;
pub mod error;
pub mod events;
pub mod flash;
mod ghosts;
pub mod guards;
pub mod identity;
mod index;
#[doc(hidden)]
pub mod index_probe;
mod inner;
mod leases;
pub mod log;
mod lookups;
mod namespaces;
pub mod outcome;
mod pending;
mod places;
pub mod policy;
mod puts;
mod reads;
pub mod retune;
mod room;
pub mod rules;
pub mod session;
mod settings;
mod shares;
mod spaces;
pub mod stats;
pub mod store;
pub mod subscription;
mod tenants;
pub mod tiers;
mod told;
pub mod types;

pub use clock::{ManualClock, SystemClock};
pub use cold::{
    Drained, FlashCounters, FlashShed, FlashStats, FlashTenantStats, Prefetched, RecoveryStats,
};
pub use config::{FlashAdmission, FlashConfig, Limits, PolicyKind, StoreConfig, TenantConfig};
pub use error::{AttachError, StoreError};
pub use events::{Event, EventBatch, EventFilter, EventKind};
pub use guards::{ReadPin, WriteGrant};
pub use outcome::{Attached, BlockPut, Hit, Lookup, Reported, Reserve};
pub use session::Session;
pub use stats::{Counters, NamespaceStats, Stats, TenantStats};
pub use store::Store;
pub use subscription::Subscription;
