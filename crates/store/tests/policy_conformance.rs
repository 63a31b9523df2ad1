//! What every policy owes its caller, over a links table of the test's own (as a simulator has).

mod common;

use std::collections::BTreeSet;

use common::Random;
use keepwarm_store::PolicyKind;
use keepwarm_store::policy::{AnyPolicy, Links, NO_SLOT, Policy};

const SLOTS: u32 = 200;
const KINDS: [PolicyKind; 3] = [PolicyKind::Lru, PolicyKind::Fifo, PolicyKind::S3Fifo];

/// Links that notice a touch of a slot that is in no policy.
struct Table {
    links: Vec<(u32, u32, u8)>,
    members: BTreeSet<u32>,
}

impl Table {
    fn new() -> Table {
        Table { links: vec![(7, 7, 0xff); SLOTS as usize], members: BTreeSet::new() }
    }

    fn own(&self, slot: u32) -> usize {
        assert!(self.members.contains(&slot), "slot {slot} is not the policy's to touch");
        slot as usize
    }
}

impl Links for Table {
    fn prev(&self, slot: u32) -> u32 {
        self.links[self.own(slot)].0
    }
    fn next(&self, slot: u32) -> u32 {
        self.links[self.own(slot)].1
    }
    fn set_prev(&mut self, slot: u32, prev: u32) {
        let own = self.own(slot);
        self.links[own].0 = prev;
    }
    fn set_next(&mut self, slot: u32, next: u32) {
        let own = self.own(slot);
        self.links[own].1 = next;
    }
    fn bits(&self, slot: u32) -> u8 {
        self.links[self.own(slot)].2
    }
    fn set_bits(&mut self, slot: u32, bits: u8) {
        let own = self.own(slot);
        self.links[own].2 = bits;
    }
}

struct Subject {
    policy: AnyPolicy,
    table: Table,
}

impl Subject {
    fn new(kind: PolicyKind) -> Subject {
        Subject { policy: AnyPolicy::new(kind), table: Table::new() }
    }

    fn filled(kind: PolicyKind, slots: u32) -> Subject {
        let mut subject = Subject::new(kind);
        (0..slots).for_each(|slot| subject.insert(slot, false));
        subject
    }

    fn insert(&mut self, slot: u32, returning: bool) {
        assert!(self.table.members.insert(slot));
        self.policy.insert(&mut self.table, slot, returning);
    }

    fn remove(&mut self, slot: u32) {
        self.policy.remove(&mut self.table, slot);
        assert!(self.table.members.remove(&slot));
    }

    fn evict(&mut self, looks: u32, may_leave: impl Fn(u32) -> bool) -> Option<u32> {
        let mut asked = 0;
        let victim = self.policy.evict(&mut self.table, looks, |table, slot| {
            assert!(table.members.contains(&slot));
            asked += 1;
            may_leave(slot)
        });
        assert!(asked <= looks, "{asked} looks of {looks}");
        if let Some(slot) = victim {
            assert!(may_leave(slot), "slot {slot} may not leave");
            assert!(self.table.members.remove(&slot));
        }
        victim
    }

    fn check(&self) {
        let mut seen = BTreeSet::new();
        let adds_up = self.policy.visit(&self.table, |slot| assert!(seen.insert(slot)));
        assert!(adds_up && seen == self.table.members);
        assert_eq!(self.policy.len() as usize, seen.len());
        assert_eq!(self.policy.is_empty(), seen.is_empty());
    }
}

fn for_each_kind(test: impl Fn(PolicyKind)) {
    for kind in KINDS {
        println!("{}", kind.name());
        test(kind);
    }
}

#[test]
fn an_empty_policy_evicts_nothing() {
    for_each_kind(|kind| {
        let mut subject = Subject::new(kind);
        assert_eq!(subject.evict(100, |_| true), None);
        subject.insert(3, false);
        assert_eq!(subject.evict(0, |_| true), None, "no looks, no victim");
        assert_eq!(subject.evict(2, |_| true), Some(3));
        assert_eq!(subject.evict(100, |_| true), None);
        subject.check();
    });
}

#[test]
fn any_sequence_keeps_exactly_the_members() {
    let seed = common::seed("policies");
    for_each_kind(|kind| {
        let mut random = Random::new(seed);
        let mut subject = Subject::new(kind);
        for op in 0..20_000 {
            let slot = random.below(SLOTS.into()) as u32;
            let is_member = subject.table.members.contains(&slot);
            match (random.below(10), is_member) {
                (0..5, false) => subject.insert(slot, random.chance(4)),
                (0..5, true) => subject.policy.touch(&mut subject.table, slot),
                (5, true) => subject.remove(slot),
                (6, _) => {
                    let looks = random.below(20) as u32;
                    subject.evict(looks, |slot| slot % 3 != 0);
                }
                (7, _) => _ = subject.evict(2 * SLOTS, |_| true),
                _ => {}
            }
            if op % 16 == 0 {
                subject.check();
            }
        }
        subject.check();
    });
}

#[test]
fn one_that_may_leave_is_found_wherever_it_is() {
    for_each_kind(|kind| {
        for wanted in 0..50 {
            let mut subject = Subject::filled(kind, 50);
            // Much used blocks must not hide it.
            for slot in 0..50 {
                (0..3).for_each(|_| subject.policy.touch(&mut subject.table, slot));
            }
            assert_eq!(subject.evict(102, |slot| slot == wanted), Some(wanted));
            assert_eq!(subject.evict(102, |_| false), None);
            subject.check();
        }
    });
}

#[test]
fn refused_slots_are_not_met_first_again() {
    for_each_kind(|kind| {
        let mut subject = Subject::filled(kind, 100);
        // Thirty leased blocks, in the way of the first call only.
        assert!(subject.evict(202, |slot| slot >= 30).is_some());
        for _ in 0..20 {
            assert!(subject.evict(202, |slot| slot >= 30).is_some());
        }
        let looks_for_one = (1..).find(|looks| subject.evict(*looks, |slot| slot >= 30).is_some());
        assert!(looks_for_one.expect("some number") <= 4, "{looks_for_one:?}");
        subject.check();
    });
}

#[test]
fn unused_blocks_leave_in_the_order_in_which_they_came() {
    for_each_kind(|kind| {
        let mut subject = Subject::filled(kind, 20);
        let left: Vec<_> = (0..20).filter_map(|_| subject.evict(100, |_| true)).collect();
        assert_eq!(left, (0..20).collect::<Vec<_>>());
    });
}

#[test]
fn lru_keeps_what_was_used_and_fifo_does_not_care() {
    let order = |kind| {
        let mut subject = Subject::filled(kind, 5);
        subject.policy.touch(&mut subject.table, 0);
        subject.policy.touch(&mut subject.table, 2);
        (0..5).filter_map(|_| subject.evict(100, |_| true)).collect::<Vec<_>>()
    };
    assert_eq!(order(PolicyKind::Lru), [1, 3, 4, 0, 2]);
    assert_eq!(order(PolicyKind::Fifo), [0, 1, 2, 3, 4]);
}

#[test]
fn s3fifo_keeps_what_was_used_twice_and_what_returns() {
    let mut subject = Subject::filled(PolicyKind::S3Fifo, 10);
    (0..2).for_each(|_| subject.policy.touch(&mut subject.table, 0));
    subject.insert(50, true);
    for slot in 100..130 {
        subject.insert(slot, false);
        subject.evict(100, |_| true);
    }
    assert!(subject.table.members.contains(&0), "used twice on probation");
    assert!(subject.table.members.contains(&50), "came back");
    assert!(!subject.table.members.contains(&1), "one pass of new blocks took it out");
}

#[test]
fn the_end_of_a_list_is_no_slot() {
    assert_eq!(NO_SLOT, u32::MAX);
}
