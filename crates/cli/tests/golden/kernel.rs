//! The walks in the kernel, which handles a frame as the interpreter does, or leaves it to the engine as it
//! arrived. `tests/golden/kernel.txt` lists for each walk how many frames the kernel handles, and why it
//! leaves the others; `BLESS=1` rewrites it. Skipped without root, except in CI.

use crate::{Walk, walks};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::Path;
use weir_engine::batch::Engine;
use weir_kernel::{Executor, FrameOutcome, Why};
use weir_oracle::{Arrival, Datagrams, Interpreter};
use weir_packet::{HEADROOM, TableHash};
use weir_program::change::EntryKey;
use weir_program::replica::Swept;
use weir_program::snapshot::Count;
use weir_program::{PipeId, PortId, Program, Verdict};

/// The shortest and the longest frame that a test run takes.
const RUNS: std::ops::RangeInclusive<usize> = 14..=3_500;

/// An interpreter with the fragments that wait in front of it.
struct Fed {
    interpreter: Interpreter,
    datagrams: Datagrams,
}

/// What the program in the kernel has counted.
#[derive(Default)]
struct KernelCounts {
    entries: HashMap<(PipeId, EntryKey), Count>,
    misses: HashMap<PipeId, Count>,
    counters: HashMap<usize, Count>,
}

impl Fed {
    fn new(program: &Program, buckets: Vec<Vec<u16>>) -> Fed {
        Fed { interpreter: Interpreter::new(program, buckets), datagrams: Datagrams::default() }
    }

    /// Walks a frame, and those that have waited for it. Returns where they end, with their bytes unless they
    /// are dropped.
    fn frame(&mut self, now_ns: u64, input: PortId, bytes: &[u8]) -> Vec<(Verdict, Vec<u8>)> {
        self.interpreter.age(now_ns);
        self.datagrams.expire(now_ns);
        let all = match self.interpreter.program().follows() {
            true => self.datagrams.receive(bytes, now_ns),
            false => vec![(bytes.to_vec(), None)],
        };
        let mut walk = |(bytes, ports): (Vec<u8>, Option<[u16; 2]>)| {
            let arrival = Arrival { input, bytes: &bytes, headroom: usize::from(HEADROOM), hash: 0, ports };
            let walk = self.interpreter.walk_arrival(&arrival, now_ns);
            (walk.verdict, end(walk.verdict, walk.bytes))
        };
        all.into_iter().map(&mut walk).collect()
    }
}

/// The bytes of a packet at its end: those of dropped packets do not matter.
fn end(verdict: Verdict, bytes: Vec<u8>) -> Vec<u8> {
    if matches!(verdict, Verdict::Drop(_)) { Vec::new() } else { bytes }
}

/// Runs a walk and returns its line of the list.
fn run(walk: &Walk) -> String {
    let plan = walk.plan();
    let (program, name) = (&plan.program, walk.name());
    let buckets = Engine::new(program, TableHash::new([1, 2])).unwrap().buckets();
    let mut executor = Executor::load(program, &buckets).unwrap_or_else(|error| panic!("{name}: {error}"));
    // One sees every frame. The other sees those that are left, like an engine behind the kernel.
    let (mut whole, mut behind) = (Fed::new(program, buckets.clone()), Fed::new(program, buckets));
    let frames = walk.frames(program);
    let first_ns = frames.first().map_or(0, |frame| frame.0);
    let (mut decided, mut left) = (0, BTreeMap::<String, usize>::new());
    for (number, (time_ns, input, bytes)) in frames.iter().enumerate() {
        let now_ns = time_ns - first_ns;
        let wanted = whole.frame(now_ns, *input, bytes);
        let found = match RUNS.contains(&bytes.len()).then(|| executor.run(*input, bytes).unwrap()) {
            Some((FrameOutcome::Decided(verdict), after)) => {
                decided += 1;
                vec![(verdict, end(verdict, after))]
            }
            Some((FrameOutcome::Left(why), after)) => {
                assert_eq!(after, *bytes, "{name}, frame {number}: left to the engine, but changed");
                *left.entry(format!("{why:?}")).or_default() += 1;
                behind.frame(now_ns, *input, bytes)
            }
            None => {
                *left.entry(format!("{:?}", Why::Length)).or_default() += 1;
                behind.frame(now_ns, *input, bytes)
            }
        };
        assert_eq!(found, wanted, "{name}, frame {number}");
    }
    let last_ns = frames.last().map_or(0, |frame| frame.0 - first_ns);
    for one in [&mut whole, &mut behind] {
        one.interpreter.age(last_ns);
    }
    compare_counts(&name, &mut executor, &whole.interpreter, &behind.interpreter);
    let mut line = format!("{name}: {decided} of {}", frames.len());
    for (why, count) in left {
        let _ = write!(line, "; {count} {why}");
    }
    line
}

/// What the kernel has counted and what the interpreter behind it has add up to all.
fn compare_counts(name: &str, executor: &mut Executor, whole: &Interpreter, behind: &Interpreter) {
    let mut counts = KernelCounts::default();
    executor.replica().sweep(true, &mut |swept| match swept {
        Swept::Entry(pipe, key, count) => drop(counts.entries.insert((pipe, key.clone()), count)),
        Swept::Misses(pipe, count) => drop(counts.misses.insert(pipe, count)),
        Swept::Counter(counter, count) => drop(counts.counters.insert(counter.index(), count)),
        Swept::Decided(..) | Swept::Sent(..) | Swept::Unsent(..) | Swept::Dropped(..) => {}
    });
    let sum = |one: Option<&Count>, mut other: Count| {
        other.add(one.copied().unwrap_or_default());
        other
    };
    let (wanted, rest) = (whole.snapshot(), behind.snapshot());
    for (pipe, (wanted, rest)) in (0..).map(PipeId).zip(wanted.pipes.iter().zip(&rest.pipes)) {
        assert_eq!(sum(counts.misses.get(&pipe), rest.misses), wanted.misses, "{name}, {pipe:?}");
        assert_eq!(rest.flows, wanted.flows, "{name}, {pipe:?}");
        let hits = |key: &EntryKey| rest.entries.iter().find(|one| one.key == *key).map(|one| one.hits);
        for entry in &wanted.entries {
            let rest = hits(&entry.key).unwrap_or_default();
            let found = sum(counts.entries.get(&(pipe, entry.key.clone())), rest);
            assert_eq!(found, entry.hits, "{name}, {pipe:?}, {:?}", entry.key);
        }
    }
    for (at, (wanted, rest)) in wanted.counters.iter().zip(&rest.counters).enumerate() {
        assert_eq!(sum(counts.counters.get(&at), *rest), *wanted, "{name}, counter {at}");
    }
}

#[test]
fn walks_end_in_the_kernel_as_in_the_interpreter() {
    if let Err(error) = Executor::load(&Program::default(), &[]) {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root: {error}");
        eprintln!("skipped: {error}");
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/kernel.txt");
    let found: String = walks().iter().flat_map(|walk| [run(walk), "\n".to_string()]).collect();
    // Bounded: a file of this repository.
    let wanted = std::fs::read_to_string(&path).unwrap_or_default();
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        return std::fs::write(&path, found).unwrap();
    }
    assert_eq!(found.lines().count(), wanted.lines().count(), "BLESS=1 writes the list of walks again");
    for (found, wanted) in found.lines().zip(wanted.lines()) {
        assert_eq!(found, wanted, "BLESS=1 accepts what is found");
    }
}
