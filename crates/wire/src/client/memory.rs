//! [`Memory`]: a handle on a store, cheap to clone, safe across `fork`.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use keepwarm_store::Store;
use keepwarm_store::identity::NamespaceSpec;
use keepwarm_store::types::{Epoch, MissReason, Terms};

use super::events::Seats;
use super::fleet::{Fleet, FleetConfig, NodeState};
use super::gone::Gone;
use super::inproc::InProc;
use super::remote::Remote;
use super::shm::Shm;
use super::stats::{Counts, add};
use super::transport::{Notes, SpaceCore, Transport, Unserved};
use super::{
    AttachRefused, ClientError, ClientStats, ConnectConfig, ConnectError, DEADLINE, Space,
    TransportChoice,
};
use crate::address::Address;
use crate::deadline::Deadline;
use crate::messages::StatValue;
use crate::process::ProcessId;

/// Whether calls are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthState {
    /// They are.
    Up,
    /// The node does not answer; calls miss at once, and a thread asks for it in the background.
    Down,
    /// After `close`.
    Closed,
}

/// How it stands with the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Whether calls are tried.
    pub state: HealthState,
    /// What went wrong last, even if it works again.
    pub last_error: Option<String>,
    /// `inproc`, `unix`, `shm`, `tcp`, `tls`.
    pub transport: &'static str,
    /// Why a faster way that could be is not taken.
    pub fallback: Option<String>,
    /// Of the node, once known.
    pub incarnation: Option<u64>,
    /// The node's name and process, once known.
    pub node: Option<(String, u32)>,
}

/// How it stands with one of several nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeHealth {
    /// Its address, by which blocks are placed.
    pub name: String,
    /// The way to it.
    pub health: Health,
    /// What that makes of its share.
    pub state: NodeState,
    /// Its part of what is placed now.
    pub share: f64,
    /// As it says itself; 1 is ordinary.
    pub weight: f64,
}

/// The node's figures.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStat(pub Vec<(String, StatValue)>);

impl NodeStat {
    /// One figure that is a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.0.iter().find_map(|(found, value)| match value {
            StatValue::Number(number) if found == name => Some(*number),
            _ => None,
        })
    }
}

/// A handle on a store: in this process, or of a node. Clones share connections.
#[derive(Clone)]
pub struct Memory {
    shared: Arc<Shared>,
}

impl Memory {
    /// A store in this process, without a server. Keeps house for it meanwhile.
    pub fn embedded(store: Arc<Store>) -> Memory {
        let transport = Box::new(InProc::new(&store));
        Memory { shared: Arc::new(Shared::new(Origin::Store(store), transport)) }
    }

    /// A node's store over its socket. A node that is not there is no error: calls miss with
    /// `store_down` until it is.
    ///
    /// # Errors
    /// An address that can never work, no access, no wire version in common, or a setting out of
    /// range.
    pub fn connect(config: ConnectConfig) -> Result<Memory, ConnectError> {
        let until = Deadline::after(config.deadline);
        let transport = transport(Remote::new(&config)?, &config, Some(until))?;
        Ok(Memory { shared: Arc::new(Shared::new(Origin::Node(config), transport)) })
    }

    /// Several nodes as one memory. Nodes that are not there are no error: what belongs to them
    /// misses.
    ///
    /// # Errors
    /// Settings that cannot be; what [`Memory::connect`] fails for, if it is so for every node.
    pub fn connect_fleet(config: FleetConfig) -> Result<Memory, ConnectError> {
        let until = Deadline::after(config.each.deadline);
        let transport = Box::new(Fleet::connected(&config, until)?);
        Ok(Memory { shared: Arc::new(Shared::new(Origin::Fleet(config), transport)) })
    }

    /// Opens one namespace. Without a reachable node this works too: calls miss until it joins,
    /// and if it is refused then, they miss with `identity` and [`Space::problem`] says why.
    ///
    /// The node's epoch, if larger, is adopted here and only here. A space that joins later keeps
    /// the epoch given, and misses with `epoch` where the node's is larger: attach again.
    ///
    /// # Errors
    /// The node is there and refuses: the difference is named. The memory is closed.
    pub fn attach(
        &self,
        spec: NamespaceSpec,
        key_check: [u8; 8],
        epoch: Epoch,
    ) -> Result<Space, AttachRefused> {
        self.attach_within(spec, key_check, epoch, DEADLINE)
    }

    /// As [`Memory::attach`], within a time of the caller's.
    ///
    /// # Errors
    /// As [`Memory::attach`].
    pub fn attach_within(
        &self,
        spec: NamespaceSpec,
        key_check: [u8; 8],
        epoch: Epoch,
        deadline: Duration,
    ) -> Result<Space, AttachRefused> {
        self.attach_on(spec, key_check, epoch, Terms::default(), deadline)
    }

    /// As [`Memory::attach_within`], on terms for the blocks that are stored from then on. The
    /// node's configuration bounds them, and the latest attach that names one decides.
    ///
    /// # Errors
    /// As [`Memory::attach`].
    pub fn attach_on(
        &self,
        spec: NamespaceSpec,
        key_check: [u8; 8],
        epoch: Epoch,
        terms: Terms,
        deadline: Duration,
    ) -> Result<Space, AttachRefused> {
        let core = SpaceCore {
            id: self.shared.spaces.fetch_add(1, Ordering::Relaxed),
            spec,
            key_check,
            terms,
            gone: Arc::default(),
            epoch: AtomicU32::new(epoch.0),
            joined: AtomicBool::new(false),
            attaching: AtomicBool::new(true),
            notes: Mutex::new(Notes::default()),
        };
        let begun = self.shared.begin(deadline);
        let (process, until) =
            begun.map_err(|closed| AttachRefused { problem: closed.to_string() })?;
        let attached = process.transport.attach(&core, until);
        core.attaching.store(false, Ordering::Release);
        match attached {
            Err(Unserved::Refused(problem)) => Err(AttachRefused { problem }),
            Err(Unserved::Missed(MissReason::Identity)) => {
                let problem = core.notes.lock().map(|notes| notes.problem.clone());
                Err(AttachRefused { problem: problem.ok().flatten().unwrap_or_default() })
            }
            Ok(()) | Err(Unserved::Missed(_)) => Ok(Space::new(self.shared.clone(), core)),
        }
    }

    /// The node's figures.
    ///
    /// # Errors
    /// The node did not answer in time, or the memory is closed.
    pub fn stat(&self, deadline: Duration) -> Result<NodeStat, ClientError> {
        let (process, until) = self.shared.begin(deadline)?;
        add(&process.counts.others, 1);
        Ok(process.transport.stat(until)?)
    }

    /// How it stands with the store.
    pub fn health(&self) -> Health {
        let mut health = self.shared.here().transport.health();
        if self.shared.closed.load(Ordering::Acquire) {
            health.state = HealthState::Closed;
        }
        health
    }

    /// How each of several nodes stands; empty for a memory of one.
    pub fn nodes(&self) -> Vec<NodeHealth> {
        self.shared.here().transport.nodes()
    }

    /// What this client has seen in this process.
    pub fn stats(&self) -> ClientStats {
        let process = self.shared.here();
        process.counts.read(process.transport.name())
    }

    /// Where the node is; nowhere for an embedded store.
    pub fn address(&self) -> Option<&Address> {
        match &self.shared.origin {
            Origin::Node(config) => Some(&config.address),
            Origin::Store(_) | Origin::Fleet(_) => None,
        }
    }

    /// Ends connections and threads. Calls under way finish by their deadlines; later ones are
    /// `ClientError::Closed`.
    pub fn close(&self) {
        if !self.shared.closed.swap(true, Ordering::AcqRel) {
            self.shared.here().transport.close();
        }
    }
}

/// The way to one node, the best there is to `remote`; with a time, one that has tried to reach it.
pub(super) fn transport(
    remote: Remote,
    config: &ConnectConfig,
    first: Option<Deadline>,
) -> Result<Box<dyn Transport>, ConnectError> {
    if let Some(until) = first {
        remote.connect_first(until)?;
    }
    match (&config.address, config.transport) {
        (Address::Unix(_), TransportChoice::Auto | TransportChoice::Shm) => {}
        (_, TransportChoice::Shm) => {
            let (setting, want) = ("transport", "auto, or the address of a unix socket");
            return Err(ConnectError::Config { setting, found: String::from("shm"), want });
        }
        _ => return Ok(Box::new(remote)),
    }
    let shm = Shm::over(remote);
    if let Some(until) = first {
        shm.connect_first(config, until)?;
    }
    Ok(Box::new(shm))
}

enum Origin {
    Store(Arc<Store>),
    Node(ConnectConfig),
    Fleet(FleetConfig),
}

/// What the clones of a memory and its spaces share.
///
/// A fork copies it with its locks as they happened to stand, and without its threads. So the
/// child never touches what its parent used: each process has its own [`Process`], found by its
/// id, and a child's hangs on its parent's. `OnceLock::get` never waits. Locks on this path are
/// the standard library's, which have no state outside of themselves.
pub(super) struct Shared {
    origin: Origin,
    first: Process,
    closed: AtomicBool,
    spaces: AtomicU64,
}

/// One process's way to the store.
pub(super) struct Process {
    id: ProcessId,
    pub(super) transport: Box<dyn Transport>,
    pub(super) counts: Arc<Counts>,
    pub(super) seats: Seats,
    child: OnceLock<Box<Process>>,
}

impl Process {
    fn new(transport: Box<dyn Transport>) -> Process {
        let counts = transport.counts();
        let (id, seats, child) = (ProcessId::here(), Seats::default(), OnceLock::new());
        Process { id, transport, counts, seats, child }
    }
}

impl Shared {
    fn new(origin: Origin, transport: Box<dyn Transport>) -> Shared {
        let first = Process::new(transport);
        Shared { origin, first, closed: AtomicBool::new(false), spaces: AtomicU64::new(1) }
    }

    /// This process's way.
    pub(super) fn here(&self) -> &Process {
        let id = ProcessId::here();
        let mut process = &self.first;
        while process.id != id {
            process = match process.child.get() {
                Some(child) => child,
                None => process.child.get_or_init(|| Box::new(Process::new(self.transport()))),
            };
        }
        process
    }

    /// A new transport, for a process that was forked.
    fn transport(&self) -> Box<dyn Transport> {
        match &self.origin {
            // The arena is shared with the parent, its bookkeeping is not: hands off.
            Origin::Store(_) => Box::new(Gone::new("the embedded store stayed in the parent")),
            Origin::Node(config) => {
                match Remote::new(config).and_then(|way| transport(way, config, None)) {
                    Ok(transport) => transport,
                    Err(_) => Box::new(Gone::new("no random numbers after the fork")),
                }
            }
            Origin::Fleet(config) => match Fleet::new(config) {
                Ok(fleet) => Box::new(fleet),
                Err(_) => Box::new(Gone::new("no random numbers after the fork")),
            },
        }
    }

    /// Starts a call.
    pub(super) fn begin(&self, deadline: Duration) -> Result<(&Process, Deadline), ClientError> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(ClientError::Closed),
            false => Ok((self.here(), Deadline::after(deadline))),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // In a child the parent's store must not even be taken apart.
        if let Origin::Store(store) = &self.origin
            && self.first.id != ProcessId::here()
        {
            std::mem::forget(store.clone());
        }
    }
}
