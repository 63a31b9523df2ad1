//! Which node a run of blocks belongs to: weighted rendezvous hashing. Pure: knows names, weights
//! and run heads, and nothing of connections.
//!
//! ```text
//! id(node)          = XXH3-64(name), the name as configured
//! h(head, node)     = mix(bytes 8..16 of head, little-endian, xor id)     splitmix64's finaliser
//! u                 = (⌊h / 2^11⌋ + ½) / 2^53                            in (0, 1)
//! score(head, node) = -weight / ln(u)                                    the highest has the run
//! ```
//!
//! A node's share is its weight over the sum of weights, and when a node joins, leaves or changes
//! its weight, runs move to or from that node alone. These formulas are a contract between clients
//! of all versions: who computes otherwise finds nothing.

use keepwarm_store::checksum::xxh3_64;
use keepwarm_store::types::BlockKey;

/// A node's stable name, hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(pub(super) u64);

impl NodeId {
    pub(super) fn of(name: &str) -> NodeId {
        NodeId(xxh3_64(name.as_bytes()))
    }
}

/// One node's claim to runs; a weight of 0 is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Seat {
    pub(super) id: NodeId,
    /// Of new runs.
    pub(super) puts: f64,
    /// Once everything has settled: differs while a node drains or its share grows.
    pub(super) settled: f64,
}

/// The nodes of one run, as places in the list of seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Homes {
    /// Where it is put, and read first.
    pub(super) put: usize,
    /// Where it may lie too.
    pub(super) also: Option<usize>,
}

/// The homes of the run with this head; none without nodes.
pub(super) fn homes(head: BlockKey, seats: &[Seat]) -> Option<Homes> {
    let settled = best(head, seats, |seat| seat.settled);
    let put = best(head, seats, |seat| seat.puts).or(settled);
    // With every node gone each run still has a place, where calls for it miss.
    let put = put.or_else(|| best(head, seats, |_| 1.0))?;
    Some(Homes { put, also: settled.filter(|settled| *settled != put) })
}

fn best(head: BlockKey, seats: &[Seat], weight: impl Fn(&Seat) -> f64) -> Option<usize> {
    let mut best: Option<(f64, NodeId, usize)> = None;
    for (place, seat) in seats.iter().enumerate() {
        let weight = weight(seat);
        if weight > 0.0 {
            let score = score(head, seat.id, weight);
            if best.is_none_or(|(other, id, _)| (score, seat.id) > (other, id)) {
                best = Some((score, seat.id, place));
            }
        }
    }
    best.map(|(_, _, place)| place)
}

pub(super) fn score(head: BlockKey, node: NodeId, weight: f64) -> f64 {
    let [.., a, b, c, d, e, f, g, h] = head.0;
    let hash = mix(u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ node.0);
    let unit = ((hash >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    -weight / unit.ln()
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
