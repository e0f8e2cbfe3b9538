//! `weir bench kernel`: nanoseconds per packet of programs that are compiled to eBPF, beside programs for the
//! same jobs that are written by hand in C, and the batch engine on memory ports.
//!
//! `BPF_PROG_TEST_RUN` runs an XDP program many times in the kernel. A small program in front
//! ([`weir_papers::XdpRestore`]) gives it an original frame each time, in a random order of flows; its own
//! cost is measured with a program behind it that only returns, and subtracted. All arms of a row take turns.
//! Before a row is measured, the program written by hand must do with every frame what the compiled one does.
//!
//! The stub takes a turn before each program's turn, and the order of the programs changes from round to
//! round. Both programs of a row check, look up, rewrite and count the same. Still, the processor overlaps a
//! short program with the end of the one in front of it, so a program that seems to take a few nanoseconds
//! takes longer alone: ratios to such small times say little.
//!
//! The clock is the thread's processor time, because the kernel reports only whole nanoseconds per run, and
//! because other processes on the machine do not count.

mod compiled;
mod jobs;

use crate::engine::Bench;
use crate::scenarios::Scenario;
use crate::selection::Selection;
use anyhow::{Context, Result, ensure};
use compiled::Compiled;
use jobs::{ALL, Job};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use std::fmt::Display;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use weir_kernel::{Coverage, leads_of};
use weir_lab::premise::premise;
use weir_lab::spread::ResultSpread;
use weir_papers::{FRAME, PinnedXdp, Ran, XdpArm, XdpByHand, XdpRestore};
use weir_port::Stream;

/// Packets per turn: enough to hit each of a million flows.
const PACKETS: u32 = 1 << 20;

/// Frames that the program of `--beside` is shown before it is measured.
const SAMPLE: u32 = 1000;

/// Actions of XDP programs, by number, and those that send a frame.
const ACTIONS: [&str; 5] = ["aborted", "dropped", "passed", "sent back", "redirected"];
const SENT: std::ops::RangeInclusive<u32> = 3..=4;

/// What to measure, and how thoroughly.
#[derive(clap::Args)]
pub struct KernelOptions {
    /// Only these rows: basic2, hash256, ipip, lb, `lb_flows1`, `lb_flows1k`, `lb_flows1m`, nat, acl100,
    /// lpm10k, vxlan.
    only: Vec<String>,
    /// Rounds, whose medians are reported.
    #[arg(long, default_value = "15", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Also measure this XDP program, a file in a file system of type bpf, on the frames of each row.
    #[arg(long, value_name = "FILE")]
    beside: Option<PathBuf>,
    /// End with one JSON object: `results` with `kernel_ns`, `hand_ns`, `engine_ns` and `beside_ns`, each
    /// with `_min` and `_max`. The engine's time includes its memory ports.
    #[arg(long)]
    pub json: bool,
}

/// Measures, and reports each row; returns `None`, and prints the reason, if that is impossible.
pub fn run(options: &KernelOptions, say: impl Fn(&dyn Display) -> Result<()>) -> Result<Option<Value>> {
    let only = Selection::new(&options.only, ALL.iter().map(|job| job.name))?;
    if !rustix::process::geteuid().is_root() {
        say(&"kernel: not measured, test runs of XDP programs need root")?;
        return Ok(None);
    }
    let open = |path: &PathBuf| {
        PinnedXdp::open(path).with_context(|| format!("{} is no pinned program", path.display()))
    };
    let beside = options.beside.as_ref().map(open).transpose()?;
    let mut rows = Vec::new();
    for job in ALL.iter().filter(|job| only.has(job.name)) {
        let scenario = (job.make)();
        match row(job, &scenario, beside.as_ref(), options.rounds, &say)? {
            Ok(row) => {
                say(&line(&row, scenario.what))?;
                rows.push(row);
            }
            Err(why) => say(&format!("{:<10} left out: {why}", job.name))?,
        }
    }
    Ok(Some(json!({ "results": rows, "rounds": options.rounds })))
}

/// Measures a row, or says why its program does not run in the kernel.
fn row(
    job: &Job,
    scenario: &Scenario,
    beside: Option<&PinnedXdp>,
    rounds: u16,
    say: &impl Fn(&dyn Display) -> Result<()>,
) -> Result<Result<Value, &'static str>> {
    let frames = frames(scenario, FRAME);
    let (name, tables) = job.by_hand;
    let tables = tables(scenario);
    let compiled = Compiled::load(&scenario.program, &tables.flows);
    let compiled = compiled.with_context(|| format!("row {}", job.name))?;
    if let Some(why) = compiled.left(&frames[0])? {
        return Ok(Err(why));
    }
    let by_hand = XdpByHand::load(name, &tables)?;
    let put = |array: BorrowedFd<'_>| compiled.put_into(array);
    let mut restore = XdpRestore::load(&frames)?;
    let mut arms = vec![Arm::new("kernel", XdpArm::PutBy(&put)), Arm::new("hand", by_hand.arm())];
    let expected = outputs(&mut restore, &arms[0], frames.len())?;
    equal(&mut restore, [&arms[0], &arms[1]], &expected).with_context(|| format!("row {}", job.name))?;
    if let Some(beside) = beside {
        let arm = Arm::new("beside", beside.arm());
        say(&format!("{:<10} the program beside: {}", job.name, actions(&mut restore, &arm, frames.len())?))?;
        arms.push(arm);
    }
    let engine_ns = measure(&mut restore, &mut arms, scenario, rounds)?;
    Ok(Ok(result(job.name, &arms, engine_ns)))
}

/// The beginnings of a scenario's frames of `length` bytes, in the order in which they arrive. A shorter
/// frame is padded.
fn frames(scenario: &Scenario, length: usize) -> Vec<[u8; FRAME]> {
    let stream = Stream::udp(length, scenario.flows.iter().copied());
    let frame = |at| {
        let mut bytes = stream.frame(at);
        bytes.resize(FRAME, 0);
        bytes.try_into().expect("it has this length now")
    };
    (0..scenario.flows.len()).map(frame).collect()
}

/// A program that takes turns with others.
struct Arm<'a> {
    name: &'static str,
    program: XdpArm<'a>,
    /// Nanoseconds per packet of each round, less the stub's.
    ns: Vec<f64>,
}

impl<'a> Arm<'a> {
    fn new(name: &'static str, program: XdpArm<'a>) -> Arm<'a> {
        Arm { name, program, ns: Vec::new() }
    }
}

/// The outcome of a program for each of the first frames.
fn outputs(restore: &mut XdpRestore, arm: &Arm<'_>, frames: usize) -> Result<Vec<Ran>> {
    let buffers = restore.measure(arm.program).with_context(|| {
        format!("`{}` is not an XDP program for interfaces (attach type BPF_XDP)", arm.name)
    })?;
    (0..frames as u32).map(|at| Ok(restore.run(buffers, at, 1)?)).collect()
}

/// Fails unless the second program does with every frame what the first one did. Both also run on all frames
/// in succession, as in the measurement, and the last one must come out the same.
fn equal(restore: &mut XdpRestore, arms: [&Arm<'_>; 2], expected: &[Ran]) -> Result<()> {
    let by_hand = outputs(restore, arms[1], expected.len())?;
    for (at, (ours, by_hand)) in expected.iter().zip(&by_hand).enumerate() {
        ensure!(
            ours == by_hand,
            "the programs differ on frame {at}: the compiled one makes {} of it, the one written by hand {}",
            text(ours),
            text(by_hand)
        );
    }
    for arm in arms {
        let buffers = restore.measure(arm.program)?;
        let last = restore.run(buffers, 0, expected.len() as u32)?;
        ensure!(
            Some(&last) == expected.last(),
            "`{}` makes {} of the last frame of many",
            arm.name,
            text(&last)
        );
    }
    Ok(())
}

fn text(ran: &Ran) -> String {
    let bytes: String = ran.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("`{}` {bytes}", action(ran.action))
}

fn action(number: u32) -> &'static str {
    ACTIONS.get(number as usize).copied().unwrap_or("unknown")
}

/// Counts what a program returns for a sample of the frames.
fn actions(restore: &mut XdpRestore, arm: &Arm<'_>, frames: usize) -> Result<String> {
    let sample = outputs(restore, arm, frames.min(SAMPLE as usize))?;
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    sample.iter().for_each(|ran| *counts.entry(action(ran.action)).or_default() += 1);
    let counts: Vec<String> = counts.iter().map(|(action, count)| format!("{count} {action}")).collect();
    Ok(format!("{} of {} frames", counts.join(", "), sample.len()))
}

/// Lets the arms take turns, and returns the engine's nanoseconds per packet of each round.
fn measure(
    restore: &mut XdpRestore,
    arms: &mut [Arm<'_>],
    scenario: &Scenario,
    rounds: u16,
) -> Result<Vec<f64>> {
    let mut engine = Bench::of_length(scenario, FRAME);
    let mut engine_ns = Vec::new();
    for round in 0..=rounds {
        // The first round fills caches.
        turns(restore, arms, round > 0)?;
        let ns = time(|| Ok(engine.round(scenario, PACKETS.into())))?;
        if round > 0 {
            engine_ns.push(ns);
        }
    }
    let (unsent, all) = engine.unsent();
    premise(unsent == 0, || format!("the engine has not sent {unsent} of {all} packets"))?;
    Ok(engine_ns)
}

/// Lets each arm take a turn, the first one of the next time last.
fn turns(restore: &mut XdpRestore, arms: &mut [Arm<'_>], counts: bool) -> Result<()> {
    for arm in &mut *arms {
        let buffers = restore.measure(arm.program)?;
        restore.measure(XdpArm::Stub(buffers))?;
        let stub = time(|| Ok(restore.run(buffers, 0, PACKETS)?))?;
        restore.measure(arm.program)?;
        let ns = time(|| Ok(restore.run(buffers, 0, PACKETS)?))? - stub;
        if counts {
            arm.ns.push(ns);
        }
    }
    arms.rotate_left(1);
    Ok(())
}

/// Measures programs that do the same, on the frames of the first, which have `length` bytes and at least
/// [`FRAME`]. Returns the nanoseconds per packet of each program in each round, or why they cannot be
/// measured.
pub fn alike<const N: usize>(
    programs: &[Scenario; N],
    length: usize,
    rounds: u16,
) -> Result<Result<[Vec<f64>; N], String>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Err("test runs of XDP programs need root".to_string()));
    }
    let (frames, length) = (frames(&programs[0], length), length.max(FRAME));
    let mut first = frames[0].to_vec();
    first.resize(length, 0);
    for Scenario { program, .. } in programs {
        let coverage = Coverage::of(program, &leads_of(program), &vec![true; program.ports.len()]);
        if let Some(why) = coverage.pipes.iter().flatten().next() {
            return Ok(Err(why.explanation().to_string()));
        }
    }
    let compiled = programs.iter().map(|one| Compiled::load(&one.program, &[]));
    let compiled = compiled.collect::<Result<Vec<Compiled>>>()?;
    for one in &compiled {
        if let Some(why) = one.left(&first)? {
            return Ok(Err(why.to_string()));
        }
    }
    let put = |one| move |array: BorrowedFd<'_>| Compiled::put_into(one, array);
    let puts: Vec<_> = compiled.iter().map(put).collect();
    let mut restore = XdpRestore::load(&frames)?.of_length(length);
    let mut arms: Vec<Arm<'_>> = puts.iter().map(|put| Arm::new("alike", XdpArm::PutBy(put))).collect();
    let expected = outputs(&mut restore, &arms[0], frames.len().min(SAMPLE as usize))?;
    ensure!(expected.iter().all(|ran| SENT.contains(&ran.action)), "the program does not send every frame");
    for arm in &arms[1..] {
        let other = outputs(&mut restore, arm, expected.len())?;
        ensure!(expected == other, "the programs do not do the same with every frame");
    }
    for round in 0..=rounds {
        turns(&mut restore, &mut arms, round > 0)?;
    }
    // Each of these turns has made the first arm the last.
    arms.rotate_right((usize::from(rounds) + 1) % N);
    let mut ns = arms.into_iter().map(|arm| arm.ns);
    Ok(Ok(std::array::from_fn(|_| ns.next().unwrap_or_default())))
}

/// Returns the nanoseconds of processor time per packet that a turn takes.
fn time<T>(turn: impl FnOnce() -> Result<T>) -> Result<f64> {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    };
    let start = now();
    turn()?;
    Ok((now() - start) / f64::from(PACKETS))
}

fn result(name: &str, arms: &[Arm<'_>], engine_ns: Vec<f64>) -> Value {
    let of = |name: &str| arms.iter().find(|arm| arm.name == name).map(|arm| &arm.ns);
    let mut row = json!({ "name": name });
    for (key, ns) in [
        ("kernel_ns", of("kernel")),
        ("hand_ns", of("hand")),
        ("engine_ns", Some(&engine_ns)),
        ("beside_ns", of("beside")),
    ] {
        let spread = ns.map(|ns| ResultSpread::of(ns.clone()));
        row[key] = json!(spread.map(|spread| spread.median));
        row[format!("{key}_min")] = json!(spread.map(|spread| spread.min));
        row[format!("{key}_max")] = json!(spread.map(|spread| spread.max));
    }
    let kernel = of("kernel");
    for (key, other) in [("kernel_to_hand", of("hand")), ("kernel_to_beside", of("beside"))] {
        let ratios =
            kernel.zip(other).map(|(kernel, other)| kernel.iter().zip(other).map(|(one, other)| one / other));
        let spread = ratios.map(|ratios| ResultSpread::of(ratios.collect()));
        row[key] = json!(spread.map(|spread| spread.median));
        row[format!("{key}_min")] = json!(spread.map(|spread| spread.min));
        row[format!("{key}_max")] = json!(spread.map(|spread| spread.max));
    }
    row
}

fn line(row: &Value, what: &str) -> String {
    let mut line = format!("{:<10}", row["name"].as_str().unwrap_or_default());
    for name in ["kernel", "hand", "engine", "beside"] {
        let number = |end: &str| row[format!("{name}_ns{end}")].as_f64();
        if let (Some(median), Some(min), Some(max)) = (number(""), number("_min"), number("_max")) {
            line += &format!("  {name} {median:>6.1} ns ({min:.1} - {max:.1})");
        }
    }
    for other in ["hand", "beside"] {
        let number = |end: &str| row[format!("kernel_to_{other}{end}")].as_f64();
        if let (Some(median), Some(min), Some(max)) = (number(""), number("_min"), number("_max")) {
            line += &format!("  kernel / {other} {median:.2} ({min:.2} - {max:.2})");
        }
    }
    format!("{line}  {what}")
}

/// Returns the batch engine's output for the first frames of a scenario, all of which leave through the
/// second port.
#[cfg(test)]
pub fn by_engine(scenario: &Scenario, count: usize) -> Vec<Vec<u8>> {
    use weir_engine::batch::Engine;
    use weir_packet::{Batch, Pools, TableHash};
    use weir_program::PortId;

    let program = &scenario.program;
    let mut engine = Engine::new(program, TableHash::new([3, 5])).expect("it is sound");
    crate::engine::assign_buckets(program, &mut engine);
    let (mut pools, mut batch, mut all) = (Pools::region(64), Batch::new(), Vec::new());
    for frame in frames(scenario, FRAME).iter().take(count) {
        let mut one = pools.first().take().expect("it has come back");
        one.fill(frame).expect("it fits");
        batch.push(one).expect("there is room");
        let list = batch.mask();
        let outcome = engine.process(&mut batch, list, PortId(0), 1);
        assert_eq!(outcome.transmit[1], list, "{}", scenario.name);
        let one = batch.take(0);
        all.push(one.bytes().to_vec());
        pools.give(one);
        batch.clear();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Frames per row: enough for most back ends and next hops.
    const FEW: usize = 2048;

    /// `XDP_TX` (linux/bpf.h).
    const TX: u32 = 3;

    /// The engine is the judge of both.
    #[test]
    fn programs_written_by_hand_do_what_the_engine_and_the_compiled_ones_do() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "CI runs as root");
            eprintln!("skipped: needs root");
            return;
        }
        let mut compiled_jobs = Vec::new();
        // A million flows take the engine too long here, and are the same job.
        for job in ALL.into_iter().filter(|job| job.name != "lb_flows1m") {
            let mut scenario = (job.make)();
            scenario.flows.truncate(FEW);
            let frames = frames(&scenario, FRAME);
            let (name, tables) = job.by_hand;
            let tables = tables(&scenario);
            let by_hand = XdpByHand::load(name, &tables).expect("it loads");
            let mut restore = XdpRestore::load(&frames).expect("it loads");
            let by_engine = by_engine(&scenario, FEW).into_iter();
            let mut expected: Vec<Ran> = by_engine.map(|bytes| Ran { action: TX, bytes }).collect();
            let hand = Arm::new("hand", by_hand.arm());
            let differ = |error| panic!("{}: {error:#}", job.name);
            equal(&mut restore, [&hand, &hand], &expected).unwrap_or_else(differ);
            let compiled = Compiled::load(&scenario.program, &tables.flows).expect("it loads");
            if compiled.left(&frames[0]).expect("a test run").is_none() {
                let put = |array: BorrowedFd<'_>| compiled.put_into(array);
                let arm = Arm::new("kernel", XdpArm::PutBy(&put));
                equal(&mut restore, [&hand, &arm], &expected).unwrap_or_else(differ);
                compiled_jobs.push(job.name);
            }
            // One bit of one frame is noticed.
            expected[frames.len() / 2].bytes[FRAME - 1] ^= 1;
            assert!(equal(&mut restore, [&hand, &hand], &expected).is_err(), "{}", job.name);
        }
        let all: Vec<&str> = ALL.iter().map(|job| job.name).filter(|name| *name != "lb_flows1m").collect();
        assert_eq!(compiled_jobs, all);
    }
}
