//! Which blocks were removed, and up to when: what recovery asks before it shows a block.

use std::collections::HashMap;

use super::block::Removal;
use crate::types::BlockKey;

impl Removal {
    /// How much of a table it takes.
    pub(crate) fn entries(&self) -> usize {
        match self {
            Removal::Keys { keys, .. } => keys.len(),
            Removal::Namespace { .. } => 1,
        }
    }
}

/// For a key, or a whole namespace, the sequence of its latest removal.
#[derive(Debug, Default)]
pub(crate) struct RemovalTable {
    namespaces: HashMap<[u8; 32], Removed>,
    entries: usize,
}

#[derive(Debug, Default)]
struct Removed {
    /// Of the whole namespace; 0 is never.
    whole: u64,
    keys: HashMap<BlockKey, u64>,
}

impl RemovalTable {
    /// Keys and namespaces remembered.
    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn add(&mut self, removal: &Removal, sequence: u64) {
        match removal {
            Removal::Keys { fingerprint, keys } => {
                keys.iter().for_each(|&key| self.add_key(*fingerprint, key, sequence));
            }
            Removal::Namespace { fingerprint } => {
                let removed = self.namespaces.entry(*fingerprint).or_default();
                removed.whole = removed.whole.max(sequence);
                removed.keys.retain(|_, own| *own > sequence);
                self.count();
            }
        }
    }

    pub fn add_key(&mut self, fingerprint: [u8; 32], key: BlockKey, sequence: u64) {
        let removed = self.namespaces.entry(fingerprint).or_default();
        if sequence <= removed.whole {
            return;
        }
        let own = removed.keys.entry(key).or_insert_with(|| {
            self.entries += 1;
            0
        });
        *own = sequence.max(*own);
    }

    /// Whether a block that was taken at `sequence` has been removed since.
    pub fn hides(&self, fingerprint: &[u8; 32], key: BlockKey, sequence: u64) -> bool {
        self.namespaces.get(fingerprint).is_some_and(|removed| {
            sequence < removed.whole || removed.keys.get(&key).is_some_and(|own| sequence < *own)
        })
    }

    /// Forgets what hides nothing, `oldest` being the smallest sequence of any block there is.
    pub fn prune(&mut self, oldest: u64) {
        for removed in self.namespaces.values_mut() {
            removed.keys.retain(|_, own| *own > oldest);
            if removed.whole <= oldest {
                removed.whole = 0;
            }
        }
        self.namespaces.retain(|_, removed| removed.whole > 0 || !removed.keys.is_empty());
        self.count();
    }

    /// What is remembered of each namespace: when all of it was removed (0 is never), and its keys.
    pub fn iter(&self) -> impl Iterator<Item = ([u8; 32], u64, Vec<(BlockKey, u64)>)> + '_ {
        self.namespaces.iter().map(|(fingerprint, removed)| {
            let keys = removed.keys.iter().map(|(key, sequence)| (*key, *sequence)).collect();
            (*fingerprint, removed.whole, keys)
        })
    }

    fn count(&mut self) {
        let of = |removed: &Removed| removed.keys.len() + usize::from(removed.whole > 0);
        self.entries = self.namespaces.values().map(of).sum();
    }
}
