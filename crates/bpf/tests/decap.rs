//! The decapsulation program, in the kernel (`BPF_PROG_TEST_RUN`). Needs root.

use std::net::{Ipv4Addr, Ipv6Addr};
use weir_bpf::{DECAP_COUNTS, DecapSettings, TcDecap, Tunnel};
use weir_packet::craft::Recipe;

const PASS: i32 = -1;
const SHOT: i32 = 2;
const LB: Ipv4Addr = Ipv4Addr::new(10, 1, 2, 3);
const HERE: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const LB6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 3);
const HERE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 1);
/// The kernel runs programs as if frames arrived on the loopback interface, whose address is 0.
const MACS: [u8; 12] = [0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1];
const GUE: u16 = 6080;
const VXLAN: u16 = 4789;
const VNI: u32 = 0x00a1_b2c3;
const IPIP: u8 = 4;
const IPV6: u8 = 41;
const GRE: u8 = 47;
const UDP: u8 = 17;

fn settings() -> DecapSettings {
    DecapSettings {
        tunnels: vec![Tunnel::Ipip, Tunnel::Gue, Tunnel::Gre, Tunnel::Vxlan(VNI)],
        gue_port: GUE,
        vxlan_port: VXLAN,
        senders: vec![(Ipv4Addr::new(10, 1, 0, 0).into(), 16), (LB6.into(), 64)],
        locals: vec![HERE.into(), HERE6.into()],
        second_chance: false,
    }
}

/// Loads the program; `None` without root.
fn load(settings: &DecapSettings) -> Option<TcDecap> {
    weir_bed::is_root().then(|| TcDecap::load(settings).unwrap())
}

/// An IP packet with an ECN field.
fn packet(version: u8, ecn: u8) -> Vec<u8> {
    let recipe = match version {
        4 => "src=192.0.2.7 dst=203.0.113.80 proto=tcp sport=4000 dport=80",
        _ => "src=2001:db8::7 dst=2001:db8:5::80 proto=tcp sport=4000 dport=80",
    };
    let mut packet = recipe.parse::<Recipe>().unwrap().build()[14..].to_vec();
    match version {
        4 => {
            packet[1] = packet[1] & !3 | ecn;
            seal(&mut packet);
        }
        _ => packet[1] = packet[1] & !0x30 | ecn << 4,
    }
    packet
}

fn sum(words: &[u8]) -> u16 {
    let sum: u32 = words.chunks(2).map(|two| u32::from(u16::from_be_bytes([two[0], two[1]]))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// Writes the checksum of an IPv4 header.
fn seal(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let check = !sum(&packet[..20]);
    packet[10..12].copy_from_slice(&check.to_be_bytes());
}

fn ethernet(version: u8, packet: &[u8]) -> Vec<u8> {
    let kind = if version == 4 { [8, 0] } else { [0x86, 0xdd] };
    [&MACS[..], &kind, packet].concat()
}

/// A frame with an outer IP header.
fn outer(version: u8, protocol: u8, ecn: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len() as u16;
    let mut packet = Vec::new();
    if version == 4 {
        packet.extend([0x45, ecn]);
        packet.extend((20 + length).to_be_bytes());
        packet.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
        packet.extend(LB.octets());
        packet.extend(HERE.octets());
        seal(&mut packet);
    } else {
        packet.extend([0x60, ecn << 4, 0, 0]);
        packet.extend(length.to_be_bytes());
        packet.extend([protocol, 64]);
        packet.extend(LB6.octets());
        packet.extend(HERE6.octets());
    }
    packet.extend(payload);
    ethernet(version, &packet)
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut datagram = 50_000_u16.to_be_bytes().to_vec();
    datagram.extend(port.to_be_bytes());
    datagram.extend((8 + payload.len() as u16).to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(payload);
    datagram
}

fn protocol(version: u8) -> u8 {
    if version == 4 { IPIP } else { IPV6 }
}

fn ether_type(version: u8) -> [u8; 2] {
    if version == 4 { [8, 0] } else { [0x86, 0xdd] }
}

/// Every form of each tunnel: its name, the outer protocol, and what follows the outer IP header.
fn forms(version: u8, packet: &[u8]) -> Vec<(&'static str, u8, Vec<u8>)> {
    let frame = [&[0x02; 12][..], &ether_type(version), packet].concat();
    let gre = |flags: [u8; 2], more: &[u8]| [&flags, &ether_type(version)[..], more, packet].concat();
    let vxlan = [&[8, 0, 0, 0][..], &(VNI << 8).to_be_bytes(), &frame].concat();
    let private = [&[2, protocol(version), 0, 0][..], &[0xaa; 8], packet].concat();
    vec![
        ("ipip", protocol(version), packet.to_vec()),
        ("gue", UDP, udp(GUE, &[&[0, protocol(version), 0, 0][..], packet].concat())),
        ("gue", UDP, udp(GUE, &private)),
        ("gue", UDP, udp(GUE, packet)),
        ("gre", GRE, gre([0, 0], &[])),
        ("gre", GRE, gre([0x20, 0], &[1, 2, 3, 4])),
        ("gre", GRE, gre([0x30, 0], &[1, 2, 3, 4, 0, 0, 0, 9])),
        ("gre", GRE, [&[0, 0, 0x65, 0x58][..], &frame].concat()),
        ("vxlan", UDP, udp(VXLAN, &vxlan)),
    ]
}

/// Returns the names of counts that have grown since `before`.
fn grown(decap: &TcDecap, before: [u64; DECAP_COUNTS.len()]) -> Vec<&'static str> {
    let now = decap.counts();
    let grown = DECAP_COUNTS.iter().zip(now.iter().zip(before));
    grown.filter(|(_, (now, before))| **now > *before).map(|(name, _)| *name).collect()
}

/// Asserts that a frame is left as it is, counted or not.
#[track_caller]
fn left(decap: &mut TcDecap, frame: &[u8], why: &[&str]) {
    let before = decap.counts();
    assert_eq!(decap.test_run(frame, 0).unwrap(), (PASS, frame.to_vec()));
    assert_eq!(grown(decap, before), why);
}

#[test]
fn every_tunnel_of_every_family_is_taken_off() {
    let Some(mut decap) = load(&settings()) else { return };
    for (around, inside) in [(4, 4), (4, 6), (6, 4), (6, 6)] {
        let packet = packet(inside, 0);
        for (name, protocol, behind) in forms(inside, &packet) {
            let before = decap.counts();
            let (verdict, frame) = decap.test_run(&outer(around, protocol, 0, &behind), 0).unwrap();
            assert_eq!(verdict, PASS);
            assert_eq!(frame, ethernet(inside, &packet), "{name}: {inside} in {around}");
            assert_eq!(grown(&decap, before), [name]);
        }
    }
}

#[test]
fn congestion_goes_where_rfc_6040_says() {
    let Some(mut decap) = load(&settings()) else { return };
    // Rows: the inner field; columns: the outer one, Not-ECT, ECT(0), ECT(1), CE. As in the table of section
    // 4.2.
    let table = [
        (0, [Some(0), Some(0), Some(0), None]),
        (2, [Some(2), Some(2), Some(1), Some(3)]),
        (1, [Some(1), Some(1), Some(1), Some(3)]),
        (3, [Some(3), Some(3), Some(3), Some(3)]),
    ];
    for (around, inside) in [(4, 4), (4, 6), (6, 4), (6, 6)] {
        for (inner, row) in table {
            for (outer_ecn, wanted) in [0, 2, 1, 3].into_iter().zip(row) {
                let frame = outer(around, protocol(inside), outer_ecn, &packet(inside, inner));
                let before = decap.counts();
                let (verdict, out) = decap.test_run(&frame, 0).unwrap();
                match wanted {
                    Some(ecn) => assert_eq!((verdict, out), (PASS, ethernet(inside, &packet(inside, ecn)))),
                    None => {
                        assert_eq!(verdict, SHOT);
                        assert_eq!(grown(&decap, before), ["dropped_congestion"]);
                    }
                }
            }
        }
    }
}

/// The kernel cuts TCP segments later, so headers may be removed before that (`weir`'s test `decap` covers
/// this). Frames that it would cut differently must stay as they are; a frame of `BPF_PROG_TEST_RUN` has no
/// type.
#[test]
fn segments_of_gso_that_are_not_of_tcp_are_left() {
    let Some(mut decap) = load(&settings()) else { return };
    let frame = outer(4, IPIP, 0, &packet(4, 0));
    let before = decap.counts();
    assert_eq!(decap.test_run(&frame, 1400).unwrap(), (PASS, frame));
    assert_eq!(grown(&decap, before), ["left_no_room"]);
}

#[test]
fn what_is_not_for_us_is_left() {
    let Some(mut decap) = load(&settings()) else { return };
    let inner = packet(4, 0);
    let good = outer(4, IPIP, 0, &inner);
    let mut other = good.clone();
    other[33] ^= 1;
    seal(&mut other[14..]);
    left(&mut decap, &other, &[]);
    let mut stranger = good.clone();
    stranger[27] ^= 1;
    seal(&mut stranger[14..]);
    left(&mut decap, &stranger, &["left_stranger"]);
    left(&mut decap, &ethernet(4, &inner), &[]);
    left(&mut decap, &outer(4, UDP, 0, &udp(53, &inner)), &[]);
    let arp = [&MACS[..], &[8, 6], &[0; 28]].concat();
    left(&mut decap, &arp, &[]);
    let mut broadcast = good;
    broadcast[..6].fill(0xff);
    left(&mut decap, &broadcast, &[]);
}

#[test]
fn what_is_not_understood_is_left() {
    let Some(mut decap) = load(&settings()) else { return };
    let inner = packet(4, 0);
    let good = outer(4, IPIP, 0, &inner);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        seal(&mut frame[14..]);
        frame
    };
    left(&mut decap, &changed(&|frame| frame[20] = 0x20), &["left_fragment"]);
    left(&mut decap, &changed(&|frame| frame[21] = 1), &["left_fragment"]);
    left(&mut decap, &changed(&|frame| frame[14] = 0x46), &["left_options"]);
    left(&mut decap, &changed(&|frame| frame[34] = 0x65), &["left_malformed"]);
    let mut broken = good.clone();
    broken[24] ^= 1;
    left(&mut decap, &broken, &["left_malformed"]);
    for (protocol, behind, why) in [
        (GRE, [&[0x80, 0, 8, 0, 0, 0, 0, 0][..], &inner].concat(), "left_unknown"),
        (GRE, [&[0, 1, 8, 0][..], &inner].concat(), "left_unknown"),
        (GRE, [&[0, 0, 8, 6][..], &inner].concat(), "left_unknown"),
        (UDP, udp(GUE, &[&[0x20, 4, 0, 0][..], &inner].concat()), "left_unknown"),
        (UDP, udp(GUE, &[&[0, 4, 0, 1][..], &inner].concat()), "left_unknown"),
        (UDP, udp(GUE, &[&[0, 6, 0, 0][..], &inner].concat()), "left_unknown"),
        (UDP, udp(GUE, &[&[0x80, 4, 0, 0][..], &inner].concat()), "left_unknown"),
        (UDP, udp(GUE, &[0x1f, 4, 0, 0]), "left_malformed"),
        (UDP, udp(VXLAN, &[&[8, 0, 0, 0, 0, 0, 1, 0][..], &inner].concat()), "left_unknown"),
        (UDP, udp(VXLAN, &[0x88, 0, 0, 0]), "left_malformed"),
        (IPIP, vec![0x45], "left_malformed"),
        (IPIP, Vec::new(), "left_malformed"),
    ] {
        left(&mut decap, &outer(4, protocol, 0, &behind), &[why]);
        left(&mut decap, &outer(6, protocol, 0, &behind), &[why]);
    }
    // An extension header: hop-by-hop options.
    left(&mut decap, &outer(6, 0, 0, &[&[IPIP, 0, 1, 4, 0, 0, 0, 0][..], &inner].concat()), &[]);
}

#[test]
fn only_tunnels_that_are_wanted_are_taken_off() {
    for (tunnel, wanted) in
        [(Tunnel::Ipip, "ipip"), (Tunnel::Gue, "gue"), (Tunnel::Gre, "gre"), (Tunnel::Vxlan(VNI), "vxlan")]
    {
        let Some(mut decap) = load(&DecapSettings { tunnels: vec![tunnel], ..settings() }) else { return };
        for (name, protocol, behind) in forms(4, &packet(4, 0)) {
            let frame = outer(4, protocol, 0, &behind);
            let (verdict, out) = decap.test_run(&frame, 0).unwrap();
            assert_eq!((verdict, out != frame), (PASS, name == wanted), "{name} with {tunnel:?}");
        }
    }
}

fn count(decap: &TcDecap, what: &str) -> u64 {
    decap.counts()[DECAP_COUNTS.iter().position(|name| *name == what).unwrap()]
}

const REDIRECT: i32 = 7;
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// With other back ends to which this one passes packets on.
fn chances() -> DecapSettings {
    let mut settings = settings();
    settings.senders.push((Ipv4Addr::new(10, 9, 0, 0).into(), 24));
    DecapSettings { second_chance: true, ..settings }
}

/// GUE as from the GLB director: the inner protocol, and hops of which this is the next.
fn with_hops(inner: u8, hops: &[Ipv4Addr], next: u8) -> Vec<u8> {
    let mut header = vec![1 + hops.len() as u8, inner, 0, 0, 0, 0, next, hops.len() as u8];
    hops.iter().for_each(|hop| header.extend(hop.octets()));
    header
}

/// The UDP checksum over IPv4, as a receiver verifies it.
fn udp_sums_up(frame: &[u8]) -> bool {
    let length = (frame.len() - 34) as u16;
    let mut all = [&frame[26..34], &[0, UDP], &length.to_be_bytes(), &frame[34..]].concat();
    all.resize(all.len().next_multiple_of(2), 0);
    sum(&all) == 0xffff
}

/// A client's TCP segment to the service.
fn segment(version: u8, flags: &str) -> Vec<u8> {
    let ends = match version {
        4 => "src=192.0.2.7 dst=203.0.113.80",
        _ => "src=2001:db8::7 dst=2001:db8:5::80",
    };
    let recipe = format!("{ends} proto=tcp sport=4000 dport=80 {flags} payload=c0ffee");
    recipe.parse::<Recipe>().unwrap().build()[14..].to_vec()
}

/// A router's reply to a segment from the service: it is too long.
fn too_big(version: u8) -> Vec<u8> {
    let recipe = match version {
        4 => "src=203.0.113.80 dst=192.0.2.7 proto=tcp sport=80 dport=4000 flags=A",
        _ => "src=2001:db8:5::80 dst=2001:db8::7 proto=tcp sport=80 dport=4000 flags=A",
    };
    let about = recipe.parse::<Recipe>().unwrap().build()[14..].to_vec();
    let (length, kind) = if version == 4 { (20, [3, 4]) } else { (40, [2, 0]) };
    let mut packet = [&segment(version, "flags=A")[..length], &kind, &[0; 6], &about].concat();
    if version == 4 {
        packet[9] = 1;
        let length = packet.len() as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        seal(&mut packet);
    } else {
        packet[6] = 58;
        let length = packet.len() as u16 - 40;
        packet[4..6].copy_from_slice(&length.to_be_bytes());
    }
    packet
}

/// A frame from the director around a packet.
fn directed(inner: &[u8], hops: &[Ipv4Addr], next: u8) -> Vec<u8> {
    let header = with_hops(protocol(inner[0] >> 4), hops, next);
    outer(4, UDP, 0, &udp(GUE, &[&header, inner].concat()))
}

#[test]
fn segments_of_connections_that_are_not_here_are_passed_on() {
    let Some(mut decap) = load(&chances()) else { return };
    let other = Ipv4Addr::new(10, 9, 0, 3);
    let packets = |version| [segment(version, "flags=A"), segment(version, "flags=SA"), too_big(version)];
    let ways = [(vec![SECOND], 0), (vec![other, SECOND], 1), (vec![SECOND, other], 0)];
    for packet in [4, 6].into_iter().flat_map(packets) {
        for ((hops, next), checksum) in ways.iter().flat_map(|way| [(way, false), (way, true)]) {
            let mut before = directed(&packet, hops, *next);
            if checksum {
                let fits = |check: &u16| {
                    before[40..42].copy_from_slice(&check.to_be_bytes());
                    udp_sums_up(&before)
                };
                assert!((0..=u16::MAX).find(fits).is_some());
            }
            let (verdict, after) = decap.test_run(&before, 0).unwrap();
            assert_eq!(verdict, REDIRECT);
            let mut wanted = before.clone();
            wanted[26..30].copy_from_slice(&HERE.octets());
            wanted[30..34].copy_from_slice(&SECOND.octets());
            wanted[48] += 1;
            seal(&mut wanted[14..34]);
            wanted[40..42].copy_from_slice(&after[40..42]);
            assert_eq!(after, wanted);
            assert_eq!(after[40..42] != [0, 0], checksum);
            assert!(!checksum || udp_sums_up(&after));
        }
    }
    assert_eq!(count(&decap, "passed_on"), 36);
}

/// Packets that begin a connection, that are not TCP, that have no hop left, or that have no sensible hop.
#[test]
fn all_else_stays_although_a_header_has_hops() {
    let Some(mut decap) = load(&chances()) else { return };
    for version in [4, 6] {
        let ack = segment(version, "flags=A");
        let query = ack.iter().copied().enumerate();
        let protocol_at = if version == 4 { 9 } else { 6 };
        let mut query: Vec<u8> = query.map(|(at, byte)| if at == protocol_at { UDP } else { byte }).collect();
        if version == 4 {
            seal(&mut query);
        }
        let changed = |at: usize, value: u8| {
            let mut frame = directed(&ack, &[SECOND], 0);
            frame[at] = value;
            frame
        };
        let bare = [&[0, protocol(version), 0, 0][..], &ack].concat();
        for before in [
            directed(&segment(version, "flags=S"), &[SECOND], 0),
            directed(&query, &[SECOND], 0),
            directed(&ack, &[SECOND], 1),
            directed(&ack, &[], 0),
            directed(&ack, &[HERE], 0),
            directed(&ack, &[Ipv4Addr::UNSPECIFIED], 0),
            directed(&ack, &[Ipv4Addr::new(10, 8, 0, 1)], 0),
            outer(4, UDP, 0, &udp(GUE, &bare)),
            // Another type of private data, and more hops than fit.
            changed(47, 1),
            changed(49, 200),
        ] {
            let (verdict, after) = decap.test_run(&before, 0).unwrap();
            assert_eq!((verdict, &after[..12]), (PASS, &MACS[..]));
            assert!(after.len() < before.len(), "it is removed");
        }
    }
    assert_eq!((count(&decap, "gue"), count(&decap, "passed_on")), (20, 0));
    // Unless this is enabled, everything is decapsulated.
    let Some(mut decap) = load(&settings()) else { return };
    let frame = directed(&segment(4, "flags=A"), &[SECOND], 0);
    assert_eq!(decap.test_run(&frame, 0).unwrap().0, PASS);
    assert_eq!((count(&decap, "gue"), count(&decap, "passed_on")), (1, 0));
}

#[test]
fn every_cut_and_every_byte_of_hops_is_survived() {
    let Some(mut decap) = load(&chances()) else { return };
    for inner in [packet(4, 0), packet(6, 0)] {
        let gue = [with_hops(protocol(inner[0] >> 4), &[SECOND, HERE], 0), inner].concat();
        let frame = outer(4, UDP, 0, &udp(GUE, &gue));
        for length in 34..frame.len() {
            decap.test_run(&frame[..length], 0).unwrap();
        }
        for (at, change) in (34..frame.len()).flat_map(|at| [1, 0x55, 0xff].map(|change| (at, change))) {
            let mut changed = frame.clone();
            changed[at] ^= change;
            let (verdict, _) = decap.test_run(&changed, 0).unwrap();
            assert!([PASS, SHOT, REDIRECT].contains(&verdict), "{verdict}");
        }
    }
}

#[test]
fn every_cut_and_every_byte_is_survived() {
    let Some(mut decap) = load(&settings()) else { return };
    for (_, protocol, behind) in forms(6, &packet(6, 0)) {
        let frame = outer(4, protocol, 0, &behind);
        for length in 34..frame.len() {
            decap.test_run(&frame[..length], 0).unwrap();
        }
        for at in 14..frame.len().min(90) {
            let mut changed = frame.clone();
            changed[at] = changed[at].wrapping_add(0x55);
            if at < 34 {
                seal(&mut changed[14..]);
            }
            let (verdict, out) = decap.test_run(&changed, 0).unwrap();
            assert!(verdict == PASS || verdict == SHOT, "{verdict}");
            assert!(out.len() <= changed.len());
        }
    }
}
