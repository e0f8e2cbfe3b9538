//! Frames injected by apps.

use crate::rig::*;
use crate::support::{SECRET, udp};
use std::sync::mpsc::sync_channel;
use weir_engine::WAITING_MAX;
use weir_engine::batch::Engine;
use weir_engine::worker::{Command, Rewire, Rewiring, Worker};
use weir_packet::{DropReason, Pools};
use weir_port::MemPort;
use weir_program::{Forward, PortId};

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
    assert!(worker.take_signal(), "the requester is woken");
    assert_eq!((wires[0].pop(), wires[0].pop()), (Some(udp(1, 53)), None), "data frames find the ring full");
    wires[0].limit_transmit(9);
    wires[1].push(&udp(5, 53));
    worker.breathe(2);
    assert_eq!((wires[0].pop(), wires[0].pop()), (Some(udp(2, 53)), Some(udp(5, 53))));
    assert_eq!((later.try_recv(), worker.is_waiting()), (Ok(Ok(())), false));
    let ledger = balanced(&worker);
    assert_eq!((ledger.held, dropped(&ledger, DropReason::TransmitFull)), (0, 1));
}

/// A frame that the port can never send must not be retried forever, or all later ones would wait behind it.
#[test]
fn a_frame_that_a_port_never_sends_holds_up_nobody() {
    let program = all_to(Forward::Port(PortId(0)));
    let mut pools = Pools::region(8);
    let (first, wire) = MemPort::new("a", pools.first().id());
    let (second, data) = MemPort::new("b", pools.first().id());
    let strict = Strict { lengths: 14..=100, ..Strict::new(first) };
    let engine = Engine::new(&program, SECRET).unwrap();
    let (commands, receiver) = sync_channel(8);
    let worker = Worker::new(engine, vec![Box::new(strict), Box::new(second)], pools);
    let mut worker = worker.with_commands(receiver);
    let mut sent = |bytes| inject(&mut worker, &commands, bytes, Some(PortId(0))).0;
    assert_eq!(sent(vec![1; 13]), Some(Err(DropReason::MalformedEthernet)));
    assert_eq!(sent(vec![1; 101]), Some(Err(DropReason::Oversize)));
    assert_eq!(sent(udp(1, 53)), Some(Ok(())));
    assert_eq!(wire.pop(), Some(udp(1, 53)));
    // The same for data.
    [vec![1; 13], udp(2, 53), vec![1; 101]].iter().for_each(|frame| data.push(frame));
    worker.breathe(1);
    let ledger = balanced(&worker);
    let reasons = [DropReason::MalformedEthernet, DropReason::Oversize, DropReason::TransmitFull];
    assert_eq!(reasons.map(|reason| dropped(&ledger, reason)), [2, 2, 0]);
    assert_eq!((ledger.transmitted, ledger.held, wire.pop()), (2, 0, Some(udp(2, 53))));
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
    assert!(
        (0..WAITING_MAX as u16).all(|sport| wires[1].pop() == Some(udp(sport, 53))),
        "in the order of arrival"
    );
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
    // Only `b` is left, now as port 0.
    let mut new = all_to(Forward::Drop);
    new.ports.remove(0);
    let engine = Box::new(Engine::new(&new, SECRET).unwrap());
    let rewiring = Rewiring { generation: 2, ports: vec![Rewire::Keep(1)], ..Rewiring::default() };
    ask(&mut worker, &commands, |answer| Command::Swap(engine, rewiring, answer));
    assert_eq!(gone.try_recv(), Ok(Err(DropReason::PortRemoved)));
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
