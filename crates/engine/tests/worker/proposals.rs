//! Changes that all workers make or none, against a model, with everything that may go wrong: workers whose
//! tables are full of flows, that do not answer, answer late, or have ended, programs that are swapped
//! meanwhile, and commands for which there is no room.

use crate::rig::commanded;
use crate::support::{SECRET, start, udp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{SyncSender, sync_channel};
use weir_engine::batch::Engine;
use weir_engine::worker::{
    CHANGES_PER_BREATH, Command, Outcome, Proposal, Proposer, Rewire, Rewiring, Worker,
};
use weir_oracle::Interpreter;
use weir_oracle::arbitrary::Choices;
use weir_packet::{Field, FlowKey};
use weir_port::MemWire;
use weir_program::change::{Change, ChangeError, Changes, EntryKey};
use weir_program::{Entry, EntryMatch, Forward, Learn, Pipe, PipeId, PortId, Program};

const FLOWS: PipeId = PipeId(0);
const SMALL: PipeId = PipeId(1);
const WIDE: PipeId = PipeId(2);

/// Places of the FLOW pipe, fewer than there are flows.
const PLACES: u32 = 6;

/// Longer than any timeout.
const LONG_NS: u64 = 60_000_000_000;

fn program(small: u32) -> Program {
    let flows = Pipe::flow("flows", Learn::Default).entry(EntryMatch::Default).capacity(PLACES);
    let per_entry =
        |name: &str| Pipe::basic(name).per_entry(Field::L4Dport).forward(Forward::PerEntry).miss(PortId(0));
    let pipes = [
        flows.forward(SMALL).miss(SMALL),
        per_entry("small").capacity(small).miss(WIDE),
        per_entry("wide").capacity(1000),
    ];
    start(&["a", "b"], pipes).build()
}

/// The contents of the pipes: the destination of each run-time entry.
type Entries = BTreeMap<(u16, String), Option<Forward>>;

fn name(key: &EntryKey) -> String {
    format!("{key:?}")
}

fn flow(number: usize) -> FlowKey {
    FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (number as u16, 53), None)
}

/// Some workers, proposals to them, and their expected outcome.
struct ProposalWorkers {
    proposer: Proposer,
    workers: Vec<(Worker, Vec<MemWire>, SyncSender<Command>)>,
    deaf: Vec<bool>,
    ended: Vec<bool>,
    open: Vec<(Changes, Proposal)>,
    model: Entries,
    met: BTreeSet<&'static str>,
    now_ns: u64,
}

impl ProposalWorkers {
    fn new(count: usize) -> ProposalWorkers {
        ProposalWorkers {
            proposer: Proposer::new(count),
            workers: (0..count).map(|_| commanded(&program(2), 80)).collect(),
            deaf: vec![false; count],
            ended: vec![false; count],
            open: Vec::new(),
            model: Entries::new(),
            met: BTreeSet::new(),
            now_ns: 0,
        }
    }

    fn propose(&mut self, changes: Changes) {
        let workers = &self.workers;
        let mut send = |worker: usize, command| send(workers, worker, command);
        let proposal = self.proposer.propose(changes.clone(), self.now_ns, &mut send);
        self.open.push((changes, proposal));
    }

    fn look(&mut self, at: usize) {
        let workers = &self.workers;
        let mut send = |worker: usize, command| send(workers, worker, command);
        let (changes, proposal) = &mut self.open[at];
        let was_decided = proposal.is_decided();
        let outcome = self.proposer.look(proposal, self.now_ns, &mut send);
        if proposal.is_decided() && !was_decided {
            changes.iter().for_each(|change| carry_out(&mut self.model, change));
        }
        let Some(outcome) = outcome else { return };
        let (_, proposal) = self.open.remove(at);
        assert_eq!(matches!(outcome, Outcome::Done { .. }), proposal.is_decided(), "{outcome:?}");
        self.met.insert(match &outcome {
            Outcome::Done { late } if late.is_empty() => "done",
            Outcome::Done { .. } => "done late",
            Outcome::Silent { .. } => "silent",
            Outcome::Refused(why) => match why.cause() {
                ChangeError::Full { pipe, .. } if pipe == "flows" => "full of flows",
                ChangeError::Full { .. } => "full",
                ChangeError::Exists { .. } => "exists",
                ChangeError::NotFound { .. } => "not found",
                ChangeError::Busy { .. } => "busy",
                other => panic!("{other}"),
            },
        });
    }

    fn breathe(&mut self, at: usize) {
        if !self.deaf[at] && !self.ended[at] {
            self.workers[at].0.breathe(self.now_ns);
        }
    }

    /// Ends a worker: its commands are no longer read.
    fn end(&mut self, at: usize) {
        self.workers[at].0 = commanded(&program(2), 80).0;
        self.ended[at] = true;
    }

    /// Sends each worker a new program, as the daemon does when no change is in progress. Returns false if
    /// one is.
    fn swap(&mut self) -> bool {
        let workers = &self.workers;
        let mut send = |worker: usize, command| send(workers, worker, command);
        self.proposer.settle(&mut send);
        if !self.open.is_empty() || self.proposer.is_owing() {
            return false;
        }
        for worker in (0..self.workers.len()).filter(|&at| !self.ended[at]) {
            let engine = Box::new(Engine::new(&program(2), SECRET).expect("a program that compiles"));
            let ports = vec![Rewire::Keep(0), Rewire::Keep(1)];
            let rewiring = Rewiring { generation: 2, ports, ..Rewiring::default() };
            let (answer, _) = sync_channel(1);
            if send(worker, Command::Swap(engine, rewiring, answer)).is_some() {
                // The daemon waits for room.
                let deaf = std::mem::take(&mut self.deaf[worker]);
                self.breathe(worker);
                self.deaf[worker] = deaf;
                return false;
            }
        }
        true
    }

    /// Lets everything finish.
    fn rest(&mut self) {
        self.deaf.fill(false);
        for _ in 0..2000 {
            (0..self.workers.len()).for_each(|at| self.breathe(at));
            (0..self.open.len()).rev().for_each(|at| self.look(at));
            if self.open.is_empty() {
                break;
            }
            if self.ended.contains(&true) {
                self.now_ns += LONG_NS;
            }
        }
        assert!(self.open.is_empty(), "a proposal never ends");
        // Commands that had no room go ahead of this one.
        self.propose(Changes::default());
        for _ in 0..100 {
            (0..self.workers.len()).for_each(|at| self.breathe(at));
        }
        self.look(0);
    }

    fn check(&self) {
        for (at, (worker, ..)) in self.workers.iter().enumerate().filter(|(at, _)| !self.ended[*at]) {
            let mut found = Entries::new();
            for pipe in [FLOWS, SMALL, WIDE] {
                let entries = worker.engine().entries(pipe).into_iter().filter(|(entry, _)| entry.run_time);
                found
                    .extend(entries.map(|(entry, _)| ((pipe.0, name(&EntryKey::of(&entry))), entry.forward)));
            }
            assert_eq!(found, self.model, "worker {at}");
        }
    }
}

fn send(
    workers: &[(Worker, Vec<MemWire>, SyncSender<Command>)],
    worker: usize,
    command: Command,
) -> Option<Command> {
    use std::sync::mpsc::TrySendError::{Disconnected, Full};
    workers[worker].2.try_send(command).err().map(|(Full(command) | Disconnected(command))| command)
}

fn carry_out(model: &mut Entries, change: &Change) {
    let place = |pipe: &PipeId, key: &EntryKey| (pipe.0, name(key));
    match change {
        Change::Add { pipe, entry } | Change::Update { pipe, entry } => {
            model.insert(place(pipe, &EntryKey::of(entry)), entry.forward);
        }
        Change::Remove { pipe, key } => assert!(model.remove(&place(pipe, key)).is_some(), "{key:?}"),
        other => panic!("{other:?}"),
    }
}

/// Generates a few changes of any pipe, or many of the wide one.
fn changes(random: &mut Choices) -> Changes {
    if random.percent(10) {
        let first = random.below(4) * 100;
        let count = CHANGES_PER_BREATH * 3;
        let all = (first..first + count).map(|port| Change::Add { pipe: WIDE, entry: entry(random, port) });
        return Changes::new(all.collect::<Vec<_>>()).expect("different entries");
    }
    let count = random.pick(&[1, 3]);
    let all: Vec<Change> = (0..count).map(|_| change(random)).collect();
    let first = all[0].clone();
    Changes::new(all).unwrap_or_else(|_| Changes::of(first))
}

fn change(random: &mut Choices) -> Change {
    let pipe = random.pick(&[FLOWS, FLOWS, SMALL, WIDE]);
    let number = random.below(10);
    let entry = match pipe {
        FLOWS => Entry::on(EntryMatch::Flow(flow(number))).run_time(),
        _ => entry(random, number),
    };
    match random.below(4) {
        0 if pipe != FLOWS => Change::Update { pipe, entry },
        1 => Change::Remove { pipe, key: EntryKey::of(&entry) },
        _ => Change::Add { pipe, entry },
    }
}

fn entry(random: &mut Choices, port: usize) -> Entry {
    leading_to(random.below(2), port)
}

fn leading_to(output: usize, port: usize) -> Entry {
    let forward = Some(Forward::Port(PortId(output as u16)));
    Entry { forward, ..Entry::on(port as u16).run_time() }
}

fn run(seed: u64) -> BTreeSet<&'static str> {
    let mut random = Choices::from_seed(seed);
    let mut bench = ProposalWorkers::new(random.between(2, 3));
    for _ in 0..random.between(20, 200) {
        let worker = random.below(bench.workers.len());
        match random.weighted(&[30, 60, 30, 40, 4, 6, 2, 6, 1]) {
            0 if bench.open.len() < 4 => bench.propose(changes(&mut random)),
            1 => bench.breathe(worker),
            2 => {
                let frame = udp(random.below(10) as u16, 53);
                bench.workers[worker].1[0].push(&frame);
            }
            3 if !bench.open.is_empty() => {
                let at = random.below(bench.open.len());
                bench.look(at);
            }
            4 => bench.deaf[worker] = true,
            5 => bench.deaf[worker] = false,
            6 => bench.now_ns += LONG_NS,
            7 if bench.swap() => {
                bench.met.insert("swapped");
            }
            8 if random.percent(20) => bench.end(worker),
            _ => {}
        }
        bench.now_ns += 1000;
    }
    bench.rest();
    bench.check();
    bench.met
}

#[test]
fn replicas_are_equal_at_rest_whatever_goes_wrong() {
    let mut met = BTreeSet::new();
    for seed in 0..1000 {
        met.extend(run(seed));
    }
    let all =
        ["busy", "done", "done late", "exists", "full", "full of flows", "not found", "silent", "swapped"];
    assert_eq!(met.into_iter().collect::<Vec<_>>(), all);
}

/// A fault of one of the workers, at a step of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The worker has no room for the entry.
    Refuses,
    /// The worker reserves too late.
    ReservesLate,
    /// The worker ends before it reserves.
    EndsBefore,
    /// The worker makes the change, but too late.
    CommitsLate,
    /// The same, and a swap follows.
    CommitsLateAndSwaps,
    /// The worker ends after it has reserved.
    EndsAfter,
}

/// Returns a bench where worker `at` met this fault during a change of `count` entries of the wide pipe.
fn failed_at(fault: Fault, at: usize, count: usize) -> ProposalWorkers {
    let mut bench = ProposalWorkers::new(3);
    let mut all: Vec<Change> =
        (0..count).map(|port| Change::Add { pipe: WIDE, entry: leading_to(0, port) }).collect();
    if fault == Fault::Refuses {
        // Last, so that everything before it must be released.
        all.push(Change::Add { pipe: FLOWS, entry: Entry::on(EntryMatch::Flow(flow(99))).run_time() });
        for number in 0..PLACES {
            bench.workers[at].1[0].push(&udp(number as u16, 53));
        }
        bench.breathe(at);
    }
    let breaths = count / CHANGES_PER_BREATH + 2;
    let breathe_all = |bench: &mut ProposalWorkers| {
        for _ in 0..breaths {
            (0..3).for_each(|worker| bench.breathe(worker));
        }
    };
    bench.deaf[at] = fault == Fault::ReservesLate;
    if fault == Fault::EndsBefore {
        bench.end(at);
    }
    bench.propose(Changes::new(all).expect("different entries"));
    breathe_all(&mut bench);
    match fault {
        Fault::CommitsLate | Fault::CommitsLateAndSwaps => bench.deaf[at] = true,
        Fault::EndsAfter => bench.end(at),
        _ => {}
    }
    bench.look(0);
    breathe_all(&mut bench);
    bench.now_ns += LONG_NS;
    (0..3).for_each(|_| {
        if !bench.open.is_empty() {
            bench.look(0)
        }
    });
    breathe_all(&mut bench);
    (0..3).for_each(|_| {
        if !bench.open.is_empty() {
            bench.look(0)
        }
    });
    assert!(bench.open.is_empty(), "{fault:?}");
    if fault == Fault::CommitsLateAndSwaps {
        assert!(bench.swap());
    }
    bench
}

#[test]
fn a_change_fails_at_any_step_on_any_worker_without_setting_replicas_apart() {
    use Fault::{CommitsLate, CommitsLateAndSwaps, EndsAfter, EndsBefore, Refuses, ReservesLate};
    for fault in [Refuses, ReservesLate, EndsBefore, CommitsLate, CommitsLateAndSwaps, EndsAfter] {
        for (at, count) in (0..3).flat_map(|at| [(at, 1), (at, 3 * CHANGES_PER_BREATH + 1)]) {
            let mut bench = failed_at(fault, at, count);
            let (met, made) = match fault {
                Refuses => ("full of flows", 0),
                ReservesLate | EndsBefore => ("silent", 0),
                CommitsLate | CommitsLateAndSwaps | EndsAfter => ("done late", count),
            };
            assert_eq!(bench.met, BTreeSet::from([met]), "{fault:?} of worker {at}");
            bench.rest();
            assert_eq!(bench.model.len(), made, "{fault:?} of worker {at}");
            bench.check();
            // Nothing is held any more: all existing entries can be changed.
            if !bench.ended.contains(&true) {
                let port = 4 * CHANGES_PER_BREATH;
                bench.propose(Changes::of(Change::Add { pipe: WIDE, entry: leading_to(1, port) }));
                bench.rest();
                assert_eq!(bench.met, BTreeSet::from([met, "done"]), "{fault:?} of worker {at}");
                bench.check();
            }
        }
    }
}

#[test]
fn a_swap_gives_reservations_back_and_lets_a_decided_change_end_first() {
    let count = 3 * CHANGES_PER_BREATH;
    for decided in [false, true] {
        let mut bench = ProposalWorkers::new(1);
        let add = |port: usize| Change::Add { pipe: WIDE, entry: leading_to(0, port) };
        bench.propose(Changes::new((0..count).map(add).collect()).expect("different entries"));
        (0..3).for_each(|_| bench.breathe(0));
        if decided {
            bench.look(0);
        }
        // As if the end of the change had not been awaited.
        let open = std::mem::take(&mut bench.open);
        assert!(bench.swap());
        bench.breathe(0);
        let made = bench.workers[0].0.engine().entries(WIDE).len();
        assert_eq!(made, if decided { CHANGES_PER_BREATH } else { 0 }, "a slice in a breath");
        (0..20).for_each(|_| bench.breathe(0));
        assert_eq!(bench.workers[0].0.report().generation, 2);
        bench.open = open;
        bench.look(0);
        bench.breathe(0);
        if decided {
            bench.check();
            assert_eq!(bench.model.len(), count);
        } else {
            // It can no longer be made, and holds nothing.
            assert_eq!(bench.workers[0].0.engine().entries(WIDE).len(), 0);
            bench.model.clear();
            bench.open.clear();
        }
        bench.propose(Changes::of(add(count)));
        bench.rest();
        bench.check();
    }
}

#[test]
fn what_is_reserved_has_its_place_even_against_flows() {
    let mut bench = ProposalWorkers::new(2);
    // The first worker knows five flows, which leaves one place.
    for number in 0..5 {
        bench.workers[0].1[0].push(&udp(number, 53));
    }
    bench.breathe(0);
    let own = |number| Entry::on(EntryMatch::Flow(flow(number))).run_time();
    bench.propose(Changes::of(Change::Add { pipe: FLOWS, entry: own(8) }));
    bench.breathe(0);
    bench.workers[0].1[0].push(&udp(9, 53));
    bench.breathe(0);
    assert_eq!(bench.workers[0].0.engine().flows(FLOWS, 100).1, 5, "the last place is held");
    bench.breathe(1);
    bench.look(0);
    bench.breathe(0);
    bench.breathe(1);
    bench.look(0);
    assert_eq!(bench.met, BTreeSet::from(["done"]));
    bench.check();
    // Now it is full, so the other worker does not make the change either.
    bench.propose(Changes::of(Change::Add { pipe: FLOWS, entry: own(9) }));
    bench.rest();
    assert_eq!(bench.met, BTreeSet::from(["done", "full of flows"]));
    bench.check();
}

#[test]
fn e3_a_batch_of_a_breath_is_carried_out_at_once_and_a_large_one_in_slices() {
    let add = |port: usize| Change::Add { pipe: WIDE, entry: leading_to(0, port) };
    for (count, breaths) in
        [(CHANGES_PER_BREATH, 1), (CHANGES_PER_BREATH + 1, 2), (5 * CHANGES_PER_BREATH, 5)]
    {
        let mut bench = ProposalWorkers::new(1);
        bench.propose(Changes::new((0..count).map(add).collect()).expect("different entries"));
        for breath in 1..=breaths {
            assert_eq!(
                bench.workers[0].0.engine().entries(WIDE).len(),
                0,
                "nothing happens before \
                everything is reserved"
            );
            bench.breathe(0);
            bench.look(0);
            assert!(breath < breaths || bench.met.is_empty());
        }
        for breath in 1..=breaths {
            bench.breathe(0);
            let made = bench.workers[0].0.engine().entries(WIDE).len();
            assert_eq!(made, (breath * CHANGES_PER_BREATH).min(count), "{count} in breath {breath}");
        }
        bench.look(0);
        assert_eq!(bench.met, BTreeSet::from(["done"]));
    }
}

#[test]
fn e2_a_batch_is_made_as_a_whole_and_what_it_removes_still_counts() {
    let program = program(5);
    let mut engine = Engine::new(&program, SECRET).expect("a program that compiles");
    let mut interpreter = Interpreter::new(&program, engine.buckets());
    let mut apply = |changes: Vec<Change>| {
        let batch = Change::Batch(Changes::new(changes).expect("different entries"));
        let (made, by_twin) = (engine.apply(&batch, 0), interpreter.apply(&batch));
        assert_eq!(made, by_twin);
        (made.map_err(|why| why.to_string()), engine.entries(SMALL).len())
    };
    let add = |port| Change::Add { pipe: SMALL, entry: leading_to(0, port) };
    let remove = |port| Change::Remove { pipe: SMALL, key: EntryKey::of(&leading_to(0, port)) };
    assert_eq!(apply((0..4).map(add).collect()), (Ok(()), 4));
    let full =
        "change 3 of the batch: pipe `small` is full (5 entries): raise its `capacity` or remove entries";
    assert_eq!(apply(vec![remove(0), add(4), add(5)]), (Err(full.into()), 4));
    assert_eq!(apply(vec![add(4), remove(0)]), (Ok(()), 4));
    let none = "change 2 of the batch: pipe `small` has no entry with this key";
    assert_eq!(apply(vec![remove(1), remove(0)]), (Err(none.into()), 4));
    let twice = Changes::new(vec![add(7), remove(1), remove(7)]).unwrap_err();
    assert_eq!(twice, ChangeError::At { index: 2, why: Box::new(ChangeError::Twice) });
    let nested = Changes::new(vec![Change::Batch(Changes::default())]).unwrap_err();
    assert_eq!(nested.cause(), &ChangeError::Alone);
}
