//! `weir test FILE`: generates a packet for every path of a program that it can find, and runs them in every
//! executor.

use super::bad_input;
use crate::{import, output};
use anyhow::Result;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_cover::compare::{Comparison, buckets, compare};
use weir_cover::shadow::{WhyUnreachable, unreachable};
use weir_cover::{Exploration, Limits, RowId, explore};
use weir_packet::craft::describe;
use weir_program::{PipeId, Program};

/// Arguments of `weir test`.
#[derive(clap::Args)]
pub struct TestArguments {
    /// The configuration file.
    file: PathBuf,
    /// Fail if an entry cannot be reached.
    #[arg(long)]
    strict: bool,
    /// The largest number of packets.
    #[arg(long, default_value = "1000000", value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    packets: u64,
    /// The longest time for the search.
    #[arg(long, default_value = "60", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Do not load the program into the kernel.
    #[arg(long)]
    no_kernel: bool,
    /// Print a JSON object: `ok`, `paths`, `covered`, `unreachable[]`, `differences[]`, `seconds`.
    #[arg(long)]
    json: bool,
}

/// The most steps that are spent on one entry.
const STEPS: u32 = 20_000;

/// Runs the command.
///
/// # Errors
/// Fails if the file cannot be read, or if standard output cannot be written to.
pub fn run(arguments: &TestArguments) -> Result<ExitCode> {
    let loaded = import::load(&arguments.file, &import::ImportOptions::default())?;
    let Some(plan) = &loaded.plan else {
        output::complain(&loaded.report);
        return Ok(bad_input());
    };
    let (program, begun) = (&plan.program, Instant::now());
    let limits = Limits {
        packets: arguments.packets as usize,
        time: Duration::from_secs(arguments.seconds),
        steps: STEPS,
    };
    let found = explore(program, buckets(program), limits);
    let with_kernel = !arguments.no_kernel && rustix::process::geteuid().is_root();
    let compared = compare(program, program, &found.record.cases, with_kernel)?;
    let dead: Vec<(RowId, WhyUnreachable)> = (0..program.pipes.len() as u16)
        .map(PipeId)
        .flat_map(|id| unreachable(program, id, STEPS).into_iter().map(move |(at, why)| ((id, at), why)))
        .collect();
    output::print(summary(program, &found, &compared, &dead))?;
    let seconds = begun.elapsed().as_secs_f64();
    let paths = found.record.paths.len() + found.missed.len();
    let ok = compared.differences.is_empty() && found.missed.is_empty();
    if arguments.json {
        output::line(json!({
            "ok": ok, "paths": paths, "covered": found.record.paths.len(),
            "unreachable": dead.iter().map(|(row, why)| entry(program, *row, why)).collect::<Vec<_>>(),
            "differences": compared.differences.iter().map(|one| {
                let case = &found.record.cases[one.case];
                json!({ "packet": describe(&case.frame), "purpose": case.purpose, "executor": one.executor,
                    "wanted": one.wanted, "found": one.found })
            }).collect::<Vec<_>>(),
            "seconds": seconds,
        }))?;
    }
    Ok(if !ok || arguments.strict && !dead.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn entry(program: &Program, (pipe, at): RowId, why: &WhyUnreachable) -> Value {
    json!({ "pipe": program.pipes[pipe.index()].name, "entry": at + 1, "reason": text(why) })
}

fn text(why: &WhyUnreachable) -> String {
    match why {
        WhyUnreachable::Shadowed(by) => {
            let numbers: Vec<String> = by.iter().map(|at| (at + 1).to_string()).collect();
            format!("shadowed by {}", numbers.join(", "))
        }
        WhyUnreachable::NoSuchPacket => "no packet meets its conditions".into(),
    }
}

fn summary(
    program: &Program,
    found: &Exploration,
    compared: &Comparison,
    dead: &[(RowId, WhyUnreachable)],
) -> String {
    let record = &found.record;
    let mut text_of = format!(
        "{} packets, {} of {} paths reached, {} differences\n",
        record.cases.len(),
        record.paths.len(),
        record.paths.len() + found.missed.len(),
        compared.differences.len()
    );
    if let Some(kernel) = compared.kernel {
        text_of += &format!("kernel: {} decided, {} left to a worker\n", kernel.decided, kernel.left);
    }
    for (path, frame) in &found.missed {
        text_of += &format!("not reached: {path:?} by {}\n", describe(frame));
    }
    for ((pipe, at), why) in dead {
        text_of += &format!("{} entry {}: {}\n", program.pipes[pipe.index()].name, at + 1, text(why));
    }
    let certain = found.unhit.iter().filter(|(row, _)| !dead.iter().any(|(other, _)| other == row));
    for ((pipe, at), is_certain) in certain {
        let says = if *is_certain { "no packet that gets there hits it" } else { "not hit" };
        text_of += &format!("{} entry {}: {says}\n", program.pipes[pipe.index()].name, at + 1);
    }
    for what in &found.unexplored {
        text_of += &format!("not explored: {what}\n");
    }
    for one in &compared.differences {
        let case = &record.cases[one.case];
        text_of += &format!(
            "{}: {}\n  {}\n  wanted {}\n  found  {}\n",
            one.executor,
            case.purpose,
            describe(&case.frame),
            one.wanted,
            one.found
        );
    }
    text_of
}
