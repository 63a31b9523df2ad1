//! What each tenant may count on, whatever the others do, and who gives when room is needed.

use crate::tenants::Tenant;

/// Tenants without a quota have at least one part in this many of a tier between them.
pub(crate) const UNQUOTED_SHARE: u64 = 16;

/// What there is not enough of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scarce {
    /// Granules.
    Space,
    /// Entries of the index.
    Entries,
}

/// The whole of what is shared out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub granules: u64,
    pub entries: u64,
}

/// Sets every tenant's share of the arena. A quota is a share too: of the whole of it, as long as
/// quotas leave a sixteenth of the arena to tenants without one, else in proportion. Those without
/// a quota share what quotas leave in equal parts. Shares add up to no more than the arena.
pub(crate) fn share_out(tenants: &mut [Tenant], arena: u64) {
    let quotas: u64 = tenants.iter().filter_map(Tenant::quota).map(|quota| quota.min(arena)).sum();
    let unquoted = tenants.iter().filter(|tenant| tenant.quota().is_none()).count() as u64;
    let kept = if unquoted > 0 { arena / UNQUOTED_SHARE } else { 0 };
    let left = arena.saturating_sub(quotas).max(kept);
    let for_quotas = arena - left;
    for tenant in tenants {
        tenant.share = match tenant.quota() {
            None => left / unquoted,
            Some(quota) if quotas <= for_quotas => quota,
            Some(quota) => {
                (u128::from(quota.min(arena)) * u128::from(for_quotas) / u128::from(quotas)) as u64
            }
        };
    }
}

impl Scarce {
    /// A tenant's use and its share.
    fn of(self, tenant: &Tenant, whole: Whole) -> (u64, u64) {
        match self {
            Scarce::Space => (tenant.used, tenant.share),
            Scarce::Entries => {
                let share = u128::from(tenant.share) * u128::from(whole.entries);
                let entries = tenant.blocks + u64::from(tenant.filling);
                (entries, (share / u128::from(whole.granules.max(1))) as u64)
            }
        }
    }
}

/// Who gives for a put of `asking`: the tenant furthest above its share, of those above it and the
/// asking one. Nobody else gives: where there is not enough for all, somebody is above its share,
/// or the asking one is about to be. With `or_any`, whoever is nearest to its share if nobody else
/// does: there is enough, but it is scattered.
pub(crate) fn who_gives(
    tenants: &[Tenant],
    asking: usize,
    scarce: Scarce,
    whole: Whole,
    or_any: bool,
    tried: &[bool],
) -> Option<usize> {
    let open = tenants.iter().enumerate().zip(tried).filter(|(_, tried)| !**tried);
    let open = open.map(|(numbered, _)| numbered).filter(|(_, tenant)| !tenant.order.is_empty());
    let rated = open.map(|(number, tenant)| {
        let (used, share) = scarce.of(tenant, whole);
        let is_bound_to = used > share || number == asking;
        // A share of nothing counts as one, so that any use stands far above it.
        (number, is_bound_to, used as f64 / share.max(1) as f64)
    });
    let willing = rated.filter(|(_, is_bound_to, _)| *is_bound_to || or_any);
    willing
        .max_by(|a, b| (a.1, a.2).partial_cmp(&(b.1, b.2)).expect("numbers"))
        .map(|(number, _, _)| number)
}
