//! The programs that `weir bench engine` runs, and the traffic of each.
//!
//! All use one core, 64-byte UDP over IPv4 frames, memory ports, keys in seeded random order, and counters
//! and ageing enabled.

use std::net::Ipv4Addr;
use weir_packet::random::Random;
use weir_packet::{Field, KeySource, TunnelKind};
use weir_port::UdpFlow;
use weir_program::builder::ProgramBuilder;
use weir_program::{
    Criterion, Encap, Entry, EntryMatch, Fill, Forward, Group, GroupId, HashInput, Learn, Operation, Pipe,
    PortId, Program, SharedUse, Target, Value,
};

/// A program, and the flows whose packets go through it.
pub struct Scenario {
    /// The scenario's name in the results.
    pub name: &'static str,
    /// The scenario's description.
    pub what: &'static str,
    /// The program: in through port 0, out through port 1.
    pub program: Program,
    /// The flows in the order in which their packets arrive.
    pub flows: Vec<UdpFlow>,
    /// Whether every packet belongs to a flow that is not in the table: the table is emptied between rounds.
    pub learns: bool,
}

pub const MILLION: u32 = 1 << 20;

/// A function that creates a scenario.
pub type Make = fn() -> Scenario;

/// Every scenario and its constructor. They are created one at a time, since large ones take hundreds of
/// megabytes.
pub const ALL: [(&str, Make); 7] = [
    ("basic2", basic2),
    ("hash256", hash256),
    ("basic1m", basic1m),
    ("flow1m", flow1m),
    ("chain5", chain5),
    ("vxlan", vxlan),
    ("learn", learn),
];

/// Flow number `at`, all different: sources in 10/8, destinations in 172.16/12.
#[must_use]
pub fn flow(at: u32) -> UdpFlow {
    let source = Ipv4Addr::from_bits(0x0a00_0000 | at & 0xf_ffff);
    let destination = Ipv4Addr::from_bits(0xac10_0000 | at.wrapping_mul(2654435761) >> 16 & 0x3ff);
    (source, destination, 1024 + (at >> 20) as u16, 53)
}

/// Every flow below `count` once, in random order.
#[must_use]
pub fn shuffled(count: u32) -> Vec<UdpFlow> {
    let mut random = Random::new(1);
    let mut order: Vec<u32> = (0..count).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, random.below(at as u64 + 1) as usize);
    }
    order.into_iter().map(flow).collect()
}

/// Two ports: frames received on the first are sent out of the second.
fn program() -> (ProgramBuilder, PortId) {
    let mut program = ProgramBuilder::new();
    let [_, out] = program.ports(["in", "out"]);
    program.select_seed(7);
    (program, out)
}

/// A program of one pipe, which received frames enter, and whose hits are sent.
#[must_use]
pub fn one(pipe: Pipe) -> Program {
    let (mut program, out) = program();
    let pipe = program.pipe(pipe.forward(out));
    program.root(PortId(0), pipe);
    program.build()
}

fn set_macs() -> [Operation; 2] {
    let source = Operation::Set(Field::EthSrc, Value::Const(0x0200_0000_0001));
    [Operation::Set(Field::EthDst, Value::PerEntry), source]
}

/// The MAC address of a next hop.
pub fn mac(at: u32) -> u128 {
    0x0200_0000_1000 + u128::from(at)
}

fn group(fill: Fill, count: u16, size: u32) -> Group {
    Group::new("group", fill, size).targets((0..count).map(|at| Target::new(format!("t{at}"), PortId(1))))
}

/// XenoFlow's program: even and odd clients, with MAC addresses rewritten and a shared counter each.
#[must_use]
pub fn basic2() -> Scenario {
    let what = "2 entries under a mask, set both MAC addresses, shared counter";
    let program = stateless("basic2", None);
    Scenario { name: "basic2", what, program, flows: shuffled(65536), learns: false }
}

/// One of the two programs without flow state, behind a FLOW pipe if `front` is given.
#[must_use]
pub fn stateless(name: &str, front: Option<Pipe>) -> Program {
    let (mut program, out) = program();
    let pipe = if name == "basic2" { balance(&mut program) } else { hash256_pipe(&mut program) };
    let mut first = program.pipe(pipe.forward(out));
    if let Some(front) = front {
        first = program.pipe(front.forward(first));
    }
    program.root(PortId(0), first);
    program.build()
}

fn balance(program: &mut ProgramBuilder) -> Pipe {
    let counters = ["even", "odd"].map(|name| program.counter(name));
    let entries = (0..).zip(counters).map(|(at, counter)| Entry::on(at).value(mac(at)).counter(counter));
    let pipe = Pipe::basic("balance").per_entry_bits(Field::Ipv4Src, 1).entries(entries).capacity(16);
    pipe.counter(SharedUse::PerEntry).act(set_macs())
}

#[must_use]
pub fn hash256() -> Scenario {
    let what = "5-tuple to one of 256 buckets, set both MAC addresses";
    let program = stateless("hash256", None);
    Scenario { name: "hash256", what, program, flows: shuffled(65536), learns: false }
}

fn hash256_pipe(program: &mut ProgramBuilder) -> Pipe {
    let group = program.group(group(Fill::Wants, 256, 256));
    spread(group)
}

fn spread(group: GroupId) -> Pipe {
    let targets = (0..256).map(|at| Entry::on(EntryMatch::Target(at)).value(mac(at.into())));
    Pipe::hash("spread", HashInput::Select(KeySource::Outer), group).act(set_macs()).entries(targets)
}

/// A bond of two members as generated by its app: 256 assigned buckets, and a port for each member. With
/// `flow_table`, every flow first hits its own entry.
#[must_use]
pub fn bond(flows: u32, flow_table: bool) -> Scenario {
    let (mut program, out) = program();
    let members = [out, program.port("out2")];
    let group = program.group(group(Fill::Given, 2, 256).seed(11));
    let entries = (0..).zip(members).map(|(at, port)| Entry::on(EntryMatch::Target(at)).to(port));
    let bond = Pipe::hash("bond0", HashInput::Select(KeySource::Outer), group).entries(entries).capacity(16);
    let mut first = program.pipe(bond.forward(Forward::PerEntry));
    if flow_table {
        first = program.pipe(flow_pipe().forward(first));
    }
    program.root(PortId(0), first);
    let what = "5-tuple to one of 256 given buckets, out by one of two members";
    Scenario { name: "bond", what, program: program.build(), flows: shuffled(flows), learns: false }
}

#[must_use]
pub fn basic1m() -> Scenario {
    let what = "1 Mi entries with keys of 16 bytes (addresses, ports, protocol), set both MAC addresses";
    Scenario { name: "basic1m", what, program: exact(MILLION), flows: shuffled(MILLION), learns: false }
}

/// A program with an entry for each flow.
fn exact(flows: u32) -> Program {
    let entry = |at: u32| {
        let (source, destination, sport, dport) = flow(at);
        Entry::on(source).and(destination).and(sport).and(dport).and(17).value(mac(at & 15))
    };
    let fields = [Field::Ipv4Src, Field::Ipv4Dst, Field::UdpSport, Field::UdpDport, Field::IpProtocol];
    let pipe = fields.into_iter().fold(Pipe::basic("exact"), Pipe::per_entry);
    one(pipe.act(set_macs()).entries((0..flows).map(entry)))
}

/// The counterpart of the SWX program of this name (`pipes/programs.rs`) for `flows` flows, if there is one.
///
/// SWX swaps the MAC addresses through its metadata. weir's metadata words are narrower than an address, so
/// weir sets both.
#[must_use]
#[cfg_attr(not(any(test, feature = "dpdk")), expect(dead_code, reason = "SWX runs on DPDK's devices"))]
pub fn peer(name: &str, flows: u32) -> Option<Program> {
    let both = [Field::EthDst, Field::EthSrc].into_iter().zip([0x0200_0000_0001, 0x0200_0000_0002]);
    let both = both.map(|(field, address)| Operation::Set(field, Value::Const(address)));
    Some(match name {
        // An entry without a match: every packet hits it.
        "macswap" => one(Pipe::basic("swap").act(both).entry(Entry::default())),
        "basic2" => basic2().program,
        "exact" => exact(flows),
        "selector" => hash256().program,
        "learner" => one(flow_pipe().capacity(2 * flows)),
        "vxlan" => vxlan().program,
        _ => return None,
    })
}

/// A million flows with one default entry, aged.
#[must_use]
pub fn flow_pipe() -> Pipe {
    let flows = Pipe::flow("flows", Learn::Default).idle_timeout_ns(60_000_000_000);
    flows.entry(EntryMatch::Default).capacity(MILLION)
}

#[must_use]
pub fn flow1m() -> Scenario {
    let what = "1 Mi live IPv4 flows, counted, aged";
    Scenario { name: "flow1m", what, program: one(flow_pipe()), flows: shuffled(MILLION), learns: false }
}

#[must_use]
pub fn learn() -> Scenario {
    let what = "every packet starts a new flow";
    Scenario { name: "learn", what, program: one(flow_pipe()), flows: shuffled(MILLION), learns: true }
}

#[must_use]
pub fn vxlan() -> Scenario {
    let encap = Encap {
        eth_dst: Value::PerEntry,
        eth_src: Value::Const(0x0200_0000_0001),
        src: Value::Const(0xc0a8_0001),
        dst: Value::PerEntry,
        id: Some(Value::Const(77)),
        ..Encap::new(TunnelKind::Vxlan)
    };
    let entries = (0..2).map(|at: u32| Entry::on(at).value(mac(at)).value(0xc0a8_0100 + at));
    let pipe = Pipe::basic("tunnel").per_entry_bits(Field::Ipv4Src, 1).entries(entries).capacity(16);
    let program = one(pipe.act([Operation::Encap(encap)]));
    let what = "2 entries, outer Ethernet, IPv4, UDP and VXLAN pushed, source port from the hash";
    Scenario { name: "vxlan", what, program, flows: shuffled(65536), learns: false }
}

/// Back ends of [`ipip`].
pub const BACK_ENDS: u16 = 100;

/// The service of [`ipip`].
pub const SERVICE: (Ipv4Addr, u8, u16) = (Ipv4Addr::new(172, 16, 0, 0), 17, 53);

/// A load balancer without flow state: a service, a hash, a tunnel to each back end.
#[must_use]
pub fn ipip() -> Scenario {
    let (address, protocol, port) = SERVICE;
    let encap = Encap {
        eth_dst: Value::PerEntry,
        eth_src: Value::Const(0x0200_0000_0001),
        src: Value::Const(0xc0a8_0001),
        dst: Value::PerEntry,
        dscp: None,
        ..Encap::new(TunnelKind::Ipip)
    };
    let (mut program, out) = program();
    let group = program.group(group(Fill::Maglev, BACK_ENDS, 65_537));
    let target = |at: u16| Entry::on(EntryMatch::Target(at)).value(mac(at.into())).value(back_end(at.into()));
    let spread =
        Pipe::hash("back_ends", HashInput::Select(KeySource::Outer), group).act([Operation::Encap(encap)]);
    let spread = program.pipe(spread.entries((0..BACK_ENDS).map(target)).forward(out));
    let fields = [Field::Ipv4Dst, Field::IpProtocol, Field::UdpDport];
    let services = fields.into_iter().fold(Pipe::basic("services"), Pipe::per_entry).capacity(1024);
    let services = services.entry(Entry::on(address).and(protocol).and(port)).forward(spread);
    let services = program.pipe(services);
    program.root(PortId(0), services);
    let flows = shuffled(65536).into_iter().map(|(source, _, sport, dport)| (source, address, sport, dport));
    let what = "a service, 5-tuple to one of 100 back ends by Maglev, IP-in-IP";
    Scenario { name: "ipip", what, program: program.build(), flows: flows.collect(), learns: false }
}

/// The address at the far end of a tunnel.
#[must_use]
pub fn back_end(at: u32) -> u32 {
    0xc0a8_0100 + at
}

/// Next hops of [`lpm10k`].
pub const NEXT_HOPS: u32 = 16;

/// A router.
#[must_use]
pub fn lpm10k() -> Scenario {
    let routes = (0..).zip(prefixes(10_000));
    let routes = routes.map(|(at, prefix): (u32, _)| Entry::on(prefix).value(mac(at % NEXT_HOPS)));
    let act = [Operation::DecrementTtl].into_iter().chain(set_macs());
    let program = one(Pipe::lpm("route", Field::Ipv4Dst).act(act).entries(routes).capacity(16_384));
    let what = "10 k routes with lengths 16 to 32, TTL, set both MAC addresses";
    Scenario { name: "lpm10k", what, program, flows: shuffled(65536), learns: false }
}

/// A filter that permits everything.
#[must_use]
pub fn acl100() -> Scenario {
    let what = "100 rules over 8 masks, of which the last one matches";
    Scenario { name: "acl100", what, program: one(acl(100)), flows: shuffled(65536), learns: false }
}

/// Source address and port of each flow are those of one of 256 rows.
#[must_use]
pub fn nat() -> Scenario {
    let (mut program, out) = program();
    let group = program.group(group(Fill::Wants, 256, 256));
    let nat = program.pipe(nat_pipe(group).forward(out));
    program.root(PortId(0), nat);
    let what = "FLOW with NAT of address and port, 100 k flows";
    Scenario { name: "nat", what, program: program.build(), flows: shuffled(NAT_FLOWS), learns: false }
}

/// Flows of programs with [`nat_pipe`].
const NAT_FLOWS: u32 = 100_000;

fn nat_pipe(group: GroupId) -> Pipe {
    let rewrite = [Field::Ipv4Src, Field::UdpSport].map(|field| Operation::Set(field, Value::PerEntry));
    let entry = |(at, (address, port))| Entry::on(EntryMatch::Target(at)).value(address).value(port);
    let flows =
        Pipe::flow("flows", Learn::Pin(group.into())).idle_timeout_ns(60_000_000_000).capacity(131_072);
    flows.act(rewrite).entries((0..).zip(nat_sources()).map(entry))
}

/// The addresses and ports to which the sources of flows are translated.
pub fn nat_sources() -> impl Iterator<Item = (u32, u16)> {
    (0..256).map(|at| (0xc633_6400 + u32::from(at), 1024 + at))
}

/// A chain of BASIC with 4 entries, ACL with 100 rules over 8 masks, LPM with 10 k routes, HASH with 256
/// buckets, and FLOW that rewrites address and port.
fn chain5() -> Scenario {
    let (mut program, out) = program();
    let group = program.group(group(Fill::Wants, 256, 256));
    let names = ["classify", "filter", "route", "spread", "flows"];
    let [classify, filter, route, spread, nat] = names.map(|name| program.pipe(Pipe::basic(name)));
    let known = Pipe::basic("classify").per_entry(Field::UdpDport).entries([53, 80, 123, 443]).capacity(16);
    program.define(classify, known.forward(filter));
    program.define(filter, acl(100).forward(route));
    let routes = Pipe::lpm("route", Field::Ipv4Dst).entries(prefixes(10_000)).capacity(16_384);
    program.define(route, routes.forward(spread));
    program.define(spread, self::spread(group).forward(nat));
    program.define(nat, nat_pipe(group).forward(out));
    program.root(PortId(0), classify);
    let what = "BASIC of 4, ACL of 100 rules over 8 masks, LPM of 10 k, HASH of 256, FLOW with NAT of \
        address and port, 100 k flows";
    Scenario { name: "chain5", what, program: program.build(), flows: shuffled(NAT_FLOWS), learns: false }
}

/// Rules over eight masks; the last one permits everything, so that every lookup goes through to the end.
fn acl(rules: u32) -> Pipe {
    let mut random = Random::new(2);
    let fields = [Field::Ipv4Src, Field::Ipv4Dst, Field::UdpDport];
    let mut pipe =
        fields.into_iter().fold(Pipe::acl("filter"), |pipe, field| pipe.matching(field, Criterion::Masked));
    let masks =
        [(32, 32, 16), (32, 24, 16), (24, 32, 0), (24, 24, 16), (16, 24, 0), (32, 0, 16), (0, 32, 16)];
    let prefix = |bits: u32| if bits == 0 { 0 } else { u128::from(u32::MAX << (32 - bits)) };
    for priority in 0..rules - 1 {
        let (source, destination, port) = masks[priority as usize % masks.len()];
        let rule = |value: u64, mask: u128| {
            if mask == 0 {
                EntryMatch::Any
            } else {
                EntryMatch::Masked { value: u128::from(value) & mask, mask }
            }
        };
        let entry = Entry::on(rule(0x0a00_0000 | random.bits() & 0xff_ffff, prefix(source)))
            .and(rule(0xac10_0000 | random.bits() & 0x3ff, prefix(destination)))
            .and(rule(8000 + u64::from(priority), if port == 0 { 0 } else { 0xffff }));
        pipe = pipe.entry(entry.priority(priority));
    }
    let any = EntryMatch::Any;
    pipe.entry(Entry::on(any).and(any).and(any).priority(rules)).capacity(128)
}

/// Routes to the flows' destinations, with lengths 16 to 32, and a default route.
fn prefixes(count: usize) -> impl Iterator<Item = EntryMatch> {
    let mut random = Random::new(3);
    let mut seen = std::collections::BTreeSet::from([(0u128, 0u8)]);
    while seen.len() < count {
        let length = 16 + random.below(17) as u8;
        let value = 0xac00_0000 | random.bits() as u32 & 0x00ff_ffff;
        seen.insert((u128::from(value & u32::MAX << (32 - length)), length));
    }
    seen.into_iter().map(|(value, length)| EntryMatch::Prefix { value, length })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_engine::batch::Engine;
    use weir_packet::{Batch, Pools, TableHash};

    #[test]
    fn every_program_beside_swx_sends_its_frames() {
        const FLOWS: u32 = 64;
        for name in ["macswap", "basic2", "exact", "selector", "learner", "vxlan"] {
            let program = peer(name, FLOWS).expect("it is known");
            let mut engine = Engine::new(&program, TableHash::new([1, 2])).expect("it is sound");
            crate::engine::assign_buckets(&program, &mut engine);
            let (mut pools, mut batch) = (Pools::region(FLOWS), Batch::new());
            let stream = weir_port::Stream::udp(64, (0..FLOWS).map(flow));
            for at in 0..FLOWS {
                let mut frame = pools.first().take().expect("there are as many");
                frame.fill(&stream.frame(at as usize)).expect("it fits");
                batch.push(frame).expect("there is room");
            }
            let list = batch.mask();
            let outcome = engine.process(&mut batch, list, PortId(0), 1);
            let sent: u32 = outcome.transmit.iter().map(|list| list.count_ones()).sum();
            assert_eq!(sent, FLOWS, "{name}");
            for slot in 0..FLOWS as usize {
                pools.give(batch.take(slot));
            }
        }
    }
}
