//! A daemon's counters, before and after a phase.

use super::{PATIENCE, Session};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Instant;

/// Counts of durations by the upper bound of their bucket in nanoseconds. For a bucket without one, it is the
/// longest duration.
pub type Buckets = BTreeMap<u64, u64>;

/// Counters at a moment.
pub struct Reading {
    /// Frames lost by the worker itself, and because it did not have its core.
    pub lost: u64,
    pub lost_disturbed: u64,
    pub received: u64,
    /// Time in which the worker did not have its core.
    pub core_lost_us: u64,
    /// Breaths by processor time and by wall time.
    pub processor: Buckets,
    pub wall: Buckets,
    /// How late events of apps were.
    pub late: Buckets,
}

impl Reading {
    /// Takes a reading, however long the busy daemon takes to answer.
    pub fn take(session: &Session) -> Result<Reading> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Reading::try_take(session) {
                Err(_) if Instant::now() < deadline => session.interrupt.sleep(super::PHASE / 50)?,
                reading => return reading,
            }
        }
    }

    fn try_take(session: &Session) -> Result<Reading> {
        let line = session.line()?;
        let times = session.weir.show("breath_times")?;
        let late = session.weir.show("events_late")?;
        let count = |value: &Value| value.as_u64().context("a count");
        let lost_disturbed = count(&line["extra"]["lost_disturbed"])?;
        Ok(Reading {
            lost: count(&line["lost_before"])?.saturating_sub(lost_disturbed),
            lost_disturbed,
            received: count(&line["received"])?,
            core_lost_us: count(&line["extra"]["core_lost_us"])?,
            processor: buckets(&times["breath_times"][0]["processor"]),
            wall: buckets(&times["breath_times"][0]["wall"]),
            late: buckets(&late["events_late"]),
        })
    }
}

/// Parses a histogram of the daemon.
pub fn buckets(histogram: &Value) -> Buckets {
    let longest_ns = (histogram["longest_us"].as_f64().unwrap_or_default() * 1e3) as u64;
    let pairs = histogram["buckets"].as_array().into_iter().flatten();
    pairs.filter_map(|pair| Some((pair[0].as_u64().unwrap_or(longest_ns), pair[1].as_u64()?))).collect()
}

/// Durations of a phase.
pub struct Durations(Buckets);

/// Returns the durations added between two readings.
pub fn durations(before: &Buckets, after: &Buckets) -> Durations {
    let added = |(limit, count): (&u64, &u64)| {
        let added = count.saturating_sub(before.get(limit).copied().unwrap_or(0));
        (added > 0).then_some((*limit, added))
    };
    Durations(after.iter().filter_map(added).collect())
}

impl Durations {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the upper bound of the bucket that `share` of all durations do not exceed, in nanoseconds;
    /// `None` if there are none.
    pub fn quantile_ns(&self, share: f64) -> Option<u64> {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        self.0.iter().find_map(|(limit_ns, count)| {
            seen += count;
            (seen >= wanted).then_some(*limit_ns)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_before_does_not_count() {
        let before = buckets(&json!({ "longest_us": 9.0, "buckets": [[1024, 5], [2048, 100]] }));
        let after = buckets(&json!({ "longest_us": 5e5, "buckets": [[1024, 5], [2048, 199], [null, 1]] }));
        let phase = durations(&before, &after);
        assert_eq!(phase.count(), 100);
        assert_eq!((phase.quantile_ns(0.99), phase.quantile_ns(1.0)), (Some(2048), Some(500_000_000)));
        assert_eq!(durations(&after, &after).quantile_ns(0.5), None);
    }
}
