//! Other ways to write XenoFlow's program: without monitoring (section 4.3.3 of the thesis), and with a pipe
//! for each back end instead of an entry (section 8.4). Both ways take turns, on memory ports and in test
//! runs of the kernel.

use super::program::{BackEndsAs, scenario};
use crate::engine::{Bench, PACKETS};
use crate::kernel;
use crate::scenarios::Scenario;
use anyhow::{Result, ensure};
use serde_json::{Value, json};
use std::fmt::Display;
use weir_lab::spread::ResultSpread;
use weir_papers::FRAME;

/// Numbers of back ends. The kernel's executor has at most 16 pipes.
const BACK_ENDS: [u32; 5] = [2, 4, 8, 16, 64];
const BACK_ENDS_QUICK: [u32; 2] = [2, 16];

/// Rounds whose median is reported, after one that fills caches.
const ROUNDS: u16 = 11;
const ROUNDS_QUICK: u16 = 3;

/// Measures both comparisons, and prints their rows.
pub fn run(quick: bool, say: &impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    let rounds = if quick { ROUNDS_QUICK } else { ROUNDS };
    say(&"section 4.3.3, monitoring (a counter for each back end): ns per packet, median (min - max)")?;
    let programs = [true, false].map(|monitored| scenario(2, BackEndsAs::Entries, monitored));
    let monitoring = compared(&programs, ["on", "off"], 2, rounds, say)?;
    say(&"section 8.4, an entry or a pipe for each back end: ns per packet, median (min - max)")?;
    let mut pipes = Vec::new();
    for &back_ends in if quick { &BACK_ENDS_QUICK[..] } else { &BACK_ENDS[..] } {
        let programs = [BackEndsAs::Entries, BackEndsAs::Pipes].map(|shape| scenario(back_ends, shape, true));
        pipes.extend(compared(&programs, ["entries", "pipes"], back_ends, rounds, say)?);
    }
    Ok(json!({
        "4.3.3": { "what": "monitoring on and off", "unit": "ns per packet", "rows": monitoring },
        "8.4": { "what": "an entry or a pipe for each back end", "unit": "ns per packet", "rows": pipes },
    }))
}

/// Compares two programs in both executors, and returns a row for each.
fn compared(
    programs: &[Scenario; 2],
    names: [&str; 2],
    back_ends: u32,
    rounds: u16,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Vec<Value>> {
    let engine = Ok(in_engine(programs, rounds)?);
    let kernel = kernel::alike(programs, FRAME, rounds)?;
    let mut rows = Vec::new();
    for (executor, measured) in [("engine", engine), ("kernel", kernel)] {
        let row = match measured {
            Ok(ns) => row(executor, back_ends, names, &ns),
            Err(why) => json!({ "executor": executor, "back_ends": back_ends, "why": why }),
        };
        say(&line(&row, names))?;
        rows.push(row);
    }
    Ok(rows)
}

/// Returns the nanoseconds per packet of each round, on memory ports.
fn in_engine(programs: &[Scenario; 2], rounds: u16) -> Result<[Vec<f64>; 2]> {
    let mut benches = programs.each_ref().map(Bench::new);
    let mut ns = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for turn in 0..2 {
            let at = (turn + usize::from(round)) % 2;
            let taken = benches[at].round(&programs[at], PACKETS / 4).0;
            if round > 0 {
                ns[at].push(taken);
            }
        }
    }
    for bench in &benches {
        let (unsent, all) = bench.unsent();
        ensure!(unsent == 0, "{unsent} of {all} packets were not sent");
    }
    Ok(ns)
}

/// Returns the times of both, and the ratio of the second to the first, as the median of the rounds.
fn row(executor: &str, back_ends: u32, names: [&str; 2], ns: &[Vec<f64>; 2]) -> Value {
    let mut row = json!({ "executor": executor, "back_ends": back_ends });
    let ratios = ns[0].iter().zip(&ns[1]).map(|(first, second)| second / first).collect();
    let [first, second] = ns.clone();
    for (key, values) in
        [(format!("{}_ns", names[0]), first), (format!("{}_ns", names[1]), second), ("ratio".into(), ratios)]
    {
        let spread = ResultSpread::of(values);
        row[format!("{key}_min")] = json!(spread.min);
        row[format!("{key}_max")] = json!(spread.max);
        row[key] = json!(spread.median);
    }
    row
}

fn line(row: &Value, names: [&str; 2]) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_string();
    let mut line = format!("{:<7} {:>3} back ends", text("executor"), row["back_ends"].to_string());
    if !row["why"].is_null() {
        return format!("{line}  left out: {}", text("why"));
    }
    let number = |key: String| row[key].as_f64().unwrap_or(f64::NAN);
    for name in names {
        let [median, min, max] = ["", "_min", "_max"].map(|end| number(format!("{name}_ns{end}")));
        line += &format!("  {name} {median:.1} ({min:.1} - {max:.1})");
    }
    let [median, min, max] = ["", "_min", "_max"].map(|end| number(format!("ratio{end}")));
    format!("{line}  {} / {} {median:.2} ({min:.2} - {max:.2})", names[1], names[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dropping packets would look fast, and so would sending all of them to one back end.
    #[test]
    fn both_ways_do_the_same_with_every_packet() {
        for back_ends in BACK_ENDS {
            let programs = [
                scenario(back_ends, BackEndsAs::Entries, true),
                scenario(back_ends, BackEndsAs::Entries, false),
                scenario(back_ends, BackEndsAs::Pipes, true),
            ];
            let [first, others @ ..] =
                programs.each_ref().map(|scenario| crate::kernel::by_engine(scenario, 512));
            for other in others {
                assert!(other == first, "{back_ends} back ends");
            }
            let mut macs: Vec<&[u8]> = first.iter().map(|frame| &frame[..6]).collect();
            macs.sort_unstable();
            macs.dedup();
            assert_eq!(macs.len(), back_ends as usize);
        }
    }

    /// A program with more pipes than the kernel runs is left out, and the row says why.
    #[test]
    fn what_the_kernel_does_not_run_is_left_out() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI runs as root");
            return;
        }
        let [few, many] = [2, 64].map(|back_ends| {
            let programs = [BackEndsAs::Entries, BackEndsAs::Pipes];
            let programs = programs.map(|shape| scenario(back_ends, shape, true));
            kernel::alike(&programs, FRAME, 1).expect("it loads")
        });
        assert_eq!(few.expect("2 pipes compile").map(|ns| ns.len()), [1, 1]);
        let why = many.expect_err("64 pipes do not compile");
        assert!(
            line(&json!({ "executor": "kernel", "back_ends": 64, "why": why }), ["", ""]).ends_with(&why)
        );
    }

    #[test]
    fn a_row_has_the_ratio_of_rounds() {
        let row = row("engine", 2, ["on", "off"], &[vec![10.0, 20.0, 40.0], vec![5.0, 10.0, 10.0]]);
        assert_eq!((&row["on_ns"], &row["off_ns_max"]), (&json!(20.0), &json!(10.0)));
        assert_eq!((&row["ratio"], &row["ratio_min"]), (&json!(0.5), &json!(0.25)));
    }
}
