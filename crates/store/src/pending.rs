//! Blocks whose parts are not all in: a bounded side table.

use std::time::Duration;

use crate::index::Slot;
use crate::types::Instant;

/// How long an incomplete block waits for its next part when nobody writes one.
pub(crate) const INCOMPLETE_MAX: Duration = Duration::from_secs(30);

/// Names one filling for good: a later one in the same place has another `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FillingId {
    pub place: u32,
    id: u64,
}

/// One incomplete block.
#[derive(Debug)]
pub(crate) struct Filling {
    id: u64,
    pub slot: Slot,
    /// Parts that are in, a bit each.
    landed: u64,
    /// Parts that a grant is out for, a bit each.
    writing: u64,
    last_active: Instant,
}

/// What a writer of one part meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartState {
    Missing,
    Writing,
    Landed,
}

impl Filling {
    pub fn part(&self, part: u8) -> PartState {
        let bit = 1 << part;
        match (self.landed & bit != 0, self.writing & bit != 0) {
            (true, _) => PartState::Landed,
            (_, true) => PartState::Writing,
            _ => PartState::Missing,
        }
    }

    pub fn begin(&mut self, part: u8, now: Instant) {
        assert_eq!(self.part(part), PartState::Missing);
        self.writing |= 1 << part;
        self.last_active = now;
    }

    pub fn land(&mut self, part: u8, now: Instant) {
        assert_eq!(self.part(part), PartState::Writing);
        self.writing &= !(1 << part);
        self.landed |= 1 << part;
        self.last_active = now;
    }

    pub fn abort(&mut self, part: u8, now: Instant) {
        assert_eq!(self.part(part), PartState::Writing);
        self.writing &= !(1 << part);
        self.last_active = now;
    }

    /// All of `parts` parts are in.
    pub fn is_complete(&self, parts: u8) -> bool {
        self.landed.count_ones() == u32::from(parts)
    }

    /// Nothing is in and nobody writes.
    pub fn is_empty(&self) -> bool {
        self.landed == 0 && self.writing == 0
    }

    fn is_abandoned(&self, now: Instant) -> bool {
        self.writing == 0 && now.since(self.last_active) >= INCOMPLETE_MAX
    }
}

/// All incomplete blocks, at most as many as at start.
#[derive(Debug)]
pub(crate) struct Fillings {
    places: Vec<Option<Filling>>,
    free: Vec<u32>,
    next_id: u64,
}

impl Fillings {
    pub fn new(max: u32) -> Fillings {
        let free = (0..max).rev().collect();
        Fillings { places: (0..max).map(|_| None).collect(), free, next_id: 1 }
    }

    pub fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub fn open(&mut self, slot: Slot, now: Instant) -> Option<FillingId> {
        let (place, id) = (self.free.pop()?, self.next_id);
        self.next_id += 1;
        let filling = Filling { id, slot, landed: 0, writing: 0, last_active: now };
        self.places[place as usize] = Some(filling);
        Some(FillingId { place, id })
    }

    /// The one in this place, which the caller knows to be there.
    pub fn at(&mut self, place: u32) -> (FillingId, &mut Filling) {
        let filling = self.places[place as usize].as_mut().expect("an incomplete block's filling");
        (FillingId { place, id: filling.id }, filling)
    }

    /// The filling of this name, unless it is gone.
    pub fn get(&mut self, name: FillingId) -> Option<&mut Filling> {
        self.places[name.place as usize].as_mut().filter(|filling| filling.id == name.id)
    }

    pub fn close(&mut self, place: u32) {
        assert!(self.places[place as usize].take().is_some());
        self.free.push(place);
    }

    /// Slots of all incomplete blocks.
    pub fn slots(&self) -> Vec<Slot> {
        self.places.iter().flatten().map(|filling| filling.slot).collect()
    }

    /// Slots whose last part is overdue.
    pub fn abandoned(&self, now: Instant) -> Vec<Slot> {
        let overdue = self.places.iter().flatten().filter(|filling| filling.is_abandoned(now));
        overdue.map(|filling| filling.slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_complete_with_its_last_part() {
        let mut fillings = Fillings::new(2);
        let name = fillings.open(7, Instant(0)).unwrap();
        let filling = fillings.get(name).unwrap();
        for part in [63, 0] {
            assert_eq!(filling.part(part), PartState::Missing);
            filling.begin(part, Instant(1));
            assert_eq!(filling.part(part), PartState::Writing);
            filling.land(part, Instant(1));
            assert_eq!(filling.part(part), PartState::Landed);
        }
        assert!(filling.is_complete(2) && !filling.is_complete(3));
    }

    #[test]
    fn a_filling_without_a_writer_is_abandoned_after_its_time() {
        let mut fillings = Fillings::new(2);
        let name = fillings.open(7, Instant(0)).unwrap();
        let late = Instant(0).after(INCOMPLETE_MAX);
        fillings.get(name).unwrap().begin(0, Instant(0));
        assert!(fillings.abandoned(late).is_empty(), "a writer is at it");
        fillings.get(name).unwrap().abort(0, Instant(0));
        assert_eq!(fillings.abandoned(late), [7]);
        assert!(fillings.abandoned(Instant(late.0 - 1)).is_empty());
    }

    #[test]
    fn names_do_not_come_back() {
        let mut fillings = Fillings::new(1);
        let first = fillings.open(7, Instant(0)).unwrap();
        assert!(fillings.is_full() && fillings.open(8, Instant(0)).is_none());
        fillings.close(first.place);
        let second = fillings.open(8, Instant(0)).unwrap();
        assert_eq!(first.place, second.place);
        assert!(fillings.get(first).is_none() && fillings.get(second).is_some());
        assert_eq!(fillings.len(), 1);
    }
}
