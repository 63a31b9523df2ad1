//! How a quantity is spread, in 64 bins an octave: each at most 1.6 % of its value wide.

use crate::sample::GROUPS;
use crate::sample::jackknife::error;

/// Bits of a number's mantissa that tell its bin.
const BITS: u32 = 6;
const SHIFT: u32 = f64::MANTISSA_DIGITS - 1 - BITS;
/// Bins reach from 2^-20 (a microsecond) to 2^44.
const LOWEST: u64 = (1023 - 20) << BITS;
const BINS: usize = 64 << BITS;
/// The quantiles that are told.
pub const QUANTILES: [f64; 6] = [0.10, 0.25, 0.50, 0.75, 0.90, 0.99];
/// Rows of a told histogram in an octave.
const ROWS: usize = 4;

/// Weights by bin; the first one has whatever is smaller, 0 among it.
#[derive(Clone, Debug)]
pub struct Histogram {
    bins: Vec<f64>,
    seen: u64,
    weight: f64,
    sum: f64,
    smallest: f64,
    largest: f64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            bins: vec![0.0; BINS + 1],
            seen: 0,
            weight: 0.0,
            sum: 0.0,
            smallest: f64::INFINITY,
            largest: 0.0,
        }
    }
}

fn bin(value: f64) -> usize {
    let place = (value.to_bits() >> SHIFT).saturating_sub(LOWEST - 1) as usize;
    place.min(BINS)
}

/// The smallest value of a bin.
fn lower(bin: usize) -> f64 {
    match bin as u64 {
        0 => 0.0,
        bin => f64::from_bits((bin + LOWEST - 1) << SHIFT),
    }
}

impl Histogram {
    /// Adds a value of 0 or more.
    #[inline]
    pub fn add(&mut self, value: f64, weight: f64) {
        self.bins[bin(value)] += weight;
        self.seen += 1;
        self.weight += weight;
        self.sum += value * weight;
        self.smallest = self.smallest.min(value);
        self.largest = self.largest.max(value);
    }

    /// The bin of a quantile: the first up to whose end the share lies.
    fn quantile_bin(&self, share: f64) -> usize {
        let wanted = share * self.weight;
        let mut sum = 0.0;
        for (bin, weight) in self.bins.iter().enumerate() {
            sum += weight;
            if *weight > 0.0 && sum >= wanted {
                return bin;
            }
        }
        BINS
    }

    /// What is told, if all values were counted.
    pub fn told(&self) -> Told {
        if self.seen == 0 {
            return Told::default();
        }
        let quantile =
            |share: &f64| lower(self.quantile_bin(*share)).clamp(self.smallest, self.largest);
        Told {
            seen: self.seen,
            mean: self.sum / self.weight,
            smallest: self.smallest,
            largest: self.largest,
            quantiles: std::array::from_fn(|i| quantile(&QUANTILES[i])),
            rank_error: 0.0,
            rows: self.rows(),
        }
    }

    fn rows(&self) -> Vec<(f64, f64, f64)> {
        let wide = (1 << BITS) / ROWS;
        let mut rows = Vec::new();
        for (row, bins) in self.bins[1..].chunks(wide).enumerate() {
            let first = 1 + row * wide;
            rows.push((lower(first), lower(first + wide), bins.iter().sum::<f64>()));
        }
        let is_told = |row: &(f64, f64, f64)| row.2 > 0.0;
        let (from, to) = (rows.iter().position(is_told), rows.iter().rposition(is_told));
        let zero = (self.bins[0] > 0.0).then_some((0.0, lower(1), self.bins[0]));
        let told = from.zip(to).map_or(&rows[..0], |(from, to)| &rows[from..=to]);
        let all = zero.iter().chain(told);
        all.map(|row| (row.0, row.1, row.2 / self.weight)).collect()
    }
}

/// A spread as it is told. Quantiles are lower ends of bins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Told {
    /// Values seen.
    pub seen: u64,
    /// Their weighted mean.
    pub mean: f64,
    /// The smallest seen.
    pub smallest: f64,
    /// The largest seen.
    pub largest: f64,
    /// As `QUANTILES`.
    pub quantiles: [f64; QUANTILES.len()],
    /// The share of values that may lie between a quantile and the truth.
    pub rank_error: f64,
    /// From, to, share of all.
    pub rows: Vec<(f64, f64, f64)>,
}

/// A histogram of sampled values that knows each group's part.
#[derive(Clone, Debug)]
pub struct Grouped {
    all: Histogram,
    groups: Vec<Vec<f64>>,
}

impl Default for Grouped {
    fn default() -> Grouped {
        Grouped { all: Histogram::default(), groups: vec![vec![0.0; BINS + 1]; GROUPS] }
    }
}

impl Grouped {
    /// Adds a value of 0 or more; a lane beyond the groups stands for itself alone.
    #[inline]
    pub fn add(&mut self, lane: usize, value: f64, weight: f64) {
        self.all.add(value, weight);
        if let Some(group) = self.groups.get_mut(lane) {
            group[bin(value)] += weight;
        }
    }

    /// What is told, where this share of the population was seen.
    pub fn told(&self, watched_share: f64) -> Told {
        let mut told = self.all.told();
        if watched_share < 1.0 && told.seen > 0 {
            let errors = QUANTILES.iter().map(|&share| self.rank_error(share, watched_share));
            // Some doubt remains where all groups agree.
            told.rank_error = errors.fold((4.6 / told.seen as f64).min(1.0), f64::max);
        }
        told
    }

    fn rank_error(&self, share: f64, watched_share: f64) -> f64 {
        let end = self.all.quantile_bin(share);
        let below = |bins: &[f64]| bins[..=end].iter().sum::<f64>();
        let all = below(&self.all.bins);
        let without: [f64; GROUPS] = std::array::from_fn(|group| {
            let own = &self.groups[group];
            (all - below(own)) / (self.all.weight - own.iter().sum::<f64>()).max(f64::MIN_POSITIVE)
        });
        error(&without, watched_share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_whole_numbers_are_exact_and_others_within_their_bin() {
        let mut histogram = Histogram::default();
        (0..=100).for_each(|value| histogram.add(f64::from(value), 1.0));
        let told = histogram.told();
        assert_eq!((told.seen, told.smallest, told.largest, told.mean), (101, 0.0, 100.0, 50.0));
        assert_eq!(told.quantiles[..3], [10.0, 25.0, 50.0]);
        let rows: f64 = told.rows.iter().map(|row| row.2).sum();
        assert!((rows - 1.0).abs() < 1e-9);
        for exponent in -18..40 {
            let value = 1.37 * f64::from(exponent).exp2();
            let (low, high) = (lower(bin(value)), lower(bin(value) + 1));
            assert!(low <= value && value < high && high / low <= 1.0 + 1.0 / 64.0 + 1e-12);
        }
        assert_eq!(Histogram::default().told(), Told::default());
    }
}
