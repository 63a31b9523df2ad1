//! What a fleet is started with.

use std::sync::Arc;

use super::names::resolve;
use super::{Fleet, FleetTiming, Leases, Legs, Member, Roster, Watch};
use crate::address::{Address, AddressError};
use crate::client::remote::Remote;
use crate::client::stats::Counts;
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

    /// The way to the node of this name.
    pub(super) fn remote(
        &self,
        address: Address,
        counts: &Arc<Counts>,
    ) -> Result<Remote, ConnectError> {
        Remote::of_fleet(&ConnectConfig { address, ..self.each.clone() }, counts.clone())
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
        let mut remotes = Vec::new();
        for (name, address) in addresses(&config.seeds, until.is_some()) {
            remotes.push((name, config.remote(address, &counts)?));
        }
        if let Some(until) = until {
            let first = |(_, remote): &(String, Remote)| remote.connect_first(until);
            let first = &first;
            let tried = legs.run(remotes.iter().map(|remote| move || first(remote)).collect());
            let all = tried.iter().all(Result::is_err);
            for error in tried.into_iter().filter_map(Result::err) {
                let hopeless = matches!(
                    error,
                    ConnectError::Config { .. }
                        | ConnectError::PathTooLong { .. }
                        | ConnectError::NotASocket { .. }
                );
                if all || hopeless {
                    return Err(error);
                }
            }
        }
        let now = std::time::Instant::now();
        let member = |(name, remote)| Arc::new(Member::new(name, Box::new(remote), false, now));
        let members = remotes.into_iter().map(member).collect();
        let roster = Arc::new(Roster::new(members, config.timing));
        let watch = Watch::start(&roster, &legs, config, &counts);
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
            .map_err(std::io::Error::from)?;
        let leases = Leases::new(u64::from_le_bytes(random));
        Ok(Fleet { process: ProcessId::here(), roster, legs, leases, counts, watch })
    }
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
