//! The plots of the last hour: a bounded number of series, each with a bounded number of points.
//!
//! A series costs four bytes for each point, so all of them together cost at most
//! `HISTORY_SERIES * HISTORY_POINTS * 4` bytes, 0.7 MB, and their names 0.1 MB.

use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// The number of points of each series.
pub const HISTORY_POINTS: usize = 360;

/// The maximum number of series. Further ones are left out.
pub const HISTORY_SERIES: usize = 512;

/// The beginning of the names of apps' series.
const APPS: &str = "app/";

/// Series that apps leave free for the node, its ports, its workers and its drop reasons.
const RESERVED: usize = 128;

/// The maximum length of a series' name, in bytes. Series with longer names are left out.
const NAME_MAX: usize = 160;

/// What a sample is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// A count that only grows: the plot shows its growth per second.
    Count,
    /// A number that may rise and fall.
    Gauge,
}

/// The history of a node.
#[derive(Clone, Debug)]
pub struct PageHistory {
    interval_s: u32,
    /// When the last point ended, in milliseconds since 1970; 0 before the first one.
    end_ms: u64,
    /// The time between the last two points, in seconds.
    elapsed_s: f64,
    series: BTreeMap<String, PageSeries>,
    /// The names of series that had no room in the current point; no more than series fit.
    omitted: Vec<String>,
}

#[derive(Clone, Debug, Default)]
struct PageSeries {
    /// The last count.
    last: Option<f64>,
    /// The latest points, oldest first; NaN where there is none.
    points: VecDeque<f32>,
    /// Whether the series has a sample in the current point.
    sampled: bool,
    /// For how many points the series has had no sample.
    idle: usize,
}

impl PageHistory {
    /// Creates an empty history, to which a point is added every `interval_s` seconds.
    #[must_use]
    pub fn new(interval_s: u32) -> PageHistory {
        PageHistory { interval_s, end_ms: 0, elapsed_s: 0.0, series: BTreeMap::new(), omitted: Vec::new() }
    }

    /// Begins a point at a time in milliseconds since 1970.
    pub fn begin(&mut self, at_ms: u64) {
        let elapsed_ms = at_ms.saturating_sub(self.end_ms);
        self.elapsed_s = if self.end_ms == 0 { 0.0 } else { elapsed_ms as f64 / 1e3 };
        self.end_ms = at_ms;
        self.series.values_mut().for_each(|one| one.sampled = false);
        self.omitted.clear();
    }

    /// Adds a sample to the point.
    pub fn sample(&mut self, name: &str, kind: SampleKind, value: f64) {
        if !self.series.contains_key(name) {
            if !self.makes_room(name) {
                if self.omitted.len() < HISTORY_SERIES && name.len() <= NAME_MAX {
                    self.omitted.push(name.to_string());
                }
                return;
            }
            self.series.insert(name.to_string(), PageSeries::default());
        }
        let elapsed_s = self.elapsed_s;
        let Some(series) = self.series.get_mut(name).filter(|one| !one.sampled) else { return };
        let point = match kind {
            SampleKind::Gauge => Some(value),
            // A count that decreases has been reset.
            SampleKind::Count => {
                let grown = series.last.map(|last| if value < last { value } else { value - last });
                grown.filter(|_| elapsed_s > 0.0).map(|grown| grown / elapsed_s)
            }
        };
        series.last = Some(value);
        series.push(point.map_or(f32::NAN, |point| point as f32));
        (series.sampled, series.idle) = (true, 0);
    }

    /// Makes room for a series, in place of one that has had no sample for the longest time. Returns whether
    /// there is room.
    fn makes_room(&mut self, name: &str) -> bool {
        let most = if name.starts_with(APPS) { HISTORY_SERIES - RESERVED } else { HISTORY_SERIES };
        if name.len() > NAME_MAX {
            return false;
        }
        if self.series.len() < most {
            return true;
        }
        // If another one had no room in this point, all series have samples.
        if !self.omitted.is_empty() {
            return false;
        }
        let idle = self.series.iter().filter(|(_, one)| one.idle > 0).max_by_key(|(_, one)| one.idle);
        let Some(name) = idle.map(|(name, _)| name.clone()) else { return false };
        self.series.remove(&name).is_some()
    }

    /// Ends the point: series without a sample get a gap, and series with nothing but gaps are removed.
    pub fn end(&mut self) {
        for series in self.series.values_mut().filter(|one| !one.sampled) {
            series.last = None;
            series.idle += 1;
            series.push(f32::NAN);
        }
        self.series.retain(|_, one| one.last.is_some() || one.points.iter().any(|point| !point.is_nan()));
    }

    /// Returns the series whose names begin with a prefix: `interval_s, end_ms, series[{name, values[]}],
    /// omitted`.
    #[must_use]
    pub fn json(&self, prefix: &str) -> Value {
        let own = self.series.range(prefix.to_string()..).take_while(|(name, _)| name.starts_with(prefix));
        let series = own.map(|(name, one)| {
            let missing = HISTORY_POINTS.min(self.longest()) - one.points.len();
            let gaps = std::iter::repeat_n(Value::Null, missing);
            // Two decimal places are enough for a plot. Infinite values cannot be written in JSON.
            let values = one.points.iter().map(|point| json!(point.is_finite().then(|| rounded(*point))));
            json!({ "name": name, "values": gaps.chain(values).collect::<Vec<_>>() })
        });
        let series: Vec<Value> = series.collect();
        let omitted = self.omitted.iter().filter(|name| name.starts_with(prefix)).count();
        json!({ "interval_s": self.interval_s, "end_ms": self.end_ms, "series": series, "omitted": omitted })
    }

    fn longest(&self) -> usize {
        self.series.values().map(|one| one.points.len()).max().unwrap_or_default()
    }
}

/// Rounds a number to two decimal places.
fn rounded(point: f32) -> f64 {
    (f64::from(point) * 100.0).round() / 100.0
}

impl PageSeries {
    fn push(&mut self, point: f32) {
        if self.points.len() == HISTORY_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(history: &PageHistory, prefix: &str) -> Vec<Value> {
        history.json(prefix)["series"].as_array().unwrap().iter().map(|one| one["values"].clone()).collect()
    }

    #[test]
    fn counts_become_rates_and_gaps_stay_gaps() {
        let mut history = PageHistory::new(10);
        for (at, packets) in [(1_000, Some(5.0)), (11_000, Some(105.0)), (31_000, None), (41_000, Some(9.0))]
        {
            history.begin(at);
            history.sample("node/gauge", SampleKind::Gauge, 2.5);
            if let Some(packets) = packets {
                history.sample("port/p0/received", SampleKind::Count, packets);
            }
            history.end();
        }
        assert_eq!(values(&history, "port/"), [json!([null, 10.0, null, null])]);
        assert_eq!(values(&history, "node/"), [json!([2.5, 2.5, 2.5, 2.5])]);
        assert_eq!(values(&history, "nothing").len(), 0);
        assert_eq!(history.json("")["end_ms"], 41_000);
    }

    #[test]
    fn neither_points_nor_series_grow_without_bound() {
        let mut history = PageHistory::new(10);
        for at in 1..=3 * HISTORY_POINTS as u64 {
            history.begin(at * 10_000);
            for name in 0..2 * HISTORY_SERIES {
                let name = if at == 1 { format!("old{name}") } else { format!("new{name}") };
                history.sample(&name, SampleKind::Gauge, 1.0);
            }
            history.sample(&"n".repeat(NAME_MAX + 1), SampleKind::Gauge, 1.0);
            history.end();
        }
        assert_eq!(values(&history, "new").len(), HISTORY_SERIES, "the old ones made room");
        assert_eq!(history.json("new")["omitted"], HISTORY_SERIES);
        assert_eq!(history.json("old")["omitted"], 0);
        assert!(values(&history, "").iter().all(|one| one.as_array().unwrap().len() == HISTORY_POINTS));
    }

    #[test]
    fn apps_leave_room_for_ports_and_what_has_ended_makes_room() {
        let mut history = PageHistory::new(10);
        let mut point = |at_ms: u64, names: &[String]| {
            history.begin(at_ms);
            names.iter().for_each(|name| history.sample(name, SampleKind::Gauge, 1.0));
            history.end();
            ["app/a/", "app/b/", "port/"].map(|prefix| values(&history, prefix).len())
        };
        let of =
            |prefix: &str, count: usize| (0..count).map(|at| format!("{prefix}{at}")).collect::<Vec<_>>();
        let most = HISTORY_SERIES - RESERVED;
        let (first, ports) = (of("app/a/", 2 * most), of("port/", RESERVED));
        assert_eq!(point(10_000, &first), [most, 0, 0]);
        assert_eq!(point(20_000, &[first, ports.clone()].concat()), [most, 0, RESERVED]);
        assert_eq!(point(30_000, &ports), [most, 0, RESERVED]);
        assert_eq!(point(40_000, &[of("app/b/", 3), ports].concat()), [most - 3, 3, RESERVED]);
    }
}
