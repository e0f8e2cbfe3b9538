//! Workers on ports in memory: whatever happens, every frame ends in exactly one count.

mod support;

use engine::WAITING_MAX;
use engine::arbitrary::{Random, frame, program};
use engine::batch::Engine;
use engine::builder::ProgramBuilder;
use engine::change::Change;
use engine::program::{
    AppId, Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Operation, Pipe, PipeId, PortId,
    Program, Target, Value,
};
use engine::ring::{CARRIER_BYTES, CarrierReceiver, CarrierSender, carriers};
use engine::worker::{Command, HandOver, Inject, Injected, Rewiring, Worker};
use engine::{Verdict, batch::SwapReport};
use packet::{Batch, DropReason, Field, Ledger, Pool, PoolId, Pools, Port, PortStatistics, RegionPool};
use port::{Delay, FaultPort, Faults, MemPort, MemWire, Rates};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use support::{SECRET, start, udp};

/// A port in memory with a mind of its own.
struct Strict {
    inner: MemPort,
    /// Frames it sends must be of this pool.
    pool: Option<PoolId>,
    kernel_path: bool,
    /// The hash that it delivers with every frame; 0: none.
    hash: u32,
}

impl Port for Strict {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn pool(&self) -> Option<PoolId> {
        self.pool
    }

    fn receive(&mut self, pools: &mut Pools, batch: &mut Batch) {
        self.inner.receive(pools, batch);
        (0..batch.len()).for_each(|slot| batch.frame_mut(slot).set_hash(self.hash));
    }

    fn transmit(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        let own = |slot: &usize| self.pool.is_none_or(|pool| batch.frame(*slot).pool() == pool);
        assert!(packet::Bits(list).all(|slot| own(&slot)), "a frame of another pool");
        self.inner.transmit(pools, batch, list)
    }

    fn flush(&mut self, pools: &mut Pools) {
        self.inner.flush(pools);
    }

    fn statistics(&self) -> PortStatistics {
        self.inner.statistics()
    }

    fn mode(&self) -> String {
        self.inner.mode()
    }

    fn to_kernel(&mut self, pools: &mut Pools, batch: &mut Batch, list: u64) -> u64 {
        if self.kernel_path { self.inner.to_kernel(pools, batch, list) } else { 0 }
    }
}

/// Ports in memory for a program, and their wires.
fn ports(program: &Program, pool: PoolId) -> (Vec<Box<dyn Port>>, Vec<MemWire>) {
    let one = |name: &str| -> (Box<dyn Port>, MemWire) {
        let (port, wire) = MemPort::new(name, pool);
        (Box::new(port), wire)
    };
    program.ports.iter().map(|port| one(&port.name)).unzip()
}

/// A worker on a pool of so many chunks.
fn worker(program: &Program, chunks: u32) -> (Worker, Vec<MemWire>) {
    let mut pools = Pools::region(chunks);
    let (ports, wires) = ports(program, pools.first().id());
    (Worker::new(Engine::new(program, SECRET).unwrap(), ports, pools), wires)
}

fn balanced(worker: &Worker) -> Ledger {
    let report = worker.report();
    assert!(report.ledger.balances(), "{:?} {:?}", report.ledger.sides(), report.ledger);
    report.ledger
}

fn dropped(ledger: &Ledger, reason: DropReason) -> u64 {
    ledger.dropped[reason as usize]
}

/// A program whose one pipe sends what it gets there.
fn all_to(forward: Forward) -> Program {
    let mut program = start(&["a", "b"], [Pipe::basic("p").per_entry(Field::L4Dport).miss(forward)]);
    program.app("app");
    program.build()
}

#[test]
fn ledgers_balance_whatever_random_programs_do() {
    let (mut met, mut missed) = (Ledger::default(), 0);
    for seed in 0..400 {
        let mut random = Random::from_seed(seed);
        let program = program(&mut random);
        // One pool of 80 for ports that may each send a batch: it does run empty.
        let (worker, wires) = worker(&program, 80);
        let rings: Vec<(CarrierSender, CarrierReceiver)> = program.apps.iter().map(|_| carriers(8)).collect();
        let (punts, _apps): (Vec<CarrierSender>, Vec<CarrierReceiver>) = rings.into_iter().unzip();
        let mut worker = worker.with_punts(punts);
        wires[random.below(wires.len())].limit_transmit(5);
        for breath in 0..4 {
            for wire in &wires {
                (0..random.below(90)).for_each(|_| wire.push(&frame(&mut random)));
            }
            worker.breathe(breath * 1_000_000_000);
            met.add(&balanced(&worker));
            missed += worker.report().tee_missed;
        }
    }
    let never = |reason: &&DropReason| dropped(&met, **reason) == 0;
    let elsewhere = [
        DropReason::NoKernelPath,
        DropReason::PoolEmpty,
        DropReason::Oversize,
        DropReason::HandOverFull,
        DropReason::Stopped,
        // Random frames come with all headroom.
        DropReason::NoHeadroom,
    ];
    let missing: Vec<_> = DropReason::ALL.iter().filter(never).filter(|reason| !elsewhere.contains(reason)).collect();
    assert_eq!(missing, Vec::<&DropReason>::new());
    assert!(met.to_app > 0 && met.to_kernel > 0 && met.transmitted > 0 && met.copied > 0);
    assert!(missed > 0, "no copy found its ring full");
}

#[test]
fn a_punt_ring_that_is_full_drops() {
    let (worker, wires) = worker(&all_to(Forward::App(AppId(0))), 64);
    let (punts, mut app) = carriers(3);
    let mut worker = worker.with_punts(vec![punts]);
    (0..5).for_each(|sport| wires[1].push(&udp(sport, 53)));
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.to_app, dropped(&ledger, DropReason::AppFull)), (3, 2));
    let first = app.receive().unwrap();
    assert_eq!((first.bytes(), first.input, first.app), (&udp(0, 53)[..], PortId(1), AppId(0)));
}

/// The first pipe leaves a copy with the app and sets the TTL; the second sends odd ports to the app as well.
fn teeing() -> Program {
    let ttl = Operation::Set(Field::Ipv4Ttl, Value::Const(9));
    let mut program = ProgramBuilder::new();
    let ([_, b], app) = (program.ports(["a", "b"]), program.app("app"));
    let second = Pipe::basic("second").per_entry(Field::L4Sport).entries([1, 3]).act([ttl]).forward(app).miss(b);
    let next = program.pipe(second);
    let first = program.pipe(Pipe::basic("first").per_entry(Field::L4Dport).miss(Forward::Tee { app, next }));
    program.root_of_all(first);
    program.build()
}

#[test]
fn w8_a_copy_is_the_packet_as_it_is_then_and_frames_reach_the_app_in_order() {
    let (worker, wires) = worker(&teeing(), 64);
    let (punts, mut app) = carriers(8);
    let mut worker = worker.with_punts(vec![punts]);
    (0..4).for_each(|sport| wires[0].push(&udp(sport, 53)));
    worker.breathe(0);
    let mut later = |sport| {
        let carrier = app.receive().expect("a frame for the app");
        let ttl = if carrier.bytes() == udp(sport, 53) { 64 } else { carrier.bytes()[22] };
        app.done(carrier);
        ttl
    };
    assert_eq!([later(0), later(1), later(1), later(2), later(3), later(3)], [64, 64, 9, 64, 64, 9]);
    let ledger = balanced(&worker);
    assert_eq!((ledger.copied, ledger.to_app, ledger.transmitted, ledger.dropped_sum()), (4, 6, 2, 0));
    assert_eq!(worker.report().tee_missed, 0);
}

#[test]
fn w8_a_copy_without_room_is_missed_and_the_packet_goes_on() {
    let (worker, wires) = worker(&teeing(), 64);
    let (punts, _app) = carriers(3);
    let mut worker = worker.with_punts(vec![punts]);
    (10..20).for_each(|sport| wires[0].push(&udp(sport, 53)));
    worker.breathe(0);
    assert!(worker.take_signal(), "copies alone wake the app");
    let ledger = balanced(&worker);
    assert_eq!((ledger.copied, ledger.to_app, ledger.transmitted, ledger.dropped_sum()), (3, 3, 10, 0));
    assert_eq!(worker.report().tee_missed, 7);
}

/// Everything that comes is flooded to three ports, what goes to port 80 only leaves by the second one.
fn flooding() -> Program {
    let mut program = ProgramBuilder::new();
    let [a, b, c] = program.ports(["a", "b", "c"]);
    let targets = [("x", a), ("y", b), ("z", c), ("again", a)].map(|(name, port)| Target::new(name, port));
    let flood = Forward::Flood(program.group(Group::new("g", Fill::Wants, 16).targets(targets)));
    let pipe = program.pipe(Pipe::basic("p").per_entry(Field::L4Dport).entry(80).forward(b).miss(flood));
    program.root_of_all(pipe);
    program.build()
}

#[test]
fn w9_a_flood_leaves_every_port_once_and_in_order() {
    let (mut worker, wires) = worker(&flooding(), 64);
    for sport in 0..9 {
        wires[0].push(&udp(sport, if sport % 2 == 0 { 53 } else { 80 }));
    }
    worker.breathe(0);
    for (at, wire) in wires.iter().enumerate() {
        for sport in 0..9 {
            match sport % 2 {
                0 => assert_eq!(wire.pop(), Some(udp(sport, 53)), "port {at}"),
                _ if at == 1 => assert_eq!(wire.pop(), Some(udp(sport, 80))),
                _ => {}
            }
        }
        assert_eq!(wire.pop(), None, "two targets lead to the first port");
    }
    let ledger = balanced(&worker);
    assert_eq!((ledger.copied, ledger.transmitted), (10, 19));
}

#[test]
fn w9_copies_without_a_chunk_are_dropped_and_the_frame_goes_out() {
    let (mut worker, wires) = worker(&flooding(), 3);
    (0..3).for_each(|sport| wires[0].push(&udp(sport, 53)));
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.copied, ledger.transmitted, dropped(&ledger, DropReason::PoolEmpty)), (6, 3, 6));
    assert_eq!((wires[0].pop(), wires[2].pop()), (None, Some(udp(0, 53))));
    // What a full queue refuses is dropped as ever, copies too.
    let (mut worker, wires) = self::worker(&flooding(), 64);
    wires[0].limit_transmit(1);
    wires[2].limit_transmit(0);
    (0..3).for_each(|sport| wires[0].push(&udp(sport, 53)));
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.transmitted, dropped(&ledger, DropReason::TransmitFull)), (4, 5));
}

#[test]
fn a_frame_too_long_for_a_ring_is_oversize_and_the_ring_is_not_full() {
    let program = all_to(Forward::App(AppId(0)));
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(RegionPool::new(8, 4096)));
    let (ports, wires) = ports(&program, pool);
    let (punts, mut app) = carriers(3);
    let mut worker = Worker::new(Engine::new(&program, SECRET).unwrap(), ports, pools).with_punts(vec![punts]);
    for length in [CARRIER_BYTES, CARRIER_BYTES + 1] {
        let mut frame = udp(1, 53);
        frame.resize(length, 0);
        wires[0].push(&frame);
    }
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.to_app, dropped(&ledger, DropReason::Oversize), ledger.dropped_sum()), (1, 1, 1));
    assert_eq!(app.receive().map(|carrier| carrier.bytes().len()), Some(CARRIER_BYTES));
}

#[test]
fn an_app_without_a_ring_is_full() {
    let (mut worker, wires) = worker(&all_to(Forward::App(AppId(0))), 64);
    wires[0].push(&udp(0, 53));
    worker.breathe(0);
    assert_eq!(dropped(&balanced(&worker), DropReason::AppFull), 1);
}

#[test]
fn a_transmit_queue_that_is_full_drops_the_rest() {
    let (mut worker, wires) = worker(&all_to(Forward::Port(PortId(1))), 64);
    wires[1].limit_transmit(2);
    (0..5).for_each(|sport| wires[0].push(&udp(sport, 53)));
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.transmitted, dropped(&ledger, DropReason::TransmitFull)), (2, 3));
    assert_eq!(wires[1].pop(), Some(udp(0, 53)));
}

#[test]
fn w6_frames_leave_in_the_order_in_which_they_came_whichever_way_they_took() {
    let first = Pipe::basic("first").per_entry(Field::L4Sport).entries((0..200).step_by(3));
    let first = first.forward(PipeId(1)).miss(PortId(1));
    let second = Pipe::basic("second").per_entry(Field::L4Dport).miss(PortId(1));
    let (mut worker, wires) = worker(&start(&["a", "b"], [first, second]).build(), 64);
    (0..200).for_each(|sport| wires[0].push(&udp(sport, 53)));
    (0..4).for_each(|breath| _ = worker.breathe(breath));
    assert!((0..200).all(|sport| wires[1].pop() == Some(udp(sport, 53))));
}

/// Port `a` on a pool of large chunks, port `b` on one of two small ones.
fn two_pools(kernel_path: bool) -> (Worker, Vec<MemWire>) {
    let mut pools = Pools::new();
    let large = pools.add(Pool::Region(RegionPool::new(64, 4096)));
    let small = pools.add(Pool::Region(RegionPool::new(2, 2048)));
    let (a, a_wire) = MemPort::new("a", large);
    let (b, b_wire) = MemPort::new("b", small);
    let strict = |inner, pool| -> Box<dyn Port> { Box::new(Strict { inner, pool: Some(pool), kernel_path, hash: 0 }) };
    let target = if kernel_path { Forward::Port(PortId(1)) } else { Forward::Kernel };
    let engine = Engine::new(&all_to(target), SECRET).unwrap();
    (Worker::new(engine, vec![strict(a, large), strict(b, small)], pools), vec![a_wire, b_wire])
}

#[test]
fn a_frame_for_another_pool_is_copied_or_dropped() {
    let (mut worker, wires) = two_pools(true);
    wires[0].push(&udp(1, 53));
    let mut jumbo = udp(2, 53);
    jumbo.resize(3000, 0);
    wires[0].push(&jumbo);
    wires[0].push(&udp(3, 53));
    wires[0].push(&udp(4, 53));
    worker.breathe(0);
    let report = worker.report();
    let ledger = balanced(&worker);
    assert_eq!(dropped(&ledger, DropReason::Oversize), 1);
    assert_eq!(dropped(&ledger, DropReason::PoolEmpty), 1, "the small pool has two chunks");
    // A copy is the frame in another place: it is not counted twice.
    assert_eq!((ledger.transmitted, ledger.copied, report.pool_copies), (2, 0, 2));
    assert_eq!([wires[1].pop(), wires[1].pop()], [Some(udp(1, 53)), Some(udp(3, 53))]);
    wires[0].push(&udp(5, 53));
    worker.breathe(1);
    assert_eq!(balanced(&worker).transmitted, 3, "chunks came back");
}

#[test]
fn a_port_that_cannot_give_frames_back_drops() {
    let (mut worker, wires) = two_pools(false);
    wires[0].push(&udp(1, 53));
    worker.breathe(0);
    assert_eq!(dropped(&balanced(&worker), DropReason::NoKernelPath), 1);
}

#[test]
fn frames_wait_while_the_pool_is_empty() {
    let (mut worker, wires) = worker(&all_to(Forward::Port(PortId(1))), 3);
    (0..10).for_each(|sport| wires[0].push(&udp(sport, 53)));
    for breath in 0..3 {
        worker.breathe(breath);
        let ledger = balanced(&worker);
        assert_eq!(ledger.transmitted, 3 * (breath + 1));
    }
    assert_eq!(wires[0].waiting(), 1);
    assert!(worker.report().ports[0].statistics.starved > 0);
}

/// Learns so many flows and sends them out of the first port.
fn learning(flows: u32) -> Pipe {
    Pipe::flow("f", Learn::Default).entry(EntryMatch::Default).capacity(flows).forward(PortId(0))
}

/// Asks a worker and breathes once so that it answers.
fn ask<T>(worker: &mut Worker, commands: &SyncSender<Command>, ask: impl FnOnce(SyncSender<T>) -> Command) -> T {
    let (answer, answers) = sync_channel(1);
    commands.try_send(ask(answer)).expect("room for a command");
    worker.breathe(0);
    answers.try_recv().expect("an answer in the same breath")
}

fn commanded(program: &Program, chunks: u32) -> (Worker, Vec<MemWire>, SyncSender<Command>) {
    let (worker, wires) = worker(program, chunks);
    let (commands, receiver): (SyncSender<Command>, Receiver<Command>) = sync_channel(8);
    (worker.with_commands(receiver), wires, commands)
}

/// Sends an injected frame and breathes once; the answer, if there is one yet, and where it will come.
fn inject(
    worker: &mut Worker,
    commands: &SyncSender<Command>,
    bytes: Vec<u8>,
    output: Option<PortId>,
) -> (Option<Injected>, Receiver<Injected>) {
    let (answer, answers) = sync_channel(1);
    let inject = Inject { bytes, output, input: PortId(1) };
    commands.try_send(Command::Inject(inject, answer)).expect("room for a command");
    worker.breathe(0);
    (answers.try_recv().ok(), answers)
}

#[test]
fn injected_frames_are_originated() {
    let (mut worker, wires, commands) = commanded(&all_to(Forward::InputPort), 4);
    let mut sent = |bytes, output| inject(&mut worker, &commands, bytes, output).0;
    assert_eq!(sent(udp(1, 53), Some(PortId(0))), Some(Ok(())));
    assert_eq!(wires[0].pop(), Some(udp(1, 53)));
    assert_eq!(sent(udp(2, 53), None), Some(Ok(())));
    assert_eq!(wires[1].pop(), Some(udp(2, 53)));
    for output in [None, Some(PortId(0))] {
        assert_eq!(sent(vec![0; 5000], output), Some(Err(DropReason::Oversize)));
    }
    assert_eq!(sent(udp(3, 53), Some(PortId(9))), Some(Err(DropReason::Policy)), "there is no such port");
    let ledger = balanced(&worker);
    assert_eq!((ledger.originated, ledger.transmitted, dropped(&ledger, DropReason::Oversize)), (5, 2, 2));
}

#[test]
fn an_injected_frame_waits_for_room_and_goes_before_data() {
    let (mut worker, wires, commands) = commanded(&all_to(Forward::Port(PortId(0))), 128);
    wires[0].limit_transmit(0);
    let (none, answer) = inject(&mut worker, &commands, udp(1, 53), Some(PortId(0)));
    let (also_none, later) = inject(&mut worker, &commands, udp(2, 53), Some(PortId(0)));
    assert_eq!((none, also_none), (None, None), "an answer means that it was sent");
    // Another port is not held up.
    assert_eq!(inject(&mut worker, &commands, udp(3, 53), Some(PortId(1))).0, Some(Ok(())));
    assert_eq!((balanced(&worker).held, worker.is_waiting()), (2, true));
    worker.take_signal();
    wires[1].push(&udp(4, 53));
    wires[0].limit_transmit(1);
    worker.breathe(1);
    assert_eq!(answer.try_recv(), Ok(Ok(())));
    assert!(worker.take_signal(), "whoever asked is woken");
    assert_eq!((wires[0].pop(), wires[0].pop()), (Some(udp(1, 53)), None), "data finds the ring full");
    wires[0].limit_transmit(9);
    wires[1].push(&udp(5, 53));
    worker.breathe(2);
    assert_eq!((wires[0].pop(), wires[0].pop()), (Some(udp(2, 53)), Some(udp(5, 53))));
    assert_eq!((later.try_recv(), worker.is_waiting()), (Ok(Ok(())), false));
    let ledger = balanced(&worker);
    assert_eq!((ledger.held, dropped(&ledger, DropReason::TransmitFull)), (0, 1));
}

#[test]
fn only_so_many_wait_for_a_port_and_a_stuck_one_takes_no_others_room() {
    let (mut worker, wires, commands) = commanded(&all_to(Forward::Drop), 4);
    wires.iter().for_each(|wire| wire.limit_transmit(0));
    let mut waiting = Vec::new();
    for port in [PortId(0), PortId(1)] {
        for sport in 0..WAITING_MAX as u16 {
            let (answer, answers) = inject(&mut worker, &commands, udp(sport, 53), Some(port));
            assert_eq!(answer, None);
            waiting.push(answers);
        }
        let (refused, _) = inject(&mut worker, &commands, udp(99, 53), Some(port));
        assert_eq!(refused, Some(Err(DropReason::TransmitFull)));
    }
    let ledger = balanced(&worker);
    assert_eq!((ledger.held, dropped(&ledger, DropReason::TransmitFull)), (2 * WAITING_MAX as u64, 2));
    wires[1].limit_transmit(usize::MAX);
    worker.breathe(1);
    assert!((0..WAITING_MAX as u16).all(|sport| wires[1].pop() == Some(udp(sport, 53))), "in the order they came");
    assert!(waiting[WAITING_MAX..].iter().all(|answer| answer.try_recv() == Ok(Ok(()))));
    let report = ask(&mut worker, &commands, Command::Stop);
    assert!(report.ledger.balances(), "{:?}", report.ledger);
    assert_eq!(dropped(&report.ledger, DropReason::Stopped), WAITING_MAX as u64);
    assert!(waiting[..WAITING_MAX].iter().all(|answer| answer.try_recv() == Ok(Err(DropReason::Stopped))));
}

#[test]
fn what_waits_follows_its_port_through_a_swap() {
    let (mut worker, wires, commands) = commanded(&all_to(Forward::Drop), 4);
    wires.iter().for_each(|wire| wire.limit_transmit(0));
    let (_, gone) = inject(&mut worker, &commands, udp(1, 53), Some(PortId(0)));
    let (_, kept) = inject(&mut worker, &commands, udp(2, 53), Some(PortId(1)));
    // Only `b` is left, as port 0.
    let mut new = all_to(Forward::Drop);
    new.ports.remove(0);
    let engine = Box::new(Engine::new(&new, SECRET).unwrap());
    let rewiring = Rewiring { ports: vec![1], punts: Vec::new() };
    ask(&mut worker, &commands, |answer| Command::Swap(engine, rewiring, answer));
    assert_eq!(gone.try_recv(), Ok(Err(DropReason::Stopped)));
    wires[1].limit_transmit(1);
    worker.breathe(1);
    assert_eq!((kept.try_recv(), wires[1].pop()), (Ok(Ok(())), Some(udp(2, 53))));
    balanced(&worker);
}

#[test]
fn without_a_chunk_an_injected_frame_waits_at_a_port_and_is_dropped_before_the_program() {
    let (mut worker, _wires, commands) = commanded(&all_to(Forward::InputPort), 0);
    assert_eq!(inject(&mut worker, &commands, udp(1, 53), None).0, Some(Err(DropReason::PoolEmpty)));
    assert_eq!(inject(&mut worker, &commands, udp(1, 53), Some(PortId(0))).0, None);
    let ledger = balanced(&worker);
    assert_eq!((dropped(&ledger, DropReason::PoolEmpty), ledger.held), (1, 1));
    assert_eq!(ask(&mut worker, &commands, |answer| Command::Probe(PortId(0), udp(1, 53), answer)), None);
}

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
    let rewiring = Rewiring { ports: vec![0, 1], punts: vec![punts] };
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
    program.groups = vec![Group::new("g", Fill::Given, 2).targets(support::targets(&["x", "y"]))];
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
    let report = |worker: &Worker| worker.report().buckets.remove(0);
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
fn a_swap_renumbers_ports_and_keeps_the_account_of_one_that_goes() {
    let old = all_to(Forward::Port(PortId(1)));
    let (mut worker, wires, commands) = commanded(&old, 8);
    wires[0].push(&udp(1, 53));
    worker.breathe(0);
    // Only `b` is left, as port 0.
    let mut new = all_to(Forward::InputPort);
    new.ports.remove(0);
    let engine = Box::new(Engine::new(&new, SECRET).unwrap());
    let report = ask(&mut worker, &commands, |answer| {
        Command::Swap(engine, Rewiring { ports: vec![1], punts: Vec::new() }, answer)
    });
    assert_eq!(report, SwapReport::default());
    wires[1].push(&udp(2, 53));
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert_eq!((ledger.received, ledger.transmitted), (2, 2));
    assert_eq!([wires[1].pop(), wires[1].pop()], [Some(udp(1, 53)), Some(udp(2, 53))]);
}

// ---- two workers ----

/// Rings between two workers, each of so many frames.
fn hand_over(capacity: usize) -> [HandOver; 2] {
    let (to_second, from_first) = carriers(capacity);
    let (to_first, from_second) = carriers(capacity);
    [
        HandOver { own: 0, to: vec![None, Some(to_second)], from: vec![from_second] },
        HandOver { own: 1, to: vec![Some(to_first), None], from: vec![from_first] },
    ]
}

/// Two workers that learn flows and send everything out of `b`.
fn pair(capacity: usize) -> [(Worker, Vec<MemWire>); 2] {
    let program = start(&["a", "b"], [learning(4096).forward(PortId(1))]).build();
    hand_over(capacity).map(|rings| {
        let (worker, wires) = worker(&program, 256);
        (worker.with_hand_over(rings), wires)
    })
}

/// Frames of one flow: forth, back, and a datagram in fragments.
fn of_flow(number: u16) -> Vec<Vec<u8>> {
    let (host, port) = (format!("10.0.{}.{}", number / 200, 1 + number % 200), 1024 + number);
    let (here, there) = if number.is_multiple_of(2) {
        (host, "192.0.2.1".to_string())
    } else {
        (format!("2001:db8::{number:x}"), "2001:db8:1::1".to_string())
    };
    let texts = [
        format!("src={here} dst={there} proto=udp sport={port} dport=53"),
        format!("src={there} dst={here} proto=udp sport=53 dport={port}"),
        format!(
            "src={here} dst={there} proto=udp frag=0+ sport={port} dport=53 payload=00112233445566778899aabbccddeeff"
        ),
        format!("src={here} dst={there} frag=24 proto=udp payload=001122334455667788"),
    ];
    texts.iter().map(|text| packet::craft::frame(text)).collect()
}

/// Which worker has each flow; both directions of one are one.
fn owners(workers: &[Worker; 2]) -> BTreeMap<BTreeSet<String>, BTreeSet<usize>> {
    let mut owners: BTreeMap<BTreeSet<String>, BTreeSet<usize>> = BTreeMap::new();
    for (number, worker) in workers.iter().enumerate() {
        for flow in worker.engine().flows(PipeId(0), usize::MAX).0 {
            let ends = [(flow.key.src(), flow.key.sport()), (flow.key.dst(), flow.key.dport())];
            owners.entry(ends.map(|end| format!("{end:?}")).into()).or_default().insert(number);
        }
    }
    owners
}

#[test]
fn a_flow_lives_on_one_worker_whichever_its_frames_come_in_by() {
    const FLOWS: u16 = 300;
    let [(first, first_wires), (second, second_wires)] = pair(2048);
    // Every frame comes in by both workers.
    for wire in [&first_wires[0], &second_wires[0]] {
        (0..FLOWS).flat_map(of_flow).for_each(|frame| wire.push(&frame));
        wire.end();
    }
    let all = u64::from(FLOWS) * 4 * 2;
    let breathe = |mut worker: Worker, wire: MemWire, done: std::sync::Arc<std::sync::Barrier>| {
        std::thread::spawn(move || {
            let mut now_ns = 0;
            while wire.waiting() > 0 {
                now_ns += 1000;
                worker.breathe(now_ns);
                std::thread::yield_now();
            }
            // Neither hands anything over from here on; what lies in the rings is still to be taken.
            done.wait();
            while worker.breathe(now_ns) > 0 {}
            worker
        })
    };
    let done = std::sync::Arc::new(std::sync::Barrier::new(2));
    let threads =
        [breathe(first, first_wires[0].clone(), done.clone()), breathe(second, second_wires[0].clone(), done)];
    let workers = threads.map(|thread| thread.join().expect("a worker does not panic"));
    let mut sum = Ledger::default();
    let mut handed = (0, 0);
    for worker in &workers {
        let (taken, given) = worker.handed();
        handed = (handed.0 + taken, handed.1 + given);
        sum.add(&worker.report().ledger);
    }
    assert!(sum.balances(), "{sum:?}");
    assert_eq!((sum.received, sum.held, handed.0), (all, 0, handed.1));
    assert!(handed.0 > all / 4, "about half of the frames are the other's: {handed:?}");
    assert_eq!(sum.transmitted + dropped(&sum, DropReason::HandOverFull), all);
    let owners = owners(&workers);
    assert!(owners.values().all(|owners| owners.len() == 1), "{owners:?}");
    // Flows, and their fragments, which have no ports.
    assert_eq!(owners.len(), usize::from(FLOWS) * 2);
    let each: Vec<usize> = workers.iter().map(|worker| worker.report().pipes[0].flows).collect();
    assert!(each.iter().all(|flows| *flows > usize::from(FLOWS)), "both have a fair share: {each:?}");
}

#[test]
fn a_frame_that_is_handed_over_keeps_the_nics_hash() {
    // Two buckets: the highest bit of the hash is the port that a frame leaves by.
    let rows = [0, 1].map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at)));
    let spread = Pipe::hash("h", HashInput::Rss, GroupId(0)).entries(rows).forward(Forward::PerEntry);
    let mut program = start(&["a", "b"], [learning(4096).forward(PipeId(1)), spread]);
    program.group(Group::new("g", Fill::Given, 2).targets(support::targets(&["x", "y"])));
    let program = program.build();
    for (hash, leaves) in [(1, 0), (0x8000_0000, 1)] {
        let mut workers = hand_over(256).map(|rings| {
            let mut pools = Pools::region(256);
            let id = pools.first().id();
            let (first, first_wire) = MemPort::new("a", id);
            let (second, second_wire) = MemPort::new("b", id);
            let first: Box<dyn Port> = Box::new(Strict { inner: first, pool: Some(id), kernel_path: false, hash });
            let mut engine = Engine::new(&program, SECRET).unwrap();
            let moves = Change::MoveBuckets {
                group: GroupId(0),
                moves: vec![(0, 0), (1, 1)].into(),
                idle_gap_ns: 0,
                wait_max_ns: 0,
            };
            engine.apply(&moves, 0).unwrap();
            (Worker::new(engine, vec![first, Box::new(second)], pools).with_hand_over(rings), [first_wire, second_wire])
        });
        (0..20).flat_map(of_flow).for_each(|frame| workers[0].1[0].push(&frame));
        for (worker, _) in &mut workers {
            while worker.breathe(0) > 0 {}
        }
        assert!(workers[1].0.handed().0 > 10);
        for (worker, wires) in &workers {
            let ledger = worker.report().ledger;
            let left = std::iter::from_fn(|| wires[leaves].pop()).count() as u64;
            assert_eq!(left, ledger.transmitted, "all by one port");
            assert!(wires[1 - leaves].pop().is_none());
        }
    }
}

#[test]
fn a_hand_over_ring_that_is_full_drops_and_frames_in_it_are_held() {
    let [(mut first, wires), (mut second, _)] = pair(4);
    (0..20).flat_map(of_flow).for_each(|frame| wires[0].push(&frame));
    first.breathe(0);
    first.breathe(0);
    let ledger = balanced(&first);
    assert_eq!(ledger.held, 4);
    assert!(dropped(&ledger, DropReason::HandOverFull) > 0);
    second.breathe(0);
    let mut sum = first.report().ledger;
    assert_eq!(sum.held, 0);
    sum.add(&second.report().ledger);
    assert!(sum.balances() && sum.received == 80, "{sum:?}");
    assert_eq!(second.handed().0, 4);
}

/// The two workers of [`pair`], with commands to each.
fn commanded_pair(capacity: usize) -> [(Worker, Vec<MemWire>, SyncSender<Command>); 2] {
    pair(capacity).map(|(worker, wires)| {
        let (commands, receiver) = sync_channel(8);
        (worker.with_commands(receiver), wires, commands)
    })
}

#[test]
fn frames_between_workers_end_as_stopped_when_all_stop() {
    let [(mut first, wires, to_first), (mut second, _, to_second)] = commanded_pair(200);
    (0..50).flat_map(of_flow).for_each(|frame| wires[0].push(&frame));
    ask(&mut second, &to_second, Command::Quiesce);
    (0..4).for_each(|_| _ = first.breathe(0));
    ask(&mut first, &to_first, Command::Quiesce);
    let between = balanced(&first).held;
    assert!(between > packet::BATCH as u64, "{between}");
    // What comes now is not received.
    wires[0].push(&udp(1, 53));
    let mut sum = ask(&mut first, &to_first, Command::Stop).ledger;
    sum.add(&ask(&mut second, &to_second, Command::Stop).ledger);
    assert!(sum.balances(), "{sum:?}");
    assert_eq!((sum.received, sum.held), (200, 0));
    // The second one carries a batch of them through its program in the breath in which it is stopped.
    let carried = between.min(packet::BATCH as u64);
    assert_eq!((sum.transmitted, dropped(&sum, DropReason::Stopped)), (200 - between + carried, between - carried));
}

#[test]
fn an_injected_frame_goes_to_the_worker_of_its_flow() {
    let [(mut first, _, to_first), (mut second, _, _)] = commanded_pair(64);
    for frame in (0..20).flat_map(of_flow) {
        assert_eq!(inject(&mut first, &to_first, frame, None).0, Some(Ok(())));
    }
    while second.breathe(0) > 0 {}
    let mut sum = first.report().ledger;
    sum.add(&second.report().ledger);
    assert!(sum.balances() && sum.originated == 80 && sum.transmitted == 80, "{sum:?}");
    assert!(second.handed().0 > 10);
    assert!(owners(&[first, second]).values().all(|owners| owners.len() == 1));
}

#[test]
fn a_frame_too_long_to_be_handed_over_is_oversize() {
    let program = start(&["a", "b"], [learning(4096).forward(PortId(1))]).build();
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(RegionPool::new(200, 4096)));
    let (ports, wires) = ports(&program, pool);
    let [rings, _other] = hand_over(64);
    let mut worker = Worker::new(Engine::new(&program, SECRET).unwrap(), ports, pools).with_hand_over(rings);
    for mut frame in (0..20).flat_map(of_flow) {
        frame.resize(CARRIER_BYTES + 1, 0);
        wires[0].push(&frame);
    }
    worker.breathe(0);
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert!(dropped(&ledger, DropReason::Oversize) > 10, "{ledger:?}");
    assert_eq!((dropped(&ledger, DropReason::HandOverFull), ledger.held), (0, 0));
}
