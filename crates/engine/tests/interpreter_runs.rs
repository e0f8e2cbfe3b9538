//! Random programs, packets and changes through the interpreter alone: every feature is covered, programs
//! pass the check, and the counters add up.

use engine::arbitrary::{Coverage, Event, Random, dealt_buckets, event, program};
use engine::change::Change;
use engine::check::{FindingKind, Severity, check};
use engine::interpreter::{Arrival, Interpreter};
use engine::program::Program;
use engine::snapshot::Snapshot;

fn started(program: &Program) -> Interpreter {
    Interpreter::new(program, program.groups.iter().map(dealt_buckets).collect())
}

/// One random program with `events` random events.
fn run(seed: u64, events: usize, coverage: &mut Coverage) {
    let mut random = Random::from_seed(seed);
    let program = program(&mut random);
    let mut interpreter = started(&program);
    let mut now_ns = 0;
    for _ in 0..events {
        match event(&mut random, &program, &interpreter.snapshot()) {
            Event::Frame { input, bytes, headroom, hash } => {
                let arrival = Arrival { input, bytes: &bytes, headroom, hash, ports: None };
                let explained = interpreter.explain_arrival(&arrival, now_ns, &interpreter);
                let walk = interpreter.walk_arrival(&arrival, now_ns);
                assert_eq!(explained, walk, "seed {seed}: explaining is walking");
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
        let program = program(&mut Random::from_seed(seed));
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
