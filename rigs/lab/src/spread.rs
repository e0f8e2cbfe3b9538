//! The median and the range of repeated measurements.

use serde_json::{Value, json};

/// Median, smallest and largest value.
#[derive(Clone, Copy, Debug)]
pub struct ResultSpread {
    /// The value in the middle.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl ResultSpread {
    /// Computes the spread of at least one value.
    pub fn of(mut values: Vec<f64>) -> ResultSpread {
        values.sort_by(f64::total_cmp);
        ResultSpread { median: values[values.len() / 2], min: values[0], max: values[values.len() - 1] }
    }

    /// Adds the keys `NAME_mpps`, `NAME_mpps_min` and `NAME_mpps_max` to a row of results; null if there is
    /// no spread.
    pub fn put(rate: Option<ResultSpread>, name: &str, row: &mut Value) {
        row[format!("{name}_mpps")] = json!(rate.map(|rate| rate.median));
        row[format!("{name}_mpps_min")] = json!(rate.map(|rate| rate.min));
        row[format!("{name}_mpps_max")] = json!(rate.map(|rate| rate.max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_the_ends() {
        let ResultSpread { median, min, max } = ResultSpread::of(vec![3.0, 1.0, 9.0, 2.0, 5.0]);
        assert_eq!((median, min, max), (3.0, 1.0, 9.0));
    }
}
