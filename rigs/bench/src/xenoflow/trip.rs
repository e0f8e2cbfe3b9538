//! Figure 7.7: the round trip of DNS queries through the balancer while a generator loads it, by load and by
//! length of frames, for the thesis's four distributions of clients and both executors.

use super::bed::{Balancer, Bed, LoadParameters};
use super::load::SCENARIOS;
use super::rate::SHORTEST;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Display;
use std::time::Duration;
use weir_lab::spread::ResultSpread;

/// Loads, in percent of the highest rate that the worker forwards when clients are split 50/50. The last
/// one is more than it forwards.
const LOADS: [u32; 6] = [0, 25, 50, 75, 100, 125];
const LOADS_QUICK: [u32; 2] = [0, 50];
/// The load at which lengths are compared, and the lengths of its frames in bytes, without FCS.
const LOAD_OF_LENGTHS: u32 = 25;
const LENGTHS: [u16; 4] = [60, 256, 1024, 1514];
const LENGTHS_QUICK: [u16; 2] = [60, 1514];

/// Rounds whose medians are reported.
pub const ROUNDS: usize = 3;
/// How long queries are timed at each load.
const TIME: Duration = Duration::from_millis(700);
const TIME_QUICK: Duration = Duration::from_millis(150);

/// The executors that are compared.
const EXECUTORS: [Balancer; 2] = [Balancer::Engine, Balancer::Kernel];

/// Numbers that are reported for each point, with their spread over the rounds.
const NUMBERS: [&str; 5] = ["median_us", "p99_us", "offered_mpps", "arrived_mpps", "loss"];

/// How long a point takes.
pub fn time(quick: bool) -> Duration {
    if quick { TIME_QUICK } else { TIME }
}

/// Returns the highest rate in million frames per second that the worker forwards.
pub fn most(bed: &mut Bed, quick: bool) -> Result<f64> {
    let running = bed.start(Balancer::Engine, 2)?;
    let load = LoadParameters { rate: 0.0, even: 5, length: SHORTEST as u16 };
    let found = bed.measure(Some(load), time(quick))?;
    bed.stop(running)?;
    found["arrived_mpps"].as_f64().filter(|mpps| *mpps > 0.0).context("the worker has forwarded nothing")
}

/// Measures, and prints a row for each point. `most` is the rate of a full load, in million frames per
/// second.
pub fn run(
    bed: &mut Bed,
    most: f64,
    quick: bool,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Value> {
    let rounds = if quick { 1 } else { ROUNDS };
    let loads = if quick { &LOADS_QUICK[..] } else { &LOADS[..] };
    let lengths = if quick { &LENGTHS_QUICK[..] } else { &LENGTHS[..] };
    let by_load = loads.iter().map(|load| (*load, SHORTEST as u16));
    let by_length = lengths.iter().map(|length| (LOAD_OF_LENGTHS, *length));
    let points: Vec<(u32, u16)> = by_load.chain(by_length).collect();
    let mut found = vec![vec![Vec::new(); points.len()]; EXECUTORS.len() * SCENARIOS.len()];
    for _ in 0..rounds {
        let places = SCENARIOS.iter().flat_map(|scenario| EXECUTORS.map(|executor| (scenario, executor)));
        for (((_, back_ends, even), executor), found) in places.zip(&mut found) {
            let running = bed.start(executor, *back_ends)?;
            for ((percent, length), found) in points.iter().zip(found) {
                let rate = most * 1e4 * f64::from(*percent);
                let load = (*percent > 0).then_some(LoadParameters { rate, even: *even, length: *length });
                found.push(bed.measure(load, time(quick))?);
            }
            bed.stop(running)?;
        }
    }
    let (mut by_load, mut by_length) = (Vec::new(), Vec::new());
    let places =
        SCENARIOS.iter().flat_map(|scenario| EXECUTORS.map(|executor| (scenario.0, executor.name())));
    say(&format_args!(
        "figure 7.7, DNS round trip under load; 100 % is {most:.3} Mpps; median (min - max), {rounds} rounds"
    ))?;
    say(&"clients     executor  load %  bytes  offered Mpps  lost %   median us                p99 us")?;
    for ((scenario, executor), found) in places.zip(&found) {
        let mut rows: Vec<Value> = Vec::new();
        for ((percent, length), found) in points.iter().zip(found) {
            let row = point(*percent, *length, found);
            say(&line(scenario, executor, &row))?;
            rows.push(row);
        }
        let lengths = rows.split_off(loads.len());
        by_load.push(json!({ "name": scenario, "executor": executor, "rows": rows }));
        by_length.push(json!({ "name": scenario, "executor": executor, "rows": lengths }));
    }
    Ok(json!({ "scenarios": by_load, "by_length": by_length, "most_mpps": most, "rounds": rounds }))
}

/// Returns a row: the median of each number over the rounds, with the ends of its range; queries add up.
pub fn point(percent: u32, length: u16, rounds: &[Value]) -> Value {
    let mut row = json!({ "percent": percent, "frame": length });
    for key in NUMBERS {
        let values: Vec<f64> = rounds.iter().filter_map(|round| round[key].as_f64()).collect();
        let spread = (!values.is_empty()).then(|| ResultSpread::of(values));
        row[key] = json!(spread.map(|spread| spread.median));
        row[format!("{key}_min")] = json!(spread.map(|spread| spread.min));
        row[format!("{key}_max")] = json!(spread.map(|spread| spread.max));
    }
    for key in ["queries", "unanswered"] {
        row[key] = json!(rounds.iter().filter_map(|round| round[key].as_u64()).sum::<u64>());
    }
    row
}

/// Returns a line of the table.
pub fn line(scenario: &str, balancer: &str, row: &Value) -> String {
    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    let loss = row["loss"].as_f64().map_or("-".to_string(), |loss| format!("{:.2}", 100.0 * loss));
    let range = format!("({:.1} - {:.1})", number("median_us_min"), number("median_us_max"));
    format!(
        "{scenario:<11} {balancer:<8} {:>7} {:>6} {:>13.3} {loss:>7} {:>11.1} {range:<18} {:>9.1}{}",
        row["percent"],
        row["frame"],
        number("offered_mpps"),
        number("median_us"),
        number("p99_us"),
        match row["unanswered"].as_u64() {
            Some(0) | None => String::new(),
            Some(some) => format!("  {some} of {} queries unanswered", row["queries"]),
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_has_medians_and_what_was_not_answered() {
        let round = |us: f64| json!({ "median_us": us, "p99_us": 9.0, "queries": 100, "unanswered": 1 });
        let row = point(0, 60, &[round(3.0), round(1.0), round(2.0)]);
        assert_eq!((&row["median_us"], &row["median_us_max"]), (&json!(2.0), &json!(3.0)));
        assert_eq!((&row["queries"], &row["unanswered"]), (&json!(300), &json!(3)));
        assert!(row["loss"].is_null());
        assert!(line("single", "engine", &row).ends_with("3 of 300 queries unanswered"));
    }
}
