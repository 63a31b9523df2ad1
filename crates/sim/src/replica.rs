//! One engine: its own memory, and its prefills one after the other.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::costs::Links;
use crate::hierarchy::Hierarchy;
use crate::memory::Memory;

/// A request whose blocks are on their way, or here, and whose prefill has not begun.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waiting {
    /// When all that it restores is here.
    pub ready_s: f64,
    /// Its number among all requests.
    pub request: usize,
    /// How long its prefill takes.
    pub prefill_s: f64,
}

impl Eq for Waiting {}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.ready_s.total_cmp(&other.ready_s).then(self.request.cmp(&other.request))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An engine. It prefills one request at a time, in the order in which they become ready: one that
/// waits for its blocks holds up no other.
pub struct Replica {
    /// Device and host memory.
    pub own: Hierarchy,
    /// A memory of its own behind those, if none is shared.
    pub local: Option<Box<dyn Memory + Send>>,
    /// Links to all memory of its own.
    pub links: Links,
    waiting: BinaryHeap<Reverse<Waiting>>,
    waiting_s: f64,
    free_s: f64,
    /// Tokens computed here, ever.
    pub computed_tokens: u64,
}

impl Replica {
    /// One that has nothing to do.
    pub fn new(own: Hierarchy, local: Option<Box<dyn Memory + Send>>) -> Replica {
        Replica {
            own,
            local,
            links: Links::default(),
            waiting: BinaryHeap::new(),
            waiting_s: 0.0,
            free_s: 0.0,
            computed_tokens: 0,
        }
    }

    /// Takes a request.
    pub fn push(&mut self, waiting: Waiting) {
        self.waiting_s += waiting.prefill_s;
        self.waiting.push(Reverse(waiting));
    }

    /// Begins what is ready by `now_s`, of which nothing that arrives later can come before;
    /// tells of each when it began.
    pub fn advance(&mut self, now_s: f64, mut began: impl FnMut(&Waiting, f64)) {
        while let Some(Reverse(next)) =
            self.waiting.peek().copied().filter(|w| w.0.ready_s <= now_s)
        {
            self.waiting.pop();
            let start_s = self.free_s.max(next.ready_s);
            self.free_s = start_s + next.prefill_s;
            self.waiting_s -= next.prefill_s;
            began(&next, start_s);
        }
        if self.waiting.is_empty() {
            self.waiting_s = 0.0; // sums of floats keep what rounding left
        }
    }

    /// Seconds of prefill that it has still to do.
    pub fn queue_s(&self, now_s: f64) -> f64 {
        (self.free_s - now_s).max(0.0) + self.waiting_s
    }
}
