//! Blocks by how recently they were used, and how many of each group came after one.
//!
//! Each use takes the next place on a line; a block stands at the place of its last use. A tree of
//! sums (Fenwick's) over the places answers how many stand behind one, for all groups at once: one
//! node is one cache line. When the line is full, those who stand on it close up.

use super::GROUPS;

/// Counts for each group, and for heavy blocks in the last lane.
pub type Lanes = [u32; GROUPS + 1];
/// The lane of heavy blocks.
pub const HEAVY_LANE: usize = GROUPS;
/// Nobody stands here; no place.
pub const NOWHERE: u32 = u32::MAX;
const PLACES_MIN: usize = 1_024;

#[repr(align(64))]
#[derive(Clone, Copy, Debug, Default)]
struct Node(Lanes);

/// The line. Blocks are small numbers that the caller gives, with a lane each.
#[derive(Debug, Default)]
pub struct Stack {
    nodes: Vec<Node>,
    /// Who stands at a place.
    line: Vec<u32>,
    /// Where a block stands.
    places: Vec<u32>,
    lanes: Vec<u8>,
    standing: Lanes,
    held: usize,
}

impl Stack {
    /// Blocks that stand in line.
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether nobody does.
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Whether this block stands in line.
    #[inline]
    pub fn has(&self, block: u32) -> bool {
        self.places.get(block as usize).is_some_and(|&place| place != NOWHERE)
    }

    /// Blocks that were used after this one's last use, by lane. It must be here.
    #[inline]
    pub fn after(&self, block: u32) -> Lanes {
        let mut lanes = self.standing;
        let mut node = self.places[block as usize] as usize + 1;
        while node > 0 {
            let sums = &self.nodes[node].0;
            for lane in 0..lanes.len() {
                // Sums up to a place never exceed what stands on the whole line.
                lanes[lane] = lanes[lane].wrapping_sub(sums[lane]);
            }
            node &= node - 1;
        }
        lanes
    }

    /// The block is used: it leaves its place, if it has one, and stands at the front.
    #[inline]
    pub fn touch(&mut self, block: u32, lane: usize) {
        self.remove(block);
        if self.line.len() + 1 >= self.nodes.len() {
            self.close_up();
        }
        let place = self.line.len();
        self.line.push(block);
        if self.places.len() <= block as usize {
            self.places.resize(block as usize + 1, NOWHERE);
            self.lanes.resize(block as usize + 1, 0);
        }
        self.places[block as usize] = place as u32;
        self.lanes[block as usize] = lane as u8;
        self.standing[lane] += 1;
        self.held += 1;
        self.change(place, lane, 1);
    }

    /// The block is forgotten, if it is here.
    #[inline]
    pub fn remove(&mut self, block: u32) {
        if !self.has(block) {
            return;
        }
        let place = std::mem::replace(&mut self.places[block as usize], NOWHERE) as usize;
        let lane = self.lanes[block as usize] as usize;
        self.line[place] = NOWHERE;
        self.standing[lane] -= 1;
        self.held -= 1;
        self.change(place, lane, 1_u32.wrapping_neg());
    }

    /// The block counts in another lane from now on; its place is the same.
    pub fn move_lane(&mut self, block: u32, lane: usize) {
        if !self.has(block) {
            return;
        }
        let place = self.places[block as usize] as usize;
        let before = std::mem::replace(&mut self.lanes[block as usize], lane as u8) as usize;
        self.standing[before] -= 1;
        self.standing[lane] += 1;
        self.change(place, before, 1_u32.wrapping_neg());
        self.change(place, lane, 1);
    }

    #[inline]
    fn change(&mut self, place: usize, lane: usize, by: u32) {
        let mut node = place + 1;
        while node < self.nodes.len() {
            let sum = &mut self.nodes[node].0[lane];
            *sum = sum.wrapping_add(by);
            node += node & node.wrapping_neg();
        }
    }

    /// Gives those who stand in line places without gaps, with room for as many uses again.
    fn close_up(&mut self) {
        self.line.retain(|&block| block != NOWHERE);
        let room = (2 * self.line.len()).next_power_of_two().max(PLACES_MIN);
        self.nodes.clear();
        self.nodes.resize(room + 1, Node::default());
        for (place, &block) in self.line.iter().enumerate() {
            self.places[block as usize] = place as u32;
            self.nodes[place + 1].0[self.lanes[block as usize] as usize] += 1;
        }
        for node in 1..self.nodes.len() {
            let above = node + (node & node.wrapping_neg());
            if above < self.nodes.len() {
                let sums = self.nodes[node].0;
                for (to, sum) in self.nodes[above].0.iter_mut().zip(sums) {
                    *to += sum;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mix;
    use super::*;

    #[test]
    fn a_list_agrees() {
        let mut stack = Stack::default();
        let mut list: Vec<(u32, usize)> = Vec::new(); // the most recent last
        let mut state = 5;
        for turn in 0..60_000_u64 {
            state = mix(turn, state);
            let block = ((state >> 8) % 900) as u32;
            let lane = (block as usize * 7 + 3) % (GROUPS + 1);
            let at = list.iter().position(|each| each.0 == block);
            assert_eq!(stack.has(block), at.is_some());
            if let Some(at) = at {
                let mut wanted = Lanes::default();
                list[at + 1..].iter().for_each(|each| wanted[each.1] += 1);
                assert_eq!(stack.after(block), wanted);
                list.remove(at);
            }
            match state % 16 {
                0 => stack.remove(block),
                1 => {
                    stack.touch(block, lane);
                    stack.move_lane(block, (lane + 1) % (GROUPS + 1));
                    list.push((block, (lane + 1) % (GROUPS + 1)));
                }
                _ => {
                    stack.touch(block, lane);
                    list.push((block, lane));
                }
            }
            assert_eq!(stack.len(), list.len());
        }
        assert!(stack.nodes.len() <= 4_097, "{} nodes for 900 blocks", stack.nodes.len());
    }
}
