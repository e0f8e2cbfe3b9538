//! The interpreter and the compiled form of a program, in the same state.

use std::collections::HashMap;
use std::slice::from_ref;
use weir_kernel::{Executor, FrameOutcome, LoadError, Why};
use weir_oracle::arbitrary::dealt_buckets;
use weir_oracle::trace::{Lookup, Step};
use weir_oracle::{Interpreter, Walk};
use weir_program::change::{Change, EntryKey};
use weir_program::replica::Swept;
use weir_program::snapshot::{Count, Snapshot};
use weir_program::{Pipe, PipeId, PipeKind, PortId, Program, Verdict};

/// Both executors of a program.
pub struct Pair {
    /// With its present entries.
    pub program: Program,
    buckets: Vec<Vec<u16>>,
    oracle: Interpreter,
    pub executor: Executor,
    /// The counts of entries and pipes that sweeps have found, added up as in an engine.
    found: SweptCounts,
    /// The other counts that the packets handled by the kernel should have made.
    decided: DecidedCounts,
}

/// The kernel's outcome of a frame.
pub enum Ran {
    /// The kernel handled the frame, as the interpreter did.
    Decided(Box<Walk>),
    /// The kernel left the frame to the engine, as it arrived.
    Left(Why),
}

/// What a change led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The interpreter refuses it.
    Refused,
    /// Both have made it.
    Done,
    /// Both have made it; the program may be compiled again.
    Stale,
    /// All packets go to the engine until the program is compiled again.
    Stopped,
}

#[derive(Default)]
struct SweptCounts {
    entries: HashMap<(PipeId, EntryKey), Count>,
    misses: HashMap<PipeId, Count>,
    counters: HashMap<usize, Count>,
    decided: DecidedCounts,
}

/// Packets by port of arrival and verdict, and the bytes sent through each port.
#[derive(Debug, Default, PartialEq)]
struct DecidedCounts {
    by_verdict: Vec<(PortId, Verdict, Count)>,
    sent: HashMap<PortId, u64>,
}

impl DecidedCounts {
    fn add(&mut self, input: PortId, verdict: Verdict, count: Count) {
        match self.by_verdict.iter_mut().find(|one| (one.0, one.1) == (input, verdict)) {
            Some((.., sum)) => sum.add(count),
            None => self.by_verdict.push((input, verdict, count)),
        }
        self.by_verdict.sort_by_key(|one| format!("{:?}", (one.0, one.1)));
    }

    fn send(&mut self, port: PortId, bytes: u64) {
        *self.sent.entry(port).or_default() += bytes;
    }
}

impl SweptCounts {
    fn add(&mut self, swept: Swept<'_>) {
        match swept {
            Swept::Entry(pipe, key, count) => {
                self.entries.entry((pipe, key.clone())).or_default().add(count);
            }
            Swept::Misses(pipe, count) => self.misses.entry(pipe).or_default().add(count),
            Swept::Counter(counter, count) => self.counters.entry(counter.index()).or_default().add(count),
            Swept::Decided(port, verdict, count) => self.decided.add(port, verdict, count),
            Swept::Sent(port, bytes) => self.decided.send(port, bytes),
            // tests/samples.rs compares the samples.
            Swept::Dropped(..) => {}
            Swept::Unsent(..) => unreachable!("no interface drops frames here"),
        }
    }
}

impl Pair {
    /// Loads a program. `compiled` is the compiler's input: the program itself, or one with a fault.
    pub fn new(program: &Program, compiled: &Program) -> Result<Pair, LoadError> {
        let buckets: Vec<Vec<u16>> = program.groups.iter().map(dealt_buckets).collect();
        let oracle = Interpreter::new(program, buckets.clone());
        let executor = Executor::load(compiled, &buckets)?;
        let (found, decided) = (SweptCounts::default(), DecidedCounts::default());
        Ok(Pair { program: program.clone(), buckets, oracle, executor, found, decided })
    }

    /// Returns the state of the interpreter.
    pub fn snapshot(&self) -> Snapshot {
        self.oracle.snapshot()
    }

    /// Runs a frame in the kernel, and in the interpreter if the kernel handles it.
    pub fn frame(&mut self, port: PortId, bytes: &[u8]) -> Result<Ran, String> {
        let (outcome, after) = self.executor.run(port, bytes).map_err(|error| error.to_string())?;
        let verdict = match outcome {
            FrameOutcome::Left(_) if after != bytes => return Err("left to the engine, but changed".into()),
            FrameOutcome::Left(why) => {
                self.has_reason(port, bytes, why)?;
                return Ok(Ran::Left(why));
            }
            FrameOutcome::Decided(verdict) => verdict,
        };
        let walk = self.oracle.walk(port, bytes, 256, 0);
        if walk.verdict != verdict {
            return Err(format!("{verdict:?}, not {:?}: {:#?}", walk.verdict, walk.trace));
        }
        if !matches!(verdict, Verdict::Drop(_)) && walk.bytes != after {
            return Err(format!("{}\nnot\n{}\n{:#?}", hex(&after), hex(&walk.bytes), walk.trace));
        }
        let arrived = Count { packets: 1, bytes: bytes.len() as u64 };
        self.decided.add(port, verdict, arrived);
        if let Verdict::Transmit(to) = verdict {
            self.decided.send(to, walk.bytes.len() as u64);
        }
        Ok(Ran::Decided(Box::new(walk)))
    }

    /// Whether a change adds an entry with a destination that no entry has. Compiling the program again takes
    /// longer than running all its packets.
    pub fn leads_elsewhere(&self, change: &Change) -> bool {
        change.singles().iter().any(|one| match one {
            Change::Add { pipe, entry } | Change::Update { pipe, entry } => {
                let of = self.program.pipes.get(pipe.index());
                let fits = |of: &Pipe| usize::from(entry.template) < of.templates.len();
                let coverage = self.executor.coverage();
                of.is_some_and(fits) && coverage.entry(&self.program, *pipe, entry).is_err()
            }
            _ => false,
        })
    }

    /// Checks that a frame was left to the engine for a reason that it has.
    fn has_reason(&self, port: PortId, bytes: &[u8], why: Why) -> Result<(), String> {
        match why {
            // What the parser finds unusual, in headers that the program may not read.
            Why::Malformed
            | Why::Fragment
            | Why::ExtensionHeaders
            | Why::IcmpError
            | Why::Tunnel
            | Why::Checksum
            | Why::Length => Ok(()),
            _ => {
                let trace = self.oracle.explain(port, bytes, 256, 0).trace;
                let has = trace.iter().any(|step| self.is_left(step, why));
                if has { Ok(()) } else { Err(format!("left to the engine, but not for {why:?}: {trace:#?}")) }
            }
        }
    }

    /// Whether a step is one that the kernel leaves to the engine for this reason.
    fn is_left(&self, step: &Step, why: Why) -> bool {
        let coverage = self.executor.coverage();
        if let Some(whole) = coverage.pipes[step.pipe.index()] {
            return whole == why;
        }
        let pipe = &self.program.pipes[step.pipe.index()];
        // No flow is written to the kernel here; tests/flow does that.
        if matches!(pipe.kind, PipeKind::Flow { .. }) && why == Why::NewFlow {
            return true;
        }
        match &step.lookup {
            Lookup::Hit(hit) => {
                let entry = pipe.entries.iter().find(|entry| EntryKey::of(entry) == hit.entry);
                let entry = entry.expect("the interpreter has the same entries");
                if why == Why::Syn {
                    return coverage.leaves_syns(&self.program, step.pipe, entry.template);
                }
                let left = coverage.entry(&self.program, step.pipe, &entry);
                left.map_or(why == Why::NewLead, |left| left == Some(why) || why == Why::TooLong)
            }
            Lookup::Miss(_) => coverage.why_not_forward(&self.program, pipe.miss) == Some(why),
            Lookup::NoTarget => false,
        }
    }

    /// Makes a change in both.
    pub fn change(&mut self, change: &Change) -> Changed {
        if self.oracle.apply(change).is_err() {
            return Changed::Refused;
        }
        for one in change.singles() {
            self.note(one);
        }
        let (replica, together) = (self.executor.replica(), change.singles().len() > 1);
        if together {
            replica.pause();
        }
        replica.apply(from_ref(change), |group| &self.buckets[group.index()]);
        if together {
            replica.start();
        }
        let report = replica.report();
        match (report.active, report.stale) {
            (false, _) => Changed::Stopped,
            (true, true) => Changed::Stale,
            (true, false) => Changed::Done,
        }
    }

    /// Notes the present entries and buckets.
    fn note(&mut self, change: &Change) {
        match change {
            Change::Add { pipe, entry } => {
                self.program.pipes[pipe.index()].entries.push(entry);
            }
            Change::Update { pipe, entry } => {
                let key = EntryKey::of(entry);
                self.program.pipes[pipe.index()].entries.edit(|all| {
                    all.iter_mut()
                        .filter(|one| EntryKey::of(one) == key)
                        .for_each(|one| *one = entry.clone());
                });
            }
            Change::Remove { pipe, key } => {
                self.program.pipes[pipe.index()].entries.retain(|one| EntryKey::of(one) != *key);
                self.found.entries.remove(&(*pipe, key.clone()));
            }
            Change::SetWeight { group, .. } | Change::SetWeights { group, .. } => {
                let slots = dealt_buckets(&self.oracle.program().groups[group.index()]);
                self.buckets[group.index()].clone_from(&slots);
                self.oracle.set_buckets(*group, slots);
            }
            Change::MoveBuckets { .. } => {}
            Change::Publish { .. } | Change::NameCounters(_) | Change::Batch(_) => {
                unreachable!("no single change of the generator")
            }
        }
    }

    /// Compiles the program with its present entries, as a daemon does when they have new destinations.
    pub fn compile_again(&mut self) -> Result<(), LoadError> {
        self.executor.replica().pause();
        self.sweep(true);
        self.executor = Executor::load(&self.program, &self.buckets)?;
        Ok(())
    }

    /// Forgets everything that was counted.
    pub fn start_over(&mut self) {
        self.executor.replica().sweep(true, &mut |_| {});
        self.oracle = Interpreter::new(&self.program, self.buckets.clone());
        (self.found, self.decided) = (SweptCounts::default(), DecidedCounts::default());
    }

    fn sweep(&mut self, all: bool) {
        let found = &mut self.found;
        self.executor.replica().sweep(all, &mut |swept| found.add(swept));
    }

    /// Sweeps the kernel's counts and compares them with the interpreter's. Another sweep that looks at every
    /// count finds nothing more.
    pub fn counts(&mut self) -> Result<(), String> {
        self.sweep(false);
        self.compare_counts().map_err(|what| format!("after a sweep, {what}"))?;
        let mut late = Vec::new();
        self.executor.replica().sweep(true, &mut |swept| late.push(format!("{swept:?}")));
        if late.is_empty() { Ok(()) } else { Err(format!("counted without a mark: {late:?}")) }
    }

    fn compare_counts(&self) -> Result<(), String> {
        let (found, snapshot) = (&self.found, self.oracle.snapshot());
        for (pipe, of) in (0..).map(PipeId).zip(&snapshot.pipes) {
            let misses = found.misses.get(&pipe).copied().unwrap_or_default();
            same(&format!("misses of {pipe:?}"), &misses, &of.misses)?;
            for entry in &of.entries {
                let hits = found.entries.get(&(pipe, entry.key.clone())).copied().unwrap_or_default();
                same(&format!("hits of {pipe:?}, {:?}", entry.key), &hits, &entry.hits)?;
            }
            let live = of.entries.len();
            let swept = found.entries.keys().filter(|key| key.0 == pipe).count();
            if swept > live {
                return Err(format!("{swept} of {live} entries of {pipe:?} have counts"));
            }
        }
        for (at, counter) in snapshot.counters.iter().enumerate() {
            let swept = found.counters.get(&at).copied().unwrap_or_default();
            same(&format!("counter {at}"), &swept, counter)?;
        }
        same("packets decided", &found.decided, &self.decided)
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, wanted: &T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("{what}: {found:?}, not {wanted:?}")) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
