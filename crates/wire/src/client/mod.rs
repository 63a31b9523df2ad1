//! The client: [`Memory`] is a way to a store, [`Space`] one namespace in it.
//!
//! `space.rs` holds what every transport shares; `transport.rs` is the seam; `inproc.rs`,
//! `remote/` and `shm/` are behind it. Only this folder may import them.

mod config;
mod errors;
mod events;
mod fleet;
mod gone;
mod inproc;
mod legs;
mod memory;
mod positions;
mod remote;
mod shm;
mod space;
mod stats;
mod transport;

pub use config::{ConnectConfig, DEADLINE, SUBSCRIPTIONS_MAX, TransportChoice};
pub use errors::{AttachRefused, ClientError, ConnectError};
pub use events::EventStream;
pub use fleet::{FleetConfig, FleetTiming, NodeState, Seed};
pub use memory::{Health, HealthState, Memory, NodeHealth, NodeStat};
pub use positions::Positions;
pub use space::{EpochOutcome, GetItem, PutItem, Space};
pub use stats::{ClientStats, DataPath};
