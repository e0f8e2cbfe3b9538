//! Entries that match a port, across a swap to a program that numbers its ports differently.

mod support;

use std::collections::BTreeMap;
use support::{Bench, start, udp};
use weir_packet::Field;
use weir_program::change::Change;
use weir_program::snapshot::Count;
use weir_program::{Criterion, Entry, EntryMatch, Pipe, PipeId, PortId, Program};

/// A program whose pipes match `port`: per entry, by a constant, and by an ACL.
fn by_port(ports: &[&str]) -> Program {
    let at = |name: &str| ports.iter().position(|port| *port == name).expect("a port") as u16;
    let each = Pipe::basic("each").per_entry(Field::InputPort).entries([at("a"), at("b")]);
    let each = each.capacity(8).miss(PipeId(1));
    let acl = Pipe::acl("acl").matching(Field::InputPort, Criterion::Masked).miss(PipeId(2));
    let masked = |name| Entry::on(EntryMatch::Masked { value: at(name).into(), mask: 0xffff });
    let fixed = Pipe::basic("fixed").constant(Field::InputPort, at("d")).per_entry(Field::L4Dport).entry(53);
    start(ports, [each, acl.entries([masked("b")]), fixed]).build()
}

/// The counts of a pipe's entries, by the names of their ports.
fn hits_by_port(bench: &Bench, pipe: u16) -> BTreeMap<String, u64> {
    let name = |value: u128| bench.engine.program().ports[value as usize].name.clone();
    let count = |(entry, count): (Entry, Count)| match entry.matches[0] {
        EntryMatch::Value(value) | EntryMatch::Masked { value, .. } => (name(value), count.packets),
        other => panic!("{other:?}"),
    };
    bench.engine.entries(PipeId(pipe)).into_iter().map(count).collect()
}

#[test]
fn s4_entries_that_match_a_port_stay_with_its_name() {
    let mut bench = Bench::new(&by_port(&["a", "b", "c", "d"]));
    bench.apply(Change::Add { pipe: PipeId(0), entry: Entry::on(2).run_time() }).unwrap();
    for (port, packets) in [(0, 1), (1, 2), (2, 3), (3, 4)] {
        (0..packets).for_each(|_| _ = bench.frame(PortId(port), &udp(1, 53)));
    }
    let report = bench.swap(&by_port(&["d", "c", "a", "b"]));
    assert_eq!(report.removed, []);
    let named = |counts: &[(&str, u64)]| -> BTreeMap<String, u64> {
        counts.iter().map(|(name, count)| (name.to_string(), *count)).collect()
    };
    assert_eq!(hits_by_port(&bench, 0), named(&[("a", 1), ("b", 2), ("c", 3)]));
    assert_eq!(hits_by_port(&bench, 1), named(&[("b", 0)]));
    assert_eq!(bench.engine.entries(PipeId(2))[0].1.packets, 4, "a constant port gives the same result");
    bench.frame(PortId(1), &udp(1, 53));
    assert_eq!(hits_by_port(&bench, 0), named(&[("a", 1), ("b", 2), ("c", 4)]));
    // An entry leaves together with its port.
    let mut less = by_port(&["d", "a", "b"]);
    less.pipes[0].entries.edit(Vec::pop);
    assert_eq!(bench.swap(&less).removed, [("each".to_string(), 2, 0)]);
    assert_eq!(hits_by_port(&bench, 0), named(&[("a", 1)]));
}
