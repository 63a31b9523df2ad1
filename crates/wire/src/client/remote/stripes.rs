//! One batch over several connections at once: a single stream of TCP, or one core under TLS, is
//! slower than what the network and the machine can do.
//!
//! ```text
//!   items  [ 0 1 2 3 | 4 5 6 7 | 8 9 ]      outcomes are cut at the same places
//!            leg 0     leg 1     leg 2      each on a connection of the pool
//! ```

use std::ops::Range;

use keepwarm_store::types::{GetOutcome, PutOutcome};

use super::link::{Link, of_blocks};
use super::{Remote, writes};
use crate::address::Address;
use crate::client::transport::{SpaceCore, Unserved};
use crate::client::{GetItem, PutItem};
use crate::deadline::Deadline;

/// Least bytes of a stripe: for fewer another connection costs more than it gives.
const STRIPE_BYTES: usize = 2 << 20;

/// A caller's items on their way to a leg.
struct Lent<'a, T>(&'a [T]);

// SAFETY: an item is an address and a length. Whose bytes they are is the promise of
// `Space::get_into` and `Space::put_from`, which holds until the call returns, and `Legs::run` does
// not return before every leg has; no two legs have the same item (tests/network.rs gets and puts
// in stripes with guards around every buffer).
unsafe impl Send for Lent<'_, GetItem> {}
// SAFETY: as above.
unsafe impl Send for Lent<'_, PutItem> {}

impl<'a, T> Lent<'a, T> {
    fn items(&self) -> &'a [T] {
        self.0
    }
}

/// Cuts a batch into at most `most` runs of about as many bytes each.
fn cut(lengths: &[usize], most: usize) -> Vec<Range<usize>> {
    let bytes: usize = lengths.iter().sum();
    let stripes = (bytes / STRIPE_BYTES).clamp(1, most.max(1));
    let share = bytes.div_ceil(stripes);
    let (mut cuts, mut start, mut have) = (Vec::with_capacity(stripes), 0, 0);
    for (place, length) in lengths.iter().enumerate() {
        have += length;
        if have >= share && cuts.len() + 1 < stripes {
            cuts.push(start..place + 1);
            (start, have) = (place + 1, 0);
        }
    }
    if start < lengths.len() {
        cuts.push(start..lengths.len());
    }
    cuts
}

/// The parts of `outcomes` at these runs.
fn parts<'a, T>(mut outcomes: &'a mut [T], cuts: &[Range<usize>]) -> Vec<&'a mut [T]> {
    let mut parts = Vec::with_capacity(cuts.len());
    for cut in cuts {
        let (part, rest) = outcomes.split_at_mut(cut.len());
        parts.push(part);
        outcomes = rest;
    }
    parts
}

impl Remote {
    /// Connections that a batch may use now: never more than are free, nor than there are cores.
    fn stripes_max(&self) -> usize {
        match self.node.config.address {
            Address::Unix(_) => 1,
            Address::Tcp { .. } | Address::Tls { .. } => {
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                self.node.config.stripes.min(cores).min(self.node.pool.free())
            }
        }
    }

    /// # Safety
    /// As `Space::get_into`.
    pub(super) unsafe fn get_striped(
        &self,
        space: &SpaceCore,
        items: &[GetItem],
        outcomes: &mut [Option<GetOutcome>],
        until: Deadline,
    ) -> Result<(), Unserved> {
        let lengths: Vec<_> = items.iter().map(|item| item.len).collect();
        let cuts = cut(&lengths, self.stripes_max());
        let get = |items: &[GetItem], outcomes: &mut [Option<GetOutcome>]| {
            // SAFETY: the caller's promise about `items`.
            let work = |link: &mut Link| unsafe { link.get(space, items, outcomes, until) };
            self.node.with_link(until, work).map_err(of_blocks)
        };
        if cuts.len() <= 1 {
            return get(items, outcomes);
        }
        let parts = parts(outcomes, &cuts).into_iter().zip(&cuts);
        let work = |(part, cut): (_, &Range<usize>)| {
            let (lent, get) = (Lent(&items[cut.clone()]), &get);
            move || get(lent.items(), part)
        };
        self.legs.run(parts.map(work).collect()).into_iter().collect()
    }

    /// True: in several parts, of which the node counted each as used by itself.
    ///
    /// # Safety
    /// As `Space::put_from`.
    pub(super) unsafe fn put_striped(
        &self,
        space: &SpaceCore,
        items: &[PutItem],
        outcomes: &mut [Option<PutOutcome>],
        until: Deadline,
    ) -> Result<bool, Unserved> {
        let lengths: Vec<_> = items.iter().map(|item| item.len).collect();
        let cuts = cut(&lengths, self.stripes_max());
        let put = |items: &[PutItem], outcomes: &mut [Option<PutOutcome>]| {
            let groups = writes::groups(items);
            let is_one = groups.len() == 1;
            let work = |link: &mut Link| {
                groups.into_iter().try_for_each(|group| {
                    // SAFETY: the caller's promise about `items`.
                    unsafe { link.put(space, &items[group.clone()], &mut outcomes[group], until) }
                })
            };
            self.node.with_link(until, work).map_err(of_blocks).map(|()| !is_one)
        };
        if cuts.len() <= 1 {
            return put(items, outcomes);
        }
        let parts = parts(outcomes, &cuts).into_iter().zip(&cuts);
        let work = |(part, cut): (_, &Range<usize>)| {
            let (lent, put) = (Lent(&items[cut.clone()]), &put);
            move || put(lent.items(), part)
        };
        let done: Result<Vec<_>, _> =
            self.legs.run(parts.map(work).collect()).into_iter().collect();
        done.map(|_| true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_once_each_and_evenly() {
        for (lengths, most) in [
            (vec![1 << 20; 64], 4),
            (vec![1 << 20; 3], 4),
            (vec![9 << 20, 1, 1, 9 << 20], 4),
            (vec![1, 1, 64 << 20], 8),
            (vec![64 << 20, 1, 1], 8),
            (vec![5; 10], 4),
            (vec![16 << 20], 4),
            (vec![1 << 20; 64], 0),
        ] {
            let cuts = cut(&lengths, most);
            let places: Vec<_> = cuts.iter().cloned().flatten().collect();
            assert_eq!(places, (0..lengths.len()).collect::<Vec<_>>());
            assert!(cuts.len() <= most.max(1) && cuts.iter().all(|cut| !cut.is_empty()));
        }
        assert_eq!(cut(&[1 << 20; 64], 4).len(), 4);
        assert_eq!(cut(&[1 << 20; 64], 4)[1], 16..32);
        assert_eq!(cut(&[1 << 20; 3], 4).len(), 1);
    }
}
