//! Pods with IPv6 and nodes with IPv6, in all combinations that involve IPv6.

use crate::flows::{END, GIVE};
use crate::rig::*;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use weir_overlay::bpf::{OverlayEnd, OverlayIp, OverlayKey, OverlaySettings, OverlaySweep, OverlayTuple};

const POD_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, 5);
const OTHER_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x244, 2, 0, 0, 0, 0, 7);
const SERVICE_6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 9);
const ICMP: u8 = 58;

/// IP versions of pods and nodes.
const ALL: [[OverlayIp; 2]; 3] =
    [[OverlayIp::V4, OverlayIp::V6], [OverlayIp::V6, OverlayIp::V4], [OverlayIp::V6, OverlayIp::V6]];

/// An IPv6 header for a payload of `length` bytes.
fn header([from, to]: [Ipv6Addr; 2], length: usize, (next, hops): (u8, u8)) -> Vec<u8> {
    let mut header = vec![0x60, 0, 0, 0];
    header.extend((length as u16).to_be_bytes());
    header.extend([next, hops]);
    header.extend([from, to].map(|address| address.octets()).concat());
    header
}

/// The sum over an IPv6 packet and the pseudo-header: 0xffff if its checksum is correct.
fn sum(packet: &[u8]) -> u16 {
    folded(&packet[8..], (packet.len() - 40) as u32 + u32::from(packet[6]))
}

/// For UDP, 0 means that there is none.
fn not_0(check: u16, protocol: u8) -> u16 {
    if check == 0 && protocol == UDP { 0xffff } else { check }
}

/// Writes the checksum of an IPv6 frame with TCP or UDP.
fn complete(frame: &mut [u8]) {
    let at = if frame[20] == TCP { 70 } else { 60 };
    frame[at..at + 2].fill(0);
    let check = not_0(!sum(&frame[14..]), frame[20]);
    frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// An inner IPv6 frame with correct checksums, like [`inner`] for IPv4.
fn inner_6(macs: [u8; 2], addresses: [Ipv6Addr; 2], ports: [u16; 2], ip: (u8, u8)) -> Vec<u8> {
    let like = inner(macs, [POD, OTHER], ports, ip);
    let mut frame = like[..12].to_vec();
    frame.extend([0x86, 0xdd]);
    frame.extend(header(addresses, like.len() - 34, ip));
    frame.extend(&like[34..]);
    complete(&mut frame);
    frame
}

/// Frames of a flow between pods with this IP version: sent, routed, answered by the other pod, delivered.
fn frames(pods: OverlayIp, protocol: u8, port: u16) -> [Vec<u8>; 4] {
    if pods == OverlayIp::V4 {
        let mut all =
            [sent(protocol, port), routed(protocol, port), answer(protocol, port), delivered(protocol, port)];
        all.iter_mut().for_each(|frame| check_4(frame));
        return all;
    }
    let (there, back) = ([POD_6, OTHER_6], [OTHER_6, POD_6]);
    [
        inner_6([BRIDGE, POD_MAC], there, [port, 5001], (protocol, 64)),
        inner_6([FAR, TUNNEL], there, [port, 5001], (protocol, 63)),
        inner_6([TUNNEL, FAR], back, [5001, port], (protocol, 63)),
        inner_6([POD_MAC, BRIDGE], back, [5001, port], (protocol, 62)),
    ]
}

/// Writes the checksum of an IPv4 frame with TCP or UDP.
fn check_4(frame: &mut [u8]) {
    let at = if frame[23] == TCP { 50 } else { 40 };
    frame[at..at + 2].fill(0);
    let length = frame.len() as u32 - 34;
    let sum = folded(&frame[34..], u32::from(folded(&frame[26..34], 0)) + u32::from(frame[23]) + length);
    let check = not_0(!sum, frame[23]);
    frame[at..at + 2].copy_from_slice(&check.to_be_bytes());
}

/// Prepends tunnel headers of this IP version to a frame, without a UDP checksum.
fn through(nodes: OverlayIp, frame: &[u8], is_out: bool) -> Vec<u8> {
    let ecn = if frame[12..14] == [8, 0] { frame[15] & 3 } else { frame[15] >> 4 & 3 };
    if nodes == OverlayIp::V4 {
        let mut out = tunnelled(frame, if is_out { [HERE, NODE] } else { [NODE, HERE] });
        out[15] = ecn;
        seal(&mut out, 14);
        return out;
    }
    let (macs, addresses) =
        if is_out { ([HOP, UP], [HERE_6, NODE_6]) } else { ([UP, HOP], [NODE_6, HERE_6]) };
    let mut out = macs.map(mac).concat();
    out.extend([0x86, 0xdd]);
    out.extend(header(addresses, 16 + frame.len(), (UDP, 64)));
    out[15] |= ecn << 4;
    out.extend(tunnelled(frame, [HERE, NODE]).get(34..50).unwrap());
    out.extend(frame);
    out
}

/// Length of the tunnel headers.
fn tunnel(nodes: OverlayIp) -> usize {
    if nodes == OverlayIp::V4 { 50 } else { 70 }
}

/// Copies the fields that may differ: the IPv4 identification and the port.
fn alike(expected: &mut [u8], out: &[u8], nodes: OverlayIp) {
    let port = tunnel(nodes) - 16;
    expected[port..port + 2].copy_from_slice(&out[port..port + 2]);
    if nodes == OverlayIp::V4 {
        expected[18..20].copy_from_slice(&out[18..20]);
        seal(expected, 14);
    }
}

impl OverlayRig {
    /// Makes the programs learn both directions of a flow, as the kernel and nftables would.
    fn learn_frames(&mut self, [sent, left, came, given]: [&[u8]; 4], bits: u32) {
        for (marks, learns, before, after) in [
            ("overlay_send", "overlay_learn_send", sent, left),
            ("overlay_receive", "overlay_learn_receive", came, given),
        ] {
            let (verdict, _, mark) = self.run(marks, before, 0);
            assert!(verdict == PASS && mark != 0, "{marks}");
            let (verdict, out, mark) = self.run(learns, after, mark | ESTABLISHED | bits);
            assert_eq!((verdict, &out[..], mark), (PASS, after, 0));
        }
    }

    fn learn_6(&mut self, [pods, nodes]: [OverlayIp; 2], protocol: u8, port: u16) -> [Vec<u8>; 4] {
        let [sent, routed, answer, given] = frames(pods, protocol, port);
        let all = [sent, through(nodes, &routed, true), through(nodes, &answer, false), given];
        self.learn_frames(all.each_ref().map(Vec::as_slice), 0);
        all
    }
}

#[test]
fn flows_are_encapsulated_and_decapsulated_in_all_combinations() {
    for versions in ALL {
        let [pods, nodes] = versions;
        let Some(mut rig) = OverlayRig::with(64, nodes) else { return };
        for protocol in [TCP, UDP] {
            let [sent, mut left, came, given] = rig.learn_6(versions, protocol, 7000);
            let (verdict, out, mark) = rig.run("overlay_send", &sent, 0);
            assert_eq!((verdict, mark), (REDIRECT, 0), "{versions:?}");
            alike(&mut left, &out, nodes);
            assert_eq!(out, left, "{versions:?}");
            let (verdict, out, _) = rig.run("overlay_receive", &came, 0);
            assert_eq!((verdict, out), (REDIRECT, given), "{versions:?}");
        }
        let flows = rig.programs.flows().unwrap().read();
        assert_eq!(flows.len(), 2);
        let (addresses, node) = match pods {
            OverlayIp::V4 => ([IpAddr::from(POD), OTHER.into()], IpAddr::from(NODE_6)),
            _ if nodes == OverlayIp::V4 => ([POD_6, OTHER_6].map(IpAddr::from), NODE.into()),
            _ => ([POD_6, OTHER_6].map(IpAddr::from), NODE_6.into()),
        };
        for flow in flows {
            assert_eq!((flow.key.addresses, flow.node, flow.pod), (addresses, node, rig.pod));
            assert_eq!((flow.key.ports, flow.packets), ([7000, 5001], [1, 1]));
            assert_eq!((flow.headers.len(), flow.born_ns > 0), (tunnel(nodes) + 14, true));
            assert_eq!((flow.peer, flow.is_usable), (None, [true; 2]));
        }
        let both = rig.programs.frames();
        assert!(both.iter().all(|one| one.is_balanced() && one.of("fast") == 2 && one.of("seen") == 4));
    }
}

/// Returns a frame with other bytes at an offset.
fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

#[test]
fn what_needs_the_kernel_takes_its_way() {
    for nodes in [OverlayIp::V4, OverlayIp::V6] {
        let versions = [OverlayIp::V6, nodes];
        let Some(mut rig) = OverlayRig::with(64, nodes) else { return };
        let [tcp, ..] = rig.learn_6(versions, TCP, 7000);
        let [udp, _, came, _] = rig.learn_6(versions, UDP, 7000);
        // Hop-by-hop, routing, destination options, authentication; fragments; neighbour discovery.
        let next = |next: u8| with(&udp, 20, &[next]);
        let mut cases: Vec<(&str, Vec<u8>)> = [0, 43, 60, 51].map(|one| ("options", next(one))).into();
        cases.extend([("fragment", next(44)), ("protocol", next(ICMP)), ("protocol", next(59))]);
        cases.extend([
            ("multicast", with(&udp, 38, &[0xff, 2])),
            ("link_local", with(&udp, 22, &[0xfe, 0x80])),
            ("link_local", with(&udp, 38, &[0xfe, 0xbf])),
            ("malformed", with(&udp, 14, &[0x40])),
            ("malformed", with(&udp, 18, &[0, 19])),
            ("malformed", udp[..60].to_vec()),
            ("control", with(&tcp, 67, &[ACK | 1])),
            ("control", with(&tcp, 67, &[2])),
        ]);
        for (why, frame) in &cases {
            assert_eq!(rig.slow("overlay_send", frame), *why, "{nodes:?}");
            // The same inside a tunnel.
            assert_eq!(rig.slow("overlay_receive", &through(nodes, frame, false)), *why, "{nodes:?}");
        }
        for (why, frame) in [
            ("multicast", with(&udp, 0, &[0x33, 0x33, 0, 0, 0, 1])),
            ("last_hop", with(&udp, 21, &[1])),
            ("changed", with(&udp, 15, &[0x40])),
            ("changed", with(&udp, 5, &[9])),
            ("unknown", inner_6([BRIDGE, POD_MAC], [POD_6, OTHER_6], [7001, 5001], (UDP, 64))),
        ] {
            assert_eq!(rig.slow("overlay_send", &frame), why, "{nodes:?}");
        }
        let at = tunnel(nodes);
        let outer = if nodes == OverlayIp::V4 { [26, 30] } else { [22, 38] };
        let mut cases = vec![
            ("other_vni", with(&came, at - 4, &[0, 0, 43])),
            ("other_vni", with(&came, at - 8, &[0x88])),
            ("not_ip", with(&came, at + 12, &[8, 6])),
            ("stranger", with(&came, at + 5, &[9])),
        ];
        let mut others = outer.map(|field| with(&came, field, &[9]));
        if nodes == OverlayIp::V4 {
            others.iter_mut().for_each(|frame| seal(frame, 14));
        } else {
            cases.push(("malformed", with(&came, 18, &[0, 9])));
            cases.push(("not_tunnel", with(&came, 20, &[0])));
        }
        cases.extend(others.map(|frame| ("stranger", frame)));
        for (why, frame) in cases {
            assert_eq!(rig.slow("overlay_receive", &frame), why, "{nodes:?}");
        }
    }
}

#[test]
fn congestion_is_carried_as_rfc_6040_says() {
    for versions in ALL {
        let [pods, nodes] = versions;
        let Some(mut rig) = OverlayRig::with(64, nodes) else { return };
        let [sent, _, came, _] = rig.learn_6(versions, TCP, 7000);
        let mark = |frame: &[u8], at: usize, ip: OverlayIp, ecn: u8| {
            let mut frame = with(frame, at + 1, &[if ip == OverlayIp::V4 { ecn } else { ecn << 4 }]);
            if ip == OverlayIp::V4 {
                seal(&mut frame, at);
            }
            frame
        };
        let ecn = |byte: u8, ip: OverlayIp| if ip == OverlayIp::V4 { byte & 3 } else { byte >> 4 & 3 };
        let inside = tunnel(nodes) + 14;
        for (inner, outer) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
            let (verdict, out, _) = rig.run("overlay_send", &mark(&sent, 14, pods, inner), 0);
            let both = (ecn(out[15], nodes), ecn(out[inside + 1], pods));
            assert_eq!((verdict, both), (REDIRECT, (outer, inner)), "{versions:?}");
        }
        // Outer, inner, and the resulting inner field; `None` is left to the kernel.
        for (outer, inner, expected) in
            [(0, 2, Some(2)), (3, 0, None), (3, 1, Some(3)), (3, 2, Some(3)), (1, 2, None), (2, 3, Some(3))]
        {
            let frame = mark(&mark(&came, 14, nodes, outer), inside, pods, inner);
            let Some(expected) = expected else {
                assert_eq!(rig.slow("overlay_receive", &frame), "congestion", "{versions:?}");
                continue;
            };
            let (verdict, out, _) = rig.run("overlay_receive", &frame, 0);
            assert_eq!((verdict, ecn(out[15], pods)), (REDIRECT, expected), "{versions:?}");
        }
    }
}

#[test]
fn the_outer_checksum_of_ipv6_is_right_unless_the_device_has_none() {
    for pods in [OverlayIp::V4, OverlayIp::V6] {
        let versions = [pods, OverlayIp::V6];
        let Some(mut rig) = OverlayRig::with(64, OverlayIp::V6) else { return };
        let strict = OverlaySettings { zero_checks: [false; 2], ..rig.settings };
        for protocol in [TCP, UDP] {
            let [sent, _, came, given] = rig.learn_6(versions, protocol, 7000);
            assert_eq!(rig.run("overlay_send", &sent, 0).1[60..62], [0, 0]);
            rig.programs.set(&strict).unwrap();
            for port in 0..2000_u16 {
                // The sum changes with the ports, and the checksum of the segment with it.
                let mut frame = sent.clone();
                frame.truncate(frame.len() - 2);
                frame.extend(port.to_be_bytes());
                if pods == OverlayIp::V4 {
                    check_4(&mut frame)
                } else {
                    complete(&mut frame)
                }
                let (verdict, out, _) = rig.run("overlay_send", &frame, 0);
                assert_eq!((verdict, sum(&out[14..])), (REDIRECT, 0xffff), "{pods:?} {protocol} {port}");
                assert_ne!(out[60..62], [0, 0]);
            }
            // Each segment of a frame would need a checksum of its own.
            let segments = (rig.pod, 0, 20);
            rig.programs.test_run("overlay_send", &sent, segments).unwrap();
            assert_eq!(rig.programs.frames()[0].of("checksum"), u64::from(protocol == UDP) + 1);
            // The device would not accept such a frame. It would only accept one with a checksum.
            assert_eq!(rig.slow("overlay_receive", &came), "checksum");
            let (verdict, out, _) = rig.run("overlay_receive", &with(&came, 60, &[1, 2]), 0);
            assert_eq!((verdict, out), (REDIRECT, given));
            if protocol == UDP {
                let at = if pods == OverlayIp::V4 { 40 } else { 60 };
                assert_eq!(rig.slow("overlay_send", &with(&sent, at, &[0, 0])), "checksum");
                let unchecked = with(&with(&came, at + 70, &[0, 0]), 60, &[1, 2]);
                assert_eq!(rig.slow("overlay_receive", &unchecked), "checksum");
            }
            rig.programs.set(&rig.settings).unwrap();
        }
    }
}

#[test]
fn headers_are_those_of_the_kernels_own_vxlan_device() {
    for nodes in [OverlayIp::V4, OverlayIp::V6] {
        let versions = [OverlayIp::V6, nodes];
        let Some(mut rig) = OverlayRig::with(64, nodes) else { return };
        rig.programs.attach_uplink("up0").unwrap();
        ip(&format!(
            "link set vx0 address 02:00:00:00:00:05
address add {POD_6}/128 dev lo
route add fd00:244:2::/64 via fd00:244:2::ffff dev vx0 onlink
neighbour add fd00:244:2::ffff lladdr 02:00:00:00:00:06 dev vx0 nud permanent"
        ));
        let to = if nodes == OverlayIp::V4 { "10.0.1.2" } else { "fd00:1::2" };
        run("bridge", &["fdb", "add", "02:00:00:00:00:06", "dev", "vx0", "dst", to]);
        run("nft", &["add table inet t"]);
        run("nft", &["add chain inet t out { type route hook output priority 0; }"]);
        run("nft", &[&format!("add rule inet t out ip6 daddr {OTHER_6} meta mark set 0x05000000")]);
        UdpSocket::bind((POD_6, 7000)).unwrap().send_to(b"0123456789", (OTHER_6, 5001)).unwrap();
        let flows = rig.programs.flows().unwrap().read();
        assert_eq!(flows.len(), 1, "{nodes:?} {:?}", rig.programs.entries());
        let [sent, _, answer, given] = frames(OverlayIp::V6, UDP, 7000);
        rig.run("overlay_send", &sent, 0);
        let (_, _, mark) = rig.run("overlay_receive", &through(nodes, &answer, false), 0);
        rig.run("overlay_learn_receive", &given, mark | ESTABLISHED);
        let mut kernels = flows[0].headers.clone();
        let (verdict, out, _) = rig.run("overlay_send", &sent, 0);
        assert_eq!(verdict, REDIRECT, "{versions:?}");
        alike(&mut kernels, &out, nodes);
        assert_eq!(out[..tunnel(nodes) + 14], kernels, "{nodes:?}");
    }
}

#[test]
fn what_an_interface_does_not_carry_and_the_next_hop_are_those_of_now() {
    let versions = [OverlayIp::V6; 2];
    let Some(mut rig) = OverlayRig::with(64, OverlayIp::V6) else { return };
    let [sent, _, came, _] = rig.learn_6(versions, UDP, 7000);
    let frame = |length: u16| {
        let mut frame = sent.clone();
        frame.resize(14 + usize::from(length), 7);
        with(&frame, 18, &(length - 40).to_be_bytes())
    };
    assert_eq!(rig.run("overlay_send", &frame(1430), 0).0, REDIRECT);
    assert_eq!(rig.slow("overlay_send", &frame(1431)), "oversize");
    // An underlay that carries less than the device believes.
    ip("link set up0 mtu 1400");
    assert_eq!(rig.run("overlay_send", &frame(1330), 0).0, REDIRECT);
    assert_eq!(rig.slow("overlay_send", &frame(1331)), "oversize");
    ip("neighbour replace fd00:1::2 lladdr 02:00:00:00:00:09 dev up0 nud permanent");
    let (verdict, out, _) = rig.run("overlay_send", &sent, 0);
    assert_eq!((verdict, &out[..6]), (REDIRECT, &mac(9)[..]));
    ip("neighbour del fd00:1::2 dev up0");
    assert_eq!(rig.slow("overlay_send", &sent), "no_route");
    // Stamps and the lease apply to both versions.
    rig.programs.bump(&[POD_STAMP]).unwrap();
    assert_eq!(rig.slow("overlay_receive", &came), "stale_own");
    rig.learn_6(versions, UDP, 7001);
    rig.programs.extend(1).unwrap();
    assert_eq!(rig.slow("overlay_receive", &came), "lease");
}

#[test]
fn a_service_is_translated_both_ways() {
    for nodes in [OverlayIp::V4, OverlayIp::V6] {
        let Some(mut rig) = OverlayRig::with(64, nodes) else { return };
        for protocol in [TCP, UDP] {
            let tuple = |addresses: [Ipv6Addr; 2], ports| OverlayTuple {
                addresses: addresses.map(IpAddr::from),
                ports,
                protocol,
            };
            let masquerade = Ipv6Addr::new(0xfd00, 0x244, 1, 0, 0, 0, 0, 1);
            let (before, after) = ([POD_6, SERVICE_6], [masquerade, OTHER_6]);
            let back = |[from, to]: [Ipv6Addr; 2]| [to, from];
            let sent = inner_6([BRIDGE, POD_MAC], before, [7000, 80], (protocol, 64));
            let routed = inner_6([FAR, TUNNEL], after, [9000, 5001], (protocol, 63));
            let answer = inner_6([TUNNEL, FAR], back(after), [5001, 9000], (protocol, 63));
            let given = inner_6([POD_MAC, BRIDGE], back(before), [80, 7000], (protocol, 62));
            let mut left = through(nodes, &routed, true);
            let came = through(nodes, &answer, false);
            let all = [&sent[..], &left.clone(), &came, &given];
            rig.learn_frames(all, NAT);
            let (before, after) = (tuple(before, [7000, 80]), tuple(after, [9000, 5001]));
            assert_eq!(rig.programs.asked(), [after, before.reversed()], "nothing is guessed");
            rig.programs.translate(&before, &after).unwrap();
            rig.programs.translate(&after.reversed(), &before.reversed()).unwrap();
            rig.learn_frames(all, NAT);
            let (verdict, out, _) = rig.run("overlay_send", &sent, 0);
            alike(&mut left, &out, nodes);
            assert_eq!((verdict, &out), (REDIRECT, &left));
            let (verdict, out, _) = rig.run("overlay_receive", &came, 0);
            assert_eq!((verdict, &out), (REDIRECT, &given));
            let gone = rig.sweep(&END);
            let sums = gone.iter().fold([0; 2], |sums, one| [0, 1].map(|at| sums[at] + one.packets[at]));
            assert_eq!(sums, [1, 1], "{gone:?}");
            // The pod's own addresses; each direction is in the entry by which its frames are found.
            let is_own = |at: usize| gone.iter().find(|one| one.packets[at] == 1).expect("a record");
            assert_eq!((is_own(0).key.sent(), is_own(1).received), (before, before.reversed()));
            rig.programs.forget_translations();
        }
    }
}

#[test]
fn more_flows_than_fit_lose_no_count_and_ended_ones_are_forgotten() {
    let versions = [OverlayIp::V6, OverlayIp::V4];
    let Some(mut rig) = OverlayRig::with(64, OverlayIp::V4) else { return };
    for port in 0..640 {
        let [sent, ..] = rig.learn_6(versions, UDP, port);
        assert_eq!(rig.run("overlay_send", &sent, 0).0, REDIRECT, "the newest has room");
    }
    let (entries, flows) = (rig.programs.entries(), rig.programs.flows().unwrap().read());
    assert_eq!(entries.evicted, 640 - flows.len() as u64);
    let left = rig.programs.left();
    assert_eq!(left.len() as u64, entries.evicted);
    assert!(left.iter().all(|gone| gone.key.addresses == [POD_6, OTHER_6] && gone.packets == [1, 0]));
    let live: u64 = flows.iter().map(|flow| flow.packets[0]).sum();
    assert_eq!(live + entries.gone_packets[0], 640);
    rig.programs.forget(&flows[0].key).unwrap();
    assert_eq!(rig.programs.flows().unwrap().read().len(), flows.len() - 1);
    // Flows of IPv4 have their own space.
    rig.learn(UDP, 7000);
    assert_eq!(rig.programs.flows().unwrap().read().len(), flows.len());
}

#[test]
fn flows_of_both_versions_give_each_count_once() {
    for nodes in [OverlayIp::V4, OverlayIp::V6] {
        let Some(mut rig) = OverlayRig::with(64, nodes) else { return };
        let mut sent = Vec::new();
        for (pods, ports) in [(OverlayIp::V4, 7000..7003), (OverlayIp::V6, 7000..7005)] {
            for port in ports {
                let [frame, _, came, _] = rig.learn_6([pods, nodes], UDP, port);
                assert_eq!(rig.run("overlay_send", &frame, 0).0, REDIRECT);
                assert_eq!(rig.run("overlay_receive", &came, 0).0, REDIRECT);
                sent.push(frame.len() as u64);
            }
        }
        let given = rig.sweep(&GIVE);
        assert_eq!(given.len(), sent.len(), "{given:?}");
        for (one, flow) in given.iter().map(|one| (one, one.key.sent())) {
            assert_eq!((one.packets, one.why, one.received), ([1, 1], OverlayEnd::Alive, flow.reversed()));
            // A record counts the length of the pod's frames, whose headers have the pod's own IP version.
            let length = if flow.ip() == OverlayIp::V4 { 52 } else { 72 };
            assert!(one.bytes == [length; 2] && sent.contains(&length), "{one:?}");
        }
        assert_eq!(rig.sweep(&GIVE), [], "given before");
        let idle = OverlaySweep { idle_ns: u64::MAX, given_ns: 0, ends: false };
        assert_eq!(rig.sweep(&idle), [], "they have no more to report");
        assert_eq!(rig.programs.flows().unwrap().read(), []);
        let entries = rig.programs.entries();
        let packets = sent.len() as u64;
        assert_eq!((entries.idled, entries.gone_packets), (packets, [packets; 2]));
    }
}

#[test]
fn the_hash_is_that_of_crate_packet() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    let mut random = crate::random();
    for _ in 0..1_000_000 {
        let mut address =
            || Ipv6Addr::from(u128::from(random()) << 96 | u128::from(random()) << 40 | u128::from(random()));
        let key = OverlayKey {
            addresses: [address(), address()].map(IpAddr::from),
            ports: [random() as u16, random() as u16],
            vni: random() as u32 & 0xff_ffff,
            protocol: random() as u8,
        };
        crate::assert_hash(&mut rig, &key);
    }
}
