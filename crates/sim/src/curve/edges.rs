//! Capacities at which curves are known: those asked for, and a grid between them.

/// Grid points in each octave of capacity.
const STEPS: u32 = 8;
const OCTAVES: u32 = 40;

/// Capacities in growing order. Bin `i` has what needs more than the one before, and no more than
/// the `i`th; one more bin has what no capacity holds.
#[derive(Clone, Debug)]
pub struct Edges(Vec<f64>);

impl Edges {
    /// The grid from 1 to 2⁴⁰ blocks with these capacities among it.
    pub fn new(asked: &[u64]) -> Edges {
        let grid = (0..=STEPS * OCTAVES).map(|i| (f64::from(i) / f64::from(STEPS)).exp2().round());
        let mut edges: Vec<f64> = grid.chain(asked.iter().map(|&each| each as f64)).collect();
        edges.sort_unstable_by(f64::total_cmp);
        edges.dedup();
        Edges(edges)
    }

    /// Bins, the last one included.
    pub fn bins(&self) -> usize {
        self.0.len() + 1
    }

    /// The bin of a block that `rank` blocks, itself included, must have room for.
    #[inline]
    pub fn bin(&self, rank: f64) -> usize {
        self.0.partition_point(|&edge| edge < rank)
    }

    /// The last bin whose blocks all fit into this capacity, if there is one, and how far the
    /// capacity is on the way to the next bin's edge, by logarithm.
    pub fn at(&self, capacity: f64) -> (Option<usize>, f64) {
        let above = self.0.partition_point(|&edge| edge <= capacity);
        let Some(below) = above.checked_sub(1) else { return (None, 0.0) };
        let share = match self.0.get(above) {
            Some(next) => (capacity / self.0[below]).ln() / (next / self.0[below]).ln(),
            None => 0.0,
        };
        (Some(below), share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_an_edge() {
        let edges = Edges::new(&[5_860, 3]);
        assert_eq!(edges.bin(5_860.0) + 1, edges.bin(5_861.0));
        assert_eq!(edges.at(5_860.0), (Some(edges.bin(5_860.0)), 0.0));
        assert_eq!(edges.bin(f64::INFINITY), edges.bins() - 1);
        assert_eq!(edges.bin(1.0), 0);
        assert_eq!(edges.at(0.5), (None, 0.0));
        let (below, share) = edges.at(5_870.0);
        assert_eq!(below, Some(edges.bin(5_860.0)));
        assert!(share > 0.0 && share < 1.0);
    }
}
