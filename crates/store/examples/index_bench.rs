//! Nanoseconds a key of the index: prompts drawn at random over a full table, each key found, its
//! use written to the policy and its lease state written, on one thread.
//!
//! `cargo run --release -p keepwarm-store --example index_bench [entries …]`
//! Time is the thread's own (CPU time), so that neighbours on a shared machine count as little as
//! they can. Floors: 60 ns a key at 1 M entries, 80 at 8 M.

use std::sync::Arc;
use std::time::Duration;

use keepwarm_store::identity::{ChainKey, FIELDS, Kind, NamespaceSpec, TenantSecret, Value};
use keepwarm_store::index_probe::IndexProbe;
use keepwarm_store::types::{BlockKey, Epoch};
use keepwarm_store::{BlockPut, Reserve, Store, StoreConfig, SystemClock};

const PROMPT_KEYS: usize = 512;
const RUNS: usize = 9;
const KEYS_A_RUN: usize = 1 << 21;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

fn main() {
    let given: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let sizes = if given.is_empty() { vec![1 << 20, 8 << 20] } else { given };
    println!("prompts of {PROMPT_KEYS} keys, {KEYS_A_RUN} keys a run, {RUNS} runs, ns a key");
    for entries in sizes {
        for is_shuffled in [false, true] {
            measure(entries / PROMPT_KEYS * PROMPT_KEYS, is_shuffled);
        }
    }
    whole_prompt();
}

/// One lookup of a prompt of 8,192 blocks through a session, and a touch of all of it.
fn whole_prompt() {
    const PROMPT: usize = 8192;
    const PROMPTS: usize = 32;
    let mut config = StoreConfig::new((PROMPT * PROMPTS * 4096) as u64);
    config.max_blocks = Some((PROMPT * PROMPTS) as u32);
    config.populate = false;
    let store = Store::open(config, Arc::new(SystemClock)).expect("a store");
    let session = store.session();
    let spec = spec();
    let check = ChainKey::new(&spec, &TenantSecret::public_default()).key_check();
    let ns = session.attach(spec.encoding(), check, Epoch(0)).expect("attached").id;
    let mut random = Random(7);
    let keys: Vec<BlockKey> = (0..PROMPT * PROMPTS).map(|_| random_key(&mut random)).collect();
    for key in &keys {
        let put = BlockPut { key: *key, part: 0, len: 1, engine_hash: None };
        let Reserve::Granted(grant) = session.reserve(ns, Epoch(0), put) else { panic!("room") };
        grant.commit(0); // the bytes are of no interest, and stay unwritten
    }
    let hold = Some(Duration::from_secs(2));
    let (mut lookups, mut touches) = (Vec::new(), Vec::new());
    for _ in 0..200 {
        let first = random.below(PROMPTS) * PROMPT;
        let prompt = &keys[first..first + PROMPT];
        let start = thread_ns();
        let found = session.lookup(ns, Epoch(0), prompt, 0, hold);
        let middle = thread_ns();
        assert_eq!(found.prefix as usize, PROMPT);
        assert_eq!(session.touch(ns, Epoch(0), prompt) as usize, PROMPT);
        touches.push(thread_ns() - middle);
        lookups.push(middle - start);
        session.release(found.lease.expect("a lease"));
    }
    for (what, mut times) in [("lookup with a lease", lookups), ("touch", touches)] {
        times.sort_unstable();
        let us = |at: usize| times[at] as f64 / 1000.0;
        println!("{what} of {PROMPT} blocks: p50 {:.0} us, p99 {:.0} us", us(100), us(198));
    }
}

fn spec() -> NamespaceSpec {
    let fields = FIELDS.iter().map(|field| {
        let value = match field.kind {
            Kind::Count(_) | Kind::Geometry => Value::Int(1),
            _ if field.name == "tenant" => Value::Str("default".into()),
            _ => Value::Str("bench".into()),
        };
        (field.name.to_string(), value)
    });
    NamespaceSpec::new(fields).expect("a namespace")
}

fn random_key(random: &mut Random) -> BlockKey {
    let bits = u128::from(random.next()) << 64 | u128::from(random.next());
    BlockKey(bits.to_le_bytes())
}

fn measure(entries: usize, is_shuffled: bool) {
    let mut random = Random(42);
    let keys: Vec<BlockKey> = (0..entries).map(|_| random_key(&mut random)).collect();
    let mut order: Vec<u32> = (0..entries as u32).collect();
    if is_shuffled {
        for at in (1..entries).rev() {
            order.swap(at, random.below(at + 1));
        }
    }
    let mut probe = IndexProbe::new(entries as u32);
    order.iter().for_each(|at| probe.insert(keys[*at as usize]));
    let mut times: Vec<f64> = (0..RUNS).map(|run| one_run(&mut probe, &keys, run)).collect();
    times.sort_by(f64::total_cmp);
    println!(
        "{entries:>9} entries, {}: median {:.1}  min {:.1}  max {:.1}   ({:.1} B an entry)",
        if is_shuffled { "inserted in random order" } else { "prompts adjacent        " },
        times[RUNS / 2],
        times[0],
        times[RUNS - 1],
        probe.bytes() as f64 / entries as f64,
    );
}

fn one_run(probe: &mut IndexProbe, keys: &[BlockKey], run: usize) -> f64 {
    // The same prompts leased in one run and released in the next.
    let mut random = Random(1000 + run as u64 / 2);
    let prompts = keys.len() / PROMPT_KEYS;
    let chosen: Vec<usize> =
        (0..KEYS_A_RUN / PROMPT_KEYS).map(|_| random.below(prompts) * PROMPT_KEYS).collect();
    let start = thread_ns();
    let mut hits = 0;
    for first in chosen {
        let prompt = &keys[first..first + PROMPT_KEYS];
        hits += probe.use_and_lease(prompt, run.is_multiple_of(2)) as usize;
    }
    let time = thread_ns() - start;
    assert_eq!(hits, KEYS_A_RUN, "every key is there");
    time as f64 / KEYS_A_RUN as f64
}

fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
