//! Tunnel headers: for generated packets with every type of header, the programs read the same as crate
//! packet; and probes look like packets of their tunnels.

use super::*;
use std::net::IpAddr;
use weir_packet::PROTOCOL_UDP;
use weir_packet::random::Random;
use weir_packet::tunnel::{Inside, Unread};
use weir_path::bpf::{PathCounters, PathOut, PathPeer};
use weir_path::tunnel::TunnelType;
use weir_path::wire::{Kind, Outer, Packet, ProbeId};

const HERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1)), IpAddr::V6(Ipv6Addr::new(1, 0, 0, 0, 0, 0, 0, 1))];
const PEER: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 1)), IpAddr::V6(Ipv6Addr::new(1, 0, 0, 0, 0, 0, 0, 2))];
/// The number of generated packets for each type of tunnel.
const CASES: u64 = 4000;

fn tunnel(of: TunnelType) -> PathTunnel {
    PathTunnel { of, port: of.standard_port() }
}

/// Loads the programs for a type of tunnel, with a peer over each version of IP; `None` without root.
fn load(of: TunnelType) -> Option<TcPath> {
    let mut programs = weir_bed::is_root().then(|| TcPath::load_scripted(1, 64).unwrap())?;
    programs.set(&PathSettings { tunnel: tunnel(of), ..SETTINGS }).unwrap();
    programs.set_locals(&[HERE, PEER].concat()).unwrap();
    for peer in PEER {
        let paths = PORTS.map(|port| PathOut { port, weight: 1024, ..PathOut::default() });
        programs.set_peer(peer, &PathPeer { index: 0, paths: paths.to_vec() }).unwrap();
    }
    programs.set_script(1, Some(1)).unwrap();
    Some(programs)
}

/// A frame: the outer headers, which claim this length for the payload, and the payload.
fn outer(version: usize, port: u16, payload: &[u8], claimed: u16) -> Vec<u8> {
    let length = (8 + payload.len()) as u16;
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    if version == 0 {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + length).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    } else {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(length.to_be_bytes());
        frame.extend([17, 64]);
    }
    for address in [HERE[version], PEER[version]] {
        match address {
            IpAddr::V4(address) => frame.extend(address.octets()),
            IpAddr::V6(address) => frame.extend(address.octets()),
        }
    }
    frame.extend(KERNEL_PORT.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend((8 + claimed).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn random_bytes(random: &mut Random, length: u64) -> impl Iterator<Item = u8> {
    (0..length).map(|_| random.below(256) as u8)
}

/// One of `likely`, or any byte.
fn mostly(random: &mut Random, likely: &[u8]) -> u8 {
    match random.below(8) {
        0 => random.below(256) as u8,
        _ => likely[random.below(likely.len() as u64) as usize],
    }
}

/// An inner packet of this version of IP.
fn ip(random: &mut Random, version: u8) -> Vec<u8> {
    let protocol = mostly(random, &[6, 17, 1]);
    let mut packet = if version == 4 {
        let fragment = [0, 0, 0, 0x20, 1][random.below(5) as usize];
        let words = mostly(random, &[5, 5, 6, 15]) & 15;
        let mut packet = vec![0x40 | words, 0, 0, 60, 0, 0, fragment, 0, 64, protocol, 0, 0];
        packet.extend(random_bytes(random, 8 + 4 * u64::from(words.saturating_sub(5))));
        packet
    } else {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, protocol, 64];
        packet.extend(random_bytes(random, 32));
        packet
    };
    packet.extend(random_bytes(random, 20));
    packet
}

/// The bytes after the UDP header: usually a valid header and an inner packet, whose end may be missing.
fn payload(random: &mut Random, of: TunnelType) -> Vec<u8> {
    let version = [4, 6][random.below(2) as usize];
    let ethertype = |version| if version == 4 { [8, 0] } else { [0x86, 0xdd] };
    let mut bytes = match of {
        TunnelType::Vxlan => vec![mostly(random, &[8, 8, 0, 0x0c]), 0, 0, 0],
        TunnelType::Geneve => {
            let first = mostly(random, &[0, 0, 1, 3, 63]);
            let second = mostly(random, &[0, 0, 0, 0x40, 0x80]);
            let inside = [[0x65, 0x58], ethertype(version), [8, 6]][random.below(3) as usize];
            vec![first, second, inside[0], inside[1]]
        }
        TunnelType::Gue => match random.below(3) {
            0 => Vec::new(),
            _ => {
                let first = mostly(random, &[0, 0, 1, 2, 31, 0x20]);
                vec![first, mostly(random, &[if version == 4 { 4 } else { 41 }, 47, 4, 41]), 0, 0]
            }
        },
    };
    let words = match (of, bytes.first()) {
        (TunnelType::Vxlan, _) | (_, None) => 0,
        (TunnelType::Geneve, Some(first)) => first & 63,
        (TunnelType::Gue, Some(first)) => first & 31,
    };
    if of != TunnelType::Gue {
        // This is never the VNI of probes.
        bytes.extend([1 + random.below(100) as u8, random.below(256) as u8, random.below(256) as u8, 0]);
    }
    bytes.extend(random_bytes(random, u64::from(words) * 4));
    if of == TunnelType::Vxlan || bytes.get(2..4) == Some(&[0x65, 0x58]) {
        bytes.extend([2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1]);
        bytes.extend([ethertype(version), [0x81, 0]][usize::from(random.below(8) == 0)]);
    }
    bytes.extend(ip(random, version));
    if random.below(3) == 0 {
        bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
    }
    bytes
}

/// What identifies an inner flow: VNI, protocol, addresses and ports.
type InnerFlow = (u32, u8, [IpAddr; 2], [u16; 2]);

/// Reads an inner packet as the programs should.
fn inner_flow(vni: u32, inside: Inside, inner: &[u8]) -> Option<InnerFlow> {
    let (inside, inner) = match inside {
        Inside::Ethernet => {
            let ethertype = u16::from_be_bytes(*inner.get(12..)?.first_chunk()?);
            (Inside::of_ether_type(ethertype)?, &inner[14..])
        }
        Inside::Ipv4 | Inside::Ipv6 => (inside, inner),
    };
    let (protocol, addresses, behind, is_fragment) = match inside {
        Inside::Ethernet => return None,
        Inside::Ipv4 => {
            let header: &[u8; 20] = inner.first_chunk()?;
            let address = |at: usize| IpAddr::from(*header[at..].first_chunk::<4>().expect("four bytes"));
            let is_fragment = header[6] & 0x3f != 0 || header[7] != 0;
            (header[9], [address(12), address(16)], usize::from(header[0] & 15) * 4, is_fragment)
        }
        Inside::Ipv6 => {
            let header: &[u8; 40] = inner.first_chunk()?;
            let address = |at: usize| IpAddr::from(*header[at..].first_chunk::<16>().expect("16 bytes"));
            (header[6], [address(8), address(24)], 40, false)
        }
    };
    let ports = inner.get(behind..).and_then(|rest| rest.first_chunk::<4>());
    let ports = ports.filter(|_| !is_fragment && [6, 17].contains(&protocol)).unwrap_or(&[0; 4]);
    let [a, b, c, d] = *ports;
    Some((vni, protocol, addresses, [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])]))
}

/// What should become of a frame with this payload.
#[derive(Debug, PartialEq)]
enum Fate {
    Malformed,
    Unknown,
    Scattered,
    Flow(InnerFlow),
}

fn fate(of: TunnelType, payload: &[u8], claimed: usize) -> Fate {
    // No inner packet fits into fewer bytes than the longest fixed header has.
    let bounded = &payload[..payload.len().min(claimed)];
    if bounded.len() < 8 {
        return Fate::Malformed;
    }
    match of.kind().read(bounded, PROTOCOL_UDP) {
        Err(Unread::Malformed) => Fate::Malformed,
        Err(Unread::Unknown) => Fate::Unknown,
        Ok(header) => {
            let vni = header.id.map_or(0, |id| id.value);
            let flow = header.inside.and_then(|inside| inner_flow(vni, inside, &payload[header.length..]));
            flow.map_or(Fate::Scattered, Fate::Flow)
        }
    }
}

#[test]
fn headers_are_read_as_in_user_space_and_those_that_are_not_understood_pass() {
    for (_, of) in TunnelType::WORDS {
        let Some(mut programs) = load(of) else { return };
        let (mut random, mut seen) = (Random::new(of as u64 + 1), [0; 4]);
        for case in 1..=CASES {
            let payload = payload(&mut random, of);
            let claimed = match random.below(10) {
                0 => random.below(payload.len() as u64 + 20),
                _ => payload.len() as u64,
            } as u16;
            let version = random.below(2) as usize;
            let frame = outer(version, of.standard_port(), &payload, claimed);
            let before = programs.counters();
            programs.set_script(case, None).unwrap();
            let (verdict, sent) = programs.test_egress(&frame).unwrap();
            let expected = fate(of, &payload, claimed.into());
            let context = || format!("{of}, case {case}: {expected:?} {payload:02x?} claims {claimed}");
            let steered = PathCounters { steered: before.steered + 1, ..before };
            let (index, counters) = match &expected {
                Fate::Malformed => {
                    (0, PathCounters { header_malformed: before.header_malformed + 1, ..before })
                }
                Fate::Unknown => (1, PathCounters { header_unknown: before.header_unknown + 1, ..before }),
                Fate::Scattered => (2, PathCounters { scattered: before.scattered + 1, ..steered }),
                Fate::Flow(_) => (3, steered),
            };
            seen[index] += 1;
            assert_eq!((verdict, programs.counters()), (PASS, counters), "{}", context());
            let udp = [34, 54][version];
            let mut restored = sent.clone();
            restored[udp..udp + 2].copy_from_slice(&KERNEL_PORT.to_be_bytes());
            assert_eq!(restored, frame, "nothing but the port is changed: {}", context());
            let port = u16::from_be_bytes([sent[udp], sent[udp + 1]]);
            if index < 2 {
                assert_eq!(port, KERNEL_PORT, "{}", context());
                continue;
            }
            assert!(PORTS.contains(&port), "{}", context());
            let flows = programs.flows().unwrap().page(0, 1024).unwrap().0;
            let found = flows
                .into_iter()
                .find(|(_, flow)| flow.last_ns == case)
                .map(|(key, _)| (key.vni(), key.protocol(), key.addresses(), key.ports()));
            let wanted = if let Fate::Flow(flow) = expected { Some(flow) } else { None };
            assert_eq!(found, wanted, "case {case} of {of}: {payload:02x?}");
        }
        let least = if of == TunnelType::Vxlan { [200, 0, 100, 1000] } else { [100, 30, 100, 1000] };
        assert!(seen.iter().zip(least).all(|(seen, least)| *seen >= least), "{of}: {seen:?}");
    }
}

#[test]
fn probes_look_like_the_packets_of_their_tunnel_and_are_answered() {
    for (_, of) in TunnelType::WORDS {
        let Some(mut programs) = load(of) else { return };
        let ([IpAddr::V4(here), _], [IpAddr::V4(peer), _]) = (HERE, PEER) else { unreachable!() };
        let ([_, IpAddr::V6(here6)], [_, IpAddr::V6(peer6)]) = (HERE, PEER) else { unreachable!() };
        let id = |number| ProbeId { session: 7, number };
        let four = Packet::request(Outer::between(peer, here, 50_000, tunnel(of)), id(1), 1, 0);
        let six = Packet::request(Outer::between(peer6, here6, 50_000, tunnel(of)), id(2), 1, 0).with_id();
        for (frame, header) in [(four.frame(SECRET).to_vec(), 42), (six.frame6(SECRET).to_vec(), 62)] {
            let read = of.kind().read(&frame[header..], PROTOCOL_UDP).expect("a valid header");
            assert_eq!(read.length, 8, "{of}");
            let (verdict, stamped) = programs.test_egress(&frame).unwrap();
            assert_eq!((verdict, stamped.len()), (PASS, frame.len()));
            assert_ne!(stamped, frame, "{of}: it has a time");

            // The same programs also act as the peer that sent the probe.
            for own in HERE {
                programs.set_peer(own, &PathPeer { index: 0, paths: Vec::new() }).unwrap();
            }
            // A header with options is not that of a probe, nor is one with another VNI: both pass.
            for (at, bit) in [(header, 1), (header + 6, 1)] {
                let mut other = stamped.clone();
                other[at] ^= bit;
                if of != TunnelType::Vxlan || at > header {
                    assert_eq!(programs.test_reflect(&other).unwrap(), (PASS, other.clone()), "{of} {at}");
                }
            }
            let (verdict, back) = programs.test_reflect(&stamped).unwrap();
            assert_eq!((verdict, back.len()), (REDIRECT, frame.len()), "{of}");
            assert_eq!(back[header..header + 8], frame[header..header + 8]);
            let kind = if header == 42 {
                Packet::read(&back, tunnel(of), SECRET).map(|packet| packet.kind)
            } else {
                Packet::read6(&back, tunnel(of), SECRET).map(|packet| packet.kind)
            };
            assert_eq!(kind, Ok(Kind::Answer), "{of}");
            assert_eq!(programs.test_reflect(&back).unwrap().0, SHOT, "{of}: it reaches user space");
            assert!(programs.answer().is_some(), "{of}");
        }
        let PathCounters { answered, collected, probes_sent, steered, .. } = programs.counters();
        assert_eq!((answered, collected, probes_sent, steered), (2, 2, 2, 0), "{of}");
    }
}
