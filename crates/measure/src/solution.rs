//! Published solutions (Agg-Evict's paper), in which a measurement counts flows beside weir's own sketches.
//!
//! They are not part of this crate: a build with the rigs has them, and passes [`NewSolution`] to the command
//! and to the app.

use serde_json::Value;
use std::fmt::Write;
use weir_packet::FlowKey;
use weir_sketch::{Projection, Seed};

/// A solution, and how packets reach it: as given by arguments or by keys of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SolutionSettings {
    /// The solution.
    pub solution: String,
    /// The policy of the aggregator in front of it.
    pub aggregator: Option<String>,
    /// How many KV arrays the aggregator has.
    pub kvs: Option<usize>,
    /// Whether the aggregator compares tags with vector instructions.
    pub simd: bool,
    /// Whether it aggregates even where that does not pay.
    pub always_on: bool,
    /// The key of a flow.
    pub key: Projection,
    /// The number of destinations of a spreader.
    pub spread: Option<u64>,
    /// Rows of each list.
    pub top: usize,
    /// The memory limit for exact counting, in bytes.
    pub exact_memory: usize,
}

/// A setting that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SolutionError {
    /// The setting, by its key in the configuration.
    pub key: &'static str,
    /// Its value, if that is the reason.
    pub value: Option<String>,
    /// Why it cannot be used, and what can.
    pub why: String,
}

impl SolutionError {
    /// Returns the message for a user who gave options instead of keys.
    #[must_use]
    pub fn of_option(&self) -> String {
        let option = match self.key {
            "simd" => "no-simd".to_string(),
            key => key.replace('_', "-"),
        };
        let value = self.value.as_ref().map_or(String::new(), |value| format!(" {value}"));
        format!("`--{option}{value}`: {}", self.why)
    }
}

/// A solution that counts flows, interval by interval.
pub trait SolutionCounter: Send {
    /// Counts packets of a flow.
    fn add(&mut self, flow: &FlowKey, packets: u64, bytes: u64);

    /// Ends the interval, and begins the next one with an empty solution. Returns what the solution answers
    /// about the interval, which began and ended at these times, in ns since 1970.
    fn close(&mut self, start_ns: u64, end_ns: u64) -> Value;
}

/// Creates a solution.
pub type NewSolution = fn(&SolutionSettings, Seed) -> Result<Box<dyn SolutionCounter>, SolutionError>;

/// The error message of a build without solutions.
pub(crate) const NO_SOLUTIONS: &str = "this build of weir does not have the solutions of Agg-Evict's paper: \
     build it with `--features bench`, which is a default feature (`weir --version` lists those of a build)";

/// The solution of a running measurement.
#[derive(Clone, Debug)]
pub struct LiveSolution {
    /// What is configured.
    pub settings: SolutionSettings,
    /// Creates it.
    pub create: NewSolution,
}

/// Describes a solution in one line, from its JSON: its name and size, its keys, and its aggregator.
#[must_use]
pub fn solution_line(solution: &Value) -> String {
    let [name, key] = ["solution", "key"].map(|key| solution[key].as_str().unwrap_or_default());
    let bytes = crate::grouped(solution["solution_bytes"].as_u64().unwrap_or_default());
    format!("{name}, {bytes} bytes, of {key} keys, {}", aggregator_text(&solution["aggregator"]))
}

/// Describes an aggregator.
fn aggregator_text(aggregator: &Value) -> String {
    let count = |key: &str| aggregator[key].as_u64().unwrap_or(0);
    let Some(policy) = aggregator["policy"].as_str() else { return "without an aggregator".to_string() };
    // A recording has packets, a running measurement the records of flows.
    let what = if aggregator["records"].is_null() { "packets" } else { "records" };
    let share = |key: &str| 100.0 * count(key) as f64 / count(what).max(1) as f64;
    let simd = if aggregator["simd"] == true { "" } else { ", without SIMD" };
    format!(
        "behind {policy} of {} KV arrays{simd}: {:.1} % of the {what} found their key, {:.1} % evicted one, \
         {:.1} % bypassed it because aggregation did not pay",
        crate::grouped(count("kvs")),
        share("hits"),
        share("evictions"),
        share("bypassed"),
    )
}

/// Formats the answers of a solution, an object for each query, with at most `rows` rows per list.
pub fn write_answers(text: &mut String, answers: &Value, rows: usize) {
    for (query, value) in answers.as_object().into_iter().flatten() {
        let name = query.replace('_', " ");
        let number = |key: &str| value[key].as_f64();
        match query.as_str() {
            "decoded" => {
                let exact = if value["is_exact"] == true { "exactly" } else { "not all" };
                let _ = writeln!(
                    text,
                    "{name} {exact}: {} flows, {} missing; {} fit",
                    value["flows"], value["missing"], value["room"]
                );
            }
            "distribution" => {
                let error = number("wmre").map_or(String::new(), |error| format!(", WMRE {error:.4}"));
                let _ = writeln!(text, "{name} of flow sizes{error}");
                list(text, value, "flows", "packets", rows);
            }
            _ if value.is_null() => {
                let _ = writeln!(text, "{name}: there is no interval before");
            }
            _ if value["rows"].is_array() => {
                let quality = number("f1").zip(number("are"));
                let quality =
                    quality.map_or(String::new(), |(f1, are)| format!(", F1 {f1:.4}, ARE {are:.4}"));
                let _ = writeln!(text, "{name} from {} on: {}{quality}", value["least"], value["found"]);
                let what = ["packets", "change", "destinations"];
                let what = what.into_iter().find(|what| value["rows"][0].get(what).is_some());
                list(text, value, what.unwrap_or("packets"), "key", rows);
            }
            _ => {
                let exact = number("exact").zip(number("error")).map_or(String::new(), |(exact, error)| {
                    format!("  exactly {exact:.3}, error {:.2} %", 100.0 * error)
                });
                let _ = writeln!(text, "{name} {:.3}{exact}", number("estimate").unwrap_or(f64::NAN));
            }
        }
    }
}

/// Formats the rows of a list: the estimate, the exact value, and what they are about.
fn list(text: &mut String, value: &Value, what: &str, about: &str, rows: usize) {
    let list = value["rows"].as_array().map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return;
    }
    let _ = writeln!(text, "  {what:>12} {:>12}  {about}", "exact");
    for row in list.iter().take(rows) {
        let number = |key: &str| row[key].as_f64().map_or("-".to_string(), |number| format!("{number:.0}"));
        let key = row[about].as_str().map_or_else(|| row[about].to_string(), str::to_string);
        let _ = writeln!(text, "  {:>12} {:>12}  {key}", number(what), number("exact"));
    }
}
