//! What a client can fail at outside of a call's ordinary outcomes.

use std::io;
use std::path::PathBuf;

use keepwarm_store::types::MissReason;

use super::config::SUBSCRIPTIONS_MAX;
use crate::address::Address;
use crate::frames::KEYS_MAX;
use crate::tls::FilesError;

/// A node that cannot be reached because of how it was named, or ever understood. A node that is
/// merely not there is none of these: calls miss until it is.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A setting that no client can have.
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
    /// Something else lives there.
    #[error("{path} is not a socket: give the path of a node's socket")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system, or the node, does not let this user in.
    #[error("no access to the node at {address}: {problem}")]
    Denied {
        /// Where it is.
        address: Address,
        /// In the words of who refused.
        problem: String,
    },
    /// Certificates and keys are not what they should be.
    #[error("credentials: {0}")]
    Credentials(#[from] FilesError),
    /// The node is there, and client and node do not trust each other.
    #[error("no trust between this client and the node at {address}: {problem}")]
    Untrusted {
        /// Where it is.
        address: Address,
        /// Which side finds what.
        problem: String,
    },
    /// The node shares no wire version with this client.
    #[error("the node at {address} does not speak this client's wire version: {problem}")]
    Version {
        /// Where it is.
        address: Address,
        /// In the node's words.
        problem: String,
    },
    /// The node is there, shared memory was insisted on, and cannot be.
    #[error("no shared memory with the node at {address}: {problem}; or let the transport be auto")]
    NoSharedMemory {
        /// Where it is.
        address: Address,
        /// Why.
        problem: String,
    },
    /// A thread or a random number could not be had.
    #[error("cannot set up the client: {0}")]
    System(#[from] io::Error),
}

/// The node is there and refuses the namespace, or the memory is closed.
#[derive(Debug, thiserror::Error)]
#[error("the namespace is refused: {problem}")]
pub struct AttachRefused {
    /// The difference, in the node's words; or that the memory is closed.
    pub problem: String,
}

/// A call that has no outcome.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// More than a call may carry.
    #[error("{found} keys in one call, at most {KEYS_MAX} are allowed: split it")]
    TooManyKeys {
        /// In the call.
        found: usize,
    },
    /// A block of no bytes, or of more than 4 GiB.
    #[error("item {index} has a buffer of {found} bytes: give 1 to 4294967295")]
    Length {
        /// Which item.
        index: usize,
        /// Its length.
        found: usize,
    },
    /// As many as one memory may have.
    #[error("{SUBSCRIPTIONS_MAX} subscriptions of this memory are open, no more may be: close one")]
    TooManySubscriptions,
    /// A setting or argument that cannot be.
    #[error("{0}")]
    Misuse(&'static str),
    /// After `close`.
    #[error("the memory is closed: connect again")]
    Closed,
    /// The node did not do it; why, in the words of a miss.
    #[error("not done: {0:?}")]
    NotDone(MissReason),
    /// The node tried and failed, or may not.
    #[error("the node did not do it: {0}")]
    Refused(String),
}
