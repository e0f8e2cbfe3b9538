//! The rows of the table: a test, and the result of each arm.

use serde_json::{Value, json};
use weir_lab::spread::ResultSpread;

use super::bed::{ARMS, HOST, VXLAN, WEIR};
use super::load::CHURN_FLOWS;
use super::paper;

/// A round: the result of each arm in a test.
pub type Sample = [f64; ARMS.len()];

/// A test.
#[derive(Clone, Copy)]
pub struct Test {
    /// The test's name in the table.
    pub name: &'static str,
    pub flows: u32,
    pub unit: &'static str,
    /// The order for the client, without flows and time.
    pub order: &'static str,
    /// How many times longer a sample takes than in other tests, and the warm-up before the first sample.
    pub longer: u32,
    pub warm: u32,
}

const fn test(name: &'static str, flows: u32, unit: &'static str) -> Test {
    Test { name, flows, unit, order: name, longer: 1, warm: 1 }
}

/// All tests. `udp_stream` yields two rows.
pub const TESTS: [Test; 8] = [
    test("tcp_rr", 1, "transactions/s"),
    test("udp_rr", 1, "transactions/s"),
    test("udp_rr", 8, "transactions/s"),
    test("udp_rr", 32, "transactions/s"),
    test("tcp_stream", 1, "Gbit/s"),
    test("udp_stream", 1, "packets/s"),
    test("udp_one_way", 1, "packets/s"),
    Test { longer: 4, warm: 20, ..test("churn", CHURN_FLOWS, "transactions/s") },
];

/// The second row of `udp_stream`.
pub const SOFTIRQ: Test = test("udp_stream_softirq", 1, "ns/packet");

/// Returns the value of a test from the result of an order.
pub fn value(test: &Test, answer: &Value) -> f64 {
    let of = |name: &str| answer[name].as_f64().unwrap_or(f64::NAN);
    let rate = of("count") / of("ns") * 1e9;
    if test.name == "tcp_stream" { rate * 8.0 / 1e9 } else { rate }
}

/// Returns the value of [`SOFTIRQ`] from the result of an order.
pub fn softirq_ns(answer: &Value) -> f64 {
    let of = |name: &str| answer[name].as_f64().unwrap_or(f64::NAN);
    of("softirq_ns") / of("count")
}

/// A row.
pub struct OverlayRow {
    test: Test,
    arms: [ResultSpread; ARMS.len()],
    /// Each arm relative to plain VXLAN in the same round, and to the nodes' own addresses.
    over_vxlan: [ResultSpread; ARMS.len()],
    over_host: [ResultSpread; ARMS.len()],
    samples: usize,
}

impl OverlayRow {
    /// Computes a row from at least one round.
    pub fn of(test: Test, samples: &[Sample]) -> OverlayRow {
        let spread = |arm: usize| ResultSpread::of(samples.iter().map(|sample| sample[arm]).collect());
        let over = |base: usize, arm: usize| {
            ResultSpread::of(samples.iter().map(|sample| sample[arm] / sample[base]).collect())
        };
        OverlayRow {
            test,
            arms: std::array::from_fn(spread),
            over_vxlan: std::array::from_fn(|arm| over(VXLAN, arm)),
            over_host: std::array::from_fn(|arm| over(HOST, arm)),
            samples: samples.len(),
        }
    }

    /// The heading of the table.
    pub fn heading() -> String {
        let arms: String = ARMS.iter().map(|arm| format!("{arm:>11}")).collect();
        format!(
            "{:<20}{:>6} {:<15}{arms}   {:<23} {}",
            "test", "flows", "unit", "weir/vxlan (min - max)", "weir/host (min - max)"
        )
    }

    /// The test, and the number of its flows.
    pub fn name(&self) -> (&'static str, u32) {
        (self.test.name, self.test.flows)
    }

    /// An arm relative to plain VXLAN, and to the nodes' own addresses: medians of the rounds' ratios.
    pub fn ratios(&self, arm: usize) -> [f64; 2] {
        [self.over_vxlan[arm].median, self.over_host[arm].median]
    }

    /// The row as a line of text.
    pub fn text(&self) -> String {
        let Test { name, flows, unit, .. } = self.test;
        let digits = if self.arms[0].median < 1000.0 { 2 } else { 0 };
        let arms: String = self.arms.iter().map(|arm| format!("{:>11.digits$}", arm.median)).collect();
        let over = |over: ResultSpread| format!("{:.3} ({:.3} - {:.3})", over.median, over.min, over.max);
        let [vxlan, host] = [self.over_vxlan[WEIR], self.over_host[WEIR]].map(over);
        format!("{name:<20}{flows:>6} {unit:<15}{arms}   {vxlan:<23} {host}")
    }

    /// The row as JSON: medians by arm, and the spread of samples.
    pub fn json(&self) -> Value {
        let Test { name, flows, unit, .. } = self.test;
        let mut row = json!({ "test": name, "flows": flows, "unit": unit });
        let ends = |spread: &ResultSpread| json!([spread.min, spread.max]);
        for (at, arm) in ARMS.into_iter().enumerate() {
            row[arm] = json!(self.arms[at].median);
        }
        row["samples"] = json!(self.samples);
        for (at, arm) in ARMS.into_iter().enumerate() {
            row["spread"][arm] = ends(&self.arms[at]);
            row["over_vxlan"][arm] = json!(self.over_vxlan[at].median);
            row["over_host"][arm] = json!(self.over_host[at].median);
            row["over_host_spread"][arm] = ends(&self.over_host[at]);
        }
        row["paper"] = paper::json(name);
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_medians_of_the_arms_and_their_ratio_in_each_round() {
        let samples = [[100.0, 50.0, 70.0, 80.0], [110.0, 40.0, 72.0, 90.0], [130.0, 60.0, 71.0, 85.0]];
        let row = OverlayRow::of(TESTS[0], &samples).json();
        assert_eq!(
            (&row["test"], &row["flows"], &row["unit"]),
            (&json!("tcp_rr"), &json!(1), &json!("transactions/s"))
        );
        let medians = ["host", "vxlan", "oncache", "weir"].map(|arm| row[arm].as_f64());
        assert_eq!(medians, [110.0, 50.0, 71.0, 85.0].map(Some));
        assert_eq!((&row["samples"], &row["spread"]["weir"]), (&json!(3), &json!([80.0, 90.0])));
        // Of 80/50, 90/40 and 85/60.
        assert_eq!(
            (row["over_vxlan"]["weir"].as_f64(), row["over_vxlan"]["vxlan"].as_f64()),
            (Some(1.6), Some(1.0))
        );
        // Of 80/100, 90/110 and 85/130; that of the medians would be 85/110.
        assert_eq!((&row["over_host"]["weir"], &row["over_host"]["host"]), (&json!(0.8), &json!(1.0)));
        assert_eq!(row["over_host_spread"]["weir"], json!([85.0 / 130.0, 90.0 / 110.0]));
        let line = OverlayRow::of(SOFTIRQ, &samples[..1]).text();
        assert!(line.contains("ns/packet") && line.contains("1.600 (1.600 - 1.600)"), "{line}");
        assert!(line.ends_with("0.800 (0.800 - 0.800)"), "{line}");
        assert_eq!(
            OverlayRow::heading().split_whitespace().nth(3),
            Some("host"),
            "{}",
            OverlayRow::heading()
        );
    }

    #[test]
    fn the_value_of_a_test_is_a_rate() {
        let answer = json!({ "count": 2_000, "ns": 1_000_000_000_u64, "softirq_ns": 500_000 });
        assert_eq!(value(&TESTS[0], &answer), 2_000.0);
        assert_eq!(softirq_ns(&answer), 250.0);
        let stream = TESTS.iter().find(|test| test.name == "tcp_stream").expect("a test");
        assert_eq!(value(stream, &json!({ "count": 1_000_000_000_u64, "ns": 1_000_000_000_u64 })), 8.0);
        assert!(value(&TESTS[0], &json!({})).is_nan(), "an arm without answers has no rate");
    }
}
