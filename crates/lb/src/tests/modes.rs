//! What back ends receive in every mode, for both IP versions and both protocols; checksums are verified with
//! etherparse.

use super::*;
use etherparse::{NetHeaders, PacketHeaders, TransportHeader};
use std::collections::HashSet;
use weir_packet::{TableHash, craft};
use weir_program::check::owners;
use weir_program::owner::Owners;
use weir_program::{Fill, KatranHash, KatranVersion, NatPool, NatPoolId, NatPrefix};

pub(super) const CLIENTS: [&str; 2] = ["192.0.2.7", "2001:db8:1::7"];
pub(super) const VIPS: [&str; 2] = ["10.0.0.53", "2001:db8::53"];
pub(super) const BACK_END: [&str; 2] = ["198.51.100.1", "2001:db8:2::1"];
const WEIR: [&str; 2] = ["198.51.100.254", "2001:db8:2::fe"];
const POOL: [&str; 2] = ["203.0.113.8", "2001:db8:3::8"];

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// A service with an IP version and a protocol, and one back end.
pub(super) fn of(family: usize, protocol: u8, mode: Mode) -> Lb {
    let back_end = BackEnd { mode, ..back_ends(1)[0].clone() };
    let full = matches!(mode, Mode::FullNat { .. });
    let (IpAddr::V4(v4), IpAddr::V6(v6)) = (ip(WEIR[0]), ip(WEIR[1])) else { unreachable!() };
    let service = Service {
        addresses: vec![Address { protocol, ..address(ip(VIPS[family]), 53) }],
        back_ends: [back_end].into(),
        out: Some(port(1, THEIRS)),
        source: (Some((v4, 0)), Some((v6, 0))),
        nat_pool: full.then_some(NatPoolId(0)),
        ..service("dns", By::FiveTuple)
    };
    let length = if family == 0 { 32 } else { 128 };
    let prefixes = vec![NatPrefix { first: ip(POOL[family]), length }];
    let pool =
        NatPool { name: "pool".into(), prefixes, first: 1024, last: 65_535, origin: Origin::default() };
    let nat_pools = if full { vec![pool] } else { Vec::new() };
    Lb { services: vec![service], flows: 1024, nat_pools, ..Lb::default() }
}

/// Whether all checksums of an IP packet are right, including a tunnel's outer ones. A UDP checksum of 0
/// means that there is none; by default, IPv6 receivers drop such packets (RFC 6936 §4).
fn checksums_are_right(headers: &PacketHeaders<'_>) -> bool {
    let payload = headers.payload.slice();
    let mut wanted = headers.transport.clone();
    let net_is_right = match headers.net.as_ref().expect("IP") {
        NetHeaders::Ipv4(ip, _) => {
            if let Some(transport) = &mut wanted {
                transport.update_checksum_ipv4(ip, payload).expect("a length that fits");
            }
            ip.header_checksum == ip.calc_header_checksum()
        }
        NetHeaders::Ipv6(ip, _) => {
            if let Some(transport) = &mut wanted {
                transport.update_checksum_ipv6(ip, payload).expect("a length that fits");
            }
            true
        }
        NetHeaders::Arp(_) => false,
    };
    let is_ipv4 = matches!(headers.net, Some(NetHeaders::Ipv4(..)));
    let none = matches!(&headers.transport, Some(TransportHeader::Udp(udp)) if udp.checksum == 0);
    net_is_right && (none && is_ipv4 || wanted == headers.transport)
}

/// Returns source and destination of a frame, with ports.
fn ends(frame: &[u8]) -> [(IpAddr, u16); 2] {
    let headers = PacketHeaders::from_ethernet_slice(frame).expect("a frame that etherparse parses");
    assert!(checksums_are_right(&headers), "{}", craft::describe(frame));
    let ports = match &headers.transport {
        Some(TransportHeader::Tcp(tcp)) => [tcp.source_port, tcp.destination_port],
        Some(TransportHeader::Udp(udp)) => [udp.source_port, udp.destination_port],
        _ => [0, 0],
    };
    let addresses: [IpAddr; 2] = match headers.net.as_ref().expect("IP") {
        NetHeaders::Ipv4(ip, _) => [ip.source.into(), ip.destination.into()],
        NetHeaders::Ipv6(ip, _) => [ip.source.into(), ip.destination.into()],
        NetHeaders::Arp(_) => panic!("ARP"),
    };
    [(addresses[0], ports[0]), (addresses[1], ports[1])]
}

pub(super) fn word(protocol: u8) -> &'static str {
    if protocol == 6 { "tcp" } else { "udp" }
}

pub(super) fn request(family: usize, protocol: u8) -> Vec<u8> {
    let (src, dst, protocol) = (CLIENTS[family], VIPS[family], word(protocol));
    craft::frame(&format!(
        "eth.dst=02:00:00:00:00:fe src={src} dst={dst} proto={protocol} sport=4000 dport=53 payload=c0ffee"
    ))
}

/// Every IP version of clients with every protocol.
pub(super) fn kinds() -> impl Iterator<Item = (usize, u8)> {
    [0, 1].into_iter().flat_map(|family| [6, 17].map(|protocol| (family, protocol)))
}

fn back_end(mac: u8) -> [u8; 6] {
    [2, 0, 0, 0, 1, mac]
}

#[test]
fn tunnels_carry_the_packet_unchanged() {
    for (family, protocol) in kinds() {
        for outer in [0, 1] {
            let to = ip(BACK_END[outer]);
            let inner_mac = [2, 0, 0, 0, 7, 7];
            for mode in [
                Mode::Ipip(to),
                Mode::Gue(to),
                Mode::BareGue(to),
                Mode::Gre(to),
                Mode::Vxlan { ip: to, vni: 7, inner_mac },
            ] {
                let program = program_of(of(family, protocol, mode), true);
                let frame = request(family, protocol);
                let walk = interpreter(&program).walk(PortId(0), &frame, 128, 0);
                assert_eq!(walk.verdict, Verdict::Transmit(PortId(1)), "{mode:?}");
                assert_eq!((&walk.bytes[..6], &walk.bytes[6..12]), (&back_end(0)[..], &THEIRS[..]));
                let [(src, sport), (dst, dport)] = ends(&walk.bytes);
                assert_eq!((src, dst), (ip(WEIR[outer]), to), "{mode:?}");
                match mode {
                    Mode::Gue(_) | Mode::BareGue(_) => assert!(dport == 6080 && sport >= 49_152),
                    Mode::Vxlan { .. } => assert!(dport == 4789 && sport >= 49_152),
                    _ => {}
                }
                assert!(walk.bytes.ends_with(&frame[14..]), "{mode:?}");
                if let Mode::Vxlan { .. } = mode {
                    let inside = walk.bytes.len() - frame.len();
                    assert_eq!(walk.bytes[inside..inside + 6], inner_mac);
                }
            }
        }
    }
}

/// A flow keeps its source, flows use all of the prefix, and checksums stay valid.
#[test]
fn flows_differ_in_the_source_of_their_tunnel() {
    for (family, protocol) in kinds() {
        for outer in [0, 1] {
            let (IpAddr::V4(v4), IpAddr::V6(v6)) = (ip("10.255.0.0"), ip("fd00:1::")) else { unreachable!() };
            let to = ip(BACK_END[outer]);
            let inner_mac = [2, 0, 0, 0, 7, 7];
            for mode in [
                Mode::Ipip(to),
                Mode::Gue(to),
                Mode::BareGue(to),
                Mode::Gre(to),
                Mode::Vxlan { ip: to, vni: 7, inner_mac },
            ] {
                let mut lb = of(family, protocol, mode);
                lb.services[0].source = (Some((v4, 16)), Some((v6, 64)));
                let program = program_of(lb, true);
                let mut interpreter = interpreter(&program);
                let mut source = |sport: u16| {
                    let text =
                        format!("src={} dst={} proto={}", CLIENTS[family], VIPS[family], word(protocol));
                    let text = format!("eth.dst=02:00:00:00:00:fe {text} sport={sport} dport=53");
                    ends(&interpreter.walk(PortId(0), &craft::frame(&text), 128, 0).bytes)[0].0
                };
                let all: Vec<IpAddr> = (1000..1200).map(&mut source).collect();
                let within = |one: &IpAddr| match one {
                    IpAddr::V4(one) => one.octets()[..2] == v4.octets()[..2],
                    IpAddr::V6(one) => one.octets()[..8] == v6.octets()[..8],
                };
                assert!(all.iter().all(within), "{mode:?}");
                assert!(all.iter().collect::<HashSet<_>>().len() > 190, "{mode:?}");
                assert_eq!((1000..1200).map(source).collect::<Vec<_>>(), all, "{mode:?}");
            }
        }
    }
}

#[test]
fn translated_packets_come_back_as_the_services() {
    for (family, protocol) in kinds() {
        for port in [None, Some(5353)] {
            let to = ip(BACK_END[family]);
            for mode in [Mode::Nat { ip: to, port }, Mode::FullNat { ip: to, port }] {
                let program = program_of(of(family, protocol, mode), true);
                let mut interpreter = interpreter(&program);
                let frame = request(family, protocol);
                let walk = interpreter.walk(PortId(0), &frame, 128, 0);
                assert_eq!(walk.verdict, Verdict::Transmit(PortId(1)), "{mode:?}");
                let [src, dst] = ends(&walk.bytes);
                assert_eq!(dst, (to, port.unwrap_or(53)));
                let client = (ip(CLIENTS[family]), 4000);
                if let Mode::Nat { .. } = mode {
                    assert_eq!(src, client);
                } else {
                    assert_eq!(src.0, ip(POOL[family]));
                }
                let answer = craft::frame(&format!(
                    "eth.src=02:00:00:00:01:00 eth.dst=02:00:00:00:00:fd src={} dst={} proto={} \
                     sport={} dport={} payload=c0ffee",
                    dst.0,
                    src.0,
                    word(protocol),
                    dst.1,
                    src.1
                ));
                let walk = interpreter.walk(PortId(1), &answer, 128, 1);
                assert_eq!(walk.verdict, Verdict::Transmit(PortId(0)), "{mode:?}");
                assert_eq!(ends(&walk.bytes), [(ip(VIPS[family]), 53), client]);
                assert_eq!((&walk.bytes[..6], &walk.bytes[6..12]), (&frame[6..12], &OURS[..]));
            }
        }
    }
}

#[test]
fn nobody_else_gets_through_where_answers_come_back() {
    let to = ip(BACK_END[0]);
    for mode in [Mode::Nat { ip: to, port: None }, Mode::FullNat { ip: to, port: None }] {
        let program = program_of(of(0, 17, mode), true);
        for dst in [CLIENTS[0], POOL[0]] {
            let answer = craft::frame(&format!(
                "eth.dst=02:00:00:00:00:fd src={to} dst={dst} proto=udp sport=53 dport=4000"
            ));
            let walk = interpreter(&program).walk(PortId(1), &answer, 128, 1);
            assert_eq!(walk.verdict, Verdict::Kernel(PortId(1)));
        }
    }
}

#[test]
fn what_a_mode_cannot_do_is_told() {
    let problem = |lb: Lb| {
        let problems = lb.problems();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems.into_iter().next().map(|(_, problem)| problem).unwrap()
    };
    let change_service = |mode: Mode, change: fn(&mut Service)| {
        let mut lb = of(0, 17, mode);
        change(&mut lb.services[0]);
        problem(lb)
    };
    let (v4, v6) = (ip(BACK_END[0]), ip(BACK_END[1]));
    let (nat, full) = (Mode::Nat { ip: v4, port: None }, Mode::FullNat { ip: v4, port: None });
    let sees = |mode, change| change_service(mode, change);
    assert!(matches!(sees(Mode::Ipip(v6), |one| one.source.1 = None), Problem::NoSource { .. }));
    assert!(matches!(sees(nat, |one| one.stateless = true), Problem::NatWithoutFlows { .. }));
    assert!(matches!(sees(nat, |one| one.by = By::Source), Problem::NatWithoutFlows { .. }));
    assert!(matches!(sees(full, |one| one.nat_pool = None), Problem::NoPool { .. }));
    assert!(matches!(problem(of(1, 17, nat)), Problem::OtherFamily { .. }));
    assert!(matches!(problem(of(0, 17, Mode::Gue(ip(VIPS[0])))), Problem::Loop { .. }));
    assert!(matches!(problem(Lb { flows: 1 << 20, ..of(0, 17, full) }), Problem::PoolSmall { .. }));
    let mut two = of(0, 17, Mode::Gue(v4));
    let first = two.services[0].back_ends[0].clone();
    two.services[0].back_ends =
        [first.clone(), BackEnd { name: "other".into(), mode: Mode::Gre(v4), ..first }].into();
    assert!(matches!(problem(two), Problem::TwoModes { .. }));
    let mut mixed = of(0, 17, full);
    let first = mixed.services[0].back_ends[0].clone();
    mixed.services[0].back_ends =
        [first.clone(), BackEnd { name: "other".into(), mode: Mode::L2, ..first }].into();
    assert!(matches!(problem(mixed), Problem::MixedPool { .. }));
}

#[test]
fn answers_come_to_the_worker_of_their_flow_whatever_queue_they_arrive_on() {
    for family in [0, 1] {
        let to = ip(BACK_END[family]);
        let program = program_of(of(family, 6, Mode::FullNat { ip: to, port: None }), true);
        assert_eq!(owners(&program).1, []);
        for workers in [2, 4] {
            let owners = Owners::new(&program, TableHash::new([1, 2]).into(), workers);
            let mut interpreter = interpreter(&program);
            let mut used = std::collections::BTreeSet::new();
            for sport in 4000..4300 {
                let request = craft::frame(&format!(
                    "eth.dst=02:00:00:00:00:fe src={} dst={} proto=tcp sport={sport} dport=53",
                    CLIENTS[family], VIPS[family]
                ));
                let walk = interpreter.walk(PortId(0), &request, 128, 0);
                let [src, dst] = ends(&walk.bytes);
                let answer = craft::frame(&format!(
                    "eth.dst=02:00:00:00:00:fd src={} dst={} proto=tcp sport={} dport={}",
                    dst.0, src.0, dst.1, src.1
                ));
                let worker = owners.worker(PortId(0), &request);
                assert_eq!(owners.worker(PortId(1), &answer), worker);
                used.insert(worker);
            }
            assert_eq!(used.len(), workers);
        }
    }
}

#[test]
fn ports_take_what_answers() {
    let to = ip(BACK_END[0]);
    let taken = |mode| -> Vec<Frames> {
        let rules = of(0, 17, mode).take();
        rules.iter().filter(|rule| rule.port == PortId(1)).map(|rule| rule.frames).collect()
    };
    assert_eq!(taken(Mode::Gue(to)), []);
    assert_eq!(taken(Mode::Nat { ip: to, port: None }), [Frames::From(to)]);
    let answers = taken(Mode::FullNat { ip: to, port: None });
    let (errors, answers): (Vec<_>, Vec<_>) =
        answers.into_iter().partition(|frames| matches!(frames, Frames::Errors(_)));
    assert_eq!(
        (answers.len(), errors.len()),
        (4, 2),
        "TCP and UDP, fragments of both, and errors about both"
    );
    let of_pool = |frames: &Frames| {
        let rule = super::ip(*frames);
        rule.dport == if rule.fragments { None } else { Some((1024, 65_535)) }
    };
    assert!(answers.iter().all(of_pool));
}

#[test]
fn a_group_is_filled_as_another_systems_ring_by_the_addresses_of_back_ends() {
    let katran =
        Fill::Katran(KatranVersion::V1, KatranHash { any_port: false, no_sport: false, dport_only: false });
    let mut service = service("a", By::FiveTuple);
    (service.fill, service.size) = (katran, katran.fixed_size().unwrap());
    for (back_end, host) in Arc::make_mut(&mut service.back_ends).iter_mut().zip(1..) {
        back_end.address = Some(std::net::Ipv4Addr::new(10, 1, 0, host).into());
    }
    let program = program(vec![service], true);
    let group = &program.groups[0];
    assert_eq!((group.fill, group.size), (katran, 65_537));
    assert!(
        group
            .targets
            .iter()
            .zip(1..)
            .all(|(target, host)| { target.address == Some(std::net::Ipv4Addr::new(10, 1, 0, host).into()) })
    );
}
