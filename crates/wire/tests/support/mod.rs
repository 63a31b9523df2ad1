//! What the wire's tests share: namespaces, keys, bytes that name their block, scratch folders.
//!
//! A block's bytes follow from its key and length, so that a reader knows at once whether what it
//! got is its own block, another one, or neither.
#![allow(dead_code)] // each test binary uses its own part

pub mod bodies;
pub mod child;
pub mod net;
pub mod passing;
pub mod peer;
pub mod pki;
pub mod proxy;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use keepwarm_store::identity::{ChainKey, NamespaceSpec, TenantSecret, Value};
use keepwarm_store::types::{BlockKey, Epoch, GetOutcome, PutOutcome};
use keepwarm_store::{Store, StoreConfig, SystemClock};
use keepwarm_wire::{
    Address, ConnectConfig, FleetConfig, GetItem, Memory, PutItem, Seed, Server, ServerConfig,
    Space, TransportChoice,
};

pub const SECOND: Duration = Duration::from_secs(1);

/// For calls whose time is not what is tested: unoptimised code on a busy machine.
pub const LONG: Duration = Duration::from_secs(30);

/// A namespace whose only difference from others is its model.
pub fn spec(model: &str, parts: i64) -> NamespaceSpec {
    spec_of_runs(model, parts, 1)
}

/// As `spec`, with runs of so many blocks.
pub fn spec_of_runs(model: &str, parts: i64, runs: i64) -> NamespaceSpec {
    let text = |name: &str, value: &str| (name.to_owned(), Value::Str(value.to_owned()));
    let number = |name: &str, value: i64| (name.to_owned(), Value::Int(value));
    NamespaceSpec::new([
        text("tenant", "default"),
        text("model", model),
        text("weights", "sha256:00"),
        text("load", "auto"),
        text("quantisation", "none"),
        text("kv_dtype", "bf16"),
        text("kv_scales", "none"),
        number("layers", 8),
        number("kv_heads", 4),
        number("head_dim", 64),
        text("layout", "NHD/KV"),
        text("engine", "test/1"),
        text("attention_backend", "TEST"),
        text("isa", "any"),
        number("block_tokens", 16),
        text("kv_options", "none"),
        text("parallel", "tp=1,pp=1"),
        text("connector", "test/1"),
        number("parts", parts),
        number("run_blocks", runs),
    ])
    .expect("a complete namespace")
}

pub fn key_check(spec: &NamespaceSpec) -> [u8; 8] {
    ChainKey::new(spec, &TenantSecret::public_default()).key_check()
}

/// Opens the namespace of `model`, which has one part.
pub fn attach(memory: &Memory, model: &str) -> Space {
    let spec = spec(model, 1);
    let check = key_check(&spec);
    memory.attach(spec, check, Epoch(0)).expect("the node takes it")
}

/// The `n`th key of a family.
pub fn key(family: u64, n: u64) -> BlockKey {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mix(family.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n).to_le_bytes());
    bytes[8..].copy_from_slice(&mix(n ^ mix(family)).to_le_bytes());
    BlockKey(bytes)
}

pub fn keys(family: u64, count: u64) -> Vec<BlockKey> {
    (0..count).map(|n| key(family, n)).collect()
}

/// The one right content of a block.
pub fn content(key: BlockKey, length: usize) -> Vec<u8> {
    let mut state = key.low_bits() ^ length as u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = mix(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15)
}

/// A small random source that prints its seed; `KEEPWARM_TEST_SEED` repeats a run.
pub struct Chance(u64);

impl Chance {
    pub fn new(test: &str) -> Chance {
        let given = std::env::var("KEEPWARM_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or(20_261_201);
        println!("{test}: KEEPWARM_TEST_SEED={seed}");
        Chance(seed)
    }

    /// Another source that follows from this one.
    pub fn child(&mut self) -> Chance {
        Chance(self.below(u64::MAX))
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % end.max(1)
    }
}

/// Puts the right content of every key.
pub fn put(space: &Space, keys: &[BlockKey], length: usize, deadline: Duration) -> Vec<PutOutcome> {
    let contents: Vec<_> = keys.iter().map(|key| content(*key, length)).collect();
    let items: Vec<_> = keys
        .iter()
        .zip(&contents)
        .map(|(key, content)| PutItem {
            key: *key,
            part: 0,
            ptr: content.as_ptr(),
            len: content.len(),
            engine_hash: None,
        })
        .collect();
    // SAFETY: `contents` outlives the call, and nobody writes it.
    unsafe { space.put_from(&items, deadline) }.expect("no misuse")
}

/// Gets every key and checks the guards around each buffer. Panics on wrong bytes.
pub fn get(space: &Space, keys: &[BlockKey], length: usize, deadline: Duration) -> Vec<GetOutcome> {
    const GUARD: usize = 64;
    let mut buffers: Vec<_> = keys.iter().map(|_| vec![0xa5u8; length + 2 * GUARD]).collect();
    let items: Vec<_> = keys
        .iter()
        .zip(&mut buffers)
        .map(|(key, buffer)| GetItem {
            key: *key,
            part: 0,
            ptr: buffer[GUARD..].as_mut_ptr(),
            len: length,
        })
        .collect();
    // SAFETY: `buffers` outlive the call and are used by nobody else; no two overlap.
    let outcomes = unsafe { space.get_into(&items, deadline) }.expect("no misuse");
    for ((key, buffer), outcome) in keys.iter().zip(&buffers).zip(&outcomes) {
        let (head, tail) = (&buffer[..GUARD], &buffer[GUARD + length..]);
        assert!(head.iter().chain(tail).all(|byte| *byte == 0xa5), "bytes beside the buffer");
        if *outcome == GetOutcome::Ok {
            assert!(buffer[GUARD..GUARD + length] == content(*key, length), "wrong bytes");
        }
    }
    outcomes
}

/// A folder that goes with the test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("kw-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a scratch folder");
        Scratch(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn store(mebibytes: u64) -> Arc<Store> {
    Store::open(store_config(mebibytes), Arc::new(SystemClock)).expect("a store")
}

pub fn store_config(mebibytes: u64) -> StoreConfig {
    let mut config = StoreConfig::new(mebibytes << 20);
    config.populate = false;
    config
}

/// A node in this process, and its store.
pub struct Node {
    pub store: Arc<Store>,
    pub server: Option<Server>,
    pub path: PathBuf,
    _scratch: Scratch,
}

impl Node {
    pub fn start(mebibytes: u64) -> Node {
        Node::with(mebibytes, |_| {})
    }

    pub fn with(mebibytes: u64, change: impl FnOnce(&mut ServerConfig)) -> Node {
        let scratch = Scratch::new();
        let path = scratch.path("node.sock");
        let store = store(mebibytes);
        let mut config = ServerConfig::new(&path);
        change(&mut config);
        let server = Server::start(store.clone(), config).expect("a server");
        Node { store, server: Some(server), path, _scratch: scratch }
    }

    pub fn connect(&self) -> Memory {
        connect(&self.path)
    }

    pub fn connect_by(&self, transport: TransportChoice) -> Memory {
        connect_by(&self.path, transport)
    }

    pub fn scratch(&self, name: &str) -> PathBuf {
        self._scratch.path(name)
    }
}

/// Over the socket.
pub fn connect(path: &Path) -> Memory {
    connect_by(path, TransportChoice::Unix)
}

pub fn connect_by(path: &Path, transport: TransportChoice) -> Memory {
    let mut config = ConnectConfig::new(path);
    config.transport = transport;
    if transport == TransportChoice::Shm {
        // Mapping is part of it, on a machine that is busy with other tests.
        config.deadline = LONG;
    }
    Memory::connect(config).expect("a path that can work")
}

/// Several nodes in this process.
pub struct Fleet {
    pub nodes: Vec<Node>,
}

impl Fleet {
    pub fn start(nodes: usize, mebibytes: u64) -> Fleet {
        Fleet { nodes: (0..nodes).map(|_| Node::start(mebibytes)).collect() }
    }

    pub fn config(&self) -> FleetConfig {
        let seed = |node: &Node| Seed::Node(Address::from(&node.path));
        let seeds = self.nodes.iter().map(seed).collect();
        FleetConfig::new(seeds, ConnectConfig::new(&self.nodes[0].path))
    }

    pub fn connect_by(&self, transport: TransportChoice) -> Memory {
        let mut config = self.config();
        config.each.transport = transport;
        if transport == TransportChoice::Shm {
            config.each.deadline = LONG;
        }
        Memory::connect_fleet(config).expect("settings that can be")
    }

    pub fn connect(&self) -> Memory {
        Memory::connect_fleet(self.config()).expect("settings that can be")
    }
}

/// Waits until `done`, or fails after `limit`.
pub fn eventually(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::yield_now();
        pause(Duration::from_millis(2));
    }
}

/// Gives other threads the processor for a moment, between two looks at a condition.
fn pause(moment: Duration) {
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let _ = receiver.recv_timeout(moment);
    drop(sender);
}

/// Rounds of a test: few by default, `KEEPWARM_TEST_SCALE` times as many when a figure is wanted.
pub fn rounds(few: u64) -> u64 {
    let times = std::env::var("KEEPWARM_TEST_SCALE").ok().and_then(|times| times.parse().ok());
    few * times.unwrap_or(1)
}

pub fn load_average() -> String {
    std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim().to_owned()
}

/// Descriptors of this process.
pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
