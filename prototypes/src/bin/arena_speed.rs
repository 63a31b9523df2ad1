//! What do `alloc`, `free` and `window_to_clear` cost under the store's lock in a large arena?
//!
//! Fills 64 GiB (bookkeeping only) with blocks, then frees at random and allocates again, and
//! prints nanoseconds a pair; then asks for windows in the arena full of holes that this left.
//!
//! `cargo run --release -p keepwarm-prototypes --bin arena_speed [GiB]`

use std::time::Instant;

use keepwarm_store::arena::{Allocator, Extents};

const TURNS: usize = 400_000;
const SEARCHES: usize = 200;

fn main() {
    let gib: u32 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(64);
    let granules = gib.clamp(1, 8192) << 18;
    let mut random = 1;
    for block in [16, 64, 512, 4096] {
        let mut allocator = Allocator::new(granules);
        let mut places: Vec<Extents> = std::iter::from_fn(|| allocator.alloc(block)).collect();
        let start = Instant::now();
        for _ in 0..TURNS {
            let slot = draw(&mut random, places.len());
            allocator.free(&places[slot]);
            places[slot] = allocator.alloc(block).expect("just freed");
        }
        let pair = start.elapsed().as_nanos() as f64 / TURNS as f64;
        println!("{:>6} KiB blocks: alloc + free {pair:>7.0} ns", block * 4);
    }
    windows(granules, &mut random);
}

/// Every tenth of the 64 KiB blocks is gone, at random; a 16 MiB block wants in.
fn windows(granules: u32, random: &mut u64) {
    let mut allocator = Allocator::new(granules);
    let mut places: Vec<Extents> = std::iter::from_fn(|| allocator.alloc(16)).collect();
    for (owner, place) in (0..).zip(&places) {
        allocator.set_owner(place, Some(owner));
    }
    for _ in 0..places.len() / 10 {
        let slot = draw(random, places.len());
        allocator.free(&places.swap_remove(slot));
    }
    let (mut failed, mut searched, mut cost) = (0.0, Vec::new(), 0);
    for _ in 0..SEARCHES {
        let start = Instant::now();
        let place = allocator.alloc(4096);
        failed += start.elapsed().as_nanos() as f64 / SEARCHES as f64;
        assert!(place.is_none(), "too scattered");
        let start = Instant::now();
        let window = allocator.window_to_clear(4096, |_| Some(16)).expect("a window");
        searched.push(start.elapsed().as_secs_f64() * 1e6);
        cost = window.cost;
    }
    searched.sort_by(f64::total_cmp);
    let (median, max) = (searched[SEARCHES / 2], searched[SEARCHES - 1]);
    println!("16 MiB into holes of 64 KiB: alloc fails in {failed:.0} ns");
    println!("window found in {median:.0} us (max {max:.0}), moves {cost} granules for 4096");
}

fn draw(state: &mut u64, limit: usize) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    ((mixed ^ (mixed >> 27)) % limit as u64) as usize
}
