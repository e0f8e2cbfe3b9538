//! Flow deltas: the counts with which flows leave a FLOW pipe, and what happens to flows whose deltas have no
//! room.

mod support;

use std::sync::mpsc::Receiver;
use support::{Bench, SECRET, start, targets, udp};
use weir_engine::batch::Engine;
use weir_engine::delta::{DeltaReason, FlowDelta};
use weir_engine::ring;
use weir_engine::worker::Worker;
use weir_packet::{FlowKey, Pools, Port};
use weir_port::{Generator, Stream};
use weir_program::change::{Change, EntryKey};
use weir_program::snapshot::FlowDecision;
use weir_program::{Entry, EntryMatch, Fill, Group, GroupId, Learn, Pipe, PipeId, PortId, Program};

const MS: u64 = 1_000_000;

/// A program that pins flows to `x` and `y`.
fn pinning(capacity: u32) -> Program {
    let rows = (0..2).map(EntryMatch::Target);
    let flow =
        Pipe::flow("f", Learn::Pin(GroupId(0).into())).entries(rows).capacity(capacity).forward(PortId(0));
    let mut program = start(&["a"], [flow.idle_timeout_ns(100 * MS)]);
    program.group(Group::new("g", Fill::Wants, 12).targets(targets(&["x", "y"])));
    program.build()
}

fn removal_of(target: u16) -> Change {
    Change::Remove { pipe: PipeId(0), key: EntryKey::one(EntryMatch::Target(target)) }
}

fn entry_of(target: u16) -> Change {
    Change::Add { pipe: PipeId(0), entry: Entry::on(EntryMatch::Target(target)) }
}

/// Flows that are pinned to a target.
fn pinned_to(engine: &Engine, target: u16) -> usize {
    let flows = engine.flows(PipeId(0), usize::MAX).0;
    flows.iter().filter(|flow| flow.decision == FlowDecision::Pinned(target)).count()
}

#[test]
fn an_entry_that_is_removed_costs_nothing_per_flow_and_its_flows_are_gone_at_once() {
    let mut bench = Bench::new(&pinning(64));
    bench.learn(40);
    let (of_x, of_y) = (pinned_to(&bench.engine, 0), pinned_to(&bench.engine, 1));
    assert!(of_x > 5 && of_y > 5);
    bench.apply(removal_of(0)).unwrap();
    // They are gone for every reader, but their counts are still in place, because nothing has visited them.
    assert_eq!((bench.engine.flows(PipeId(0), 100).1, pinned_to(&bench.engine, 0)), (of_y, 0));
    assert_eq!((bench.engine.flow_account().live, bench.engine.packets_in_deltas()), (40, 0));
    // The entry that returns is a different one: packets of the old flows are learnt again.
    bench.apply(entry_of(0)).unwrap();
    assert_eq!(pinned_to(&bench.engine, 0), 0);
    bench.learn(40);
    assert_eq!(pinned_to(&bench.engine, 0), of_x);
    assert!(bench.engine.flows(PipeId(0), 100).0.iter().all(|flow| flow.first_ms == 0));
    bench.take_deltas();
    let given: Vec<_> = bench.deltas.iter().map(|delta| (delta.reason(), delta.packets())).collect();
    assert_eq!(given, vec![(DeltaReason::Removed, 1); of_x]);
    assert!(bench.deltas.iter().all(|delta| delta.of().target == 0 && delta.of().generation == 1));
}

#[test]
fn a_full_table_makes_room_with_flows_that_are_removed() {
    let mut bench = Bench::new(&pinning(8));
    bench.learn(8);
    bench.apply(removal_of(0)).unwrap();
    bench.apply(entry_of(0)).unwrap();
    let live = bench.engine.flows(PipeId(0), 0).1;
    for sport in 100..100 + (8 - live as u16) {
        bench.frame(PortId(0), &udp(sport, 53));
    }
    assert_eq!(bench.engine.flows(PipeId(0), 0).1, 8);
    assert_eq!(bench.engine.flow_account().unflowed.full, 0);
    bench.frame(PortId(0), &udp(999, 53));
    assert_eq!(bench.engine.flow_account().unflowed.full, 1);
    bench.take_deltas();
}

#[test]
fn a_swap_gives_deltas_of_a_pipe_that_is_gone_as_there_is_room() {
    let mut bench = Bench::new(&pinning(10_000));
    bench.learn(9_000);
    let mut other = pinning(10_000);
    other.pipes[0].name = "g".into();
    let mut heir = Engine::new(&other, SECRET).unwrap();
    assert_eq!(heir.inherit(&mut bench.engine, 0).removed, [("f".to_string(), 2, 9_000)]);
    // Deltas are not taken: this many wait, and the other flows stay.
    (1..5_000).for_each(|ms| heir.tick(ms * MS));
    assert_eq!((heir.packets_in_deltas(), heir.flow_account().live), (4096, 9_000 - 4096));
    let mut taken = 0;
    for ms in 5_000..10_000 {
        heir.take_deltas(|delta| {
            taken += delta.packets();
            delta.reason() == DeltaReason::Removed && delta.of().generation == 1
        });
        heir.tick(ms * MS);
    }
    assert_eq!((taken, heir.flow_account().given, heir.flow_account().live), (9_000, 9_000, 0));
    assert!(heir.flow_account().balances());
}

/// A worker with a ring of `capacity` deltas, which has learnt `flows` flows.
fn worker(flows: u16, capacity: usize) -> (Worker, Receiver<FlowDelta>) {
    let mut pools = Pools::region(256);
    let pool = pools.first().id();
    let stream = Stream::udp(100, (0..flows).map(|at| ([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), at, 53)));
    let arriving = Generator::new("a", &mut pools, pool, stream, u64::from(flows));
    let (deltas, collector) = ring::deltas(3, capacity);
    let ports: Vec<Box<dyn Port>> = vec![Box::new(arriving)];
    let engine = Engine::new(&pinning(1024), SECRET).unwrap();
    let mut worker = Worker::new(engine, ports, pools).with_deltas(deltas);
    while worker.breathe(MS) > 0 {}
    (worker, collector)
}

#[test]
fn aging_waits_while_the_ring_is_full() {
    let (mut worker, collector) = worker(100, 10);
    (2..1_000).for_each(|ms| _ = worker.breathe(ms * MS));
    let report = worker.report();
    assert_eq!((report.deltas, report.flows.given, report.flows.live), (10, 100, 0));
    assert_eq!(report.deltas_left, 100, "deltas that the ring refuses wait in front of it");
    let mut read = 0;
    for ms in 1_000..1_020 {
        read += collector.try_iter().inspect(|delta| assert_eq!(delta.source, 3)).count();
        worker.breathe(ms * MS);
    }
    assert_eq!(read + collector.try_iter().count(), 100);
}

#[test]
fn a_worker_that_stops_gives_the_counts_of_live_flows() {
    let (mut worker, collector) = worker(100, 10);
    let reader = std::thread::spawn(move || collector.iter().collect::<Vec<_>>());
    worker.stop();
    let report = worker.report();
    drop(worker);
    let read = reader.join().unwrap();
    assert!(read.iter().all(|delta| (delta.reason(), delta.packets()) == (DeltaReason::Stopped, 1)));
    assert_eq!((read.len(), report.flows.given, report.flows.live), (100, 100, 0));
}

#[test]
fn a_worker_that_stops_does_not_wait_for_a_collector_that_is_gone() {
    let (mut worker, collector) = worker(100, 10);
    drop(collector);
    worker.stop();
    let report = worker.report();
    assert!(report.flows.balances() && report.deltas == 0, "{report:?}");
}

#[test]
fn an_own_entry_that_comes_back_starts_a_new_flow() {
    let mut bench = Bench::new(&pinning(64));
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (7, 53), None);
    let own = EntryMatch::Flow(key);
    bench.apply(Change::Add { pipe: PipeId(0), entry: Entry::on(own) }).unwrap();
    bench.frame(PortId(0), &udp(7, 53));
    bench.apply(Change::Remove { pipe: PipeId(0), key: EntryKey::one(own) }).unwrap();
    assert_eq!(bench.engine.flow(PipeId(0), &key), None);
    bench.apply(Change::Add { pipe: PipeId(0), entry: Entry::on(own) }).unwrap();
    assert_eq!(bench.engine.flow(PipeId(0), &key).map(|flow| flow.hits.packets), Some(0));
    bench.take_deltas();
    assert_eq!(bench.deltas.len(), 1);
}
