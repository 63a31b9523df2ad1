//! Least recently used leaves first.

use super::list::List;
use super::{Links, Policy, Use};

/// One list: a use moves a block to the front, the back leaves. A prompt's blocks must be touched
/// tail first, so that its head, which others share, leaves last.
///
/// A block that is leased when its turn comes keeps its place: a lookup is not a use.
///
/// Not suitable where one pass over many blocks that never return (batch jobs, crawls) must not
/// push out what does: it has no protection against scans. Not suitable for a working set a little
/// larger than the memory that is walked in a circle: every block leaves just before its use.
#[derive(Debug, Default)]
pub struct Lru {
    list: List,
}

impl Policy for Lru {
    fn insert<L: Links>(&mut self, links: &mut L, slot: u32, _left: Option<u32>) {
        self.list.push_front(links, slot);
    }

    #[inline]
    fn touch<L: Links>(&mut self, links: &mut L, slot: u32, _how: Use) {
        self.list.move_to_front(links, slot);
    }

    fn remove<L: Links>(&mut self, links: &mut L, slot: u32) {
        self.list.unlink(links, slot);
    }

    fn evict<L: Links>(
        &mut self,
        links: &mut L,
        looks: u32,
        may_leave: impl FnMut(&L, u32) -> bool,
    ) -> Option<u32> {
        self.list.evict(links, looks, may_leave)
    }

    #[inline]
    fn rewind(&mut self) {
        self.list.rewind();
    }

    fn len(&self) -> u32 {
        self.list.len()
    }

    fn visit<L: Links>(&self, links: &L, visitor: impl FnMut(u32)) -> bool {
        self.list.visit(links, visitor)
    }
}
