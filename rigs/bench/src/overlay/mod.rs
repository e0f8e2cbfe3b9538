//! `weir bench overlay`: what the cache of `overlay` apps gains, compared with the same network without it,
//! with a cache as described by ONCache's authors, and with the nodes' own addresses.
//!
//! All arms are measured in one run, with turns of a fraction of a second in random order, so that
//! disturbances affect all arms equally. Each arm's network is that of `weir lab overlay`.

mod bed;
mod load;
mod miss;
mod oncache;
mod paper;
mod passes;
mod row;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::time::Duration;
use weir_app::kind::BadInput;
use weir_bed::Run;
use weir_bed::namespace;
use weir_lab::Interrupt;
use weir_lab::premise::carried;
use weir_lab::screen::Screen;
use weir_packet::random::Random;

use bed::{ARMS, OverlayBed, Processors, WEIR};
use miss::Miss;
use row::{OverlayRow, SOFTIRQ, Sample, TESTS, Test, softirq_ns, value};

pub use load::{LoadEnd, run as run_end};

/// Programs that the bench runs.
const NEEDED: [&str; 6] = ["ip", "bridge", "nft", "taskset", "unshare", "mount"];

/// The options of `weir bench overlay`.
#[derive(clap::Args)]
pub struct OverlayOptions {
    /// Samples per test and arm.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Duration of a sample in milliseconds.
    #[arg(long, default_value_t = 250, value_parser = clap::value_parser!(u32).range(20..=10_000))]
    sample_ms: u32,
    /// Three rounds of short samples, to see whether it works.
    #[arg(long)]
    quick: bool,
    /// Only tests whose names start with this.
    #[arg(long)]
    test: Option<String>,
    /// Pin servers to the other processor instead of the one of the clients.
    #[arg(long)]
    apart: bool,
    /// Determines the order of turns.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// End with one JSON object.
    #[arg(long)]
    json: bool,
}

/// Measures, and prints the table.
pub fn run(options: &OverlayOptions) -> Result<()> {
    check(options.test.as_deref())?;
    if !rustix::process::geteuid().is_root() {
        bail!("network namespaces need root: sudo weir bench overlay");
    }
    let missing = namespace::missing(&NEEDED);
    if !missing.is_empty() {
        bail!("missing: {}; `./setup` installs what labs need", missing.join(", "));
    }
    let interrupt = Interrupt::on_signals()?;
    let mut screen = Screen::new(options.json);
    let mut run = Run::begin(false)?;
    let mut bed = OverlayBed::start(&mut run, processors(options.apart)?, &interrupt)?;
    let passes = passes(&mut bed, &mut run, &mut screen)?;
    // Measure this before the flow table and connection tracking are full.
    let miss = Miss::measure(&mut bed, &mut run, plan(options), &interrupt)?;
    screen.say(&miss.text());
    let rows = rows(options, &mut bed, &run, &mut screen, &interrupt)?;
    paper::text(&rows).iter().for_each(|line| screen.say(line));
    screen.say(&shown(&bed)?);
    if options.json {
        let rows: Vec<Value> = rows.iter().map(OverlayRow::json).collect();
        weir_lab::screen::line(json!({
            "rows": rows, "device_passes": passes, "miss_cost_ratio": miss.ratio(), "miss": miss.json(),
            "paper": paper::sources(),
        }))?;
    }
    Ok(())
}

/// Rejects a name with which no test begins: nothing would be measured.
fn check(wanted: Option<&str>) -> Result<()> {
    let Some(wanted) = wanted else { return Ok(()) };
    let mut names: Vec<&str> = TESTS.iter().map(|test| test.name).collect();
    if names.iter().any(|name| name.starts_with(wanted)) {
        return Ok(());
    }
    names.dedup();
    Err(BadInput(format!("no test begins with `{wanted}`; the tests are {}", names.join(", "))).into())
}

/// Returns the number of rounds, and the milliseconds of a sample.
fn plan(options: &OverlayOptions) -> (usize, u32) {
    if options.quick { (3, 60) } else { (options.rounds as usize, options.sample_ms) }
}

/// Assigns processors: the first carries the load, the last one everything else.
fn processors(apart: bool) -> Result<Processors> {
    let set = rustix::thread::sched_getaffinity(None)?;
    let mut all = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let Some(first) = all.next() else { bail!("there is no processor to run on") };
    let last = all.next_back().unwrap_or(first);
    Ok(Processors { ask: first, answer: if apart { last } else { first }, other: last })
}

/// Counts the interfaces that a packet traverses; returns null, and prints the reason, if the kernel cannot
/// trace them.
fn passes(bed: &mut OverlayBed, run: &mut Run, screen: &mut Screen) -> Result<Value> {
    let mut count = |arm: usize, one_way: bool| match passes::count(run, &mut bed.arms[arm], one_way) {
        Ok(count) => Some(count),
        Err(error) => {
            screen.say(&format!("passes are not counted: {error:#}"));
            None
        }
    };
    let counts: Vec<_> = (0..ARMS.len()).map(|arm| count(arm, false)).collect();
    let missed = count(WEIR, true);
    let text = |count: Option<f64>| count.map_or_else(|| "-".to_owned(), |count| format!("{count:.2}"));
    let arms: Vec<String> =
        ARMS.iter().zip(&counts).map(|(arm, count)| format!("{arm} {}", text(*count))).collect();
    screen.say(&format!(
        "interfaces that a packet passes in pods and nodes: {}, weir's misses {}",
        arms.join(", "),
        text(missed)
    ));
    let mut all: Value =
        ARMS.into_iter().zip(counts).map(|(arm, count)| (arm.to_owned(), json!(count))).collect();
    all["weir_miss"] = json!(missed);
    Ok(all)
}

/// Measures all requested tests.
fn rows(
    options: &OverlayOptions,
    bed: &mut OverlayBed,
    run: &Run,
    screen: &mut Screen,
    interrupt: &Interrupt,
) -> Result<Vec<OverlayRow>> {
    let (rounds, sample_ms) = plan(options);
    let wanted = |test: &Test| options.test.as_ref().is_none_or(|name| test.name.starts_with(name.as_str()));
    let mut random = Random::new(options.seed);
    let mut rows = Vec::new();
    screen.say(&OverlayRow::heading());
    for test in TESTS.into_iter().filter(wanted) {
        let (mut samples, mut softirqs): (Vec<Sample>, Vec<Sample>) = (Vec::new(), Vec::new());
        for arm in &mut bed.arms {
            arm.order(run, &format!("{} {} {}", test.order, test.flows.min(32), sample_ms * test.warm))?;
        }
        for _ in 0..rounds {
            let (mut sample, mut softirq) = ([0.0; ARMS.len()], [0.0; ARMS.len()]);
            for arm in order(&mut random) {
                let text = format!("{} {} {}", test.order, test.flows.min(32), sample_ms * test.longer);
                let answer = bed.arms[arm].order(run, &text)?;
                (sample[arm], softirq[arm]) = (value(&test, &answer), softirq_ns(&answer));
                carried(&format!("{} in {}", ARMS[arm], test.name), sample[arm])?;
                interrupt.sleep(Duration::ZERO)?;
            }
            samples.push(sample);
            softirqs.push(softirq);
        }
        let mut new = vec![OverlayRow::of(test, &samples)];
        if test.name == "udp_stream" {
            new.push(OverlayRow::of(SOFTIRQ, &softirqs));
        }
        new.iter().for_each(|row| screen.say(&row.text()));
        rows.extend(new);
    }
    Ok(rows)
}

/// Returns the arms in random order.
fn order(random: &mut Random) -> [usize; ARMS.len()] {
    let mut order = std::array::from_fn(|at| at);
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// Returns a line with the number of weir's frames that took the fast path. Fails if there were none, since
/// the cache was not measured then.
fn shown(bed: &OverlayBed) -> Result<String> {
    let mut words = Vec::new();
    for at in 0..2 {
        let frames = &bed.show(at)?["frames"];
        for direction in ["sent", "received"] {
            let of = |name: &str| frames[direction][name].as_f64().unwrap_or_default();
            carried(&format!("the fast path of n{} ({direction})", at + 1), of("fast"))?;
            words.push(format!("n{} {direction} {:.1} %", at + 1, 100.0 * of("fast") / of("seen")));
        }
    }
    Ok(format!("weir's frames that took the fast path: {}", words.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_does_not_exist_is_refused_and_those_that_do_are_listed() {
        check(None).expect("all of them");
        check(Some("udp_")).expect("some of them");
        let error = check(Some("sctp")).expect_err("it would measure nothing").to_string();
        assert_eq!(
            error,
            "no test begins with `sctp`; the tests are tcp_rr, udp_rr, tcp_stream, udp_stream, udp_one_way, \
             churn"
        );
    }
}
