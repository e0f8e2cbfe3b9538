//! The batch engine against the interpreter: random programs, packets, changes and times, batches cut anywhere. After
//! each batch verdicts and bytes are equal, after each change its result, and all counts in between.

use engine::arbitrary::{Coverage, Event, Random, event, program};
use engine::batch::Engine;
use engine::change::{Change, ChangeError};
use engine::interpreter::Interpreter;
use engine::program::{PortId, Program};
use engine::snapshot::{Count, Snapshot};
use packet::{Batch, FlowKey, HEADROOM, Pools, TableHash};

/// Both executors of one program, and the frames that wait for the batch to be full.
struct Pair {
    seed: u64,
    program: Program,
    interpreter: Interpreter,
    engine: Engine,
    pools: Pools,
    waiting: Vec<(Vec<u8>, usize)>,
    input: PortId,
    /// Frames of a batch.
    cut: usize,
    now_ns: u64,
    /// When the last batch was, or the last look at ages.
    breath_ns: u64,
    coverage: Coverage,
}

impl Pair {
    fn new(seed: u64, program: Program, cut: usize) -> Pair {
        let engine = Engine::new(&program, TableHash::new([seed, 1])).expect("generated programs compile");
        let interpreter = Interpreter::new(&program, engine.buckets());
        Pair {
            seed,
            program,
            interpreter,
            engine,
            pools: Pools::region(128),
            waiting: Vec::new(),
            input: PortId(0),
            cut,
            now_ns: 0,
            breath_ns: 0,
            coverage: Coverage::new(),
        }
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Frame { input, bytes, headroom } => {
                if input != self.input {
                    self.breath();
                    self.input = input;
                }
                self.waiting.push((bytes, headroom));
                if self.waiting.len() == self.cut {
                    self.breath();
                }
            }
            Event::Change(change) => {
                self.breath();
                self.change(&change);
            }
            Event::Time { ns } => {
                self.breath();
                self.now_ns += ns;
            }
            Event::Age => {
                self.breath();
                self.age();
            }
        }
    }

    /// The waiting frames through both.
    fn breath(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let frames = std::mem::take(&mut self.waiting);
        let mut batch = Batch::new();
        for (bytes, headroom) in &frames {
            let mut frame = self.pools.first().take().expect("a free frame");
            frame.fill(&[]).expect("room for nothing");
            frame.prepend(HEADROOM - *headroom as u16).expect("headroom");
            frame.resize(bytes.len() as u16).expect("room for a frame");
            frame.bytes_mut().copy_from_slice(bytes);
            assert!(batch.push(frame).is_ok(), "a batch holds 64");
        }
        let all = batch.mask();
        let outcome = self.engine.process(&mut batch, all, self.input, self.now_ns);
        let verdicts: Vec<_> = (0..frames.len()).map(|slot| outcome.verdict(slot, self.input)).collect();
        for (slot, (bytes, headroom)) in frames.iter().enumerate() {
            let walk = self.interpreter.walk(self.input, bytes, *headroom, self.now_ns);
            self.coverage.walk(&self.program, &walk);
            let told = || format!("seed {} frame {bytes:02x?}\n{:#?}\n{:#?}", self.seed, walk.trace, self.program);
            assert_eq!(verdicts[slot], walk.verdict, "{}", told());
            let dropped = matches!(walk.verdict, engine::Verdict::Drop(_));
            assert!(dropped || batch.frame(slot).bytes() == walk.bytes, "{:02x?}\n{:02x?}\n{}", batch.frame(slot).bytes(), walk.bytes, told());
            let frame = batch.take(slot);
            self.pools.give(frame);
        }
        self.breath_ns = self.now_ns;
        self.compare("a batch");
    }

    fn change(&mut self, change: &Change) {
        let result = self.interpreter.apply(change);
        let other = self.engine.apply(change, self.breath_ns);
        let kind = |result: &Result<(), ChangeError>| result.as_ref().err().map(std::mem::discriminant);
        assert_eq!(kind(&result), kind(&other), "seed {} {change:?}: {result:?} {other:?}\n{:#?}", self.seed, self.program);
        if let (Change::SetWeight { group, .. }, Ok(())) = (change, &result) {
            self.interpreter.set_buckets(*group, self.engine.buckets()[group.index()].clone());
        }
        self.coverage.change(change, &result);
        self.compare("a change");
    }

    fn age(&mut self) {
        self.engine.take_deltas(|_, _| true);
        let before = entries(&self.interpreter.snapshot());
        let mut gone = self.interpreter.age(self.now_ns);
        self.engine.age(self.now_ns);
        let mut deltas: Vec<(FlowKey, Count)> = Vec::new();
        self.engine.take_deltas(|_, delta| {
            deltas.push((delta.key, Count { packets: delta.packets, bytes: delta.bytes }));
            true
        });
        let order = |one: &(FlowKey, Count)| (one.0, one.1.packets, one.1.bytes);
        gone.sort_by_key(order);
        deltas.sort_by_key(order);
        assert_eq!(gone, deltas, "seed {}", self.seed);
        self.coverage.aged(gone.len(), before - entries(&self.interpreter.snapshot()));
        self.breath_ns = self.now_ns;
        self.compare("a look at ages");
    }

    fn compare(&self, after: &str) {
        let (one, other) = (sorted(self.interpreter.snapshot()), sorted(self.engine.snapshot()));
        assert_eq!(one, other, "seed {} after {after}\n{:#?}", self.seed, self.program);
    }
}

fn entries(snapshot: &Snapshot) -> usize {
    snapshot.pipes.iter().map(|pipe| pipe.entries.len()).sum()
}

/// Entries and flows in an order both can agree on.
fn sorted(mut snapshot: Snapshot) -> Snapshot {
    for pipe in &mut snapshot.pipes {
        pipe.entries.sort_by_cached_key(|entry| format!("{:?}", entry.key));
        pipe.flows.sort_by_key(|flow| flow.key);
    }
    snapshot
}

#[test]
fn both_executors_agree() {
    let mut coverage = Coverage::new();
    let programs = std::env::var("WEIR_PROGRAMS").ok().and_then(|count| count.parse().ok()).unwrap_or(1_500);
    let first = std::env::var("WEIR_FIRST").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    for seed in first..first + programs {
        let mut random = Random::from_seed(seed);
        let program = program(&mut random);
        let cut = random.pick(&[1, 3, 64]);
        let mut pair = Pair::new(seed, program, cut);
        for _ in 0..120 {
            let state = pair.interpreter.snapshot();
            let event = event(&mut random, &pair.program, &state);
            pair.happens(event);
        }
        pair.breath();
        coverage.add(&pair.coverage);
    }
    assert!(programs < 1_500 || coverage.missing().is_empty(), "never met: {:?}", coverage.missing());
}
