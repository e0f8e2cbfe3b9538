//! Commands that a worker carries out between two iterations of its loop.

use crate::rig::*;
use crate::support::{SECRET, start, udp};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use weir_engine::batch::Engine;
use weir_engine::batch::SwapReport;
use weir_engine::ring::carriers;
use weir_engine::worker::{BUCKETS_AT_ONCE, BucketReport, Command, Rewire, Rewiring, Worker};
use weir_packet::{DropReason, Field, Ledger, Pools};
use weir_port::{Delay, FaultPort, Faults, MemPort, Rates};
use weir_program::Verdict;
use weir_program::buckets::GroupTables;
use weir_program::change::Change;
use weir_program::{AppId, Entry, Fill, Forward, Group, GroupId, Operation, Pipe, PipeId, PortId, Program};

#[test]
fn a_swap_gives_the_apps_new_rings() {
    let (worker, wires, commands) = commanded(&all_to(Forward::App(AppId(0))), 8);
    let (punts, mut old) = carriers(3);
    let mut worker = worker.with_punts(vec![punts]);
    wires[0].push(&udp(1, 53));
    worker.breathe(0);
    assert!(worker.take_signal() && !worker.take_signal());
    let (punts, mut new) = carriers(3);
    let engine = Box::new(Engine::new(&all_to(Forward::App(AppId(0))), SECRET).unwrap());
    let rewiring = Rewiring {
        generation: 2,
        ports: vec![Rewire::Keep(0), Rewire::Keep(1)],
        punts: vec![punts],
        ..Rewiring::default()
    };
    ask(&mut worker, &commands, |answer| Command::Swap(engine, rewiring, answer));
    wires[0].push(&udp(2, 53));
    worker.breathe(1);
    assert_eq!(old.receive().map(|carrier| carrier.bytes().to_vec()), Some(udp(1, 53)));
    assert_eq!(new.receive().map(|carrier| carrier.bytes().to_vec()), Some(udp(2, 53)));
    assert!(old.receive().is_none() && new.receive().is_none());
    assert_eq!(balanced(&worker).to_app, 2);
}

#[test]
fn a_probe_says_what_would_be_and_counts_nothing() {
    let program = start(&["a"], [learning(8).act([Operation::DecrementTtl])]).build();
    let (mut worker, wires, commands) = commanded(&program, 4);
    let before = worker.engine().snapshot();
    let probe = ask(&mut worker, &commands, |answer| Command::Probe(PortId(0), udp(1, 53), answer)).unwrap();
    assert_eq!(probe.verdict, Verdict::Transmit(PortId(0)));
    assert_eq!(worker.engine().snapshot(), before);
    assert_eq!(balanced(&worker), Ledger::default());
    wires[0].push(&udp(1, 53));
    worker.breathe(0);
    assert_eq!(wires[0].pop(), Some(probe.bytes));
    assert_eq!(ask(&mut worker, &commands, |answer| Command::Probe(PortId(0), vec![0; 5000], answer)), None);
}

/// Frames wait in the port, as they do while a successor's other workers are not ready.
#[test]
fn a_dormant_worker_takes_no_frame_before_it_is_told_to_receive() {
    let (worker, wires, commands) = commanded(&all_to(Forward::Port(PortId(1))), 8);
    let mut worker = worker.dormant();
    wires[0].push(&udp(1, 53));
    for now_ns in 0..3 {
        ask(&mut worker, &commands, Command::Report);
        worker.breathe(now_ns);
        assert_eq!((balanced(&worker).received, wires[1].pop()), (0, None));
    }
    ask(&mut worker, &commands, Command::Receive);
    worker.breathe(3);
    assert_eq!((balanced(&worker).received, wires[1].pop()), (1, Some(udp(1, 53))));
}

#[test]
fn stopping_drops_what_the_ports_hold() {
    let program = all_to(Forward::Port(PortId(1)));
    let mut pools = Pools::region(8);
    let pool = pools.first().id();
    let (a, wire) = MemPort::new("a", pool);
    let (b, _other) = MemPort::new("b", pool);
    let delay = Delay::Ns(1_000_000_000);
    let rates = Rates { delay_ppm: 1_000_000, delay, ..Rates::default() };
    let late = FaultPort::new(Box::new(b), Faults { transmit: rates, ..Faults::default() });
    let (commands, receiver) = sync_channel(8);
    let engine = Engine::new(&program, SECRET).unwrap();
    let mut worker = Worker::new(engine, vec![Box::new(a), Box::new(late)], pools).with_commands(receiver);
    wire.push(&udp(1, 53));
    worker.breathe(0);
    assert_eq!(balanced(&worker).held, 1);
    let report = ask(&mut worker, &commands, Command::Stop);
    assert!(worker.is_stopped() && report.ledger.balances(), "{:?}", report.ledger);
    assert_eq!((report.ledger.held, dropped(&report.ledger, DropReason::Stopped)), (0, 1));
}

#[test]
fn a_breath_settles_moves_that_no_packet_meets() {
    let mut program = all_to(Forward::Group(GroupId(0)));
    program.groups = vec![Group::new("g", Fill::Given, 2).targets(crate::support::targets(&["x", "y"]))];
    let (mut worker, wires, commands) = commanded(&program, 64);
    let give = |worker: &mut Worker, target| {
        let (moves, idle_gap_ns, wait_max_ns) = ([(0, target), (1, target)].into(), 3_000_000, 9_000_000);
        let change = Box::new(Change::MoveBuckets { group: GroupId(0), moves, idle_gap_ns, wait_max_ns });
        ask(worker, &commands, |answer| Command::Change(change, answer)).unwrap();
    };
    give(&mut worker, 0);
    (0..50).for_each(|sport| wires[0].push(&udp(sport, 53)));
    worker.breathe(0);
    give(&mut worker, 1);
    let report = |worker: &Worker| worker.engine().bucket_reports().remove(0);
    let met = report(&worker);
    assert_eq!((met.slots, met.packets.iter().sum(), met.pending), (vec![0, 0], 50_u64, 2));
    worker.breathe(2_999_999);
    assert_eq!(report(&worker).pending, 2);
    worker.breathe(3_000_000);
    let settled = report(&worker);
    assert_eq!((settled.slots, settled.pending, settled.moved, settled.moved_busy), (vec![1, 1], 0, 4, 0));
    balanced(&worker);
}

#[test]
fn a_weight_and_a_swap_bring_their_buckets_and_the_worker_fills_none() {
    let mut program = all_to(Forward::Group(GroupId(0)));
    program.groups = vec![
        Group::new("g", Fill::Maglev, 65_537).targets(crate::support::targets(&["x", "y", "z"])),
        Group::new("h", Fill::Wants, 256).targets(crate::support::targets(&["x", "y", "z"])),
    ];
    let mut tables = GroupTables::new(&program);
    let (commands, receiver) = sync_channel(8);
    let mut pools = Pools::region(8);
    let (ports, _wires) = ports(&program, pools.first().id());
    let engine = Engine::with_tables(&program, SECRET, &tables).unwrap();
    let mut worker = Worker::new(engine, ports, pools).with_commands(receiver);
    for group in [0, 1].map(GroupId) {
        let weigh = Change::SetWeight { group, target: 1, weight: 0 };
        let change = Box::new(tables.publish(&weigh).unwrap());
        ask(&mut worker, &commands, |answer| Command::Change(change, answer)).unwrap();
        let slots = &worker.engine().bucket_report(group, 0..usize::MAX).slots;
        assert_eq!(slots, tables.table(group).buckets().slots());
        assert!(!slots.contains(&1), "its weight is 0");
        // Only the publisher and the worker hold it: nothing was copied.
        assert_eq!(Arc::strong_count(tables.table(group)), 2);
        assert_eq!(worker.engine().program().groups[group.index()].targets[1].weight, 0);
    }
    let weighed = Program { groups: tables.groups().to_vec(), ..program };
    let next = tables.succeed(&weighed);
    let engine = Box::new(Engine::with_tables(&weighed, SECRET, &next).unwrap());
    let rewiring =
        Rewiring { generation: 2, ports: vec![Rewire::Keep(0), Rewire::Keep(1)], ..Rewiring::default() };
    ask(&mut worker, &commands, |answer| Command::Swap(engine, rewiring, answer));
    assert!(Arc::ptr_eq(next.table(GroupId(1)), tables.table(GroupId(1))), "nothing has changed");
    assert_eq!(worker.report().filled, 0);
    // The counter works: without its buckets, a weight makes the worker fill them.
    let weigh = Box::new(Change::SetWeight { group: GroupId(0), target: 1, weight: 1 });
    ask(&mut worker, &commands, |answer| Command::Change(weigh, answer)).unwrap();
    assert_eq!(worker.report().filled, 1);
}

#[test]
fn buckets_are_reported_in_parts() {
    let size = 2 * BUCKETS_AT_ONCE as u32;
    let mut program = all_to(Forward::Group(GroupId(0)));
    program.groups = vec![Group::new("g", Fill::Given, size).targets(crate::support::targets(&["x"]))];
    let (mut worker, wires, commands) = commanded(&program, 64);
    (0..50).for_each(|sport| wires[0].push(&udp(sport, 53)));
    worker.breathe(0);
    let mut part = |from| ask(&mut worker, &commands, |answer| Command::Buckets(GroupId(0), from, answer));
    let (first, second) = (part(0), part(BUCKETS_AT_ONCE));
    for part in [&first, &second] {
        assert_eq!((part.slots.len(), part.packets.len(), part.bytes.len()), [BUCKETS_AT_ONCE; 3].into());
    }
    let met = |part: &BucketReport| part.packets.iter().sum::<u64>();
    assert_eq!(met(&first) + met(&second), 50);
    assert!(met(&first) > 0 && met(&second) > 0);
    assert_eq!(part(2 * BUCKETS_AT_ONCE), BucketReport::default());
    assert_eq!(part(usize::MAX), BucketReport::default());
}

#[test]
fn a_swap_renumbers_ports_and_keeps_the_account_of_one_that_goes() {
    let old = all_to(Forward::Port(PortId(1)));
    let (mut worker, wires, commands) = commanded(&old, 8);
    wires[0].push(&udp(1, 53));
    worker.breathe(0);
    // Only `b` is left, now as port 0.
    let mut new = all_to(Forward::InputPort);
    new.ports.remove(0);
    let engine = Box::new(Engine::new(&new, SECRET).unwrap());
    let swapped = ask(&mut worker, &commands, |answer| {
        Command::Swap(
            engine,
            Rewiring { generation: 2, ports: vec![Rewire::Keep(1)], ..Rewiring::default() },
            answer,
        )
    });
    assert_eq!(swapped.report, SwapReport::default());
    wires[1].push(&udp(2, 53));
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.received, ledger.transmitted), (2, 2));
    assert_eq!([wires[1].pop(), wires[1].pop()], [Some(udp(1, 53)), Some(udp(2, 53))]);
}

#[test]
fn a_large_swap_takes_many_breaths_and_frames_and_commands_go_on() {
    const ENTRIES: u32 = 2000;
    let pipe = Pipe::basic("p").per_entry(Field::Ipv4Src).forward(PortId(0)).capacity(4 * ENTRIES);
    let program = start(&["a"], [pipe]).build();
    let (mut worker, wires, commands) = commanded(&program, 8);
    for at in 0..ENTRIES {
        let entry = Entry::on(at).run_time();
        worker.engine_mut().apply(&Change::Add { pipe: PipeId(0), entry }, 0).unwrap();
    }
    let engine = Box::new(Engine::new(&program, SECRET).unwrap());
    let rewiring = Rewiring { generation: 2, ports: vec![Rewire::Keep(0)], ..Rewiring::default() };
    let (tell, swapped) = sync_channel(1);
    commands.send(Command::Swap(engine, rewiring, tell)).unwrap();
    let (tell, changed) = sync_channel(1);
    let change = Change::Add { pipe: PipeId(0), entry: Entry::on(ENTRIES).run_time() };
    commands.send(Command::Change(Box::new(change), tell)).unwrap();
    // Each busy breath, 100 microseconds after the previous one, does a small part of the swap.
    let (mut breaths, mut changed_after) = (0, None);
    let swapped = loop {
        wires[0].push(&udp(1, 53));
        worker.breathe(breaths * 100_000);
        breaths += 1;
        if changed.try_recv().is_ok() {
            changed_after = Some(breaths);
        }
        if let Ok(swapped) = swapped.try_recv() {
            break swapped;
        }
        assert!(breaths < 1000, "it comes to an end");
    };
    // At most 50 entries in each, twice.
    assert!(breaths >= 2 * u64::from(ENTRIES) / 64, "{breaths} breaths");
    let changed_after = changed_after.expect("the change was made");
    assert!((u64::from(ENTRIES) / 64..breaths).contains(&changed_after), "{changed_after} of {breaths}");
    assert_eq!(swapped.report.entries_kept, ENTRIES as usize);
    assert_eq!(worker.engine().entries(PipeId(0)).len(), ENTRIES as usize + 1);
    assert_eq!(balanced(&worker).received, breaths);
}
