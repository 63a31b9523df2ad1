//! The reference values of a public trace, to four digits: through the store's own policies, and
//! LFU. Skipped, with the reason, where the trace is not there.

mod common;

use common::{Request, conversation};
use keepwarm_sim::cache::{Cache, Touch};
use keepwarm_sim::order::OrderKind;

/// In blocks; 0: unbounded.
const CAPACITIES: [u32; 8] = [1_000, 3_000, 5_860, 10_000, 30_000, 50_000, 100_000, 0];
const BLOCK_TOKENS: u64 = 512;

fn rates(requests: &[Request], policy: &str, capacity: u32, touch: Touch) -> (f64, f64) {
    let kind = OrderKind::named(policy).expect("a policy");
    let mut cache = Cache::new(kind, (capacity > 0).then_some(capacity));
    let (mut hits, mut blocks, mut hit_tokens, mut tokens) = (0, 0, 0, 0);
    for request in requests {
        let prefix = u64::from(cache.serve(&request.blocks, touch));
        hits += prefix;
        blocks += request.blocks.len();
        hit_tokens += (prefix * BLOCK_TOKENS).min(request.tokens);
        tokens += request.tokens;
    }
    (hits as f64 / blocks as f64, hit_tokens as f64 / tokens as f64)
}

fn four_digits(rate: f64) -> f64 {
    (rate * 1e4).round() / 1e4
}

#[test]
fn lru_fifo_and_lfu_give_every_published_value() {
    let Ok(requests) = conversation().inspect_err(|why| println!("skipped: {why}")) else { return };
    let lru = [0.0445, 0.0653, 0.1361, 0.2116, 0.3257, 0.3546, 0.3637, 0.3664];
    let lru_tokens = [0.0454, 0.0666, 0.1388, 0.2157, 0.3322, 0.3615, 0.3708, 0.3736];
    let fifo = [0.0445, 0.0637, 0.1254, 0.1820, 0.2950, 0.3336, 0.3563, 0.3664];
    let lfu = [0.0481, 0.0750, 0.0969, 0.1322, 0.2761, 0.3438, 0.3631, 0.3664];
    for (at, capacity) in CAPACITIES.into_iter().enumerate() {
        let rate = |policy| rates(&requests, policy, capacity, Touch::TailFirst);
        let got = [rate("lru").0, rate("lru").1, rate("fifo").0, rate("lfu").0].map(four_digits);
        assert_eq!(got, [lru[at], lru_tokens[at], fifo[at], lfu[at]], "{capacity} blocks");
    }
}

#[test]
fn lru_touching_head_first_gives_the_published_values() {
    let Ok(requests) = conversation().inspect_err(|why| println!("skipped: {why}")) else { return };
    let unique = 1 + requests.iter().flat_map(|each| &each.blocks).max().expect("a block");
    let got = [1, 5, 10, 25, 50].map(|per_cent| {
        let rate = rates(&requests, "lru", unique * per_cent / 100, Touch::HeadFirst).0;
        (rate * 1e3).round() / 1e3
    });
    assert_eq!(got, [0.052, 0.195, 0.278, 0.353, 0.363]);
}

/// What `bench/policies.md` says that a store gains with its default over LRU, which is measured
/// there through a real store. Its ghosts are drawn by a seed, hence the margin.
#[test]
fn the_default_gains_here_what_it_gains_in_the_store() {
    let Ok(requests) = conversation().inspect_err(|why| println!("skipped: {why}")) else { return };
    let rate = |policy, capacity| rates(&requests, policy, capacity, Touch::TailFirst).0;
    for (capacity, gain) in
        [(1_000, 0.0128), (3_000, 0.0315), (5_860, 0.0214), (10_000, 0.0151), (30_000, 0.0055)]
    {
        let got = rate("default", capacity) - rate("lru", capacity);
        assert!((got - gain).abs() < 0.0005, "{capacity} blocks: {got:+.4}, not {gain:+.4}");
    }
}
