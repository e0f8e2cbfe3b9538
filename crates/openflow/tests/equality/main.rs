//! Open vSwitch does with compiled flows what the interpreter says: random programs and packets, in the
//! user-space datapath of a real switch.

mod differences;
mod switch;
mod tamed;

use differences::{MetOnTheWay, is_malformed, not_promised, of_checksums};
use std::collections::BTreeMap;
use switch::{Output, Switch};
use tamed::tamed;
use weir_oracle::Interpreter;
use weir_oracle::arbitrary::{Choices, frame, program};
use weir_packet::DropReason;
use weir_program::{PortId, Program, Verdict};

/// How often something happened, by name, for the summary of a run.
type Occurrences = BTreeMap<String, u64>;

/// Programs in a run, and packets for each.
const PROGRAMS: u64 = 100;
const PACKETS: usize = 180;

/// The names of ports; a random program has at most these.
const PORTS: [&str; 4] = ["port0", "port1", "port2", "port3"];

/// A number in the environment, for longer runs.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn open_vswitch_does_what_the_interpreter_says() {
    let Some(mut switch) = Switch::start(&PORTS) else { return };
    let (first, programs) = (number("OPENFLOW_FIRST", 0), number("OPENFLOW_PROGRAMS", PROGRAMS));
    let mut counts = Occurrences::default();
    let mut wrong = Vec::new();
    for seed in first..first + programs {
        if let Err(what) = compare(seed, &mut switch, &mut counts) {
            wrong.push(format!("seed {seed}, {what}"));
        }
    }
    eprintln!("{programs} programs: {counts:#?}");
    assert!(wrong.is_empty(), "{} programs differ:\n{}", wrong.len(), wrong.join("\n\n"));
}

fn compare(seed: u64, switch: &mut Switch, counts: &mut Occurrences) -> Result<(), String> {
    let mut random = Choices::from_seed(seed);
    let program = program(&mut random);
    let names: Vec<String> = PORTS[..program.ports.len()].iter().map(ToString::to_string).collect();
    let (program, compiled) = tamed(program, &names, &mut random);
    let text = compiled.text();
    switch.load(&text).map_err(|says| format!("{says}\n{text}"))?;
    *counts.entry("flows".into()).or_default() += compiled.flows.len() as u64;
    let mut walker = Walker::new(&program);
    for port in 0..program.ports.len() {
        let frames: Vec<Vec<u8>> = (0..PACKETS / program.ports.len()).map(|_| frame(&mut random)).collect();
        let frames: Vec<Vec<u8>> =
            frames.into_iter().filter(|bytes| (14..=1400).contains(&bytes.len())).collect();
        for (bytes, output) in frames.iter().zip(switch.frames(port, &frames)) {
            let same = one(&mut walker, &text, (port, bytes), &output, counts);
            same.map_err(|what| {
                let line = weir_packet::craft::describe(bytes);
                format!("port{port}: {line}: {what}\n{text}")
            })?;
        }
    }
    Ok(())
}

/// Compares the outcome of one frame.
fn one(
    walker: &mut Walker,
    compiled: &str,
    (port, bytes): (usize, &[u8]),
    output: &Output,
    counts: &mut Occurrences,
) -> Result<(), String> {
    let mut count = |what: String| *counts.entry(what).or_default() += 1;
    let (all, way) = walker.outcomes(port, bytes);
    if let Some(what) = not_promised(bytes, &way, compiled) {
        count(what.into());
        return Ok(());
    }
    let malformed = all.iter().find_map(|outcome| outcome.malformed);
    if let Some(reason) = malformed {
        count(format!("{reason}, {}", if output.is_empty() { "dropped there, too" } else { "sent there" }));
        return Ok(());
    }
    let picked = if all.len() > 1 { " by a group" } else { "" };
    match all.iter().find(|outcome| outcome.output == *output) {
        Some(PromisedOutcome { output, .. }) if output.is_empty() => count(format!("dropped{picked}")),
        Some(outcome) => count(format!("{}{picked}", if outcome.is_changed { "changed" } else { "sent" })),
        None => match all.iter().find_map(|outcome| known_difference(&outcome.output, output)) {
            Some(what) => count(what.into()),
            None => return Err(shown(&all, output)),
        },
    }
    Ok(())
}

/// The documented difference between outputs at the same ports.
fn known_difference(wanted: &Output, sent: &Output) -> Option<&'static str> {
    let mut what = None;
    if wanted.len() != sent.len() {
        return None;
    }
    for ((port, wanted), (other, sent)) in wanted.iter().zip(sent) {
        if port != other {
            return None;
        }
        if wanted != sent {
            what = Some(of_checksums(wanted, sent)?);
        }
    }
    what
}

/// What was expected, and what came.
fn shown(all: &[PromisedOutcome], sent: &Output) -> String {
    let frames = |output: &Output| {
        let one = |(port, bytes): &(usize, Vec<u8>)| {
            format!("\n  port{port}: {}", weir_packet::craft::describe(bytes))
        };
        output.iter().map(one).collect::<String>()
    };
    let wanted = all.iter().map(|one| format!("{}:{}", one.verdict, frames(&one.output)));
    format!("expected {}\nbut it sent{}", wanted.collect::<Vec<_>>().join("\nor "), frames(sent))
}

/// The interpreter, once for each way in which groups may pick.
struct Walker {
    ways: Vec<Interpreter>,
}

/// What should become of a frame.
struct PromisedOutcome {
    verdict: String,
    output: Output,
    is_changed: bool,
    /// Why weir drops the frame, where Open vSwitch need not.
    malformed: Option<DropReason>,
}

impl Walker {
    /// Open vSwitch has a hash of its own, so each group may pick each of its targets that has a weight: the
    /// buckets of a way are those of another, moved on by a target.
    fn new(program: &Program) -> Walker {
        let mut all: Vec<Vec<Vec<u16>>> = vec![Vec::new()];
        for group in &program.groups {
            let live = (0..).zip(group.targets.iter()).filter(|(_, target)| target.weight > 0);
            let targets: Vec<u16> = live.map(|(at, _)| at).collect();
            let buckets = |first: usize| {
                let target = |at: usize| targets.get((first + at) % targets.len().max(1));
                (0..group.size as usize).map(|at| *target(at).unwrap_or(&u16::MAX)).collect::<Vec<u16>>()
            };
            let with = |so_far: &Vec<Vec<u16>>| {
                let ways = (0..targets.len().max(1)).map(|first| [&so_far[..], &[buckets(first)]].concat());
                ways.collect::<Vec<_>>()
            };
            all = all.iter().flat_map(with).collect();
        }
        Walker { ways: all.into_iter().map(|buckets| Interpreter::new(program, buckets)).collect() }
    }

    /// What may become of a frame: several things if a group picks. Also what it meets.
    fn outcomes(&mut self, port: usize, bytes: &[u8]) -> (Vec<PromisedOutcome>, MetOnTheWay) {
        let mut outcomes: Vec<PromisedOutcome> = Vec::new();
        let mut met = MetOnTheWay::new(bytes);
        for way in &mut self.ways {
            let walk = way.walk(PortId(port as u16), bytes, 128, 0);
            met.follow(bytes, &walk);
            let all = walk.copies.iter().map(|copy| (copy.to, &copy.bytes));
            let mut output: Output = Vec::new();
            for (verdict, bytes) in all.chain([(walk.verdict, &walk.bytes)]) {
                match verdict {
                    Verdict::Transmit(port) => output.push((port.index(), bytes.clone())),
                    Verdict::Drop(_) => {}
                    Verdict::Kernel(_) | Verdict::App(_) => panic!("the compiler refuses {verdict:?}"),
                }
            }
            output.sort_by_key(|(port, _)| *port);
            let malformed = match walk.verdict {
                Verdict::Drop(reason) if is_malformed(reason) => Some(reason),
                _ => None,
            };
            if outcomes.iter().all(|one| one.output != output) {
                let (verdict, is_changed) = (format!("{:?}", walk.verdict), walk.bytes != bytes);
                outcomes.push(PromisedOutcome { verdict, output, is_changed, malformed });
            }
        }
        (outcomes, met)
    }
}
