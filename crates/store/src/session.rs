//! One client's view of the store.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{AttachError, StoreError};
use crate::guards::ReadPin;
use crate::outcome::{Attached, BlockPut, Lookup, Reported, Reserve};
use crate::store::Store;
use crate::types::{
    BlockKey, Epoch, Generation, Instant, LeaseId, MissReason, NamespaceId, ShedReason,
};

/// One connection's or embedded handle's view. May use only the namespaces that it attached;
/// dropping it releases its leases. Every call is short and never waits for another's bytes.
#[derive(Debug)]
pub struct Session {
    pub(crate) store: Arc<Store>,
}

#[allow(unused_variables)]
impl Session {
    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Makes a namespace usable for this session. A larger epoch is adopted durably first; with a
    /// smaller one the answer's epoch tells the node's.
    ///
    /// # Errors
    /// The encoding, the tenant, the key check, or the limit on namespaces.
    pub fn attach(
        &self,
        encoding: &[u8],
        key_check: [u8; 8],
        epoch: Epoch,
    ) -> Result<Attached, AttachError> {
        Err(AttachError::UnknownTenant(String::new()))
    }

    /// Which of `keys` (a prompt's blocks from `first_position` on) are here: one pass, not a use.
    /// With `lease`, all hits stay readable that long (at most 10 s), caps permitting.
    pub fn lookup(
        &self,
        ns: NamespaceId,
        epoch: Epoch,
        keys: &[BlockKey],
        first_position: u64,
        lease: Option<Duration>,
    ) -> Lookup {
        Lookup {
            prefix: 0,
            hits: vec![None; keys.len()],
            miss: (!keys.is_empty()).then_some(MissReason::Absent),
            lease: None,
            lease_ms: 0,
            restore_ns: 0,
            epoch,
            incarnation: self.store.incarnation(),
        }
    }

    /// Holds one part still for reading.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(
        &self,
        ns: NamespaceId,
        epoch: Epoch,
        key: BlockKey,
        part: u8,
    ) -> Result<ReadPin, MissReason> {
        Err(MissReason::Absent)
    }

    /// Asks for space for one part of a block.
    pub fn reserve(&self, ns: NamespaceId, epoch: Epoch, put: BlockPut) -> Reserve {
        Reserve::Shed(ShedReason::Busy)
    }

    /// Marks blocks as used, the last key first, so that a prompt's head leaves last. Returns how
    /// many were here.
    pub fn touch(&self, ns: NamespaceId, epoch: Epoch, keys: &[BlockKey]) -> u32 {
        0
    }

    /// Makes a lease hold for `hold` from now (at most 10 s, and 60 s from its grant in all).
    /// False when it has ended or is not this session's.
    pub fn renew(&self, lease: LeaseId, hold: Duration) -> bool {
        false
    }

    /// Ends a lease. Harmless when it has ended or is not this session's.
    pub fn release(&self, lease: LeaseId) {}

    /// A reader found bytes that do not match their checksum: hashes them again in place.
    pub fn report(
        &self,
        ns: NamespaceId,
        key: BlockKey,
        part: u8,
        generation: Generation,
    ) -> Reported {
        Reported::Gone
    }

    /// Removes blocks, and every memory of them. Returns how many were here.
    pub fn drop_keys(&self, ns: NamespaceId, keys: &[BlockKey]) -> u32 {
        0
    }

    /// Removes all blocks of the namespace at once. Returns how many were here.
    pub fn drop_namespace(&self, ns: NamespaceId) -> u64 {
        0
    }

    /// Adopts `epoch` durably if it is larger than the namespace's; hides all older blocks at
    /// once. Returns the namespace's epoch.
    ///
    /// # Errors
    /// The namespace is not attached, or the epoch could not be made durable.
    pub fn bump_epoch(&self, ns: NamespaceId, epoch: Epoch) -> Result<Epoch, StoreError> {
        Err(StoreError::NotAttached(ns.0))
    }

    /// Waits until no lease or read of an epoch older than `epoch` is left in the namespace, or
    /// the store's clock passes `deadline`. True when none is left.
    pub fn wait_epoch_quiet(&self, ns: NamespaceId, epoch: Epoch, deadline: Instant) -> bool {
        true
    }
}
