//! State that cannot be divided between the kernel and the engine: the kernel decides no packet that would
//! change it, whatever else the program does.

use crate::may_load;
use crate::random::flow_program;
use std::collections::BTreeMap;
use weir_kernel::{Executor, FrameOutcome};
use weir_oracle::Interpreter;
use weir_oracle::arbitrary::{Choices, dealt_buckets, frame, program};
use weir_program::{Entry, HashInput, Pipe, PipeKind, PortId, Program};

const PROGRAMS: u64 = 600;
const PACKETS: usize = 40;

/// Returns the names of what a pipe has of such state.
fn undivided(pipe: &Pipe) -> Vec<&'static str> {
    let in_turn = matches!(pipe.kind, PipeKind::Hash { input: HashInput::RoundRobin, .. });
    let all = [
        (pipe.monitor.meter.is_some(), "meter"),
        (pipe.monitor.measured.is_some(), "measurement"),
        (in_turn, "turns"),
    ];
    all.into_iter().filter_map(|(has, name)| has.then_some(name)).collect()
}

/// A random program of which most compiles, with some of the state that it would have had, and pipes that
/// distribute packets in turn.
fn mixed_program(seed: u64, random: &mut Choices) -> Program {
    let original = program(&mut Choices::from_seed(seed));
    let mut now = flow_program(random);
    for (pipe, original) in now.pipes.iter_mut().zip(&original.pipes) {
        if !undivided(original).is_empty() && random.percent(40) {
            restore(pipe, original);
        }
        if let PipeKind::Hash { input: input @ HashInput::Select(_), .. } = &mut pipe.kind
            && random.percent(90)
        {
            *input = HashInput::RoundRobin;
        }
    }
    now
}

/// Gives a pipe the state that it had.
fn restore(pipe: &mut Pipe, original: &Pipe) {
    let mut entries: Vec<Entry> = pipe.entries.iter().collect();
    for (entry, original) in entries.iter_mut().zip(original.entries.iter()) {
        entry.meter = original.meter;
    }
    pipe.entries = entries.into();
    (pipe.monitor.meter, pipe.monitor.drop_red) = (original.monitor.meter, original.monitor.drop_red);
    pipe.monitor.measured = original.monitor.measured;
}

#[test]
fn the_kernel_decides_no_packet_that_changes_undivided_state() {
    if !may_load() {
        return;
    }
    // Fewer on slow machines, as in the equality test.
    let programs = std::env::var("KERNEL_PROGRAMS").ok();
    let programs = programs.map_or(PROGRAMS, |text| text.parse().expect("a number"));
    // Programs in which packets met each kind of state, while the kernel decided others.
    let mut seen = BTreeMap::<&str, u64>::new();
    for seed in 0..programs {
        let (met, decided) = run(seed);
        met.into_iter().filter(|_| decided).for_each(|name| *seen.entry(name).or_default() += 1);
    }
    eprintln!("{seen:?}");
    let enough = |name| seen.get(name).is_some_and(|programs| *programs >= 20);
    assert!(programs < PROGRAMS || ["meter", "measurement", "turns"].into_iter().all(enough), "{seen:?}");
}

/// Returns the kinds of state that packets have met, and whether the kernel has decided other packets.
fn run(seed: u64) -> (Vec<&'static str>, bool) {
    let mut random = Choices::from_seed(seed);
    let program = mixed_program(seed, &mut random);
    if program.pipes.iter().all(|pipe| undivided(pipe).is_empty()) {
        return (Vec::new(), false);
    }
    let buckets: Vec<Vec<u16>> = program.groups.iter().map(dealt_buckets).collect();
    let mut oracle = Interpreter::new(&program, buckets.clone());
    let executor = Executor::load(&program, &buckets).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let (mut all, mut decided) = (Vec::new(), false);
    for packet in 0..PACKETS {
        let (port, bytes) = (PortId(random.below(program.ports.len()) as u16), frame(&mut random));
        if bytes.len() < 14 || bytes.len() > 3000 {
            continue;
        }
        let (outcome, _) = executor.run(port, &bytes).expect("a test run");
        let walk = oracle.walk(port, &bytes, 256, packet as u64 * 1_000_000);
        let met = walk.trace.iter().flat_map(|step| undivided(&program.pipes[step.pipe.index()]));
        let met: Vec<_> = met.collect();
        if let FrameOutcome::Decided(verdict) = outcome {
            assert!(met.is_empty(), "seed {seed}, packet {packet}: {verdict:?}, {met:?}: {:#?}", walk.trace);
            decided = true;
        }
        all.extend(met);
    }
    all.sort_unstable();
    all.dedup();
    (all, decided)
}
