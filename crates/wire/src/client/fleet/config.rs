//! What a fleet is started with.

use std::sync::Arc;
use std::time::Instant;

use super::names::resolve;
use super::{Fleet, FleetTiming, Leases, Legs, Member, Roster, Watch};
use crate::address::{Address, AddressError};
use crate::client::memory::transport;
use crate::client::remote::Remote;
use crate::client::stats::Counts;
use crate::client::transport::Transport;
use crate::client::{ConnectConfig, ConnectError};
use crate::deadline::Deadline;
use crate::process::ProcessId;

/// Nodes that one memory may have.
pub(super) const NODES_MAX: usize = 256;

/// One node, or a name that stands for several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seed {
    /// A node. Its address as text is its name: clients that spell it differently place
    /// differently.
    Node(Address),
    /// `dns://name:port`: a node of plain TCP at each address of the name, asked for again and
    /// again.
    Name {
        /// The name.
        host: String,
        /// The port of all of them.
        port: u16,
    },
}

impl Seed {
    /// Reads one: an address, or `dns://name:port`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Seed, AddressError> {
        let Some(rest) = text.strip_prefix("dns://") else {
            return Address::parse(text).map(Seed::Node);
        };
        match Address::parse(&format!("tcp://{rest}")) {
            Ok(Address::Tcp { host, port }) => Ok(Seed::Name { host, port }),
            _ => Err(AddressError {
                text: text.to_owned(),
                problem: "is no name and port after dns://",
            }),
        }
    }
}

/// What a fleet is started with.
#[derive(Clone, Debug)]
pub struct FleetConfig {
    /// Its nodes; the order does not matter.
    pub seeds: Vec<Seed>,
    /// How each is connected to; the address is not used.
    pub each: ConnectConfig,
    /// See [`FleetTiming`].
    pub timing: FleetTiming,
}

impl FleetConfig {
    /// With the usual times.
    pub fn new(seeds: Vec<Seed>, each: ConnectConfig) -> FleetConfig {
        FleetConfig { seeds, each, timing: FleetTiming::default() }
    }

    fn check(&self) -> Result<(), ConnectError> {
        let refuse =
            |found: String, want| Err(ConnectError::Config { setting: "address", found, want });
        if !(1..=NODES_MAX).contains(&self.seeds.len()) {
            return refuse(format!("{} nodes", self.seeds.len()), "1 to 256 addresses");
        }
        for (place, seed) in self.seeds.iter().enumerate() {
            if self.seeds[..place].contains(seed) {
                return refuse(format!("{seed:?} twice"), "each node once");
            }
        }
        Ok(())
    }

    /// The way to one of the nodes; with a time, one that has tried to reach it.
    pub(super) fn transport(
        &self,
        address: Address,
        counts: &Arc<Counts>,
        first: Option<Deadline>,
    ) -> Result<Box<dyn Transport>, ConnectError> {
        let config = ConnectConfig { address, ..self.each.clone() };
        transport(Remote::of_fleet(&config, counts.clone())?, &config, first)
    }
}

impl Fleet {
    /// Connects nothing yet; names are asked for by a thread.
    ///
    /// # Errors
    /// Settings that cannot be.
    pub(in crate::client) fn new(config: &FleetConfig) -> Result<Fleet, ConnectError> {
        Fleet::made(config, None)
    }

    /// Tries every node once, all at once. Those that are not there are asked for in the
    /// background.
    ///
    /// # Errors
    /// Settings that cannot be; what no waiting will change, if it is so for all nodes.
    pub(in crate::client) fn connected(
        config: &FleetConfig,
        until: Deadline,
    ) -> Result<Fleet, ConnectError> {
        Fleet::made(config, Some(until))
    }

    fn made(config: &FleetConfig, until: Option<Deadline>) -> Result<Fleet, ConnectError> {
        config.check()?;
        let (counts, legs): (Arc<Counts>, Arc<Legs>) = Default::default();
        let nodes = addresses(&config.seeds, until.is_some());
        let connect = |address: &Address| config.transport(address.clone(), &counts, until);
        let connect = &connect;
        let tried = legs.run(nodes.iter().map(|(_, address)| move || connect(address)).collect());
        let none = tried.iter().all(Result::is_err);
        let (mut members, now) = (Vec::new(), Instant::now());
        for ((name, address), tried) in nodes.into_iter().zip(tried) {
            let transport = match tried {
                Ok(transport) => transport,
                Err(error) if none || is_hopeless(&error) => return Err(error),
                // The others serve; it is asked for like one that is not there.
                Err(_) => config.transport(address, &counts, None)?,
            };
            members.push(Arc::new(Member::new(name, transport, false, now)));
        }
        let roster = Arc::new(Roster::new(members, config.timing));
        let watch = Watch::start(&roster, &legs, config, &counts);
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        let leases = Leases::new(u64::from_le_bytes(random));
        Ok(Fleet { process: ProcessId::here(), roster, legs, leases, counts, watch })
    }
}

/// Whether the setting is wrong, and not the node.
fn is_hopeless(error: &ConnectError) -> bool {
    use ConnectError::{Config, NotASocket, PathTooLong};
    matches!(error, Config { .. } | PathTooLong { .. } | NotASocket { .. })
}

/// Names and addresses of the nodes; `resolved`: of those behind names too.
fn addresses(seeds: &[Seed], resolved: bool) -> Vec<(String, Address)> {
    let mut found: Vec<(String, Address)> = Vec::new();
    for seed in seeds {
        let more = match seed {
            Seed::Node(address) => vec![address.clone()],
            Seed::Name { host, port } if resolved => resolve(host, *port).unwrap_or_default(),
            Seed::Name { .. } => Vec::new(),
        };
        for address in more {
            let name = address.to_string();
            if found.len() < NODES_MAX && !found.iter().any(|(known, _)| *known == name) {
                found.push((name, address));
            }
        }
    }
    found
}
