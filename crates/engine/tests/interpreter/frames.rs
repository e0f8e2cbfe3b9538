//! F1-F8.

use crate::setup::*;
use weir_packet::{DropReason, Field, TunnelKind};
use weir_program::{Operation, PipeId, Value};

const UDP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=9";
const TCP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=9";

fn cut(text: &str, bytes: usize) -> Vec<u8> {
    frame(text)[..bytes].to_vec()
}

#[test]
fn f1_what_no_pipe_reads_is_not_checked() {
    let mut short = cut(UDP, 14 + 20);
    short[17] = 20; // The total length fits, the UDP header is missing.
    assert_eq!(meets(only(Field::IpProtocol, 17, 255), &short), HIT);
    assert_eq!(meets(only(Field::L4Dport, 9, 0xffff), &short), dropped(DropReason::MalformedUdp));
    assert_eq!(meets(all(), &cut(UDP, 15)), HIT, "only L2 is parsed");
    assert_eq!(meets(only(Field::Ipv4Ttl, 64, 255), &cut(UDP, 15)), dropped(DropReason::MalformedIpv4));
}

#[test]
fn f2_a_header_that_is_cut_short_drops_with_its_reason() {
    let vxlan = frame("src=10.0.0.1 dst=10.0.0.2 vni=5 inner(src=10.1.0.1 dst=10.1.0.2 proto=tcp)");
    let change = |at: usize, byte: u8| {
        let mut bytes = vxlan.clone();
        bytes[at] = byte;
        bytes
    };
    let no_room = |text: &str, at: usize, length: u8| {
        let mut bytes = frame(text);
        bytes[at] = length;
        bytes
    };
    let cases = [
        (cut(UDP, 13), DropReason::MalformedEthernet),
        (cut("vlan=5.0 type=35020", 17), DropReason::MalformedEthernet),
        (cut("arp=request", 14 + 27), DropReason::MalformedArp),
        (cut("type=2054 payload=000f080002040008", 14 + 7), DropReason::MalformedArp),
        (frame("vni=5 inner(type=2054 payload=0001080006040001)"), DropReason::MalformedInner),
        (cut(UDP, 33), DropReason::MalformedIpv4),
        (no_room(UDP, 14, 0x44), DropReason::MalformedIpv4),
        (no_room(UDP, 17, 19), DropReason::MalformedIpv4),
        (no_room(UDP, 17, 200), DropReason::MalformedIpv4),
        (cut("src=2001:db8::1 dst=2001:db8::2", 53), DropReason::MalformedIpv6),
        (no_room("src=2001:db8::1 dst=2001:db8::2", 19, 200), DropReason::MalformedIpv6),
        (no_room("src=2001:db8::1 dst=2001:db8::2 ext=dst", 55, 9), DropReason::MalformedIpv6),
        (no_room(TCP, 14 + 20 + 12, 0x40), DropReason::MalformedTcp),
        (no_room(TCP, 14 + 20 + 12, 0x60), DropReason::MalformedTcp),
        (no_room(UDP, 14 + 20 + 5, 7), DropReason::MalformedUdp),
        (no_room(UDP, 14 + 20 + 5, 9), DropReason::MalformedUdp),
        (no_room("src=10.0.0.1 dst=10.0.0.2 proto=icmp", 17, 27), DropReason::MalformedIcmp),
        (change(14 + 20 + 8, 0), DropReason::MalformedVxlan),
        (change(14 + 20 + 5, 15), DropReason::MalformedVxlan),
        (change(14 + 20 + 5, 16), DropReason::MalformedInner),
        (change(50 + 14, 0x44), DropReason::MalformedInner),
        (change(50 + 14 + 20 + 12, 0x40), DropReason::MalformedInner),
    ];
    for (bytes, reason) in cases {
        assert_eq!(meets(only(Field::L4Dport.inner(), 0, 0), &bytes), dropped(reason), "{bytes:02x?}");
    }
}

#[test]
fn f2_an_ipv4_total_length_of_0_has_a_reason_of_its_own() {
    let mut bytes = frame(TCP);
    bytes[16..18].fill(0);
    let reason = DropReason::Ipv4LengthZero;
    assert_eq!(meets(only(Field::L4Dport, 9, 0xffff), &bytes), dropped(reason));
    assert!(reason.explanation().contains("`ethtool -K DEV tso off gso off gro off lro off`"));
    bytes[14] = 0x44;
    assert_eq!(meets(only(Field::L4Dport, 9, 0xffff), &bytes), dropped(DropReason::MalformedIpv4));
    let mut inside = frame("src=10.0.0.1 dst=10.0.0.2 vni=5 inner(src=10.1.0.1 dst=10.1.0.2 proto=tcp)");
    inside[50 + 16..50 + 18].fill(0);
    assert_eq!(meets(only(Field::L4Dport.inner(), 9, 0xffff), &inside), dropped(DropReason::MalformedInner));
}

#[test]
fn f2_eight_extension_headers_are_followed_and_a_ninth_is_too_many() {
    let text = |count: usize| {
        format!("src=2001:db8::1 dst=2001:db8::2 proto=udp dport=9 ext={}", vec!["dst"; count].join(","))
    };
    assert_eq!(meets(only(Field::UdpDport, 9, 0xffff), &frame(&text(8))), HIT);
    let nine = meets(only(Field::UdpDport, 9, 0xffff), &frame(&text(9)));
    assert_eq!(nine, dropped(DropReason::TooManyExtensionHeaders));
    let fragment_last = format!("{} frag=1480", text(7).replace(" dport=9", ""));
    let verdict = meets(only(Field::IpFragment, 1, 1), &frame(&fragment_last));
    assert_eq!(verdict, HIT, "parsing stops at a fragment");
}

#[test]
fn f3_two_tags_are_read_and_a_third_is_an_unknown_ether_type() {
    let two = frame(&format!("vlan=5.1 second_vlan=6.2 {UDP}"));
    assert_eq!(meets(only(Field::VlanVid, 5, 0xfff), &two), HIT);
    assert_eq!(meets(only(Field::SecondVlanVid, 6, 0xfff), &two), HIT);
    assert_eq!(meets(only(Field::SecondVlanPcp, 2, 7), &two), HIT);
    assert_eq!(meets(only(Field::EthType, 0x0800, 0xffff), &two), HIT);
    let three = frame("vlan=5.1 second_vlan=6.2 type=33024 payload=00070800");
    assert_eq!(meets(only(Field::EthType, 0x8100, 0xffff), &three), HIT);
    assert_eq!(meets(only(Field::IpVersion, 0, 15), &three), HIT);
}

#[test]
fn f4_bytes_behind_the_total_length_are_carried_and_never_read() {
    let padded = frame(&format!("{UDP} trailer=ffffffffff"));
    let out = acted(vec![Operation::Set(Field::Ipv4Src, Value::Const(0x0a00_0063))], &padded);
    assert_eq!(out[out.len() - 5..], [0xff; 5]);
    assert!(checksums_are_right(&out));
}

#[test]
fn f5_a_fragment_has_no_ports_the_first_included() {
    for text in ["frag=0+", "frag=1480+", "frag=1480"] {
        let bytes = frame(&format!("src=10.0.0.1 dst=10.0.0.2 proto=udp {text} payload=0007000900080000"));
        assert_eq!(meets(only(Field::L4Dport, 0, 0), &bytes), MISS, "{text}");
        assert_eq!(meets(only(Field::IpFragment, 1, 1), &bytes), HIT, "{text}");
        assert_eq!(meets(only(Field::IpProtocol, 17, 255), &bytes), HIT, "{text}");
    }
    let first = frame("src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=9 frag=0+");
    let walk = walk(&program(vec![flow(weir_program::Learn::Default, 4)]), &first);
    let key = walk.trace[0].flow.and_then(|flow| flow.key).expect("IP");
    assert_eq!((key.sport(), key.dport(), key.protocol()), (0, 0, 17));
}

#[test]
fn f5_an_atomic_fragment_is_a_whole_datagram() {
    let bytes = frame("src=2001:db8::1 dst=2001:db8::2 proto=udp sport=7 dport=9 frag=0");
    assert_eq!(meets(only(Field::UdpDport, 9, 0xffff), &bytes), HIT);
    assert_eq!(meets(only(Field::IpFragment, 0, 1), &bytes), HIT);
}

#[test]
fn f6_a_multicast_source_is_malformed() {
    let bytes = frame("src=ff02::1 dst=2001:db8::2 proto=udp");
    assert_eq!(meets(only(Field::IpVersion, 6, 15), &bytes), dropped(DropReason::MalformedIpv6));
    for src in ["224.0.0.1", "239.255.255.255", "255.255.255.255"] {
        let bytes = frame(&format!("src={src} dst=10.0.0.2 proto=udp"));
        let verdict = meets(only(Field::IpVersion, 4, 15), &bytes);
        assert_eq!(verdict, dropped(DropReason::MalformedIpv4), "{src}");
    }
    for src in ["223.255.255.255", "240.0.0.1", "255.255.255.254"] {
        let bytes = frame(&format!("src={src} dst=10.0.0.2 proto=udp"));
        assert_eq!(meets(only(Field::IpVersion, 4, 15), &bytes), HIT, "{src}");
    }
    let inside = frame("src=10.0.0.1 dst=10.0.0.2 vni=5 inner(src=224.0.0.1 dst=10.1.0.2)");
    assert_eq!(meets(only(Field::L4Dport, 4789, 0xffff), &inside), HIT, "not parsed that deep");
    let deep = meets(only(Field::IpVersion.inner(), 4, 15), &inside);
    assert_eq!(deep, dropped(DropReason::MalformedInner));
}

#[test]
fn f6_an_unspecified_source_sends_to_many_only() {
    for (src, dst, verdict) in [
        ("0.0.0.0", "255.255.255.255", HIT),
        ("0.0.0.0", "224.0.0.22", HIT),
        ("0.0.0.0", "10.0.0.2", dropped(DropReason::MalformedIpv4)),
        ("0.0.0.0", "240.0.0.2", dropped(DropReason::MalformedIpv4)),
        ("0.0.0.1", "10.0.0.2", HIT),
        ("::", "ff02::1:ff00:2", HIT),
        ("::", "2001:db8::2", dropped(DropReason::MalformedIpv6)),
        ("::1", "2001:db8::2", HIT),
    ] {
        let bytes = frame(&format!("src={src} dst={dst} proto=udp"));
        assert_eq!(meets(only(Field::IpProtocol, 17, 255), &bytes), verdict, "{src} {dst}");
    }
}

#[test]
fn f7_vxlan_is_udp_to_4789_with_its_i_flag() {
    let inner = "vni=5 inner(src=10.1.0.1 dst=10.1.0.2)";
    let tunnel = frame(&format!("src=10.0.0.1 dst=10.0.0.2 {inner}"));
    assert_eq!(meets(only(Field::VxlanVni, 5, 0xff_ffff), &tunnel), HIT);
    let other_port = frame(&format!("src=10.0.0.1 dst=10.0.0.2 proto=udp sport=4789 dport=4790 {inner}"));
    assert_eq!(meets(only(Field::VxlanVni, 5, 0xff_ffff), &other_port), MISS);
    let mut no_flag = tunnel;
    no_flag[14 + 20 + 8] = 0xf7;
    assert_eq!(meets(only(Field::VxlanVni, 5, 0xff_ffff), &no_flag), dropped(DropReason::MalformedVxlan));
}

#[test]
fn f7_vxlan_is_udp_to_the_configured_port() {
    let mut program = program(vec![only(Field::VxlanVni, 5, 0xff_ffff)]);
    program.tunnels.set(TunnelKind::Vxlan, 8472);
    for addresses in ["", "src=2001:db8::1 dst=2001:db8::2 "] {
        let verdict =
            |port: &str| walk(&program, &frame(&format!("{addresses}vni=5 {port} inner()"))).verdict;
        assert_eq!([verdict("dport=8472"), verdict("dport=4789")], [HIT, MISS]);
    }
}

/// Inverse ARP of Frame Relay (RFC 2390), ARP for IPv4 over IEEE 802, and RARP with ARP's number.
#[test]
fn f7_arp_for_anything_but_ipv4_over_ethernet_misses() {
    for arp in ["000f080002040008", "0006080006040001", "0001080006060003", "000186dd06100001"] {
        let payload = format!("type=2054 payload={arp}{}", "00".repeat(20));
        for (bytes, field) in [
            (frame(&payload), Field::ArpOperation),
            (frame(&format!("vni=5 inner({payload})")), Field::ArpOperation.inner()),
        ] {
            assert_eq!(meets(only(field, 0, 0), &bytes), MISS, "{field} of {arp}");
            assert_eq!(meets(only(Field::IpVersion, 0, 0), &bytes), HIT, "{field} of {arp}");
        }
    }
}

#[test]
fn f7_arp_inside_a_tunnel_is_read_and_tunnels_there_are_not() {
    let whole = frame("vni=5 inner(arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2)");
    let fields =
        [(Field::ArpOperation, 1), (Field::ArpSenderIp, 0x0a00_0001), (Field::ArpTargetIp, 0x0a00_0002)];
    for (field, value) in fields {
        assert_eq!(meets(only(field.inner(), value, field.max()), &whole), HIT, "{field}");
    }
    let twice =
        frame("src=10.0.0.1 dst=10.0.0.2 vni=5 inner(src=10.1.0.1 dst=10.1.0.2 proto=udp dport=4789)");
    assert_eq!(meets(only(Field::L4Dport.inner(), 4789, 0xffff), &twice), HIT);
}

/// Each kind around a TCP packet to port 9, with its own fields.
const TUNNELS: [(&str, TunnelKind); 8] = [
    ("vni=5", TunnelKind::Vxlan),
    ("tunnel=geneve vni=5", TunnelKind::Geneve),
    ("tunnel=geneve header=02406558000007000102030100000000", TunnelKind::Geneve),
    ("tunnel=gre", TunnelKind::Gre),
    ("tunnel=gre header=b000080000000000000000070000000a", TunnelKind::Gre),
    ("tunnel=ipip", TunnelKind::Ipip),
    ("tunnel=gue", TunnelKind::Gue),
    ("tunnel=gue header=0204000000000000aabbccdd", TunnelKind::Gue),
];

#[test]
fn f9_each_tunnel_is_recognised() {
    let inner = "inner(src=10.1.0.1 dst=10.1.0.2 proto=tcp dport=9)";
    for (tunnel, kind) in TUNNELS {
        for addresses in ["src=10.0.0.1 dst=10.0.0.2", "src=2001:db8::1 dst=2001:db8::2"] {
            let bytes = frame(&format!("{addresses} {tunnel} {inner}"));
            assert_eq!(meets(only(Field::TcpDport.inner(), 9, 0xffff), &bytes), HIT, "{tunnel}");
            assert_eq!(meets(act(vec![Operation::Decap(kind)]), &bytes), HIT, "{tunnel}");
            let mut first = bytes.clone();
            if addresses.contains('.') {
                first[20] = 0x20;
                assert_eq!(meets(only(Field::TcpDport.inner(), 0, 0), &first), MISS, "a fragment: {tunnel}");
            }
        }
    }
}

#[test]
fn f9_what_is_not_understood_is_payload() {
    for text in [
        "proto=47 payload=3001000000000000", // GRE version 1
        "proto=47 payload=4000080000000000", // a source route
        "dport=6081 payload=4000080000000700",
        "dport=6080 payload=80040000",
        "dport=6080 payload=50",
    ] {
        assert_eq!(meets(only(Field::TunnelId, 0, 0), &frame(text)), MISS, "{text}");
    }
    for text in [
        "proto=47 payload=000088be",           // ERSPAN
        "dport=6081 payload=0080080000000700", // a control message
        "dport=6080 payload=20040000",         // a control message
    ] {
        assert_eq!(meets(only(Field::TunnelId, 0, 0), &frame(text)), HIT, "{text}");
        assert_eq!(meets(only(Field::IpVersion.inner(), 0, 0), &frame(text)), MISS, "{text}");
    }
}

#[test]
fn f9_a_tunnel_header_that_is_cut_short_drops_with_its_reason() {
    for (text, reason) in [
        ("proto=47 payload=000008", DropReason::MalformedGre),
        ("proto=47 payload=20000800000000", DropReason::MalformedGre),
        ("dport=6081 payload=01000800000007", DropReason::MalformedGeneve),
        ("dport=6081 payload=0100080000000700", DropReason::MalformedGeneve),
        ("dport=6080", DropReason::MalformedGue),
        ("dport=6080 payload=01040000", DropReason::MalformedGue),
        ("proto=4 payload=45", DropReason::MalformedInner),
        ("proto=41 payload=45", DropReason::MalformedInner),
    ] {
        assert_eq!(meets(only(Field::TunnelId, 0, 0), &frame(text)), dropped(reason), "{text}");
    }
}

#[test]
fn f8_moved_headers_are_found_again_when_the_frame_enters_the_next_pipe() {
    let tunnel = "src=10.0.0.1 dst=10.0.0.2 vni=5";
    let inner = frame(&format!("{tunnel} inner(src=10.1.0.1 dst=10.1.0.2 proto=udp dport=4789 payload=00)"));
    let decap = || act(vec![Operation::Decap(TunnelKind::Vxlan)]).forward(PipeId(1));
    let bad = walk(&program(vec![decap(), all()]), &inner);
    assert_eq!(bad.verdict, dropped(DropReason::MalformedVxlan), "the inner packet is now the outer one");
    let alone = walk(&program(vec![act(vec![Operation::Decap(TunnelKind::Vxlan)])]), &inner);
    assert_eq!(alone.verdict, HIT, "nothing reads it now");
    let good = frame(&format!("{tunnel} inner(vlan=7.0 src=10.1.0.1 dst=10.1.0.2)"));
    assert_eq!(walk(&program(vec![decap(), only(Field::VlanVid, 7, 0xfff)]), &good).verdict, HIT);
}
