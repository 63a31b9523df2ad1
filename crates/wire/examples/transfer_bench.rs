//! Gets and puts over the Unix socket against a bare socket loop and against memcpy, in one run:
//! interleaved rounds, median ratio with its extremes, and CPU time of all threads per GiB.
//!
//! `cargo run --release -p keepwarm-wire --example transfer_bench [block KiB]`

#[path = "../tests/support/mod.rs"]
mod support;

use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use keepwarm_store::checksum::Hasher;
use keepwarm_store::types::{BlockKey, GetOutcome, PutOutcome};
use keepwarm_wire::{GetItem, PutItem, Space};
use rustix::time::{ClockId, clock_gettime};
use support::{Node, SECOND, attach, keys, load_average};

const ROUNDS: usize = 15;
const ROUND_BYTES: usize = 128 << 20;

/// Seconds and CPU seconds of one round.
#[derive(Clone, Copy)]
struct Cost {
    wall: f64,
    cpu: f64,
}

fn measure(mut work: impl FnMut()) -> Cost {
    let cpu = || {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (start, cpu_start) = (Instant::now(), cpu());
    work();
    Cost { wall: start.elapsed().as_secs_f64(), cpu: cpu() - cpu_start }
}

fn main() {
    let kib = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(2048usize);
    let length = kib << 10;
    let blocks = ROUND_BYTES / length;
    let node = Node::start(1024);
    let memory = node.connect();
    let space = attach(&memory, "m");
    let keys = keys(1, blocks as u64);
    let source: Vec<u8> = (0..ROUND_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut target = vec![1u8; ROUND_BYTES];
    println!("{blocks} blocks of {kib} KiB a round; load average {}", load_average());

    let mut costs: [Vec<Cost>; 5] = Default::default();
    for _ in 0..ROUNDS {
        costs[0].push(measure(|| target.copy_from_slice(black_box(&source))));
        costs[1].push(measure(|| bare_loop(&source, &mut target, false)));
        space.drop_all(SECOND * 5).expect("the node answers");
        costs[2].push(measure(|| put(&space, &keys, &source, length)));
        costs[3].push(measure(|| get(&space, &keys, &mut target, length)));
        assert!(target == source);
        costs[4].push(measure(|| bare_loop(&source, &mut target, true)));
    }
    let rate = |costs: &[Cost]| ROUND_BYTES as f64 / median(costs.iter().map(|c| c.wall)) / 1e9;
    for (name, costs) in
        ["memcpy", "bare loop, receiver hashes", "put", "get", "bare loop, both hash"]
            .iter()
            .zip(&costs)
    {
        let cpu = median(costs.iter().map(|c| c.cpu)) * (1 << 30) as f64 / ROUND_BYTES as f64;
        println!("{name:28} {:6.2} GB/s   {cpu:.3} CPU s/GiB", rate(costs));
    }
    compare("get against the bare loop", &costs[3], &costs[1]);
    compare("put against the bare loop", &costs[2], &costs[1]);
    compare("put against the loop where both hash", &costs[2], &costs[4]);
    compare("get against memcpy", &costs[3], &costs[0]);
    compare("put against memcpy", &costs[2], &costs[0]);
    println!("data path: {:?}", memory.stats().data_path);
}

fn compare(name: &str, ours: &[Cost], theirs: &[Cost]) {
    let speed: Vec<f64> = ours.iter().zip(theirs).map(|(o, t)| t.wall / o.wall).collect();
    let cpu: Vec<f64> = ours.iter().zip(theirs).map(|(o, t)| o.cpu / t.cpu).collect();
    let (least, most) = speed.iter().fold((f64::MAX, 0f64), |(l, m), s| (l.min(*s), m.max(*s)));
    println!(
        "{name}: speed {:.2} ({least:.2}..{most:.2}), cpu {:.2}",
        median(speed.iter().copied()),
        median(cpu.iter().copied())
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn put(space: &Space, keys: &[BlockKey], source: &[u8], length: usize) {
    let item = |(key, bytes): (&BlockKey, &[u8])| PutItem {
        key: *key,
        part: 0,
        ptr: bytes.as_ptr(),
        len: bytes.len(),
        engine_hash: None,
    };
    let items: Vec<_> = keys.iter().zip(source.chunks(length)).map(item).collect();
    // SAFETY: `source` is borrowed until the call returns.
    let outcomes = unsafe { space.put_from(&items, SECOND * 30) }.expect("no misuse");
    assert!(outcomes.iter().all(|o| *o == PutOutcome::Stored), "{:?}", outcomes[0]);
}

fn get(space: &Space, keys: &[BlockKey], target: &mut [u8], length: usize) {
    let item = |(key, bytes): (&BlockKey, &mut [u8])| GetItem {
        key: *key,
        part: 0,
        ptr: bytes.as_mut_ptr(),
        len: bytes.len(),
    };
    let items: Vec<_> = keys.iter().zip(target.chunks_mut(length)).map(item).collect();
    // SAFETY: `target` is borrowed until the call returns, its chunks do not overlap.
    let outcomes = unsafe { space.get_into(&items, SECOND * 30) }.expect("no misuse");
    assert!(outcomes.iter().all(|o| *o == GetOutcome::Ok), "{:?}", outcomes[0]);
}

/// The least that moving and verifying takes: one thread sends, the other receives and hashes each
/// receive while it is hot.
fn bare_loop(source: &[u8], target: &mut [u8], sender_hashes: bool) {
    let (mut near, mut far) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&near, &far] {
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, 1 << 20);
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(socket, 1 << 20);
    }
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut hash = Hasher::new();
            for chunk in source.chunks(256 << 10) {
                if sender_hashes {
                    hash.update(chunk);
                }
                far.write_all(chunk).expect("the other end reads");
            }
            black_box(hash.digest());
        });
        let mut hash = Hasher::new();
        let mut rest = target;
        while !rest.is_empty() {
            let step = rest.len().min(1 << 20);
            let received = near.read(&mut rest[..step]).expect("the other end writes");
            hash.update(&rest[..received]);
            rest = &mut rest[received..];
        }
        black_box(hash.digest());
    });
}
