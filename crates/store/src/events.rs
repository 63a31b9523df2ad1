//! What happened to blocks, for routers: a bounded ring of events with sequence numbers.

use crate::types::{BlockKey, NamespaceId, Tier};

/// What happened to one block, or to all of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The block became visible.
    Stored {
        /// Its key.
        key: BlockKey,
        /// The engine's own name of it.
        engine_hash: Option<u64>,
    },
    /// The block left this tier.
    Removed {
        /// Its key.
        key: BlockKey,
        /// The engine's own name of it.
        engine_hash: Option<u64>,
        /// The tier that it left.
        tier: Tier,
    },
    /// Every block of the namespace became invisible at once.
    Cleared,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number; each is one more than the last.
    pub sequence: u64,
    /// The namespace, as this node numbers it.
    pub namespace: NamespaceId,
    /// What happened.
    pub kind: EventKind,
}

/// Which events a subscriber wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventFilter {
    /// All: for an operator's own router.
    All,
    /// One tenant's.
    Tenant(String),
    /// One namespace's.
    Namespace(NamespaceId),
}

/// What a subscription yields next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventBatch {
    /// Events in order; empty when none came in time. `next` is where to go on from.
    Events {
        /// The events.
        events: Vec<Event>,
        /// Sequence number of the next event that this subscription will look at.
        next: u64,
    },
    /// Forget all that was known: a snapshot follows, because the ring no longer holds what this
    /// subscriber has not seen (or it comes from another incarnation, or asked for none).
    Resync {
        /// The store's incarnation.
        incarnation: u64,
    },
    /// Blocks that are visible now, as `Stored` events without meaning in their order. Events that
    /// happened meanwhile follow after the last chunk; applying one twice does no harm.
    Snapshot {
        /// The blocks; their `sequence` is the one at which the snapshot began.
        events: Vec<Event>,
        /// Whether this was the last chunk.
        last: bool,
    },
}
