//! Drops that last: what is dropped does not come back with a restart.

use crate::error::StoreError;
use crate::store::Store;
use crate::tiers::{Removal, Retry};

/// How often a removal is tried again after a segment was taken back.
const RECLAIMS_MAX: u32 = 8;
/// Keys dropped while recovery runs that are remembered one by one; beyond it the whole namespace
/// is.
const DROPPED_MAX: usize = 1 << 20;

impl Store {
    /// Makes sure that what recovery still finds of this is not wanted. Called with what is hidden,
    /// under the same hold of the lock.
    pub(crate) fn note_removal(&self, inner: &mut crate::inner::Inner, ns: u16, removal: &Removal) {
        let Some(cold) = &mut inner.cold else { return };
        if !cold.recovery.is_running {
            return;
        }
        match removal {
            Removal::Keys { fingerprint, keys } => {
                if cold.recovery.dropped.len() + keys.len() > DROPPED_MAX {
                    cold.recovery.dropped_spaces.insert(*fingerprint);
                } else {
                    cold.recovery.dropped.extend(keys.iter().map(|key| (ns, *key)));
                }
            }
            Removal::Namespace { fingerprint } => {
                cold.recovery.dropped_spaces.insert(*fingerprint);
            }
        }
    }

    /// Returns when no restart brings this back. Not under the lock.
    pub(crate) fn remove_for_good(&self, removal: Removal) -> Result<(), StoreError> {
        let Some(flash) = &self.flash else { return Ok(()) };
        let removals = [removal];
        for _ in 0..RECLAIMS_MAX {
            match flash.tier().remove(&removals) {
                Ok(()) => return Ok(()),
                Err(error) if error.retry() == Retry::AfterReclaim && self.reclaim_one() => {}
                Err(error) => {
                    self.look_after_devices();
                    return Err(not_kept(error.to_string()));
                }
            }
        }
        Err(not_kept("too many removals are kept for old segments".into()))
    }
}

fn not_kept(why: String) -> StoreError {
    let problem = format!(
        "the drop holds until a restart, but is not on flash ({why}): drop again, or bump the epoch"
    );
    StoreError::Flash { problem, source: None }
}
