//! Keepwarm's wire: frames, server, client. Knows no Python.

pub mod codec;
pub mod frames;
pub mod messages;
