//! Small numbers for block ids, so that everything behind is an array.

use hashbrown::HashMap;

/// Gives each distinct id the next number, from 0.
#[derive(Debug, Default)]
pub struct Interner {
    numbers: HashMap<u64, u32>,
}

impl Interner {
    /// The id's number; a new one where it was never seen. None when all 2³² - 1 are taken.
    pub fn number(&mut self, id: u64) -> Option<u32> {
        let next = u32::try_from(self.numbers.len()).ok().filter(|&next| next != u32::MAX);
        match self.numbers.get(&id) {
            Some(&number) => Some(number),
            None => {
                self.numbers.insert(id, next?);
                next
            }
        }
    }

    /// Distinct ids so far.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}
