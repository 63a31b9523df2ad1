//! One number for the leases that several nodes gave to one lookup.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use keepwarm_store::outcome::LEASE_TOTAL_MAX;
use keepwarm_store::types::LeaseId;

use super::members::Member;

/// Lookups whose leases are remembered at once; those of one more end by their time alone.
const LEASES_MAX: usize = 4096;

/// The leases of one lookup, by node.
pub(super) type Parts = Vec<(Arc<Member>, LeaseId)>;

/// What the numbers stand for.
pub(super) struct Leases {
    state: Mutex<State>,
}

struct State {
    next: u64,
    /// With the moment after which none of them can hold.
    held: HashMap<u64, (Parts, Instant)>,
}

impl Leases {
    /// `first` is drawn at random, so that a number of another process means nothing here.
    pub(super) fn new(first: u64) -> Leases {
        Leases { state: Mutex::new(State { next: first, held: HashMap::new() }) }
    }

    /// A number for them; `None`: too many are remembered.
    pub(super) fn keep(&self, parts: Parts, now: Instant) -> Option<LeaseId> {
        let mut state = self.lock();
        if state.held.len() >= LEASES_MAX {
            state.held.retain(|_, (_, over)| *over > now);
        }
        if state.held.len() >= LEASES_MAX {
            return None;
        }
        let id = state.next;
        state.next = state.next.wrapping_add(1);
        let over = now + LEASE_TOTAL_MAX + Duration::from_secs(1);
        state.held.insert(id, (parts, over));
        Some(LeaseId(id))
    }

    pub(super) fn of(&self, lease: LeaseId) -> Option<Parts> {
        self.lock().held.get(&lease.0).map(|(parts, _)| parts.clone())
    }

    pub(super) fn forget(&self, lease: LeaseId) -> Option<Parts> {
        self.lock().held.remove(&lease.0).map(|(parts, _)| parts)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
