//! The generated program for services: it passes the check, and the reference interpreter runs it as
//! expected.

mod affinity;
mod answers;
mod clients;
mod flood;
mod flows;
mod lengths;
mod losses;
mod modes;
mod neighbours;
mod quic;
mod vlan;
mod workers;

use super::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use weir_app::kind::Configured;
use weir_config::attachment::{Attachment, Attachments};
use weir_config::ports::{PortConfig, PortKind};
use weir_config::{Frames, IpRule};
use weir_oracle::{Arrival, Interpreter};
use weir_program::Verdict;
use weir_program::builder::ProgramBuilder;
use weir_program::check::check;
use weir_program::{Fill, NewFlows, Origin, PipeKind, PortDeclaration, PortId, Program};

const OURS: [u8; 6] = [2, 0, 0, 0, 0, 0xfe];
const THEIRS: [u8; 6] = [2, 0, 0, 0, 0, 0xfd];
const VIP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 53);

fn back_ends(count: u8) -> Arc<[BackEnd]> {
    let one =
        |at| BackEnd { origin: Origin(u32::from(at)), ..BackEnd::new(format!("b{at}"), [2, 0, 0, 0, 1, at]) };
    (0..count).map(one).collect()
}

/// An address with a UDP port.
fn address(vip: IpAddr, port: u16) -> Address {
    Address { vip, prefix: if vip.is_ipv4() { 32 } else { 128 }, protocol: 17, ports: (port, port) }
}

/// A service at another port.
fn at(port: u16, service: Service) -> Service {
    Service { addresses: vec![address(VIP.into(), port)], ..service }
}

/// Changes a service's back ends.
fn change(service: &mut Service, change: impl FnOnce(&mut [BackEnd])) {
    let mut back_ends = service.back_ends.to_vec();
    change(&mut back_ends);
    service.back_ends = back_ends.into();
}

fn service(name: &str, by: By) -> Service {
    Service {
        ports: vec![PortId(0)],
        by,
        size: 251,
        origin: Origin(100),
        ..Service::new(name, address(VIP.into(), 53), back_ends(3))
    }
}

/// A port with this number and MAC address.
fn port(at: u16, mac: [u8; 6]) -> Attachment {
    let config = PortConfig {
        mac: Some(mac),
        mac_configured: true,
        ..PortConfig::new(format!("p{at}"), PortKind::Mem)
    };
    Attachment::port(PortId(at), &config, Origin(0))
}

fn attachments() -> Attachments {
    let mut attachments = Attachments::default();
    [port(0, OURS), port(1, THEIRS)].into_iter().for_each(|port| attachments.add(port));
    attachments
}

/// The program for some services on two ports with known addresses.
fn program(services: Vec<Service>, kernel_path: bool) -> Program {
    program_of(Lb { services, ..Lb::default() }, kernel_path)
}

fn program_of(lb: Lb, kernel_path: bool) -> Program {
    let mut program = ProgramBuilder::new();
    program.ports(["p0", "p1"].map(|name| PortDeclaration::new(name).kernel_path(kernel_path)));
    assert_eq!(lb.problems(), []);
    lb.nat_pools.iter().for_each(|pool| _ = program.nat_pool(pool.clone()));
    lb.write(&mut program, &attachments());
    let program = program.build();
    assert_eq!(check(&program), []);
    program
}

fn interpreter(program: &Program) -> Interpreter {
    let buckets = |targets: usize| (0..251_u16).map(|bucket| bucket % targets as u16).collect();
    Interpreter::new(program, program.groups.iter().map(|group| buckets(group.targets.len())).collect())
}

/// A UDP packet to the VIP. `fragment` is the IPv4 field with flags and fragment offset.
fn query(dst_mac: [u8; 6], src: Ipv4Addr, dst: Ipv4Addr, sport: u16, fragment: u16) -> Vec<u8> {
    let mut frame = [&dst_mac[..], &[2, 0, 0, 0, 9, 9], &[0x08, 0x00]].concat();
    frame.extend([0x45, 0, 0, 36, 0, 1]);
    frame.extend(fragment.to_be_bytes());
    frame.extend([64, 17, 0, 0]);
    frame.extend(src.octets().iter().chain(&dst.octets()));
    frame.extend(sport.to_be_bytes());
    frame.extend([0, 53, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
    frame
}

/// The back end that a packet is sent to; `None` if the packet is not sent to a back end.
fn chosen(interpreter: &mut Interpreter, frame: &[u8], out: PortId) -> Option<u8> {
    let walk = interpreter.walk(PortId(0), frame, 128, 0);
    (walk.verdict == Verdict::Transmit(out)).then(|| {
        assert_eq!(walk.bytes[..5], [2, 0, 0, 0, 1]);
        walk.bytes[5]
    })
}

const LAST: u16 = 0x0001;
const FIRST: u16 = 0x2000;

#[test]
fn a_query_goes_to_a_back_end_with_our_address_as_its_source() {
    let program = program(vec![service("dns", By::FiveTuple)], true);
    let mut interpreter = interpreter(&program);
    let frame = query(OURS, Ipv4Addr::new(192, 0, 2, 1), VIP, 4000, 0);
    let walk = interpreter.walk(PortId(0), &frame, 128, 0);
    assert_eq!(walk.verdict, Verdict::Transmit(PortId(0)));
    assert_eq!(walk.bytes[6..12], OURS);
    assert_eq!(walk.bytes[12..], frame[12..], "nothing but MAC addresses changes");
    let seen: std::collections::BTreeSet<_> = (0..100)
        .filter_map(|port| {
            chosen(&mut interpreter, &query(OURS, Ipv4Addr::new(192, 0, 2, 1), VIP, port, 0), PortId(0))
        })
        .collect();
    assert_eq!(seen.len(), 3, "one client's flows are spread");
}

#[test]
fn what_is_not_ours_is_not_forwarded() {
    let frames = [
        query(OURS, Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(10, 0, 0, 54), 1, 0),
        query([0xff; 6], Ipv4Addr::new(192, 0, 2, 1), VIP, 1, 0),
        query([2, 0, 0, 0, 0, 0x77], Ipv4Addr::new(192, 0, 2, 1), VIP, 1, 0),
    ];
    for (kernel_path, to_kernel) in [(true, true), (false, false)] {
        let program = program(vec![service("dns", By::FiveTuple)], kernel_path);
        for frame in &frames {
            let verdict = interpreter(&program).walk(PortId(0), frame, 128, 0).verdict;
            assert_eq!(verdict == Verdict::Kernel(PortId(0)), to_kernel);
            assert_eq!(matches!(verdict, Verdict::Drop(_)), !to_kernel);
        }
    }
}

#[test]
fn fragments_go_where_the_whole_datagram_would_go() {
    for by in [By::FiveTuple, By::Source, By::SourcePort, By::SourceBits(3)] {
        let mut interpreter = interpreter(&program(vec![service("dns", by)], true));
        for host in 0..50 {
            let src = Ipv4Addr::new(192, 0, 2, host);
            let mut to = |sport, fragment| {
                let bytes = query(OURS, src, VIP, sport, fragment);
                let ports = (fragment == LAST).then_some([4000, 53]);
                let arrival = Arrival { input: PortId(0), bytes: &bytes, headroom: 128, hash: 0, ports };
                let walk = interpreter.walk_arrival(&arrival, 0);
                (walk.verdict == Verdict::Transmit(PortId(0))).then(|| walk.bytes[5])
            };
            let (first, last, whole) = (to(4000, FIRST), to(0xabcd, LAST), to(4000, 0));
            assert!(whole.is_some() && [first, last] == [whole; 2], "{by:?}");
        }
    }
}

#[test]
fn source_bits_are_dealt_by_weight() {
    let mut service = service("dns", By::SourceBits(0x0101));
    change(&mut service, |all| {
        all[0].weight = 2;
        all[1].weight = 0;
    });
    // A common factor in the weights makes no difference.
    let mut many = service.clone();
    change(&mut many, |all| all.iter_mut().for_each(|one| one.weight *= 100));
    let dealt = |service: &Service| crate::bits::assignment(service).unwrap();
    assert_eq!(dealt(&many), dealt(&service));
    assert_eq!(dealt(&service).targets, ["b0", "b2", "b0", "b0"]);
    let mut interpreter = interpreter(&program(vec![service], true));
    let mut to = |third, fourth| {
        chosen(&mut interpreter, &query(OURS, Ipv4Addr::new(192, 0, third, fourth), VIP, 1, 0), PortId(0))
            .unwrap()
    };
    assert_eq!([to(2, 2), to(2, 3), to(3, 2), to(3, 3)], [0, 2, 0, 0]);
}

#[test]
fn bits_of_the_source_with_too_few_values_for_all_back_ends_are_refused() {
    let problem = |mask, weights: [u32; 3]| {
        let mut service = service("dns", By::SourceBits(mask));
        change(&mut service, |all| all.iter_mut().zip(weights).for_each(|(one, weight)| one.weight = weight));
        let problems = Lb { services: vec![service], ..Lb::default() }.problems();
        problems.first().map(|(_, problem)| problem.to_string())
    };
    assert_eq!(problem(0b11, [1, 1, 1]), None);
    assert_eq!(problem(0b1, [1, 0, 1]), None);
    assert_eq!(problem(0b11, [40, 20, 20]), None, "two, one and one");
    for (mask, weights, wanted, instead) in [
        (0b1, [1, 1, 1], "have 2 values, but the back ends of service `dns` need 3", "src/0.0.0.3"),
        (0b1, [3, 1, 0], "have 2 values, but the back ends of service `dns` need 4", "src/0.0.0.3"),
        (0b100, [2, 3, 0], "have 2 values, but the back ends of service `dns` need 5", "src/0.0.0.7"),
        (0b11, [65_535, 1, 0], "need 65536", "source"),
    ] {
        let said = problem(mask, weights).unwrap_or_default();
        assert!(said.contains(wanted) && said.ends_with(&format!("`by: {instead}`")), "{said}");
    }
}

#[test]
fn services_share_tables() {
    let mut services: Vec<Service> =
        (1..=100).map(|port| at(port, service(&format!("s{port}"), By::FiveTuple))).collect();
    let vip: Ipv6Addr = "2001:db8::53".parse().unwrap();
    services.push(Service {
        addresses: vec![address(IpAddr::V6(vip), 53)],
        ports: vec![PortId(0), PortId(1)],
        ..service("six", By::Source)
    });
    let program = program(services, true);
    let tables: Vec<&str> = program
        .pipes
        .iter()
        .filter(|pipe| pipe.kind == PipeKind::Basic)
        .map(|pipe| pipe.name.as_str())
        .collect();
    assert_eq!(tables, ["lb", "lb/v6", "lb/errors/v4", "lb/errors/v6"]);
    let entries = |name: &str| program.pipes[program.pipe_named(name).unwrap().index()].entries.len();
    assert_eq!(entries("lb"), 100);
    assert_eq!(entries("lb/v6"), 2, "one for each port");
    assert_eq!(
        program.pipes.len(),
        7,
        "and a pipe that keeps flows, one that hashes, and one for ICMP \
        errors"
    );
    assert_eq!(entries("lb/errors/v4"), 100);
    assert_eq!(entries("lb/flows"), 300);
    assert_eq!(program.counters[..2], ["lb/s1/b0", "lb/s1/b1"]);
}

#[test]
fn another_port_has_its_own_address() {
    let service = Service { out: Some(port(1, THEIRS)), ..service("dns", By::FiveTuple) };
    let mut interpreter = interpreter(&program(vec![service], true));
    let walk = interpreter.walk(PortId(0), &query(OURS, Ipv4Addr::new(192, 0, 2, 1), VIP, 1, 0), 128, 0);
    assert_eq!((walk.verdict, &walk.bytes[6..12]), (Verdict::Transmit(PortId(1)), &THEIRS[..]));
}

fn ip(frames: Frames) -> IpRule {
    let Frames::Ip(rule) = frames else { panic!("{frames:?}") };
    rule
}

#[test]
fn ports_take_what_services_name() {
    let services = vec![service("a", By::FiveTuple), at(54, service("b", By::FiveTuple))];
    let lb = Lb { services, ..Lb::default() };
    let all = lb.take();
    let errors = all.iter().filter(|rule| matches!(rule.frames, Frames::Errors(_))).count();
    assert_eq!(errors, 2, "about packets from each port");
    let others = all.iter().filter(|rule| matches!(rule.frames, Frames::Ip(_)));
    let rules: Vec<IpRule> = others.map(|rule| ip(rule.frames)).collect();
    assert_eq!(rules.len(), 3, "two ports, and the fragments once");
    assert_eq!(rules.iter().filter(|rule| rule.fragments).count(), 1);
    assert!(rules.iter().all(|rule| (rule.prefix, rule.protocol) == (32, Some(17))));
}

#[test]
fn services_may_overlap_if_one_of_them_is_more_specific() {
    let same = |one: (u8, (u16, u16)), other: (u8, (u16, u16))| {
        let with = |name, (prefix, ports)| {
            let mut service = service(name, By::FiveTuple);
            service.addresses[0] = Address { prefix, ports, ..service.addresses[0] };
            service
        };
        let services = vec![with("a", one), with("b", other)];
        let problems = Lb { services, ..Lb::default() }.problems();
        assert!(problems.iter().all(|(_, one)| matches!(one, Problem::ServiceTwice { .. })), "{problems:?}");
        !problems.is_empty()
    };
    for (one, other) in [
        ((32, (53, 53)), (32, ALL_PORTS)),
        ((32, (53, 53)), (32, (50, 60))),
        ((32, (50, 55)), (32, (50, 60))),
        ((32, ALL_PORTS), (24, (53, 53))),
        ((24, (50, 60)), (16, (55, 65))),
        ((24, (50, 60)), (24, (61, 65))),
    ] {
        assert!(!same(one, other) && !same(other, one), "{one:?} {other:?}");
    }
    for (one, other) in [
        ((32, (53, 53)), (32, (53, 53))),
        ((32, ALL_PORTS), (32, ALL_PORTS)),
        ((32, (50, 60)), (32, (55, 65))),
        ((24, (50, 60)), (24, (60, 65))),
    ] {
        assert!(same(one, other) && same(other, one), "{one:?} {other:?}");
    }
}

#[test]
fn everything_wrong_is_told() {
    let bad = |change: fn(&mut Service)| {
        let mut services = vec![service("a", By::FiveTuple), at(54, service("b", By::FiveTuple))];
        change(&mut services[1]);
        let problems = Lb { services, ..Lb::default() }.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].1.clone()
    };
    assert!(matches!(bad(|one| one.name = "a".into()), Problem::NameTwice { .. }));
    assert!(matches!(bad(|one| one.addresses[0].ports = (53, 53)), Problem::ServiceTwice { .. }));
    assert!(matches!(
        bad(|one| {
            one.by = By::SourceBits(1);
            change(one, |all| all.iter_mut().for_each(|one| one.weight = 0));
        }),
        Problem::NoBackEndAnswers { .. }
    ));
    assert!(matches!(bad(|one| change(one, |all| all[1].name = "b0".into())), Problem::BackEndTwice { .. }));
    assert!(matches!(bad(|one| one.ports.clear()), Problem::NoPorts { .. }));
    assert!(matches!(bad(|one| one.addresses.clear()), Problem::NoAddress { .. }));
    assert!(matches!(bad(|one| one.addresses[0].protocol = 1), Problem::Protocol { .. }));
    assert!(matches!(bad(|one| one.addresses[0].vip = Ipv4Addr::BROADCAST.into()), Problem::Vip { .. }));
    assert!(matches!(bad(|one| one.by = By::SourceBits(0x1ff)), Problem::SourceBits { bits: 9 }));
    assert!(matches!("src/1".parse::<By>(), Err(Problem::By { .. })));
    assert_eq!("src/0.0.0.1".parse(), Ok(By::SourceBits(1)));
}
