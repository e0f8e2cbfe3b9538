//! `weir test FILE`: generates a packet for every path of a program that it can find, and runs them in every
//! executor.

mod against;
mod expect;
mod pcapng;
mod results;

use super::{BadInput, bad_input};
use crate::config::{Plan, Report};
use crate::{import, output, replay};
use anyhow::Result;
pub use results::{NO_SUCH_PACKET, every_packet_hits};
use results::{TestResults, path_text};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use weir_cover::compare::{buckets, compare, walks};
use weir_cover::shadow::unreachable;
use weir_cover::{Case, Limits, Walk, explore};
use weir_packet::craft::describe;
use weir_program::{PipeId, PortId, Program, Verdict};

/// Arguments of `weir test`.
#[derive(clap::Args)]
pub struct TestArguments {
    /// The configuration file.
    file: PathBuf,
    /// Instead, list the packets that go elsewhere than in this configuration.
    #[arg(long, value_name = "OLD", conflicts_with_all = ["strict", "pcap", "expect", "no_kernel"])]
    against: Option<PathBuf>,
    /// Compare where packets go with the file `verdicts.txt` in this directory, or write it if there is none.
    #[arg(long, value_name = "DIR")]
    expect: Option<PathBuf>,
    /// Replace the file in the directory of `--expect`.
    #[arg(long, requires = "expect")]
    accept: bool,
    /// Write the packets to a pcapng file, with the verdict and purpose of each as its comment.
    #[arg(long, value_name = "OUT")]
    pcap: Option<PathBuf>,
    /// Fail if an entry is unreachable.
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
    #[command(flatten)]
    node: import::NodeOption,
}

/// The maximum number of steps that are spent on one entry.
const STEPS: u32 = 20_000;

/// The maximum number of items of a list that are printed as text.
const SHOWN: usize = 50;

impl TestArguments {
    fn limits(&self) -> Limits {
        Limits { packets: self.packets as usize, time: Duration::from_secs(self.seconds), steps: STEPS }
    }
}

/// Runs the command.
///
/// # Errors
/// Fails if a file cannot be read or written, or if standard output cannot be written to.
pub fn run(arguments: &TestArguments) -> Result<ExitCode> {
    let begun = Instant::now();
    let Some((plan, report)) = load(&arguments.file, &arguments.node)? else { return Ok(bad_input()) };
    if let Some(old) = &arguments.against {
        let Some((old, _)) = load(old, &arguments.node)? else { return Ok(bad_input()) };
        return against::run(arguments, (&old.program, &plan.program), begun);
    }
    let program = &plan.program;
    let found = explore(program, buckets(program)?, arguments.limits());
    let cases = &found.record.cases;
    let with_kernel = !arguments.no_kernel && rustix::process::geteuid().is_root();
    let compared = compare(program, program, cases, with_kernel)?;
    let pipes = (0..program.pipes.len() as u16).map(PipeId);
    let dead = pipes
        .flat_map(|id| unreachable(program, id, STEPS).into_iter().map(move |(at, why)| ((id, at), why)))
        .collect();
    let results = TestResults::new((program, &report), &found, &compared, dead);
    output::print(results.text())?;
    if let Some(file) = &arguments.pcap {
        pcapng::write(file, program, cases, |at| goes(program, &compared.walks[at]))?;
    }
    let changed = match &arguments.expect {
        Some(folder) => expect::run(folder, arguments.accept, (program, &found, &compared))?,
        None => Vec::new(),
    };
    let ok = results.ok() && changed.is_empty();
    if arguments.json {
        let mut json = results.json(ok, begun.elapsed());
        json["changed"] = changed.into();
        output::line(json)?;
    }
    Ok(if !ok || arguments.strict && results.has_dead() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads a configuration. Returns `None` if it is not valid, after printing why.
fn load(file: &Path, node: &import::NodeOption) -> Result<Option<(Plan, Report)>> {
    let loaded = import::load(file, node, &import::ImportOptions::default())
        .map_err(|error| BadInput(format!("{error:#}")))?;
    let Some(plan) = loaded.plan else {
        output::complain(&loaded.report);
        return Ok(None);
    };
    Ok(Some((replay::imagine(plan), loaded.report)))
}

/// Returns where a packet and its copies go, in words.
fn goes(program: &Program, walk: &Walk) -> String {
    let copies = walk.copies.iter().map(|copy| format!("{} and ", departs(program, copy.to, &copy.bytes)));
    copies.collect::<String>() + &departs(program, walk.verdict, &walk.bytes)
}

/// Returns where a packet goes, and with which bytes.
fn departs(program: &Program, verdict: Verdict, bytes: &[u8]) -> String {
    let to = verdict.describe(program);
    match verdict {
        Verdict::Drop(_) => to,
        Verdict::Transmit(_) | Verdict::Kernel(_) | Verdict::App(_) => format!("{to}: {}", describe(bytes)),
    }
}

/// Walks packets that arrive one after the other at the ports with these names. Returns what `describe` says
/// about each walk; `None` if there is no such port.
fn outcomes<'a, T>(
    program: &Program,
    packets: impl Iterator<Item = (&'a str, &'a [u8])>,
    describe: impl Fn(PortId, &Walk) -> T,
) -> Result<Vec<Option<T>>> {
    let inputs: Vec<(Option<PortId>, &[u8])> =
        packets.map(|(port, frame)| (program.port_named(port), frame)).collect();
    let case = |(input, frame): &(Option<PortId>, &[u8])| {
        Some(Case { input: (*input)?, frame: frame.to_vec(), purpose: String::new() })
    };
    let cases: Vec<Case> = inputs.iter().filter_map(case).collect();
    let walks = walks(program, &cases)?;
    let mut walks = walks.iter();
    let outcome = |(input, _): &(Option<PortId>, &[u8])| Some(describe((*input)?, walks.next()?));
    Ok(inputs.iter().map(outcome).collect())
}

/// The outcome of a packet that arrives at a port that the program does not have.
const NO_PORT: &str = "there is no such port";

/// Describes a packet that does not go where it went before.
fn change(port: &str, packet: &str, (old, new): (&str, &str)) -> Value {
    json!({ "port": port, "packet": packet, "old": old, "new": new })
}

/// Returns the lines about a packet that does not go where it went before.
fn change_text(one: &Value) -> String {
    let word = |key: &str| one[key].as_str().unwrap_or_default();
    format!(
        "  {} {}\n    before  {}\n    now     {}\n",
        word("port"),
        word("packet"),
        word("old"),
        word("new")
    )
}

/// Says how many items of a list are not shown.
fn and_more(all: usize) -> String {
    match all.saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("  and {more} more\n"),
    }
}
