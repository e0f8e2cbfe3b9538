//! The batch engine against the reference interpreter: random programs, packets, changes and time, with
//! batches cut to 1, 3 and 64. A run that fails to exercise something it should have exercised fails too.
//!
//! `WEIR_SEED=n` runs one case and prints what it does; `WEIR_CASES=n` runs that many cases.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use weir_engine::lockstep::{Act, Arriving, Lockstep};
use weir_oracle::arbitrary::{Choices, Coverage, program};
use weir_program::{Entry, Forward, Monitor, Pipe, Program};

/// Number of cases in a default run: about ten seconds, and enough to exercise everything.
const CASES: u64 = 4000;
/// Number of actions in a case.
const ACTS: usize = 80;
/// Maximum number of attempts to reduce a failure.
const REDUCTIONS: usize = 4_000;

/// Why a case failed, with all actions up to that point.
struct Failure {
    what: String,
    program: Program,
    acts: Vec<Act>,
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

/// Runs a case from its seed.
fn run(seed: u64, coverage: &mut Coverage) -> Result<Program, Box<Failure>> {
    let mut random = Choices::from_seed(seed);
    let program = program(&mut random);
    let mut acts = Vec::new();
    let result = caught(|| {
        let mut lockstep = Lockstep::new(&program, 1)?;
        for _ in 0..ACTS {
            acts.push(lockstep.choose(&mut random));
            lockstep.act(&acts[acts.len() - 1], coverage)?;
        }
        Ok(())
    });
    match result {
        Ok(()) => Ok(program),
        Err(what) => Err(Box::new(Failure { what, program, acts })),
    }
}

/// Repeats the same actions; returns what fails.
fn replay(program: &Program, acts: &[Act]) -> Option<String> {
    let again = || {
        let mut lockstep = Lockstep::new(program, 1)?;
        acts.iter().try_for_each(|act| lockstep.act(act, &mut Coverage::new()))
    };
    caught(again).err()
}

/// Turns a panic into a failure like any other.
fn caught(run: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
    })
}

/// Leaves out everything that the failure does not need.
fn reduce(mut failure: Failure) -> Failure {
    let mut left = REDUCTIONS;
    while left > 0 {
        let fails = smaller(&failure.program, &failure.acts).take(left).find_map(|(program, acts)| {
            left -= 1;
            replay(&program, &acts).map(|what| Failure { what, program, acts })
        });
        let Some(less) = fails else { break };
        failure = less;
    }
    failure
}

/// Everything that is one step smaller, larger steps first.
fn smaller(program: &Program, acts: &[Act]) -> impl Iterator<Item = (Program, Vec<Act>)> {
    let all = acts.len();
    let sizes = [all / 2, all / 4, 8, 1].into_iter().filter(|size| *size > 0);
    let cuts = sizes.flat_map(move |size| {
        (0..(all + 1).saturating_sub(size)).rev().step_by(size).map(move |at| (at, size))
    });
    let fewer = cuts.map(|(at, size)| {
        let mut acts = acts.to_vec();
        acts.drain(at..at + size);
        (program.clone(), acts)
    });
    let thinner = acts.iter().enumerate().flat_map(move |(at, act)| {
        let frames = if let Act::Frames { frames, .. } = act { frames.len() } else { 0 };
        (0..frames).filter(move |_| frames > 1).map(move |frame| {
            let mut acts = acts.to_vec();
            if let Act::Frames { frames, .. } = &mut acts[at] {
                frames.remove(frame);
            }
            (program.clone(), acts)
        })
    });
    let simpler = simpler(program).into_iter().map(|program| (program, acts.to_vec()));
    fewer.chain(thinner).chain(simpler)
}

/// Programs with one item removed.
fn simpler(program: &Program) -> Vec<Program> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Program)| {
        let mut less = program.clone();
        change(&mut less);
        if less != *program {
            all.push(less);
        }
    };
    for (at, pipe) in program.pipes.iter().enumerate() {
        with(&|program| program.pipes[at] = Pipe::basic(&pipe.name).origin(pipe.origin));
        for entry in 0..pipe.entries.len() {
            with(&|program| drop(program.pipes[at].entries.edit(|all| all.remove(entry))));
        }
        for template in 0..pipe.templates.len() {
            with(&|program| {
                program.pipes[at].templates[template].operations.clear();
                let of = |entry: &&mut Entry| usize::from(entry.template) == template;
                program.pipes[at].entries.edit(|all| {
                    all.iter_mut().filter(of).for_each(|entry| entry.values.clear());
                });
            });
        }
        with(&|program| {
            program.pipes[at].monitor = Monitor::default();
            program.pipes[at]
                .entries
                .edit(|all| all.iter_mut().for_each(|entry| (entry.counter, entry.meter) = (None, None)));
        });
        with(&|program| program.pipes[at].rehash = false);
        with(&|program| {
            program.pipes[at].forward = Forward::InputPort;
            program.pipes[at].entries.edit(|all| all.iter_mut().for_each(|entry| entry.forward = None));
        });
        with(&|program| program.pipes[at].miss = Forward::Drop);
    }
    all
}

fn report(seed: u64, failure: &Failure) -> String {
    let mut text = format!("{:?}\n", failure.program);
    for act in &failure.acts {
        let _ = match act {
            Act::Frames { input, frames } => {
                frames.iter().try_for_each(|Arriving { bytes, headroom, hash, ports }| {
                    let frame = weir_packet::craft::describe(bytes);
                    writeln!(
                        text,
                        "frame at port {} with headroom {headroom}, hash {hash:#x}, ports {ports:?}: {frame}",
                        input.0
                    )
                })
            }
            Act::Change(change) => writeln!(text, "{change:?}"),
            Act::Time(ns) => writeln!(text, "{ns} ns later"),
            Act::Age => writeln!(text, "age"),
        };
    }
    format!("{text}{}\nWEIR_SEED={seed} cargo test -p weir-engine --test differential", failure.what)
}

#[test]
fn both_executors_agree() {
    let seeds = match number("WEIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("WEIR_CASES").unwrap_or(CASES),
    };
    let whole = seeds.end - seeds.start >= CASES;
    let (mut coverage, mut pipes) = (Coverage::new(), 0);
    for seed in seeds {
        match run(seed, &mut coverage) {
            Ok(program) => pipes = pipes.max(program.pipes.len()),
            Err(failure) => {
                // Panics along the way are numerous and of no interest.
                std::panic::set_hook(Box::new(|_| ()));
                let failure = reduce(*failure);
                let _ = std::panic::take_hook();
                panic!("{}", report(seed, &failure));
            }
        }
    }
    if whole {
        assert_eq!(coverage.missing(), Vec::<String>::new(), "met: {:#?}", coverage.met());
        assert!(pipes >= 4, "no program had four pipes");
    }
}
