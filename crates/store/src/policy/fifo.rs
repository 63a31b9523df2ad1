//! Oldest leaves first.

use super::list::List;
use super::{Links, Policy, Use};

/// One list in the order of arrival; a use changes nothing, so a touch costs nothing.
///
/// A block that is leased when its turn comes keeps its place and is passed over.
///
/// Not suitable where few blocks serve most hits (shared system prompts): it throws them out as
/// often as any other. It is here as the yardstick that a policy has to beat, and for stores so
/// large that what leaves is old anyway.
#[derive(Debug, Default)]
pub struct Fifo {
    list: List,
}

impl Policy for Fifo {
    fn insert<L: Links>(&mut self, links: &mut L, slot: u32, _left: Option<u32>) {
        self.list.push_front(links, slot);
    }

    #[inline]
    fn touch<L: Links>(&mut self, _links: &mut L, _slot: u32, _how: Use) {}

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
