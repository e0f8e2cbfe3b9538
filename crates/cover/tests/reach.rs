//! Entries that no packet can hit, and entries that differ from them a little and that the search does hit.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;
use weir_cover::compare::buckets;
use weir_cover::shadow::{WhyUnreachable, unreachable};
use weir_cover::{Limits, RowId, explore};
use weir_packet::{Field, KeySource};
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Criterion, Entry, EntryMatch, Fill, Forward, Group, HashInput, Operation, Pipe, PipeId, PortId, Program,
    Target, Value,
};

/// Why an entry is not hit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum WhyUnhit {
    /// Other entries of its pipe are hit instead: these.
    Shadowed(&'static [usize]),
    /// No packet meets its conditions.
    NoSuchPacket,
    /// No packet that meets them arrives at the pipe.
    NotReached,
}

use WhyUnhit::{NoSuchPacket, NotReached, Shadowed};

/// The entry that is not hit, at a position in a pipe, and why.
type UnhitEntry = (u16, usize, WhyUnhit);

/// A program with one entry that is not hit, and a similar program whose entries are all hit.
struct ReachExample {
    name: &'static str,
    program: Program,
    answer: UnhitEntry,
    similar: Program,
}

fn example(name: &'static str, program: Program, answer: UnhitEntry, similar: Program) -> ReachExample {
    ReachExample { name, program, answer, similar }
}

/// Returns the entries that are not hit, each with the reason.
fn unhit(program: &Program) -> Vec<UnhitEntry> {
    let found = explore(program, buckets(program).expect("it compiles"), Limits::default());
    assert!(found.unexplored.is_empty() && found.missed.is_empty(), "{found:?}");
    let mut answers = Vec::new();
    let mut unhit: BTreeSet<RowId> = found.unhit.iter().map(|one| one.row).collect();
    let headers_decide = !program.follow_fragments && program.groups.is_empty();
    assert!(found.unhit.iter().all(|one| one.proved == headers_decide), "{found:?}");
    for id in (0..program.pipes.len() as u16).map(PipeId) {
        for (at, why) in unreachable(program, id, 20_000) {
            assert!(unhit.remove(&(id, at)), "a packet hits entry {at} of pipe {id:?}: {why:?}");
            let why = match why {
                WhyUnreachable::NoSuchPacket => NoSuchPacket,
                WhyUnreachable::NotReached => NotReached,
                WhyUnreachable::Shadowed(by) => Shadowed(Vec::from_iter(by).leak()),
            };
            answers.push((id.0, at, why));
        }
    }
    answers.extend(unhit.into_iter().map(|(id, at)| (id.0, at, NotReached)));
    answers
}

fn check(examples: &[ReachExample]) {
    let mut wrong = Vec::new();
    for ReachExample { name, program, answer, similar } in examples {
        let found = unhit(program);
        if found != [answer.clone()] {
            wrong.push(format!("{name}: {found:?} instead of {answer:?}"));
        }
        let found = unhit(similar);
        if !found.is_empty() {
            wrong.push(format!("{name}: {found:?} in the similar program"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A program whose first port leads into the first of these pipes.
fn program(pipes: impl IntoIterator<Item = Pipe>) -> Program {
    let mut program = ProgramBuilder::new();
    let [one, _] = program.ports(["one", "two"]);
    for pipe in pipes {
        program.pipe(pipe);
    }
    program.root(one, PipeId(0));
    program.build()
}

const ANY: EntryMatch = EntryMatch::Any;
const TCP: EntryMatch = EntryMatch::Masked { value: 6, mask: 0xff };
const UDP: EntryMatch = EntryMatch::Masked { value: 17, mask: 0xff };

/// Addresses that begin with the bits of one.
fn under(address: u128, length: u32) -> EntryMatch {
    EntryMatch::Masked { value: address, mask: 0xffff_ffff & !((1 << (32 - length)) - 1) }
}

fn ports(first: u16, last: u16) -> EntryMatch {
    EntryMatch::Range { first, last }
}

/// Rules with a priority, a source, a destination port and a protocol.
fn rules(rules: &[(u32, EntryMatch, EntryMatch, EntryMatch)]) -> Program {
    let rule = |(priority, src, port, protocol): &(u32, EntryMatch, EntryMatch, EntryMatch)| {
        Entry::on(*src).and(*port).and(*protocol).priority(*priority)
    };
    program([Pipe::acl("rules")
        .matching(Field::Ipv4Src, Criterion::Masked)
        .matching(Field::L4Dport, Criterion::Range)
        .matching(Field::IpProtocol, Criterion::Masked)
        .forward(PortId(1))
        .entries(rules.iter().map(rule))])
}

const NET: u128 = 0x0a00_0000;
const UPPER: u128 = 0x0a80_0000;

#[test]
fn rules_are_shadowed_by_one_or_by_several_together() {
    let bits = |value, mask| EntryMatch::Masked { value, mask };
    let src = |priority, src| (priority, src, ANY, ANY);
    let port = |priority, first, last| (priority, ANY, ports(first, last), ANY);
    check(&[
        example(
            "one rule",
            rules(&[src(10, under(NET, 16)), src(20, under(NET, 17))]),
            (0, 1, Shadowed(&[0])),
            rules(&[src(10, under(NET, 16)), src(20, under(NET, 15))]),
        ),
        example(
            "two ranges",
            rules(&[port(10, 0, 99), port(20, 100, 200), port(30, 50, 150)]),
            (0, 2, Shadowed(&[0, 1])),
            rules(&[port(10, 0, 99), port(20, 101, 200), port(30, 50, 150)]),
        ),
        example(
            "three ranges",
            rules(&[port(10, 1, 10), port(20, 11, 20), port(30, 21, 30), port(40, 5, 25)]),
            (0, 3, Shadowed(&[0, 1, 2])),
            rules(&[port(10, 1, 10), port(20, 11, 19), port(30, 21, 30), port(40, 5, 25)]),
        ),
        example(
            "two halves of a prefix",
            rules(&[src(10, under(NET, 9)), src(20, under(UPPER, 9)), src(30, under(NET, 8))]),
            (0, 2, Shadowed(&[0, 1])),
            rules(&[src(10, under(NET, 9)), src(20, under(UPPER, 10)), src(30, under(NET, 8))]),
        ),
        example(
            "odd and even addresses",
            rules(&[src(10, bits(0, 1)), src(20, bits(1, 1)), src(30, under(NET, 8))]),
            (0, 2, Shadowed(&[0, 1])),
            rules(&[src(10, bits(0, 1)), src(20, bits(1, 3)), src(30, under(NET, 8))]),
        ),
        example(
            "a rule that comes later but takes precedence",
            rules(&[src(50, under(NET, 16)), src(10, under(NET, 8))]),
            (0, 0, Shadowed(&[1])),
            rules(&[src(50, under(NET, 16)), src(60, under(NET, 8))]),
        ),
        example(
            "equal priorities",
            rules(&[src(10, under(NET, 8)), src(10, under(NET, 16))]),
            (0, 1, Shadowed(&[0])),
            rules(&[src(10, under(NET, 16)), src(10, under(NET, 8))]),
        ),
    ]);
}

#[test]
fn rules_for_any_value_match_packets_without_the_field() {
    check(&[
        example(
            "a port of all protocols that have ports",
            rules(&[(10, ANY, ANY, UDP), (20, ANY, ANY, TCP), (30, ANY, ports(53, 53), ANY)]),
            (0, 2, Shadowed(&[0, 1])),
            rules(&[(10, ANY, ANY, UDP), (30, ANY, ports(53, 53), ANY)]),
        ),
        example(
            "a rule for everything",
            rules(&[(10, ANY, ANY, ANY), (20, under(NET, 8), ports(1, 2), TCP)]),
            (0, 1, Shadowed(&[0])),
            rules(&[(10, ANY, ANY, UDP), (20, under(NET, 8), ports(1, 2), TCP)]),
        ),
        example(
            "all ports of one half",
            rules(&[
                (10, under(NET, 9), ANY, ANY),
                (20, under(UPPER, 9), ports(0, 1023), ANY),
                (30, under(UPPER, 9), ports(1024, 65535), ANY),
                (40, under(NET, 8), ports(0, 65535), ANY),
            ]),
            (0, 3, Shadowed(&[0, 1, 2])),
            rules(&[
                (10, under(NET, 9), ANY, ANY),
                (20, under(UPPER, 9), ports(0, 1023), ANY),
                (30, under(UPPER, 9), ports(1024, 65535), ANY),
                (40, under(NET, 8), ANY, ANY),
            ]),
        ),
    ]);
}

/// Routes to prefixes.
fn routes(prefixes: &[(u128, u8)]) -> Program {
    let route = |&(value, length): &(u128, u8)| Entry::on(EntryMatch::Prefix { value, length });
    program([Pipe::lpm("routes", Field::Ipv4Dst).forward(PortId(1)).entries(prefixes.iter().map(route))])
}

#[test]
fn routes_are_shadowed_by_all_their_parts() {
    let quarter = 0x0040_0000;
    check(&[
        example(
            "two halves",
            routes(&[(NET, 8), (NET, 9), (UPPER, 9)]),
            (0, 0, Shadowed(&[1, 2])),
            routes(&[(NET, 8), (NET, 9), (UPPER, 10)]),
        ),
        example(
            "four quarters",
            routes(&[(NET, 10), (NET + quarter, 10), (UPPER, 10), (UPPER + quarter, 10), (NET, 8)]),
            (0, 4, Shadowed(&[0, 1, 2, 3])),
            routes(&[(NET, 10), (NET + quarter, 10), (UPPER, 10), (UPPER + quarter, 11), (NET, 8)]),
        ),
        example(
            "the default route",
            routes(&[(0, 0), (0, 1), (1 << 31, 1)]),
            (0, 0, Shadowed(&[1, 2])),
            routes(&[(0, 0), (0, 1), (1 << 31, 2)]),
        ),
        example(
            "both addresses",
            routes(&[(NET, 31), (NET, 32), (NET + 1, 32)]),
            (0, 0, Shadowed(&[1, 2])),
            routes(&[(NET, 31), (NET, 32)]),
        ),
    ]);
}

/// A pipe that compares one field with one value.
fn exact(field: Field, value: u128) -> Pipe {
    Pipe::basic(format!("exact {value:#x}")).per_entry(field).entry(Entry::on(value)).forward(PortId(1))
}

#[test]
fn no_packet_has_impossible_values() {
    let ipv6 = |address: &str| address.parse::<Ipv6Addr>().expect("an address").to_bits();
    let none = (0, 0, NoSuchPacket);
    let sources = |value| program([exact(Field::Ipv4Src, value)]);
    let sources6 = |text| program([exact(Field::Ipv6Src, ipv6(text))]);
    let versions = |value| program([exact(Field::IpVersion, value)]);
    check(&[
        example("a multicast source", sources(0xe000_0001), none.clone(), sources(0xdfff_ffff)),
        example("a broadcast source", sources(0xffff_ffff), none.clone(), sources(0)),
        example("an IPv6 multicast source", sources6("ff02::1"), none.clone(), sources6("fe80::1")),
        example("IP version 5", versions(5), none, versions(6)),
    ]);
}

#[test]
fn constants_of_a_pipe_rule_out_its_entries() {
    let with = |constant, number: u128, pipe: Pipe| program([pipe.constant(constant, number)]);
    let tcp = |protocol| with(Field::IpProtocol, protocol, exact(Field::TcpDport, 80));
    let icmp = |version| with(Field::IpVersion, version, exact(Field::Icmpv6Type, 128));
    let inner = |protocol| with(Field::IpProtocol, protocol, exact(Field::Ipv4Dst.inner(), NET));
    check(&[
        example("a TCP port of UDP", tcp(17), (0, 0, NoSuchPacket), tcp(6)),
        example("ICMPv6 over IPv4", icmp(4), (0, 0, NoSuchPacket), icmp(6)),
        example("a tunnel in TCP", inner(6), (0, 0, NoSuchPacket), inner(17)),
    ]);
}

/// A pipe that sets metadata to these values for destinations, in front of one that matches metadata.
fn marked(values: [u128; 2]) -> Program {
    let marks = Pipe::basic("marks")
        .per_entry(Field::Ipv4Dst)
        .act([Operation::Set(Field::Meta0, Value::PerEntry)])
        .entries(values.into_iter().zip(0u128..).map(|(value, at)| Entry::on(NET + at).value(value)));
    let matched = exact(Field::Meta0, 1).entry(Entry::on(2));
    program([marks.forward(PipeId(1)), matched])
}

/// A pipe in front of one that compares an address.
fn behind(first: Pipe, address: u128) -> Program {
    program([first, exact(Field::Ipv4Dst, address)])
}

/// A pipe that picks from a group of two targets, of which one has this weight.
fn weighted(weight: u32) -> Program {
    let mut program = ProgramBuilder::new();
    let [one, two] = program.ports(["one", "two"]);
    let targets = [Target::new("first", two), Target::new("second", two).weight(weight)];
    let group = program.group(Group::new("group", Fill::Wants, 16).targets(targets));
    let pick = Pipe::hash("pick", HashInput::Select(KeySource::Outer), group).forward(two);
    let pick = program.pipe(pick.entries([0, 1].map(|target| Entry::on(EntryMatch::Target(target)))));
    program.root(one, pick);
    program.build()
}

#[test]
fn packets_do_not_reach_all_entries() {
    let next = Forward::Pipe(PipeId(1));
    let to = |address: u128| Pipe::basic("first").per_entry(Field::Ipv4Dst).entry(Entry::on(address));
    let everything = || Pipe::basic("first").entry(Entry::default());
    let udp = || everything().constant(Field::IpProtocol, 17).forward(next);
    let web = |first: Pipe| program([first, exact(Field::TcpDport, 80)]);
    let rewrites = || to(NET + 1).act([Operation::Set(Field::Ipv4Dst, Value::Const(NET + 2))]).forward(next);
    let lost = |miss| behind(to(NET).miss(miss), NET + 1);
    let by_port = |port: u128| program([exact(Field::InputPort, port)]);
    check(&[
        example("no forward leads to the pipe", lost(Forward::Drop), (1, 0, NotReached), lost(next)),
        example("metadata is never set to it", marked([1, 1]), (1, 1, NotReached), marked([1, 2])),
        example(
            "an earlier pipe takes such packets",
            behind(to(NET).miss(next), NET),
            (1, 0, NotReached),
            behind(to(NET).miss(next), NET + 1),
        ),
        example("only UDP arrives", web(udp()), (1, 0, NotReached), web(udp().miss(next))),
        example(
            "every packet that arrives was rewritten",
            behind(rewrites(), NET + 1),
            (1, 0, NotReached),
            behind(rewrites(), NET + 2),
        ),
        example("a target without buckets", weighted(0), (0, 1, NotReached), weighted(1)),
        example("a port without a root", by_port(1), (0, 0, NotReached), by_port(0)),
    ]);
}

/// Programs with an entry for packets that others resemble: rules in front take those.
fn hidden_packets() -> Vec<(&'static str, Program)> {
    let mut programs = Vec::new();
    for kind in [3, 4, 5, 11, 12] {
        // The first entry takes all errors with a quoted packet of TCP or UDP.
        let rules = Pipe::acl("rules")
            .matching(Field::IcmpType, Criterion::Masked)
            .matching(Field::ErrorSport, Criterion::Range)
            .forward(PortId(1))
            .entry(Entry::on(ANY).and(ports(0, 65535)).priority(1))
            .entry(Entry::on(EntryMatch::Masked { value: kind, mask: 0xff }).and(ANY).priority(2));
        programs.push(("an error without a quoted packet", program([rules])));
    }
    // Behind the ports and protocols of tunnels there may be other versions, which are no tunnels.
    for (field, value) in [(Field::UdpDport, 6081), (Field::UdpDport, 6080), (Field::IpProtocol, 47)] {
        let rules = Pipe::acl("rules")
            .matching(field, Criterion::Masked)
            .matching(Field::TunnelId, Criterion::Masked)
            .forward(PortId(1))
            .entry(Entry::on(ANY).and(EntryMatch::Masked { value: 0, mask: 0 }).priority(1))
            .entry(Entry::on(EntryMatch::Masked { value, mask: field.max() }).and(ANY).priority(2));
        programs.push(("another version of a tunnel", program([rules])));
    }
    programs
}

/// Packets that are unusual, but that the parser accepts: for each, a program with an entry for it.
#[test]
fn unusual_packets_reach_their_entries() {
    let one = |field: Field, value: u128| program([exact(field, value)]);
    let given = |constants: &[(Field, u128)], field: Field, value: u128| {
        let pipe = exact(field, value);
        program([constants.iter().fold(pipe, |pipe, (field, value)| pipe.constant(*field, *value))])
    };
    let broadcast = 0xffff_ffff;
    let all_nodes = "ff02::1".parse::<Ipv6Addr>().expect("an address").to_bits();
    let mut programs = vec![
        ("IEEE 802.3", one(Field::EthType, 0x0100)),
        ("a third tag", one(Field::EthType, 0x8100)),
        ("a third tag, priority", one(Field::EthType, 0x88a8)),
        ("a host without an address", given(&[(Field::Ipv4Dst, broadcast)], Field::Ipv4Src, 0)),
        ("IGMP without an address", given(&[(Field::Ipv4Dst, 0xe000_0016)], Field::Ipv4Src, 0)),
        ("duplicate address detection", given(&[(Field::Ipv6Dst, all_nodes)], Field::Ipv6Src, 0)),
        ("ICMPv6 over IPv4", given(&[(Field::IpVersion, 4)], Field::IpProtocol, 58)),
        ("ICMP over IPv6", given(&[(Field::IpVersion, 6)], Field::IpProtocol, 1)),
        ("a fragment of TCP", given(&[(Field::IpFragment, 1)], Field::IpProtocol, 6)),
        ("an IPv6 fragment", given(&[(Field::IpFragment, 1)], Field::Ipv6Dst, all_nodes)),
        ("VXLAN as UDP", one(Field::UdpDport, 4789)),
        ("a quoted ESP packet", one(Field::ErrorV4Protocol, 50)),
        ("a quoted IPv6 ESP packet", one(Field::ErrorV6Protocol, 50)),
        ("a quoted multicast packet", one(Field::ErrorV4Dst, 0xe000_0001)),
        ("an inner tag", one(Field::VlanVid.inner(), 5)),
        ("a second inner tag", one(Field::SecondVlanVid.inner(), 5)),
        ("an inner ICMP error", one(Field::ErrorSport.inner(), 53)),
        ("an inner fragment", given(&[(Field::IpFragment.inner(), 1)], Field::IpProtocol.inner(), 17)),
    ];
    for protocol in [4, 41, 47, 50, 59, 135, 139, 140] {
        programs.push(("a protocol", one(Field::IpProtocol, protocol)));
        programs.push(("a protocol of IPv6", given(&[(Field::IpVersion, 6)], Field::IpProtocol, protocol)));
    }
    for protocol in [0, 43, 44, 51, 60] {
        programs.push(("an extension of IPv4", given(&[(Field::IpVersion, 4)], Field::IpProtocol, protocol)));
    }
    programs.extend(hidden_packets());
    let mut follows = given(&[(Field::IpFragment, 1)], Field::L4Dport, 80);
    follows.follow_fragments = true;
    programs.push(("a fragment with ports", follows));
    let mut wrong = Vec::new();
    for (name, program) in &programs {
        let found = unhit(program);
        if !found.is_empty() {
            wrong.push(format!("{name}: {found:?} in {:?}", program.pipes[0].matches));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Actions may write what no packet has when it arrives.
#[test]
fn written_fields_are_not_limited() {
    let writes = |field: Field, value: u128| {
        let writer = Pipe::basic("writer").act([Operation::Set(field, Value::Const(value))]);
        program([writer.entry(Entry::default()).forward(PipeId(1)), exact(field, value)])
    };
    for (field, value) in [(Field::Ipv4Src, 0xe000_0001), (Field::Ipv6Src, 0), (Field::UdpDport, 4789)] {
        assert_eq!(unhit(&writes(field, value)), [], "{field}");
    }
}
