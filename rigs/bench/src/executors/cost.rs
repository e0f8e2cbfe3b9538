//! The processor time of a frame, summed over all cores: the time in which they were not idle, so that
//! softirqs are included, whichever task they interrupt. Everything else on the machine is included, too, so
//! it must be idle.

use super::{Between, ExecutorBench};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Display;
use std::time::{Duration, Instant};
use weir_lab::premise::carried;
use weir_lab::spread::ResultSpread;

/// How long a turn runs before it is measured, and how long it is measured.
const SETTLE: Duration = Duration::from_millis(300);
const TURN: Duration = Duration::from_secs(3);

/// The load, as a share of the engine's highest rate without loss.
const LOAD: f64 = 0.8;

/// The measurements, in the order of the results.
const TURNS: [Between; 3] = [Between::Stack, Between::Engine, Between::Kernel];

/// Measures both executors at a share of this rate per second.
pub fn measure(
    bench: &mut ExecutorBench<'_>,
    rate: f64,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Value> {
    let (rate, time) = (LOAD * rate, bench.options.time(TURN));
    say(&format_args!(
        "processor time at {:.3} Mpps, ns per frame:  without weir  engine  kernel",
        rate / 1e6
    ))?;
    let mut costs = [const { Vec::new() }; TURNS.len()];
    for _ in 0..bench.options.rounds() {
        for (between, costs) in TURNS.into_iter().zip(&mut costs) {
            costs.push(bench.turn((between, 1), |far| {
                far.sources.carry(rate, |elapsed| elapsed > SETTLE)?;
                let (before, begun) = (idle()?, Instant::now());
                let (sent, arrived, _) = far.carry(rate, |elapsed| elapsed > time)?;
                let (idle, took) = (idle()? - before, begun.elapsed());
                let frames = if between == Between::Stack { sent } else { arrived };
                carried("a turn", frames as f64)?;
                Ok((processors()? * took.as_secs_f64() - idle) * 1e9 / frames as f64)
            })?);
        }
        let last = |at: usize| costs[at].last().copied().unwrap_or(f64::NAN);
        say(&format_args!("{:>59.0} {:>7.0} {:>7.0}", last(0), last(1), last(2)))?;
    }
    let [without, engine, kernel] = costs.map(|costs| ResultSpread::of(costs).median);
    let (ratio, ratio_of_weir) = (kernel / engine, (kernel - without) / (engine - without));
    say(&format_args!(
        "median {without:>52.0} {engine:>7.0} {kernel:>7.0}  kernel / engine {ratio:.2}, less what is needed \
         without weir {ratio_of_weir:.2}"
    ))?;
    Ok(json!({
        "offered_mpps": rate / 1e6, "without_weir_ns": without, "engine_ns": engine, "kernel_ns": kernel,
        "ratio": ratio, "ratio_of_weir": ratio_of_weir,
    }))
}

/// Returns the seconds that all processors have been idle, or taken away by the host.
fn idle() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    idle_in(&text).context("/proc/stat")
}

/// Adds the times in the first line of `/proc/stat`: idle, waiting for I/O, stolen.
fn idle_in(text: &str) -> Option<f64> {
    let times: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).flat_map(str::parse).collect();
    let ticks = times.get(3)? + times.get(4)? + times.get(7)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

fn processors() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat").context("/proc/stat")?;
    let is_one = |line: &&str| {
        line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_digit()))
    };
    Ok(text.lines().filter(is_one).count() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_no_task_and_no_softirq_uses() {
        let seconds = idle_in("cpu  10 20 30 400 50 60 70 8 9 9\ncpu0 1 2\n").expect("a line of times");
        assert_eq!(seconds * rustix::param::clock_ticks_per_second() as f64, 458.0);
        assert_eq!(idle_in("cpu 1 2"), None);
    }
}
