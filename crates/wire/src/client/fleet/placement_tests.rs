//! What placement promises: one answer for all versions, fair shares, and that nothing moves but
//! what must.

use keepwarm_store::types::BlockKey;
use proptest::prelude::*;

use super::placement::{Homes, NodeId, Seat, homes, score};

const NAMES: [&str; 4] = [
    "tcp://10.0.0.1:9478",
    "tcp://10.0.0.2:9478",
    "tcp://[fd00::3]:9478",
    "unix:/run/keepwarm/keepwarm.sock",
];

fn seat(name: &str, puts: f64, settled: f64) -> Seat {
    Seat { id: NodeId::of(name), puts, settled }
}

fn fleet(weights: &[f64]) -> Vec<Seat> {
    let seat = |(n, weight): (usize, &f64)| seat(&format!("tcp://node-{n}:9478"), *weight, *weight);
    weights.iter().enumerate().map(seat).collect()
}

/// Spread as keyed hashes are: both halves mixed.
fn head(n: u64) -> BlockKey {
    let bytes = keepwarm_store::checksum::xxh3_64(&n.to_le_bytes());
    let more = keepwarm_store::checksum::xxh3_64(&bytes.to_le_bytes());
    let mut key = [0; 16];
    key[..8].copy_from_slice(&bytes.to_le_bytes());
    key[8..].copy_from_slice(&more.to_le_bytes());
    BlockKey(key)
}

fn put(head: BlockKey, seats: &[Seat]) -> NodeId {
    seats[homes(head, seats).expect("nodes").put].id
}

/// Computed with another implementation (Python, xxhash). They never change.
#[test]
fn vectors_of_all_versions() {
    let ids = [
        0xc394_5ee2_9a19_0034,
        0x89f4_93e9_abf6_2322,
        0xdffd_0a0e_3289_fd4d,
        0xfd1b_aec3_5092_3e5b,
    ];
    assert_eq!(NAMES.map(|name| NodeId::of(name).0), ids);
    // Best first with equal weights; the best where the last weighs four times as much.
    let wanted: [([usize; 4], usize, f64); 8] = [
        ([1, 2, 3, 0], 3, 0.655_545_494_732_440_6),
        ([2, 1, 3, 0], 2, 0.362_716_152_944_290_8),
        ([2, 3, 1, 0], 2, 0.915_983_644_009_575_4),
        ([2, 3, 0, 1], 3, 0.846_161_519_145_830_2),
        ([0, 3, 1, 2], 0, 96.506_553_357_242_84),
        ([3, 2, 1, 0], 3, 0.633_078_560_490_183),
        ([1, 2, 0, 3], 1, 0.501_069_363_865_517_9),
        ([3, 2, 0, 1], 3, 0.825_227_532_391_131_2),
    ];
    for (n, (order, heavy, first)) in wanted.into_iter().enumerate() {
        let head = BlockKey(std::array::from_fn(|at| ((n * 16 + at) * 7 % 256) as u8));
        let mut seats: Vec<_> = NAMES.iter().map(|name| seat(name, 1.0, 1.0)).collect();
        assert!((score(head, seats[0].id, 1.0) - first).abs() <= first * 1e-12);
        for want in order {
            assert_eq!(put(head, &seats), NodeId::of(NAMES[want]), "run {n}");
            let left = seats.iter_mut().find(|seat| seat.id == NodeId::of(NAMES[want])).unwrap();
            (left.puts, left.settled) = (0.0, 0.0);
        }
        let seats: Vec<_> = NAMES
            .iter()
            .zip([1.0, 1.0, 1.0, 4.0])
            .map(|(name, weight)| seat(name, weight, weight))
            .collect();
        assert_eq!(put(head, &seats), NodeId::of(NAMES[heavy]), "run {n}, weighted");
    }
}

#[test]
fn shares_follow_weights() {
    const RUNS: u64 = 40_000;
    for weights in [vec![1.0; 3], vec![1.0, 2.0, 5.0], vec![0.1, 1.0, 1.0, 1.0], vec![1.0; 64]] {
        let seats = fleet(&weights);
        let mut counts = vec![0u64; seats.len()];
        for n in 0..RUNS {
            counts[homes(head(n), &seats).expect("nodes").put] += 1;
        }
        let sum: f64 = weights.iter().sum();
        for (count, weight) in counts.iter().zip(&weights) {
            let share = weight / sum;
            let expected = RUNS as f64 * share;
            // Five standard deviations of a binomial.
            let slack = 5.0 * (expected * (1.0 - share)).sqrt();
            assert!((*count as f64 - expected).abs() < slack, "{counts:?} for {weights:?}");
        }
    }
}

#[test]
fn a_node_that_drains_is_still_read() {
    let mut seats = fleet(&[1.0; 3]);
    for n in 0..500 {
        let before = homes(head(n), &seats).expect("nodes");
        assert_eq!(before.also, None);
        seats[0].puts = 0.0;
        let after = homes(head(n), &seats).expect("nodes");
        match before.put {
            0 => assert!(after.put != 0 && after.also == Some(0)),
            _ => assert_eq!(after, before),
        }
        seats[0].puts = 1.0;
    }
}

#[test]
fn without_any_live_node_each_run_keeps_its_place() {
    let (gone, live) = (fleet(&[0.0; 3]), fleet(&[1.0; 3]));
    for n in 0..100 {
        let Homes { put, .. } = homes(head(n), &live).expect("nodes");
        assert_eq!(homes(head(n), &gone), Some(Homes { put, also: None }));
    }
    assert_eq!(homes(head(0), &[]), None);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..Default::default()
    })]

    /// The same nodes in another order give the same places.
    #[test]
    fn order_does_not_matter(weights in prop::collection::vec(0.1f64..10.0, 1..12), seed: u64) {
        let seats = fleet(&weights);
        let mut turned = seats.clone();
        turned.rotate_left(seed as usize % seats.len());
        turned.reverse();
        for n in 0..50 {
            let head = head(seed.wrapping_add(n));
            prop_assert_eq!(put(head, &seats), put(head, &turned));
        }
    }

    /// A change of one node's weight, from or to nothing too, moves runs from it or to it alone.
    #[test]
    fn what_need_not_move_stays(
        weights in prop::collection::vec(0.1f64..10.0, 2..12),
        which: prop::sample::Index,
        weight in prop_oneof![Just(0.0), 0.1f64..20.0],
        seed: u64,
    ) {
        let seats = fleet(&weights);
        let which = which.index(seats.len());
        let mut after = seats.clone();
        (after[which].puts, after[which].settled) = (weight, weight);
        for n in 0..200 {
            let head = head(seed.wrapping_add(n));
            let (old, new) = (put(head, &seats), put(head, &after));
            let ours = seats[which].id;
            match weight < weights[which] {
                true => prop_assert!(old == new || old == ours),
                false => prop_assert!(old == new || new == ours),
            }
        }
    }
}
