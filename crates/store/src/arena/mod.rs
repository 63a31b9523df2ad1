//! Stand-in until the arena lands.
#![allow(missing_docs)]

pub const GRANULE_BYTES: usize = 4096;
pub const EXTENTS_MAX: usize = 8;

#[derive(Debug, thiserror::Error)]
#[error("arena of {0} bytes")]
pub struct ArenaError(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    pub first_granule: u32,
    pub granules: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Extents {
    items: [Extent; EXTENTS_MAX],
    count: u8,
}

impl Extents {
    pub fn new() -> Extents {
        Extents::default()
    }
    pub fn push(&mut self, extent: Extent) {
        self.items[self.count as usize] = extent;
        self.count += 1;
    }
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.items[..self.count as usize].iter().copied()
    }
    pub fn granules(&self) -> u32 {
        self.iter().map(|extent| extent.granules).sum()
    }
}

#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    granules: u32,
}
// SAFETY: stand-in.
unsafe impl Send for Arena {}
// SAFETY: stand-in.
unsafe impl Sync for Arena {}

impl Arena {
    pub fn create(bytes: u64, _populate: bool) -> Result<Arena, ArenaError> {
        if bytes > 1 << 40 {
            return Err(ArenaError(bytes));
        }
        let memory = vec![0u8; bytes as usize].leak();
        Ok(Arena { base: memory.as_mut_ptr(), granules: (bytes / GRANULE_BYTES as u64) as u32 })
    }
    pub fn pieces(
        &self,
        extents: &Extents,
        len: usize,
    ) -> impl Iterator<Item = (*mut u8, usize)> + use<> {
        let base = self.base as usize;
        let mut left = len;
        extents.clone().iter().collect::<Vec<_>>().into_iter().map(move |extent| {
            let bytes = left.min(extent.granules as usize * GRANULE_BYTES);
            left -= bytes;
            ((base + extent.first_granule as usize * GRANULE_BYTES) as *mut u8, bytes)
        })
    }
    pub fn granules(&self) -> u32 {
        self.granules
    }
}

#[derive(Debug)]
pub struct Allocator {
    used: Vec<bool>,
    free: u32,
    hint: usize,
}

#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub first_granule: u32,
    pub granules: u32,
}

impl Allocator {
    pub fn new(granules: u32) -> Allocator {
        Allocator { used: vec![false; granules as usize], free: granules, hint: 0 }
    }
    pub fn alloc(&mut self, granules: u32) -> Option<Extents> {
        if granules > self.free {
            return None;
        }
        let (mut extents, mut left, n) = (Extents::new(), granules, self.used.len());
        let mut at = self.hint;
        let mut steps = 0;
        while left > 0 && steps < 2 * n {
            if at >= n {
                at = 0;
            }
            if self.used[at] {
                at += 1;
                steps += 1;
                continue;
            }
            if extents.count as usize == EXTENTS_MAX {
                self.free(&extents);
                return None;
            }
            let first = at;
            while at < n && !self.used[at] && left > 0 {
                self.used[at] = true;
                at += 1;
                left -= 1;
                self.free -= 1;
                steps += 1;
            }
            let granules = (at - first) as u32;
            extents.push(Extent { first_granule: first as u32, granules });
        }
        self.hint = at;
        Some(extents)
    }
    pub fn free(&mut self, extents: &Extents) {
        for extent in extents.iter() {
            for granule in extent.first_granule..extent.first_granule + extent.granules {
                assert!(std::mem::replace(&mut self.used[granule as usize], false));
                self.free += 1;
            }
        }
    }
    pub fn free_granules(&self) -> u32 {
        self.free
    }
    pub fn window_to_clear(
        &self,
        granules: u32,
        _pinned: impl Fn(u32) -> bool,
    ) -> Option<Window> {
        let _ = granules;
        None
    }
    pub fn check(&self) {}
}
