//! Replacing a running program: whatever survives continues undisturbed, and whatever does not leaves its
//! counts behind.

mod support;

use std::collections::{BTreeMap, HashMap};
use support::{Bench, SECRET, start, udp};
use weir_engine::batch::{Engine, SwapReport};
use weir_oracle::arbitrary::{Choices, Event, event, program};
use weir_packet::{Field, FlowKey, KeySource};
use weir_program::Verdict;
use weir_program::change::{Change, Changes, EntryKey};
use weir_program::snapshot::{BucketReport, Count};
use weir_program::{
    AppId, CounterId, Criterion, Entry, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, HashInput,
    Learn, Match, MeterId, NewFlows, Operation, Pipe, PipeId, PipeKind, PortId, Program, SharedUse, Target,
    Timeouts,
};
use weir_table::{Belonging, FlowDelta};

// ---- individual cases ----

/// One port and one BASIC pipe on `l4.dport` with an entry for 53.
fn counted() -> Program {
    let pipe = Pipe::basic("p").per_entry(Field::L4Dport).entry(53).forward(PortId(0)).capacity(8);
    start(&["a", "b"], [pipe]).build()
}

/// Runs a frame through `old`, swaps to `new`, and returns the hits of pipe `p` afterwards.
fn hits_after(old: &Program, new: &Program) -> Option<u64> {
    let mut bench = Bench::new(old);
    bench.frame(PortId(0), &udp(1, 53));
    bench.swap(new);
    let pipe = new.pipe_named("p")?;
    bench.engine.entries(pipe).first().map(|(_, count)| count.packets)
}

#[test]
fn s2_an_entry_survives_iff_name_type_matches_and_action_shape_are_equal() {
    let with = |change: &dyn Fn(&mut Pipe)| {
        let mut new = counted();
        change(&mut new.pipes[0]);
        hits_after(&counted(), &new)
    };
    assert_eq!(with(&|_| {}), Some(1));
    assert_eq!(with(&|pipe| pipe.miss = Forward::Port(PortId(1))), Some(1));
    assert_eq!(with(&|pipe| pipe.forward = Forward::Port(PortId(1))), Some(1));
    assert_eq!(with(&|pipe| pipe.rehash = true), Some(1));
    assert_eq!(with(&|pipe| pipe.capacity = 77), Some(1));
    assert_eq!(with(&|pipe| pipe.matches[0].field = Field::L4Sport), Some(0));
    let mask = Criterion::PerEntry { mask: 0xff };
    assert_eq!(with(&|pipe| pipe.matches[0].criterion = mask), Some(0));
    assert_eq!(with(&|pipe| pipe.templates[0].name = "other".into()), Some(0));
    assert_eq!(with(&|pipe| pipe.templates[0].operations.push(Operation::DecrementTtl)), Some(0));
    let acl = |pipe: &mut Pipe| {
        pipe.kind = PipeKind::Acl;
        pipe.matches[0].criterion = Criterion::Masked;
        let masked = vec![EntryMatch::Masked { value: 53, mask: 0xffff }];
        pipe.entries.edit(|all| all[0].matches = masked);
    };
    assert_eq!(with(&acl), Some(0));
    let mut renamed = counted();
    renamed.pipes[0].name = "q".into();
    assert_eq!(hits_after(&counted(), &renamed), None);
}

#[test]
fn s2_constants_of_an_action_are_not_its_shape() {
    let to = |ttl| {
        let mut program = counted();
        let set = Operation::Set(Field::Ipv4Ttl, weir_program::Value::Const(ttl));
        program.pipes[0].templates[0].operations.push(set);
        program
    };
    assert_eq!(hits_after(&to(1), &to(2)), Some(1));
}

#[test]
fn s3_run_time_entries_stay_and_configured_ones_go_with_their_configuration() {
    let mut bench = Bench::new(&counted());
    let entry = |value| Entry::on(value).run_time();
    bench.apply(Change::Add { pipe: PipeId(0), entry: entry(80) }).unwrap();
    bench.frame(PortId(0), &udp(1, 80));
    bench.frame(PortId(0), &udp(1, 53));
    let mut without = counted();
    without.pipes[0].entries.clear();
    let report = bench.swap(&without);
    assert_eq!(report, SwapReport { removed: vec![("p".into(), 1, 0)], entries_kept: 1, flows_kept: 0 });
    let kept: Vec<_> =
        bench.engine.entries(PipeId(0)).into_iter().map(|(entry, count)| (entry, count.packets)).collect();
    assert_eq!(kept, [(entry(80), 1)]);
}

#[test]
fn s3_a_run_time_entry_that_would_lead_back_is_lost() {
    let pipe = |name| Pipe::basic(name).per_entry(Field::L4Dport).forward(Forward::PerEntry);
    let mut old = start(&["a"], [pipe("first"), pipe("second")]).build();
    let entry = Entry::on(53).to(PipeId(1)).run_time();
    let mut bench = Bench::new(&old);
    bench.apply(Change::Add { pipe: PipeId(0), entry }).unwrap();
    old.pipes[1].miss = Forward::Pipe(PipeId(0));
    old.ports[0].root = Some(PipeId(1));
    assert_eq!(bench.swap(&old).removed, [("first".to_string(), 1, 0)]);
    assert_eq!(bench.frame(PortId(0), &udp(1, 53)), Verdict::Drop(weir_packet::DropReason::Miss));
}

/// The target to which a flow of the first pipe is attributed.
fn belonging(generation: u8, target: u32) -> Belonging {
    Belonging { generation, pipe: 0, target }
}

/// A FLOW pipe that pins flows to targets of a group.
fn pinning(capacity: u32, targets: &[&str]) -> Program {
    let rows = (0..targets.len() as u16).map(EntryMatch::Target);
    let flow =
        Pipe::flow("f", Learn::Pin(GroupId(0).into())).entries(rows).capacity(capacity).forward(PortId(0));
    let mut program = start(&["a"], [flow]);
    program.group(Group::new("g", Fill::Wants, 12).targets(support::targets(targets)));
    program.build()
}

#[test]
fn s2_removed_flows_leave_their_deltas_and_the_others_stay_with_their_target() {
    let mut bench = Bench::new(&pinning(64, &["x", "y", "z"]));
    bench.learn(40);
    let before = bench.live();
    let pins = |bench: &Bench| -> BTreeMap<FlowKey, String> {
        let name = |pin| format!("{:?}", bench.engine.program().groups[0].targets[usize::from(pin)].name);
        let flows = bench.engine.flows(PipeId(0), 1_000).0.into_iter();
        flows
            .map(|flow| match flow.decision {
                weir_program::snapshot::FlowDecision::Pinned(pin) => (flow.key, name(pin)),
                other => panic!("{other:?}"),
            })
            .collect()
    };
    let mut wanted = pins(&bench);
    let all = wanted.len();
    wanted.retain(|_, name| *name != "\"y\"");
    // y is removed and the others are renumbered.
    let report = bench.swap(&pinning(64, &["z", "new", "x"]));
    assert_eq!(report.removed, [("f".to_string(), 1, all - wanted.len())]);
    assert_eq!(pins(&bench), wanted);
    // Flows of the removed target are attributed to it, in the program that had it: the second of its group.
    assert!(bench.deltas.iter().all(|delta| delta.of() == belonging(1, 1)), "{:?}", bench.deltas);
    assert_eq!(bench.flow_ledger(), before);
}

#[test]
fn s2_flows_move_into_a_table_of_another_capacity_as_far_as_they_fit() {
    for (capacity, kept) in [(64, 20), (20, 20), (7, 7)] {
        let mut bench = Bench::new(&pinning(32, &["x", "y"]));
        bench.learn(20);
        let before = bench.live();
        let report = bench.swap(&pinning(capacity, &["x", "y"]));
        assert_eq!((report.flows_kept, bench.engine.flows(PipeId(0), 0).1), (kept, kept));
        assert_eq!(bench.flow_ledger(), before);
    }
}

#[test]
fn a_configured_flow_finds_room_in_a_table_full_of_learnt_ones() {
    let mut bench = Bench::new(&pinning(4, &["x", "y"]));
    bench.learn(4);
    let before = bench.live();
    let mut new = pinning(4, &["x", "y"]);
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (9, 53), None);
    new.pipes[0].entries.push(&Entry::on(EntryMatch::Flow(key)));
    let report = bench.swap(&new);
    assert_eq!(report.removed, [("f".to_string(), 0, 1)]);
    assert!(bench.engine.flow(PipeId(0), &key).is_some());
    assert_eq!(bench.flow_ledger(), before);
}

#[test]
fn deltas_of_a_pipe_that_is_gone_are_not_lost() {
    let mut bench = Bench::new(&pinning(4, &["x"]));
    bench.frame(PortId(0), &udp(1, 53));
    let before = bench.live();
    bench.swap(&counted());
    assert_eq!(bench.deltas.iter().map(FlowDelta::of).collect::<Vec<_>>(), [belonging(1, 0)]);
    assert_eq!(bench.flow_ledger(), before);
}

#[test]
fn s4_wants_count_goes_on_from_the_buckets_it_had() {
    let program = |weights: &[(&str, u32)]| {
        let names: Vec<&str> = weights.iter().map(|one| one.0).collect();
        let mut program = pinning(4, &names);
        for (target, (_, weight)) in weights.iter().enumerate() {
            program.groups[0].set_weight(target, *weight);
        }
        program
    };
    let names = |bench: &Bench| -> Vec<String> {
        let targets = &bench.engine.program().groups[0].targets;
        bench.engine.buckets()[0].iter().map(|slot| targets[usize::from(*slot)].name.clone()).collect()
    };
    let mut bench = Bench::new(&program(&[("x", 1), ("y", 1)]));
    // Setting the weight of y to zero and back leaves a different bucket table than a fresh fill.
    bench.apply(Change::SetWeight { group: GroupId(0), target: 1, weight: 3 }).unwrap();
    bench.apply(Change::SetWeight { group: GroupId(0), target: 1, weight: 1 }).unwrap();
    let before = names(&bench);
    bench.swap(&program(&[("y", 1), ("x", 1)]));
    assert_eq!(names(&bench), before, "renumbered: nothing moves");
    bench.swap(&program(&[("z", 1), ("y", 1), ("x", 1)]));
    let moved = before.iter().zip(names(&bench)).filter(|(old, new)| *old != new).count();
    assert_eq!(moved, before.len() / 3, "a third moves to the newcomer");
    assert_ne!(names(&Bench::new(&program(&[("z", 1), ("y", 1), ("x", 1)]))), names(&bench));
}

#[test]
fn s5_given_buckets_go_on_by_the_names_of_their_targets() {
    let program = |names: &[&str], size| {
        let rows = (0..names.len() as u16).map(EntryMatch::Target);
        let hash = Pipe::hash("h", HashInput::Select(KeySource::Outer), GroupId(0)).entries(rows);
        let mut program = start(&["a"], [hash.forward(PortId(0))]);
        program.group(Group::new("g", Fill::Given, size).targets(support::targets(names)));
        program.build()
    };
    let give = |moves: &[(u32, u16)]| {
        let (idle_gap_ns, wait_max_ns) = (1_000, u64::MAX);
        Change::MoveBuckets { group: GroupId(0), moves: moves.into(), idle_gap_ns, wait_max_ns }
    };
    let mut bench = Bench::new(&program(&["x", "y", "z"], 4));
    bench.apply(give(&[(0, 0), (1, 1), (2, 2), (3, 0)])).unwrap();
    bench.learn(100);
    bench.apply(give(&[(0, 1), (1, 2), (2, 1), (3, 2)])).unwrap();
    let report = |bench: &Bench| bench.engine.bucket_reports().remove(0);
    let before = report(&bench);
    assert_eq!((&before.slots[..], before.pending), (&[0, 1, 2, 0][..], 4));
    assert_eq!(before.packets.iter().sum::<u64>(), 100);
    // z is gone, and with it the pending moves of 1 and 3; bucket 2 goes to its destination at once.
    bench.swap(&program(&["y", "new", "x"], 4));
    bench.engine.age(0);
    let after = report(&bench);
    assert_eq!((&after.slots[..], after.pending), (&[2, 0, 0, 2][..], 1));
    assert_eq!((after.packets, after.bytes), (before.packets, before.bytes));
    assert_eq!((after.moved, after.moved_busy), (5, 0));
    bench.now_ns = 1_000;
    bench.learn(100);
    assert_eq!(report(&bench).slots, [0, 0, 0, 2], "the waiting move continues");
    // y is gone and no move was ordered for its three buckets, so they go to the remaining targets.
    bench.swap(&program(&["new", "x"], 4));
    assert_eq!(report(&bench).slots, [1, 1, 1, 1]);
    bench.swap(&program(&["y", "x"], 4));
    bench.swap(&program(&["y", "new", "x"], 8));
    let other = report(&bench);
    assert_eq!((&other.slots[..], other.packets.iter().sum()), (&[weir_table::NO_TARGET; 8][..], 0_u64));
}

#[test]
fn s2_packets_are_dealt_out_from_where_they_were() {
    let rows = [0, 1].map(|target| Entry::on(EntryMatch::Target(target)).to(PortId(target)));
    let hash = Pipe::hash("h", HashInput::RoundRobin, GroupId(0)).entries(rows).forward(Forward::PerEntry);
    let mut program = start(&["a", "b"], [hash]);
    program.group(Group::new("g", Fill::Wants, 2).targets(support::targets(&["x", "y"])));
    let program = program.build();
    let mut bench = Bench::new(&program);
    let first = bench.frame(PortId(0), &udp(1, 53));
    bench.swap(&program);
    assert_ne!(bench.frame(PortId(0), &udp(1, 53)), first);
    assert_eq!(bench.frame(PortId(0), &udp(1, 53)), first);
}

// ---- random programs ----

/// A renumbering of everything that has a number: `pipes[old] = new`.
struct Numbers {
    ports: Vec<usize>,
    pipes: Vec<usize>,
    groups: Vec<usize>,
    targets: Vec<Vec<usize>>,
    counters: Vec<usize>,
    meters: Vec<usize>,
    apps: Vec<usize>,
}

fn shuffled(random: &mut Choices, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    for at in (1..count).rev() {
        places.swap(at, random.below(at + 1));
    }
    places
}

fn placed<T: Clone>(list: &[T], places: &[usize]) -> Vec<T> {
    let mut pairs: Vec<(usize, T)> = places.iter().copied().zip(list.iter().cloned()).collect();
    pairs.sort_by_key(|pair| pair.0);
    pairs.into_iter().map(|pair| pair.1).collect()
}

impl Numbers {
    fn new(random: &mut Choices, program: &Program) -> Numbers {
        Numbers {
            ports: shuffled(random, program.ports.len()),
            pipes: shuffled(random, program.pipes.len()),
            groups: shuffled(random, program.groups.len()),
            targets: program.groups.iter().map(|group| shuffled(random, group.targets.len())).collect(),
            counters: shuffled(random, program.counters.len()),
            meters: shuffled(random, program.meters.len()),
            apps: shuffled(random, program.apps.len()),
        }
    }

    fn program(&self, old: &Program) -> Program {
        let mut new = old.clone();
        new.ports.iter_mut().for_each(|port| port.root = port.root.map(|root| self.pipe(root)));
        for (at, group) in new.groups.iter_mut().enumerate() {
            self.group_of(at, group);
        }
        new.pipes.iter_mut().for_each(|pipe| self.pipe_of(pipe));
        new.ports = placed(&new.ports, &self.ports);
        new.groups = placed(&new.groups, &self.groups);
        new.pipes = placed(&new.pipes, &self.pipes);
        new.counters = placed(&new.counters, &self.counters);
        new.meters = placed(&new.meters, &self.meters);
        new.apps = placed(&new.apps, &self.apps);
        new
    }

    fn group_of(&self, at: usize, group: &mut Group) {
        let led = |target: &Target| Target { forward: self.forward(target.forward), ..target.clone() };
        let targets: Vec<Target> = group.targets.iter().map(led).collect();
        group.targets = placed(&targets, &self.targets[at]).into();
        for app in [&mut group.no_target, &mut group.idle] {
            *app = app.map(|app| AppId(self.apps[app.index()] as u16));
        }
    }

    fn pipe_of(&self, pipe: &mut Pipe) {
        let group = match &mut pipe.kind {
            PipeKind::Hash { group, .. } => Some(group),
            PipeKind::Flow { learn: Learn::Pin(group) | Learn::Follow(group), .. } => Some(group),
            _ => None,
        };
        let mut targets = Vec::new();
        if let Some(GroupChoice::One(group)) = group {
            targets = self.targets[group.index()].clone();
            *group = self.group(*group);
        }
        pipe.forward = self.forward(pipe.forward);
        pipe.miss = self.forward(pipe.miss);
        pipe.too_long = pipe.too_long.map(|app| AppId(self.apps[app.index()] as u16));
        if let Some(SharedUse::Pipe(counter)) = &mut pipe.monitor.counter {
            *counter = self.counter(*counter);
        }
        if let Some(SharedUse::Pipe(meter)) = &mut pipe.monitor.meter {
            *meter = self.meter(*meter);
        }
        for one in &mut pipe.matches {
            if let (Field::InputPort, Criterion::Const { value, mask: 0xffff }) =
                (one.field, &mut one.criterion)
            {
                *value = self.port(*value);
            }
        }
        let varying: Vec<_> = pipe.varying().copied().collect();
        pipe.entries.edit(|all| all.iter_mut().for_each(|entry| self.entry(entry, &varying, &targets)));
    }

    fn entry(&self, entry: &mut Entry, varying: &[Match], targets: &[usize]) {
        for (at, one) in entry.matches.iter_mut().enumerate() {
            match one {
                EntryMatch::Target(target) => *target = targets[usize::from(*target)] as u16,
                EntryMatch::Member { group, target } => {
                    *target = self.targets[group.index()][usize::from(*target)] as u16;
                    *group = self.group(*group);
                }
                other if varying.get(at).is_some_and(|one| one.field == Field::InputPort) => {
                    self.port_match(other);
                }
                _ => {}
            }
        }
        entry.forward = entry.forward.map(|forward| self.forward(forward));
        entry.counter = entry.counter.map(|counter| self.counter(counter));
        entry.meter = entry.meter.map(|meter| self.meter(meter));
    }

    fn forward(&self, forward: Forward) -> Forward {
        match forward {
            Forward::Port(id) => Forward::Port(PortId(self.ports[id.index()] as u16)),
            Forward::Pipe(id) => Forward::Pipe(self.pipe(id)),
            Forward::Group(id) => Forward::Group(self.group(id)),
            Forward::Flood(id) => Forward::Flood(self.group(id)),
            Forward::Tee { app, next } => {
                Forward::Tee { app: AppId(self.apps[app.index()] as u16), next: self.pipe(next) }
            }
            Forward::App(id) => Forward::App(AppId(self.apps[id.index()] as u16)),
            other => other,
        }
    }

    /// Renumbers what an entry matches `port` with.
    fn port_match(&self, one: &mut EntryMatch) {
        match one {
            EntryMatch::Masked { mask: 0, .. } | EntryMatch::Any => {}
            EntryMatch::Value(value) | EntryMatch::Masked { value, .. } => *value = self.port(*value),
            EntryMatch::Range { first, last } => {
                (*first, *last) =
                    (self.ports[usize::from(*first)] as u16, self.ports[usize::from(*last)] as u16);
            }
            other => panic!("{other:?} is no port"),
        }
    }

    fn port(&self, number: u128) -> u128 {
        self.ports[number as usize] as u128
    }

    fn pipe(&self, id: PipeId) -> PipeId {
        PipeId(self.pipes[id.index()] as u16)
    }

    fn group(&self, id: GroupId) -> GroupId {
        GroupId(self.groups[id.index()] as u16)
    }

    fn counter(&self, id: CounterId) -> CounterId {
        CounterId(self.counters[id.index()] as u16)
    }

    fn meter(&self, id: MeterId) -> MeterId {
        MeterId(self.meters[id.index()] as u16)
    }
}

/// Where a frame and its copies went, by name. Which copy of a flood is the frame itself depends on port
/// numbers.
fn named(program: &Program, (verdict, copies): (Verdict, Vec<Verdict>)) -> Vec<String> {
    let name = |verdict: Verdict| match verdict {
        Verdict::Transmit(port) => format!("port {}", program.ports[port.index()].name),
        Verdict::Kernel(port) => format!("kernel {}", program.ports[port.index()].name),
        Verdict::App(app) => format!("app {}", program.apps[app.index()]),
        Verdict::Drop(reason) => format!("drop {reason}"),
    };
    let mut names: Vec<String> = copies.into_iter().chain([verdict]).map(name).collect();
    names.sort();
    names
}

/// A random program that has run for a while, with changes to run-time entries only, because a swap restores
/// configured ones.
fn grown(random: &mut Choices) -> Bench {
    let mut program = program(random);
    // Turns start over with each program, in the order in which its targets are written (M24).
    program.groups.iter_mut().for_each(|group| group.new_flows = NewFlows::Hash);
    for pipe in &mut program.pipes {
        pipe.monitor.idle_timeout_ns = 0;
        if let PipeKind::Flow { timeouts, .. } = &mut pipe.kind {
            *timeouts = Timeouts::NEVER;
        }
    }
    let mut bench = Bench::new(&program);
    for _ in 0..80 {
        let state = bench.engine.snapshot();
        match event(random, &program, &state) {
            Event::Frame { input, bytes, .. } => _ = bench.frame(input, &bytes),
            Event::Change(change) => {
                let entries =
                    |pipe: PipeId| state.pipes.get(pipe.index()).map_or(&[][..], |pipe| &pipe.entries);
                let configured = |pipe: PipeId, key: &EntryKey| {
                    entries(pipe).iter().any(|entry| entry.key == *key && !entry.run_time)
                };
                let mut changes = change.singles().to_vec();
                let refused = changes.iter_mut().any(|change| match change {
                    Change::Add { entry, .. } => {
                        entry.run_time = true;
                        false
                    }
                    Change::Update { pipe, entry } => configured(*pipe, &EntryKey::of(entry)),
                    Change::Remove { pipe, key } => configured(*pipe, key),
                    Change::SetWeight { .. }
                    | Change::SetWeights { .. }
                    | Change::Publish { .. }
                    | Change::MoveBuckets { .. }
                    | Change::NameCounters(_)
                    | Change::Batch(_) => false,
                });
                if !refused {
                    let change = match changes.len() {
                        1 => changes.remove(0),
                        _ => Change::Batch(Changes::new(changes).expect("the batch existed before")),
                    };
                    let _ = bench.apply(change);
                }
            }
            Event::Time { ns } => bench.now_ns += ns,
            Event::Age => {}
        }
    }
    // The current weights.
    program.groups = bench.engine.program().groups.clone();
    bench.program = program;
    bench
}

#[test]
fn s4_after_new_numbers_alone_everything_goes_on() {
    let mut reordered = 0;
    for seed in 0..300 {
        let mut random = Choices::from_seed(seed);
        let mut old = grown(&mut random);
        let numbers = Numbers::new(&mut random, &old.program);
        let mut new = old.successor(&numbers.program(&old.program));
        new.now_ns = old.now_ns;
        // A swap consumes the old engine.
        let report = new.engine.inherit(&mut old.replay(), old.now_ns);
        if !report.removed.is_empty() {
            // Pipes in another order may run in another order, so that a run-time entry may lead backwards
            // there.
            assert!(!numbers.pipes.is_sorted(), "seed {seed}: {report:?}");
            reordered += 1;
            continue;
        }
        for _ in 0..60 {
            let input = PortId(random.below(old.program.ports.len()) as u16);
            let bytes = weir_oracle::arbitrary::frame(&mut random);
            let renumbered = PortId(numbers.ports[input.index()] as u16);
            let (wanted, found) =
                (old.frame_and_copies(input, &bytes), new.frame_and_copies(renumbered, &bytes));
            assert_eq!(named(&new.program, found), named(&old.program, wanted), "seed {seed}");
        }
        assert_eq!(counts(&new), counts(&old), "seed {seed}");
        assert_eq!(buckets(&new), buckets(&old), "seed {seed}");
        assert_eq!(new.flow_ledger(), old.flow_ledger(), "seed {seed}");
    }
    assert!(reordered < 30, "{reordered} of 300");
}

/// For each group with [`Fill::Given`], by name: the names of the targets of its buckets, and the rest of its
/// report.
fn buckets(bench: &Bench) -> BTreeMap<String, (Vec<String>, BucketReport)> {
    let groups = bench.program.groups.iter().zip(bench.engine.bucket_reports());
    let given = groups.filter(|(group, _)| group.fill == Fill::Given);
    let named = |(group, report): (&Group, BucketReport)| {
        let name =
            |slot: &u16| group.targets.get(usize::from(*slot)).map_or("-", |target| &target.name).to_string();
        let slots = report.slots.iter().map(name).collect();
        (group.name.clone(), (slots, BucketReport { slots: Vec::new(), ..report }))
    };
    given.map(named).collect()
}

/// Hits and misses by name of pipe, and shared counters by name.
fn counts(bench: &Bench) -> BTreeMap<String, (Count, Count)> {
    let snapshot = bench.engine.snapshot();
    let hits = |entries: &[weir_program::snapshot::EntrySnapshot]| {
        entries.iter().fold(Count::default(), |mut sum, entry| {
            sum.add(entry.hits);
            sum
        })
    };
    let pipes = bench.program.pipes.iter().zip(&snapshot.pipes);
    let pipes = pipes.map(|(pipe, counts)| (pipe.name.clone(), (hits(&counts.entries), counts.misses)));
    let counters = bench.program.counters.iter().zip(&snapshot.counters);
    pipes.chain(counters.map(|(name, count)| (name.clone(), (*count, Count::default())))).collect()
}

/// Changes a program so that some state is lost; returns the names of pipes that keep their shape.
fn damage(random: &mut Choices, program: &mut Program) {
    for at in 0..program.pipes.len() {
        let pipe = &mut program.pipes[at];
        match random.below(8) {
            0 => pipe.name.push('\''),
            1 => pipe.templates[0].name.push('\''),
            2 if !pipe.entries.is_empty() => {
                drop(pipe.entries.edit(|all| all.remove(random.below(all.len()))))
            }
            3 => pipe.capacity = (pipe.entries.len() + random.pick(&[0, 1, 5, 100])).max(1) as u32,
            4 => pipe.miss = Forward::Drop,
            _ => {}
        }
    }
    for group in &mut program.groups {
        if random.percent(30) {
            let at = random.below(group.targets.len());
            group.target_mut(at).name.push('\'');
        }
    }
}

#[test]
fn whatever_is_lost_is_accounted_for() {
    let (mut kept, mut lost, mut gone) = (0, 0, 0);
    for seed in 0..300 {
        let mut random = Choices::from_seed(seed);
        let mut bench = grown(&mut random);
        let mut new = Numbers::new(&mut random, &bench.program).program(&bench.program);
        damage(&mut random, &mut new);
        let old = bench.program.clone();
        let entries = by_name(&bench);
        let ledger = bench.flow_ledger();
        let flows = bench.live().values().map(|one| one.packets).sum::<u64>();
        let report = bench.swap(&new);
        assert_eq!(bench.flow_ledger(), ledger, "seed {seed}");
        for ((pipe, key), count) in by_name(&bench) {
            let shape = |program: &Program| {
                let pipe = program.pipes.iter().find(|one| one.name == pipe)?;
                let names: Vec<String> =
                    pipe.templates.iter().map(|template| template.name.clone()).collect();
                Some((names, std::mem::discriminant(&pipe.kind)))
            };
            let before = entries.get(&(pipe.clone(), key.clone())).filter(|_| shape(&old) == shape(&new));
            assert_eq!(count, before.copied().unwrap_or_default(), "seed {seed} {pipe} {key}");
        }
        let total = |entries: &HashMap<(String, String), Count>| entries.len();
        let removed: usize = report.removed.iter().map(|one| one.1).sum();
        assert_eq!(report.entries_kept + removed, total(&entries), "seed {seed}: {report:?}");
        kept += report.flows_kept;
        lost += report.removed.iter().map(|one| one.2).sum::<usize>();
        let names = |program: &Program, at: u16| program.pipes[usize::from(at)].name.clone();
        let is_gone = |delta: &&FlowDelta| new.pipe_named(&names(&old, delta.of().pipe)).is_none();
        gone += bench.deltas.iter().filter(|delta| delta.of().generation == 1).filter(is_gone).count();
        assert!(bench.live().values().map(|one| one.packets).sum::<u64>() <= flows, "seed {seed}");
    }
    assert!(
        kept > 100 && lost > 100 && gone > 10,
        "{kept} flows kept, {lost} lost, {gone} of pipes that are gone"
    );
}

/// Counts of entries by name of pipe and key, with targets by name.
fn by_name(bench: &Bench) -> HashMap<(String, String), Count> {
    let mut all = HashMap::new();
    for (at, pipe) in bench.program.pipes.iter().enumerate() {
        let group = match pipe.kind {
            PipeKind::Hash { group, .. } => Some(group),
            PipeKind::Flow { learn: Learn::Pin(group) | Learn::Follow(group), .. } => Some(group),
            _ => None,
        };
        for (entry, count) in bench.engine.entries(PipeId(at as u16)) {
            let key = match (&entry.matches[..], &group) {
                ([EntryMatch::Target(target)], Some(GroupChoice::One(group)))
                | ([EntryMatch::Member { group, target }], _) => {
                    let group = &bench.program.groups[group.index()];
                    format!("{} of {}", group.targets[usize::from(*target)].name, group.name)
                }
                (matches, _) => {
                    format!("{:?} {}", by_port_name(&bench.program, pipe, matches), entry.priority)
                }
            };
            assert_eq!(all.insert((pipe.name.clone(), key), count), None);
        }
    }
    all
}

/// The match of an entry, with ports by name.
fn by_port_name(program: &Program, pipe: &Pipe, matches: &[EntryMatch]) -> Vec<String> {
    let of = pipe.varying().map(|one| one.field).chain(std::iter::repeat(Field::Meta0));
    let one = |(field, one): (Field, &EntryMatch)| match *one {
        EntryMatch::Value(port) | EntryMatch::Masked { value: port, mask: 0xffff }
            if field == Field::InputPort =>
        {
            program.ports[port as usize].name.clone()
        }
        EntryMatch::Range { first, .. } if field == Field::InputPort => {
            program.ports[usize::from(first)].name.clone()
        }
        other => format!("{other:?}"),
    };
    of.zip(matches).map(one).collect()
}

#[test]
fn both_kinds_of_key_survive_with_their_secret() {
    // Rows are placed by a secret hash; with another secret, an heir would not find the flows it inherited.
    let mut program = pinning(16, &["x"]);
    program.pipes[0].kind = PipeKind::Flow {
        key: KeySource::Inner,
        learn: Learn::Pin(GroupId(0).into()),
        timeouts: Timeouts::NEVER,
        first: false,
        reverse: false,
    };
    let mut bench = Bench::new(&program);
    bench.frame(PortId(0), &udp(7, 53));
    let mut heir = Engine::new(&program, SECRET).unwrap();
    heir.inherit(&mut bench.engine, 0);
    let (flows, count) = heir.flows(PipeId(0), 9);
    assert_eq!(count, 1);
    assert!(heir.flow(PipeId(0), &flows[0].key).is_some());
}
