//! A program like a load balancer's: tables find a packet's service and choose one of three FLOW pipes, whose
//! flows have workers determined in different ways; and frames for it, in both directions.

use super::{start, targets};
use weir_oracle::arbitrary::Choices;
use weir_packet::Field;
use weir_packet::craft::frame as craft;
use weir_program::{
    Entry, EntryMatch, Fill, Forward, Group, GroupChoice, GroupId, Learn, NatPart, NatPool, NatPoolId,
    NatPrefix, Operation, Origin, OwnedBy, Pipe, PipeId, PipeKind, PortId, Program, Template, Timeouts,
    Value,
};

/// The addresses that clients send to: one is translated, one is kept, and for one the client's address is
/// translated as well.
const VIPS: [[u8; 4]; 3] = [[10, 8, 0, 1], [10, 8, 0, 2], [10, 8, 0, 3]];
const BACK_ENDS: [[u8; 4]; 2] = [[10, 7, 0, 1], [10, 7, 0, 2]];
const POOL: [u8; 4] = [10, 6, 0, 8];
const PORTS: [u16; 2] = [80, 81];
const MAPPED: u16 = 8080;
/// The smallest possible number of ports in a pool: it is soon exhausted.
const POOL_PORTS: (u16, u16) = (1024, 1024 + 127);

const SET: fn(Field, Value) -> Operation = Operation::Set;

fn learnt(to: Field, from: Field) -> Operation {
    SET(to, Value::Learnt(from))
}

/// A FLOW pipe whose group metadata chooses.
fn flows(name: &str) -> Pipe {
    let mut pipe = Pipe::flow(name, Learn::Pin(GroupChoice::ByMeta(0))).capacity(4096).forward(PortId(0));
    if let PipeKind::Flow { timeouts, .. } = &mut pipe.kind {
        *timeouts = Timeouts::all(50_000_000);
    }
    pipe
}

fn templates(all: [(&str, Vec<Operation>); 2]) -> Vec<Template> {
    all.map(|(name, operations)| Template::new(name, operations)).into()
}

fn member(group: u16, target: u16) -> Entry {
    Entry::on(EntryMatch::Member { group: GroupId(group), target })
}

fn answers() -> Entry {
    Entry::on(EntryMatch::Default).template(1)
}

/// A table that writes which group packets pick from, and leads onward.
fn table(name: &str, field: Field) -> Pipe {
    let pipe = Pipe::basic(name).per_entry(field).forward(Forward::PerEntry);
    pipe.act([SET(Field::Meta0, Value::PerEntry)])
}

fn leads(address: [u8; 4], group: u32, to: u16) -> Entry {
    Entry::on(std::net::Ipv4Addr::from(address)).value(group).to(PipeId(to))
}

/// The program. Flows expire after 50 ms.
pub fn program() -> Program {
    let services = VIPS.iter().zip(0..).map(|(vip, at)| leads(*vip, u32::from(at) + 1, at + 2));
    let services = table("services", Field::Ipv4Dst).entries(services.chain([leads(POOL, 0, 4)]));
    let from = table("answers", Field::Ipv4Src).entries(BACK_ENDS.map(|address| leads(address, 0, 2)));
    let to =
        |at: u16| member(0, at).value(std::net::Ipv4Addr::from(BACK_ENDS[usize::from(at)])).value(MAPPED);
    let there = vec![SET(Field::Ipv4Dst, Value::PerEntry), SET(Field::L4Dport, Value::PerEntry)];
    let back = vec![learnt(Field::Ipv4Src, Field::Ipv4Dst), learnt(Field::L4Sport, Field::L4Dport)];
    let mut nat = flows("nat")
        .reverse(true)
        .owner(OwnedBy::Client)
        .actions(templates([("there", there.clone()), ("back", back.clone())]));
    nat = nat.entries([to(0), to(1), answers()]);
    let kept = flows("flows").entries([member(1, 0), member(1, 1)]);
    let source =
        [SET(Field::Ipv4Src, Value::Nat(NatPart::Address)), SET(Field::L4Sport, Value::Nat(NatPart::Port))];
    let restored = [learnt(Field::Ipv4Dst, Field::Ipv4Src), learnt(Field::L4Dport, Field::L4Sport)];
    let full = flows("full_nat").reverse(true).nat(NatPoolId(0)).actions(templates([
        ("there", there.into_iter().chain(source).collect()),
        ("back", back.into_iter().chain(restored).collect()),
    ]));
    let to =
        |at: u16| member(2, at).value(std::net::Ipv4Addr::from(BACK_ENDS[usize::from(at)])).value(MAPPED);
    let full = full.entries([to(0), to(1), answers()]);
    let mut program = start(&["a", "b"], [services.miss(PipeId(1)), from, nat, kept, full]);
    for at in 0..3 {
        let group = Group::new(format!("group{at}"), Fill::Maglev, 13).number(at + 1);
        program.group(group.targets(targets(&["b1", "b2"])));
    }
    let prefixes = vec![NatPrefix { first: POOL.into(), length: 32 }];
    let (first, last) = POOL_PORTS;
    program.nat_pool(NatPool { name: "pool".into(), prefixes, first, last, origin: Origin::default() });
    program.build()
}

/// An address and a port.
type Endpoint = ([u8; 4], u16);

/// A packet from one end to another, in the notation of [`weir_packet::craft`].
fn words(protocol: &str, (src, sport): Endpoint, (dst, dport): Endpoint) -> String {
    let ip = |address: [u8; 4]| std::net::Ipv4Addr::from(address);
    format!("src={} dst={} proto={protocol} sport={sport} dport={dport}", ip(src), ip(dst))
}

/// A frame of a client, of a back end, to the pool, or an ICMP error about one of these; some are fragments.
pub fn frame(random: &mut Choices) -> Vec<u8> {
    let client = ([10, 9, 0, random.between(1, 3) as u8], random.between(4000, 4012) as u16);
    let service = (random.pick(&VIPS), random.pick(&PORTS));
    let back_end = (random.pick(&BACK_ENDS), MAPPED);
    let pool = (POOL, random.between(POOL_PORTS.0.into(), POOL_PORTS.1.into()) as u16);
    let protocol = random.pick(&["udp", "udp", "tcp"]);
    let (src, dst) = match random.below(10) {
        0..5 => (client, service),
        5..8 => (back_end, client),
        _ => (back_end, pool),
    };
    let text = words(protocol, src, dst);
    match random.below(12) {
        0 => craft(&format!("{text} frag=0+")),
        // About a packet that went the other way.
        1 | 2 => {
            let about = craft(&words(protocol, dst, src)).split_off(14);
            let about: String = about[..28].iter().map(|byte| format!("{byte:02x}")).collect();
            let ip = |address: [u8; 4]| std::net::Ipv4Addr::from(address);
            craft(&format!("src={} dst={} proto=icmp icmp_type=3 payload={about}", ip(src.0), ip(dst.0)))
        }
        _ => craft(&text),
    }
}
