//! The compiled program does what the interpreter says, or leaves the packet to the engine and changes
//! nothing: random programs and packets.

use weir_kernel::{Executor, Outcome};
use weir_oracle::Interpreter;
use weir_oracle::arbitrary::{Choices, dealt_buckets, frame, program};
use weir_program::{Fill, PipeId, PipeKind, PortId, Program, Verdict};

/// Programs in a run; each has as many packets.
const PROGRAMS: u64 = 1000;
const PACKETS: usize = 60;

/// What the run has seen.
#[derive(Default, Debug)]
struct Seen {
    decided: u64,
    left: std::collections::BTreeMap<String, u64>,
    verdicts: std::collections::BTreeMap<String, u64>,
    instructions: usize,
}

/// Whether test runs work here: they take a privilege.
fn may_load() -> bool {
    let loads = Executor::load(&Program::default(), &[]).is_ok();
    assert!(loads || std::env::var_os("CI").is_none(), "CI runs as root, and eBPF programs load there");
    loads
}

#[test]
fn the_kernel_does_what_the_interpreter_says() {
    if !may_load() {
        return;
    }
    let mut seen = Seen::default();
    for seed in 0..PROGRAMS {
        compare(seed, &mut seen);
    }
    eprintln!("{seen:#?}");
    assert!(seen.decided > 2_000, "{seen:?}");
}

/// Removes what is never compiled from most programs, so that packets get further.
fn tamed(mut program: Program, random: &mut Choices) -> Program {
    if random.percent(10) {
        return program;
    }
    for group in &mut program.groups {
        (group.fill, group.affinity, group.no_target) = (Fill::Maglev, None, None);
    }
    for pipe in &mut program.pipes {
        (pipe.rehash, pipe.too_long) = (false, None);
        (pipe.monitor.meter, pipe.monitor.drop_red, pipe.monitor.measured) = (None, false, None);
    }
    let compiled = |at: &usize| {
        matches!(program.pipes[*at].kind, PipeKind::Basic | PipeKind::Lpm | PipeKind::Hash { .. })
    };
    let roots: Vec<usize> = (0..program.pipes.len()).filter(compiled).collect();
    for port in &mut program.ports {
        if let (Some(root), false) = (&mut port.root, roots.is_empty()) {
            *root = PipeId(roots[random.below(roots.len())] as u16);
        }
    }
    program
}

fn compare(seed: u64, seen: &mut Seen) {
    let mut random = Choices::from_seed(seed);
    let program = tamed(program(&mut random), &mut random);
    let buckets: Vec<Vec<u16>> = program.groups.iter().map(dealt_buckets).collect();
    let mut oracle = Interpreter::new(&program, buckets.clone());
    let executor = Executor::load(&program, &buckets).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    seen.instructions = seen.instructions.max(*executor.instructions().iter().max().unwrap_or(&0));
    for packet in 0..PACKETS {
        let bytes = frame(&mut random);
        if bytes.len() < 14 || bytes.len() > 3000 {
            continue;
        }
        let port = PortId(random.below(program.ports.len()) as u16);
        let (outcome, after) = executor.run(port, &bytes).expect("a test run");
        let at = format!("seed {seed}, packet {packet}");
        match outcome {
            Outcome::Left(why) => *seen.left.entry(format!("{why:?}")).or_default() += 1,
            Outcome::Decided(verdict) => {
                let walk = oracle.walk(port, &bytes, 256, 0);
                assert_eq!(walk.verdict, verdict, "{at}: {:#?}", walk.trace);
                if !matches!(verdict, Verdict::Drop(_)) {
                    assert_eq!(hex(&walk.bytes), hex(&after), "{at}: {:#?}", walk.trace);
                }
                seen.decided += 1;
                *seen.verdicts.entry(format!("{verdict:?}")).or_default() += 1;
            }
        }
    }
    counts_are_equal(seed, &oracle, &executor);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The packets that the kernel decided are all that the interpreter has walked.
fn counts_are_equal(seed: u64, oracle: &Interpreter, executor: &Executor) {
    let snapshot = oracle.snapshot();
    for (at, pipe) in snapshot.pipes.iter().enumerate() {
        let id = PipeId(at as u16);
        assert_eq!(executor.misses(id), pipe.misses, "seed {seed}, misses of pipe {at}");
        for entry in &pipe.entries {
            assert_eq!(executor.hits(id, &entry.key), entry.hits, "seed {seed}, pipe {at}, {:?}", entry.key);
        }
    }
    for (at, counter) in snapshot.counters.iter().enumerate() {
        assert_eq!(executor.counter(at), *counter, "seed {seed}, counter {at}");
    }
}
