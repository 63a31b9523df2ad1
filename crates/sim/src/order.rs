//! The order in which a cache's blocks leave: the store's own policies, or LFU.

use keepwarm_store::PolicyKind;
use keepwarm_store::policy::{AnyPolicy, Links, Policy, Use};

use crate::lfu::Lfu;

/// What a node lets a policy look at for one block, so that policies with second chances are as
/// patient here as there.
const LOOKS_MAX: u32 = 4096;

/// Which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderKind {
    /// One of the store's, by its very code.
    Store(PolicyKind),
    /// See [`Lfu`].
    Lfu,
}

impl OrderKind {
    /// The order of this name; `default` names the store's default.
    pub fn named(name: &str) -> Option<OrderKind> {
        match name {
            "lfu" => Some(OrderKind::Lfu),
            name => PolicyKind::named(name).map(OrderKind::Store),
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            OrderKind::Store(kind) => kind.name(),
            OrderKind::Lfu => "lfu",
        }
    }

    /// All names, the default's first.
    pub fn names() -> Vec<&'static str> {
        PolicyKind::ALL.into_iter().map(PolicyKind::name).chain(["lfu"]).collect()
    }
}

/// One cache's order.
#[derive(Debug)]
pub enum Order {
    /// One of the store's.
    Store(AnyPolicy),
    /// See [`Lfu`].
    Lfu(Lfu),
}

impl Order {
    /// An empty one.
    pub fn new(kind: OrderKind) -> Order {
        match kind {
            OrderKind::Store(kind) => Order::Store(AnyPolicy::new(kind)),
            OrderKind::Lfu => Order::Lfu(Lfu::default()),
        }
    }

    /// Takes in a slot that is not here; `left` as in [`Policy::insert`].
    #[inline]
    pub fn insert<L: Links>(&mut self, links: &mut L, slot: u32, left: Option<u32>) {
        match self {
            Order::Store(policy) => policy.insert(links, slot, left),
            Order::Lfu(lfu) => lfu.insert(links, slot),
        }
    }

    /// A slot that is here was used.
    #[inline]
    pub fn touch<L: Links>(&mut self, links: &mut L, slot: u32, how: Use) {
        match self {
            Order::Store(policy) => policy.touch(links, slot, how),
            Order::Lfu(lfu) => lfu.touch(links, slot, how),
        }
    }

    /// Forgets a slot that is here.
    pub fn remove<L: Links>(&mut self, links: &mut L, slot: u32) {
        match self {
            Order::Store(policy) => policy.remove(links, slot),
            Order::Lfu(lfu) => lfu.remove(links, slot),
        }
    }

    /// Picks the slot that leaves next, and forgets it; none: there is none.
    #[inline]
    pub fn evict<L: Links>(&mut self, links: &mut L) -> Option<u32> {
        match self {
            Order::Store(policy) => {
                let looks = policy.len().saturating_mul(4).saturating_add(4).min(LOOKS_MAX);
                policy.evict(links, looks, |_, _| true)
            }
            Order::Lfu(lfu) => lfu.evict(links),
        }
    }
}
