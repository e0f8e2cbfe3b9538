//! IPv4: which port a frame gets, and which probes are answered.

use super::*;
use std::collections::BTreeSet;
use weir_path::bpf::{PathCounters, PathFlow, PathFlowKey, PathOut, PathPeer, PathSettings, Steer, TcPath};
use weir_path::wire::{self, FRAME, Kind, Outer, Packet, ProbeId, Secret};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 0, 3, 1);

/// Loads the programs with a peer that has four paths; `None` without root.
fn load(settings: &PathSettings) -> Option<TcPath> {
    let mut programs = loaded(settings)?;
    programs.set_locals(&[HERE, PEER]).unwrap();
    programs.set_peer(PEER, &peer([true; 4], [0; 4])).unwrap();
    Some(programs)
}

fn peer(usable: [bool; 4], costs: [u32; 4]) -> PathPeer {
    let path = |at: usize| PathOut {
        port: PORTS[at],
        weight: 1024 * u32::from(usable[at]),
        congested: false,
        cost_ns: costs[at],
    };
    PathPeer { index: 1, paths: (0..4).map(path).collect() }
}

/// The sum of what the outer UDP checksum covers: 0xffff if it is correct.
fn udp_sum(frame: &[u8]) -> u16 {
    let length = u32::from(u16::from_be_bytes([frame[38], frame[39]]));
    let pseudo = u32::from(folded(&frame[26..34], 0)) + 17 + length;
    folded(&frame[34..], pseudo)
}

fn outer(to: Ipv4Addr, kernel_port: u16, payload: &[u8]) -> Vec<u8> {
    let udp = 8 + payload.len();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    frame.extend((20 + udp as u16).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(HERE.octets());
    frame.extend(to.octets());
    let check = !folded(&frame[14..34], 0);
    frame[24..26].copy_from_slice(&check.to_be_bytes());
    frame.extend(kernel_port.to_be_bytes());
    frame.extend(4789_u16.to_be_bytes());
    frame.extend((udp as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

/// A VXLAN frame with a TCP segment from this port inside.
fn data(to: Ipv4Addr, kernel_port: u16, sport: u16) -> Vec<u8> {
    let mut payload = vec![8, 0, 0, 0, 0, 0, 42, 0];
    payload.extend([2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1, 8, 0]);
    payload.extend([0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2]);
    payload.extend(sport.to_be_bytes());
    payload.extend(5001_u16.to_be_bytes());
    payload.extend([0; 16]);
    outer(to, kernel_port, &payload)
}

fn sport(frame: &[u8]) -> u16 {
    u16::from_be_bytes([frame[34], frame[35]])
}

/// Sends a frame and returns its port.
fn sent(programs: &mut TcPath, frame: &[u8]) -> u16 {
    let (verdict, frame) = programs.test_egress(frame).unwrap();
    assert_eq!(verdict, PASS);
    sport(&frame)
}

#[test]
fn a_flow_keeps_its_path_and_flows_are_spread_over_all() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let mut seen = [0; 4];
    for flow in 0..400 {
        let port = sent(&mut programs, &data(PEER, KERNEL_PORT, flow));
        assert_eq!(sent(&mut programs, &data(PEER, KERNEL_PORT, flow)), port);
        seen[PORTS.iter().position(|one| *one == port).expect("a port of a path")] += 1;
    }
    assert!(seen.iter().all(|&flows| flows > 50), "{seen:?}");
    let traffic = programs.traffic(1, 4);
    assert_eq!(traffic.iter().map(|path| path.new_flows).sum::<u64>(), 400);
    assert_eq!(traffic.iter().map(|path| path.packets).sum::<u64>(), 800);
    assert_eq!(programs.counters(), PathCounters { steered: 800, ..PathCounters::default() });
    let flows = programs.flows().unwrap().page(0, 1000).unwrap().0;
    assert_eq!(flows.len(), 400);
    let (key, flow) = flows[0];
    assert_eq!((key.peer(), key.vni(), key.ports()[1], key.protocol()), (1, 42, 5001, 6));
    assert_eq!((flow.packets, flow.kernel_port), (2, KERNEL_PORT));
}

#[test]
fn flows_are_read_page_by_page_while_others_come_and_go() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    for flow in 0..600 {
        sent(&mut programs, &data(PEER, KERNEL_PORT, flow));
    }
    let key = |(key, _): (PathFlowKey, PathFlow)| key.ports()[0];
    let all: BTreeSet<u16> =
        programs.flows().unwrap().page(0, 1024).unwrap().0.into_iter().map(key).collect();
    assert_eq!(all.len(), 600);
    let (mut read, mut next, mut new) = (Vec::new(), Some(0), 600);
    while let Some(from) = next {
        let (some, then) = programs.flows().unwrap().page(from, 50).unwrap();
        assert!(some.len() <= 50, "{}", some.len());
        read.extend(some.into_iter().map(key).filter(|key| all.contains(key)));
        // A key that the next page could begin at may be gone; buckets stay.
        sent(&mut programs, &data(PEER, KERNEL_PORT, new));
        new += 1;
        next = then;
    }
    assert!(new - 600 >= 12, "{} pages", new - 600);
    assert_eq!((read.len(), read.into_iter().collect::<BTreeSet<_>>()), (600, all));
    assert_eq!(programs.flows().unwrap().page(u32::MAX, 50).unwrap(), (Vec::new(), None));
}

#[test]
fn more_flows_than_fit_are_steered_too() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    for flow in 0..20_000 {
        let port = sent(&mut programs, &data(PEER, KERNEL_PORT, flow));
        assert!(PORTS.contains(&port));
    }
    assert_eq!(programs.counters().steered, 20_000);
    assert!(programs.flows().unwrap().page(0, 100_000).unwrap().0.len() <= 1024);
}

#[test]
fn a_path_that_is_not_usable_is_left_with_the_next_packet() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let before: Vec<u16> = (0..100).map(|flow| sent(&mut programs, &data(PEER, KERNEL_PORT, flow))).collect();
    programs.set_peer(PEER, &peer([false, true, true, true], [0; 4])).unwrap();
    for (flow, before) in (0..).zip(&before) {
        let port = sent(&mut programs, &data(PEER, KERNEL_PORT, flow));
        assert_ne!(port, PORTS[0]);
        assert!(*before == PORTS[0] || port == *before, "others stay");
    }
    let moved: u64 = programs.traffic(1, 4).iter().map(|path| path.after_failure).sum();
    assert_eq!(moved, before.iter().filter(|port| **port == PORTS[0]).count() as u64);
    programs.set_peer(PEER, &peer([false; 4], [0; 4])).unwrap();
    assert_eq!(sent(&mut programs, &data(PEER, KERNEL_PORT, 0)), KERNEL_PORT, "ECMP without a path");
}

#[test]
fn a_flow_leaves_a_bad_path_after_a_pause_and_not_before() {
    let Some(mut programs) = load(&PathSettings { gap_us: 2_000_000, ..SETTINGS }) else { return };
    let before: Vec<u16> = (0..50).map(|flow| sent(&mut programs, &data(PEER, KERNEL_PORT, flow))).collect();
    programs.set_peer(PEER, &peer([true; 4], [1 << 30, 0, 0, 0])).unwrap();
    let same = (0..50).map(|flow| sent(&mut programs, &data(PEER, KERNEL_PORT, flow)));
    assert_eq!(same.collect::<Vec<_>>(), before, "no flow paused");
    programs.set(&PathSettings { gap_us: 0, ..SETTINGS }).unwrap();
    let after: Vec<u16> = (0..50).map(|flow| sent(&mut programs, &data(PEER, KERNEL_PORT, flow))).collect();
    let on_bad = |ports: &[u16]| ports.iter().filter(|port| **port == PORTS[0]).count();
    assert!(on_bad(&after) < on_bad(&before).max(1), "{before:?} {after:?}");
}

#[test]
fn another_port_of_the_kernel_is_a_signal() {
    let Some(mut programs) = load(&PathSettings { gap_us: 2_000_000, ..SETTINGS }) else { return };
    let ports: Vec<u16> = (0..50).map(|flow| sent(&mut programs, &data(PEER, KERNEL_PORT, flow))).collect();
    programs.set_peer(PEER, &peer([true; 4], [1 << 30, 0, 0, 0])).unwrap();
    for flow in 0..50 {
        sent(&mut programs, &data(PEER, KERNEL_PORT + 1, flow));
    }
    assert_eq!(programs.activity(1).rehashed.iter().sum::<u64>(), 50);
    let traffic = programs.traffic(1, 4);
    let bad = ports.iter().filter(|port| **port == PORTS[0]).count() as u64;
    assert!(traffic.iter().map(|path| path.after_rehash).sum::<u64>() > bad / 2, "{traffic:?}");
}

#[test]
fn the_outer_checksum_stays_right_or_absent() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    for flow in 0..2000 {
        let mut frame = data(PEER, KERNEL_PORT, flow);
        let (_, zero) = programs.test_egress(&frame).unwrap();
        assert_eq!(zero[40..42], [0, 0]);
        let check = match !udp_sum(&frame) {
            0 => 0xffff,
            check => check,
        };
        frame[40..42].copy_from_slice(&check.to_be_bytes());
        assert_eq!(udp_sum(&frame), 0xffff);
        let (_, steered) = programs.test_egress(&frame).unwrap();
        assert_ne!(sport(&steered), KERNEL_PORT);
        assert_eq!(udp_sum(&steered), 0xffff, "flow {flow}");
    }
}

#[test]
fn a_checksum_that_the_device_completes_is_left() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let mut frame = data(PEER, KERNEL_PORT, 1);
    let length = u32::from(u16::from_be_bytes([frame[38], frame[39]]));
    let pseudo = folded(&[], u32::from(folded(&frame[26..34], 0)) + 17 + length);
    frame[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let (_, steered) = programs.test_egress(&frame).unwrap();
    assert_ne!(sport(&steered), KERNEL_PORT);
    assert_eq!(steered[40..42], pseudo.to_be_bytes());
}

#[test]
fn what_is_not_for_a_peer_passes_untouched() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let frame = data(STRANGER, KERNEL_PORT, 1);
    assert_eq!(programs.test_egress(&frame).unwrap(), (PASS, frame.clone()));
    assert_eq!(programs.counters().unknown_peer, 1);
    let mut dns = data(PEER, KERNEL_PORT, 1);
    dns[37] = 53;
    let whole = data(PEER, KERNEL_PORT, 1);
    let cut = (34..50).map(|length| whole[..length].to_vec());
    for frame in cut.chain([dns]) {
        assert_eq!(programs.test_egress(&frame).unwrap(), (PASS, frame.clone()), "{} bytes", frame.len());
        assert_eq!(programs.test_reflect(&frame).unwrap(), (PASS, frame.clone()));
    }
    programs.set(&PathSettings { steer: Steer::Ecmp, ..SETTINGS }).unwrap();
    assert_eq!(sent(&mut programs, &whole), KERNEL_PORT);
}

#[test]
fn every_inner_frame_has_a_path_whatever_it_is() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let whole = data(PEER, KERNEL_PORT, 1);
    for length in 50..whole.len() {
        assert!(PORTS.contains(&sent(&mut programs, &whole[..length])), "{length} bytes");
    }
    for ethertype in [[0x86, 0xdd], [8, 6], [0x81, 0]] {
        let mut frame = whole.clone();
        frame[62..64].copy_from_slice(&ethertype);
        assert!(PORTS.contains(&sent(&mut programs, &frame)));
    }
}

#[test]
fn the_first_frame_of_a_tunnel_header_waits_for_its_port() {
    let Some(mut programs) = load(&PathSettings { steer: Steer::DocaAr, ..SETTINGS }) else { return };
    let frame = data(PEER, KERNEL_PORT, 1);
    assert_eq!(programs.test_egress(&frame).unwrap().0, SHOT);
    let missed = programs.missed().unwrap();
    assert_eq!((missed.kernel_port, &missed.frame), (KERNEL_PORT, &frame));
    assert_eq!(missed.key.ports(), [KERNEL_PORT, 4789]);
    assert_eq!(missed.key.addresses(), [HERE, PEER].map(std::net::IpAddr::from));
    let now = std::fs::read_to_string("/proc/uptime").unwrap();
    let now: f64 = now.split(' ').next().unwrap().parse().unwrap();
    programs.pin(missed.key, KERNEL_PORT, Some(50_003), (now * 1e9) as u64).unwrap();
    for _ in 0..3 {
        assert_eq!(sent(&mut programs, &frame), 50_003);
    }
    // More tunnel headers than there is room for flows, none of which DOCA-AR ever releases.
    for port in 0..20_000 {
        assert_eq!(programs.test_egress(&data(PEER, port, 1)).unwrap().0, SHOT);
        let missed = programs.missed().unwrap();
        programs.pin(missed.key, port, Some(50_001), (now * 1e9) as u64).unwrap();
        assert_eq!(sent(&mut programs, &data(PEER, port, 1)), 50_001);
    }
}

/// A probe as the peer sends it, in an Ethernet frame.
fn probe(number: u32) -> Packet {
    let outer = Outer {
        macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        source: PEER,
        destination: HERE,
        port: 50_000,
        tunnel: PathTunnel::VXLAN,
        dscp: 10,
        marked: false,
        id: 0,
        ttl: 61,
    };
    Packet { path: 3, ..Packet::request(outer, ProbeId { session: 7, number }, number as u8, 0) }
}

fn asked(programs: &mut TcPath, probe: &Packet) -> (i32, Vec<u8>) {
    programs.test_reflect(&probe.frame(SECRET)).unwrap()
}

#[test]
fn a_probe_is_answered_once_and_the_answer_is_collected() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let frame = probe(1).frame(SECRET).to_vec();
    let (verdict, stamped) = programs.test_egress(&frame).unwrap();
    assert_eq!((verdict, stamped.len()), (PASS, frame.len()));
    let mut marked = stamped;
    marked[15] |= 3;
    let (verdict, back) = programs.test_reflect(&marked).unwrap();
    assert_eq!((verdict, back.len()), (REDIRECT, FRAME));
    assert_eq!((&back[..6], &back[6..12]), (&frame[6..12], &frame[..6]));
    assert_eq!((&back[26..30], &back[30..34]), (&HERE.octets()[..], &PEER.octets()[..]));
    assert_eq!(folded(&back[14..34], 0), 0xffff, "the header's checksum is right");
    assert_eq!(back[15], 10 << 2 | 2, "the answer itself is not marked");
    assert!(PORTS.contains(&sport(&back)), "it comes back by a path that is usable");
    assert_eq!(programs.test_reflect(&marked).unwrap().0, SHOT, "answered once");

    // The same two programs also act as the peer that sent the probe.
    programs.set_peer(HERE, &peer([true; 4], [0; 4])).unwrap();
    assert_eq!(programs.test_egress(&back).unwrap(), (PASS, back.clone()), "an answer is not stamped");
    assert_eq!(programs.test_reflect(&back).unwrap().0, SHOT, "it reaches user space");
    let answer = programs.answer().unwrap();
    assert_eq!((answer.peer, answer.session, answer.number, answer.port), (1, 7, 1, 50_000));
    assert_eq!((answer.marked, answer.ttl, answer.arrived), (true, 61, 1));
    assert!(answer.sent_ns < answer.reflected_ns && answer.reflected_ns < answer.received_ns);
    assert!(programs.answer().is_none());
    let counters = programs.counters();
    assert_eq!((counters.answered, counters.repeated, counters.collected), (1, 1, 1));
}

#[test]
fn a_long_request_gets_a_short_answer_and_a_long_answer_is_malformed() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    for (number, length) in [(1, 85), (2, 1500), (3, 3000)] {
        let (verdict, stamped) = programs.test_egress(&probe(number).padded(SECRET, length)).unwrap();
        assert_eq!((verdict, stamped.len()), (PASS, 14 + usize::from(length)));
        let (verdict, back) = programs.test_reflect(&stamped).unwrap();
        assert_eq!((verdict, back.len()), (REDIRECT, FRAME), "{length}");
        assert_eq!(folded(&back[14..34], 0), 0xffff, "the header's checksum is right");
        let answer = Packet::read(&back, PathTunnel::VXLAN, SECRET).unwrap();
        assert_eq!((answer.kind, answer.number), (Kind::Answer, number));
        assert_eq!(programs.test_reflect(&stamped).unwrap().0, SHOT, "answered once");
    }
    programs.set_peer(HERE, &peer([true; 4], [0; 4])).unwrap();
    let answer = probe(9).answer(PORTS[0], 1, 5).padded(SECRET, 1500);
    assert_eq!(programs.test_reflect(&answer).unwrap().0, SHOT);
    let long = probe(9).padded(SECRET, 1500);
    assert_eq!(programs.test_reflect(&long[..1513]).unwrap().0, SHOT, "it is cut off");
    let forged = probe(9).padded(Secret([1, 2]), 1500);
    assert_eq!(programs.test_reflect(&forged).unwrap().0, SHOT);
    let PathCounters { answered, malformed, bad_cookie, .. } = programs.counters();
    assert_eq!((answered, malformed, bad_cookie), (3, 2, 1));
}

#[test]
fn what_is_for_another_node_is_left_to_it() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let here = probe(1).frame(SECRET).to_vec();
    // A host that forwards sees probes from its peers to others, and answers to others.
    let mut other = probe(1);
    other.outer.destination = STRANGER;
    let mut asked = probe(1);
    (asked.outer.source, asked.outer.destination) = (STRANGER, PEER);
    for frame in [other.frame(SECRET), asked.answer(PORTS[0], 1, 5).frame(SECRET)] {
        let frame = frame.to_vec();
        assert_eq!(programs.test_reflect(&frame).unwrap(), (PASS, frame.clone()));
        let mut theirs = frame.clone();
        theirs[26..30].copy_from_slice(&STRANGER.octets());
        assert_eq!(programs.test_egress(&theirs).unwrap(), (PASS, theirs), "nor is it stamped");
    }
    assert!(programs.answer().is_none());
    programs.set_locals(&[STRANGER]).unwrap();
    assert_eq!(programs.test_reflect(&here).unwrap().0, PASS, "the address has moved");
    programs.set_locals(&[HERE]).unwrap();
    assert_eq!(programs.test_reflect(&here).unwrap().0, REDIRECT);
}

#[test]
fn an_answer_tells_how_many_probes_of_its_path_have_come() {
    let Some(mut programs) = load(&PathSettings { answers: 1, answers_burst: 2, ..SETTINGS }) else { return };
    let answered = |programs: &mut TcPath, probe: Packet| {
        let (verdict, frame) = asked(programs, &probe);
        (verdict == REDIRECT).then(|| Packet::read(&frame, PathTunnel::VXLAN, SECRET).unwrap().arrived)
    };
    assert_eq!(answered(&mut programs, probe(1)), Some(1));
    assert_eq!(answered(&mut programs, Packet { path: 4, ..probe(2) }), Some(1));
    assert_eq!(answered(&mut programs, Packet { path: wire::NO_PATH, ..probe(3) }), Some(0));
    // Probes beyond the rate are counted, too, but duplicates are not.
    assert_eq!((4..=10).filter_map(|number| answered(&mut programs, probe(number))).count(), 0);
    programs.set(&PathSettings { answers: 1, answers_burst: 4, ..SETTINGS }).unwrap();
    assert_eq!(answered(&mut programs, probe(10)), None);
    assert_eq!(answered(&mut programs, probe(11)), Some(9));
    assert_eq!(answered(&mut programs, Packet { session: 8, ..probe(1) }), Some(1), "the peer has restarted");
}

#[test]
fn successive_turns_are_answered_by_different_paths() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let mut ports: Vec<u16> = (1..=4).map(|turn| sport(&asked(&mut programs, &probe(turn)).1)).collect();
    ports.sort_unstable();
    assert_eq!(ports, PORTS);
}

#[test]
fn hostile_probes_are_counted_and_go_nowhere() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let good = probe(1).frame(SECRET).to_vec();
    let mut stranger = probe(1);
    stranger.outer.source = STRANGER;
    let stranger = stranger.frame(SECRET).to_vec();
    let forged = probe(1).frame(Secret([1, 2])).to_vec();
    let mut replies = 0;
    let mut shot = |frame: &[u8]| replies += i32::from(programs.test_reflect(frame).unwrap().0 != SHOT);
    shot(&stranger);
    shot(&forged);
    // The frame's length field is wrong, or the frame is truncated or too long.
    shot(&[&good[..], &[0; 900]].concat());
    for length in 50..good.len() {
        shot(&good[..length]);
    }
    // Any changed bit that the cookie covers.
    for at in (50..68).chain(82..98) {
        let mut frame = good.clone();
        frame[at] ^= 0x40;
        shot(&frame);
    }
    assert_eq!(replies, 0);
    let counters = programs.counters();
    assert_eq!((counters.answered, counters.stranger), (0, 1));
    assert!(counters.bad_cookie > 20 && counters.malformed > 40, "{counters:?}");
    assert_eq!(asked(&mut programs, &probe(1)).0, REDIRECT, "the true one is still new");
}

#[test]
fn replays_and_older_sessions_are_refused_and_overtaking_is_not() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    for number in [5, 3, 4, 1, 300, 100] {
        assert_eq!(asked(&mut programs, &probe(number)).0, REDIRECT, "{number}");
    }
    for number in [5, 3, 4, 1, 300, 100, 44] {
        assert_eq!(asked(&mut programs, &probe(number)).0, SHOT, "{number}");
    }
    assert_eq!(asked(&mut programs, &Packet { session: 8, ..probe(1) }).0, REDIRECT);
    assert_eq!(asked(&mut programs, &Packet { session: 7, ..probe(900) }).0, SHOT);
    assert_eq!(programs.counters().repeated, 8);
}

#[test]
fn a_flood_of_a_peer_is_limited() {
    let Some(mut programs) = load(&PathSettings { answers: 10, answers_burst: 9, ..SETTINGS }) else {
        return;
    };
    let answered = (1..=1000).filter(|&number| asked(&mut programs, &probe(number)).0 == REDIRECT).count();
    assert!((10..20).contains(&answered), "{answered}");
    assert_eq!(programs.counters().limited, 1000 - answered as u64);
}

#[test]
fn each_form_answers_the_other() {
    let Some(mut programs) = load(&SETTINGS) else { return };
    let (_, answer) = asked(&mut programs, &probe(9));
    let answer = Packet::read(&answer, PathTunnel::VXLAN, SECRET).unwrap();
    assert_eq!((answer.kind, answer.number, answer.path, answer.arrived), (Kind::Answer, 9, 3, 1));
    assert_eq!((answer.outer.source, answer.outer.destination, answer.hops), (HERE, PEER, 61));

    let mut ours = probe(10);
    (ours.outer.source, ours.outer.destination) = (HERE, PEER);
    programs.test_reflect(&ours.answer(PORTS[0], 5, 9).frame(SECRET)).unwrap();
    let collected = programs.answer().unwrap();
    assert_eq!((collected.peer, collected.number, collected.port), (1, 10, 50_000));
    assert_eq!((collected.arrived, collected.reflected_ns, collected.ttl), (5, 9, 61));
}

#[test]
fn a_probe_that_a_switch_sends_back_is_collected_once_and_a_forged_one_is_not() {
    let Some(mut programs) = load(&PathSettings { echo_port: 4788, ..SETTINGS }) else { return };
    let mut ours = probe(10);
    ours.outer = Outer {
        source: HERE,
        destination: PEER,
        tunnel: PathTunnel::vxlan(4788),
        marked: true,
        ..ours.outer
    };
    assert_eq!(programs.test_reflect(&ours.frame(SECRET)).unwrap().0, SHOT);
    let back = programs.answer().unwrap();
    assert_eq!((back.peer, back.number, back.port, back.ttl), (1, 10, 50_000, 61));
    // The mark may be of either way, and so is the delay.
    assert!(back.arrived == 1 && back.marked && back.received_ns - back.reflected_ns < 1_000_000_000);

    // Padded ones come back padded.
    let large = Packet { number: 11, ..ours }.padded(SECRET, 1400);
    assert_eq!(programs.test_reflect(&large).unwrap().0, SHOT);
    assert_eq!(programs.answer().map(|back| (back.number, back.arrived)), Some((11, 2)));

    // Again, with another key, an answer, and one that is not for us.
    programs.test_reflect(&large).unwrap();
    programs.test_reflect(&Packet { number: 12, ..ours }.frame(Secret([1, 2]))).unwrap();
    programs.test_reflect(&Packet { number: 12, kind: Kind::Answer, ..ours }.frame(SECRET)).unwrap();
    let mut other = Packet { number: 12, ..ours };
    other.outer.source = STRANGER;
    assert_eq!(programs.test_reflect(&other.frame(SECRET)).unwrap().0, PASS);
    assert_eq!(programs.answer(), None);
    let counters = programs.counters();
    assert_eq!((counters.collected, counters.repeated, counters.bad_cookie, counters.answered), (2, 1, 2, 0));

    // Without the setting, such a frame is of no concern.
    programs.set(&SETTINGS).unwrap();
    assert_eq!(programs.test_reflect(&Packet { number: 13, ..ours }.frame(SECRET)).unwrap().0, PASS);
}
