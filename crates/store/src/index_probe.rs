//! The index alone with one default policy over it, for `keepwarm bench`. Not part of the API.

use crate::config::PolicyKind;
use crate::index::{CHUNK, Index, NONE, Run};
use crate::policy::{AnyPolicy, Policy, Use};
use crate::types::{BlockKey, Priority};

/// The very tables and code that the store uses, without its lock, arena and accounting.
pub struct IndexProbe {
    index: Index,
    policy: AnyPolicy,
}

impl IndexProbe {
    /// Tables for this many entries.
    pub fn new(entries: u32) -> IndexProbe {
        let index = Index::new(entries, [0x9e37_79b9_7f4a_7c15, 0xf39c_c060_5ced_c835]);
        IndexProbe { index, policy: AnyPolicy::new(PolicyKind::default()) }
    }

    /// Bytes of the tables.
    pub fn bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Adds a complete block.
    pub fn insert(&mut self, key: BlockKey) {
        let slot = self.index.insert(1, key, 0).expect("room for the key");
        self.index.meta_mut(slot).complete(Priority::NORMAL);
        self.policy.insert(&mut self.index.slots, slot, None);
    }

    /// Finds each key, last first, marks it as used and writes its lease state. Returns the hits.
    pub fn use_and_lease(&mut self, keys: &[BlockKey], lease: bool) -> u32 {
        let (mut run, mut found, mut hits) = (Run::NONE, [NONE; CHUNK], 0);
        let mut reversed = [BlockKey::default(); CHUNK];
        for chunk in keys.rchunks(CHUNK) {
            let reversed = &mut reversed[..chunk.len()];
            reversed.iter_mut().zip(chunk.iter().rev()).for_each(|(to, key)| *to = *key);
            let found = &mut found[..chunk.len()];
            self.index.find_chunk(1, reversed, found, &mut run);
            self.index.prefetch_links(found);
            for slot in found.iter().filter(|slot| **slot != NONE) {
                self.policy.touch(&mut self.index.slots, *slot, Use::Read);
                let meta = self.index.meta_mut(*slot);
                meta.leases = if lease { meta.leases + 1 } else { meta.leases - 1 };
                hits += 1;
            }
        }
        hits
    }
}
