//! Holds the bounds on waste that `Allocator` documents, over sizes, orders and shifts of the mix.

use super::sim::{Figures, Order, Sim};
use crate::checksum::tests::Random;

/// 1 GiB: large against the largest block, small enough to turn over in a test.
const GRANULES: u32 = 1 << 18;
const KIB_64: u32 = 16;
const MIB_1: u32 = 256;
const MIB_16: u32 = 4096;

type Mix = fn(&mut Random) -> u32;

const MIXES: [(&str, Mix); 6] = [
    ("log-uniform 64 KiB to 16 MiB", log_uniform),
    ("99.9 % of 64 KiB, few of 16 MiB", mostly_small),
    ("64 KiB, 1 MiB, 16 MiB alike in bytes", three_sizes),
    ("uniform 64 KiB to 1 MiB", |random| 16 + random.below(241) as u32),
    ("64 KiB only", |_| KIB_64),
    ("16 MiB only", |_| MIB_16),
];

fn log_uniform(random: &mut Random) -> u32 {
    let exponent = random.below(8_000_001) as f64 / 1e6;
    (16.0 * exponent.exp2()) as u32
}

fn mostly_small(random: &mut Random) -> u32 {
    if random.below(1000) == 0 { MIB_16 } else { KIB_64 }
}

fn three_sizes(random: &mut Random) -> u32 {
    match random.below(256 + 16 + 1) {
        0 => MIB_16,
        1..=16 => MIB_1,
        _ => KIB_64,
    }
}

fn print(what: &str, order: Order, figures: &Figures) {
    println!(
        "{what:<60} {order:?}: waste mean {:.2} %, max {:.2} %; moved {:.3} of written; \
         {} evictions, {} windows, {} given up, {} shed",
        figures.waste_mean() * 100.0,
        figures.waste_max * 100.0,
        figures.moved_share(),
        figures.evictions,
        figures.windows,
        figures.given_up,
        figures.shed,
    );
}

#[test]
fn uniform_sizes_waste_less_than_three_percent() {
    let mut random = Random::from_env("uniform_sizes", 11);
    let mut sizes = vec![32, 33, 47, 64, 100, 255, 256, 257, 1000, 1025, 4095, MIB_16];
    sizes.extend((0..6).map(|_| 32 + random.below(4000) as u32));
    for size in sizes {
        for order in [Order::Fifo, Order::Lru] {
            let mut sim = Sim::new(GRANULES, order, Random(random.next()));
            sim.write(u64::from(GRANULES), |_| size);
            let figures = sim.write(u64::from(GRANULES), |_| size);
            print(&format!("{} KiB", size * 4), order, &figures);
            assert!(figures.waste_max < 0.03, "{size} granules: {figures:?}");
            assert_eq!(figures.moved, 0, "one size never needs to move");
        }
    }
}

#[test]
fn stationary_mixes_waste_less_than_twelve_percent() {
    let mut random = Random::from_env("stationary_mixes", 12);
    for (name, mix) in MIXES {
        for order in [Order::Fifo, Order::Lru] {
            let mut sim = Sim::new(GRANULES, order, Random(random.next()));
            sim.write(u64::from(GRANULES), mix);
            let figures = sim.write(3 * u64::from(GRANULES), mix);
            print(name, order, &figures);
            assert!(figures.waste_max < 0.12, "{name}, {order:?}: {figures:?}");
            assert!(figures.moved_share() < 0.25, "{name}, {order:?}: {figures:?}");
        }
    }
}

#[test]
fn waste_is_regained_after_the_mix_shifts() {
    let mut random = Random::from_env("mix_shifts", 13);
    // The shifts that leave the most behind: from many small blocks to large ones.
    for (before, after) in [(4, 5), (4, 0), (4, 2), (1, 5), (3, 5), (2, 0), (0, 1), (5, 4)] {
        let ((before, first), (after, second)) = (MIXES[before], MIXES[after]);
        for order in [Order::Fifo, Order::Lru] {
            let mut sim = Sim::new(GRANULES, order, Random(random.next()));
            sim.write(u64::from(GRANULES), first);
            let shift = sim.write(2 * u64::from(GRANULES), second);
            print(&format!("{before} -> {after}"), order, &shift);
            let figures = sim.write(u64::from(GRANULES), second);
            print("  after it", order, &figures);
            assert!(figures.waste_max < 0.12, "{before} -> {after}, {order:?}: {figures:?}");
        }
    }
}

#[test]
fn a_twentieth_pinned_keeps_the_bound() {
    let mut random = Random::from_env("pinned_blocks", 14);
    for (name, mix) in MIXES {
        let mut sim = Sim::new(GRANULES, Order::Lru, Random(random.next()));
        sim.pinned_per_mille = 50;
        sim.write(u64::from(GRANULES), mix);
        let figures = sim.write(3 * u64::from(GRANULES), mix);
        print(name, Order::Lru, &figures);
        assert!(figures.waste_max < 0.12, "{name}: {figures:?}");
    }
}
