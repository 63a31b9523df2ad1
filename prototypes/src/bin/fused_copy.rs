//! What does verifying a block cost when the hash rides on the copy?
//!
//! Copies 2 MiB blocks, drawn at random from a source pool far larger than the caches to a random
//! place in an equally large destination pool, in interleaved rounds: plain memcpy, memcpy then
//! hash, and the fused copy on each kernel. Prints each as a share of the memcpy of its round.
//! A share of 1.00 is the speed of memcpy; larger is faster.
//!
//! `cargo run --release -p keepwarm-prototypes --bin fused_copy [rounds] [block KiB] [shift]`

use std::hint::black_box;
use std::time::Instant;

use keepwarm_store::checksum::{Hasher, Kernel, xxh3_64};

const POOL_BYTES: usize = 1 << 30;
/// Bytes copied by one way in one round.
const ROUND_BYTES: usize = 128 << 20;

/// One way to move a block: destination, source, bytes; gives a digest, or zero.
type Way = Box<dyn Fn(*mut u8, *const u8, usize) -> u64>;

fn main() {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let rounds = arguments.first().copied().unwrap_or(15).max(1);
    let block = (arguments.get(1).copied().unwrap_or(2048) << 10).clamp(64, POOL_BYTES / 2);
    let shift = arguments.get(2).copied().unwrap_or(0) % 4096;

    let source: Vec<u8> = (0..POOL_BYTES).map(|i| ((i as u64 * 0x9E37_79B1) >> 13) as u8).collect();
    let mut landing = vec![1u8; POOL_BYTES];
    let ways = ways();
    let mut rates = vec![Vec::with_capacity(rounds); ways.len()];
    let mut place = Places(1);
    for _ in 0..rounds {
        for (way, (_, run)) in ways.iter().enumerate() {
            rates[way].push(round(run, &source, &mut landing, block, shift, &mut place));
        }
    }
    report(&ways, &rates, block, shift);
}

fn ways() -> Vec<(String, Way)> {
    let mut ways: Vec<(String, Way)> = vec![
        ("memcpy".into(), Box::new(memcpy)),
        (
            "memcpy, then hash".into(),
            Box::new(|dst, src, len| {
                memcpy(dst, src, len);
                // SAFETY: `round` passes blocks inside its pools.
                xxh3_64(unsafe { std::slice::from_raw_parts(dst, len) })
            }),
        ),
        (
            "hash alone".into(),
            Box::new(|_, src, len| {
                // SAFETY: `round` passes blocks inside its pools.
                xxh3_64(unsafe { std::slice::from_raw_parts(src, len) })
            }),
        ),
    ];
    for kernel in Kernel::available() {
        ways.push((
            format!("fused, {}", kernel.name()),
            Box::new(|dst, src, len| {
                let mut hasher = Hasher::with_kernel(kernel);
                // SAFETY: `round` passes blocks inside its pools, which are two allocations.
                unsafe { hasher.update_copy(dst, src, len) };
                hasher.digest()
            }),
        ));
    }
    ways
}

fn memcpy(dst: *mut u8, src: *const u8, len: usize) -> u64 {
    // SAFETY: `round` passes blocks inside its pools, which are two allocations.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, len) };
    0
}

/// GiB a second of one way over random blocks.
fn round(
    run: &Way,
    source: &[u8],
    landing: &mut [u8],
    block: usize,
    shift: usize,
    place: &mut Places,
) -> f64 {
    let blocks = (ROUND_BYTES / block).max(1);
    let base = landing.as_ptr().align_offset(4096) + shift;
    let slots = (POOL_BYTES - base) / block - 1;
    let start = Instant::now();
    for _ in 0..blocks {
        let from = place.below(slots) * block;
        let to = base + place.below(slots) * block;
        black_box(run(landing[to..to + block].as_mut_ptr(), source[from..].as_ptr(), block));
    }
    (blocks * block) as f64 / start.elapsed().as_secs_f64() / (1u64 << 30) as f64
}

/// SplitMix64 over block numbers: no place is the last one's neighbour.
struct Places(u64);

impl Places {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)) % limit as u64) as usize
    }
}

fn report(ways: &[(String, Way)], rates: &[Vec<f64>], block: usize, shift: usize) {
    println!("block {} KiB, destination {shift} bytes past a page, share of memcpy", block >> 10);
    println!("{:<20} {:>7} {:>7} {:>7} {:>9}", "way", "median", "min", "max", "GiB/s");
    for (way, (name, _)) in ways.iter().enumerate() {
        let mut shares: Vec<f64> =
            rates[way].iter().zip(&rates[0]).map(|(rate, base)| rate / base).collect();
        shares.sort_by(f64::total_cmp);
        let mut absolute = rates[way].clone();
        absolute.sort_by(f64::total_cmp);
        let middle = shares.len() / 2;
        let (min, max) = (shares[0], shares[shares.len() - 1]);
        println!(
            "{name:<20} {:>7.2} {min:>7.2} {max:>7.2} {:>9.1}",
            shares[middle], absolute[middle]
        );
    }
}
