//! What a server is started with, and why it may not start.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::principals::Principals;
use crate::address::Address;
use crate::messages::WEIGHT_ORDINARY;
use crate::tls::{FilesError, TlsFiles};

/// What a server is started with.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where its socket is to be; its directory must exist.
    pub path: PathBuf,
    /// Where else it listens: `tcp://` on loopback alone, `tls://` anywhere.
    pub listen: Vec<Address>,
    /// What it shows under TLS, and whose certificates it takes. Needed to listen on `tls://`.
    pub tls: Option<TlsFiles>,
    /// Whom it lets in, beside its own user over the socket and over `tcp://` on loopback.
    pub principals: Principals,
    /// The node's name in handshakes and figures.
    pub node: String,
    /// Connections at once, 1 to 16,384; a thread each. Too few: engines with many threads are
    /// refused; too many: memory for stacks (256 KiB each, touched only when used).
    pub clients_max: usize,
    /// A connection on which nothing was asked for this long is closed.
    pub idle: Duration,
    /// How long a handshake may take.
    pub handshake: Duration,
    /// A peer that does not take or send a mebibyte (or the rest of a frame) within this is closed.
    /// Too short: slow engines lose calls; too long: what a dead one held stays held.
    pub stall: Duration,
    /// Puts are shed while more bytes than this are asked for by gets under way, each of which
    /// counts for at most 64 MiB: loads come first. Too low: one get sheds all puts; too high: gets
    /// wait behind them.
    pub put_watermark_bytes: u64,
    /// Its share of what clients place on several nodes, in thousandths of an ordinary node's; 0
    /// takes nothing new.
    pub weight_permille: u32,
    /// A follower of events hears at least this often.
    pub heartbeat: Duration,
}

impl ServerConfig {
    /// Defaults for all but the path.
    pub fn new(path: impl Into<PathBuf>) -> ServerConfig {
        ServerConfig {
            path: path.into(),
            listen: Vec::new(),
            tls: None,
            principals: Principals::default(),
            node: String::from("keepwarm"),
            clients_max: 256,
            idle: Duration::from_secs(300),
            handshake: Duration::from_secs(2),
            stall: Duration::from_secs(5),
            put_watermark_bytes: 512 << 20,
            weight_permille: WEIGHT_ORDINARY,
            heartbeat: Duration::from_secs(1),
        }
    }
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting that no server can have.
    #[error("{setting} is {found}: give {want}")]
    Config {
        /// Name of the setting.
        setting: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        want: &'static str,
    },
    /// The system has no room for such a path.
    #[error("socket path {path} has {bytes} bytes, at most {max} fit: choose a shorter one")]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Another node serves there.
    #[error("socket path {path} in use by pid {pid}: stop that node or choose another path")]
    InUse {
        /// The path.
        path: PathBuf,
        /// The other node's process.
        pid: u32,
    },
    /// Something else lives there.
    #[error("{path} is not a socket: remove it or choose another path")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot {action} socket {path}: {source}")]
    Socket {
        /// What was tried.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// TCP in plain text would be open to others.
    #[error("{address} can be reached by others: listen on tls:// there, or on loopback")]
    Exposed {
        /// As given.
        address: Address,
    },
    /// TLS without anybody who could come in.
    #[error("{address} would let nobody in: name principals, with certificate or token")]
    Nobody {
        /// As given.
        address: Address,
    },
    /// Certificates and keys are not what they should be.
    #[error("TLS: {0}")]
    Tls(#[from] FilesError),
    /// The system refused.
    #[error("cannot {action} {address}: {source}")]
    Listen {
        /// What was tried.
        action: &'static str,
        /// As given.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
    /// A thread could not be had.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}
