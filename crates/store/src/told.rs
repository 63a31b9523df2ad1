//! What records of the journal say about this store's objects. Never a key of a whole, never a
//! secret.

use crate::arena::GRANULE_BYTES;
use crate::inner::Inner;
use crate::log::{self, Event, Line};
use crate::types::{BlockKey, NamespaceId};

/// Bytes of a fingerprint or a key that are shown: enough to tell them apart, too few to use.
const SHOWN_BYTES: usize = 6;

/// The first bytes as hexadecimal digits.
pub(crate) fn short(bytes: &[u8]) -> String {
    bytes.iter().take(SHOWN_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

impl Inner {
    /// Names a namespace, and a block in it.
    pub fn name(&self, line: &mut Line, ns: u16, key: Option<BlockKey>) {
        if let Some(space) = self.namespaces.get(NamespaceId(ns)) {
            line.text("tenant", space.spec.tenant());
            line.text("namespace", short(&space.spec.fingerprint()));
        }
        if let Some(key) = key {
            line.text("block", short(&key.0));
        }
    }

    /// A session attached a namespace that was here, or is new and differs so from its nearest.
    pub fn say_attached(&self, ns: u16, nearest: Option<&str>) {
        let space = self.namespaces.at(ns);
        let describe = |line: &mut Line| {
            self.name(line, ns, None);
            if let Some(model) = space.spec.fields().get("model") {
                line.text("model", model.to_string().trim_matches('"'));
            }
            line.number("epoch", space.epoch.0.into());
        };
        match nearest {
            Some(nearest) => log::say(Event::NamespaceDiffers, |line| {
                describe(line);
                line.text("nearest", nearest);
            }),
            None if space.sessions == 1 => log::say(Event::NamespaceAttached, describe),
            None => {}
        }
    }

    /// A put of the tenant found its quota filled with what cannot leave.
    pub fn say_over_quota(&self, tenant: usize) {
        let tenant = &self.tenants[tenant];
        let bytes = |granules: u64| granules * GRANULE_BYTES as u64;
        log::say(Event::TenantOverQuota, |line| {
            line.text("tenant", &tenant.name);
            line.number("quota_bytes", tenant.quota_bytes.unwrap_or_default());
            line.number("leased_bytes", bytes(tenant.leased));
            line.number("writing_bytes", bytes(tenant.writing));
        });
    }
}
