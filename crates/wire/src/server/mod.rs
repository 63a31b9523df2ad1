//! What a node runs: accepts clients on its socket and serves the store to them.
//!
//! One thread per connection: a call moves megabytes between one socket and the arena, so a thread
//! that does so without yielding is what a reactor would have to spawn anyway, and its stack is the
//! only state to bound. `conversation.rs` is one connection; `node.rs` what all of them share.

mod access;
mod config;
mod conversation;
mod counts;
mod doors;
mod ending;
mod epochs;
mod follows;
mod greeting;
mod listener;
mod node;
mod peer_user;
mod principals;
mod reads;
mod sessions;
mod shared;
mod socket_file;
mod staged;
mod told;
mod watch;
mod writes;

pub use config::{ServerConfig, ServerError};
pub use conversation::serve;
pub use ending::Ending;
pub use node::Node;
pub use principals::{
    PRINCIPALS_MAX, Principal, Principals, PrincipalsError, Right, Rights, Tenants,
};

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use keepwarm_store::Store;

use self::access::Access;
use self::doors::{Door, LISTEN_MAX};
use self::listener::Listener;
use self::node::Phase;
use self::socket_file::SocketFile;
use crate::address::Address;
use crate::client::NodeStat;
use crate::deadline::Deadline;
use crate::housekeeping::Housekeeper;
use crate::process::ProcessId;

/// How long `stop` waits for threads that are in the middle of something short.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// A running server. Dropping it stops it. It belongs to the process that started it: in a forked
/// child it does nothing and has no figures, because its threads are not there and its locks may
/// be held by them.
pub struct Server {
    listener: Arc<Listener>,
    socket_file: Arc<SocketFile>,
    addresses: Vec<Address>,
    house: Option<Housekeeper>,
    accepting: Option<JoinHandle<()>>,
    process: ProcessId,
}

impl Server {
    /// Binds the socket and what else it listens on, and starts to serve and to keep house.
    ///
    /// # Errors
    /// A setting out of range, a path that cannot be bound or is in use, no threads.
    pub fn start(store: Arc<Store>, config: ServerConfig) -> Result<Server, ServerError> {
        check(&config)?;
        let access = load_access(&config, config.principals.clone())?;
        let mode = if config.principals.have_uids() { 0o666 } else { 0o600 };
        let mut doors = Vec::with_capacity(config.listen.len() + 1);
        for address in &config.listen {
            doors.push(Door::tcp(address)?);
        }
        let (socket_file, socket) = SocketFile::bind(&config.path, mode)?;
        let socket_file = Arc::new(socket_file);
        doors.insert(0, Door::unix(socket, Address::from(&config.path)));
        let addresses = doors.iter().map(|door| door.address.clone()).collect();
        let started = (|| {
            let house = Housekeeper::start(&store)?;
            let node = Node::new(store, config);
            node.set_access(access);
            let listener = Arc::new(Listener::new(node));
            let accepting = listener.clone().start(socket_file.clone(), doors)?;
            Ok((house, listener, accepting))
        })();
        match started {
            Ok((house, listener, accepting)) => {
                let (house, accepting) = (Some(house), Some(accepting));
                let process = ProcessId::here();
                Ok(Server { listener, socket_file, addresses, house, accepting, process })
            }
            Err(error) => {
                socket_file.remove();
                Err(ServerError::Thread(error))
            }
        }
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.listener.node.config.path
    }

    /// Where it listens: the socket first, then as given, with the ports that the system chose.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        if self.is_inherited() { 0 } else { self.listener.connections() }
    }

    /// The figures that a client's `stat` gets, without a connection.
    pub fn stat(&self) -> NodeStat {
        if self.is_inherited() {
            return NodeStat(Vec::new());
        }
        NodeStat(counts::figures(&self.listener.node))
    }

    /// Changes how long a connection may ask for nothing; from its next wait on.
    ///
    /// # Errors
    /// A time of zero.
    pub fn set_idle(&self, idle: Duration) -> Result<(), ServerError> {
        if idle.is_zero() {
            let (setting, want) = ("idle", "a time above zero");
            return Err(ServerError::Config { setting, found: String::from("0"), want });
        }
        self.listener.node.set_idle(idle);
        Ok(())
    }

    /// Reads certificates and keys again and takes other principals. Whoever would not be let in
    /// any more, or as somebody else, is ended.
    ///
    /// # Errors
    /// A file is not what it should be, or nobody could come in over TLS: then nothing changes.
    pub fn reload_access(&self, principals: Principals) -> Result<(), ServerError> {
        if self.is_inherited() {
            return Ok(());
        }
        let node = &self.listener.node;
        node.set_access(load_access(&node.config, principals)?);
        self.listener.end_unwelcome();
        Ok(())
    }

    /// Why the node can no longer be reached, if so: its operator ends it then.
    pub fn lost(&self) -> Option<String> {
        if self.is_inherited() { None } else { self.listener.node.lost() }
    }

    /// Goes down gently: no new clients, no new puts; calls under way have `time` to finish, and
    /// their connections end with them. True: all did. `stop` comes next.
    pub fn drain(&self, time: Duration) -> bool {
        if self.is_inherited() {
            return false;
        }
        self.socket_file.remove();
        self.listener.node.advance(Phase::Draining);
        self.listener.end_idle();
        self.listener.wait_until_empty(Deadline::after(time))
    }

    /// Tells clients of several nodes what share this one wants, and whether to put elsewhere
    /// because it is about to go. It serves on, reads and puts alike: they move away by themselves.
    pub fn announce(&self, weight_permille: u32, draining: bool) {
        if !self.is_inherited() {
            self.listener.node.announce(weight_permille, draining);
        }
    }

    /// Ends all connections and threads, and removes the socket if it is still this server's.
    pub fn stop(self) {}

    /// Whether this is a forked child's copy.
    fn is_inherited(&self) -> bool {
        self.process != ProcessId::here()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let (accepting, house) = (self.accepting.take(), self.house.take());
        if self.is_inherited() {
            // With the listener the store stays: its locks, too, belong to the parent's threads.
            std::mem::forget((self.listener.clone(), accepting, house));
            return;
        }
        self.socket_file.remove();
        self.listener.node.advance(Phase::Stopped);
        self.listener.end_all();
        if let Some(accepting) = accepting {
            // A panic in there was reported by the panic hook already.
            let _ = accepting.join();
        }
        // Once more: one may have been accepted in between.
        self.listener.end_all();
        self.listener.wait_until_empty(Deadline::after(STOP_WAIT));
        self.listener.node.end_sessions();
        if let Some(mut house) = house {
            house.stop();
        }
    }
}

fn load_access(config: &ServerConfig, principals: Principals) -> Result<Access, ServerError> {
    let under_tls = |address: &&Address| matches!(address, Address::Tls { .. });
    let Some(address) = config.listen.iter().find(under_tls) else {
        return Ok(Access { principals, tls: None });
    };
    if principals.are_none() {
        return Err(ServerError::Nobody { address: address.clone() });
    }
    let files = config.tls.clone().unwrap_or_default();
    let tls = Some(files.node(principals.have_tokens())?);
    Ok(Access { principals, tls })
}

fn check(config: &ServerConfig) -> Result<(), ServerError> {
    let refuse = |setting, found: String, want| Err(ServerError::Config { setting, found, want });
    if !(1..=16_384).contains(&config.clients_max) {
        return refuse("clients_max", config.clients_max.to_string(), "1 to 16384");
    }
    if config.listen.len() > LISTEN_MAX {
        return refuse("listen", format!("{} addresses", config.listen.len()), "at most 15");
    }
    for (setting, time) in [
        ("idle", config.idle),
        ("handshake", config.handshake),
        ("stall", config.stall),
        ("heartbeat", config.heartbeat),
    ] {
        if time.is_zero() {
            return refuse(setting, String::from("0"), "a time above zero");
        }
    }
    Ok(())
}
