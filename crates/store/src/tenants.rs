//! Tenants: shares of the arena, each with its own order of leaving.

use std::time::Duration;

use crate::arena::GRANULE_BYTES;
use crate::classes::Classes;
use crate::config::{PolicyKind, TenantConfig};
use crate::identity::TenantSecret;
use crate::stats::Counters;
use crate::types::{Instant, Priority};

/// One tick of block expiry: 2^26 ns, about 67 ms, so that 32 bits last for nine years. A block
/// may expire up to one tick early, never late.
const TICK_BITS: u32 = 26;

/// Ticks from the store's opening, which was in tick 1.
pub(crate) fn ticks(opened: Instant, at: Instant) -> u32 {
    let ticks = at.since(opened).as_nanos() >> TICK_BITS;
    u32::try_from(ticks).unwrap_or(u32::MAX).saturating_add(1)
}

/// When a tick begins: the moment at which what expires at it does.
pub(crate) fn tick_start(opened: Instant, tick: u32) -> Instant {
    Instant(opened.0.saturating_add(u64::from(tick.saturating_sub(1)) << TICK_BITS))
}

/// One principal's share.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub name: String,
    pub secret: TenantSecret,
    pub quota_bytes: Option<u64>,
    ttl: Option<Duration>,
    /// Namespaces that ask for more get this.
    pub priority_max: Priority,
    /// Granules of its blocks and its writers.
    pub used: u64,
    /// Granules of its blocks under leases.
    pub leased: u64,
    /// Granules granted to its writers.
    pub writing: u64,
    /// Its incomplete blocks.
    pub filling: u32,
    /// Complete blocks that are listed.
    pub blocks: u64,
    pub order: Classes,
    /// Granules that it may count on, whatever others do; see `shares.rs`.
    pub share: u64,
    pub counters: Counters,
}

impl Tenant {
    pub fn new(config: TenantConfig, policy: PolicyKind, ttl: Option<Duration>) -> Tenant {
        Tenant {
            name: config.name,
            secret: config.secret,
            quota_bytes: config.quota_bytes,
            ttl: config.ttl.or(ttl),
            priority_max: config.priority_max,
            used: 0,
            leased: 0,
            writing: 0,
            filling: 0,
            blocks: 0,
            order: Classes::new(policy),
            share: 0,
            counters: Counters::default(),
        }
    }

    /// Changes what it may hold, and how long blocks live that are stored from now on.
    pub fn retune(&mut self, quota_bytes: Option<u64>, ttl: Option<Duration>) {
        (self.quota_bytes, self.ttl) = (quota_bytes, ttl);
    }

    /// Granules it may hold; none: no quota.
    pub fn quota(&self) -> Option<u64> {
        self.quota_bytes.map(|bytes| bytes / GRANULE_BYTES as u64)
    }

    pub fn has_ttl(&self) -> bool {
        self.ttl.is_some()
    }

    /// Tick at which a block stored now ends, of a namespace that asked for `asked`; 0: never.
    pub fn expiry(&self, asked: Option<Duration>, opened: Instant, now: Instant) -> u32 {
        let ttl = match (asked, self.ttl) {
            (Some(asked), Some(most)) => Some(asked.min(most)),
            (asked, most) => asked.or(most),
        };
        ttl.map_or(0, |ttl| ticks(opened, now.after(ttl)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_to_live_never_runs_long() {
        let mut tenant = Tenant::new(TenantConfig::public_default(), PolicyKind::Lru, None);
        assert_eq!(tenant.expiry(None, Instant(5), Instant(9)), 0);
        tenant.ttl = Some(Duration::from_secs(1));
        let expiry = tenant.expiry(None, Instant(5), Instant(9));
        assert!(ticks(Instant(5), Instant(9).after(Duration::from_secs(1))) >= expiry);
        assert!(ticks(Instant(5), Instant(9).after(Duration::from_millis(930))) < expiry);
        tenant.ttl = Some(Duration::MAX);
        assert_eq!(tenant.expiry(None, Instant(5), Instant(9)), u32::MAX);
    }

    #[test]
    fn a_namespace_asks_for_less_time_but_not_for_more() {
        let (short, long) = (Duration::from_secs(1), Duration::from_secs(100));
        let mut tenant = Tenant::new(TenantConfig::public_default(), PolicyKind::Lru, None);
        let end = |tenant: &Tenant, asked| tenant.expiry(asked, Instant(0), Instant(0));
        assert_eq!(end(&tenant, Some(long)), ticks(Instant(0), Instant(0).after(long)));
        tenant.ttl = Some(Duration::from_secs(10));
        assert_eq!(end(&tenant, Some(short)), ticks(Instant(0), Instant(0).after(short)));
        assert_eq!(end(&tenant, Some(long)), end(&tenant, None));
    }
}
