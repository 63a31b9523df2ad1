//! Blocks that a batch of reads will come to, and that are on flash alone: they are on their way
//! before their turn. Which ones, the store's `ahead` says.

use keepwarm_store::Session;
use keepwarm_store::ahead::Window;
use keepwarm_store::types::{BlockKey, Epoch, NamespaceId};

/// Where a batch stands.
pub(crate) struct Ahead(Window);

impl Ahead {
    /// At a batch's first item; none without flash.
    pub(crate) fn of(session: &Session) -> Option<Ahead> {
        Some(Ahead(Window::new(session.prefetch_bytes()?)))
    }

    /// The batch comes to item `at`; `name` tells an item's key and bytes.
    pub(crate) fn come_to<T>(
        &mut self,
        session: &Session,
        (ns, epoch): (NamespaceId, Epoch),
        items: &[T],
        at: usize,
        name: impl Fn(&T) -> (BlockKey, u64),
    ) {
        self.0.come_to(items, at, name, |keys| session.prefetch(ns, epoch, keys).seen);
    }
}
