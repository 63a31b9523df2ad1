//! What every policy owes its caller, over a links table of the test's own (as a simulator has).

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::Random;
use keepwarm_store::PolicyKind;
use keepwarm_store::policy::{AnyPolicy, Links, NO_SLOT, Policy, Use};

const SLOTS: u32 = 200;
const KINDS: [PolicyKind; 4] = PolicyKind::ALL;
const HOWS: [Use; 3] = [Use::Read, Use::Touched, Use::Arranged];

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
        (0..slots).for_each(|slot| subject.insert(slot, None));
        subject
    }

    fn insert(&mut self, slot: u32, left: Option<u32>) {
        assert!(self.table.members.insert(slot));
        self.policy.insert(&mut self.table, slot, left);
    }

    fn read(&mut self, slot: u32) {
        self.policy.touch(&mut self.table, slot, Use::Read);
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
        subject.insert(3, None);
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
                (0..5, false) => {
                    let left = random.chance(4).then(|| random.below(1000) as u32);
                    subject.insert(slot, left);
                }
                (0..5, true) => {
                    let how = HOWS[random.below(3) as usize];
                    subject.policy.touch(&mut subject.table, slot, how);
                }
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
                (0..3).for_each(|_| subject.read(slot));
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
        subject.read(0);
        subject.read(2);
        (0..5).filter_map(|_| subject.evict(100, |_| true)).collect::<Vec<_>>()
    };
    assert_eq!(order(PolicyKind::Lru), [1, 3, 4, 0, 2]);
    assert_eq!(order(PolicyKind::Fifo), [0, 1, 2, 3, 4]);
}

#[test]
fn s3fifo_keeps_what_was_used_twice_and_what_returns() {
    let mut subject = Subject::filled(PolicyKind::S3Fifo, 10);
    (0..2).for_each(|_| subject.read(0));
    subject.insert(50, Some(1));
    for slot in 100..130 {
        subject.insert(slot, None);
        subject.evict(100, |_| true);
    }
    assert!(subject.table.members.contains(&0), "used twice on probation");
    assert!(subject.table.members.contains(&50), "came back");
    assert!(!subject.table.members.contains(&1), "one pass of new blocks took it out");
}

#[test]
fn adaptive_keeps_what_was_used_again_through_a_scan() {
    let mut subject = Subject::filled(PolicyKind::Adaptive, 100);
    (0..10).for_each(|slot| subject.read(slot));
    // Stored and touched by one request: not one more use.
    (10..20).for_each(|slot| {
        subject.policy.touch(&mut subject.table, slot, Use::Arranged);
        subject.policy.touch(&mut subject.table, slot, Use::Touched);
    });
    for slot in 100..200 {
        subject.insert(slot, None);
        assert!(subject.evict(100, |_| true).is_some());
    }
    let kept = |slots: std::ops::Range<u32>| {
        slots.filter(|slot| subject.table.members.contains(slot)).count()
    };
    assert_eq!((kept(0..10), kept(10..20)), (10, 0), "read again, and touched by its own request");
    subject.check();
}

/// A node of prompts that grow and share heads: `(conversation, position)`.
type Node = (u64, u32);

/// Requests on a policy over a bounded memory, as an engine makes them: the prefix is read, the
/// rest is put, then all of it is touched, tail first.
struct Prompts {
    subject: Subject,
    slots: BTreeMap<Node, u32>,
    free: Vec<u32>,
    left: BTreeMap<Node, u32>,
    evictions: u32,
}

impl Prompts {
    fn touch(&mut self, nodes: &[Node], how: Use) {
        for node in nodes.iter().rev() {
            if let Some(slot) = self.slots.get(node) {
                self.subject.policy.touch(&mut self.subject.table, *slot, how);
            }
        }
    }

    fn put(&mut self, node: Node) {
        let slot = self.free.pop().unwrap_or_else(|| {
            let slot = self.subject.evict(10_000, |_| true).expect("a victim");
            let gone = *self.slots.iter().find(|(_, at)| **at == slot).expect("a block").0;
            self.slots.remove(&gone);
            self.evictions += 1;
            self.left.insert(gone, self.evictions);
            slot
        });
        let left = self.left.remove(&node).map(|when| self.evictions - when);
        self.subject.insert(slot, left);
        self.slots.insert(node, slot);
    }

    fn request(&mut self, nodes: &[Node]) {
        let prefix = nodes.iter().take_while(|node| self.slots.contains_key(node)).count();
        let (head, tail) = nodes.split_at(prefix);
        for node in head {
            self.subject.read(self.slots[node]);
        }
        self.touch(head, Use::Arranged);
        tail.iter().for_each(|node| self.put(*node));
        self.touch(tail, Use::Arranged);
        self.touch(nodes, Use::Touched);
    }
}

/// With these, a run's tail never stays longer than its head.
#[test]
fn runs_leave_tail_first() {
    let seed = common::seed("runs");
    for kind in [PolicyKind::Lru, PolicyKind::Adaptive] {
        let (subject, free) = (Subject::new(kind), (0..SLOTS).collect());
        let (slots, left) = (BTreeMap::new(), BTreeMap::new());
        let mut prompts = Prompts { subject, slots, free, left, evictions: 0 };
        let mut random = Random::new(seed);
        let mut lengths = [1u32; 30];
        for _ in 0..4_000 {
            let at = random.below(30) as usize;
            lengths[at] = if lengths[at] > 25 { 1 } else { lengths[at] + random.below(4) as u32 };
            // The first two blocks are everyone's.
            let node = |i: u32| if i < 2 { (0, i) } else { (1 + at as u64, i) };
            let nodes: Vec<Node> = (0..lengths[at] + 2).map(node).collect();
            prompts.request(&nodes);
            for (conversation, position) in prompts.slots.keys().copied() {
                let parent = match position {
                    0 => continue,
                    1 | 2 => (0, position - 1),
                    _ => (conversation, position - 1),
                };
                let is_here = prompts.slots.contains_key(&parent);
                assert!(is_here, "{}: {position} of {conversation} has no head", kind.name());
            }
        }
        assert!(prompts.evictions > 1_000, "{}", prompts.evictions);
        prompts.subject.check();
    }
}

#[test]
fn the_end_of_a_list_is_no_slot() {
    assert_eq!(NO_SLOT, u32::MAX);
}
