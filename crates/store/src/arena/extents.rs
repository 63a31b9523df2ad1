//! Where a block lies: at most eight runs of granules, in the order of its bytes.

use std::fmt;

use super::{EXTENTS_MAX, GRANULE_BYTES};

/// A run of granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Extent {
    /// The run's first granule.
    pub first_granule: u32,
    /// Its length; never zero in an [`Extents`].
    pub granules: u32,
}

impl Extent {
    /// One past the last granule.
    pub fn end(self) -> u32 {
        self.first_granule + self.granules
    }
}

/// A block's place: 1 to [`EXTENTS_MAX`] extents, stored inline.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Extents {
    list: [Extent; EXTENTS_MAX],
    count: u8,
}

impl Extents {
    /// The extents in the order of the block's bytes.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Extent> + '_ {
        self.list[..usize::from(self.count)].iter().copied()
    }

    /// The extent at a position.
    pub fn get(&self, position: usize) -> Option<Extent> {
        self.list[..usize::from(self.count)].get(position).copied()
    }

    /// Granules over all extents.
    pub fn granules(&self) -> u32 {
        self.iter().map(|extent| extent.granules).sum()
    }

    /// Bytes over all extents; a block may use fewer.
    pub fn bytes(&self) -> usize {
        self.granules() as usize * GRANULE_BYTES
    }

    /// How many extents.
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// True only for `Extents::default()`, which no allocation returns.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Appends a run; false when the list is full.
    pub fn push(&mut self, extent: Extent) -> bool {
        debug_assert!(extent.granules > 0, "an extent of no granules");
        let Some(slot) = self.list.get_mut(usize::from(self.count)) else { return false };
        *slot = extent;
        self.count += 1;
        true
    }
}

impl fmt::Debug for Extents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
