//! Where each block is, by its number.

const NOWHERE: u32 = u32::MAX;

/// A place, or none, for every number; grows with the numbers.
#[derive(Debug, Default)]
pub(super) struct Places(Vec<u32>);

impl Places {
    pub fn get(&self, number: u32) -> Option<u32> {
        self.0.get(number as usize).copied().filter(|place| *place != NOWHERE)
    }

    pub fn set(&mut self, number: u32, place: u32) {
        let at = number as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, NOWHERE);
        }
        self.0[at] = place;
    }

    pub fn clear(&mut self, number: u32) {
        if let Some(place) = self.0.get_mut(number as usize) {
            *place = NOWHERE;
        }
    }
}
