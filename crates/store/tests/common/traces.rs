//! Recorded requests, from outside of the repository, and their replay through a store.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use keepwarm_store::types::{BlockKey, Epoch, PutOutcome};
use keepwarm_store::{PolicyKind, StoreConfig};
use serde_json::Value;

use super::{attach, key, open, put, spec};

const GRANULE: u64 = 4096;

pub struct Request {
    pub tokens: u64,
    pub blocks: Vec<u64>,
}

fn root() -> PathBuf {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");
    std::env::var("KEEPWARM_TRACES").unwrap_or(beside.into()).into()
}

fn count(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("no {name}"))
}

fn ids(value: &Value) -> impl Iterator<Item = u64> + '_ {
    value["hash_ids"].as_array().into_iter().flatten().map(|id| id.as_u64().expect("an id"))
}

/// The conversation trace of Mooncake (512-token blocks), or why it is not there.
pub fn conversation() -> Result<Vec<Request>, String> {
    let path = root().join("mooncake-fast25/conversation_trace.jsonl");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; set KEEPWARM_TRACES", path.display()))?;
    let request = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a request");
        Request { tokens: count(&line, "input_length"), blocks: ids(&line).collect() }
    };
    Ok(text.lines().map(request).collect())
}

/// So many distinct coding-agent sessions of WEKA (64-token blocks), one starting every minute, or
/// why they are not there. No session shares blocks with another.
pub fn coding_agents(sessions: usize) -> Result<Vec<Request>, String> {
    let folder = root().join("weka-claude-code");
    let index = folder.join("index.csv");
    let index = std::fs::read_to_string(&index)
        .map_err(|error| format!("{}: {error}; set KEEPWARM_TRACES", index.display()))?;
    let distinct = index.lines().skip(1).filter(|line| line.ends_with(','));
    let mut wanted: Vec<_> = distinct.map(|line| line.split(',').next().unwrap_or("")).collect();
    wanted.sort_unstable();
    wanted.truncate(sessions);
    let mut unpack = Command::new("zstd")
        .args(["-dc", "--long=27"])
        .arg(folder.join("sessions.tar.zst"))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("zstd: {error}"))?;
    let mut archive = unpack.stdout.take().expect("a pipe");
    let (mut timed, mut base, mut found) = (Vec::new(), 0, 0);
    while found < wanted.len() {
        let Some((name, content)) = next_file(&mut archive) else { break };
        if wanted.iter().any(|id| name.ends_with(&format!("{id}.json"))) {
            let session: Value = serde_json::from_slice(&content).expect("a session");
            base = add_session(&mut timed, &session, 60.0 * found as f64, base);
            found += 1;
        }
    }
    drop(archive); // what is left of it is of no interest: zstd ends on the closed pipe
    unpack.wait().map_err(|error| format!("zstd: {error}"))?;
    assert_eq!(found, wanted.len(), "sessions in the archive, which is in the order of names");
    timed.sort_by(|a, b| a.0.total_cmp(&b.0));
    Ok(timed.into_iter().map(|(_, request)| request).collect())
}

/// Name and content of a tar stream's next regular file.
fn next_file(archive: &mut impl Read) -> Option<(String, Vec<u8>)> {
    loop {
        let mut header = [0; 512];
        archive.read_exact(&mut header).ok()?;
        let text = |range: std::ops::Range<usize>| {
            let bytes = header[range].split(|byte| *byte == 0).next().unwrap_or_default();
            String::from_utf8_lossy(bytes).trim().to_string()
        };
        let size = usize::from_str_radix(&text(124..136), 8).ok()?;
        let mut content = vec![0; size.next_multiple_of(512)];
        archive.read_exact(&mut content).ok()?;
        content.truncate(size);
        if matches!(header[156], b'0' | 0) {
            return Some((text(0..100), content));
        }
    }
}

/// Adds a session's requests, its sub-agents' among them, with ids from `base` on; returns the
/// next base.
fn add_session(timed: &mut Vec<(f64, Request)>, session: &Value, start: f64, base: u64) -> u64 {
    let time = |entry: &Value| entry["t"].as_f64().expect("a time");
    let mut next = base;
    let mut add = |at: f64, entry: &Value| {
        let blocks: Vec<u64> = ids(entry).map(|id| id + base).collect();
        if let Some(last) = blocks.iter().max() {
            next = next.max(last + 1);
            timed.push((start + at, Request { tokens: count(entry, "in"), blocks }));
        }
    };
    for entry in session["requests"].as_array().expect("requests") {
        let Some(own) = entry["requests"].as_array() else {
            add(time(entry), entry);
            continue;
        };
        for nested in own {
            // Nested times are relative to the marker unless they are already past it.
            let (marker, at) = (time(entry), time(nested));
            add(if at >= marker { at } else { marker + at }, nested);
        }
    }
    next
}

/// In which order a request's calls reach the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Each block read or put, the last one first: what the reference values are defined by.
    TailFirst,
    /// As engines do: the prefix is read, the rest is put, then all of it is touched.
    Engine,
}

/// Hit rates by block and by token, through a store of exactly `capacity` one-granule blocks. A
/// hit counts only while the prefix is unbroken.
pub fn replay(
    requests: &[Request],
    block_tokens: u64,
    policy: PolicyKind,
    capacity: u64,
    order: Order,
) -> (f64, f64) {
    let mut config = StoreConfig::new(capacity * GRANULE);
    config.policy = policy;
    config.max_blocks = Some(capacity as u32 + 8);
    config.populate = false;
    let (store, _clock) = open(config);
    let session = store.session();
    let ns = attach(&session, &spec("default", "trace", 1));
    let read = |key: &BlockKey| match session.read(ns, Epoch(0), *key, 0) {
        Ok(mut pin) => {
            pin.used();
            true
        }
        Err(_) => false,
    };
    let store_one = |key: &BlockKey| {
        assert_eq!(put(&session, ns, Epoch(0), *key, 0, &key.0), PutOutcome::Stored);
    };
    let (mut hit_blocks, mut all_blocks, mut hit_tokens, mut all_tokens) = (0, 0, 0, 0);
    for request in requests {
        let keys: Vec<_> = request.blocks.iter().map(|id| key(*id)).collect();
        let found = session.lookup(ns, Epoch(0), &keys, 0, None);
        let prefix = u64::from(found.prefix);
        hit_blocks += prefix;
        all_blocks += keys.len() as u64;
        hit_tokens += (prefix * block_tokens).min(request.tokens);
        all_tokens += request.tokens;
        let (head, tail) = keys.split_at(found.prefix as usize);
        match order {
            Order::TailFirst => keys.iter().rev().filter(|key| !read(key)).for_each(store_one),
            Order::Engine => {
                head.iter().for_each(|key| assert!(read(key)));
                session.arrange(ns, Epoch(0), head);
                let is_here = session.lookup(ns, Epoch(0), tail, 0, None).hits;
                let missing = tail.iter().zip(is_here).filter(|(_, hit)| hit.is_none());
                missing.for_each(|(key, _)| store_one(key));
                session.arrange(ns, Epoch(0), tail);
                session.touch(ns, Epoch(0), &keys);
            }
        }
    }
    store.check().expect("a store that adds up");
    assert_eq!(store.stats().used_bytes, capacity * GRANULE, "full to the last granule");
    (hit_blocks as f64 / all_blocks as f64, hit_tokens as f64 / all_tokens as f64)
}
