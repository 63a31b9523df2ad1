//! The allocator against a plain list of granules.

use super::super::{Allocator, EXTENTS_MAX, Extents};
use crate::checksum::tests::Random;

/// Who has each granule; the slow truth.
struct Model {
    granules: Vec<Option<u32>>,
}

impl Model {
    fn free(&self) -> usize {
        self.granules.iter().filter(|owner| owner.is_none()).count()
    }

    /// Whether the eight longest free runs hold `wanted`.
    fn fits(&self, wanted: u32) -> bool {
        let mut runs: Vec<usize> = self
            .granules
            .split(Option::is_some)
            .map(<[Option<u32>]>::len)
            .filter(|&length| length > 0)
            .collect();
        runs.sort_unstable_by(|a, b| b.cmp(a));
        runs.iter().take(EXTENTS_MAX).sum::<usize>() >= wanted as usize
    }

    fn longest(&self) -> usize {
        self.granules.split(Option::is_some).map(<[Option<u32>]>::len).max().unwrap_or(0)
    }

    fn set(&mut self, extents: &Extents, from: Option<u32>, to: Option<u32>) {
        for extent in extents.iter() {
            for granule in extent.first_granule..extent.end() {
                let kept = &mut self.granules[granule as usize];
                assert_eq!(*kept, from, "granule {granule} changes hands");
                *kept = to;
            }
        }
    }
}

fn round(granules: u32, steps: usize, size_max: u64, random: &mut Random) {
    let mut allocator = Allocator::new(granules);
    let mut model = Model { granules: vec![None; granules as usize] };
    let mut places: Vec<(u32, Extents)> = Vec::new();
    for step in 0..steps {
        let fill = if step / 200 % 2 == 0 { 3 } else { 1 };
        if random.below(4) < fill {
            let wanted = random.below(size_max) as u32;
            let fits = wanted > 0 && model.fits(wanted);
            let single = model.longest() >= wanted as usize;
            let place = allocator.alloc(wanted);
            assert_eq!(place.is_some(), fits, "alloc({wanted}) of {}", model.free());
            if let Some(extents) = place {
                assert_eq!(extents.granules(), wanted);
                assert_eq!(extents.len() == 1, single, "one extent where one run suffices");
                model.set(&extents, None, Some(step as u32));
                allocator.set_owner(&extents, Some(step as u32));
                places.push((step as u32, extents));
            }
        } else if !places.is_empty() {
            let (owner, extents) = places.swap_remove(random.below(places.len() as u64) as usize);
            model.set(&extents, Some(owner), None);
            allocator.free(&extents);
        }
        assert_eq!(allocator.free_granules() as usize, model.free());
        if step.is_multiple_of(64) {
            allocator.check().expect("bookkeeping");
            for (granule, &owner) in model.granules.iter().enumerate() {
                assert_eq!(allocator.owner_of(granule as u32), owner, "granule {granule}");
            }
        }
    }
    places.iter().for_each(|(_, extents)| allocator.free(extents));
    allocator.check().expect("bookkeeping");
    assert_eq!(allocator.alloc(granules).expect("all free is one run").len(), 1);
}

#[test]
fn behaves_like_a_list_of_granules() {
    let mut random = Random::from_env("behaves_like_a_list_of_granules", 21);
    for (granules, size_max) in [(1, 3), (63, 9), (512, 40), (513, 600), (1500, 7), (4000, 700)] {
        round(granules, 2_000, size_max, &mut random);
    }
    for _ in 0..10 {
        let granules = 1 + random.below(3_000) as u32;
        let size_max = 2 + random.below(u64::from(granules) / 2 + 40);
        round(granules, 1_000, size_max, &mut random);
    }
}

#[test]
fn metadata_is_below_eight_bytes_a_granule() {
    for granules in [1 << 15, 1_000_000, (1 << 20) + 1, (1 << 21) - 1] {
        let allocator = Allocator::new(granules);
        let bytes = allocator.metadata_bytes();
        assert!(bytes <= 8 * granules as usize, "{bytes} bytes for {granules} granules");
    }
}

#[test]
fn windows_make_room_and_leave_no_trace() {
    let mut random = Random::from_env("windows_make_room", 22);
    for _ in 0..40 {
        let mut allocator = Allocator::new(4096);
        // 16-granule blocks with one in three freed: plenty free, no run above 32.
        let places: Vec<Extents> = std::iter::from_fn(|| allocator.alloc(16)).collect();
        let mut blocks: Vec<Option<Extents>> = places.into_iter().map(Some).collect();
        let mut freed = 0;
        for (slot, block) in blocks.iter_mut().enumerate() {
            allocator.set_owner(&block.expect("just made"), Some(slot as u32));
            if slot % 3 == 0 {
                freed = random.below(3) as usize;
            }
            if slot % 3 == freed {
                allocator.free(&block.take().expect("just made"));
            }
        }
        let wanted = 260 + random.below(240) as u32;
        assert!(allocator.alloc(wanted).is_none(), "too scattered");
        let free = allocator.free_granules();
        let pinned = random.below(256) as u32;
        let window = allocator
            .window_to_clear(wanted, |owner| (owner != pinned).then_some(16))
            .expect("a window");
        assert_eq!(allocator.free_granules(), free, "looking changes nothing");
        allocator.hold(window);
        let mut at = window.first_granule;
        while let Some((owner, next)) = allocator.next_owner(window, at) {
            assert_ne!(owner, pinned, "pinned blocks stay");
            at = next;
            let old = blocks[owner as usize].expect("owners live");
            let new = allocator.alloc(16).expect("room outside");
            let outside = |granule| !(window.first_granule..window.end()).contains(&granule);
            assert!(new.iter().all(|e| outside(e.first_granule) && outside(e.end() - 1)));
            allocator.set_owner(&new, Some(owner));
            allocator.free(&old);
            allocator.check().expect("bookkeeping while held");
            blocks[owner as usize] = Some(new);
        }
        allocator.release();
        allocator.check().expect("bookkeeping");
        assert_eq!(allocator.free_granules(), free, "moving costs no room");
        assert!(allocator.alloc(wanted).is_some(), "what the window was cleared for");
    }
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "freed twice")]
fn double_free_is_caught() {
    let mut allocator = Allocator::new(1024);
    let place = allocator.alloc(100).expect("room");
    allocator.free(&place);
    allocator.free(&place);
}

#[test]
fn odd_requests_get_nothing() {
    let mut allocator = Allocator::new(100);
    assert!(allocator.alloc(0).is_none());
    assert!(allocator.alloc(101).is_none());
    assert!(allocator.alloc(u32::MAX).is_none());
    assert!(allocator.window_to_clear(0, |_| Some(1)).is_none());
    assert!(allocator.window_to_clear(101, |_| Some(1)).is_none());
    assert!(allocator.window_to_clear(u32::MAX, |_| Some(1)).is_none());
    assert_eq!(allocator.alloc(100).expect("all of it").granules(), 100);
    allocator.check().expect("bookkeeping");
}
