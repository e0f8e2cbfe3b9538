//! Where frames leave: ports, apps, the kernel; and copies made along the way.

use crate::rig::*;
use crate::support::{SECRET, start, udp};
use weir_engine::batch::Engine;
use weir_engine::ring::{CARRIER_BYTES, CarrierReceiver, CarrierSender, carriers};
use weir_engine::worker::{DroppedFlows, Worker};
use weir_oracle::arbitrary::{Choices, frame, program};
use weir_packet::{DropReason, Field, Ledger, Pool, Pools, Port, RegionPool};
use weir_port::{MemPort, MemWire};
use weir_program::builder::ProgramBuilder;
use weir_program::{AppId, Fill, Forward, Group, Operation, Pipe, PipeId, PortId, Program, Target, Value};

#[test]
fn ledgers_balance_whatever_random_programs_do() {
    let (mut met, mut missed) = (Ledger::default(), 0);
    for seed in 0..400 {
        let mut random = Choices::from_seed(seed);
        let program = program(&mut random);
        // A pool of 80 chunks, for ports that may each send a batch, does run out.
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
        DropReason::NotWritten,
        DropReason::NoKernelPath,
        DropReason::PoolEmpty,
        DropReason::Oversize,
        DropReason::HandOverFull,
        // Covered by tests/fragments.rs.
        DropReason::FragmentsFull,
        DropReason::Stopped,
        DropReason::PortRemoved,
        DropReason::InterfaceGone,
        // Random frames have full headroom.
        DropReason::NoHeadroom,
    ];
    let missing: Vec<_> =
        DropReason::ALL.iter().filter(never).filter(|reason| !elsewhere.contains(reason)).collect();
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

/// The first pipe copies frames to the app and sets the TTL; the second sends odd ports to the app as well.
fn teeing() -> Program {
    let ttl = Operation::Set(Field::Ipv4Ttl, Value::Const(9));
    let mut program = ProgramBuilder::new();
    let ([_, b], app) = (program.ports(["a", "b"]), program.app("app"));
    let second =
        Pipe::basic("second").per_entry(Field::L4Sport).entries([1, 3]).act([ttl]).forward(app).miss(b);
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

/// Everything is flooded to three ports; frames to port 80 leave by the second one only.
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
    // Frames refused by a full queue are dropped as usual, copies included.
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
    let mut worker =
        Worker::new(Engine::new(&program, SECRET).unwrap(), ports, pools).with_punts(vec![punts]);
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

/// Port `a` on a pool of large chunks, port `b` on a pool of two small ones.
fn two_pools(kernel_path: bool) -> (Worker, Vec<MemWire>) {
    let mut pools = Pools::new();
    let large = pools.add(Pool::Region(RegionPool::new(64, 4096)));
    let small = pools.add(Pool::Region(RegionPool::new(2, 2048)));
    let (a, a_wire) = MemPort::new("a", large);
    let (b, b_wire) = MemPort::new("b", small);
    let strict = |inner, pool| -> Box<dyn Port> {
        Box::new(Strict { pool: Some(pool), kernel_path, ..Strict::new(inner) })
    };
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
    // A frame copied to another pool is still the same frame and is not counted twice.
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

/// Samples say which flows lose most frames, and a worker's samples can be added to another's.
#[test]
fn the_flow_that_loses_most_frames_is_found_among_many() {
    let program = start(&["a"], [Pipe::basic("none").miss(Forward::Drop)]).build();
    let mut all = DroppedFlows::default();
    for _worker in 0..2 {
        let (mut worker, wires) = worker(&program, 80);
        for breath in 0..100_u16 {
            // Half of the frames are one flow's, and each of the others is a flow of its own.
            (0..32).for_each(|at| {
                wires[0].push(&udp(7, 53));
                wires[0].push(&udp(1000 + breath * 32 + at, 53));
            });
            worker.breathe(u64::from(breath));
        }
        assert_eq!(dropped(&balanced(&worker), DropReason::Miss), 6400);
        all.merge(&worker.report().dropped_flows);
    }
    let worst = all.worst(DropReason::Miss, 2);
    assert_eq!(worst[0].0, "udp 10.0.0.1:7 > 10.0.0.2:53");
    assert!((5000..9000).contains(&worst[0].1) && worst[1].1 < worst[0].1 / 2, "{worst:?}");
    assert!(all.worst(DropReason::Policy, 2).is_empty());
}
