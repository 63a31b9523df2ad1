//! Tenants: shares of the arena, each with its own order of leaving.

use std::time::Duration;

use crate::arena::GRANULE_BYTES;
use crate::config::{PolicyKind, TenantConfig};
use crate::identity::TenantSecret;
use crate::policy::{AnyPolicy, Policy};
use crate::stats::Counters;
use crate::types::Instant;

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
    pub policy: AnyPolicy,
    /// Blocks that the policy let go to make room; wraps.
    pub evictions: u32,
    pub counters: Counters,
}

impl Tenant {
    pub fn new(config: TenantConfig, policy: PolicyKind, ttl: Option<Duration>) -> Tenant {
        Tenant {
            name: config.name,
            secret: config.secret,
            quota_bytes: config.quota_bytes,
            ttl: config.ttl.or(ttl),
            used: 0,
            leased: 0,
            writing: 0,
            filling: 0,
            blocks: 0,
            policy: AnyPolicy::new(policy),
            evictions: 0,
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

    /// How far it is above its share: use over quota, over the whole arena without a quota.
    pub fn pressure(&self, arena: u64) -> f64 {
        // A quota of nothing counts as one granule, so that any use stands far above it.
        self.used as f64 / self.quota().unwrap_or(arena).max(1) as f64
    }

    pub fn has_ttl(&self) -> bool {
        self.ttl.is_some()
    }

    /// Tick at which a block stored now ends; 0: never.
    pub fn expiry(&self, opened: Instant, now: Instant) -> u32 {
        self.ttl.map_or(0, |ttl| ticks(opened, now.after(ttl)))
    }
}

/// The tenant furthest above its share among those that have blocks and are not in `tried`.
pub(crate) fn furthest_above(tenants: &[Tenant], arena: u64, tried: &[bool]) -> Option<usize> {
    let open = tenants.iter().enumerate().zip(tried).filter(|(_, tried)| !**tried);
    open.map(|(numbered, _)| numbered)
        .filter(|(_, tenant)| !tenant.policy.is_empty())
        .max_by(|(_, a), (_, b)| a.pressure(arena).total_cmp(&b.pressure(arena)))
        .map(|(number, _)| number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Links, NO_SLOT};

    struct NoLinks;
    impl Links for NoLinks {
        fn prev(&self, _: u32) -> u32 {
            NO_SLOT
        }
        fn next(&self, _: u32) -> u32 {
            NO_SLOT
        }
        fn set_prev(&mut self, _: u32, _: u32) {}
        fn set_next(&mut self, _: u32, _: u32) {}
        fn bits(&self, _: u32) -> u8 {
            0
        }
        fn set_bits(&mut self, _: u32, _: u8) {}
    }

    fn tenant(quota_granules: Option<u64>, used: u64) -> Tenant {
        let mut config = TenantConfig::public_default();
        config.quota_bytes = quota_granules.map(|granules| granules * GRANULE_BYTES as u64);
        let mut tenant = Tenant::new(config, PolicyKind::Lru, None);
        tenant.used = used;
        tenant.policy.insert(&mut NoLinks, 1, None);
        tenant
    }

    #[test]
    fn the_one_furthest_above_its_share_gives() {
        let tenants = [tenant(Some(100), 50), tenant(Some(10), 8), tenant(None, 600)];
        assert_eq!(furthest_above(&tenants, 1000, &[false; 3]), Some(1));
        assert_eq!(furthest_above(&tenants, 1000, &[false, true, false]), Some(2));
        assert_eq!(furthest_above(&tenants, 1000, &[true; 3]), None);
        let zero = [tenant(Some(0), 1), tenant(Some(10), 9)];
        assert_eq!(furthest_above(&zero, 1000, &[false; 2]), Some(0));
    }

    #[test]
    fn time_to_live_never_runs_long() {
        let mut tenant = tenant(None, 0);
        assert_eq!(tenant.expiry(Instant(5), Instant(9)), 0);
        tenant.ttl = Some(Duration::from_secs(1));
        let expiry = tenant.expiry(Instant(5), Instant(9));
        assert!(ticks(Instant(5), Instant(9).after(Duration::from_secs(1))) >= expiry);
        assert!(ticks(Instant(5), Instant(9).after(Duration::from_millis(930))) < expiry);
        tenant.ttl = Some(Duration::MAX);
        assert_eq!(tenant.expiry(Instant(5), Instant(9)), u32::MAX);
    }
}
