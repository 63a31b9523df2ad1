//! How far a figure may be off: leave out each group of watched blocks in turn, and see.

use super::GROUPS;

/// Student's t for 99 % on both sides and 14 degrees of freedom.
const T_99: f64 = 2.977;

/// A figure with half the width of its 99 % interval; 0: exact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// From all that is watched.
    pub value: f64,
    /// Half of the interval's width.
    pub error: f64,
}

impl Estimate {
    /// A figure that was counted.
    pub fn exact(value: f64) -> Estimate {
        Estimate { value, error: 0.0 }
    }
}

/// The error of a figure of which there is one without each group. `watched_share` is the share of
/// blocks that are watched: what is left to chance is the rest (finite population), none if it is
/// 1.
pub fn error(without: &[f64; GROUPS], watched_share: f64) -> f64 {
    let groups = GROUPS as f64;
    let mean = without.iter().sum::<f64>() / groups;
    let squares: f64 = without.iter().map(|each| (each - mean).powi(2)).sum();
    let variance = squares * (groups - 1.0) / groups * (1.0 - watched_share).max(0.0);
    T_99 * variance.sqrt()
}

/// A sum over watched blocks, in all and by group.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sum {
    /// Of heavy blocks, each use once.
    pub heavy: f64,
    /// Of the others by group, each use as often as blocks that it stands for.
    pub groups: [f64; GROUPS],
}

impl Sum {
    /// Adds a use of a block of this lane (the last one: heavy).
    #[inline]
    pub fn add(&mut self, lane: usize, weight: f64) {
        if lane < GROUPS {
            self.groups[lane] += weight;
        } else {
            self.heavy += weight;
        }
    }

    /// The groups' part, of all of them or without one, so that it stands for all.
    pub fn plain(&self, without: Option<usize>) -> f64 {
        let all: f64 = self.groups.iter().sum();
        match without {
            None => all,
            Some(group) => (all - self.groups[group]) * GROUPS as f64 / (GROUPS - 1) as f64,
        }
    }
}

/// A figure and its error; `figure` computes it, from everything or without a group.
pub fn estimate(watched_share: f64, figure: impl Fn(Option<usize>) -> f64) -> Estimate {
    let value = figure(None);
    if watched_share >= 1.0 {
        return Estimate::exact(value);
    }
    let without: [f64; GROUPS] = std::array::from_fn(|group| figure(Some(group)));
    Estimate { value, error: error(&without, watched_share) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_mean_is_the_textbooks() {
        let values: [f64; GROUPS] = std::array::from_fn(|i| ((i * i) % 7) as f64);
        let mean = values.iter().sum::<f64>() / 15.0;
        let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 14.0 / 15.0;
        let mut sum = Sum::default();
        values.iter().enumerate().for_each(|(group, value)| sum.add(group, *value));
        let found = estimate(0.0, |without| sum.plain(without) / 15.0);
        assert!((found.value - mean).abs() < 1e-12);
        assert!((found.error - T_99 * variance.sqrt()).abs() < 1e-12);
        assert_eq!(estimate(1.0, |without| sum.plain(without)).error, 0.0);
    }
}
