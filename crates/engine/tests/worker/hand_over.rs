//! Two workers, where each flow is handled by only one of them.

use crate::rig::*;
use crate::support::{SECRET, start, udp};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use weir_engine::batch::Engine;
use weir_engine::parcel::{PARCEL_BYTES, PARCEL_FRAMES};
use weir_engine::worker::{Command, HandOver, Handed, Rewire, Rewiring, Worker};
use weir_packet::{DropReason, Ledger, Pool, Pools, Port, RegionPool};
use weir_port::{MemPort, MemWire};
use weir_program::change::Change;
use weir_program::{Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Pipe, PipeId, PortId};

/// The rings between two workers, of `capacity` parcels each.
fn hand_over(capacity: usize) -> [HandOver; 2] {
    HandOver::of_capacity(2, capacity).try_into().expect("two workers")
}

/// Two workers that learn flows and send everything out of `b`.
fn pair(capacity: usize) -> [(Worker, Vec<MemWire>); 2] {
    let program = start(&["a", "b"], [learning(4096).forward(PortId(1))]).build();
    hand_over(capacity).map(|rings| {
        let (worker, wires) = worker(&program, 256);
        (worker.with_hand_over(rings), wires)
    })
}

/// Frames of one flow: both directions, and a fragmented datagram.
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
            "src={here} dst={there} proto=udp frag=0+ sport={port} dport=53 \
                payload=00112233445566778899aabbccddeeff"
        ),
        format!("src={here} dst={there} frag=24 proto=udp payload=001122334455667788"),
    ];
    texts.iter().map(|text| weir_packet::craft::frame(text)).collect()
}

/// The worker that handles each flow; both directions count as one flow.
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
    let [(first, first_wires), (second, second_wires)] = pair(64);
    // Every frame arrives at both workers.
    for wire in [&first_wires[0], &second_wires[0]] {
        (0..FLOWS).flat_map(of_flow).for_each(|frame| wire.push(&frame));
        wire.end();
    }
    let all = u64::from(FLOWS) * 4 * 2;
    let breathe = |mut worker: Worker, wire: MemWire, done: Arc<std::sync::Barrier>| {
        std::thread::spawn(move || {
            let mut now_ns = 0;
            while wire.waiting() > 0 {
                now_ns += 1000;
                worker.breathe(now_ns);
                std::thread::yield_now();
            }
            // From here on neither hands anything over, but the rings still have to be emptied.
            done.wait();
            while worker.breathe(now_ns) > 0 {}
            worker
        })
    };
    let done = Arc::new(std::sync::Barrier::new(2));
    let threads = [
        breathe(first, first_wires[0].clone(), done.clone()),
        breathe(second, second_wires[0].clone(), done),
    ];
    let workers = threads.map(|thread| thread.join().expect("a worker does not panic"));
    let mut sum = Ledger::default();
    let mut handed = Handed::default();
    for worker in &workers {
        handed.taken += worker.handed().taken;
        handed.given += worker.handed().given;
        sum.add(&worker.report().ledger);
    }
    assert!(sum.balances(), "{sum:?}");
    assert_eq!((sum.received, sum.held, handed.taken), (all, 0, handed.given));
    assert!(handed.taken > all / 4, "about half of the frames are the other's: {handed:?}");
    assert_eq!(sum.transmitted + dropped(&sum, DropReason::HandOverFull), all);
    let owners = owners(&workers);
    assert!(owners.values().all(|owners| owners.len() == 1), "{owners:?}");
    // Flows, and their fragments, which have no ports and so form flows of their own.
    assert_eq!(owners.len(), usize::from(FLOWS) * 2);
    let each: Vec<usize> = workers.iter().map(|worker| worker.report().pipes[0].flows).collect();
    assert!(each.iter().all(|flows| *flows > usize::from(FLOWS)), "both get a fair share: {each:?}");
}

#[test]
fn a_frame_that_is_handed_over_keeps_the_nics_hash() {
    // Two buckets: the highest bit of the hash selects the port.
    let rows = [0, 1].map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at)));
    let spread = Pipe::hash("h", HashInput::Rss, GroupId(0)).entries(rows).forward(Forward::PerEntry);
    let mut program = start(&["a", "b"], [learning(4096).forward(PipeId(1)), spread]);
    program.group(Group::new("g", Fill::Given, 2).targets(crate::support::targets(&["x", "y"])));
    let program = program.build();
    for (hash, leaves) in [(1, 0), (0x8000_0000, 1)] {
        let mut workers = hand_over(8).map(|rings| {
            let mut pools = Pools::region(256);
            let id = pools.first().id();
            let (first, first_wire) = MemPort::new("a", id);
            let (second, second_wire) = MemPort::new("b", id);
            let first: Box<dyn Port> = Box::new(Strict { pool: Some(id), hash, ..Strict::new(first) });
            let mut engine = Engine::new(&program, SECRET).unwrap();
            let moves = Change::MoveBuckets {
                group: GroupId(0),
                moves: vec![(0, 0), (1, 1)].into(),
                idle_gap_ns: 0,
                wait_max_ns: 0,
            };
            engine.apply(&moves, 0).unwrap();
            (
                Worker::new(engine, vec![first, Box::new(second)], pools).with_hand_over(rings),
                [first_wire, second_wire],
            )
        });
        (0..20).flat_map(of_flow).for_each(|frame| workers[0].1[0].push(&frame));
        for (worker, _) in &mut workers {
            while worker.breathe(0) > 0 {}
        }
        assert!(workers[1].0.handed().taken > 10);
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
    let [(mut first, wires), (mut second, _)] = pair(1);
    (0..40).flat_map(of_flow).for_each(|frame| wires[0].push(&frame));
    (0..4).for_each(|_| _ = first.breathe(0));
    let ledger = balanced(&first);
    assert!((1..=PARCEL_FRAMES as u64).contains(&ledger.held), "one parcel: {}", ledger.held);
    assert!(dropped(&ledger, DropReason::HandOverFull) > 0);
    second.breathe(0);
    let mut sum = first.report().ledger;
    assert_eq!(sum.held, 0);
    sum.add(&second.report().ledger);
    assert!(sum.balances() && sum.received == 160, "{sum:?}");
    assert_eq!(second.handed().taken, ledger.held);
}

#[test]
fn frames_handed_over_are_walked_together() {
    let program = start(&["a", "b"], [learning(4096).forward(PortId(1))]).build();
    let mut transmissions = Vec::new();
    let mut workers = hand_over(8).map(|rings| {
        let mut pools = Pools::region(256);
        let id = pools.first().id();
        let ((first, wire), (second, _)) = (MemPort::new("a", id), MemPort::new("b", id));
        let second = Strict::new(second);
        transmissions.push(second.transmissions.clone());
        let engine = Engine::new(&program, SECRET).unwrap();
        (Worker::new(engine, vec![Box::new(first), Box::new(second)], pools).with_hand_over(rings), wire)
    });
    (0..16).flat_map(of_flow).for_each(|frame| workers[0].1.push(&frame));
    workers[0].0.breathe(0);
    assert_eq!(workers[1].0.breathe(0) as u64, workers[0].0.handed().given);
    let frames = workers[1].0.report().ledger.transmitted;
    assert!(frames > 10, "{frames}");
    assert_eq!(transmissions[1].load(Ordering::Relaxed), 1, "for {frames} frames");
}

#[test]
fn a_sleeping_worker_is_woken_once_by_frames_for_it() {
    let [(mut first, wires), (mut second, _)] = pair(8);
    let knocks = Arc::new(AtomicUsize::new(0));
    let heard = knocks.clone();
    second.wake_by(Box::new(move || _ = heard.fetch_add(1, Ordering::Relaxed)));
    let knocked = || knocks.load(Ordering::Relaxed);
    (0..20).flat_map(of_flow).for_each(|frame| wires[0].push(&frame));
    first.breathe(0);
    assert_eq!(knocked(), 0, "it is awake");
    second.set_asleep(true);
    wires[0].push(&[0; 60]);
    (0..40).flat_map(of_flow).for_each(|frame| wires[0].push(&frame));
    (0..4).for_each(|_| _ = first.breathe(0));
    assert_eq!(knocked(), 1, "a sleeping worker is woken only once");
    second.set_asleep(false);
    assert!(second.breathe(0) > 0);
}

/// The two workers of [`pair`], with a command channel to each.
fn commanded_pair(capacity: usize) -> [(Worker, Vec<MemWire>, SyncSender<Command>); 2] {
    pair(capacity).map(|(worker, wires)| {
        let (commands, receiver) = sync_channel(8);
        (worker.with_commands(receiver), wires, commands)
    })
}

#[test]
fn frames_between_workers_end_as_stopped_when_all_stop() {
    let [(mut first, wires, to_first), (mut second, _, to_second)] = commanded_pair(8);
    (0..50).flat_map(of_flow).for_each(|frame| wires[0].push(&frame));
    ask(&mut second, &to_second, Command::Quiesce);
    (0..4).for_each(|_| _ = first.breathe(0));
    ask(&mut first, &to_first, Command::Quiesce);
    let between = balanced(&first).held;
    assert!(between > weir_packet::BATCH as u64, "{between}");
    // Frames that arrive now are not received.
    wires[0].push(&udp(1, 53));
    let mut sum = ask(&mut first, &to_first, Command::Stop).ledger;
    sum.add(&ask(&mut second, &to_second, Command::Stop).ledger);
    assert!(sum.balances(), "{sum:?}");
    assert_eq!((sum.received, sum.held), (200, 0));
    // The second worker still runs one batch of them through its program in the iteration in which it is
    // stopped.
    let carried = between.min(weir_packet::BATCH as u64);
    assert_eq!(
        (sum.transmitted, dropped(&sum, DropReason::Stopped)),
        (200 - between + carried, between - carried)
    );
}

#[test]
fn an_injected_frame_goes_to_the_worker_of_its_flow() {
    let [(mut first, _, to_first), (mut second, _, _)] = commanded_pair(8);
    for frame in (0..20).flat_map(of_flow) {
        assert_eq!(inject(&mut first, &to_first, frame, None).0, Some(Ok(())));
    }
    while first.breathe(0) + second.breathe(0) > 0 {}
    let mut sum = first.report().ledger;
    sum.add(&second.report().ledger);
    assert!(sum.balances() && sum.originated == 80 && sum.transmitted == 80, "{sum:?}");
    assert!(second.handed().taken > 10);
    assert!(owners(&[first, second]).values().all(|owners| owners.len() == 1));
}

#[test]
fn a_frame_too_long_to_be_handed_over_is_oversize() {
    let program = start(&["a", "b"], [learning(4096).forward(PortId(1))]).build();
    let mut pools = Pools::new();
    let pool = pools.add(Pool::Region(RegionPool::new(200, 32768)));
    let (ports, wires) = ports(&program, pool);
    let [rings, _other] = hand_over(8);
    let mut worker = Worker::new(Engine::new(&program, SECRET).unwrap(), ports, pools).with_hand_over(rings);
    for mut frame in (0..20).flat_map(of_flow) {
        frame.resize(PARCEL_BYTES + 1, 0);
        wires[0].push(&frame);
    }
    worker.breathe(0);
    worker.breathe(0);
    let ledger = balanced(&worker);
    assert!(dropped(&ledger, DropReason::Oversize) > 10, "{ledger:?}");
    assert_eq!((dropped(&ledger, DropReason::HandOverFull), ledger.held), (0, 0));
}

/// A program for [`swap_to`], with its ports in this order: frames that arrive at `a` leave by `c`, and
/// frames that arrive at `b` are dropped, without flows or in a pipe that learns them.
fn one_way(names: &[&str], flows: bool) -> weir_program::Program {
    let at = |name: &str| PortId(names.iter().position(|one| *one == name).expect("a port") as u16);
    let out = Pipe::basic("out").miss(at("c"));
    let first = if flows { learning(4096).forward(at("c")) } else { out };
    let mut program = weir_program::builder::ProgramBuilder::new();
    names.iter().for_each(|name| _ = program.port(*name));
    let first = program.pipe(first);
    let nowhere = program.pipe(Pipe::basic("nowhere"));
    program.root(at("a"), first);
    program.root(at("b"), nowhere);
    program.build()
}

fn swap_to(
    (worker, commands): (&mut Worker, &SyncSender<Command>),
    program: &weir_program::Program,
    ports: [usize; 3],
    hand_over: Option<HandOver>,
) {
    let engine = Box::new(Engine::new(program, SECRET).unwrap());
    let rewiring = Rewiring {
        generation: 2,
        ports: ports.map(Rewire::Keep).into(),
        punts: Vec::new(),
        hand_over,
        ..Rewiring::default()
    };
    ask(worker, commands, |answer| Command::Swap(engine, rewiring, answer));
}

#[test]
fn rings_come_with_the_first_flow_pipe_and_what_they_carry_survives_swaps() {
    let plain = one_way(&["a", "b", "c"], false);
    let [mut first, mut second] = [0, 1].map(|_| commanded(&plain, 512));
    let sum = |first: &Worker, second: &Worker| {
        let mut sum = first.report().ledger;
        sum.add(&second.report().ledger);
        assert!(sum.balances(), "{sum:?}");
        sum
    };
    let arrive = |wires: &[MemWire]| (0..16).flat_map(of_flow).for_each(|frame| wires[0].push(&frame));
    // Without flows, nothing is handed over.
    arrive(&first.1);
    first.0.breathe(0);
    assert_eq!(first.0.handed(), Handed::default());
    // The first worker keeps flows before the second one does, and hands over.
    let [one, other] = hand_over(8);
    let flows = one_way(&["a", "b", "c"], true);
    swap_to((&mut first.0, &first.2), &flows, [0, 1, 2], Some(one));
    arrive(&first.1);
    first.0.breathe(0);
    let under_way = sum(&first.0, &second.0).held;
    assert!(under_way > 10);
    swap_to((&mut second.0, &second.2), &flows, [0, 1, 2], Some(other));
    second.0.breathe(0);
    assert_eq!((second.0.handed().taken, sum(&first.0, &second.0).held), (under_way, 0));
    // The ports get other numbers, and there are new rings, while frames are in the old ones.
    arrive(&first.1);
    first.0.breathe(0);
    let [one, other] = hand_over(8);
    let turned = one_way(&["c", "b", "a"], true);
    swap_to((&mut second.0, &second.2), &turned, [2, 1, 0], Some(other));
    swap_to((&mut first.0, &first.2), &turned, [2, 1, 0], Some(one));
    arrive(&first.1);
    while first.0.breathe(0) + second.0.breathe(0) > 0 {}
    let sum = sum(&first.0, &second.0);
    assert_eq!((sum.transmitted, sum.held), (4 * 64, 0), "none is taken for one of another port: {sum:?}");
    assert_eq!(second.0.handed().taken, 3 * under_way);
}
