//! The compiled program does what the interpreter says, or leaves the packet to the engine and changes
//! nothing: random programs and packets.

mod seen;
mod tamed;

use seen::{MetByOne, SeenByAll};
use tamed::tamed;
use weir_kernel::{Executor, FrameOutcome};
use weir_oracle::Interpreter;
use weir_oracle::arbitrary::{Choices, dealt_buckets, frame, program};
use weir_program::{Operation, PipeId, PortId, Program, Verdict};

/// Programs in a run; each has as many packets.
const PROGRAMS: u64 = 1100;
const PACKETS: usize = 40;

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
    let mut seen = SeenByAll::default();
    let (first, programs) = (number("KERNEL_FIRST", 0), number("KERNEL_PROGRAMS", PROGRAMS));
    for seed in first..first + programs {
        compare(seed, &mut seen);
    }
    eprintln!("{seen:#?}");
    if programs < PROGRAMS {
        return assert!(seen.decided > 0, "{seen:#?}");
    }
    assert!(seen.decided > 15_000, "{seen:#?}");
    for (names, least) in [(seen::USUAL, 20), (seen::RARE, 3)] {
        let few: Vec<&str> = names.split_whitespace().filter(|one| seen.of(one) < least).collect();
        assert!(few.is_empty(), "decided in fewer than {least} programs: {few:?} {seen:#?}");
    }
}

/// A number in the environment: another first seed or number of programs, for longer runs and slow machines.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

fn compare(seed: u64, seen: &mut SeenByAll) {
    let mut random = Choices::from_seed(seed);
    let program = tamed(program(&mut random), &mut random);
    let buckets: Vec<Vec<u16>> = program.groups.iter().map(dealt_buckets).collect();
    let mut oracle = Interpreter::new(&program, buckets.clone());
    let executor = Executor::load(&program, &buckets).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    seen.instructions = seen.instructions.max(*executor.instructions().iter().max().unwrap_or(&0));
    let mut met = MetByOne::default();
    let operations = || program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations);
    // Few packets are in a tunnel of the right kind.
    let packets =
        if operations().any(|one| matches!(one, Operation::Decap(_))) { 4 * PACKETS } else { PACKETS };
    for packet in 0..packets {
        let bytes = frame(&mut random);
        if bytes.len() < 14 || bytes.len() > 3000 {
            continue;
        }
        let port = PortId(random.below(program.ports.len()) as u16);
        let (outcome, after) = executor.run(port, &bytes).expect("a test run");
        let at = format!("seed {seed}, packet {packet}");
        match outcome {
            FrameOutcome::Left(why) => *seen.left.entry(format!("{why:?}")).or_default() += 1,
            FrameOutcome::Decided(verdict) => {
                let walk = oracle.walk(port, &bytes, 256, 0);
                assert_eq!(walk.verdict, verdict, "{at}: {:#?}", walk.trace);
                if !matches!(verdict, Verdict::Drop(_)) {
                    assert_eq!(hex(&walk.bytes), hex(&after), "{at}: {:#?}", walk.trace);
                }
                seen.decided += 1;
                met.walk(&program, &walk);
            }
        }
    }
    met.add_to(seen);
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
            let hits = executor.hits(id, &entry.key);
            assert_eq!(hits, entry.hits, "seed {seed}, pipe {at}, {:?}", entry.key);
        }
    }
    for (at, counter) in snapshot.counters.iter().enumerate() {
        assert_eq!(executor.counter(at), *counter, "seed {seed}, counter {at}");
    }
}
