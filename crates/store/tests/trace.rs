//! LRU and FIFO through the store itself give the published hit rates of the Mooncake conversation
//! trace, to four digits: the index, the policies, eviction and the arena together are exact.

mod common;

use std::path::PathBuf;

use common::{attach, key, open, put, spec};
use keepwarm_store::types::{Epoch, PutOutcome};
use keepwarm_store::{PolicyKind, StoreConfig};

const GRANULE: u64 = 4096;
const BLOCK_TOKENS: u64 = 512;

struct Request {
    tokens: u64,
    blocks: Vec<u64>,
}

/// The trace, or why it is not there.
fn trace() -> Result<Vec<Request>, String> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");
    let root = std::env::var("KEEPWARM_TRACES").unwrap_or(beside.into());
    let path = PathBuf::from(root).join("mooncake-fast25/conversation_trace.jsonl");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; set KEEPWARM_TRACES", path.display()))?;
    Ok(text.lines().map(request).collect())
}

/// Reads the two fields of a line that matter here.
fn request(line: &str) -> Request {
    let after = |name: &str| {
        let at = line.find(name).unwrap_or_else(|| panic!("{name} in {line}"));
        line[at + name.len()..].trim_start_matches([':', ' ', '"', '['])
    };
    let tokens = after("\"input_length\"");
    let end = tokens.find([',', '}']).expect("an end");
    let blocks = after("\"hash_ids\"");
    let blocks = &blocks[..blocks.find(']').expect("an end")];
    Request {
        tokens: tokens[..end].trim().parse().expect("a length"),
        blocks: blocks.split(',').map(|id| id.trim().parse().expect("an id")).collect(),
    }
}

/// Hit rates by block and by token, through a store of exactly `capacity` one-granule blocks.
fn replay(requests: &[Request], policy: PolicyKind, capacity: u64) -> (f64, f64) {
    let mut config = StoreConfig::new(capacity * GRANULE);
    config.policy = policy;
    config.max_blocks = Some(capacity as u32 + 8);
    config.populate = false;
    let (store, _clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "trace", 1));
    let (mut hit_blocks, mut all_blocks, mut hit_tokens, mut all_tokens) = (0, 0, 0, 0);
    for request in requests {
        let keys: Vec<_> = request.blocks.iter().map(|id| key(*id)).collect();
        let found = session.lookup(ns, Epoch(0), &keys, 0, None);
        let prefix = u64::from(found.prefix);
        hit_blocks += prefix;
        all_blocks += keys.len() as u64;
        hit_tokens += (prefix * BLOCK_TOKENS).min(request.tokens);
        all_tokens += request.tokens;
        for key in keys.iter().rev() {
            if session.touch(ns, Epoch(0), &[*key]) == 0 {
                let outcome = put(&session, ns, Epoch(0), *key, 0, &key.0);
                assert_eq!(outcome, PutOutcome::Stored);
            }
        }
    }
    store.check().expect("a store that adds up");
    assert_eq!(store.stats().used_bytes, capacity * GRANULE, "full to the last granule");
    (hit_blocks as f64 / all_blocks as f64, hit_tokens as f64 / all_tokens as f64)
}

fn assert_rates(policy: PolicyKind, expected: &[(u64, &str, Option<&str>)]) {
    let requests = match trace() {
        Ok(requests) => requests,
        Err(reason) => return println!("skipped: {reason}"),
    };
    for &(capacity, block, token) in expected {
        // Without optimisation each replay takes ten times as long; a small and a middle one do.
        if cfg!(debug_assertions) && ![1_000, 5_860].contains(&capacity) {
            continue;
        }
        let (by_block, by_token) = replay(&requests, policy, capacity);
        let (by_block, by_token) = (format!("{by_block:.4}"), format!("{by_token:.4}"));
        println!("{} {capacity:>6}  blocks {by_block}  tokens {by_token}", policy.name());
        assert_eq!(by_block, block, "{} blocks at {capacity}", policy.name());
        if let Some(token) = token {
            assert_eq!(by_token, token, "{} tokens at {capacity}", policy.name());
        }
    }
}

#[test]
fn lru_gives_the_reference_rates() {
    let expected = [
        (1_000, "0.0445", Some("0.0454")),
        (3_000, "0.0653", Some("0.0666")),
        (5_860, "0.1361", Some("0.1388")),
        (10_000, "0.2116", Some("0.2157")),
        (30_000, "0.3257", Some("0.3322")),
    ];
    assert_rates(PolicyKind::Lru, &expected);
}

#[test]
fn fifo_gives_the_reference_rates() {
    let expected = [
        (1_000, "0.0445", None),
        (3_000, "0.0637", None),
        (5_860, "0.1254", None),
        (10_000, "0.1820", None),
        (30_000, "0.2950", None),
    ];
    assert_rates(PolicyKind::Fifo, &expected);
}
