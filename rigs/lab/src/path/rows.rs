//! The results of the comparison: a row of figures for each cell and arm.

use serde_json::{Value, json};

use super::cell::{Cell, ElephantStarts, Sample};
use super::messages::LIMIT;
use super::node::PathScheme;
use super::statistics::{at, average, median_interval, ratio_interval, sorted};

/// The time of a run's last flow, as a multiple of the first arm's median without elephant, above which the
/// run is slow.
const SLOW: f64 = 2.0;

/// The results of an arm in a cell.
pub struct Row {
    /// The cell that was measured.
    pub cell: Cell,
    /// How ports were chosen.
    pub arm: PathScheme,
    /// The time of the last flow of each run in milliseconds, sorted.
    pub max_ms: Vec<f64>,
    /// The time of each flow in milliseconds, sorted.
    pub flow_ms: Vec<f64>,
    /// The 95 % bootstrap interval of the median of `max_ms`.
    median_interval: (f64, f64),
    /// The first arm's median divided by this one's, and its 95 % bootstrap interval.
    gain: f64,
    gain_interval: (f64, f64),
    /// Runs that took more than twice as long as the first arm takes without elephant; `None` if that is
    /// unknown.
    slow: Option<usize>,
}

impl Row {
    /// Creates a row with only the times of runs known.
    pub(super) fn new(cell: Cell, arm: PathScheme, max_ms: Vec<f64>) -> Row {
        let max_ms = sorted(max_ms);
        let (flow_ms, one) = (Vec::new(), (1.0, 1.0));
        Row { cell, arm, max_ms, flow_ms, median_interval: one, gain: 1.0, gain_interval: one, slow: None }
    }

    /// Computes the rows of all samples, in the order of cells and arms; rows without a sample are left out.
    /// The first arm is the baseline for the others. `seed` seeds the resampling.
    #[must_use]
    pub fn of(cells: &[Cell], arms: &[PathScheme], samples: &[Sample], seed: u64) -> Vec<Row> {
        let of = |cell: Cell, arm: PathScheme| {
            samples.iter().filter(move |sample| sample.cell == cell && sample.arm == arm)
        };
        let times = |cell, arm| sorted(of(cell, arm).map(Sample::max_ms).collect());
        let mut rows = Vec::new();
        for &cell in cells {
            let base = arms.first().map(|&first| times(cell, first)).unwrap_or_default();
            let unloaded = arms.first().map(|&first| times(cell.without_elephant(), first));
            let unloaded = unloaded.filter(|times| !times.is_empty()).map(|times| at(&times, 0.5));
            for &arm in arms {
                let mut row = Row::new(cell, arm, times(cell, arm));
                if row.max_ms.is_empty() {
                    continue;
                }
                row.flow_ms = sorted(of(cell, arm).flat_map(|sample| sample.flow_ms.clone()).collect());
                row.median_interval = median_interval(&row.max_ms, seed);
                row.gain = at(&base, 0.5) / at(&row.max_ms, 0.5);
                if arms.first() != Some(&arm) && !base.is_empty() {
                    row.gain_interval = ratio_interval(&base, &row.max_ms, seed);
                }
                row.slow = unloaded
                    .map(|unloaded| row.max_ms.iter().filter(|&&time| time > SLOW * unloaded).count());
                rows.push(row);
            }
        }
        rows
    }

    /// The heading of the table of rows.
    #[must_use]
    pub fn heading() -> String {
        let times = ["min", "median", "average", "p99", "max", "flow p99"].map(|name| format!("{name:>9}"));
        let times: String = times.concat();
        format!("regime flows elephant scheme         runs {times}  {:<17} slow    gain  95 %", "median 95 %")
    }

    /// The row as a line of the table; times are in milliseconds.
    #[must_use]
    pub fn text(&self) -> String {
        let Cell { regime, flows, elephant } = self.cell;
        let (all, (low, high)) = (&self.max_ms, self.gain_interval);
        let [min, median, p99, max] = [0.0, 0.5, 0.99, 1.0].map(|part| at(all, part));
        let times = [min, median, average(all), p99, max, at(&self.flow_ms, 0.99)];
        let times = times.map(|time| format!("{time:>9.1}")).concat();
        let (regime, arm, runs, starts) = (regime.name(), self.arm.name(), all.len(), elephant.name());
        let (least, most) = self.median_interval;
        let interval = format!("{least:.1} - {most:.1}");
        let slow = self.slow.map_or("-".into(), |slow| slow.to_string());
        let gain = format!("{:>7.2}  {low:.2} - {high:.2}", self.gain);
        format!(
            "{regime:<6} {flows:>5} {starts:<8} {arm:<14} {runs:>4} {times}  {interval:<17} {slow:>4} {gain}"
        )
    }

    /// The row as JSON. This format is stable.
    #[must_use]
    pub fn json(&self, elephant_percent: u32) -> Value {
        let all = &self.max_ms;
        let limit = LIMIT.as_secs_f64() * 1e3;
        let has_elephant = self.cell.elephant != ElephantStarts::Never;
        json!({
            "regime": self.cell.regime.name(),
            "flows": self.cell.flows,
            "elephant": if has_elephant { elephant_percent } else { 0 },
            "elephant_starts": self.cell.elephant.name(),
            "scheme": self.arm.scheme.name(),
            "txrehash": u32::from(self.arm.rehash),
            "runs": all.len(),
            "maxfct_ms": {
                "min": at(all, 0.0), "median": at(all, 0.5), "average": average(all), "p99": at(all, 0.99),
                "max": at(all, 1.0),
            },
            "median_interval": [self.median_interval.0, self.median_interval.1],
            "flow_fct_p99_ms": at(&self.flow_ms, 0.99),
            "unended_flows": self.flow_ms.iter().filter(|&&time| time >= limit).count(),
            "slow_runs": self.slow,
            "gain_over_ecmp": self.gain,
            "gain_interval": [self.gain_interval.0, self.gain_interval.1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::cell::Regime;
    use super::super::node::Scheme;
    use super::*;

    const ECMP: PathScheme = PathScheme { scheme: Scheme::Ecmp, rehash: false };
    const OURS: PathScheme = PathScheme { scheme: Scheme::Adaptive, rehash: true };

    fn samples(arm: PathScheme, elephant: ElephantStarts, times: [f64; 3]) -> Vec<Sample> {
        let cell = Cell { regime: Regime::Time, flows: 2, elephant };
        times.into_iter().map(|max| Sample { cell, arm, flow_ms: vec![1.0, max] }).collect()
    }

    #[test]
    fn the_gain_is_the_first_arms_median_over_anothers() {
        let mut all = samples(OURS, ElephantStarts::Before, [30.0, 10.0, 20.0]);
        all.extend(samples(ECMP, ElephantStarts::Before, [100.0, 400.0, 900.0]));
        all.extend(samples(ECMP, ElephantStarts::Never, [12.0, 12.0, 20.0]));
        let cell = all[0].cell;
        let rows = Row::of(&[cell.without_elephant(), cell], &[ECMP, OURS], &all, 1);
        let [unloaded, ecmp, ours] = &rows[..] else { panic!("{} rows", rows.len()) };
        assert_eq!((unloaded.cell, unloaded.slow), (cell.without_elephant(), Some(0)));
        assert_eq!((ecmp.gain, ecmp.slow), (1.0, Some(3)));
        assert_eq!(ecmp.max_ms, [100.0, 400.0, 900.0]);
        assert_eq!((ours.gain, ours.slow, ours.flow_ms.len()), (20.0, Some(1), 6));
        let (low, high) = ours.gain_interval;
        assert!((100.0 / 30.0..20.0).contains(&low) && high > 20.0 && high <= 90.0, "{low} {high}");
        let json = ours.json(200);
        assert_eq!((&json["maxfct_ms"]["average"], &json["txrehash"]), (&json!(20.0), &json!(1)));
        assert_eq!((&json["elephant"], &unloaded.json(200)["elephant"]), (&json!(200), &json!(0)));
    }

    #[test]
    fn a_flow_that_was_given_up_counts_as_unended() {
        let limit = LIMIT.as_secs_f64() * 1e3;
        let all = samples(ECMP, ElephantStarts::After, [5.0, limit, 7.0]);
        let rows = Row::of(&[all[0].cell], &[ECMP], &all, 1);
        assert_eq!((&rows[0].json(100)["unended_flows"], rows[0].slow), (&json!(1), None));
    }
}
