//! What a server has seen.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use keepwarm_store::SystemClock;
use keepwarm_store::log::journal;
use keepwarm_store::types::Clock;

use super::node::Node;
use super::principals::{Principal, Right};
use crate::figures::{Figures, of_store, of_tenants};
use crate::frames::Opcode;
use crate::messages::StatValue;

/// Counts since the start; figures carry the same names.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicU64,
    pub(super) accepted: AtomicU64,
    pub(super) refused_clients: AtomicU64,
    pub(super) refused_peers: AtomicU64,
    pub(super) refused_versions: AtomicU64,
    pub(super) refused_rights: AtomicU64,
    pub(super) refused_tls: AtomicU64,
    pub(super) violations: AtomicU64,
    pub(super) stalled: AtomicU64,
    pub(super) throttled: AtomicU64,
    pub(super) idle_closed: AtomicU64,
    pub(super) bytes_sent: AtomicU64,
    pub(super) bytes_received: AtomicU64,
    pub(super) puts_corrupt: AtomicU64,
    pub(super) system_calls: AtomicU64,
    /// Clients that map the arena.
    pub(super) arena_maps: AtomicU64,
    /// Of blocks whose place was told to a client that maps it.
    pub(super) bytes_located: AtomicU64,
    /// Of blocks taken out of stagings.
    pub(super) bytes_staged: AtomicU64,
    /// Of the stagings that are mapped.
    pub(super) stagings_bytes: AtomicU64,
    /// Located blocks whose client did not say in time that it had them.
    pub(super) holds_ended: AtomicU64,
    requests: [AtomicU64; Opcode::ALL.len()],
}

/// Adds to a count.
pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Counts {
    pub(super) fn request(&self, opcode: Opcode) {
        add(&self.requests[opcode as usize - 1], 1);
    }
}

/// What a principal may see: without the right `admin`, its own tenants' figures and who answers.
pub(super) fn figures_for(node: &Node, who: &Principal) -> Figures {
    if who.rights.has(Right::Admin) {
        return figures(node);
    }
    let mut stats = node.store.stats();
    stats.tenants.retain(|tenant| who.tenants.has(&tenant.name));
    stats.namespaces.retain(|namespace| who.tenants.has(&namespace.tenant));
    let mut figures = of_tenants(&stats);
    let incarnation = StatValue::Number(stats.incarnation);
    figures.push(("store.incarnation".into(), incarnation));
    figures.push(("server.node".into(), StatValue::Text(node.config.node.clone())));
    figures
}

/// The server's and its store's figures.
pub(super) fn figures(node: &Node) -> Figures {
    let counts = &node.counts;
    let mut figures = of_store(&node.store.stats());
    let mut number = |name: String, value: u64| {
        figures.push((format!("server.{name}"), StatValue::Number(value)));
    };
    number("pid".into(), std::process::id().into());
    number("clients_max".into(), node.config.clients_max as u64);
    number("loads_bytes".into(), node.loads_bytes());
    let announced = node.announcement();
    number("age_ms".into(), announced.age_ms);
    number("weight_permille".into(), announced.weight_permille.into());
    number("draining".into(), announced.draining.into());
    for (name, count) in [
        ("connections", &counts.connections),
        ("accepted", &counts.accepted),
        ("refused_clients", &counts.refused_clients),
        ("refused_peers", &counts.refused_peers),
        ("refused_versions", &counts.refused_versions),
        ("refused_rights", &counts.refused_rights),
        ("refused_tls", &counts.refused_tls),
        ("violations", &counts.violations),
        ("stalled", &counts.stalled),
        ("throttled", &counts.throttled),
        ("idle_closed", &counts.idle_closed),
        ("bytes_sent", &counts.bytes_sent),
        ("bytes_received", &counts.bytes_received),
        ("puts_corrupt", &counts.puts_corrupt),
        ("system_calls", &counts.system_calls),
        ("arena_maps", &counts.arena_maps),
        ("bytes_located", &counts.bytes_located),
        ("bytes_staged", &counts.bytes_staged),
        ("stagings_bytes", &counts.stagings_bytes),
        ("holds_ended", &counts.holds_ended),
    ] {
        number(name.into(), count.load(Ordering::Relaxed));
    }
    number("log_suppressed".into(), journal().suppressed());
    number("log_lost".into(), journal().lost());
    for opcode in Opcode::ALL {
        let count = counts.requests[opcode as usize - 1].load(Ordering::Relaxed);
        number(format!("requests.{}", crate::figures::snake(&format!("{opcode:?}"))), count);
    }
    figures.push(("server.node".into(), StatValue::Text(node.config.node.clone())));
    figures.push(("server.transport".into(), StatValue::Text("unix".into())));
    of_process(&mut figures, node);
    figures
}

/// What a client compares with its own: version and clocks; and where else the node listens.
fn of_process(figures: &mut Figures, node: &Node) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let listen: Vec<_> = node.config.listen.iter().map(ToString::to_string).collect();
    for (name, value) in [
        ("version", StatValue::Text(env!("CARGO_PKG_VERSION").into())),
        ("boottime_ns", StatValue::Number(SystemClock.now().0)),
        ("unix_ms", StatValue::Number(since.as_millis() as u64)),
        ("uid", StatValue::Number(rustix::process::geteuid().as_raw().into())),
        ("listen", StatValue::Text(listen.join(","))),
    ] {
        figures.push((format!("server.{name}"), value));
    }
}
