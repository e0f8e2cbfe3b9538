//! Histograms of durations in answers.

use weir_control::answer;
use weir_engine::worker::{Breaths, Histogram};

/// Returns a worker's breaths.
pub fn breaths(breaths: &Breaths) -> answer::Breaths {
    answer::Breaths { wall: times(&breaths.wall), processor: times(&breaths.processor) }
}

/// Returns the count, the quantiles and the buckets; the last one has no limit.
pub fn times(histogram: &Histogram) -> answer::Times {
    let us = |ns: u64| ns as f64 / 1e3;
    let quantile = |share| us(histogram.quantile_ns(share));
    let limit = |limit_ns: u64| (limit_ns < u64::MAX).then_some(limit_ns);
    answer::Times {
        count: histogram.count(),
        total_us: us(histogram.total_ns()),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        p9999_us: quantile(0.9999),
        longest_us: us(histogram.longest_ns()),
        buckets: histogram.limits().map(|(limit_ns, count)| (limit(limit_ns), count)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_bucket_without_a_limit_is_null() {
        let mut histogram = Histogram::default();
        histogram.record(1_000);
        histogram.record(2_000_000_000);
        let json = json!(times(&histogram));
        assert_eq!(json["buckets"], json!([[1024, 1], [null, 1]]));
        assert_eq!((&json["p50_us"], &json["longest_us"]), (&json!(1.024), &json!(2e6)));
    }
}
