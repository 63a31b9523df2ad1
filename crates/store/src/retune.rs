//! What of a store may change while it serves.

use std::time::Duration;

use crate::error::StoreError;
use crate::store::Store;

/// What a tenant is to have from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantTuning {
    /// Which one.
    pub name: String,
    /// Bytes that it may hold; none: no quota.
    pub quota_bytes: Option<u64>,
    /// How long blocks live that are stored from now on; none: until evicted.
    pub ttl: Option<Duration>,
}

impl Store {
    /// Changes tenants' quotas and times to live, all of them or none. A tenant above a smaller
    /// quota gives blocks back over the next puts and ticks; blocks that are here keep their end.
    ///
    /// # Errors
    /// A tenant that is not here; then nothing has changed.
    pub fn retune(&self, tenants: &[TenantTuning]) -> Result<(), StoreError> {
        let mut inner = self.lock();
        let places: Result<Vec<usize>, StoreError> = tenants
            .iter()
            .map(|tuning| {
                let place = inner.tenants.iter().position(|known| known.name == tuning.name);
                place.ok_or_else(|| StoreError::UnknownTenant(tuning.name.clone()))
            })
            .collect();
        for (place, tuning) in places?.into_iter().zip(tenants) {
            inner.tenants[place].retune(tuning.quota_bytes, tuning.ttl);
        }
        inner.share_out();
        Ok(())
    }
}
