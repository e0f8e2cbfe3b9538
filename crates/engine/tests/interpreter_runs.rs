//! Random programs, packets and changes through the interpreter alone: every feature is covered, programs
//! pass the check, and the counters add up.

use std::net::IpAddr;
use weir_oracle::arbitrary::{Choices, Coverage, Event, dealt_buckets, event, program};
use weir_oracle::{Arrival, EntrySource, FlowSource, Interpreter, Walk};
use weir_packet::FlowKey;
use weir_program::change::Change;
use weir_program::check::{FindingKind, Severity, check};
use weir_program::nat::Binding;
use weir_program::snapshot::{FlowSnapshot, KeptOperations, Snapshot};
use weir_program::{GroupId, PipeId, Program};

fn started(program: &Program) -> Interpreter {
    Interpreter::new(program, program.groups.iter().map(dealt_buckets).collect())
}

/// One random program with `events` random events.
fn run(seed: u64, events: usize, coverage: &mut Coverage) {
    let mut random = Choices::from_seed(seed);
    let program = program(&mut random);
    let mut interpreter = started(&program);
    let mut now_ns = 0;
    for _ in 0..events {
        match event(&mut random, &program, &interpreter.snapshot()) {
            Event::Frame { input, bytes, headroom, hash } => {
                let arrival = Arrival { input, bytes: &bytes, headroom, hash, ports: None };
                let explained = interpreter.explain_arrival(&arrival, now_ns, &interpreter);
                let walk = interpreter.walk_arrival(&arrival, now_ns);
                assert_eq!(explained, walk, "seed {seed}: explain differs from the walk");
                coverage.walk(&program, &walk);
            }
            Event::Change(change) => {
                let result = interpreter.apply(&change);
                if let (Change::SetWeight { group, .. } | Change::SetWeights { group, .. }, Ok(())) =
                    (&change, &result)
                {
                    let buckets = dealt_buckets(&interpreter.program().groups[group.index()]);
                    interpreter.set_buckets(*group, buckets);
                }
                coverage.change(&change, &result);
            }
            Event::Time { ns } => now_ns += ns,
            Event::Age => {
                let pending = |snapshot: Snapshot| -> usize {
                    snapshot.buckets.iter().map(|group| group.pending).sum()
                };
                let (before, waited) = (entries(&interpreter.snapshot()), pending(interpreter.snapshot()));
                let flows = interpreter.age(now_ns).len();
                coverage.aged(flows, before - entries(&interpreter.snapshot()));
                coverage.settled(waited - pending(interpreter.snapshot()));
            }
        }
    }
}

fn entries(snapshot: &Snapshot) -> usize {
    snapshot.pipes.iter().map(|pipe| pipe.entries.len()).sum()
}

#[test]
fn random_programs_pass_the_check() {
    for seed in 0..2_000 {
        let program = program(&mut Choices::from_seed(seed));
        let known = |kind: &FindingKind| matches!(kind, FindingKind::MetadataUnwritten { .. });
        let errors =
            check(&program).into_iter().filter(|one| one.severity == Severity::Error && !known(&one.kind));
        assert_eq!(errors.collect::<Vec<_>>(), [], "seed {seed}");
    }
}

#[test]
fn random_runs_meet_everything() {
    let mut coverage = Coverage::new();
    for seed in 0..9_000 {
        run(seed, 120, &mut coverage);
    }
    assert_eq!(coverage.missing(), Vec::<String>::new(), "met: {:#?}", coverage.met());
}

/// The flows of an interpreter, and its entries read one by one.
struct Streamed<'a>(&'a Interpreter);

impl FlowSource for Streamed<'_> {
    fn entries(&self) -> Option<&dyn EntrySource> {
        Some(self.0)
    }

    fn flow(&self, pipe: PipeId, key: &FlowKey) -> Option<FlowSnapshot> {
        self.0.flow(pipe, key)
    }

    fn kept(&self, pipe: PipeId, key: &FlowKey) -> Option<KeptOperations> {
        self.0.kept(pipe, key)
    }

    fn next_binding(&self, pipe: PipeId, key: &FlowKey, freed: Option<Binding>) -> Option<Binding> {
        self.0.next_binding(pipe, key, freed)
    }

    fn has_room(&self, pipe: PipeId, flows: usize) -> bool {
        self.0.has_room(pipe, flows)
    }

    fn turn(&self, pipe: PipeId, group: GroupId) -> Option<u64> {
        self.0.turn(pipe, group)
    }

    fn flows_of(&self, pipe: PipeId, group: GroupId, target: u16) -> u64 {
        self.0.flows_of(pipe, group, target)
    }

    fn recalled(&self, pipe: PipeId, group: GroupId, source: IpAddr, now_ns: u64) -> Option<u16> {
        self.0.recalled(pipe, group, source, now_ns)
    }

    fn full_ms(&self, pipe: PipeId) -> Option<u64> {
        self.0.full_ms(pipe)
    }
}

/// A walk without its effects, which refer to entries by position.
fn seen(walk: &Walk) -> Walk {
    Walk { effects: Vec::new(), ..walk.clone() }
}

#[test]
fn entries_read_one_by_one_explain_the_same() {
    let mut explained = 0;
    for seed in 0..600 {
        let mut random = Choices::from_seed(seed);
        let program = program(&mut random);
        let mut interpreter = started(&program);
        // It keeps nothing but what it reads.
        let mut reader =
            Interpreter::new(&program.without_entries(), program.groups.iter().map(dealt_buckets).collect());
        for _ in 0..40 {
            match event(&mut random, &program, &interpreter.snapshot()) {
                Event::Frame { input, bytes, headroom, hash: _ } => {
                    let walk = interpreter.explain(input, &bytes, headroom, 0);
                    let read = reader.explain_with(input, &bytes, headroom, 0, &Streamed(&interpreter));
                    assert_eq!(seen(&read), seen(&walk), "seed {seed}");
                    explained += walk.trace.len();
                }
                Event::Change(
                    change @ (Change::Add { .. } | Change::Update { .. } | Change::Remove { .. }),
                ) => {
                    let _ = interpreter.apply(&change);
                }
                Event::Change(_) | Event::Time { .. } | Event::Age => {}
            }
        }
    }
    assert!(explained > 5000, "{explained} pipes");
}
