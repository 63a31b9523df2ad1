//! The default policy against LRU, through the store itself, on recorded requests: better where
//! memory is scarce, and nowhere worse by more than a point.
//!
//! `KEEPWARM_TEST_SCALE` of 10 and more replays every capacity and the merged sessions of 40
//! coding agents; below it, the smallest capacities and 10 agents.

mod common;

use common::traces::{Order, Request, coding_agents, conversation, replay};
use keepwarm_store::PolicyKind;

/// Capacities in blocks, and what the default has to gain there over LRU.
const BOUNDS: [(u64, f64); 6] = [
    (1_000, 0.010),
    (3_000, 0.015),
    (5_860, -0.010),
    (10_000, -0.010),
    (30_000, -0.010),
    (50_000, -0.010),
];
const NOWHERE_BELOW: f64 = -0.010;

fn assert_gains(name: &str, requests: &[Request], tokens: u64, bounds: &[(u64, f64)]) {
    for &(capacity, least) in bounds {
        for order in [Order::TailFirst, Order::Engine] {
            let rate = |policy| replay(requests, tokens, policy, capacity, order).0;
            let (lru, default) = (rate(PolicyKind::Lru), rate(PolicyKind::default()));
            let gain = default - lru;
            println!("{name} {capacity:>6} {order:?}: lru {lru:.4} default {gain:+.4}");
            assert!(gain >= least, "{name} at {capacity}, {order:?}: {gain:+.4}, want {least:+.4}");
        }
    }
}

fn or_skip(requests: Result<Vec<Request>, String>) -> Option<Vec<Request>> {
    requests.inspect_err(|reason| println!("skipped: {reason}")).ok()
}

#[test]
fn it_gains_on_the_conversation_trace() {
    let Some(requests) = or_skip(conversation()) else { return };
    let bounds = if common::scaled(1) < 10 { &BOUNDS[..2] } else { &BOUNDS[..] };
    assert_gains("conversation", &requests, 512, bounds);
}

#[test]
fn it_does_not_lose_on_merged_coding_agents() {
    let (sessions, capacities) = match common::scaled(1) {
        ..10 => (10, 1),
        _ => (40, BOUNDS.len()),
    };
    let Some(requests) = or_skip(coding_agents(sessions)) else { return };
    let bounds = BOUNDS.map(|(capacity, _)| (capacity, NOWHERE_BELOW));
    assert_gains(&format!("{sessions} coding agents"), &requests, 64, &bounds[..capacities]);
}
