//! Traces for the simulator's tests: recorded ones, from outside of the repository, and drawn ones.
#![allow(dead_code)] // each test uses some of it

use std::path::PathBuf;

use keepwarm_sim::interner::Interner;
use serde_json::Value;

/// One prompt, with its blocks as an interner's numbers.
pub struct Request {
    pub tokens: u64,
    pub blocks: Vec<u32>,
}

/// The conversation trace of Mooncake (512-token blocks), or why it is not there.
pub fn conversation() -> Result<Vec<Request>, String> {
    let beside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/traces");
    let mut root = PathBuf::from(std::env::var("KEEPWARM_TRACES").unwrap_or(beside.into()));
    if !root.is_dir() {
        // A worktree lies one folder deeper than a checkout.
        root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../../shared/traces").into();
    }
    let path = root.join("mooncake-fast25/conversation_trace.jsonl");
    let text = std::fs::read_to_string(&path)
        .map_err(|error| format!("{}: {error}; set KEEPWARM_TRACES", path.display()))?;
    let mut interner = Interner::default();
    let mut number = |id: &Value| interner.number(id.as_u64().expect("an id")).expect("a number");
    let request = |line: &str| {
        let line: Value = serde_json::from_str(line).expect("a request");
        let ids = line["hash_ids"].as_array().expect("ids");
        let tokens = line["input_length"].as_u64().expect("a length");
        Request { tokens, blocks: ids.iter().map(&mut number).collect() }
    };
    Ok(text.lines().map(request).collect())
}

/// `xorshift64*`: the same numbers on every machine.
pub struct Draw(pub u64);

impl Draw {
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// Prompts that share prefixes as a tree does: each begins as an earlier one, leaves it somewhere,
/// and goes on with blocks of its own.
pub fn drawn(seed: u64, requests: usize, length_max: u64) -> Vec<Vec<u32>> {
    let mut draw = Draw(seed);
    let mut made: Vec<Vec<u32>> = Vec::new();
    let mut fresh = 0;
    for _ in 0..requests {
        let mut blocks = Vec::new();
        if !made.is_empty() && draw.below(4) != 0 {
            let like = &made[made.len() - 1 - draw.below(made.len().min(40) as u64) as usize];
            let kept = draw.below(like.len() as u64 + 1) as usize;
            blocks.extend_from_slice(&like[..kept]);
        }
        let length = 1 + draw.below(length_max) as usize;
        while blocks.len() < length {
            blocks.push(fresh);
            fresh += 1;
        }
        made.push(blocks);
    }
    made
}
