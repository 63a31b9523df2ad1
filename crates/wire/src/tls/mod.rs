//! TLS 1.3 over a [`Socket`](crate::channel::Socket): another
//! [`Channel`](crate::channel::Channel).
//!
//! `stream.rs` moves bytes, `files.rs` reads certificates and keys, `reasons.rs` says in words why
//! two sides do not trust each other. No session is ever resumed, so a certificate that was revoked
//! is met at the next connection.

mod files;
mod reasons;
mod stream;

pub(crate) use files::Watched;
pub use files::{ClientTls, FilesError, NodeTls, TlsFiles};
pub(crate) use reasons::distrust_in;
pub use stream::TlsStream;
