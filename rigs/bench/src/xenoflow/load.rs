//! Latency and loss by load: a daemon with the output of `weir import xenoflow`, on AF_XDP.
//!
//! ```text
//!   far:  f0 ---- w0 :node: w1 ---- f1        bare: g0 ---- g1
//! ```
//!
//! The far end (`far.rs`) sends out of f0 and receives on f1. The same measurement over a bare veth pair, at
//! the same rates, gives the far end's own cost; the difference is what weir and the second pair add. The
//! worker has its own core; everything else shares the other one, including the sender's softirqs.

use crate::peers::Setting;
use crate::source::use_core;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::fmt::Display;
use std::process::Command;
use weir_bed::{Namespace, Run, cable};
use weir_lab::Interrupt;
use weir_lab::weir::{self, Weir};

/// The thesis's distributions of clients: name, back ends, and how many of ten clients are even. Its DNS
/// server is on the first back end, that of even clients. In the worst case, all load goes to the other one.
pub const SCENARIOS: [(&str, usize, u32); 4] =
    [("single", 1, 5), ("50/50", 2, 5), ("70/30", 2, 7), ("worst case", 2, 0)];

/// Loads, in percent of the far end's highest rate through weir.
const LOADS: [u32; 10] = [5, 10, 20, 30, 40, 50, 60, 75, 90, 100];
const LOADS_QUICK: [u32; 4] = [10, 30, 60, 100];

/// Milliseconds at each load.
const MILLIS: u32 = 1000;
const MILLIS_QUICK: u32 = 150;

/// Number of turns per scenario; the medians count.
const ROUNDS: usize = 3;

/// Back ends of `backends.json`.
const BACK_ENDS: [&str; 2] = [
    r#"{"name":"fips2","mac_address":"A0:88:C2:B5:F4:5A"}"#,
    r#"{"name":"fips3","mac_address":"A0:88:C2:B5:F4:5B"}"#,
];

/// Measures, and prints a table for each scenario; if that is impossible, the result says why.
pub fn run(setting: Setting, quick: bool, say: &impl Fn(&dyn Display) -> Result<()>) -> Result<Value> {
    if !rustix::process::geteuid().is_root() || setting.core == setting.other {
        let why = "network namespaces and AF_XDP need root, and the worker needs a core of its own";
        say(&format_args!("latency and loss: not measured: {why}"))?;
        return Ok(json!({ "why": why }));
    }
    // The daemon inherits the affinity; its worker moves to its own core.
    use_core(setting.other)?;
    let mut bench = XenoFlowBench::new(setting, quick)?;
    let most = bench.most()?;
    let loads = if quick { &LOADS_QUICK[..] } else { &LOADS[..] };
    // Rate 0 is as fast as possible.
    let rate = |percent: &u32| if *percent < 100 { (most * 1e4 * f64::from(*percent)).round() } else { 0.0 };
    let rates: Vec<f64> = loads.iter().map(rate).collect();
    let rounds = if quick { 1 } else { ROUNDS };
    let (mut bare, mut through) = (Vec::new(), vec![Vec::new(); SCENARIOS.len()]);
    for _ in 0..rounds {
        bare.push(bench.far(("g0", "g1"), 5, &rates)?);
        for (rows, scenario) in through.iter_mut().zip(SCENARIOS) {
            rows.push(bench.scenario(scenario, &rates)?);
        }
    }
    let bare = middle(&bare)?;
    let mut results = Vec::new();
    for (rows, (name, ..)) in through.iter().zip(SCENARIOS) {
        let mut rows = middle(rows)?;
        for ((row, bare), percent) in rows.iter_mut().zip(&bare).zip(loads) {
            row["percent"] = json!(percent);
            // As fast as possible is a different rate on the bare pair.
            let added =
                row["median_us"].as_f64().zip(bare["median_us"].as_f64()).map(|(one, base)| one - base);
            row["added_us"] = json!(added.filter(|_| row["rate"].as_f64() > Some(0.0)));
        }
        table(name, &rows, say)?;
        results.push(json!({ "name": name, "rows": rows }));
    }
    Ok(json!({ "scenarios": results, "bare": bare, "rounds": rounds, "most_mpps": most }))
}

struct XenoFlowBench {
    run: Run,
    interrupt: Interrupt,
    far: Namespace,
    node: Namespace,
    setting: Setting,
    quick: bool,
}

impl XenoFlowBench {
    fn new(setting: Setting, quick: bool) -> Result<XenoFlowBench> {
        let interrupt = Interrupt::on_signals()?;
        let run = Run::begin(false)?;
        let (far, node) = (run.namespace("far")?, run.namespace("node")?);
        for (end, other) in [("f0", "w0"), ("f1", "w1")] {
            cable(None, &far.end(end), &node.end(other))?;
        }
        node.ip("link set w0 address 02:00:00:00:00:02\n")?;
        far.ip("link add name g0 type veth peer name g1\nlink set g0 up\nlink set g1 up\n")?;
        Ok(XenoFlowBench { run, interrupt, far, node, setting, quick })
    }

    /// Returns the highest rate at which the far end can send through weir, in million frames per second.
    fn most(&mut self) -> Result<f64> {
        let flat_out = self.scenario(SCENARIOS[1], &[0.0])?;
        flat_out.first().and_then(|row| row["offered_mpps"].as_f64()).context("the highest rate")
    }

    /// Runs a daemon for a scenario, and sends through it at these rates.
    fn scenario(&mut self, (_, back_ends, even): (&str, usize, u32), rates: &[f64]) -> Result<Vec<Value>> {
        let text = self.configuration(back_ends)?;
        let inside = |program: &str| self.node.command(program);
        let weir = Weir::start(&mut self.run, "weir", inside, &text, &self.interrupt)?;
        let rows = self.far(("f0", "f1"), even, rates)?;
        weir.stop(&mut self.run)?;
        Ok(rows)
    }

    /// Returns the output of `weir import xenoflow` for a `backends.json`, with a worker that does not sleep
    /// on its own core.
    fn configuration(&self, back_ends: usize) -> Result<String> {
        let file = self.run.folder().join("backends.json");
        std::fs::write(&file, format!("{{\"backends\":[{}]}}\n", BACK_ENDS[..back_ends].join(",")))?;
        let mut import = Command::new(weir::program()?);
        import.args(["import", "xenoflow"]).arg(&file).args(["--in", "w0", "--out", "w1"]);
        let finished = import.output().context("weir import does not start")?;
        ensure!(
            finished.status.success(),
            "weir import: {}",
            String::from_utf8_lossy(&finished.stderr).trim()
        );
        let yaml = String::from_utf8_lossy(&finished.stdout);
        Ok(format!("workers: [{}]\nbusy: true\n{yaml}", self.setting.core))
    }

    /// Sends from one interface to another at these rates.
    fn far(&self, (from, to): (&str, &str), even: u32, rates: &[f64]) -> Result<Vec<Value>> {
        self.interrupt.sleep(std::time::Duration::ZERO)?;
        let millis = if self.quick { MILLIS_QUICK } else { MILLIS };
        let rates: Vec<String> = rates.iter().map(ToString::to_string).collect();
        let mut far = self.far.command(&weir::program()?);
        far.args(["bench", "arm", "--core", &self.setting.other.to_string(), "far", from, to]);
        far.args(["--even", &even.to_string(), "--millis", &millis.to_string(), "--rates", &rates.join(",")]);
        let finished = far.output().context("the far end does not start")?;
        ensure!(
            finished.status.success(),
            "the far end: {}",
            String::from_utf8_lossy(&finished.stderr).trim()
        );
        let text = String::from_utf8_lossy(&finished.stdout);
        serde_json::from_str(text.trim()).with_context(|| format!("the far end said `{text}`"))
    }
}

/// Returns the median over the rounds of each figure of each row; frames are added up.
fn middle(rounds: &[Vec<Value>]) -> Result<Vec<Value>> {
    let first = rounds.first().context("no round")?;
    let row = |at: usize| {
        let of = |key: &str| -> Vec<f64> {
            rounds.iter().filter_map(|rows| rows.get(at)?[key].as_f64()).collect()
        };
        let median = |key: &str| {
            let mut values = of(key);
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let (sent, arrived) = (of("sent").iter().sum::<f64>(), of("arrived").iter().sum::<f64>());
        json!({
            "rate": first[at]["rate"], "offered_mpps": median("offered_mpps"), "sent": sent,
            "arrived": arrived,
            "loss": ((sent - arrived) / sent.max(1.0)).max(0.0), "median_us": median("median_us"),
            "p99_us": median("p99_us"),
        })
    };
    Ok((0..first.len()).map(row).collect())
}

fn table(name: &str, rows: &[Value], say: &impl Fn(&dyn Display) -> Result<()>) -> Result<()> {
    say(&format_args!("latency and loss by load, AF_XDP on veth pairs: {name}"))?;
    say(&"offered Mpps   loss %   median us   added us     p99 us")?;
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        say(&format_args!(
            "{:>12.3}  {:>7.3}  {:>10.1}  {:>9}  {:>9.1}",
            number("offered_mpps"),
            100.0 * number("loss"),
            number("median_us"),
            row["added_us"].as_f64().map_or("-".to_string(), |us| format!("{us:.1}")),
            number("p99_us"),
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_rounds_has_medians_and_sums() {
        let row = |sent: u64, us: f64| {
            vec![json!({ "rate": 10.0, "sent": sent, "arrived": sent - 1, "median_us": us })]
        };
        let rows = middle(&[row(10, 3.0), row(20, 9.0), row(10, 4.0)]).expect("rounds");
        assert_eq!((&rows[0]["sent"], &rows[0]["median_us"]), (&json!(40.0), &json!(4.0)));
        assert_eq!((&rows[0]["loss"], &rows[0]["p99_us"]), (&json!(3.0 / 40.0), &Value::Null));
    }
}
