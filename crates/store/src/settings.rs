//! From what a user gives to what a store is built of: defaults filled in, limits checked.

use std::hash::{BuildHasher, RandomState};

use crate::arena::{Allocator, GRANULE_BYTES, HUGE_PAGE_BYTES, HugePages};
use crate::config::{StoreConfig, TenantConfig};
use crate::error::StoreError;
use crate::events::EventRing;
use crate::ghosts::Ghosts;
use crate::identity::DEFAULT_TENANT;
use crate::index::parts::Parts;
use crate::index::{ENTRIES_MAX, Index};
use crate::inner::Inner;
use crate::leases::Leases;
use crate::namespaces::Namespaces;
use crate::pending::Fillings;
use crate::shares::share_out;
use crate::tenants::Tenant;
use crate::types::Instant;

/// Arena bytes for which one entry is allocated unless the user says otherwise.
pub const BYTES_PER_ENTRY: u64 = 64 << 10;
/// Ghosts for each entry. Half of them are remembered without gaps, and what the default policy
/// counts as a return left no longer ago than that.
pub const GHOSTS_PER_ENTRY: u32 = 3;
/// Fewest entries unless the user says otherwise.
pub const ENTRIES_MIN: u32 = 1024;
const TENANTS_MAX: usize = 1024;
const NAMESPACES_MAX: u16 = 4096;
const FILLING_MAX: u32 = 1 << 20;
/// Arena bytes at most, 8 TiB: more needs more than one arena.
pub const CAPACITY_MAX: u64 = 1 << 43;

fn refuse(setting: &'static str, found: impl ToString, want: impl ToString) -> StoreError {
    StoreError::Config { setting, found: found.to_string(), want: want.to_string() }
}

/// Fills in defaults and refuses what no store can have.
pub(crate) fn settle(mut config: StoreConfig) -> Result<StoreConfig, StoreError> {
    let granule = GRANULE_BYTES as u64;
    if !(granule..=CAPACITY_MAX).contains(&config.capacity_bytes) {
        let want = format!("from {granule} to {CAPACITY_MAX} bytes");
        return Err(refuse("capacity_bytes", config.capacity_bytes, want));
    }
    let unit = if config.huge_pages == HugePages::On { HUGE_PAGE_BYTES } else { granule };
    config.capacity_bytes -= config.capacity_bytes % unit.min(config.capacity_bytes);
    let default = (config.capacity_bytes / BYTES_PER_ENTRY).max(ENTRIES_MIN.into());
    let blocks = config.max_blocks.map_or(default, u64::from);
    if blocks == 0 || blocks > u64::from(ENTRIES_MAX) {
        return Err(refuse("max_blocks", blocks, format!("from 1 to {ENTRIES_MAX}")));
    }
    // A block takes a granule at least: entries beyond that could never be used.
    let blocks = blocks.min(config.capacity_bytes / granule);
    config.max_blocks = Some(blocks as u32);
    let limits = &mut config.limits;
    if !(1..=NAMESPACES_MAX).contains(&limits.namespaces_max) {
        let want = format!("from 1 to {NAMESPACES_MAX}");
        return Err(refuse("namespaces_max", limits.namespaces_max, want));
    }
    if !(1..=FILLING_MAX).contains(&limits.filling_max) {
        return Err(refuse("filling_max", limits.filling_max, format!("from 1 to {FILLING_MAX}")));
    }
    // No more can be incomplete than there are entries.
    limits.filling_max = limits.filling_max.min(blocks as u32);
    limits.writing_bytes_max.get_or_insert(config.capacity_bytes / 2);
    limits.ghosts.get_or_insert(blocks as u32 * GHOSTS_PER_ENTRY);
    if !config.flash.devices.is_empty() && config.state_dir.is_none() {
        let want = "a directory: flash keeps blocks across restarts, and so must epochs";
        return Err(refuse("state_dir", "not given", want));
    }
    if !config.tenants.iter().any(|tenant| tenant.name == DEFAULT_TENANT) {
        config.tenants.insert(0, TenantConfig::public_default());
    }
    if config.tenants.len() > TENANTS_MAX {
        return Err(refuse("tenants", config.tenants.len(), format!("at most {TENANTS_MAX}")));
    }
    if let Some(tenant) = config.tenants.iter().find(|tenant| tenant.name.contains('.')) {
        // Figures are named by it, and a dot parts their names.
        return Err(refuse("tenants", &tenant.name, "a name without a dot"));
    }
    let mut names: Vec<_> = config.tenants.iter().map(|tenant| tenant.name.as_str()).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(refuse("tenants", format!("{} twice", twice[0]), "each name once"));
    }
    Ok(config)
}

/// Random words from the system's entropy, by way of the standard library's hash seeds.
pub(crate) fn random_words() -> [u64; 4] {
    [1u64, 2, 3, 4].map(|word| RandomState::new().hash_one(word))
}

impl Inner {
    /// Everything, allocated at once for a settled configuration.
    pub fn new(config: &StoreConfig, seeds: &[u64; 4], opened: Instant) -> Inner {
        let blocks = config.max_blocks.expect("settled");
        let granules = (config.capacity_bytes / GRANULE_BYTES as u64) as u32;
        let limits = config.limits.clone();
        let tenant = |tenant: &TenantConfig| Tenant::new(tenant.clone(), config.policy, config.ttl);
        let mut tenants: Vec<_> = config.tenants.iter().map(tenant).collect();
        share_out(&mut tenants, granules.into());
        Inner {
            index: Index::new(blocks, [seeds[1], seeds[2]]),
            parts: Parts::new(blocks),
            allocator: Allocator::new(granules),
            tenants,
            namespaces: Namespaces::new(limits.namespaces_max),
            ghosts: Ghosts::new(
                limits.ghosts.expect("settled"),
                config.ghost_seed.unwrap_or(seeds[3]),
            ),
            leases: Leases::new(limits.leases_max, limits.lease_slots_max, config.tenants.len()),
            fillings: Fillings::new(limits.filling_max),
            events: EventRing::new(limits.event_ring),
            limits,
            opened,
            hidden: 0,
            reads: 0,
            writing: 0,
            records_promised: 0,
            leased: 0,
            next_generation: 0,
            sweep_at: 0,
            has_quieted: false,
            next_era: 0,
            cold: None,
            flash_has_work: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::TenantSecret;

    fn problem(config: StoreConfig) -> String {
        settle(config).unwrap_err().to_string()
    }

    #[test]
    fn impossible_settings_are_refused_by_name() {
        for capacity in [0, 4095, 1 << 63, u64::MAX] {
            let text = problem(StoreConfig::new(capacity));
            assert!(text.starts_with("capacity_bytes is"), "{text}");
        }
        let mut config = StoreConfig::new(1 << 20);
        config.max_blocks = Some(0);
        assert!(problem(config.clone()).starts_with("max_blocks is 0"));
        config.max_blocks = Some(u32::MAX);
        assert!(problem(config.clone()).starts_with("max_blocks is 4294967295"));
        config.max_blocks = None;
        config.limits.namespaces_max = 0;
        assert!(problem(config.clone()).starts_with("namespaces_max is 0"));
        config.limits.namespaces_max = 1;
        let secret = TenantSecret::public_default();
        let twice = TenantConfig { name: "a".into(), secret, ..TenantConfig::public_default() };
        config.tenants = vec![twice.clone(), twice];
        assert!(problem(config).contains("a twice"));
    }

    #[test]
    fn defaults_follow_the_capacity() {
        let settled = settle(StoreConfig::new((1 << 30) + 5)).unwrap();
        assert_eq!(settled.capacity_bytes, 1 << 30);
        assert_eq!(settled.max_blocks, Some(16_384));
        assert_eq!(settled.limits.ghosts, Some(49_152));
        assert_eq!(settled.tenants[0].name, "default");
        assert_eq!(settle(StoreConfig::new(8 << 20)).unwrap().max_blocks, Some(1024));
        // One granule, one block, whatever is asked for.
        let mut tiny = StoreConfig::new(4096);
        tiny.max_blocks = Some(1 << 28);
        assert_eq!(settle(tiny).unwrap().max_blocks, Some(1));
    }
}
