//! Groups that are filled like those of another system's nodes: each flow goes where those nodes send it.

mod support;

use std::net::IpAddr;
use std::sync::Arc;
use support::{Bench, start};
use weir_oracle::Interpreter;
use weir_packet::{DropReason, Field, FlowKey, KeySource, TunnelKind, craft};
use weir_program::Verdict;
use weir_program::buckets::BucketTable;
use weir_program::change::Change;
use weir_program::check::{FindingKind, check};
use weir_program::director::glb_rows;
use weir_program::{
    Encap, Entry, EntryMatch, Fill, Forward, GlbHash, Group, GroupChoice, GroupId, HashInput, KatranHash,
    KatranVersion, Learn, Operation, Pipe, PipeId, PortId, Program, Target, Value,
};

const PORTS: [&str; 4] = ["in", "r1", "r2", "r3"];
const GLB: Fill = Fill::Glb([0x34; 16], GlbHash { key: [0x12; 16], fields: GlbHash::SOURCE });

fn katran(hash: KatranHash) -> Fill {
    Fill::Katran(KatranVersion::V1, hash)
}

/// The reals of Katran's tests, in one family or the other; each leads to a port of its own.
fn group(fill: Fill, ipv6: bool) -> Group {
    let address = |at: u8| -> IpAddr {
        if ipv6 { [0xfc00, 0, 0, 0, 0, 0, 0, u16::from(at)].into() } else { [10, 0, 0, at].into() }
    };
    let target = |at: u8| Target::new(PORTS[usize::from(at)], PortId(at.into())).address(address(at));
    Group::new("reals", fill, fill.fixed_size().unwrap()).number(7).targets((1..=3).map(target))
}

/// Programs that pick from the group in every possible way, all through entries that lead to the target's
/// port.
fn ways(group: &Group) -> Vec<Program> {
    let rows = |choice: GroupChoice| {
        let to = move |at: u16| Entry::on(choice.key(GroupId(0), at)).to(PortId(at + 1));
        (0..3).map(to).collect::<Vec<Entry>>()
    };
    let (one, chosen) = (GroupChoice::One(GroupId(0)), GroupChoice::ByMeta(0));
    let hash = |choice| Pipe::hash("pick", HashInput::Select(KeySource::Outer), choice).entries(rows(choice));
    let flow = |learn: Learn| Pipe::flow("pick", learn).entries(rows(learn.group().unwrap()));
    let mut ways = vec![hash(one), hash(chosen)];
    ways.extend([Learn::Pin(one), Learn::Follow(one), Learn::Pin(chosen), Learn::Follow(chosen)].map(flow));
    let picks = ways.into_iter().map(|pipe| pipe.forward(Forward::PerEntry).miss(Forward::Drop).capacity(64));
    let all = picks.map(|pipe| {
        let number = [Operation::Set(Field::Meta0, Value::Const(7))];
        let first = Pipe::basic("number").act(number).forward(PipeId(1)).entries([Entry::default()]);
        vec![first, pipe]
    });
    let by_group = Pipe::basic("pick").entries([Entry::default()]).forward(Forward::Group(GroupId(0)));
    let program = |pipes: Vec<Pipe>| {
        let mut program = start(&PORTS, pipes);
        program.group(group.clone());
        program.build()
    };
    all.chain([vec![by_group]]).map(program).collect()
}

/// The outcome of a frame in the engine and the interpreter of each program, which must agree.
fn verdicts(group: &Group, bytes: &[u8]) -> Vec<Verdict> {
    let verdict = |program: Program| {
        let wrong = |kind: &FindingKind| !matches!(kind, FindingKind::NumberWithoutEntries { .. });
        let found: Vec<FindingKind> = check(&program).into_iter().map(|one| one.kind).filter(wrong).collect();
        assert_eq!(found, []);
        let mut bench = Bench::new(&program);
        let mut twin = Interpreter::new(&program, bench.engine.buckets());
        let wanted = twin.walk(PortId(0), bytes, 128, bench.now_ns).verdict;
        assert_eq!(bench.frame(PortId(0), bytes), wanted, "the twin disagrees");
        wanted
    };
    ways(group).into_iter().map(verdict).collect()
}

#[track_caller]
fn all_go(group: &Group, recipe: &str, name: &str) {
    let port = PortId(PORTS.iter().position(|port| *port == name).unwrap() as u16);
    let verdicts = verdicts(group, &craft::frame(recipe));
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Transmit(port)), "{recipe}: {verdicts:?}");
}

/// Packets of Katran's own tests, which expect these reals.
#[test]
fn m23_a_flow_goes_where_katran_sends_it() {
    let plain = KatranHash::default();
    let any = KatranHash { any_port: true, ..plain };
    let dport = KatranHash { dport_only: true, ..any };
    let client = "src=192.168.1.1 dst=10.200.1.1 proto=udp sport=31337";
    all_go(&group(katran(plain), false), &format!("{client} dport=80"), "r3");
    all_go(&group(katran(any), false), &format!("{client} dport=42"), "r2");
    all_go(&group(katran(dport), false), &format!("{client} dport=42"), "r2");
    all_go(&group(Fill::Katran(KatranVersion::V2, plain), true), &format!("{client} dport=80"), "r1");
    let ipv6 = "src=fc00:2::1 dst=fc00:1::1 proto=tcp sport=31337 dport=80";
    all_go(&group(katran(plain), true), ipv6, "r3");
}

#[test]
fn m23_a_flow_goes_to_the_first_back_end_of_the_directors_row() {
    let group = group(GLB, false);
    let table = BucketTable::fill(&group, None);
    let Fill::Glb(_, hash) = GLB else { unreachable!() };
    for source in ["10.11.12.13", "203.0.113.9", "2001:db8::7"] {
        let vip = if source.contains(':') { "2001:db8::1" } else { "1.1.1.1" };
        let flow = FlowKey::new(source.parse().unwrap(), vip.parse().unwrap(), 6, (45678, 80), None);
        let first = table.buckets().slots()[hash.row(&flow)];
        let recipe = format!("src={source} dst={vip} proto=tcp sport=45678 dport=80");
        all_go(&group, &recipe, PORTS[usize::from(first) + 1]);
    }
}

/// A program that sends packets to the group's targets like the director, with or without flows.
fn director(group: &Group, flows: bool) -> Program {
    let pipe = match flows {
        true => Pipe::flow("pick", Learn::Pin(GroupId(0).into())),
        false => Pipe::hash("pick", HashInput::Select(KeySource::Outer), GroupId(0)),
    };
    let address = |target: &Target| match target.address {
        Some(IpAddr::V4(address)) => address,
        other => panic!("{other:?}"),
    };
    let rows = (0..).zip(&*group.targets);
    let rows = rows.map(|(at, one)| Entry::on(EntryMatch::Target(at)).value(address(one)));
    let encap = Encap { dst: Value::PerEntry, second_chance: true, ..Encap::new(TunnelKind::Gue) };
    let pipe = pipe.act([Operation::Encap(encap)]).entries(rows).forward(PortId(1)).miss(Forward::Drop);
    let mut program = start(&PORTS, [pipe.capacity(64)]);
    program.group(group.clone());
    program.build()
}

/// Where a frame goes, and where its private data sends it next; the engine and the interpreter do the same.
#[track_caller]
fn hops(bench: &mut Bench, twin: &mut Interpreter, bytes: &[u8]) -> (u8, u8) {
    let out = bench.bytes(PortId(0), bytes);
    assert_eq!(out, twin.walk(PortId(0), bytes, 128, bench.now_ns).bytes);
    // The director's gue-header.md: two words after the first, IPv4 inside, no flags; type
    // 0, next hop 0.
    assert_eq!(out[42..48], [2, 4, 0, 0, 0, 0]);
    assert_eq!((out[48], out[49]), (0, 1));
    assert_eq!(out[54..], bytes[14..], "the packet itself is as it was");
    let lengths = [16, 38].map(|at| usize::from(u16::from_be_bytes([out[at], out[at + 1]])));
    assert_eq!(lengths, [out.len() - 14, out.len() - 34]);
    assert_eq!((&out[30..33], &out[50..53]), (&[10, 0, 0][..], &[10, 0, 0][..]));
    (out[33], out[53])
}

#[test]
fn a25_a_gue_header_says_the_other_back_end_of_the_row() {
    let mut group = group(GLB, false);
    for flows in [false, true] {
        let (mut bench, rows) = (Bench::new(&director(&group, flows)), glb_rows(&group));
        let mut twin = Interpreter::new(&bench.program, bench.engine.buckets());
        let Fill::Glb(_, hash) = GLB else { unreachable!() };
        for last in 0..200_u8 {
            let flow = FlowKey::new([203, 0, 113, last].into(), [1; 4].into(), 6, (45678, 80), None);
            let row = rows[hash.row(&flow)];
            let frame =
                craft::frame(&format!("src=203.0.113.{last} dst=1.1.1.1 proto=tcp sport=45678 dport=80"));
            let wanted = (row.first as u8 + 1, row.second as u8 + 1);
            assert_eq!(hops(&mut bench, &mut twin, &frame), wanted);
        }
    }
    // With one back end there is no other, so it is its own second chance.
    group.targets = Arc::from([group.targets[1].clone()]);
    let mut bench = Bench::new(&director(&group, false));
    let mut twin = Interpreter::new(&bench.program, bench.engine.buckets());
    let frame = craft::frame("src=203.0.113.9 dst=1.1.1.1 proto=tcp sport=45678 dport=80");
    assert_eq!(hops(&mut bench, &mut twin, &frame), (2, 2));
}

#[test]
fn a25_a_flow_that_stays_has_its_second_chance_where_the_row_leads_now() {
    let group = group(GLB, false);
    let mut bench = Bench::new(&director(&group, true));
    let frame = craft::frame("src=203.0.113.9 dst=1.1.1.1 proto=tcp sport=45678 dport=80");
    let out = bench.bytes(PortId(0), &frame);
    let (first, second) = (out[33], out[53]);
    let change = Change::SetWeight { group: GroupId(0), target: u16::from(first) - 1, weight: 0 };
    bench.apply(change).unwrap();
    // New flows go to the second back end, which forwards packets of connections that are not its own; this
    // flow stays where it is.
    let out = bench.bytes(PortId(0), &frame);
    assert_eq!((out[33], out[49], out[53]), (first, 1, second));
    let mut new = Bench::new(&{
        let mut drained = group.clone();
        drained.set_weight(usize::from(first) - 1, 0);
        director(&drained, true)
    });
    let out = new.bytes(PortId(0), &frame);
    assert_eq!((out[33], out[49], out[53]), (second, 1, first));
}

#[test]
fn a25_only_where_a_row_is_picked_and_over_ipv4() {
    let kinds = |pipe: Pipe, ipv6: bool| {
        let encap = Encap { second_chance: true, ipv6, ..Encap::new(TunnelKind::Gue) };
        let pipe = pipe.act([Operation::Encap(encap)]).forward(PortId(1)).miss(Forward::Drop);
        let mut program = start(&PORTS, [pipe]);
        program.group(Group::new("any", Fill::Wants, 4).targets([Target::new("a", Forward::Drop)]));
        let found = check(&program.build()).into_iter().map(|one| one.kind);
        found.filter(|kind| !matches!(kind, FindingKind::Unused { .. })).collect::<Vec<_>>()
    };
    let hash = |input| Pipe::hash("pick", input, GroupId(0)).entries([Entry::on(EntryMatch::Target(0))]);
    assert_eq!(kinds(hash(HashInput::Select(KeySource::Outer)), false), []);
    let ipv6 = kinds(hash(HashInput::Select(KeySource::Outer)), true);
    assert_eq!(ipv6, [FindingKind::SecondChanceIpv6]);
    assert_eq!(kinds(hash(HashInput::RoundRobin), false), [FindingKind::SecondChanceNowhere]);
    let basic = Pipe::basic("all").entries([Entry::default()]);
    assert_eq!(kinds(basic, false), [FindingKind::SecondChanceNowhere]);
}

#[test]
fn m23_a_packet_without_a_flow_picks_as_from_other_groups() {
    let group = group(katran(KatranHash::default()), false);
    let verdicts = verdicts(&group, &craft::frame("type=0x88b5"));
    let (hash, flows) = (&verdicts[..2], &verdicts[2..6]);
    assert!(matches!(hash, [Verdict::Transmit(one), Verdict::Transmit(other)] if one == other));
    assert!(flows.iter().all(|verdict| *verdict == Verdict::Drop(DropReason::Miss)), "{flows:?}");
}

#[test]
fn m23_what_cannot_be_filled_or_picked_from_is_refused() {
    let kinds = |group: Group, input: HashInput| {
        let rows = (0..3).map(|at| Entry::on(EntryMatch::Target(at)).to(PortId(at + 1)));
        let pipe = Pipe::hash("pick", input, GroupId(0)).entries(rows).forward(Forward::PerEntry);
        let mut program = start(&PORTS, [pipe.miss(Forward::Drop)]);
        program.group(group);
        check(&program.build()).into_iter().map(|one| one.kind).collect::<Vec<_>>()
    };
    let good = || group(katran(KatranHash::default()), false);
    let select = || HashInput::Select(KeySource::Outer);
    assert_eq!(kinds(good(), HashInput::Rss), [FindingKind::HashOfOthers { group: "reals".into() }]);
    assert_eq!(kinds(good().seed(1), select()), [FindingKind::ForeignSeed]);
    let small = Group { size: 251, ..good() };
    assert_eq!(kinds(small, select()), [FindingKind::ForeignSize { size: 251, wanted: 65_537 }]);
    let mut same = good();
    same.target_mut(2).address = same.targets[0].address;
    let twice = FindingKind::AddressTwice { first: "r1".into(), target: "r3".into() };
    assert_eq!(kinds(same, select()), [twice]);
    let mut nameless = good();
    nameless.target_mut(1).address = None;
    assert_eq!(kinds(nameless, select()), [FindingKind::NoAddress { target: "r2".into() }]);
}
