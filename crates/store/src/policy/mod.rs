//! Which block leaves first. One policy file is one algorithm; none knows the store.
//!
//! A policy orders slots by links that its caller keeps (two for each slot, and a byte for the
//! policy's own use), so that it allocates nothing, and a simulator runs the very same code over
//! links of its own. There is one policy for each tenant.

mod adaptive;
mod fifo;
mod list;
mod lru;
mod s3fifo;

pub use adaptive::Adaptive;
pub use fifo::Fifo;
pub use lru::Lru;
pub use s3fifo::S3Fifo;

use crate::config::PolicyKind;

/// No slot: the end of a list.
pub const NO_SLOT: u32 = u32::MAX;

/// The bit of a slot's byte that says that a scan passed over it since it was last rewound for it.
/// Whoever lets go of what held the slot in place calls `rewind` if it is set.
pub const SKIPPED: u8 = 0x40;

/// Where a policy keeps its order: two links and one byte for each slot, owned by the caller. The
/// caller never changes them between a slot's `insert` and its leaving the policy.
pub trait Links {
    /// Neighbour towards the front.
    fn prev(&self, slot: u32) -> u32;
    /// Neighbour towards the back.
    fn next(&self, slot: u32) -> u32;
    /// Sets the neighbour towards the front.
    fn set_prev(&mut self, slot: u32, prev: u32);
    /// Sets the neighbour towards the back.
    fn set_next(&mut self, slot: u32, next: u32);
    /// The policy's byte.
    fn bits(&self, slot: u32) -> u8;
    /// Sets the policy's byte.
    fn set_bits(&mut self, slot: u32, bits: u8);
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its bytes were given to someone: used again for certain.
    Read,
    /// Its user says so: used again, unless it was stored by the same request.
    Touched,
    /// Stored or read just now along with the rest of its prompt: not one more use, but its place
    /// is between theirs.
    Arranged,
}

/// The order in which blocks leave.
///
/// Every policy passes `tests/policy_conformance.rs`.
pub trait Policy {
    /// Takes a slot in. The caller guarantees that it is in no policy. `left` says how
    /// many blocks this policy has let go since it let go of this one; none: never, or too long
    /// ago to know. The policy MUST link it, and MUST NOT fail.
    fn insert<L: Links>(&mut self, links: &mut L, slot: u32, left: Option<u32>);

    /// The block was used. The caller guarantees that the slot is in this policy, and calls this
    /// for uses only, a prompt's last block first: a lookup is none. The policy MUST keep the slot.
    fn touch<L: Links>(&mut self, links: &mut L, slot: u32, how: Use);

    /// The block left for a reason of the caller's. The caller guarantees that the slot is in this
    /// policy. The policy MUST forget it in O(1).
    fn remove<L: Links>(&mut self, links: &mut L, slot: u32);

    /// Picks the slot that leaves next among those that `may_leave`, and forgets it. The policy
    /// MUST look at no more than `looks` slots; MUST NOT change a refused slot's place, since a
    /// lookup's lease is not a use; MUST go on behind the refused ones in the next call (else a
    /// few leased blocks at the end would cost each put its whole budget) until `rewind`; MUST NOT
    /// let go of a slot that may not leave; and, given four times as many looks as it has slots
    /// and four more, MUST find one that may leave if there is one. None: nothing found.
    fn evict<L: Links>(
        &mut self,
        links: &mut L,
        looks: u32,
        may_leave: impl FnMut(&L, u32) -> bool,
    ) -> Option<u32>;

    /// A slot that was refused may leave now: the next `evict` begins at the end again. O(1).
    fn rewind(&mut self);

    /// Slots in this policy.
    fn len(&self) -> u32;

    /// Whether it has none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Visits every slot from the front (leaves last) to the back, at most `len` of them; for
    /// checks. False when the links do not add up.
    fn visit<L: Links>(&self, links: &L, visitor: impl FnMut(u32)) -> bool;
}

/// One of the policies, chosen at start. An enum rather than a trait object: a touch is a few
/// nanoseconds of link writing, which calls through a table would double.
#[derive(Debug)]
pub enum AnyPolicy {
    /// See [`Adaptive`].
    Adaptive(Adaptive),
    /// See [`Lru`].
    Lru(Lru),
    /// See [`Fifo`].
    Fifo(Fifo),
    /// See [`S3Fifo`].
    S3Fifo(S3Fifo),
}

impl AnyPolicy {
    /// An empty policy of this kind.
    pub fn new(kind: PolicyKind) -> AnyPolicy {
        match kind {
            PolicyKind::Adaptive => AnyPolicy::Adaptive(Adaptive::default()),
            PolicyKind::Lru => AnyPolicy::Lru(Lru::default()),
            PolicyKind::Fifo => AnyPolicy::Fifo(Fifo::default()),
            PolicyKind::S3Fifo => AnyPolicy::S3Fifo(S3Fifo::default()),
        }
    }
}

macro_rules! dispatch {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            AnyPolicy::Adaptive($policy) => $call,
            AnyPolicy::Lru($policy) => $call,
            AnyPolicy::Fifo($policy) => $call,
            AnyPolicy::S3Fifo($policy) => $call,
        }
    };
}

impl Policy for AnyPolicy {
    fn insert<L: Links>(&mut self, links: &mut L, slot: u32, left: Option<u32>) {
        dispatch!(self, policy => policy.insert(links, slot, left))
    }

    #[inline]
    fn touch<L: Links>(&mut self, links: &mut L, slot: u32, how: Use) {
        dispatch!(self, policy => policy.touch(links, slot, how))
    }

    fn remove<L: Links>(&mut self, links: &mut L, slot: u32) {
        dispatch!(self, policy => policy.remove(links, slot))
    }

    fn evict<L: Links>(
        &mut self,
        links: &mut L,
        looks: u32,
        may_leave: impl FnMut(&L, u32) -> bool,
    ) -> Option<u32> {
        dispatch!(self, policy => policy.evict(links, looks, may_leave))
    }

    #[inline]
    fn rewind(&mut self) {
        dispatch!(self, policy => policy.rewind())
    }

    fn len(&self) -> u32 {
        dispatch!(self, policy => policy.len())
    }

    fn visit<L: Links>(&self, links: &L, visitor: impl FnMut(u32)) -> bool {
        dispatch!(self, policy => policy.visit(links, visitor))
    }
}
