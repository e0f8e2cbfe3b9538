//! The number of workers changes: what happens to flows and counts (changes.md S9). That it makes no
//! difference to packets is tested with random programs in `many_workers`.

mod support;

use support::{Bench, SECRET, start, targets, udp};
use weir_engine::batch::{Engine, Moved};
use weir_engine::delta::DeltaReason;
use weir_packet::FlowKey;
use weir_program::snapshot::{FlowAccount, FlowDecision};
use weir_program::{Entry, EntryMatch, Fill, Group, GroupId, Learn, Pipe, PipeId, PortId, Program};

/// A program that pins up to `capacity` flows to `x` and `y`; the flow from port 7 has an entry of its own.
fn pinning(capacity: u32, own: bool) -> Program {
    let [here, there] = [1, 2].map(|host| std::net::Ipv4Addr::new(10, 0, 0, host).into());
    let own = own.then(|| EntryMatch::Flow(FlowKey::new(here, there, 17, (7, 53), None)));
    let rows = (0..2).map(EntryMatch::Target).chain(own).map(Entry::on);
    let pipe = Pipe::flow("f", Learn::Pin(GroupId(0).into())).entries(rows).capacity(capacity);
    let mut program = start(&["a"], [pipe.forward(PortId(0))]);
    program.group(Group::new("g", Fill::Wants, 12).targets(targets(&["x", "y"])));
    program.build()
}

/// The engine of a worker that has met a packet of each of these flows.
fn engine(program: &Program, sports: impl IntoIterator<Item = u16>) -> Box<Engine> {
    let mut bench = Bench::new(program);
    sports.into_iter().for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    Box::new(bench.engine)
}

fn account(engines: &[Box<Engine>]) -> FlowAccount {
    let mut sum = FlowAccount::default();
    engines.iter().for_each(|engine| sum.add(&engine.flow_account()));
    assert!(sum.balances(), "{sum:?}");
    assert_eq!(sum.live, engines.iter().map(|engine| engine.packets_in_flows()).sum::<u64>());
    sum
}

#[test]
fn s9_flows_without_room_end_with_a_delta_when_a_worker_is_removed() {
    let program = pinning(64, false);
    let mut engines = vec![engine(&program, 0..64), engine(&program, 100..164)];
    let moved = Engine::redistribute(&mut engines, 1, SECRET.into());
    assert_eq!(moved, Moved { moved: 0, ended: 64 });
    assert_eq!(engines.len(), 1);
    let sum = account(&engines);
    assert_eq!((sum.met, sum.live, sum.given), (128, 64, 64));
    let mut deltas = Vec::new();
    engines[0].take_deltas(|delta| {
        deltas.push((delta.reason(), delta.packets(), delta.of().target <= 1));
        true
    });
    assert_eq!(deltas, vec![(DeltaReason::Evicted, 1, true); 64]);
}

#[test]
fn s9_flows_go_from_full_tables_to_new_workers_and_back() {
    let program = pinning(64, false);
    let mut engines = vec![engine(&program, 0..64), engine(&program, []), engine(&program, [])];
    let decided = |engines: &[Box<Engine>]| {
        let flows = engines.iter().flat_map(|engine| engine.flows(PipeId(0), usize::MAX).0);
        let mut all: Vec<(FlowKey, FlowDecision)> = flows.map(|flow| (flow.key, flow.decision)).collect();
        all.sort_by_key(|(key, _)| key.0);
        all
    };
    let before = decided(&engines);
    let out = Engine::redistribute(&mut engines, 3, SECRET.into());
    assert!(out.moved > 20 && out.ended == 0, "{out:?}");
    assert!(engines.iter().all(|engine| engine.flows(PipeId(0), 0).1 > 5));
    assert_eq!(decided(&engines), before);
    assert_eq!(Engine::redistribute(&mut engines, 3, SECRET.into()), Moved::default(), "all are at home");
    let back = Engine::redistribute(&mut engines, 1, SECRET.into());
    assert_eq!((back.moved, back.ended), (out.moved, 0));
    assert_eq!(decided(&engines), before);
    assert_eq!(account(&engines).met, 64);
    // Two removed engines left counts of entries behind.
    while engines[0].settle(1).is_some() || engines[0].is_settling() {}
    let hits: u64 = engines[0].entries(PipeId(0)).iter().map(|(_, count)| count.packets).sum();
    assert_eq!(hits, 64);
}

#[test]
fn s9_the_counts_of_a_flow_with_an_entry_of_its_own_move_and_the_flow_stays() {
    let program = pinning(64, true);
    let mut engines = vec![engine(&program, [7, 7]), engine(&program, [7, 7, 7])];
    Engine::redistribute(&mut engines, 2, SECRET.into());
    let own = |engine: &Engine| {
        let flow = engine.flows(PipeId(0), usize::MAX).0[0];
        assert_eq!(flow.decision, FlowDecision::Own);
        flow.hits.packets
    };
    let mut each = [own(&engines[0]), own(&engines[1])];
    each.sort_unstable();
    assert_eq!(each, [0, 5], "at home on one worker");
    Engine::redistribute(&mut engines, 1, SECRET.into());
    assert_eq!(own(&engines[0]), 5);
    assert_eq!(account(&engines).met, 5);
}
