//! Keepwarm's wire: frames, server, client. Knows no Python.
//!
//! Bottom up: `address` says where a node is, `codec` and `frames` are bytes, `messages` one file
//! per command, `channel` a stream on which every wait ends, `server` what a node runs, `client`
//! what an engine holds.

pub mod address;
mod ahead;
pub mod channel;
pub mod client;
pub mod codec;
pub mod credentials;
pub mod deadline;
mod figures;
pub mod frame_io;
pub mod frames;
mod housekeeping;
mod mapping;
pub mod messages;
mod process;
mod raw;
pub mod server;
mod socket_path;
pub mod tls;

pub use address::{Address, AddressError};
pub use client::{
    AttachRefused, ClientError, ClientStats, ConnectConfig, ConnectError, DataPath, EpochOutcome,
    EventStream, FleetConfig, FleetTiming, GetItem, Health, HealthState, Memory, NodeHealth,
    NodeStat, NodeState, Positions, PutItem, SUBSCRIPTIONS_MAX, Seed, Space, TransportChoice,
};
pub use messages::StatValue;
pub use process::ProcessId;
pub use server::{Server, ServerConfig, ServerError};
