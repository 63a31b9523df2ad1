//! How to reach a node.

use std::time::Duration;

use crate::address::Address;
use crate::credentials::Credentials;

/// What a call may take when its caller has no better idea.
pub const DEADLINE: Duration = Duration::from_secs(1);

/// Subscriptions of one memory in one process at once. Over a socket each has a connection of its
/// own, beside those of `connections_max`.
pub const SUBSCRIPTIONS_MAX: usize = 16;

/// How bytes are to travel between this process and a node on its machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// By shared memory where the node gives its arena out, else over the socket.
    #[default]
    Auto,
    /// By shared memory; a node that is there and does not give its arena out is an error at start.
    Shm,
    /// Over the socket.
    Unix,
}

/// How to reach a node over its socket.
#[derive(Clone, Debug)]
pub struct ConnectConfig {
    /// Where the node is.
    pub address: Address,
    /// What it shows the node.
    pub credentials: Credentials,
    /// Connections for calls at once, 1 to 64; subscriptions have their own. Too few: threads wait
    /// for each other's transfers; too many: the node's limit on clients is reached sooner.
    pub connections_max: usize,
    /// Connections that one large batch over TCP is spread over, 1 to 16: at most as many as are
    /// free, and as there are cores. One: a long fat network is not filled, and TLS takes one core;
    /// many: small transfers of others wait.
    pub stripes: usize,
    /// What connecting at start may take; afterwards each call's own deadline holds.
    pub deadline: Duration,
    /// For the node's logs.
    pub name: String,
    /// How bytes travel.
    pub transport: TransportChoice,
}

impl ConnectConfig {
    /// Defaults for all but the address.
    pub fn new(address: impl Into<Address>) -> ConnectConfig {
        ConnectConfig {
            address: address.into(),
            credentials: Credentials::default(),
            connections_max: 8,
            stripes: 4,
            deadline: DEADLINE,
            name: String::from("keepwarm"),
            transport: TransportChoice::default(),
        }
    }
}
