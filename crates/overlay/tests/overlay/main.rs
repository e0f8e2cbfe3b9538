//! The programs of the overlay cache, in the kernel (`BPF_PROG_TEST_RUN`): which frames take the fast path
//! and what they look like afterwards, and which frames take the slow path. Needs root, and creates a network
//! namespace for each test.

mod flows;
mod geneve;
mod handle;
mod nat;
mod near;
mod oncache;
mod rig;
mod six;

use rig::*;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;
use weir_overlay::bpf::{
    OverlayKey, OverlaySettings, OverlayTunnel, STAMP_GLOBAL, STAMP_POLICY, overlay_programs,
    overlay_programs_at,
};
use weir_packet::select_hash;

/// Returns a frame with other bytes at an offset, and correct header checksums.
fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    if frame[12..14] == [8, 0] {
        seal(&mut frame, 14);
    }
    if frame.len() > 100 && frame[62..64] == [8, 0] {
        seal(&mut frame, 64);
    }
    frame
}

/// Returns the key of the flow of a port.
fn key(protocol: u8, port: u16) -> OverlayKey {
    OverlayKey { addresses: [POD, OTHER].map(Into::into), ports: [port, 5001], vni: VNI, protocol }
}

#[test]
fn a_learnt_flow_is_encapsulated_as_the_kernel_does_and_decapsulated() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    for protocol in [TCP, UDP] {
        rig.learn(protocol, 7000);
        let (verdict, out, mark) = rig.run("overlay_send", &sent(protocol, 7000), 0);
        assert_eq!((verdict, mark), (REDIRECT, 0));
        let mut expected = tunnelled(&routed(protocol, 7000), [HERE, NODE]);
        // The identification is random, and the port is derived from the frame's hash.
        expected[18..20].copy_from_slice(&out[18..20]);
        expected[34..36].copy_from_slice(&out[34..36]);
        seal(&mut expected, 14);
        assert_eq!(out, expected);
        let port = u16::from_be_bytes([out[34], out[35]]);
        assert!((32_768..60_999).contains(&port), "{port}");

        let (verdict, out, _) = rig.run("overlay_receive", &arriving(protocol, 7000), 0);
        assert_eq!((verdict, out), (REDIRECT, delivered(protocol, 7000)));
    }
    let flows = rig.programs.flows().unwrap().read();
    assert_eq!(flows.len(), 2);
    let tcp = flows.iter().find(|flow| flow.key == key(TCP, 7000)).expect("the flow");
    assert_eq!((tcp.node, tcp.pod, tcp.packets, tcp.bytes), (NODE.into(), rig.pod, [1, 1], [64, 64]));
    let [sent, received] = rig.programs.frames();
    assert_eq!((sent.of("fast"), received.of("fast")), (2, 2));
    assert!(sent.is_balanced() && received.is_balanced());
}

#[test]
fn headers_are_those_of_the_kernels_own_vxlan_device() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    headers_are_those_of_the_kernels_device(&mut rig);
}

/// Lets the kernel's device `vx0` encapsulate packets, and compares the headers of the fast path with its
/// own.
fn headers_are_those_of_the_kernels_device(rig: &mut OverlayRig) {
    rig.programs.attach_uplink("up0").unwrap();
    ip("link set vx0 address 02:00:00:00:00:05
address add 10.244.1.5/32 dev lo
address add 10.244.1.0/32 dev vx0
route add 10.244.2.0/24 via 10.244.2.0 dev vx0 onlink
neighbour add 10.244.2.0 lladdr 02:00:00:00:00:06 dev vx0 nud permanent");
    // A Geneve device leads to one node.
    if rig.settings.kind == OverlayTunnel::Vxlan {
        run("bridge", &["fdb", "add", "02:00:00:00:00:06", "dev", "vx0", "dst", "10.0.1.2"]);
    }
    run("nft", &["add table inet t"]);
    run("nft", &["add chain inet t out { type route hook output priority 0; }"]);
    run("nft", &["add rule inet t out ip daddr 10.244.2.7 meta mark set 0x05000000"]);
    let send = |socket: &UdpSocket| socket.send_to(b"0123456789", (OTHER, 5001)).unwrap();
    for port in [7000, 7001] {
        send(&UdpSocket::bind((POD, port)).unwrap());
    }
    let flows = rig.programs.flows().unwrap().read();
    assert_eq!(flows.len(), 2, "{:?}", rig.programs.entries());
    for flow in flows {
        let port = flow.key.ports[0];
        // Once the pod has sent something, only the other direction remains to be learnt.
        rig.run("overlay_send", &sent(UDP, port), 0);
        let (_, _, mark) = rig.run("overlay_receive", &rig.in_tunnel(&arriving(UDP, port)), 0);
        rig.run("overlay_learn_receive", &delivered(UDP, port), mark | ESTABLISHED);
        let mut kernels = flow.headers.clone();
        let (verdict, out, _) = rig.run("overlay_send", &sent(UDP, port), 0);
        assert_eq!(verdict, REDIRECT);
        let [first, behind] = rig.settings.sources;
        assert!((first..behind).contains(&u16::from_be_bytes([kernels[34], kernels[35]])));
        // The kernel derives the port from the socket's hash; here it is derived from the frame's headers.
        kernels[18..20].copy_from_slice(&out[18..20]);
        kernels[34..36].copy_from_slice(&out[34..36]);
        seal(&mut kernels, 14);
        assert_eq!(out[..64], kernels);
    }
}

#[test]
fn identifications_differ() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    let ids: std::collections::BTreeSet<_> =
        (0..64).map(|_| rig.run("overlay_send", &sent(UDP, 7000), 0).1[18..20].to_vec()).collect();
    assert!(ids.len() > 32, "{ids:?}");
}

#[test]
fn what_needs_the_kernel_takes_its_way() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(TCP, 7000);
    rig.learn(UDP, 7000);
    let (tcp, udp) = (sent(TCP, 7000), sent(UDP, 7000));
    let cases: &[(&str, Vec<u8>)] = &[
        ("control", with(&tcp, 47, &[ACK | 1])),
        ("control", with(&tcp, 47, &[2])),
        ("control", with(&tcp, 47, &[ACK | 4])),
        ("fragment", with(&udp, 20, &[0x20, 0])),
        ("fragment", with(&udp, 20, &[0, 1])),
        ("options", with(&udp, 14, &[0x46])),
        ("protocol", with(&udp, 23, &[1])),
        ("multicast", with(&udp, 30, &[224, 0, 0, 9])),
        ("multicast", with(&udp, 30, &[255; 4])),
        ("not_ip", with(&udp, 12, &[8, 6])),
        ("multicast", with(&udp, 0, &[255; 6])),
        ("malformed", with(&udp, 16, &[0, 39])),
        ("malformed", udp[..40].to_vec()),
        ("last_hop", with(&udp, 22, &[1])),
        ("changed", with(&udp, 15, &[0x20])),
        ("changed", with(&udp, 20, &[0, 0])),
        // A different gateway, and a different sender.
        ("changed", with(&udp, 5, &[9])),
        ("changed", with(&udp, 11, &[9])),
        ("unknown", sent(UDP, 7001)),
    ];
    for (why, frame) in cases {
        assert_eq!(rig.slow("overlay_send", frame), *why);
        let inner = arriving_as(frame);
        let expected = match *why {
            // The pod's Ethernet header is not carried over, and a different one does not belong to the
            // sender.
            "changed" => continue,
            "multicast" if frame[..6] == [255; 6] => continue,
            why => why,
        };
        assert_eq!(rig.slow("overlay_receive", &inner), expected, "received");
    }
}

/// The corresponding frame of the other pod: with the addresses and ports of an answer.
fn arriving_as(frame: &[u8]) -> Vec<u8> {
    let mut inner = frame.to_vec();
    let whole = answer(frame[23], u16::from_be_bytes([frame[34], frame[35]]));
    inner[..12].copy_from_slice(&whole[..12]);
    if frame[30] != 224 && frame[30] != 255 {
        inner[26..38].copy_from_slice(&whole[26..38]);
    }
    if inner.len() >= 38 && inner[12..14] == [8, 0] {
        seal(&mut inner, 14);
    }
    tunnelled(&inner, [NODE, HERE])
}

#[test]
fn only_the_tunnel_of_the_flow_is_believed() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    let good = arriving(UDP, 7000);
    let cases: &[(&str, Vec<u8>)] = &[
        ("stranger", with(&good, 26, &[10, 0, 1, 9])),
        ("stranger", with(&good, 30, &[10, 0, 1, 9])),
        ("other_vni", with(&good, 46, &[0, 0, 43])),
        ("other_vni", with(&good, 42, &[0x88])),
        ("not_tunnel", with(&good, 36, &53_u16.to_be_bytes())),
        ("not_tunnel", good[..60].to_vec()),
        ("malformed", [&good[..24], &[1, 2], &good[26..]].concat()),
        ("malformed", [&good[..], &[0; 6]].concat()),
        ("malformed", with(&good, 0, &[2, 9, 9, 9, 9, 9])),
        // Inner MAC addresses of other devices, as after a node was replaced.
        ("stranger", with(&good, 55, &[9])),
        ("stranger", with(&good, 61, &[9])),
    ];
    for (why, frame) in cases {
        assert_eq!(rig.slow("overlay_receive", frame), *why);
    }
    // Without the inner checksum, there is only the outer one.
    let unchecked = with(&with(&good, 90, &[0, 0]), 40, &[1, 2]);
    assert_eq!(rig.slow("overlay_receive", &unchecked), "checksum");
    assert_eq!(rig.run("overlay_receive", &with(&good, 40, &[1, 2]), 0).0, REDIRECT);
    // A flow belongs to the interface on which it was learnt.
    let (verdict, ..) = rig.programs.test_run("overlay_send", &sent(UDP, 7000), (rig.up, 0, 0)).unwrap();
    assert_eq!((verdict, rig.programs.frames()[0].of("stranger")), (PASS, 1));
}

#[test]
fn congestion_is_carried_as_rfc_6040_says() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(TCP, 7000);
    for (inner, outer) in [(0, 0), (1, 1), (2, 2), (3, 2)] {
        let (verdict, out, _) = rig.run("overlay_send", &with(&sent(TCP, 7000), 15, &[inner]), 0);
        assert_eq!((verdict, out[15], out[65]), (REDIRECT, outer, inner));
        assert_eq!((folded(&out[14..34], 0), folded(&out[64..84], 0)), (0xffff, 0xffff));
    }
    // Outer, inner, and the resulting inner field; `None` is left to the kernel.
    let cases = [
        (0, 0, Some(0)),
        (0, 2, Some(2)),
        (2, 0, Some(0)),
        (3, 0, None),
        (3, 1, Some(3)),
        (3, 2, Some(3)),
        (3, 3, Some(3)),
        (1, 2, None),
        (1, 1, Some(1)),
        (2, 3, Some(3)),
    ];
    for (outer, inner, expected) in cases {
        let frame = with(&with(&arriving(TCP, 7000), 15, &[outer]), 65, &[inner]);
        let Some(expected) = expected else {
            assert_eq!(rig.slow("overlay_receive", &frame), "congestion");
            continue;
        };
        let (verdict, out, _) = rig.run("overlay_receive", &frame, 0);
        assert_eq!((verdict, out[15]), (REDIRECT, expected), "{outer} {inner}");
        assert_eq!(folded(&out[14..34], 0), 0xffff);
    }
}

/// A frame of the flow whose IP packet has this length.
fn frame(length: u16) -> Vec<u8> {
    let mut frame = sent(UDP, 7000);
    frame.resize(14 + usize::from(length), 7);
    with(&frame, 16, &length.to_be_bytes())
}

#[test]
fn what_an_interface_does_not_carry_takes_the_kernels_way() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    assert_eq!(rig.run("overlay_send", &frame(1450), 0).0, REDIRECT);
    assert_eq!(rig.slow("overlay_send", &frame(1451)), "oversize");
    // The length of each segment matters, not their sum. The kernel cannot add headroom to segmented frames
    // without a type, as here.
    for (segment, why) in [(1000, "no_room"), (1422, "no_room"), (1423, "oversize")] {
        let before = rig.programs.frames()[0].of(why);
        rig.programs.test_run("overlay_send", &frame(3000), (rig.pod, 0, segment)).unwrap();
        assert_eq!(rig.programs.frames()[0].of(why), before + 1, "{segment}");
    }
    ip("link set up0 mtu 1400");
    assert_eq!(rig.run("overlay_send", &frame(1350), 0).0, REDIRECT);
    assert_eq!(rig.slow("overlay_send", &frame(1351)), "oversize", "the underlay has shrunk");
    ip("link set pod0 mtu 1300");
    let mut inner = answer(UDP, 7000);
    inner.resize(14 + 1301, 7);
    let frame = tunnelled(&with(&inner, 16, &1301_u16.to_be_bytes()), [NODE, HERE]);
    assert_eq!(rig.slow("overlay_receive", &frame), "oversize", "the pod's interface has shrunk");
}

#[test]
fn the_next_hop_is_that_of_now() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    ip("neighbour replace 10.0.1.2 lladdr 02:00:00:00:00:09 dev up0 nud permanent");
    let (verdict, out, _) = rig.run("overlay_send", &sent(UDP, 7000), 0);
    assert_eq!((verdict, &out[..6]), (REDIRECT, &mac(9)[..]));
    ip("neighbour del 10.0.1.2 dev up0");
    assert_eq!(rig.slow("overlay_send", &sent(UDP, 7000)), "no_route");
}

/// Even if all of it happens within one clock tick in which the kernel was already asked.
#[test]
fn what_is_learnt_after_a_change_has_the_mtu_of_after_it() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    for mtu in [1300, 1200, 1100, 1000] {
        assert_eq!(rig.run("overlay_send", &frame(mtu + 100), 0).0, REDIRECT);
        run("ip", &["link", "set", "vx0", "mtu", &mtu.to_string()]);
        rig.programs.bump(&[STAMP_GLOBAL]).unwrap();
        rig.learn(UDP, 7000);
        assert_eq!(rig.slow("overlay_send", &frame(mtu + 100)), "oversize");
    }
}

/// As for the MTU.
#[test]
fn what_is_learnt_after_a_change_has_the_next_hop_of_after_it() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    for last in [9, 10, 11, 12] {
        assert_eq!(rig.run("overlay_send", &sent(UDP, 7000), 0).0, REDIRECT);
        let address = format!("02:00:00:00:00:{last:02x}");
        let next_hop = ["10.0.1.2", "lladdr", &address, "dev", "up0", "nud", "permanent"];
        run("ip", &[&["neighbour", "replace"][..], &next_hop].concat());
        rig.programs.bump(&[STAMP_GLOBAL]).unwrap();
        rig.learn(UDP, 7000);
        let (verdict, out, _) = rig.run("overlay_send", &sent(UDP, 7000), 0);
        assert_eq!((verdict, &out[..6]), (REDIRECT, &mac(last)[..]));
    }
}

#[test]
fn a_stamp_makes_void_what_depends_on_it_and_nothing_else() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    let (out, back) = (sent(UDP, 7000), arriving(UDP, 7000));
    for (stamp, send, receive) in [
        (STAMP_GLOBAL, "stale_global", "stale_global"),
        (STAMP_POLICY, "stale_policy", "stale_policy"),
        (NODE_STAMP, "stale_own", "half"),
        (POD_STAMP, "half", "stale_own"),
    ] {
        rig.programs.forget(&key(UDP, 7000)).unwrap();
        rig.learn(UDP, 7000);
        assert_eq!(rig.run("overlay_send", &out, 0).0, REDIRECT);
        rig.programs.bump(&[stamp]).unwrap();
        // A direction that is void keeps the other one off the fast path, too.
        let mut both = [("overlay_send", &out, send), ("overlay_receive", &back, receive)];
        if stamp == POD_STAMP {
            both.reverse();
        }
        for (name, frame, why) in both {
            assert_eq!(rig.slow(name, frame), why, "{stamp}");
        }
    }
    assert_eq!(rig.programs.entries().void, [2, 2, 1, 1]);
    rig.programs.forget(&key(UDP, 7000)).unwrap();
    rig.learn(UDP, 7000);
    rig.programs.bump(&[POD_STAMP + 1]).unwrap();
    assert_eq!(rig.run("overlay_send", &out, 0).0, REDIRECT, "another pod's");
}

#[test]
fn nothing_is_learnt_that_is_not_established_or_not_of_now() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    let (frame, after) = (sent(UDP, 7000), tunnelled(&routed(UDP, 7000), [HERE, NODE]));
    let (_, _, mark) = rig.run("overlay_send", &frame, 0);
    rig.run("overlay_learn_send", &after, mark);
    assert_eq!(rig.programs.entries().not_established, 1);
    // A pod or another program cannot claim that the connection is established.
    let (_, _, forged) = rig.run("overlay_send", &frame, ESTABLISHED | 1);
    assert_eq!(forged, mark | 1, "other bits of the mark stay");
    rig.programs.bump(&[NODE_STAMP]).unwrap();
    let (.., left) = rig.run("overlay_learn_send", &after, mark | ESTABLISHED | 1);
    assert_eq!((rig.programs.entries().outdated, left), (1, 1), "it was changed in flight");
    let (_, _, mark) = rig.run("overlay_send", &frame, 0);
    let stranger = with(&after, 30, &[10, 0, 1, 9]);
    rig.run("overlay_learn_send", &stranger, mark | ESTABLISHED);
    assert_eq!(rig.programs.entries().unlearnable, 1, "a node that is not known");
    assert_eq!(rig.programs.entries().learnt, [0, 0]);
    assert!(rig.programs.flows().unwrap().read().is_empty());
}

#[test]
fn a_frame_that_is_flooded_is_learnt_from_at_its_own_pod_alone() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.run("overlay_send", &sent(UDP, 7000), 0);
    let (_, _, mark) = rig.run("overlay_receive", &arriving(UDP, 7000), 0);
    let others = with(&delivered(UDP, 7000), 0, &mac(9));
    rig.run("overlay_learn_receive", &others, mark | ESTABLISHED);
    assert_eq!((rig.programs.entries().unlearnable, rig.programs.entries().learnt), (1, [0, 0]));
    rig.run("overlay_learn_receive", &delivered(UDP, 7000), mark | ESTABLISHED);
    assert_eq!(rig.programs.entries().learnt, [0, 1]);
}

#[test]
fn an_epoch_that_looks_like_a_former_one_teaches_nothing() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    let (frame, after) = (sent(UDP, 7000), tunnelled(&routed(UDP, 7000), [HERE, NODE]));
    let (_, _, mark) = rig.run("overlay_send", &frame, 0);
    for _ in 0..rig.settings.epochs() {
        rig.programs.bump(&[NODE_STAMP]).unwrap();
    }
    rig.programs.learn_from(u64::MAX).unwrap();
    rig.run("overlay_learn_send", &after, mark | ESTABLISHED);
    assert_eq!((rig.programs.entries().outdated, rig.programs.entries().learnt), (1, [0, 0]));
    rig.programs.learn_from(0).unwrap();
    rig.run("overlay_learn_send", &after, mark | ESTABLISHED);
    assert_eq!(rig.programs.entries().learnt, [1, 0], "that is why it must wait");
}

#[test]
fn a_frame_that_goes_to_several_nodes_is_not_learnt_from() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.programs.set_node(SECOND_NODE.into(), SECOND_NODE_STAMP).unwrap();
    let (_, _, mark) = rig.run("overlay_send", &sent(UDP, 7000), 0);
    let mut copies =
        [NODE, SECOND_NODE, NODE].map(|node| tunnelled(&routed(UDP, 7000), [HERE, node])).to_vec();
    for copy in &copies {
        rig.run("overlay_learn_send", copy, mark | ESTABLISHED);
    }
    assert_eq!((rig.programs.entries().flooded, rig.programs.entries().learnt), (2, [1, 0]));
    let known = |rig: &OverlayRig| rig.programs.flows().unwrap().read()[0].learnt_ns[0] > 0;
    assert!(!known(&rig), "whichever came first or last");
    wait_for_ticks(Duration::from_millis(5100));
    rig.run("overlay_learn_send", &copies.remove(1), mark | ESTABLISHED);
    assert!(known(&rig), "when they go to one alone");
}

#[test]
fn another_pod_or_node_begins_anew_in_both_directions() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.programs.set_node(SECOND_NODE.into(), SECOND_NODE_STAMP).unwrap();
    rig.learn(UDP, 7000);
    // The address now belongs to another pod: nothing that it sends has passed the rules.
    let now = rig.neighbour;
    rig.programs.test_run("overlay_send", &sent(UDP, 7001), (now, 0, 0)).unwrap();
    let (_, _, mark) = rig.run("overlay_receive", &arriving(UDP, 7001), 0);
    rig.programs
        .test_run("overlay_learn_receive", &delivered(UDP, 7000), (now, mark | ESTABLISHED, 0))
        .unwrap();
    let (verdict, ..) = rig.programs.test_run("overlay_send", &sent(UDP, 7000), (now, 0, 0)).unwrap();
    assert_eq!((verdict, rig.programs.frames()[0].of("half")), (PASS, 1));

    rig.programs.forget(&key(UDP, 7000)).unwrap();
    rig.learn(UDP, 7000);
    rig.programs.bump(&[NODE_STAMP]).unwrap();
    assert_eq!(rig.slow("overlay_send", &sent(UDP, 7000)), "stale_own");
    let (_, _, mark) = rig.run("overlay_send", &sent(UDP, 7000), 0);
    rig.run("overlay_learn_send", &tunnelled(&routed(UDP, 7000), [HERE, SECOND_NODE]), mark | ESTABLISHED);
    assert_eq!(rig.slow("overlay_receive", &arriving(UDP, 7000)), "half", "what the former node sends");
}

#[test]
fn without_a_lease_nothing_takes_the_short_way() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(UDP, 7000);
    rig.programs.extend(1).unwrap();
    assert_eq!(rig.slow("overlay_send", &sent(UDP, 7000)), "lease");
    assert_eq!(rig.slow("overlay_receive", &arriving(UDP, 7000)), "lease");
    rig.programs.extend(u64::MAX).unwrap();
    assert_eq!(rig.run("overlay_send", &sent(UDP, 7000), 0).0, REDIRECT);
}

#[test]
fn the_kernel_sees_a_frame_of_each_direction_now_and_then() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.programs.set(&OverlaySettings { ttl_ns: 1, ..rig.settings }).unwrap();
    rig.learn(UDP, 7000);
    // The clock is coarse, so wait for it to advance.
    wait_for_ticks(Duration::from_millis(50));
    assert_eq!(rig.slow("overlay_send", &sent(UDP, 7000)), "expired");
    assert_eq!(rig.slow("overlay_receive", &arriving(UDP, 7000)), "expired");
}

#[test]
fn more_flows_than_fit_lose_no_count() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    for port in 0..640 {
        rig.learn(UDP, port);
        assert_eq!(rig.run("overlay_send", &sent(UDP, port), 0).0, REDIRECT, "the newest has room");
        assert_eq!(rig.run("overlay_receive", &arriving(UDP, port), 0).0, REDIRECT);
    }
    let (entries, flows) = (rig.programs.entries(), rig.programs.flows().unwrap().read());
    assert!(flows.len() > 48 && flows.len() <= 64, "{}", flows.len());
    assert_eq!(entries.evicted, 640 - flows.len() as u64);
    let left = rig.programs.left();
    assert_eq!(left.len() as u64, entries.evicted, "each is reported");
    assert_eq!(left.iter().map(|gone| gone.packets[0]).sum::<u64>(), entries.gone_packets[0]);
    assert!(left.iter().all(|gone| gone.key.addresses == [POD, OTHER] && gone.born_ns <= gone.used_ns));
    for direction in 0..2 {
        let live: u64 = flows.iter().map(|flow| flow.packets[direction]).sum();
        assert_eq!(live + entries.gone_packets[direction], 640);
        let bytes: u64 = flows.iter().map(|flow| flow.bytes[direction]).sum();
        assert_eq!(bytes + entries.gone_bytes[direction], 640 * 52);
    }
}

#[test]
fn a_flow_is_forgotten_when_its_connection_ends() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.learn(TCP, 7000);
    rig.learn(TCP, 7001);
    rig.programs.forget(&key(TCP, 7000)).unwrap();
    assert_eq!(rig.slow("overlay_send", &sent(TCP, 7000)), "unknown");
    assert_eq!(rig.run("overlay_send", &sent(TCP, 7001), 0).0, REDIRECT);
    assert_eq!(rig.programs.entries().forgotten, 1);
}

#[test]
fn what_is_attached_is_found_and_gone_with_its_links() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    rig.programs.attach_uplink("up0").unwrap();
    let names = |interface: &str| -> Vec<String> {
        overlay_programs_at(interface).unwrap().into_iter().map(|program| program.name).collect()
    };
    assert_eq!(names("pod0"), ["overlay_learn_r", "overlay_send"]);
    assert_eq!(names("up0"), ["overlay_learn_s", "overlay_receive"]);
    let ids: Vec<u32> = overlay_programs_at("up0").unwrap().iter().map(|program| program.id).collect();
    let all = overlay_programs().unwrap();
    assert!(ids.iter().all(|id| all.iter().any(|program| program.id == *id)), "{ids:?} {all:?}");
    rig.programs.detach();
    // For a moment, a process started by another test also holds the links.
    let gone = || names("pod0").is_empty() && names("up0").is_empty();
    let waited = (0..6000).find(|_| {
        std::thread::sleep(Duration::from_millis(10));
        gone()
    });
    assert!(waited.is_some());
    assert!(overlay_programs_at("none0").is_err());
}

#[test]
fn the_hash_is_that_of_crate_packet() {
    let Some(mut rig) = OverlayRig::new(64) else { return };
    let mut random = random();
    for _ in 0..1_000_000 {
        let key = OverlayKey {
            addresses: [random() as u32, random() as u32].map(|bits| Ipv4Addr::from(bits).into()),
            ports: [random() as u16, random() as u16],
            vni: random() as u32 & 0xff_ffff,
            protocol: random() as u8,
        };
        assert_hash(&mut rig, &key);
    }
}

/// Pseudo-random numbers.
fn random() -> impl FnMut() -> u64 {
    let mut state = 1_u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state >> 32
    }
}

/// The programs' hash of a key equals crate packet's hash of its words.
fn assert_hash(rig: &mut OverlayRig, key: &OverlayKey) {
    let bytes = key.bytes();
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
    let expected = select_hash(rig.settings.seed, &words) as u32;
    assert_eq!(rig.programs.test_hash(key).unwrap(), expected, "{key:?}");
}
