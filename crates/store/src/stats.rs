//! Everything that a metrics page needs, taken at one moment.

use crate::arena::{GRANULE_BYTES, Ground};
use crate::cold::{FlashStats, FlashTenantStats};
use crate::inner::Inner;
use crate::namespaces::Namespace;
use crate::store::Store;
use crate::tenants::Tenant;
use crate::types::{Epoch, MissReason, NamespaceId, ShedReason};

/// Reasons are counted in arrays indexed by their wire codes.
const CODES: usize = 16;

/// Counts since the store opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Keys that a lookup found.
    pub lookup_hits: u64,
    /// First misses of lookups, by `MissReason` code.
    pub lookup_misses: [u64; CODES],
    /// Keys missing after a lookup's first miss; no reason was looked for.
    pub lookup_after_miss: u64,
    /// Parts pinned for reading.
    pub reads: u64,
    /// Bytes of those.
    pub read_bytes: u64,
    /// Reads refused, by `MissReason` code.
    pub read_misses: [u64; CODES],
    /// Parts stored.
    pub stored: u64,
    /// Bytes of those.
    pub stored_bytes: u64,
    /// Blocks that became visible.
    pub blocks_stored: u64,
    /// Puts of what was here.
    pub present: u64,
    /// Puts of what another was writing.
    pub pending: u64,
    /// Puts not stored, by `ShedReason` code.
    pub shed: [u64; CODES],
    /// Grants dropped without a commit.
    pub aborted: u64,
    /// Blocks that made room for others.
    pub evicted: u64,
    /// Blocks that made room for others of their own tenant, because of its quota.
    pub evicted_for_quota: u64,
    /// Blocks whose time to live had ended.
    pub expired: u64,
    /// Blocks of older epochs taken back.
    pub outdated: u64,
    /// Blocks dropped by key or with their namespace.
    pub dropped: u64,
    /// Blocks found to be corrupt.
    pub corrupt: u64,
    /// Reports of bad bytes that were good here.
    pub reports_intact: u64,
    /// Parts moved within the arena to join free space.
    pub relocated: u64,
    /// Incomplete blocks taken back.
    pub incomplete: u64,
    /// Leases granted.
    pub leases: u64,
    /// Lookups that wanted a lease and got none because of a cap.
    pub leases_refused: u64,
    /// Leases that ended by the clock.
    pub leases_expired: u64,
    /// Epochs adopted.
    pub epochs: u64,
    /// Epochs that could not be made durable, and so were not adopted.
    pub epochs_failed: u64,
}

impl Counters {
    /// Adds another's counts.
    pub fn add(&mut self, other: &Counters) {
        let arrays = [
            (&mut self.lookup_misses, &other.lookup_misses),
            (&mut self.read_misses, &other.read_misses),
            (&mut self.shed, &other.shed),
        ];
        for (sum, more) in arrays {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        for (sum, more) in self.singles_mut().into_iter().zip({ *other }.singles_mut()) {
            *sum += *more;
        }
    }

    /// Every count that is not by reason, in the order of the fields.
    fn singles_mut(&mut self) -> [&mut u64; 24] {
        [
            &mut self.lookup_hits,
            &mut self.lookup_after_miss,
            &mut self.reads,
            &mut self.read_bytes,
            &mut self.stored,
            &mut self.stored_bytes,
            &mut self.blocks_stored,
            &mut self.present,
            &mut self.pending,
            &mut self.aborted,
            &mut self.evicted,
            &mut self.evicted_for_quota,
            &mut self.expired,
            &mut self.outdated,
            &mut self.dropped,
            &mut self.corrupt,
            &mut self.reports_intact,
            &mut self.relocated,
            &mut self.incomplete,
            &mut self.leases,
            &mut self.leases_refused,
            &mut self.leases_expired,
            &mut self.epochs,
            &mut self.epochs_failed,
        ]
    }

    /// Count of one reason for lookup misses.
    pub fn lookup_missed(&self, reason: MissReason) -> u64 {
        self.lookup_misses[reason as usize]
    }

    /// Count of one reason for refused reads.
    pub fn read_missed(&self, reason: MissReason) -> u64 {
        self.read_misses[reason as usize]
    }

    /// Count of one reason for puts not stored.
    pub fn shed_for(&self, reason: ShedReason) -> u64 {
        self.shed[reason as usize]
    }
}

/// One tenant, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantStats {
    /// Its name.
    pub name: String,
    /// Arena bytes held, whole granules, writers' included.
    pub bytes: u64,
    /// What it may hold at most.
    pub quota_bytes: Option<u64>,
    /// Complete blocks.
    pub blocks: u64,
    /// Bytes of its blocks under leases.
    pub leased_bytes: u64,
    /// Its share of the counts.
    pub counters: Counters,
    /// Its part of flash, if there is flash.
    pub flash: Option<FlashTenantStats>,
}

/// One namespace, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceStats {
    /// The node's number for it.
    pub id: NamespaceId,
    /// Hash of its encoding.
    pub fingerprint: [u8; 32],
    /// Its tenant.
    pub tenant: String,
    /// Its model, for people.
    pub model: String,
    /// Its epoch.
    pub epoch: Epoch,
    /// Sessions that attached it.
    pub sessions: u32,
    /// Visible blocks (those whose time to live has ended count until they are found).
    pub blocks: u64,
    /// Blocks hidden by an epoch or a drop whose space is not yet taken back.
    pub hidden_blocks: u64,
    /// Incomplete blocks.
    pub filling_blocks: u64,
    /// Arena bytes held, whole granules.
    pub bytes: u64,
    /// Visible blocks on flash, whether in memory too or not.
    pub flash_blocks: u64,
}

/// The whole store, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Random number of this opening.
    pub incarnation: u64,
    /// Name of the policy.
    pub policy: &'static str,
    /// Bytes of the arena.
    pub capacity_bytes: u64,
    /// What the arena lies on.
    pub ground: Ground,
    /// Arena bytes in use, whole granules.
    pub used_bytes: u64,
    /// Arena bytes granted to writers that have not committed.
    pub writing_bytes: u64,
    /// Bytes of blocks under leases, each counted once.
    pub leased_bytes: u64,
    /// Most that leases may hold.
    pub leased_bytes_max: u64,
    /// Entries that the index can hold.
    pub blocks_max: u64,
    /// Entries in use: visible, hidden, incomplete.
    pub blocks: u64,
    /// Bytes of index tables allocated at start, parts and ghosts apart.
    pub index_bytes: u64,
    /// Those for one entry.
    pub index_bytes_per_entry: f64,
    /// Bytes of part records allocated at start.
    pub part_bytes: u64,
    /// Bytes of the ghost list, allocated at start.
    pub ghost_bytes: u64,
    /// Leases now.
    pub leases: u64,
    /// Reads in flight now.
    pub reads_in_flight: u64,
    /// Whether epochs survive a restart.
    pub epochs_durable: bool,
    /// Sequence number of the next event.
    pub events_next: u64,
    /// Sum over tenants.
    pub counters: Counters,
    /// By tenant.
    pub tenants: Vec<TenantStats>,
    /// By namespace.
    pub namespaces: Vec<NamespaceStats>,
    /// Flash, if there is flash.
    pub flash: Option<FlashStats>,
}

impl Store {
    /// Everything that a metrics page needs. Holds the lock for a walk over tenants and
    /// namespaces, not over blocks.
    pub fn stats(&self) -> Stats {
        let flash = self.flash_stats();
        let inner = self.lock();
        let bytes = |granules: u64| granules * GRANULE_BYTES as u64;
        let granules = u64::from(inner.allocator.granules());
        let mut counters = Counters::default();
        inner.tenants.iter().for_each(|tenant| counters.add(&tenant.counters));
        let blocks_max = u64::from(inner.index.capacity());
        let index_bytes = inner.index.bytes() as u64;
        Stats {
            incarnation: self.incarnation(),
            policy: self.policy.name(),
            capacity_bytes: bytes(granules),
            ground: self.arena.ground().clone(),
            used_bytes: bytes(inner.tenants.iter().map(|tenant| tenant.used).sum()),
            writing_bytes: bytes(inner.writing),
            leased_bytes: bytes(inner.leased),
            leased_bytes_max: bytes(granules / 2),
            blocks_max,
            blocks: u64::from(inner.index.used()),
            index_bytes,
            index_bytes_per_entry: index_bytes as f64 / blocks_max as f64,
            part_bytes: inner.parts.bytes() as u64,
            ghost_bytes: inner.ghosts.bytes() as u64,
            leases: inner.leases.len() as u64,
            reads_in_flight: inner.reads,
            epochs_durable: self.is_durable,
            events_next: inner.events.next(),
            counters,
            tenants: inner
                .tenants
                .iter()
                .enumerate()
                .map(|(at, tenant)| {
                    let own = flash.as_ref().and_then(|flash| flash.tenants.get(at));
                    tenant_stats(tenant, own.cloned())
                })
                .collect(),
            namespaces: inner
                .namespaces
                .iter()
                .map(|(id, s)| namespace_stats(&inner, id, s))
                .collect(),
            flash,
        }
    }
}

fn tenant_stats(tenant: &Tenant, flash: Option<FlashTenantStats>) -> TenantStats {
    TenantStats {
        name: tenant.name.clone(),
        bytes: tenant.used * GRANULE_BYTES as u64,
        quota_bytes: tenant.quota_bytes,
        blocks: tenant.blocks,
        leased_bytes: tenant.leased * GRANULE_BYTES as u64,
        counters: tenant.counters,
        flash,
    }
}

fn namespace_stats(inner: &Inner, id: NamespaceId, space: &Namespace) -> NamespaceStats {
    let model = space.spec.fields().get("model").map(ToString::to_string);
    NamespaceStats {
        id,
        fingerprint: space.spec.fingerprint(),
        tenant: inner.tenants[space.tenant].name.clone(),
        model: model.unwrap_or_default().trim_matches('"').to_string(),
        epoch: space.epoch,
        sessions: space.sessions,
        blocks: space.live,
        hidden_blocks: space.hidden,
        filling_blocks: space.filling,
        bytes: space.granules * GRANULE_BYTES as u64,
        flash_blocks: space.flash_live,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter that `add` forgets would vanish from the sum over tenants.
    #[test]
    fn adding_forgets_no_counter() {
        let words = size_of::<Counters>() / 8;
        let mut one = Counters::default();
        one.singles_mut().into_iter().for_each(|count| *count = 1);
        for array in [&mut one.lookup_misses, &mut one.read_misses, &mut one.shed] {
            array.fill(1);
        }
        assert_eq!(one.singles_mut().len() + 3 * CODES, words);
        let mut sum = one;
        sum.add(&one);
        let two = one.singles_mut().map(|count| *count * 2);
        assert_eq!(sum.singles_mut().map(|count| *count), two);
        assert_eq!(sum.shed, [2; CODES]);
    }
}
