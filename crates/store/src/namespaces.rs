//! Namespaces known to this node: who may share blocks with whom, in which epoch.

use std::collections::HashMap;

use crate::identity::NamespaceSpec;
use crate::types::{Epoch, MissReason, NamespaceId, Terms};

/// One namespace, and counts of everything that it has here.
#[derive(Debug)]
pub(crate) struct Namespace {
    pub spec: NamespaceSpec,
    /// Number of its tenant.
    pub tenant: usize,
    pub epoch: Epoch,
    /// For blocks stored from now on: the latest attach that named each.
    pub terms: Terms,
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
    /// Calls that let go of the lock half-way and come back to it.
    pub entered: u32,
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
    /// Blocks of this version on flash.
    pub flash_live: u64,
    /// Those of older versions, not yet taken back.
    pub flash_hidden: u64,
    /// Blocks of this version that memory has and flash too.
    pub in_both: u64,
    /// Leases and reads of this version's blocks.
    pub pins: u64,
    /// Those of older versions' blocks.
    pub old_pins: u64,
}

impl Namespace {
    /// Whether nothing of it is here.
    fn is_empty(&self) -> bool {
        let on_flash = self.flash_live + self.flash_hidden;
        self.live + self.hidden + self.filling + self.condemned + self.writers + on_flash == 0
    }

    /// Whether nobody uses it or holds a block of it, so that its place may go to another.
    pub fn is_idle(&self) -> bool {
        let held = self.pins + self.old_pins + self.condemned + self.writers;
        self.sessions == 0 && self.entered == 0 && held == 0
    }

    /// Why a block of another version is not to be seen.
    pub fn hidden_reason(&self, version: u32) -> MissReason {
        if version < self.dropped_below { MissReason::Absent } else { MissReason::Epoch }
    }

    /// Hides all blocks at once; returns how many were visible in memory, and on flash.
    pub fn hide_all(&mut self) -> (u64, u64) {
        self.version += 1;
        let hidden = std::mem::take(&mut self.live);
        self.hidden += hidden;
        self.old_pins += std::mem::take(&mut self.pins);
        let on_flash = std::mem::take(&mut self.flash_live);
        self.flash_hidden += on_flash;
        self.in_both = 0;
        (hidden, on_flash)
    }

    /// What was hidden until now was dropped: no memory of it either.
    pub fn forget_all(&mut self, era: u64) {
        self.dropped_below = self.version;
        self.era = era;
    }

    /// Takes what an attach names.
    pub fn agree(&mut self, terms: Terms) {
        self.terms.ttl = terms.ttl.or(self.terms.ttl);
        self.terms.priority = terms.priority.or(self.terms.priority);
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

    pub fn is_full(&self) -> bool {
        self.places.iter().all(Option::is_some)
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

    /// Takes a namespace in. None: all places are taken.
    pub fn add(
        &mut self,
        spec: NamespaceSpec,
        tenant: usize,
        epoch: Epoch,
        era: u64,
        since: u64,
    ) -> Option<NamespaceId> {
        let id = self.places.iter().position(Option::is_none)?;
        self.by_fingerprint.insert(spec.fingerprint(), id as u16);
        self.arrivals += 1;
        self.places[id] = Some(Namespace {
            spec,
            tenant,
            epoch,
            terms: Terms::default(),
            version: 0,
            dropped_below: 0,
            era,
            arrival: self.arrivals,
            since,
            sessions: 0,
            entered: 0,
            live: 0,
            hidden: 0,
            filling: 0,
            condemned: 0,
            writers: 0,
            granules: 0,
            flash_live: 0,
            flash_hidden: 0,
            in_both: 0,
            pins: 0,
            old_pins: 0,
        });
        Some(NamespaceId(id as u16))
    }

    /// Places that each of `tenants` may have in use, whatever the others do.
    pub fn share(&self, tenants: usize) -> usize {
        (self.places.len() / tenants.max(1)).max(1)
    }

    /// How many of a tenant's are in use.
    pub fn in_use(&self, tenant: usize) -> usize {
        self.iter().filter(|(_, space)| space.tenant == tenant && !space.is_idle()).count()
    }

    /// Who makes way for one more of `tenant`: the oldest that is idle and empty, else the oldest
    /// idle one of a tenant that has more than its share; of this tenant, if it has its share.
    pub fn next_to_go(&self, tenant: usize, tenants: usize) -> Option<NamespaceId> {
        let share = self.share(tenants);
        let mut taken = vec![0; tenants];
        self.iter().for_each(|(_, space)| taken[space.tenant] += 1);
        let may_go = |owner: usize| match taken[tenant] >= share {
            true => owner == tenant,
            // With fewer places than tenants not everyone can have its share.
            false => taken[owner] > share || tenants > self.places.len(),
        };
        let idle = self.iter().filter(|(_, space)| space.is_idle());
        let open = idle.filter(|(_, space)| space.is_empty() || may_go(space.tenant));
        open.min_by_key(|(_, space)| (!space.is_empty(), space.arrival)).map(|(id, _)| id)
    }

    /// Forgets one that is idle and empty; false when it is not.
    pub fn vacate(&mut self, id: NamespaceId) -> bool {
        let place = &mut self.places[usize::from(id.0)];
        let Some(gone) = place.take_if(|space| space.is_idle() && space.is_empty()) else {
            return false;
        };
        self.by_fingerprint.remove(&gone.spec.fingerprint());
        true
    }

    /// How the tenant's most similar namespace differs from `spec`: fields by "; ", as
    /// `kv_dtype: "fp8" here, "bf16" there`, where "here" is `spec`.
    pub fn nearest(&self, spec: &NamespaceSpec, tenant: usize) -> Option<String> {
        let siblings = self.iter().filter(|(_, space)| space.tenant == tenant);
        let differences = siblings.map(|(_, space)| spec.differences(&space.spec));
        differences.filter(|fields| !fields.is_empty()).min_by_key(Vec::len).map(|f| f.join("; "))
    }
}
