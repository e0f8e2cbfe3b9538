//! Ports that come and go with a program.

use crate::rig::*;
use crate::support::{SECRET, start, udp};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel};
use weir_engine::batch::Engine;
use weir_engine::worker::{Command, HandOver, Rewire, Rewiring, Worker};
use weir_packet::{
    Batch, CHUNK_MIN, DropReason, Field, Leave, Ledger, Pool, PoolId, Pools, Port, PortStatistics, RegionPool,
};
use weir_port::{Delay, FaultPort, Faults, MemPort, MemWire, Rates};
use weir_program::{Forward, Pipe, PortId, Program};

/// A program in which everything leaves through the last of these ports.
fn to_the_last(names: &[&str]) -> Program {
    let last = PortId(names.len() as u16 - 1);
    start(names, [Pipe::basic("p").per_entry(Field::L4Dport).miss(Forward::Port(last))]).build()
}

fn take_over(worker: &mut Worker, commands: &SyncSender<Command>, program: &Program, ports: Vec<Rewire>) {
    let engine = Box::new(Engine::new(program, SECRET).unwrap());
    let rewiring = Rewiring { generation: 2, ports, ..Rewiring::default() };
    ask(worker, commands, |answer| Command::Swap(engine, rewiring, answer));
}

/// A port with its own pool; everything it sends must come from that pool.
fn on_its_own_pool(name: &str, chunks: u32) -> (Rewire, MemWire) {
    let pool = RegionPool::new(chunks, CHUNK_MIN);
    let (port, wire) = MemPort::new(name, pool.id());
    let port = Strict { pool: Some(pool.id()), ..Strict::new(port) };
    (Rewire::New(Box::new(port), Some(Pool::Region(pool))), wire)
}

/// A port that is slow to close, like an AF_XDP socket, and holds a frame.
struct Slow {
    inner: MemPort,
    held: u64,
    given: Option<Arc<AtomicBool>>,
}

struct Burden(Arc<AtomicBool>);

impl Drop for Burden {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Port for Slow {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn pool(&self) -> Option<PoolId> {
        None
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        self.inner.receive(pools, batch);
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        weir_packet::Bits(list).for_each(|slot| pools.give(batch.take(slot)));
        self.held += u64::from(list.count_ones());
        list
    }

    fn flush(&mut self, _pools: &mut Pools) {
        assert!(self.given.is_none(), "a port that is being closed is left alone");
    }

    fn statistics(&self) -> PortStatistics {
        PortStatistics { held: self.held, ..self.inner.statistics() }
    }

    fn mode(&self) -> String {
        "slow".into()
    }

    fn leave(&mut self, _pools: &mut Pools) -> Leave {
        match &self.given {
            None => {
                let closed = Arc::new(AtomicBool::new(false));
                self.given = Some(closed.clone());
                Leave::Give(Box::new(Burden(closed)))
            }
            Some(closed) if !closed.load(Ordering::Relaxed) => Leave::Later,
            Some(_) => Leave::Closed(std::mem::take(&mut self.held)),
        }
    }
}

/// A worker between `a` and a port that is slow to close.
fn with_slow_port() -> (Worker, MemWire, SyncSender<Command>, Receiver<Box<dyn Any + Send>>) {
    let mut pools = Pools::region(8);
    let pool = pools.first().id();
    let ((a, wire), (b, _)) = (MemPort::new("a", pool), MemPort::new("b", pool));
    let slow = Slow { inner: b, held: 0, given: None };
    let engine = Engine::new(&to_the_last(&["a", "b"]), SECRET).unwrap();
    let (commands, receiver) = std::sync::mpsc::sync_channel(8);
    let (disposal, burdens) = channel();
    let worker = Worker::new(engine, vec![Box::new(a), Box::new(slow)], pools);
    (worker.with_commands(receiver).with_disposal(disposal), wire, commands, burdens)
}

fn removed(ledger: &Ledger) -> u64 {
    dropped(ledger, DropReason::PortRemoved)
}

#[test]
fn s7_frames_of_a_port_that_is_gone_are_counted_and_a_new_one_brings_its_memory() {
    let (mut worker, wires, commands) = commanded(&to_the_last(&["a"]), 8);
    for turn in 0..3 {
        let (new, wire) = on_its_own_pool("b", 4);
        take_over(&mut worker, &commands, &to_the_last(&["a", "b"]), vec![Rewire::Keep(0), new]);
        wires[0].push(&udp(turn, 53));
        worker.breathe(0);
        assert_eq!(wire.pop(), Some(udp(turn, 53)));
        assert_eq!(worker.report().pool_copies, u64::from(turn) + 1, "from pool to pool");
        wire.push(&udp(9, 53));
        take_over(&mut worker, &commands, &to_the_last(&["a"]), vec![Rewire::Keep(0)]);
        worker.breathe(0);
        wires[0].push(&udp(8, 53));
        worker.breathe(0);
        while let Some(frame) = wires[0].pop() {
            assert_eq!(frame.len(), udp(8, 53).len());
        }
        assert_eq!(worker.pools().iter().count(), 1, "the pool has gone");
    }
    let ledger = balanced(&worker);
    assert_eq!((ledger.received, ledger.held, removed(&ledger)), (9, 0, 0));
}

#[test]
fn s7_a_port_that_is_slow_to_close_keeps_nobody_waiting() {
    let (mut worker, wire, commands, burdens) = with_slow_port();
    wire.push(&udp(1, 53));
    worker.breathe(0);
    assert_eq!(balanced(&worker).held, 1);
    take_over(&mut worker, &commands, &to_the_last(&["a"]), vec![Rewire::Keep(0)]);
    for _ in 0..3 {
        wire.push(&udp(2, 53));
        worker.breathe(0);
        assert_eq!(wire.pop(), Some(udp(2, 53)), "the other port continues");
        assert_eq!((balanced(&worker).held, worker.is_waiting()), (1, true));
        assert_eq!(worker.report().ports.len(), 1);
    }
    drop(burdens.try_recv().expect("the socket"));
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.held, removed(&ledger), worker.is_waiting()), (0, 1, false));
    assert!(burdens.try_recv().is_ok(), "the port itself is dropped elsewhere, too");
}

#[test]
fn a_worker_that_stops_closes_what_was_leaving() {
    let program = to_the_last(&["a", "b"]);
    let mut pools = Pools::region(8);
    let pool = pools.first().id();
    let ((a, wire), (b, _other)) = (MemPort::new("a", pool), MemPort::new("b", pool));
    let rates = Rates { delay_ppm: 1_000_000, delay: Delay::Ns(1 << 40), ..Rates::default() };
    let late = FaultPort::new(Box::new(b), Faults { transmit: rates, ..Faults::default() });
    let (commands, receiver) = std::sync::mpsc::sync_channel(8);
    let engine = Engine::new(&program, SECRET).unwrap();
    let mut worker = Worker::new(engine, vec![Box::new(a), Box::new(late)], pools).with_commands(receiver);
    wire.push(&udp(1, 53));
    worker.breathe(0);
    take_over(&mut worker, &commands, &to_the_last(&["a"]), vec![Rewire::Keep(0)]);
    let report = ask(&mut worker, &commands, Command::Stop);
    assert!(report.ledger.balances(), "{:?}", report.ledger);
    assert_eq!((report.ledger.held, removed(&report.ledger)), (0, 1));
}

#[test]
fn s7_a_frame_from_a_port_to_come_waits_for_its_worker() {
    let before = start(&["a"], [learning(64)]).build();
    let after = start(&["a", "b"], [learning(64)]).build();
    let mut rings = HandOver::of_capacity(2, 8).into_iter();
    let [mut first, mut second] = [0, 1].map(|_| {
        let (worker, wires, commands) = commanded(&before, 64);
        (worker.with_hand_over(rings.next().unwrap()), wires, commands)
    });
    let swap = |(worker, _, commands): &mut (Worker, Vec<MemWire>, SyncSender<Command>)| {
        let (new, wire) = on_its_own_pool("b", 64);
        take_over(worker, commands, &after, vec![Rewire::Keep(0), new]);
        wire
    };
    let sum = |first: &Worker, second: &Worker| {
        let mut sum = first.report().ledger;
        sum.add(&second.report().ledger);
        assert!(sum.balances(), "{sum:?}");
        sum
    };
    let wire = swap(&mut first);
    (0..40).for_each(|sport| wire.push(&udp(sport, 53)));
    while first.0.breathe(0) + second.0.breathe(0) > 0 {}
    let waiting = sum(&first.0, &second.0).held;
    assert!(waiting > 5 && second.0.handed().taken == 0, "{waiting} frames wait for a port");
    swap(&mut second);
    while first.0.breathe(0) + second.0.breathe(0) > 0 {}
    let all = sum(&first.0, &second.0);
    assert_eq!((all.transmitted, all.held, second.0.handed().taken), (40, 0, waiting));
    // And frames for a port that their worker no longer has are dropped.
    take_over(&mut second.0, &second.2, &before, vec![Rewire::Keep(0)]);
    (0..40).for_each(|sport| wire.push(&udp(sport, 53)));
    while first.0.breathe(0) + second.0.breathe(0) > 0 {}
    let all = sum(&first.0, &second.0);
    assert_eq!((removed(&all), all.held, all.transmitted), (waiting, 0, 80 - waiting));
}
