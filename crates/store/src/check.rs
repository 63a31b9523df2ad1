//! Counts everything again and compares with what the store believes. For tests and `doctor`; it
//! holds the lock for as long as it takes.

use crate::index::{Slot, State};
use crate::inner::Inner;
use crate::store::Store;
use crate::tenants::Tenant;
use crate::types::Priority;

impl Store {
    /// Counts everything again and says what does not add up.
    ///
    /// # Errors
    /// The first thing that does not add up.
    pub fn check(&self) -> Result<(), String> {
        let inner = self.lock();
        inner.allocator.check()?;
        inner.index.check()?;
        inner.check_pins()?;
        inner.check_space()?;
        inner.check_policies()?;
        inner.check_namespaces()?;
        inner.check_flash()
    }
}

pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    counted: T,
    kept: T,
) -> Result<(), String> {
    if counted == kept {
        return Ok(());
    }
    Err(format!("{what}: counted {counted:?}, but the store kept {kept:?}"))
}

impl Inner {
    fn used_slots(&self) -> impl Iterator<Item = (Slot, State)> + '_ {
        let states = self.index.slots.metas.iter().map(|meta| meta.state());
        let numbered = states.enumerate().map(|(slot, state)| (slot as Slot, state));
        numbered.filter(|(_, state)| *state != State::Free)
    }

    fn block_granules(&self, slot: Slot) -> u64 {
        let mut granules = 0;
        self.parts.visit(slot, |place| granules += u64::from(place.extents.granules()));
        granules
    }

    /// Pins = leases + reads, by slot and by namespace; bytes under leases.
    fn check_pins(&self) -> Result<(), String> {
        let mut leases = vec![0u32; self.index.capacity() as usize];
        self.leases.for_each_slot(|slot| leases[slot as usize] += 1);
        let mut pins = vec![[0u64; 2]; self.namespaces.places()];
        let mut leased = vec![0u64; self.tenants.len()];
        let mut reads = 0;
        for (slot, meta) in self.index.slots.metas.iter().enumerate() {
            let entry = self.index.entry(slot as Slot);
            let found = u32::from(meta.leases);
            equal(&format!("leases of slot {slot}"), leases[slot], found)?;
            if meta.state() == State::Free {
                equal(&format!("reads of free slot {slot}"), entry.reads, 0)?;
                continue;
            }
            reads += u64::from(entry.reads);
            let is_old = entry.version != self.namespaces.at(entry.ns).version;
            pins[entry.ns as usize][usize::from(is_old)] +=
                u64::from(found + u32::from(entry.reads));
            if found > 0 {
                leased[self.tenant_of(slot as Slot)] += self.block_granules(slot as Slot);
            }
        }
        self.leases.for_each_on_flash(|(ns, version)| {
            let is_old = version != self.namespaces.at(ns).version;
            pins[usize::from(ns)][usize::from(is_old)] += 1;
        });
        equal("reads", reads, self.reads)?;
        equal("leased granules", leased.iter().sum(), self.leased)?;
        for (tenant, leased) in self.tenants.iter().zip(leased) {
            equal(&format!("leased granules of tenant {}", tenant.name), leased, tenant.leased)?;
        }
        for (id, space) in self.namespaces.iter() {
            let kept = [space.pins, space.old_pins];
            equal(&format!("pins of namespace {}", id.0), pins[id.0 as usize], kept)?;
        }
        Ok(())
    }

    /// Free + blocks' + writers' granules = all; each tenant's and namespace's use.
    fn check_space(&self) -> Result<(), String> {
        let mut by_space = vec![0u64; self.namespaces.places()];
        for (slot, _) in self.used_slots() {
            let granules = self.block_granules(slot);
            let summed = u64::from(self.parts.summary(slot).granules);
            equal(&format!("granules of slot {slot}"), granules, summed)?;
            by_space[self.index.entry(slot).ns as usize] += granules;
            self.check_owner(slot)?;
        }
        let blocks: u64 = by_space.iter().sum();
        let (free, all) = (self.allocator.free_granules(), self.allocator.granules());
        // A window that is being emptied holds some out of reach for a moment.
        if self.allocator.held().is_none() {
            equal("granules", u64::from(free) + blocks + self.writing, u64::from(all))?;
        }
        let mut by_tenant = vec![0u64; self.tenants.len()];
        let mut writing = 0;
        for (id, space) in self.namespaces.iter() {
            let Some(writers) = space.granules.checked_sub(by_space[id.0 as usize]) else {
                return Err(format!("namespace {} has more granules than it was charged", id.0));
            };
            if space.writers == 0 {
                equal(&format!("granules of namespace {}", id.0), writers, 0)?;
            }
            writing += writers;
            by_tenant[space.tenant] += space.granules;
        }
        equal("writers' granules", writing, self.writing)?;
        for (tenant, used) in self.tenants.iter().zip(by_tenant) {
            equal(&format!("granules of tenant {}", tenant.name), used, tenant.used)?;
        }
        Ok(())
    }

    /// Every granule of the block says that the block owns it.
    fn check_owner(&self, slot: Slot) -> Result<(), String> {
        let mut stranger = None;
        self.parts.visit(slot, |place| {
            for extent in place.extents.iter() {
                let mut granules = extent.first_granule..extent.end();
                stranger = stranger
                    .or(granules.find(|granule| self.allocator.owner_of(*granule) != Some(slot)));
            }
        });
        match stranger {
            Some(granule) => Err(format!("granule {granule} of slot {slot} has another owner")),
            None => Ok(()),
        }
    }

    /// Each complete block is in its own tenant's policy, once, and nothing else is in any.
    fn check_policies(&self) -> Result<(), String> {
        let mut seen = vec![false; self.index.capacity() as usize];
        for (number, tenant) in self.tenants.iter().enumerate() {
            let (mut wrong, mut granules) = (None, [0; Priority::COUNT]);
            let adds_up = tenant.order.visit(&self.index.slots, |slot| {
                let is_ready = self.index.meta(slot).state() == State::Ready;
                granules[self.index.meta(slot).priority().index()] += self.block_granules(slot);
                let is_first = !std::mem::replace(&mut seen[slot as usize], true);
                if !is_ready || !is_first || self.tenant_of(slot) != number {
                    wrong = Some(slot);
                }
            });
            if !adds_up || wrong.is_some() {
                return Err(format!("policy of tenant {}: links, slot {wrong:?}", tenant.name));
            }
            for (at, granules) in granules.into_iter().enumerate() {
                let priority = Priority::new(at as u8).expect("one of them");
                equal("granules of a class", granules, tenant.order.granules(priority))?;
            }
            equal("blocks of a tenant", u64::from(tenant.order.len()), tenant.blocks)?;
        }
        let ready = self.used_slots().filter(|(_, state)| *state == State::Ready).count();
        equal("blocks in policies", seen.iter().filter(|seen| **seen).count(), ready)
    }

    /// Blocks of each namespace by what they are.
    fn check_namespaces(&self) -> Result<(), String> {
        let mut counts = vec![[0u64; 4]; self.namespaces.places()];
        for (slot, state) in self.used_slots() {
            let entry = self.index.entry(slot);
            let is_current = entry.version == self.namespaces.at(entry.ns).version;
            let kind = match (state, is_current) {
                (State::Ready, true) => 0,
                (State::Ready, false) => 1,
                (State::Filling, _) => 2,
                _ => 3,
            };
            counts[entry.ns as usize][kind] += 1;
        }
        let mut hidden = 0;
        for (id, space) in self.namespaces.iter() {
            let kept = [space.live, space.hidden, space.filling, space.condemned];
            equal(&format!("blocks of namespace {}", id.0), counts[id.0 as usize], kept)?;
            hidden += space.hidden;
        }
        equal("hidden blocks", hidden, self.hidden)?;
        let filling: u64 = counts.iter().map(|kinds| kinds[2]).sum();
        let of_tenants = |count: fn(&Tenant) -> u64| self.tenants.iter().map(count).sum::<u64>();
        equal("tenants' incomplete blocks", filling, of_tenants(|t| u64::from(t.filling)))?;
        equal("tenants' writing granules", of_tenants(|t| t.writing), self.writing)?;
        equal("incomplete blocks", filling, self.fillings.len() as u64)
    }
}
