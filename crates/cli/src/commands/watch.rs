//! `weir show --watch`: polls, and prints rates beside totals, one answer after the other. `weir top` is for
//! people; this is for files, pipes and other programs.
//!
//! Rates are computed from the answers alone: any number that has grown since the previous answer gets a
//! rate. So a new counter, even an app's, needs no support here.

use crate::output;
use anyhow::Result;
use serde_json::{Map, Value};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The shortest and the longest pause between two answers, in seconds.
const SECONDS: std::ops::RangeInclusive<f64> = 0.1..=86_400.0;

/// The fields that identify rows of a list; rows that have none of these are identified by their position.
const NAMES: [&str; 9] =
    ["service", "backend", "name", "pipe", "entry", "flow", "reason", "member", "bucket"];

/// Parses the polling interval, in seconds.
///
/// # Errors
/// Fails if the text is not a usable number of seconds.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| SECONDS.contains(seconds));
    let wrong = || format!("the interval must be {} to {} seconds", SECONDS.start(), SECONDS.end());
    seconds.map(Duration::from_secs_f64).ok_or_else(wrong)
}

/// Prints `text`. If `every` is an interval, prints again at this interval until printing fails or a signal
/// ends the process.
///
/// # Errors
/// Fails if `text` fails, for example because the daemon has stopped, or if standard output cannot be written
/// to.
pub fn repeat(
    every: Option<Duration>,
    json: bool,
    mut text: impl FnMut() -> Result<String>,
) -> Result<ExitCode> {
    let Some(every) = every else {
        output::print(text()?)?;
        return Ok(ExitCode::SUCCESS);
    };
    let mut next = Instant::now();
    for turn in 0u64.. {
        let text = text()?;
        if turn == 0 || json {
            output::print(text)?;
        } else {
            output::print(format_args!("\n{text}"))?;
        }
        output::flush()?;
        // Answers missed during one that took longer than the pause are skipped.
        next = (next + every).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    Ok(ExitCode::SUCCESS)
}

/// The previous answer, from which rates are computed.
#[derive(Default)]
pub struct Rates(Option<(Instant, Value)>);

impl Rates {
    /// Returns the answer with a rate beside each number that has grown since the previous answer.
    pub fn beside(&mut self, answer: Value) -> Value {
        let now = Instant::now();
        let (then, before) = self.0.replace((now, answer.clone())).unwrap_or((now, Value::Null));
        beside(&answer, &before, now.duration_since(then).as_secs_f64())
    }
}

fn beside(now: &Value, before: &Value, seconds: f64) -> Value {
    match (now, before) {
        (Value::Number(new), Value::Number(old)) => {
            let grown = new.as_u64().zip(old.as_u64()).map(|(new, old)| new.saturating_sub(old));
            match grown {
                Some(grown) if grown > 0 && seconds > 0.0 => rate(new, grown as f64 / seconds).into(),
                _ => now.clone(),
            }
        }
        (Value::Array(new), Value::Array(old)) => {
            let one = |(at, row)| beside(row, earlier(row, at, old), seconds);
            new.iter().enumerate().map(one).collect()
        }
        (Value::Object(new), Value::Object(old)) => Value::Object(fields(new, old, seconds)),
        _ => now.clone(),
    }
}

fn fields(new: &Map<String, Value>, old: &Map<String, Value>, seconds: f64) -> Map<String, Value> {
    let field = |(key, value): (&String, &Value)| {
        let shown = match old.get(key) {
            Some(before) if counts(key) => beside(value, before, seconds),
            // A drop reason only appears in the answer once such a frame was dropped.
            None if counts(key) => beside(value, &Value::from(0), seconds),
            _ => value.clone(),
        };
        (key.clone(), shown)
    };
    new.iter().map(field).collect()
}

/// Returns true if a field may be a counter: times and the generation of the program are not.
fn counts(key: &str) -> bool {
    key != "generation" && !["_s", "_ms", "_ns"].iter().any(|unit| key.ends_with(unit))
}

/// Finds a row of a list in the previous list: rows may be added, removed and reordered.
fn earlier<'a>(row: &Value, at: usize, old: &'a [Value]) -> &'a Value {
    let named = NAMES.iter().any(|name| row.get(name).is_some());
    let same = |other: &&Value| NAMES.iter().all(|name| row.get(name) == other.get(name));
    let found = if named { old.iter().find(same) } else { old.get(at) };
    found.unwrap_or(&Value::Null)
}

fn rate(total: &serde_json::Number, per_second: f64) -> String {
    let digits = if per_second < 10.0 { 2 } else { 0 };
    format!("{total} +{per_second:.digits$}/s")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_grows_gets_a_rate_whatever_it_is() {
        let before = json!({ "uptime_s": 1, "generation": 1, "ledger": { "received": 10, "dropped": {} },
            "counters": [{ "name": "a", "packets": 5 }, { "name": "b", "packets": 7 }],
            "received_by_worker": [1, 2], "share": 0.5, "mode": "native" });
        let now = json!({ "uptime_s": 3, "generation": 2,
            "ledger": { "received": 1010, "dropped": { "miss": 4 } },
            "counters": [{ "name": "b", "packets": 8 }, { "name": "c", "packets": 9 },
                { "name": "a", "packets": 3 }],
            "received_by_worker": [1, 42], "share": 0.7, "mode": "native" });
        let shown = json!({ "uptime_s": 3, "generation": 2,
            "ledger": { "received": "1010 +500/s", "dropped": { "miss": "4 +2.00/s" } },
            "counters": [{ "name": "b", "packets": "8 +0.50/s" }, { "name": "c", "packets": 9 },
                { "name": "a", "packets": 3 }],
            "received_by_worker": [1, "42 +20/s"], "share": 0.7, "mode": "native" });
        assert_eq!(beside(&now, &before, 2.0), shown);
        assert_eq!(beside(&now, &Value::Null, 2.0), now, "the first answer has no rates");
    }

    #[test]
    fn a_pause_is_a_sensible_number_of_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "ports", "0", "-1", "nan", "inf", "1e9", "0.01"] {
            assert!(seconds(wrong).is_err_and(|said| said.contains("0.1 to 86400 seconds")), "{wrong}");
        }
    }
}
