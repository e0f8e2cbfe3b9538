//! Open vSwitch does with compiled flows what the interpreter says: random programs and packets, in a real
//! switch. `OPENFLOW_DATAPATH` selects its datapath: `netdev`, the one in user space, or `system`, the
//! kernel's, which needs the module `openvswitch` and root.

mod differences;
mod switch;
mod tamed;
mod wires;

use differences::{MetOnTheWay, is_malformed, not_promised, of_checksums};
use std::collections::BTreeMap;
use switch::{Output, Switch, Wires};
use tamed::tamed;
use weir_oracle::arbitrary::{Choices, frame, program};
use weir_oracle::{Interpreter, Walk};
use weir_packet::DropReason;
use weir_program::{Forward, GroupChoice, GroupId, PipeKind, PortId, Program, Verdict};
use wires::VethPairs;

/// How often something happened, by name, for the summary of a run.
type Occurrences = BTreeMap<String, u64>;

/// Programs in a run, and packets for each.
const PROGRAMS: u64 = 100;
const PACKETS: usize = 180;

/// The shortest frame on a wire; Linux drops tagged ones of a few bytes.
const WIRE_MIN: usize = 60;

/// The names of ports; a random program has at most these.
const PORTS: [&str; 4] = ["port0", "port1", "port2", "port3"];

/// A number in the environment, for longer runs.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn open_vswitch_does_what_the_interpreter_says() {
    let datapath = std::env::var("OPENFLOW_DATAPATH").unwrap_or_else(|_| "netdev".into());
    let wires: Option<Box<dyn Wires>> = match datapath.as_str() {
        "netdev" => None,
        "system" => {
            let Some(pairs) = VethPairs::lay(&PORTS) else { return };
            Some(Box::new(pairs))
        }
        other => panic!("OPENFLOW_DATAPATH is `{other}`, but it must be `netdev` or `system`"),
    };
    let Some(mut switch) = Switch::start(&PORTS, wires) else { return };
    let (first, programs) = (number("OPENFLOW_FIRST", 0), number("OPENFLOW_PROGRAMS", PROGRAMS));
    let mut counts = Occurrences::default();
    let mut wrong = Vec::new();
    for seed in first..first + programs {
        if let Err(what) = compare(seed, &mut switch, &mut counts) {
            wrong.push(format!("seed {seed}, {what}"));
        }
    }
    eprintln!("{programs} programs, datapath {datapath}: {counts:#?}");
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
        let mut frames: Vec<Vec<u8>> =
            frames.into_iter().filter(|bytes| (14..=1400).contains(&bytes.len())).collect();
        if switch.has_wires() {
            frames.iter_mut().for_each(|bytes| bytes.resize(bytes.len().max(WIRE_MIN), 0));
            frames.retain(|bytes| !walker.is_malformed(port, bytes));
        }
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

/// The interpreter, with groups whose pick can be chosen.
struct Walker {
    interpreter: Interpreter,
    /// The targets that a group may pick.
    live: Vec<Vec<u16>>,
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
    /// Open vSwitch has a hash of its own, so each group may pick each of its targets that has a weight, and
    /// another one in each pipe that uses it: there, the fields or their values may differ. No packet is in a
    /// pipe twice, so each pipe gets groups of its own.
    fn new(program: &Program) -> Walker {
        let (mut program, shared) = (program.clone(), program.groups.len() as u16);
        program.groups = program.pipes.iter().flat_map(|_| program.groups.clone()).collect();
        for (at, pipe) in (0..).zip(&mut program.pipes) {
            let own = |GroupId(group)| GroupId(at * shared + group);
            let forward = |forward| match forward {
                Forward::Group(group) => Forward::Group(own(group)),
                other => other,
            };
            if let PipeKind::Hash { group: GroupChoice::One(group), .. } = &mut pipe.kind {
                *group = own(*group);
            }
            (pipe.forward, pipe.miss) = (forward(pipe.forward), forward(pipe.miss));
            pipe.entries.edit(|list| {
                list.iter_mut().for_each(|entry| entry.forward = entry.forward.map(forward));
            });
        }
        let live = program.groups.iter().map(|group| {
            let live = (0..).zip(group.targets.iter()).filter(|(_, target)| target.weight > 0);
            live.map(|(at, _)| at).collect::<Vec<u16>>()
        });
        let live: Vec<Vec<u16>> = live.collect();
        let buckets = (0..live.len()).map(|group| picks(&program, &live, group, 0)).collect();
        Walker { interpreter: Interpreter::new(&program, buckets), live }
    }

    /// Whether weir drops a frame because its headers are malformed. Such frames are not for the kernel's
    /// datapath. It may read more of their headers than the switch, which drops them, and then also drops
    /// well-formed frames that look the same to the kernel.
    fn is_malformed(&mut self, port: usize, bytes: &[u8]) -> bool {
        self.outcomes(port, bytes).0.iter().any(|outcome| outcome.malformed.is_some())
    }

    /// What may become of a frame: several things if a group picks. Also what it meets. All picks that the
    /// frame meets are tried, in the order of their pipes; what a pick leads to may pick again.
    fn outcomes(&mut self, port: usize, bytes: &[u8]) -> (Vec<PromisedOutcome>, MetOnTheWay) {
        let mut outcomes: Vec<PromisedOutcome> = Vec::new();
        let mut met = MetOnTheWay::new(bytes);
        let mut picked = vec![0; self.live.len()];
        loop {
            let walk = self.interpreter.walk(PortId(port as u16), bytes, 128, 0);
            met.follow(bytes, &walk);
            let output = output(&walk);
            let malformed = match walk.verdict {
                Verdict::Drop(reason) if is_malformed(reason) => Some(reason),
                _ => None,
            };
            if outcomes.iter().all(|one| one.output != output) {
                let (verdict, is_changed) = (format!("{:?}", walk.verdict), walk.bytes != bytes);
                outcomes.push(PromisedOutcome { verdict, output, is_changed, malformed });
            }
            let mut done = true;
            for group in met_groups(&walk).into_iter().rev() {
                picked[group] = (picked[group] + 1) % self.live[group].len().max(1);
                let slots = picks(self.interpreter.program(), &self.live, group, picked[group]);
                self.interpreter.set_buckets(GroupId(group as u16), slots);
                if picked[group] > 0 {
                    done = false;
                    break;
                }
            }
            if done {
                return (outcomes, met);
            }
        }
    }
}

/// Buckets of a group, in turn for its live targets from the one of this number on.
fn picks(program: &Program, live: &[Vec<u16>], group: usize, first: usize) -> Vec<u16> {
    let targets = live[group].iter().copied().cycle().skip(first);
    targets.chain(std::iter::repeat(u16::MAX)).take(program.groups[group].size as usize).collect()
}

/// The groups that have picked, in this order.
fn met_groups(walk: &Walk) -> Vec<usize> {
    let all = walk.trace.iter().flat_map(|step| {
        let forwarded = step.forward.as_ref().and_then(|forward| forward.pick.as_ref());
        step.pick.iter().chain(forwarded)
    });
    all.map(|pick| pick.group.index()).collect()
}

/// What a walk sends, in the order of ports.
fn output(walk: &Walk) -> Output {
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
    output
}
