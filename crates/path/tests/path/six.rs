//! The tests of the programs over IPv6.

use super::*;
use weir_path::bpf::{PathOut, PathPeer, PathSettings, TcPath};
use weir_path::wire::{FRAME6, Kind, Outer, Packet, ProbeId, Secret};

const HERE: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 1);
const PEER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 2, 0, 0, 0, 1);
const STRANGER: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 3, 0, 0, 0, 1);
const INNER: usize = 14 + 40 + 8 + 8;

/// Loads the programs with a peer that has four paths; `None` without root.
fn load() -> Option<TcPath> {
    let mut programs = loaded(&PathSettings { gap_us: 2_000_000, ..SETTINGS })?;
    programs.set_locals(&[HERE, PEER]).unwrap();
    let paths = PORTS.map(|port| PathOut { port, weight: 1024, ..PathOut::default() });
    programs.set_peer(PEER, &PathPeer { index: 1, paths: paths.to_vec() }).unwrap();
    Some(programs)
}

/// The sum of everything that the UDP checksum covers, including the pseudo-header: 0xffff if it is correct.
fn sums(frame: &[u8]) -> [u16; 2] {
    let length = u32::from(u16::from_be_bytes([frame[58], frame[59]]));
    let pseudo = folded(&frame[22..54], 17 + length);
    [pseudo, folded(&frame[54..], pseudo.into())]
}

/// A VXLAN frame over IPv6, without a checksum, with a TCP segment from this port in IPv6 inside.
fn data(to: Ipv6Addr, kernel_port: u16, sport: u16) -> Vec<u8> {
    let segment = 20;
    let udp = (8 + 8 + 14 + 40 + segment) as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0];
    frame.extend(udp.to_be_bytes());
    frame.extend([17, 64]);
    frame.extend(HERE.octets());
    frame.extend(to.octets());
    frame.extend(kernel_port.to_be_bytes());
    frame.extend(4789_u16.to_be_bytes());
    frame.extend(udp.to_be_bytes());
    frame.extend([0, 0, 8, 0, 0, 0, 0, 0, 42, 0]);
    frame.extend([2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1, 0x86, 0xdd]);
    frame.extend([0x60, 0, 0, 0, 0, segment as u8, 6, 64]);
    frame.extend(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1).octets());
    frame.extend(Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 2).octets());
    frame.extend(sport.to_be_bytes());
    frame.extend(5001_u16.to_be_bytes());
    frame.extend([7; 16]);
    frame
}

fn sport(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[54], frame[55]])
}

#[test]
fn a_flow_over_ipv6_keeps_its_path_and_flows_are_spread_over_all() {
    let Some(mut programs) = load() else { return };
    let mut seen = [0; 4];
    for flow in 0..400 {
        let frame = data(PEER, KERNEL_PORT, flow);
        let [first, second] = [(), ()].map(|()| programs.test_egress(&frame).unwrap());
        assert_eq!(first, second);
        assert_eq!(first.1[..54], frame[..54], "nothing else is changed");
        assert_eq!(first.1[56..], frame[56..]);
        seen[PORTS.iter().position(|one| *one == sport(&first.1)).expect("a port of a path")] += 1;
    }
    assert!(seen.iter().all(|&flows| flows > 50), "{seen:?}");
    let flows = programs.flows().unwrap().page(0, 1000).unwrap().0;
    assert_eq!(flows.len(), 400);
    let (key, flow) = flows[0];
    assert_eq!((key.peer(), key.vni(), key.ports()[1], key.protocol()), (1, 42, 5001, 6));
    assert_eq!(key.addresses().map(|one| one.to_string()), ["fd01::1", "fd01::2"]);
    assert_eq!((flow.packets, flow.kernel_port), (2, KERNEL_PORT));
    let stranger = data(STRANGER, KERNEL_PORT, 1);
    assert_eq!(programs.test_egress(&stranger).unwrap(), (PASS, stranger));
    assert_eq!(programs.counters().unknown_peer, 1);
    let whole = data(PEER, KERNEL_PORT, 1);
    for length in 54..INNER {
        let cut = whole[..length].to_vec();
        assert_eq!(programs.test_egress(&cut).unwrap(), (PASS, cut.clone()), "{length} bytes");
        assert_eq!(programs.test_reflect(&cut).unwrap(), (PASS, cut));
    }
}

#[test]
fn the_checksum_stays_right_absent_or_the_device_s() {
    let Some(mut programs) = load() else { return };
    for flow in 0..2000 {
        let mut frame = data(PEER, KERNEL_PORT, flow);
        let (_, zero) = programs.test_egress(&frame).unwrap();
        assert_eq!(zero[60..62], [0, 0], "the device wants none");
        let [pseudo, sum] = sums(&frame);
        frame[60..62].copy_from_slice(&pseudo.to_be_bytes());
        let (_, partial) = programs.test_egress(&frame).unwrap();
        assert_eq!(partial[60..62], pseudo.to_be_bytes(), "the device completes it");
        let check = if sum == 0xffff { 0xffff } else { !sum };
        frame[60..62].copy_from_slice(&check.to_be_bytes());
        assert_eq!(sums(&frame)[1], 0xffff);
        let (_, steered) = programs.test_egress(&frame).unwrap();
        assert_ne!(sport(&steered), KERNEL_PORT);
        assert_eq!(sums(&steered)[1], 0xffff, "flow {flow}");
    }
}

/// A probe as the peer sends it, in an Ethernet frame.
fn probe(number: u32) -> Packet<Ipv6Addr> {
    let outer = Outer {
        macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        source: PEER,
        destination: HERE,
        port: 50_000,
        tunnel: PathTunnel::VXLAN,
        dscp: 10,
        marked: false,
        id: 0x0207,
        ttl: 61,
    };
    Packet { path: 3, ..Packet::request(outer, ProbeId { session: 7, number }, number as u8, 0).with_id() }
}

#[test]
fn a_probe_over_ipv6_is_answered_once_and_the_answer_is_collected() {
    let Some(mut programs) = load() else { return };
    let frame = probe(1).frame6(SECRET).to_vec();
    let (verdict, stamped) = programs.test_egress(&frame).unwrap();
    assert_eq!((verdict, stamped.len(), sums(&stamped)[1]), (PASS, frame.len(), 0xffff));
    let request = Packet::read6(&stamped, PathTunnel::VXLAN, SECRET).unwrap();
    assert!(request.sent_ns > 0);
    let mut marked = stamped;
    marked[15] |= 0x30;
    let (verdict, back) = programs.test_reflect(&marked).unwrap();
    assert_eq!((verdict, back.len()), (REDIRECT, FRAME6));
    let answer = Packet::read6(&back, PathTunnel::VXLAN, SECRET).unwrap();
    let Outer { macs, source, destination, dscp, ttl, .. } = answer.outer;
    assert_eq!((macs, source, destination), ([probe(1).outer.macs[1], probe(1).outer.macs[0]], HERE, PEER));
    assert_eq!((dscp, ttl, answer.outer.marked), (10, 64, false));
    assert!(PORTS.contains(&answer.outer.port), "it comes back by a path that is usable");
    assert_eq!((answer.kind, answer.number, answer.path, answer.arrived), (Kind::Answer, 1, 3, 1));
    assert_eq!((answer.marked, answer.hops, answer.sent_ns), (true, 61, request.sent_ns));
    assert_eq!(programs.test_reflect(&marked).unwrap().0, SHOT, "answered once");

    // The same programs also act as the peer that sent the probe.
    programs.set_peer(HERE, &PathPeer { index: 2, paths: Vec::new() }).unwrap();
    assert_eq!(programs.test_egress(&back).unwrap(), (PASS, back.clone()), "an answer is not stamped");
    assert_eq!(programs.test_reflect(&back).unwrap().0, SHOT, "it reaches user space");
    let collected = programs.answer().unwrap();
    assert_eq!((collected.peer, collected.session, collected.number, collected.port), (2, 7, 1, 50_000));
    assert_eq!((collected.marked, collected.ttl, collected.arrived), (true, 61, 1));
    assert!(collected.sent_ns < collected.reflected_ns && collected.reflected_ns < collected.received_ns);
    assert_eq!((programs.counters().answered, programs.counters().repeated), (1, 1));
}

#[test]
fn a_long_request_over_ipv6_gets_a_short_answer_and_a_long_answer_is_malformed() {
    let Some(mut programs) = load() else { return };
    for (number, length) in [(1, 105), (2, 1500), (3, 3000)] {
        let (_, stamped) = programs.test_egress(&probe(number).padded6(SECRET, length)).unwrap();
        assert!(
            Packet::read6(&stamped, PathTunnel::VXLAN, SECRET).unwrap().sent_ns > 0,
            "its checksum stays right"
        );
        let (verdict, back) = programs.test_reflect(&stamped).unwrap();
        assert_eq!((verdict, back.len()), (REDIRECT, FRAME6), "{length}");
        let answer = Packet::read6(&back, PathTunnel::VXLAN, SECRET).unwrap();
        assert_eq!((answer.kind, answer.number), (Kind::Answer, number));
    }
    programs.set_peer(HERE, &PathPeer { index: 2, paths: Vec::new() }).unwrap();
    let answer = probe(9).answer(PORTS[0], 1, 5).padded6(SECRET, 1500);
    assert_eq!(programs.test_reflect(&answer).unwrap().0, SHOT);
    assert_eq!(programs.test_reflect(&probe(9).padded6(SECRET, 1500)[..1513]).unwrap().0, SHOT);
    assert_eq!((programs.counters().answered, programs.counters().malformed), (3, 2));
}

#[test]
fn hostile_probes_over_ipv6_are_counted_and_go_nowhere() {
    let Some(mut programs) = load() else { return };
    let good = probe(1).frame6(SECRET).to_vec();
    let mut stranger = probe(1);
    stranger.outer.source = STRANGER;
    let mut other = probe(1);
    other.outer.destination = STRANGER;
    let other = other.frame6(SECRET).to_vec();
    assert_eq!(programs.test_reflect(&other).unwrap(), (PASS, other), "it is for another node");
    let mut replies = 0;
    let mut shot = |frame: &[u8]| replies += i32::from(programs.test_reflect(frame).unwrap().0 != SHOT);
    shot(&stranger.frame6(SECRET));
    shot(&probe(1).frame6(Secret([1, 2])));
    shot(&[&good[..], &[0; 900]].concat());
    (INNER..good.len()).for_each(|length| shot(&good[..length]));
    for at in (INNER..INNER + 18).chain(INNER + 32..FRAME6) {
        let mut frame = good.clone();
        frame[at] ^= 0x40;
        shot(&frame);
    }
    assert_eq!(replies, 0);
    let counters = programs.counters();
    assert_eq!((counters.answered, counters.stranger), (0, 1));
    assert!(counters.bad_cookie > 20 && counters.malformed > 40, "{counters:?}");
    assert_eq!(programs.test_reflect(&good).unwrap().0, REDIRECT, "the true one is still new");
}

#[test]
fn a_node_over_each_version_of_ip_is_no_matter_for_the_other() {
    let Some(mut programs) = load() else { return };
    let four = Ipv4Addr::new(10, 0, 2, 1);
    programs.set_peer(four, &PathPeer { index: 0, paths: Vec::new() }).unwrap();
    assert!(PORTS.contains(&sport(&programs.test_egress(&data(PEER, KERNEL_PORT, 1)).unwrap().1)));
    programs.remove_peer(PEER, 1).unwrap();
    assert_eq!(sport(&programs.test_egress(&data(PEER, KERNEL_PORT, 1)).unwrap().1), KERNEL_PORT);
    programs.remove_peer(four, 0).unwrap();
    assert!(programs.remove_peer(four, 0).is_err());
}
