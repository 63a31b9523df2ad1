//! One tenant's blocks by priority: an order of leaving for each class, and which class gives.

use crate::config::PolicyKind;
use crate::index::{Slot, Slots};
use crate::policy::{AnyPolicy, Policy, Use};
use crate::types::Priority;

/// A class whose blocks are no more than one part in this many of the tenant's gives only after
/// those above it: so a higher class cannot starve a lower one.
const FLOOR_SHARE: u64 = 8;

#[derive(Debug)]
struct Class {
    policy: AnyPolicy,
    /// Granules of its blocks.
    granules: u64,
    /// Blocks that the policy let go to make room; wraps.
    evictions: u32,
}

/// What an eviction came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Picked {
    Slot(Slot),
    /// None of those looked at may leave; there are more.
    OutOfLooks,
    Nothing,
}

/// The order in which a tenant's blocks leave: the lowest priority first, down to an eighth of what
/// the tenant has, then the next; within a class as the policy says.
#[derive(Debug)]
pub(crate) struct Classes([Class; Priority::COUNT]);

impl Classes {
    pub fn new(kind: PolicyKind) -> Classes {
        let class = |_| Class { policy: AnyPolicy::new(kind), granules: 0, evictions: 0 };
        Classes(std::array::from_fn(class))
    }

    fn of(&mut self, slots: &Slots, slot: Slot) -> &mut Class {
        &mut self.0[slots.metas[slot as usize].priority().index()]
    }

    /// Takes a complete block in. `left` as in [`Policy::insert`].
    pub fn insert(&mut self, slots: &mut Slots, slot: Slot, granules: u32, left: Option<u32>) {
        let class = self.of(slots, slot);
        class.granules += u64::from(granules);
        class.policy.insert(slots, slot, left);
    }

    #[inline]
    pub fn touch(&mut self, slots: &mut Slots, slot: Slot, how: Use) {
        self.of(slots, slot).policy.touch(slots, slot, how);
    }

    /// Takes a block out that leaves for a reason of the caller's; `leave` follows.
    pub fn remove(&mut self, slots: &mut Slots, slot: Slot) {
        self.of(slots, slot).policy.remove(slots, slot);
    }

    /// A block left. `made_room`: because the policy named it, and then this returns the count of
    /// those.
    pub fn leave(&mut self, slots: &Slots, slot: Slot, granules: u32, made_room: bool) -> u32 {
        let class = self.of(slots, slot);
        class.granules -= u64::from(granules);
        class.evictions = class.evictions.wrapping_add(u32::from(made_room));
        class.evictions
    }

    /// Blocks of this priority that made room; wraps.
    pub fn evictions(&self, priority: Priority) -> u32 {
        self.0[priority.index()].evictions
    }

    /// What held the slot in place let go of it.
    #[inline]
    pub fn rewind(&mut self, slots: &Slots, slot: Slot) {
        self.of(slots, slot).policy.rewind();
    }

    pub fn rewind_all(&mut self) {
        self.0.iter_mut().for_each(|class| class.policy.rewind());
    }

    pub fn len(&self) -> u32 {
        self.0.iter().map(|class| class.policy.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|class| class.policy.is_empty())
    }

    /// Which classes give, one after the other.
    fn giving(&self) -> [usize; Priority::COUNT] {
        let floor = self.0.iter().map(|class| class.granules).sum::<u64>() / FLOOR_SHARE;
        let mut order = std::array::from_fn(|at| at);
        // Stable: those above their floor first, and among each the lowest first.
        order.sort_by_key(|at| self.0[*at].granules <= floor);
        order
    }

    /// Picks the block that leaves next, of those that `may_leave`, and lets go of it.
    pub fn evict(
        &mut self,
        slots: &mut Slots,
        looks_max: u32,
        mut may_leave: impl FnMut(&Slots, Slot) -> bool,
    ) -> Picked {
        for at in self.giving() {
            let policy = &mut self.0[at].policy;
            if policy.is_empty() {
                continue;
            }
            let enough = policy.len().saturating_mul(4).saturating_add(4);
            let looks = enough.min(looks_max);
            match policy.evict(slots, looks, &mut may_leave) {
                Some(slot) => return Picked::Slot(slot),
                None if looks < enough => return Picked::OutOfLooks,
                None => {}
            }
        }
        Picked::Nothing
    }

    /// Visits every block, from the one that leaves last; false when links do not add up.
    pub fn visit(&self, slots: &Slots, mut visitor: impl FnMut(Slot)) -> bool {
        self.0.iter().rev().all(|class| class.policy.visit(slots, &mut visitor))
    }

    /// Granules of one class, for checks.
    pub fn granules(&self, priority: Priority) -> u64 {
        self.0[priority.index()].granules
    }
}
