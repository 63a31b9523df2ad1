//! What shared memory gives of this machine's memcpy: gets and puts of a client against a node in
//! another process, each round beside one of memcpy over as many bytes.
//!
//! `cargo run --release -p keepwarm-wire --example shm_bench [pairs]`

use std::hint::black_box;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use keepwarm_store::checksum::Kernel;
use keepwarm_store::identity::{ChainKey, FIELDS, Kind, NamespaceSpec, TenantSecret, Value};
use keepwarm_store::types::{BlockKey, Epoch, GetOutcome, PutOutcome};
use keepwarm_store::{Store, StoreConfig, SystemClock};
use keepwarm_wire::{
    ConnectConfig, GetItem, Memory, PutItem, Server, ServerConfig, Space, TransportChoice,
};

const MIB: usize = 1 << 20;
/// Bytes of a round.
const ROUND: usize = 64 * MIB;
/// Bytes among which rounds choose.
const POOL: usize = 512 * MIB;
const CAPACITY: u64 = 2 << 30;
const LONG: Duration = Duration::from_secs(30);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, path] = &arguments[..]
        && role == "node"
    {
        return serve(Path::new(path));
    }
    let pairs = arguments.first().and_then(|pairs| pairs.parse().ok()).unwrap_or(7).max(1);
    let path = std::env::temp_dir().join(format!("kw-shm-bench-{}", std::process::id()));
    let mut node = start(&path);
    let mut config = ConnectConfig::new(&*path);
    (config.deadline, config.transport) = (LONG, TransportChoice::Shm);
    let memory = Memory::connect(config).expect("shared memory with the node");
    let mut bench = Bench::new(&memory);
    println!("{pairs} pairs of {} MiB, {} kernel", ROUND / MIB, Kernel::best().name());
    println!("{:<26} {:>7} {:>7} {:>7} {:>7}", "of memcpy", "median", "min", "max", "GB/s");
    for (name, block, batch) in [
        ("get 2 MiB, 16 a call", 2 * MIB, 16),
        ("get 2 MiB, 1 a call", 2 * MIB, 1),
        ("get 16 MiB, 2 a call", 16 * MIB, 2),
        ("get 64 KiB, 256 a call", 64 << 10, 256),
    ] {
        bench.fill(block);
        let rates = (0..=pairs).map(|_| (bench.memcpy(block), bench.get(block, batch)));
        report(name, &rates.skip(1).collect::<Vec<_>>());
    }
    for (name, block, batch) in
        [("put 2 MiB, 16 a call", 2 * MIB, 16), ("put 64 KiB, 256 a call", 64 << 10, 256)]
    {
        let rates = (0..=pairs).map(|_| (bench.memcpy(block), bench.put(block, batch)));
        report(name, &rates.skip(1).collect::<Vec<_>>());
    }
    println!("{:?}", memory.stats().data_path);
    let _ = node.kill();
    let _ = node.wait();
    let _ = std::fs::remove_file(&path);
}

fn serve(path: &Path) {
    let store = Store::open(StoreConfig::new(CAPACITY), Arc::new(SystemClock)).expect("a store");
    let _server = Server::start(store, ServerConfig::new(path)).expect("a server");
    loop {
        std::thread::park();
    }
}

fn start(path: &Path) -> Child {
    let this = std::env::current_exe().expect("this program");
    let node = Command::new(this).arg("node").arg(path).spawn().expect("a process");
    while std::os::unix::net::UnixStream::connect(path).is_err() {
        std::thread::sleep(Duration::from_millis(5));
    }
    node
}

fn report(name: &str, rates: &[(f64, f64)]) {
    let sorted = |mut figures: Vec<f64>| {
        figures.sort_by(f64::total_cmp);
        (figures[figures.len() / 2], figures[0], figures[figures.len() - 1])
    };
    let (median, min, max) = sorted(rates.iter().map(|(limit, ours)| ours / limit).collect());
    let (rate, ..) = sorted(rates.iter().map(|(_, ours)| ours / 1e9).collect());
    println!("{name:<26} {median:>7.2} {min:>7.2} {max:>7.2} {rate:>7.2}");
}

struct Bench {
    space: Space,
    /// As an arena is: shared memory, all of it present.
    source: *const u8,
    landing: Vec<u8>,
    next_key: u64,
    random: u64,
}

impl Bench {
    fn new(memory: &Memory) -> Bench {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address of the kernel's choice, kept to the end.
        let source = unsafe { mmap_anonymous(std::ptr::null_mut(), POOL, access, flags) };
        let source = source.expect("memory").cast::<u8>();
        for at in (0..POOL).step_by(8) {
            let word = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            // SAFETY: within the mapping, aligned.
            unsafe { source.add(at).cast::<u64>().write(word) };
        }
        let spec = spec();
        let check = ChainKey::new(&spec, &TenantSecret::public_default()).key_check();
        let space = memory.attach(spec, check, Epoch(0)).expect("the node takes it");
        Bench { space, source, landing: vec![1; POOL], next_key: 1 << 40, random: 1 }
    }

    /// A place for a run of blocks, at random.
    fn place(&mut self, bytes: usize) -> usize {
        self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (self.random >> 33) as usize % (POOL / bytes) * bytes
    }

    fn memcpy(&mut self, block: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..ROUND / block {
            let (from, to) = (self.place(block), self.place(block));
            // SAFETY: both within their pools, which do not overlap.
            unsafe {
                let to = self.landing.as_mut_ptr().add(to);
                std::ptr::copy_nonoverlapping(self.source.add(from), to, block);
            }
            black_box(&self.landing);
        }
        ROUND as f64 / start.elapsed().as_secs_f64()
    }

    /// Stores the whole pool in blocks of this length, under their places.
    fn fill(&mut self, block: usize) {
        for chunk in (0..POOL / block).collect::<Vec<_>>().chunks(64) {
            let item = |n: &usize| self.put_item(key(block, *n as u64), n * block, block);
            let items: Vec<_> = chunk.iter().map(item).collect();
            // SAFETY: within the source, which nobody writes.
            let outcomes = unsafe { self.space.put_from(&items, LONG) }.expect("no misuse");
            assert!(outcomes.iter().all(|o| matches!(o, PutOutcome::Stored | PutOutcome::Present)));
        }
    }

    fn put_item(&self, key: BlockKey, from: usize, len: usize) -> PutItem {
        PutItem { key, part: 0, ptr: self.source.wrapping_add(from), len, engine_hash: None }
    }

    fn get(&mut self, block: usize, batch: usize) -> f64 {
        let mut items = Vec::with_capacity(batch);
        let start = Instant::now();
        for _ in 0..ROUND / block / batch {
            items.clear();
            let base = self.place(block * batch);
            for n in 0..batch {
                let key = key(block, (self.place(block) / block) as u64);
                let ptr = self.landing[base + n * block..].as_mut_ptr();
                items.push(GetItem { key, part: 0, ptr, len: block });
            }
            // SAFETY: within the landing, apart from each other.
            let outcomes = unsafe { self.space.get_into(&items, LONG) }.expect("no misuse");
            assert!(outcomes.iter().all(|o| *o == GetOutcome::Ok), "{outcomes:?}");
        }
        ROUND as f64 / start.elapsed().as_secs_f64()
    }

    fn put(&mut self, block: usize, batch: usize) -> f64 {
        let start = Instant::now();
        for _ in 0..ROUND / block / batch {
            let first = self.next_key;
            self.next_key += batch as u64;
            let from: Vec<_> = (0..batch).map(|_| self.place(block)).collect();
            let item = |(n, from): (u64, usize)| self.put_item(key(block, first + n), from, block);
            let items: Vec<_> = (0u64..).zip(from).map(item).collect();
            // SAFETY: within the source, which nobody writes.
            let outcomes = unsafe { self.space.put_from(&items, LONG) }.expect("no misuse");
            assert!(outcomes.iter().all(|o| *o == PutOutcome::Stored), "{outcomes:?}");
        }
        ROUND as f64 / start.elapsed().as_secs_f64()
    }
}

fn key(block: usize, n: u64) -> BlockKey {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    bytes[8..].copy_from_slice(&(block as u64).to_le_bytes());
    BlockKey(bytes)
}

fn spec() -> NamespaceSpec {
    let fields = FIELDS.iter().map(|field| {
        let value = match field.kind {
            Kind::Count(_) | Kind::Geometry => Value::Int(1),
            _ => Value::Str(String::from("default")),
        };
        (field.name.to_string(), value)
    });
    NamespaceSpec::new(fields).expect("a complete namespace")
}
