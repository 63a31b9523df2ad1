//! Namespaces known to this node: who may share blocks with whom, in which epoch.

use std::collections::HashMap;

use crate::identity::NamespaceSpec;
use crate::types::{Epoch, MissReason, NamespaceId};

/// One namespace, and counts of everything that it has here.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub spec: NamespaceSpec,
    /// Number of its tenant.
    pub tenant: usize,
    pub epoch: Epoch,
    /// Moves on with every epoch and drop; blocks of other versions are hidden.
    pub version: u32,
    /// Blocks of versions below were dropped, not outdated.
    dropped_below: u32,
    /// Stands for this namespace since its last drop, in the ghost list.
    pub era: u64,
    /// Order of arrival; the oldest makes way first.
    pub arrival: u64,
    /// The next event when it came; earlier ones are about whoever had its number before.
    pub since: u64,
    /// Sessions that attached it.
    pub sessions: u32,
    /// Complete blocks of this version.
    pub live: u64,
    /// Complete blocks of older versions, not yet taken back.
    pub hidden: u64,
    /// Incomplete blocks.
    pub filling: u64,
    /// Hidden, unlisted blocks that wait for their last pin.
    pub condemned: u64,
    /// Grants out for writing.
    pub writers: u64,
    /// Granules of all of these.
    pub granules: u64,
    /// Leases and reads of this version's blocks.
    pub pins: u64,
    /// Those of older versions' blocks.
    pub old_pins: u64,
}

impl Namespace {
    /// Whether nothing of it is here, so that its place may go to another.
    fn is_empty(&self) -> bool {
        self.live + self.hidden + self.filling + self.condemned + self.writers == 0
    }

    /// Why a block of another version is not to be seen.
    pub fn hidden_reason(&self, version: u32) -> MissReason {
        if version < self.dropped_below { MissReason::Absent } else { MissReason::Epoch }
    }

    /// Hides all blocks at once; returns how many were visible.
    pub fn hide_all(&mut self) -> u64 {
        self.version += 1;
        let hidden = std::mem::take(&mut self.live);
        self.hidden += hidden;
        self.old_pins += std::mem::take(&mut self.pins);
        hidden
    }

    /// What was hidden until now was dropped: no memory of it either.
    pub fn forget_all(&mut self, era: u64) {
        self.dropped_below = self.version;
        self.era = era;
    }

    /// Starts counting versions again; only when no block of an old one is left.
    pub fn restart_versions(&mut self) {
        (self.version, self.dropped_below) = (0, 0);
    }
}

/// The table of namespaces; its places are numbered by `NamespaceId`.
#[derive(Debug)]
pub(crate) struct Namespaces {
    places: Vec<Option<Namespace>>,
    by_fingerprint: HashMap<[u8; 32], u16>,
    arrivals: u64,
}

impl Namespaces {
    pub fn new(max: u16) -> Namespaces {
        let places = (0..max).map(|_| None).collect();
        Namespaces { places, by_fingerprint: HashMap::new(), arrivals: 0 }
    }

    /// How many there can be.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    pub fn find(&self, fingerprint: &[u8; 32]) -> Option<NamespaceId> {
        self.by_fingerprint.get(fingerprint).copied().map(NamespaceId)
    }

    /// The namespace in a place, if it is taken.
    pub fn get(&self, id: NamespaceId) -> Option<&Namespace> {
        self.places.get(usize::from(id.0))?.as_ref()
    }

    /// The namespace in a place that the caller knows to be taken.
    #[inline]
    pub fn at(&self, id: u16) -> &Namespace {
        self.places[id as usize].as_ref().expect("a place in use")
    }

    #[inline]
    pub fn at_mut(&mut self, id: u16) -> &mut Namespace {
        self.places[id as usize].as_mut().expect("a place in use")
    }

    pub fn iter(&self) -> impl Iterator<Item = (NamespaceId, &Namespace)> {
        let numbered = self.places.iter().enumerate();
        numbered.filter_map(|(id, place)| Some((NamespaceId(id as u16), place.as_ref()?)))
    }

    /// Takes a namespace in. With all places taken, the oldest that no session uses and that has
    /// nothing here makes way, with all that was known of it. None: there is no such one.
    pub fn add(
        &mut self,
        spec: NamespaceSpec,
        tenant: usize,
        epoch: Epoch,
        era: u64,
        since: u64,
    ) -> Option<NamespaceId> {
        let vacant = self.places.iter().position(Option::is_none);
        let id = vacant.or_else(|| self.make_way())?;
        self.by_fingerprint.insert(spec.fingerprint(), id as u16);
        self.arrivals += 1;
        self.places[id] = Some(Namespace {
            spec,
            tenant,
            epoch,
            version: 0,
            dropped_below: 0,
            era,
            arrival: self.arrivals,
            since,
            sessions: 0,
            live: 0,
            hidden: 0,
            filling: 0,
            condemned: 0,
            writers: 0,
            granules: 0,
            pins: 0,
            old_pins: 0,
        });
        Some(NamespaceId(id as u16))
    }

    fn make_way(&mut self) -> Option<usize> {
        let idle = self.iter().filter(|(_, space)| space.sessions == 0 && space.is_empty());
        let (id, _) = idle.min_by_key(|(_, space)| space.arrival)?;
        let id = usize::from(id.0);
        let gone = self.places[id].take()?;
        self.by_fingerprint.remove(&gone.spec.fingerprint());
        Some(id)
    }

    /// How the tenant's most similar namespace differs from `spec`: fields by "; ", as
    /// `kv_dtype: "fp8" here, "bf16" there`, where "here" is `spec`.
    pub fn nearest(&self, spec: &NamespaceSpec, tenant: usize) -> Option<String> {
        let siblings = self.iter().filter(|(_, space)| space.tenant == tenant);
        let differences = siblings.map(|(_, space)| spec.differences(&space.spec));
        differences.filter(|fields| !fields.is_empty()).min_by_key(Vec::len).map(|f| f.join("; "))
    }
}
