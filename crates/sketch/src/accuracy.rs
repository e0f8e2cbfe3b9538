//! Measures of error, as the literature defines them (ElasticSketch, SIGCOMM 2018, section 7.1).

/// Average relative error: the mean of |f - f̂| / f. Keys whose true value is 0 do not count; 0 without keys.
#[must_use]
pub fn are(truth_and_estimate: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    let (mut sum, mut keys) = (0.0, 0_u64);
    for (truth, estimate) in truth_and_estimate {
        if truth != 0.0 {
            sum += relative_error(truth, estimate);
            keys += 1;
        }
    }
    if keys == 0 { 0.0 } else { sum / keys as f64 }
}

/// Relative error: |f - f̂| / |f|; 0 if both are 0.
#[must_use]
pub fn relative_error(truth: f64, estimate: f64) -> f64 {
    if truth == estimate { 0.0 } else { (truth - estimate).abs() / truth.abs() }
}

/// How well a set was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Share of the reported keys that are true.
    pub precision: f64,
    /// Share of the true keys that were reported.
    pub recall: f64,
}

impl Found {
    /// Compares the reported set with the true one. An empty report finds an empty set.
    #[must_use]
    pub fn new<K: std::hash::Hash + Eq>(
        truth: impl IntoIterator<Item = K>,
        reported: impl IntoIterator<Item = K>,
    ) -> Found {
        let truth: std::collections::HashSet<K> = truth.into_iter().collect();
        let reported: std::collections::HashSet<K> = reported.into_iter().collect();
        let both = truth.intersection(&reported).count() as f64;
        let share = |all: usize| if all == 0 { 1.0 } else { both / all as f64 };
        Found { precision: share(reported.len()), recall: share(truth.len()) }
    }

    /// The harmonic mean of precision and recall.
    #[must_use]
    pub fn f1(&self) -> f64 {
        let sum = self.precision + self.recall;
        if sum == 0.0 { 0.0 } else { 2.0 * self.precision * self.recall / sum }
    }
}

/// Weighted mean relative error of two distributions (size, flows), each ordered by size: Σ|n - n̂| / Σ (n +
/// n̂)/2. It is between 0 and 2.
#[must_use]
pub fn wmre(truth: &[(u64, f64)], estimate: &[(u64, f64)]) -> f64 {
    let (mut differences, mut means) = (0.0, 0.0);
    let (mut one, mut other) = (truth.iter().peekable(), estimate.iter().peekable());
    loop {
        let size = match (one.peek(), other.peek()) {
            (None, None) => break,
            (Some((size, _)), None) | (None, Some((size, _))) => *size,
            (Some((a, _)), Some((b, _))) => *a.min(b),
        };
        let flows_of = |side: &mut std::iter::Peekable<std::slice::Iter<(u64, f64)>>| {
            side.next_if(|(other, _)| *other == size).map_or(0.0, |(_, flows)| *flows)
        };
        let (n, m) = (flows_of(&mut one), flows_of(&mut other));
        differences += (n - m).abs();
        means += (n + m) / 2.0;
    }
    if means == 0.0 { 0.0 } else { differences / means }
}

/// Entropy, in bits, of the packets of a distribution (size, flows): Σ n·(s/N)·log2(N/s).
#[must_use]
pub fn entropy(distribution: &[(u64, f64)]) -> f64 {
    let packets: f64 = distribution.iter().map(|(size, flows)| *size as f64 * flows).sum();
    let term = |(size, flows): &(u64, f64)| {
        let share = *size as f64 / packets;
        -flows * share * share.log2()
    };
    distribution.iter().filter(|(size, _)| *size > 0).map(term).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_of_small_examples() {
        assert_eq!(are([(10.0, 11.0), (100.0, 70.0), (0.0, 5.0)]), 0.2);
        let found = Found::new([1, 2, 3, 4], [3, 4, 5]);
        assert_eq!((found.precision, found.recall), (2.0 / 3.0, 0.5));
        assert!((found.f1() - 4.0 / 7.0).abs() < 1e-12);
        assert_eq!(wmre(&[(1, 10.0), (3, 2.0)], &[(1, 8.0), (2, 2.0)]), 6.0 / 11.0);
        assert_eq!(wmre(&[(1, 1.0)], &[(1, 1.0)]), 0.0);
        assert!((entropy(&[(5, 8.0)]) - 3.0).abs() < 1e-12);
        assert_eq!(entropy(&[(7, 1.0)]), 0.0);
    }
}
