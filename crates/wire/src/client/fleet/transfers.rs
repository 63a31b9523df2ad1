//! Gets and puts on several nodes: each node's share as a call of its own, all at once.
//!
//! Ranges keep their owner: a share borrows the caller's buffers for as long as its leg runs, no
//! two shares of one pass have an item in common, and a pass is over before the next begins.

use keepwarm_store::types::{GetOutcome, MissReason};

use super::placement::{Homes, Seat, homes};
use crate::client::positions::Run;
use crate::client::{GetItem, PutItem};

/// Items that one node is to serve. Their pointers go to the thread of its leg.
pub(super) struct Share<I> {
    pub(super) node: usize,
    items: Vec<I>,
    /// Of each item in the call.
    places: Vec<usize>,
}

impl<I> Share<I> {
    pub(super) fn items(&self) -> &[I] {
        &self.items
    }

    pub(super) fn into_places(self) -> Vec<usize> {
        self.places
    }
}

// SAFETY: an item's pointer is used by the leg that has the share alone, and by the promise of
// `Space::get_into` the memory is writable by whoever serves the call until it returns; a leg ends
// before that (`tests/fleet.rs` checks every byte around every buffer).
unsafe impl Send for Share<GetItem> {}
// SAFETY: as above, for reading: `Space::put_from`.
unsafe impl Send for Share<PutItem> {}

/// Where each run lies now.
pub(super) fn homes_of(runs: &[Run], seats: &[Seat]) -> Vec<Option<Homes>> {
    runs.iter().map(|run| homes(run.head, seats)).collect()
}

/// The items of each node. `node` says where an item of a run goes, if anywhere.
pub(super) fn shares<I: Copy>(
    items: &[I],
    runs: &[Run],
    nodes: usize,
    node: impl Fn(usize, usize) -> Option<usize>,
) -> Vec<Share<I>> {
    let new = |node| Share { node, items: Vec::new(), places: Vec::new() };
    let mut shares: Vec<Share<I>> = (0..nodes).map(new).collect();
    for (at, run) in runs.iter().enumerate() {
        for place in run.items.clone() {
            if let Some(node) = node(at, place) {
                shares[node].items.push(items[place]);
                shares[node].places.push(place);
            }
        }
    }
    shares.retain(|share| !share.items.is_empty());
    shares
}

/// Whether another node may have the block that this one did not give.
pub(super) fn elsewhere(outcome: Option<GetOutcome>) -> bool {
    match outcome {
        None | Some(GetOutcome::Throttled) => true,
        Some(GetOutcome::Ok | GetOutcome::Pending) => false,
        Some(GetOutcome::Miss(reason)) => {
            !matches!(reason, MissReason::Identity | MissReason::Epoch | MissReason::Corrupt)
        }
    }
}
