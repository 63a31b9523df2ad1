//! One lookup on several nodes: what each is asked, and one answer from theirs.

use keepwarm_store::types::{BlockKey, Epoch, LeaseId, MissReason};
use keepwarm_store::{Hit, Lookup};

use super::placement::{Seat, homes};
use crate::client::positions::Run;
use crate::client::transport::Unserved;

/// What one node is asked, in prompt order.
pub(super) struct Part {
    pub(super) node: usize,
    pub(super) keys: Vec<BlockKey>,
    /// Of each key among all.
    places: Vec<usize>,
}

/// The questions, the likeliest holder of each run first.
pub(super) fn parts(keys: &[BlockKey], runs: &[Run], seats: &[Seat]) -> Vec<Part> {
    let mut first: Vec<Option<Part>> = seats.iter().map(|_| None).collect();
    let mut second: Vec<Option<Part>> = seats.iter().map(|_| None).collect();
    for run in runs {
        let Some(homes) = homes(run.head, seats) else { continue };
        let add = |list: &mut Vec<Option<Part>>, node: usize| {
            let new = || Part { node, keys: Vec::new(), places: Vec::new() };
            let part = list[node].get_or_insert_with(new);
            part.keys.extend_from_slice(&keys[run.items.clone()]);
            part.places.extend(run.items.clone());
        };
        add(&mut first, homes.put);
        if let Some(also) = homes.also {
            add(&mut second, also);
        }
    }
    first.into_iter().chain(second).flatten().collect()
}

/// One answer, and the leases of the nodes that it rests on.
pub(super) struct Merged {
    pub(super) lookup: Lookup,
    pub(super) leases: Vec<(usize, LeaseId)>,
    /// Leases that nothing rests on.
    pub(super) unused: Vec<(usize, LeaseId)>,
}

/// One answer for `count` keys. A part that was not served misses for its reason.
///
/// # Errors
/// No part was served.
pub(super) fn merge(
    count: usize,
    epoch: Epoch,
    incarnation: u64,
    parts: &[Part],
    answers: Vec<Result<Lookup, Unserved>>,
) -> Result<Merged, Unserved> {
    let mut failed = None;
    let mut hits: Vec<Option<Hit>> = vec![None; count];
    let mut reasons: Vec<Option<MissReason>> = vec![None; count];
    let mut merged = Merged { lookup: empty(epoch, incarnation), leases: vec![], unused: vec![] };
    let mut lease_ms = u32::MAX;
    let mut served = count == 0;
    for (part, answer) in parts.iter().zip(answers) {
        let found = match answer {
            Ok(found) => found,
            Err(unserved) => {
                let reason = reason_of(&unserved);
                part.places.iter().for_each(|place| _ = reasons[*place].get_or_insert(reason));
                failed = failed.or(Some(unserved));
                continue;
            }
        };
        served = true;
        let mut rests = false;
        for (place, hit) in part.places.iter().zip(&found.hits) {
            rests |= hit.is_some() && hits[*place].is_none();
            hits[*place] = hits[*place].or(*hit);
        }
        let miss = found.hits.iter().position(Option::is_none);
        if let (Some(miss), Some(reason)) = (miss, found.miss) {
            reasons[part.places[miss]].get_or_insert(reason);
        }
        let out = &mut merged.lookup;
        out.epoch = out.epoch.max(found.epoch);
        match (found.lease, rests) {
            (Some(lease), true) => {
                merged.leases.push((part.node, lease));
                lease_ms = lease_ms.min(found.lease_ms);
            }
            (Some(lease), false) => merged.unused.push((part.node, lease)),
            // Some hits may go at any time: nothing can be relied on.
            (None, true) => lease_ms = 0,
            (None, false) => {}
        }
        if rests {
            out.restore_ns = out.restore_ns.max(found.restore_ns);
        }
    }
    if let (false, Some(unserved)) = (served, failed) {
        return Err(unserved);
    }
    merged.lookup.lease_ms = if merged.leases.is_empty() { 0 } else { lease_ms };
    ends(&mut merged.lookup, hits, &reasons);
    Ok(merged)
}

/// Where the prefix ends, and why.
fn ends(out: &mut Lookup, hits: Vec<Option<Hit>>, reasons: &[Option<MissReason>]) {
    let miss = hits.iter().position(Option::is_none);
    out.prefix = u32::try_from(miss.unwrap_or(hits.len())).unwrap_or(u32::MAX);
    out.miss = miss.map(|at| reasons[at].unwrap_or(MissReason::Absent));
    out.hits = hits;
}

/// Why nothing came of a call, as a miss.
pub(super) fn reason_of(unserved: &Unserved) -> MissReason {
    match unserved {
        Unserved::Missed(reason) => *reason,
        Unserved::Refused(_) => MissReason::StoreDown,
    }
}

fn empty(epoch: Epoch, incarnation: u64) -> Lookup {
    Lookup {
        prefix: 0,
        hits: Vec::new(),
        miss: None,
        lease: None,
        lease_ms: 0,
        restore_ns: 0,
        epoch,
        incarnation,
    }
}

#[cfg(test)]
mod tests {
    use keepwarm_store::types::{Generation, Tier};

    use super::super::placement::NodeId;
    use super::*;

    fn key(n: u8) -> BlockKey {
        BlockKey([n; 16])
    }

    fn hit() -> Option<Hit> {
        Some(Hit { tier: Tier::Dram, length: 1, generation: Generation(1), checksum: 0 })
    }

    fn part(node: usize, places: &[usize]) -> Part {
        let keys = places.iter().map(|place| key(*place as u8)).collect();
        Part { node, keys, places: places.to_vec() }
    }

    fn found(hits: &[bool], miss: Option<MissReason>, lease: Option<(u64, u32)>) -> Lookup {
        let lookup = empty(Epoch(3), 9);
        Lookup {
            hits: hits.iter().map(|is| is.then(hit).flatten()).collect(),
            miss,
            lease: lease.map(|(lease, _)| LeaseId(lease)),
            lease_ms: lease.map_or(0, |(_, time)| time),
            restore_ns: hits.len() as u64,
            ..lookup
        }
    }

    fn merged(parts: &[Part], answers: Vec<Result<Lookup, Unserved>>, count: usize) -> Merged {
        merge(count, Epoch(1), 7, parts, answers).unwrap_or_else(|error| panic!("{error:?}"))
    }

    #[test]
    fn the_prefix_goes_across_nodes_and_the_first_miss_is_its_nodes() {
        let parts = [part(0, &[0, 1, 4, 5]), part(1, &[2, 3])];
        let one = found(&[true, true, false, true], Some(MissReason::Evicted), Some((1, 900)));
        let two = found(&[true, true], None, Some((2, 700)));
        let Merged { lookup, leases, unused } = merged(&parts, vec![Ok(one), Ok(two)], 6);
        assert_eq!((lookup.prefix, lookup.miss), (4, Some(MissReason::Evicted)));
        assert_eq!((lookup.lease_ms, lookup.restore_ns, lookup.epoch), (700, 4, Epoch(3)));
        assert_eq!(lookup.hits.iter().map(Option::is_some).filter(|is| *is).count(), 5);
        assert_eq!((leases.len(), unused.len()), (2, 0));
    }

    #[test]
    fn a_node_that_does_not_answer_costs_its_share_alone() {
        let parts = [part(0, &[0, 1, 4]), part(1, &[2, 3])];
        let one = found(&[true, true, true], None, Some((1, 900)));
        let down = Err(Unserved::Missed(MissReason::StoreDown));
        let Merged { lookup, leases, .. } = merged(&parts, vec![Ok(one), down.clone()], 5);
        assert_eq!((lookup.prefix, lookup.miss), (2, Some(MissReason::StoreDown)));
        assert!(lookup.hits[4].is_some());
        assert_eq!((lookup.lease_ms, leases), (900, vec![(0, LeaseId(1))]));
        let none = merge(5, Epoch(1), 7, &parts, vec![down.clone(), down.clone()]);
        assert_eq!(none.err(), down.err());
    }

    #[test]
    fn hits_without_a_lease_cannot_be_relied_on() {
        let parts = [part(0, &[0]), part(1, &[1])];
        let (one, two) = (found(&[true], None, Some((1, 900))), found(&[true], None, None));
        let Merged { lookup, leases, .. } = merged(&parts, vec![Ok(one), Ok(two)], 2);
        assert_eq!((lookup.lease_ms, leases.len()), (0, 1), "it is kept for being given back");
    }

    #[test]
    fn where_two_nodes_are_asked_either_may_have_it() {
        let parts = [part(0, &[0, 1]), part(1, &[0, 1])];
        let one = found(&[false, false], Some(MissReason::Absent), None);
        let two = found(&[true, false], Some(MissReason::Evicted), Some((2, 500)));
        let Merged { lookup, leases, .. } = merged(&parts, vec![Ok(one), Ok(two)], 2);
        assert_eq!((lookup.prefix, lookup.miss), (1, Some(MissReason::Evicted)));
        assert_eq!((lookup.lease_ms, leases), (500, vec![(1, LeaseId(2))]));
        let (one, two) =
            (found(&[true, true], None, Some((1, 5))), found(&[true, true], None, Some((2, 5))));
        let Merged { leases, unused, .. } = merged(&parts, vec![Ok(one), Ok(two)], 2);
        assert_eq!((leases, unused), (vec![(0, LeaseId(1))], vec![(1, LeaseId(2))]));
    }

    #[test]
    fn every_key_is_asked_of_the_home_of_its_run() {
        let keys: Vec<_> = (0..20).map(key).collect();
        let runs: Vec<_> =
            (0..5).map(|n| Run { head: keys[n * 4], items: n * 4..n * 4 + 4 }).collect();
        let seat = |name, puts| Seat { id: NodeId::of(name), puts, settled: 1.0 };
        let seats = [seat("a", 1.0), seat("b", 0.0), seat("c", 1.0)];
        let parts = parts(&keys, &runs, &seats);
        for run in &runs {
            let homes = homes(run.head, &seats).unwrap();
            let asked: Vec<usize> = parts
                .iter()
                .filter(|part| run.items.clone().all(|item| part.places.contains(&item)))
                .map(|part| part.node)
                .collect();
            assert_eq!(
                asked,
                [Some(homes.put), homes.also].into_iter().flatten().collect::<Vec<_>>()
            );
        }
        assert_eq!(merged(&parts[..0], vec![], 0).lookup.miss, None);
    }
}
