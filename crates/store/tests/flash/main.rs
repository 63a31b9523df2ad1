//! The second tier over memory: what is written there, comes back from there, and leaves.

mod basics;
#[path = "../common/mod.rs"]
mod common;
mod devices;
mod fixture;
mod leaving;
mod restart;
mod threads;
