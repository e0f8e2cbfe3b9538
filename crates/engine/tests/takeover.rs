//! Another process takes flows over (docs/pipes.md S10): what becomes of them there.

mod support;

use engine::batch::{Engine, FlowPage, TakenOver};
use engine::program::{Entry, EntryMatch, Fill, Group, GroupId, Learn, Pipe, PipeId, PortId, Program};
use engine::snapshot::FlowDecision;
use packet::FlowKey;
use std::collections::BTreeMap;
use support::{Bench, start, targets, udp};

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

/// The pages of an engine's flows, of so many rows each.
fn pages(engine: &Engine, rows: u32) -> Vec<FlowPage> {
    let (mut all, mut from) = (Vec::new(), Some(0));
    while let Some(row) = from {
        let page = engine.flow_records(PIPE, (row, rows), None);
        from = page.next;
        all.push(page);
    }
    all
}

fn resume(engine: &mut Engine, pages: &[FlowPage], place: (usize, usize)) -> TakenOver {
    let mut sum = TakenOver::default();
    pages.iter().for_each(|page| sum.add(engine.resume_flows(PIPE, page, place)));
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
    assert_eq!(resume(&mut new, &all, (0, 1)), TakenOver { flows: 60, ended: 0, unreadable: 0 });
    assert_eq!(pinned(&new), pinned(&old));
    // Again: they are there.
    assert_eq!(resume(&mut new, &all, (0, 1)).flows, 60);
    let account = new.flow_account();
    assert!(account.balances() && account.live == 0, "counts stay with the old process: {account:?}");
}

#[test]
fn s10_flows_of_a_target_that_is_gone_end_and_so_do_those_without_room() {
    let old = met(&pinning(&["x", "y"], 64, 0), 0..60);
    let of_x = pinned(&old).values().filter(|name| *name == "x").count();
    assert!((10..50).contains(&of_x));
    let mut new = met(&pinning(&["x", "w"], 64, 1), []);
    let sum = resume(&mut new, &pages(&old, 100), (0, 1));
    assert_eq!((sum.flows, sum.ended), (of_x, 60 - of_x));
    let mut small = met(&pinning(&["x", "y"], 16, 0), []);
    let sum = resume(&mut small, &pages(&old, 100), (0, 1));
    assert_eq!((sum.flows, sum.ended, small.flows(PIPE, 0).1), (16, 44, 16));
}

#[test]
fn s10_each_flow_goes_to_its_worker() {
    let program = pinning(&["x", "y"], 64, 0);
    let old = met(&program, 0..60);
    let all = pages(&old, 100);
    let mut engines = [met(&program, []), met(&program, []), met(&program, [])];
    let sums: Vec<usize> =
        engines.iter_mut().enumerate().map(|(at, engine)| resume(engine, &all, (at, 3)).flows).collect();
    assert!(sums.iter().all(|&flows| flows > 5) && sums.iter().sum::<usize>() == 60, "{sums:?}");
}

#[test]
fn s10_what_cannot_be_read_is_counted_and_changes_nothing() {
    let old = met(&pinning(&["x", "y"], 64, 0), 0..20);
    let mut new = met(&pinning(&["x", "y"], 64, 0), []);
    let mut page = pages(&old, 100).remove(0);
    page.records.truncate(page.length * 3 + 1);
    // An entry that the list has not.
    page.records[40..44].copy_from_slice(&77_u32.to_le_bytes());
    // An unknown state.
    page.records[page.length + 52] = 99;
    let sum = resume(&mut new, &[page], (0, 1));
    assert_eq!(sum, TakenOver { flows: 1, ended: 1, unreadable: 2 });
    let odd = FlowPage { length: 5, records: vec![0; 50], ..FlowPage::default() };
    assert_eq!(resume(&mut new, &[odd], (0, 1)), TakenOver::default());
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
