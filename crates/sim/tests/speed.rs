//! How fast the replay is: prints block references for a second of CPU time (of Linux), and holds a
//! floor far below, which only a step that is no longer O(1) would miss.

mod common;

use common::Draw;
use keepwarm_sim::cache::Touch;
use keepwarm_sim::costs::{Costs, Link};
use keepwarm_sim::fleet::{Below, Fleet, FleetSettings};
use keepwarm_sim::hierarchy::Hierarchy;
use keepwarm_sim::level::LevelSettings;
use keepwarm_sim::memory::Tier;
use keepwarm_sim::order::OrderKind;
use keepwarm_sim::requests::Requests;
use keepwarm_sim::router::Router;

const REQUESTS: usize = 200_000;
const SESSIONS: u64 = 2_000;
const FLOOR: f64 = 500_000.0;

/// Sessions that grow by a block or two with each request, up to 64 blocks, then begin again.
fn grown() -> (Vec<u64>, Vec<u64>) {
    let mut draw = Draw(7);
    let mut sessions: Vec<Vec<u64>> = vec![Vec::new(); SESSIONS as usize];
    let (mut offsets, mut ids, mut fresh) = (vec![0], Vec::new(), 0u64);
    for _ in 0..REQUESTS {
        let session = &mut sessions[draw.below(SESSIONS) as usize];
        if session.len() >= 64 {
            session.clear();
        }
        for _ in 0..1 + draw.below(2) {
            fresh += 1;
            session.push(fresh.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        }
        ids.extend_from_slice(session);
        offsets.push(ids.len() as u64);
    }
    (offsets, ids)
}

/// CPU time of this thread, in the kernel's steps of 10 ms.
fn cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("proc");
    let fields: Vec<_> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    // Behind the name: state is field 3 of all, user and system time are 14 and 15.
    [11, 12].map(|at| fields[at].parse::<f64>().expect("ticks")).iter().sum::<f64>() / 100.0
}

#[test]
fn millions_of_blocks_a_second() {
    let (offsets, ids) = grown();
    let tokens = vec![1024; REQUESTS];
    let zeros = vec![0; REQUESTS];
    let times_s: Vec<f64> = (0..REQUESTS).map(|at| at as f64).collect();
    let requests = Requests {
        times_s: &times_s,
        input_tokens: &tokens,
        output_tokens: &tokens,
        sessions: &zeros,
        tenants: &zeros,
        offsets: &offsets,
        ids: &ids,
    };
    for policy in OrderKind::names() {
        let kind = OrderKind::named(policy).expect("a policy");
        let level = LevelSettings::new(Tier::Dram, Some(20_000), kind);
        let link = Link { latency_s: 0.0, bytes_per_s: 1e9 };
        let costs = Costs {
            fixed_s: 0.0,
            token_s: 1e-5,
            attention_s: 1e-9,
            token_bytes: 1e5,
            links: [link; 5],
        };
        let settings = FleetSettings {
            router: Router::RoundRobin,
            costs,
            is_planned: false,
            block_tokens: 16,
        };
        let own = vec![Hierarchy::new(&[], Touch::TailFirst)];
        let below = Below::Shared(Box::new(Hierarchy::new(&[level], Touch::TailFirst)));
        let mut fleet = Fleet::new(settings, own, below);
        let start_s = cpu_s();
        fleet.serve(&requests).expect("few blocks");
        let rate = ids.len() as f64 / (cpu_s() - start_s).max(0.01);
        let hits: u64 =
            fleet.finish().hit_blocks[Tier::Dram as usize].iter().map(|h| u64::from(*h)).sum();
        println!("{policy:>8}: {:.1} M references/s, {hits} of {} hit", rate / 1e6, ids.len());
        assert!(rate > FLOOR, "{policy}: {rate:.0} references a second");
    }
}
