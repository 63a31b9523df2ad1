//! Time of one lookup of an 8,192-block prompt over the Unix socket.
//!
//! `cargo run --release -p keepwarm-wire --example lookup_bench`

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use keepwarm_wire::Memory;
use support::{Node, SECOND, attach, keys, load_average, put};

const BLOCKS: u64 = 8192;
const ROUNDS: usize = 300;

fn main() {
    let node = Node::start(1024);
    let keys = keys(1, BLOCKS);
    let unix = node.connect();
    for part in keys.chunks(512) {
        put(&attach(&unix, "m"), part, 4096, SECOND * 30);
    }
    println!("load average {}", load_average());
    for (name, memory) in [("unix", unix), ("inproc", Memory::embedded(node.store.clone()))] {
        let space = attach(&memory, "m");
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let found = space.lookup(&keys, 0, Some(SECOND * 2), SECOND * 5).expect("no misuse");
            times.push(start.elapsed());
            assert_eq!(u64::from(found.prefix), BLOCKS, "{:?}", found.miss);
            if let Some(lease) = found.lease {
                space.release(lease, SECOND).expect("the node answers");
            }
        }
        times.sort();
        let at = |share: usize| times[(ROUNDS - 1) * share / 100].as_micros();
        println!(
            "lookup of {BLOCKS} blocks over {name}: p50 {} us, p99 {} us, min {} us",
            at(50),
            at(99),
            at(0)
        );
    }
}
