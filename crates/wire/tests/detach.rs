//! Spaces that go: their namespaces' places come back, and nobody else's do.

mod support;

use keepwarm_store::types::{Epoch, GetOutcome, PutOutcome};
use keepwarm_wire::{Memory, Space};

use support::{LONG, Node, SECOND, attach, eventually, get, key_check, keys, put, spec};

/// More than a node has places for.
const MANY: usize = 300;
const LENGTH: usize = 1_000;

fn attach_again(memory: &Memory, model: &str) -> Space {
    let spec = spec(model, 1);
    let check = key_check(&spec);
    memory.attach_within(spec, check, Epoch(0), LONG).unwrap_or_else(|e| panic!("{model}: {e}"))
}

fn sessions(node: &Node, model: &str) -> Option<u32> {
    let spaces = node.store.stats().namespaces;
    spaces.into_iter().find(|space| space.model == model).map(|space| space.sessions)
}

#[test]
fn spaces_that_went_leave_their_places() {
    let node = Node::start(16);
    for memory in [node.connect(), Memory::embedded(node.store.clone())] {
        let kept = attach(&memory, "kept");
        for number in 0..MANY {
            let space = attach_again(&memory, &format!("weights of step {number}"));
            assert_eq!(put(&space, &keys(1, 1), LENGTH, LONG), [PutOutcome::Stored]);
            drop(space);
        }
        assert_eq!(put(&kept, &keys(1, 1), LENGTH, LONG).len(), 1);
        assert_eq!(get(&kept, &keys(1, 1), LENGTH, LONG), [GetOutcome::Ok]);
        drop(kept);
        eventually("all has been left", SECOND, || {
            let spaces = node.store.stats().namespaces;
            spaces.iter().all(|space| space.sessions == 0)
        });
        node.store.check().expect("a store that adds up");
    }
}

#[test]
fn a_namespace_stays_while_one_of_its_spaces_does() {
    let node = Node::start(16);
    for memory in [node.connect(), Memory::embedded(node.store.clone())] {
        let (one, two) = (attach(&memory, "m"), attach(&memory, "m"));
        let keys = keys(2, 2);
        put(&one, &keys, LENGTH, LONG);
        let clone = one.clone();
        drop(one);
        assert_eq!(get(&clone, &keys, LENGTH, LONG), [GetOutcome::Ok; 2]);
        drop(clone);
        assert_eq!(sessions(&node, "m"), Some(1));
        assert_eq!(get(&two, &keys, LENGTH, LONG), [GetOutcome::Ok; 2]);
        drop(two);
        eventually("the last has left", SECOND, || sessions(&node, "m") == Some(0));
        let again = attach(&memory, "m");
        assert_eq!(get(&again, &keys, LENGTH, LONG), [GetOutcome::Ok; 2], "blocks stay");
    }
}
