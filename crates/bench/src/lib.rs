//! The limits that Keepwarm's speed is measured against, each as plain as it can be.
//!
//! - `copies.rs`: memory to memory: memcpy, the copy that hashes, and the same without its hash.
//! - `bytes.rs`: what the loops move: places in the caller's memory, and a pool like an arena.
//! - `streams.rs`: a bare request-and-reply loop over Unix, TCP or TLS: no keys, no hash, no index.
//! - `tls.rs`: rustls under those streams.
//! - `file.rs`: a bare io_uring loop over one file, O_DIRECT.
//! - `index.rs`: nanoseconds a key of the store's own index, by the CPU's clock.
//!
//! Each returns seconds of one round. Who compares, repeats and prints is `keepwarm.bench`.

pub mod bytes;
pub mod copies;
pub mod file;
pub mod index;
pub mod streams;
pub mod tls;
