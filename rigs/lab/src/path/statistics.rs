//! Statistics for few runs: quantiles, bootstrap intervals, and whether an observed share agrees with a
//! predicted one.

use weir_packet::random::Random;

/// Number of bootstrap samples.
const RESAMPLES: usize = 1000;

/// Returns the value below which the fraction `part` of the sorted values lies; NaN if there are no values.
pub fn at(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * part).round() as usize).copied().unwrap_or(f64::NAN)
}

pub(super) fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub(super) fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the interval that contains 95 % of the medians when the values are resampled with replacement.
pub(super) fn median_interval(values: &[f64], seed: u64) -> (f64, f64) {
    let mut random = Random::new(seed);
    middle(sorted((0..RESAMPLES).map(|_| median_of_drawn(&mut random, values)).collect()))
}

/// Returns the same interval for the ratio of two medians.
pub(super) fn ratio_interval(base: &[f64], other: &[f64], seed: u64) -> (f64, f64) {
    let mut random = Random::new(seed);
    let mut ratio = || median_of_drawn(&mut random, base) / median_of_drawn(&mut random, other);
    middle(sorted((0..RESAMPLES).map(|_| ratio()).collect()))
}

/// Returns the bounds of the middle 95 %.
fn middle(sorted: Vec<f64>) -> (f64, f64) {
    (at(&sorted, 0.025), at(&sorted, 0.975))
}

pub(super) fn shuffle<T>(random: &mut Random, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u64 + 1) as usize);
    }
}

/// Draws as many values as there are, with replacement, and returns the median of the sample.
fn median_of_drawn(random: &mut Random, values: &[f64]) -> f64 {
    let mut draw = || values[random.below(values.len() as u64) as usize];
    at(&sorted(values.iter().map(|_| draw()).collect()), 0.5)
}

/// How often something happened in independent runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Runs in which the event happened.
    pub seen: usize,
    /// All runs.
    pub runs: usize,
}

impl Share {
    /// Returns the confidence interval of the probability: below it, this many or more runs would be seen
    /// with a probability below half of `doubt`, and above it, this many or fewer (Clopper and Pearson,
    /// Biometrika 1934). `doubt` is 0.01 for an interval of 99 %.
    #[must_use]
    pub fn interval(self, doubt: f64) -> (f64, f64) {
        let Share { seen, runs } = self;
        let more = |share| 1.0 - seen.checked_sub(1).map_or(0.0, |fewer| at_most(fewer, runs, share));
        let low = if seen == 0 { 0.0 } else { crossing(|share| more(share) >= doubt / 2.0) };
        let high =
            if seen >= runs { 1.0 } else { crossing(|share| at_most(seen, runs, share) < doubt / 2.0) };
        (low, high)
    }
}

/// Returns the probability of at most `seen` successes in `runs` trials that succeed with `share`.
fn at_most(seen: usize, runs: usize, share: f64) -> f64 {
    let exactly = |seen: usize| {
        let ways: f64 = (0..seen).map(|at| ((runs - at) as f64 / (seen - at) as f64).ln()).sum();
        (ways + seen as f64 * share.ln() + (runs - seen) as f64 * (1.0 - share).ln()).exp()
    };
    (0..=seen).map(exactly).sum()
}

/// Returns the share at which `is_above` changes from false to true, to 12 digits.
fn crossing(is_above: impl Fn(f64) -> bool) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if is_above(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near((low, high): (f64, f64), expected: (f64, f64)) -> bool {
        (low - expected.0).abs() < 1e-4 && (high - expected.1).abs() < 1e-4
    }

    #[test]
    fn the_interval_of_a_share_is_that_of_clopper_and_pearson() {
        // With no successes, or with successes only, the interval has a closed form: the n-th root of half of
        // the doubt.
        let root = 0.025_f64.powf(1.0 / 10.0);
        assert!(is_near(Share { seen: 0, runs: 10 }.interval(0.05), (0.0, 1.0 - root)));
        assert!(is_near(Share { seen: 10, runs: 10 }.interval(0.05), (root, 1.0)));
        // From the table of the binomial distribution: 3 of 10, 5 %.
        assert!(is_near(Share { seen: 3, runs: 10 }.interval(0.05), (0.06674, 0.65245)));
        let (low, high) = Share { seen: 500, runs: 1000 }.interval(0.05);
        assert!((0.46..0.47).contains(&low) && (0.53..0.54).contains(&high), "{low} {high}");
    }

    #[test]
    fn an_interval_covers_the_true_share_as_often_as_it_says() {
        let (mut random, truth, mut covered) = (Random::new(3), 0.3, 0);
        for _ in 0..1000 {
            let seen = (0..40).filter(|_| random.below(1000) < 300).count();
            let (low, high) = Share { seen, runs: 40 }.interval(0.1);
            covered += usize::from((low..high).contains(&truth));
        }
        // The interval covers at least 90 %, and not everything.
        assert!((900..985).contains(&covered), "{covered} of 1000");
    }

    #[test]
    fn the_interval_of_a_median_holds_it_and_narrows_with_more_runs() {
        let of = |runs: usize| (0..runs).map(|at| (at % 10) as f64).collect::<Vec<_>>();
        let (low, high) = median_interval(&of(10), 1);
        let (nearer, closer) = median_interval(&of(1000), 1);
        assert!(low <= 4.5 && high >= 4.5 && high - low > closer - nearer, "{low} {high} {nearer} {closer}");
    }

    #[test]
    fn equal_seeds_shuffle_equally_and_lose_nothing() {
        let order = |seed| {
            let mut items: Vec<u32> = (0..50).collect();
            shuffle(&mut Random::new(seed), &mut items);
            items
        };
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
        let mut items = order(7);
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<u32>>());
    }
}
