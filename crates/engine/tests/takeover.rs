//! Another process takes over flows (changes.md S10): what happens to them there.

mod support;

use std::collections::BTreeMap;
use support::{Bench, source_nat, start, targets, udp};
use weir_engine::batch::{Engine, FlowPage, Share, TakenOver};
use weir_packet::FlowKey;
use weir_program::snapshot::FlowDecision;
use weir_program::{
    Affinity, Entry, EntryMatch, Fill, FlowState, Group, GroupId, Learn, NewFlows, Pipe, PipeId, PipeKind,
    PortId, Program, Timeouts,
};

const PIPE: PipeId = PipeId(0);

/// A program that pins flows to these targets, with buckets that are the same for all.
fn pinning(names: &[&str], capacity: u32, first: u16) -> Program {
    let rows = (0..names.len() as u16).map(EntryMatch::Target).map(Entry::on);
    let pipe = Pipe::flow("f", Learn::Pin(GroupId(first).into())).entries(rows).capacity(capacity);
    let mut program = start(&["a"], [pipe.forward(PortId(0))]);
    // Groups in front of it give the group and its targets other numbers.
    (0..first).for_each(|at| {
        _ = program.group(Group::new(format!("h{at}"), Fill::Wants, 4).targets(targets(&["z"])))
    });
    program.group(Group::new("g", Fill::Wants, 12).targets(targets(names)));
    program.build()
}

fn met(program: &Program, sports: impl IntoIterator<Item = u16>) -> Engine {
    let mut bench = Bench::new(program);
    sports.into_iter().for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    bench.engine
}

/// The pages of an engine's flows, with `rows` rows each.
fn pages(engine: &Engine, rows: u32) -> Vec<FlowPage> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(row) = from {
        let page = engine.flow_records(PIPE, (row, rows), None);
        from = page.next;
        all.push(page);
    }
    all
}

fn resume(engine: &mut Engine, pages: &[FlowPage], share: Share) -> TakenOver {
    let mut sum = TakenOver::default();
    pages.iter().for_each(|page| sum.add(engine.resume_flows(PIPE, page, share)));
    engine.end_takeover();
    sum
}

/// The names of the targets that flows are pinned to.
fn pinned(engine: &Engine) -> BTreeMap<FlowKey, String> {
    let name = |target: u16| {
        let group = engine.program().groups.iter().find(|group| group.name == "g").unwrap();
        group.targets[usize::from(target)].name.clone()
    };
    let of = |decision| match decision {
        FlowDecision::Pinned(target) => name(target),
        other => panic!("{other:?}"),
    };
    engine.flows(PIPE, usize::MAX).0.iter().map(|flow| (flow.key, of(flow.decision))).collect()
}

#[test]
fn s10_flows_go_on_with_their_target_by_its_name_whatever_its_number_is() {
    let old = met(&pinning(&["x", "y"], 64, 0), 0..60);
    let mut new = met(&pinning(&["y", "w", "x"], 128, 2), []);
    let all = pages(&old, 7);
    assert!(all.len() >= 9);
    assert_eq!(resume(&mut new, &all, Share::ALONE), TakenOver { flows: 60, ended: 0, unreadable: 0 });
    assert_eq!(pinned(&new), pinned(&old));
    // Again: they already exist.
    assert_eq!(resume(&mut new, &all, Share::ALONE).flows, 60);
    let account = new.flow_account();
    assert!(account.balances() && account.live == 0, "counts stay with the old process: {account:?}");
}

#[test]
fn s10_flows_of_a_target_that_is_gone_end_and_so_do_those_without_room() {
    let old = met(&pinning(&["x", "y"], 64, 0), 0..60);
    let of_x = pinned(&old).values().filter(|name| *name == "x").count();
    assert!((10..50).contains(&of_x));
    let mut new = met(&pinning(&["x", "w"], 64, 1), []);
    let sum = resume(&mut new, &pages(&old, 100), Share::ALONE);
    assert_eq!((sum.flows, sum.ended), (of_x, 60 - of_x));
    let mut small = met(&pinning(&["x", "y"], 16, 0), []);
    let sum = resume(&mut small, &pages(&old, 100), Share::ALONE);
    assert_eq!((sum.flows, sum.ended, small.flows(PIPE, 0).1), (16, 44, 16));
}

#[test]
fn s10_each_flow_goes_to_its_worker() {
    let program = pinning(&["x", "y"], 64, 0);
    let old = met(&program, 0..60);
    let all = pages(&old, 100);
    let mut engines = [met(&program, []), met(&program, []), met(&program, [])];
    let sums: Vec<usize> = engines
        .iter_mut()
        .enumerate()
        .map(|(at, engine)| resume(engine, &all, Share { own: at, workers: 3 }).flows)
        .collect();
    assert!(sums.iter().all(|&flows| flows > 5) && sums.iter().sum::<usize>() == 60, "{sums:?}");
}

#[test]
fn s10_what_cannot_be_read_is_counted_and_changes_nothing() {
    let old = met(&pinning(&["x", "y"], 64, 0), 0..20);
    let mut new = met(&pinning(&["x", "y"], 64, 0), []);
    let mut page = pages(&old, 100).remove(0);
    page.records.truncate(page.length * 3 + 1);
    // An entry that is not in the list.
    page.records[40..44].copy_from_slice(&77_u32.to_le_bytes());
    // An unknown state.
    page.records[page.length + 52] = 99;
    let sum = resume(&mut new, &[page], Share::ALONE);
    assert_eq!(sum, TakenOver { flows: 1, ended: 1, unreadable: 2 });
    let odd = FlowPage { length: 5, records: vec![0; 50], ..FlowPage::default() };
    assert_eq!(resume(&mut new, &[odd], Share::ALONE), TakenOver::default());
    assert_eq!(new.flows(PIPE, 0).1, 1);
}

#[test]
fn s10_later_pages_have_only_what_was_decided_since() {
    let mut bench = Bench::new(&pinning(&["x", "y"], 64, 0));
    bench.now_ns = 1_000_000_000;
    (0..5).for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    bench.now_ns = 2_000_000_000;
    (3..9).for_each(|sport| _ = bench.frame(PortId(0), &udp(sport, 53)));
    let page = bench.engine.flow_records(PIPE, (0, 100), Some(1_500));
    assert_eq!(page.records.len() / page.length, 4);
}

/// Segments of a client.
fn tcp(flags: &str) -> Vec<u8> {
    weir_packet::craft::frame(&format!(
        "src=10.1.1.1 dst=203.0.113.5 proto=tcp sport=7 dport=80 flags={flags}"
    ))
}

/// The same with states, from a pool or to targets in turn.
fn with_states(mut program: Program, new_flows: NewFlows) -> Program {
    if let PipeKind::Flow { timeouts, .. } = &mut program.pipes[0].kind {
        *timeouts = Timeouts::CONNTRACK;
    }
    program.groups[0].new_flows = new_flows;
    program
}

#[test]
fn a_connection_that_has_ended_and_another_from_the_same_port_go_on_as_what_they_are() {
    let programs = [
        with_states(pinning(&["x", "y"], 64, 0), NewFlows::RoundRobin),
        with_states(pinning(&["x"], 64, 0), NewFlows::Hash),
        with_states(source_nat((1024, 1151), 31), NewFlows::Hash),
    ];
    for program in &programs {
        let mut bench = Bench::new(program);
        let send = |bench: &mut Bench, flags| {
            bench.now_ns += 1_000_000;
            bench.bytes(PortId(0), &tcp(flags))
        };
        ["S", "A", "RA"].iter().for_each(|flags| _ = send(&mut bench, flags));
        let mut new = Bench::new(program);
        let first = pages(&bench.engine, 100);
        resume_some(&mut new.engine, &first);
        // It has ended there as well: a SYN would begin another.
        let flow = |engine: &Engine| {
            let flows = engine.flows(PIPE, 9).0;
            *flows.iter().find(|flow| flow.key.sport() == 7).expect("the client's flow")
        };
        assert_eq!(flow(&new.engine).state, Some(FlowState::TcpRst));
        ["S", "A"].iter().for_each(|flags| _ = send(&mut bench, flags));
        resume_some(&mut new.engine, &pages(&bench.engine, 100));
        new.engine.end_takeover();
        let (was, is) = (flow(&bench.engine), flow(&new.engine));
        assert_eq!((is.decision, is.state, is.binding), (was.decision, was.state, was.binding));
        // From now on they behave the same.
        new.now_ns = bench.now_ns;
        for flags in ["A", "RA"] {
            assert_eq!(send(&mut new, flags), send(&mut bench, flags));
        }
        let before = flow(&new.engine);
        send(&mut new, "S");
        let after = flow(&new.engine);
        assert_eq!((after.state, after.hits.packets), (Some(FlowState::TcpSyn), 1));
        assert_eq!(after.binding == before.binding, before.binding.is_none());
        new.take_deltas();
    }
}

#[test]
fn sources_are_remembered_by_their_flows_from_another_process() {
    let remembering = |names: &[&str]| {
        let mut program = pinning(names, 64, 1);
        program.groups[1].affinity = Some(Affinity { timeout_ns: 60_000_000_000, ..Affinity::ADDRESS });
        program
    };
    let from = |at: u8| {
        weir_packet::craft::frame(&format!("src=10.0.1.{at} dst=10.0.0.2 proto=udp sport=9 dport=53"))
    };
    let mut old = Bench::new(&remembering(&["x", "y"]));
    (0..30).for_each(|at| _ = old.frame(PortId(0), &from(at)));
    let names = |engine: &Engine| -> BTreeMap<_, _> {
        pinned(engine).into_iter().map(|(key, name)| ((key.src(), key.sport()), name)).collect()
    };
    let was = names(&old.engine);
    let mut new = Bench::new(&remembering(&["z", "x", "w", "y"]));
    resume(&mut new.engine, &pages(&old.engine, 100), Share::ALONE);
    for at in 0..30 {
        let again =
            weir_packet::craft::frame(&format!("src=10.0.1.{at} dst=10.0.0.2 proto=udp sport=10 dport=53"));
        new.frame(PortId(0), &again);
    }
    let is = names(&new.engine);
    assert_eq!(is.len(), 60);
    assert!(was.iter().all(|((source, _), name)| is[&(*source, 10)] == *name), "{was:?} {is:?}");
}

/// Takes over flows without calling [`Engine::end_takeover`].
fn resume_some(engine: &mut Engine, pages: &[FlowPage]) {
    pages.iter().for_each(|page| _ = engine.resume_flows(PIPE, page, Share::ALONE));
}
