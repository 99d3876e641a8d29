//! What a table tells of the times of one placement: their middle and both ends.

/// The times of one placement, in seconds, sorted.
#[derive(Clone, Debug, Default)]
pub struct Times {
    /// What the median is taken over.
    pub typical: Vec<f64>,
    /// Those and all others.
    pub all: Vec<f64>,
    pub iterations: usize,
}

impl Times {
    pub fn new(typical: Vec<f64>, single: impl Iterator<Item = f64>, iterations: usize) -> Times {
        let sorted = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times
        };
        let all = sorted(typical.iter().copied().chain(single).collect());
        Times { typical: sorted(typical), all, iterations }
    }

    pub fn median(&self) -> f64 {
        quantile(&self.typical, 0.5)
    }

    pub fn least(&self) -> f64 {
        quantile(&self.all, 0.0)
    }

    pub fn p99(&self) -> f64 {
        quantile(&self.all, 0.99)
    }
}

/// By nearest rank; the values are sorted.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    match sorted.len() {
        0 => f64::NAN,
        len => sorted[((share * len as f64).ceil() as usize).clamp(1, len) - 1],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 50.0);
        assert_eq!(quantile(&values, 0.99), 99.0);
        assert_eq!(quantile(&values, 0.0), 1.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_median_lies_between_the_least_and_the_tail_of_all_times() {
        for (typical, single, least, p99) in [
            (vec![5.0], vec![], 5.0, 5.0),
            (vec![5.0, 4.0, 6.0], vec![1.0, 2.0], 1.0, 6.0),
            (vec![5.0, 4.0, 6.0], vec![7.0, 8.0], 4.0, 8.0),
        ] {
            let times = Times::new(typical, single.into_iter(), 1);
            assert_eq!((times.least(), times.median(), times.p99()), (least, 5.0, p99));
        }
    }
}
