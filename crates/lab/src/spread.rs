//! The median and the range of repeated measurements.

/// Median, smallest and largest value.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// The value in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of at least one value.
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        Spread { median: values[values.len() / 2], min: values[0], max: values[values.len() - 1] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_the_ends() {
        let Spread { median, min, max } = Spread::of(vec![3.0, 1.0, 9.0, 2.0, 5.0]);
        assert_eq!((median, min, max), (3.0, 1.0, 9.0));
    }
}
