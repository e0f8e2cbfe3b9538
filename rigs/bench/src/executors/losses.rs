//! Frames lost in reloads and takeovers, compared with intervals in which nothing changes.

use super::{Between, COMPILED, EXECUTORS, ExecutorBench, FarEnd};
use crate::source::FrameSources;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weir_bed::Run;
use weir_lab::kernel;
use weir_lab::weir::Weir;

/// The load, as a share of a rate without loss.
const LOAD: f64 = 0.5;

/// How long frames are sent before a change, and after it.
const BESIDE: Duration = Duration::from_millis(30);

/// What changes while frames are sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Reload,
    Takeover,
}

/// Frames of all intervals of one kind.
#[derive(Default)]
struct Intervals {
    sent: u64,
    lost: u64,
    /// Frames that weir itself has dropped, according to its ledger.
    dropped: u64,
    /// The largest number of frames lost in one interval.
    worst: u64,
}

impl Intervals {
    fn add(&mut self, (sent, arrived): (u64, u64), dropped: u64) {
        let lost = sent.saturating_sub(arrived);
        self.sent += sent;
        self.lost += lost;
        self.dropped += dropped;
        self.worst = self.worst.max(lost);
    }

    fn json(&self) -> Value {
        json!({ "sent": self.sent, "lost": self.lost, "dropped": self.dropped, "worst": self.worst })
    }
}

/// Measures reloads at half of each executor's rate without loss.
pub fn of_reloads(
    bench: &mut ExecutorBench<'_>,
    rates: [f64; 2],
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Value> {
    let count = bench.options.reloads;
    of_all(bench, rates, (Disturbance::Reload, count), say)
}

/// Measures takeovers in the same way.
pub fn of_takeovers(
    bench: &mut ExecutorBench<'_>,
    rates: [f64; 2],
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Value> {
    let count = bench.options.takeovers;
    of_all(bench, rates, (Disturbance::Takeover, count), say)
}

fn of_all(
    bench: &mut ExecutorBench<'_>,
    [engine, kernel]: [f64; 2],
    (change, count): (Disturbance, u32),
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Value> {
    let what = if change == Disturbance::Reload { "reloads" } else { "takeovers" };
    say(&format_args!("{count} {what}:  Mpps  lost  in control  dropped by weir  in control"))?;
    let (mut rows, mut unmet) = (Vec::new(), Vec::new());
    for (between, rate) in [(Between::Engine, engine), (Between::Kernel, engine), (Between::Kernel, kernel)] {
        let rate = LOAD * rate;
        let (changed, control) = bench.losses(between, rate, (change, count))?;
        let name = EXECUTORS.iter().find(|(one, _)| *one == between).map_or("", |(_, name)| name);
        say(&format_args!(
            "{name:<12} {:>9.3} {:>5} {:>11} {:>16} {:>11}",
            rate / 1e6,
            changed.lost,
            control.lost,
            changed.dropped,
            control.dropped,
        ))?;
        let is_met = changed.lost <= control.lost && changed.dropped == 0;
        if !is_met {
            unmet.push(format!("{name} at {:.3} Mpps", rate / 1e6));
        }
        rows.push(json!({
            "executor": name, "offered_mpps": rate / 1e6, "changes": count, "changed": changed.json(),
            "control": control.json(), "met": is_met,
        }));
    }
    if bench.options.strict && !unmet.is_empty() {
        bail!("{what} have lost frames: {}", unmet.join(", "));
    }
    Ok(json!(rows))
}

impl ExecutorBench<'_> {
    /// Makes changes at a rate, each followed by an interval of the same duration without one.
    fn losses(
        &mut self,
        between: Between,
        rate: f64,
        (change, count): (Disturbance, u32),
    ) -> Result<(Intervals, Intervals)> {
        let texts = [self.configuration(between, 1), other(&self.configuration(between, 1))];
        let mut weir = self.start(between, &texts[0])?;
        let _passing = match between {
            Between::Kernel => Some(kernel::pass_all(&self.far, "f1")?),
            Between::Stack | Between::Engine => None,
        };
        let cores = [self.setting.other];
        let sources = self.far.within(|| FrameSources::open("f0", &cores))?;
        let mut far = FarEnd { sources, to: "f1", interrupt: &self.interrupt.clone(), trial: BESIDE };
        let (mut changed, mut control) = (Intervals::default(), Intervals::default());
        for (number, text) in (0..count).zip(texts.iter().cycle().skip(1)) {
            let before = if change == Disturbance::Reload { dropped(&weir)? } else { 0 };
            let begun = Instant::now();
            let counts = self.interval(&mut far, rate, |bench| match change {
                Disturbance::Reload => bench.reload(&weir, between, text),
                Disturbance::Takeover => bench.take_over(&mut weir, between, number),
            })?;
            let took = begun.elapsed().saturating_sub(2 * BESIDE + super::UNDER_WAY);
            let after = dropped(&weir)?;
            changed.add(counts, after - before);
            let counts = self.interval(&mut far, rate, |bench| Ok(bench.interrupt.sleep(took)?))?;
            control.add(counts, dropped(&weir)? - after);
        }
        weir.stop(&mut self.run)?;
        Ok((changed, control))
    }

    /// Sends frames at a rate while `work` is done. Returns how many were sent, and how many arrived.
    fn interval(
        &mut self,
        far: &mut FarEnd<'_>,
        rate: f64,
        work: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<(u64, u64)> {
        let (over, end) = (AtomicBool::new(false), self.far.name().to_string());
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                weir_bed::Namespace::existing(&end).enter()?;
                far.carry(rate, |_| over.load(Ordering::Relaxed))
            });
            std::thread::sleep(BESIDE);
            let done = work(self);
            std::thread::sleep(BESIDE);
            over.store(true, Ordering::Relaxed);
            let (sent, arrived, _) = sender.join().expect("the sender does not panic")?;
            done.map(|()| (sent, arrived))
        })
    }

    fn reload(&mut self, weir: &Weir, between: Between, text: &str) -> Result<()> {
        weir.reload(text)?;
        wait(weir, between, &self.run, &self.interrupt)
    }

    fn take_over(&mut self, weir: &mut Weir, between: Between, number: u32) -> Result<()> {
        let name = if number.is_multiple_of(2) { "successor" } else { "weir" };
        let inside = |program: &str| self.node.command(program);
        weir.succeed(&mut self.run, name, inside, &self.interrupt)?;
        wait(weir, between, &self.run, &self.interrupt)
    }
}

/// Waits until the executor is at work again.
fn wait(weir: &Weir, between: Between, run: &Run, interrupt: &weir_lab::Interrupt) -> Result<()> {
    match between {
        Between::Kernel => weir.wait_for_kernel(COMPILED, run, interrupt),
        Between::Stack | Between::Engine => Ok(()),
    }
}

/// Returns the configuration with other back ends.
fn other(text: &str) -> String {
    text.replace("02:00:00:00:01:", "02:00:00:00:02:")
}

/// Returns the frames that weir has dropped, for any reason, since it started.
fn dropped(weir: &Weir) -> Result<u64> {
    let ledger = weir.show("ledger")?;
    let reasons = ledger["ledger"]["dropped"].as_object().context("drop reasons")?;
    Ok(reasons.values().filter_map(Value::as_u64).sum())
}
