//! A8, A9, A13-A17, A23, A24: tunnels. Headers are written out by hand.

use crate::setup::*;
use std::collections::HashSet;
use weir_oracle::trace::Change;
use weir_packet::{DropReason, FlowKey, TunnelKind, select_hash};
use weir_program::{Encap, Operation, PortId, Value};

const UDP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=80 payload=010203";
const UDP6: &str = "src=2001:db8::1 dst=2001:db8::2 proto=udp sport=7 dport=80 payload=010203";

/// A tunnel from 10.9.0.1 to 10.9.0.2, or from ::1 to ::2.
fn tunnel(kind: TunnelKind, ipv6: bool) -> Encap {
    let [src, dst] = if ipv6 { [1, 2] } else { [0x0a09_0001, 0x0a09_0002] };
    Encap {
        ipv6,
        src: Value::Const(src),
        dst: Value::Const(dst),
        sport: Some(Value::Const(0xbeef)),
        ..Encap::new(kind)
    }
}

fn wrapped(encap: Encap, text: &str) -> Vec<u8> {
    acted(vec![Operation::Encap(encap)], &frame(text))
}

#[test]
fn a8_each_tunnel_has_its_header() {
    let id = Some(Value::Const(0x01_0203));
    let carried = frame(UDP);
    let packet = &carried[14..];
    let headers: [(Encap, &[u8], u8, &[u8]); 9] = [
        (Encap { id, ..tunnel(TunnelKind::Vxlan, false) }, &[8, 0, 0, 0, 1, 2, 3, 0], 17, &carried),
        (Encap { id, ..tunnel(TunnelKind::Geneve, false) }, &[0, 0, 0x65, 0x58, 1, 2, 3, 0], 17, &carried),
        (
            Encap { id, ethernet: false, ..tunnel(TunnelKind::Geneve, false) },
            &[0, 0, 8, 0, 1, 2, 3, 0],
            17,
            packet,
        ),
        (tunnel(TunnelKind::Gre, false), &[0, 0, 8, 0], 47, packet),
        (Encap { id, ..tunnel(TunnelKind::Gre, false) }, &[0x20, 0, 8, 0, 0, 1, 2, 3], 47, packet),
        (Encap { ethernet: true, ..tunnel(TunnelKind::Gre, false) }, &[0, 0, 0x65, 0x58], 47, &carried),
        (tunnel(TunnelKind::Ipip, false), &[], 4, packet),
        (tunnel(TunnelKind::Gue, false), &[0, 4, 0, 0], 17, packet),
        (Encap { bare: true, ..tunnel(TunnelKind::Gue, false) }, &[], 17, packet),
    ];
    for (encap, header, protocol, carried) in headers {
        for ipv6 in [false, true] {
            let out = wrapped(Encap { ipv6, src: tunnel(encap.kind, ipv6).src, ..encap }, UDP);
            let (ip, at) = if ipv6 { (40, 14 + 6) } else { (20, 14 + 9) };
            assert_eq!(out[at], protocol, "{encap:?}");
            let udp = if encap.kind.is_udp() { 8 } else { 0 };
            let behind = &out[14 + ip + udp..];
            assert_eq!(behind, [header, carried].concat(), "{encap:?}");
            if udp > 0 {
                let port = match encap.kind {
                    TunnelKind::Vxlan => 4789,
                    TunnelKind::Geneve => 6081,
                    _ => 6080,
                };
                let length = 8 + behind.len() as u16;
                assert_eq!(
                    [0, 2, 4, 6].map(|at| number(&out, 14 + ip + at)),
                    [0xbeef, port, length, 0],
                    "{encap:?}"
                );
            }
        }
    }
    let out = wrapped(tunnel(TunnelKind::Ipip, true), UDP6);
    assert_eq!((out[14 + 6], &out[54..]), (41, &frame(UDP6)[14..]));
}

#[test]
fn a8_a_frame_that_no_length_can_say_drops_with_oversize() {
    let long = frame("type=35020 len=65530");
    for (ipv6, most) in [(false, 65535 - 36), (true, 65535 - 16)] {
        let encap = vec![Operation::Encap(tunnel(TunnelKind::Vxlan, ipv6))];
        assert_eq!(fails(encap.clone(), &long[..most + 1]), dropped(DropReason::Oversize));
        assert_eq!(acted(encap, &long[..most])[14 + if ipv6 { 4 } else { 2 }..][..2], [0xff, 0xff]);
    }
}

#[test]
fn a13_dscp_is_given_or_copied_and_ecn_is_always_copied() {
    let class = |out: &[u8], ipv6: bool| if ipv6 { out[14] << 4 | out[15] >> 4 } else { out[15] };
    for (text, ipv6) in [(UDP, false), (UDP, true), (UDP6, false), (UDP6, true)] {
        for ecn in 0..4 {
            let text = format!("dscp=10 ecn={ecn} {text}");
            let encap = tunnel(TunnelKind::Vxlan, ipv6);
            assert_eq!(class(&wrapped(encap, &text), ipv6), ecn);
            assert_eq!(class(&wrapped(Encap { dscp: Some(46), ..encap }, &text), ipv6), 46 << 2 | ecn);
            let out = wrapped(Encap { dscp: None, ..encap }, &text);
            assert_eq!(class(&out, ipv6), 10 << 2 | ecn);
            assert!(checksums_are_right(&out));
        }
    }
    let arp = wrapped(Encap { dscp: None, ..tunnel(TunnelKind::Vxlan, false) }, "arp=request");
    assert_eq!(class(&arp, false), 0);
    // A tag that was pushed, or another tunnel, hides nothing.
    let push = Operation::PushVlan { tpid: 0x8100, vid: Value::Const(1), pcp: Value::Const(0) };
    let encap = Operation::Encap(Encap { dscp: None, ..tunnel(TunnelKind::Geneve, false) });
    let out = acted(vec![push, encap, encap], &frame(&format!("dscp=10 ecn=1 {UDP}")));
    assert_eq!((out[15], out[50 + 15]), (41, 41));
}

#[test]
fn a14_decap_combines_the_ecn_of_both_headers() {
    // RFC 6040 §4.2: inner by outer.
    let expected: [[Option<u8>; 4]; 4] = [
        [Some(0), Some(0), Some(0), None],
        [Some(1), Some(1), Some(1), Some(3)],
        [Some(2), Some(1), Some(2), Some(3)],
        [Some(3), Some(3), Some(3), Some(3)],
    ];
    for (inner, line) in (0..).zip(expected) {
        for (outer, wanted) in (0..).zip(line) {
            for address in ["10.1.0.1 dst=10.1.0.2", "fd00::1 dst=fd00::2"] {
                let text = format!("ecn={outer} vni=5 inner(src={address} dscp=10 ecn={inner} proto=tcp)");
                let decap = vec![Operation::Decap(TunnelKind::Vxlan)];
                let Some(wanted) = wanted else {
                    assert_eq!(fails(decap, &frame(&text)), dropped(DropReason::EcnCeNotEct), "{text}");
                    continue;
                };
                let out = acted(decap, &frame(&text));
                let class = if address.starts_with("10") { out[15] } else { out[14] << 4 | out[15] >> 4 };
                assert_eq!(class, 10 << 2 | wanted, "{text}");
                assert!(checksums_are_right(&out), "{text}");
            }
        }
    }
    let arp = frame("ecn=3 vni=5 inner(arp=request)");
    assert_eq!(
        acted(vec![Operation::Decap(TunnelKind::Vxlan)], &arp),
        arp[50..],
        "a non-IP packet has no ECN"
    );
}

#[test]
fn a14_a_wrong_checksum_inside_stays_as_wrong_as_it_was() {
    let bytes = frame("ecn=3 vni=5 inner(src=10.1.0.1 dst=10.1.0.2 ecn=2 ip_csum=bad proto=tcp)");
    let program = program(vec![act(vec![Operation::Decap(TunnelKind::Vxlan)])]);
    let walk = walk(&program, &bytes);
    assert!(!checksums_are_right(&walk.bytes));
    let step = &walk.trace[0].operations[0];
    assert_eq!((step.change, step.mended[0].name), (Change::Removed(50), "inner ipv4"));
}

#[test]
fn a15_ip_is_carried_without_ethernet_tags_and_padding() {
    for text in [UDP, UDP6] {
        let plain = frame(text);
        let padded = frame(&format!("vlan=5 second_vlan=6 {text} trailer=eeee"));
        let gre = vec![Operation::Encap(tunnel(TunnelKind::Gre, false))];
        assert_eq!(acted(gre.clone(), &padded)[14 + 20 + 4..], plain[14..]);
        let bad = dropped(DropReason::NotApplicable);
        assert_eq!(fails(gre, &frame("arp=request")), bad);
    }
}

#[test]
fn a16_the_outer_udp_checksum_is_0_or_right() {
    for ipv6 in [false, true] {
        for text in [UDP, UDP6, "arp=request"] {
            let encap = tunnel(TunnelKind::Geneve, ipv6);
            let at = if ipv6 { 60 } else { 40 };
            assert_eq!(number(&wrapped(encap, text), at), 0);
            let out = wrapped(Encap { udp_checksum: true, ..encap }, text);
            assert_ne!(number(&out, at), 0);
            assert!(checksums_are_right(&out), "{text}");
        }
    }
}

#[test]
fn a9_decap_leaves_the_frame_or_the_ip_packet_behind_the_outer_ethernet() {
    let inner = "src=10.1.0.1 dst=10.1.0.2 proto=tcp sport=1 dport=2";
    let inner6 = "src=fd00::1 dst=fd00::2 proto=tcp sport=1 dport=2";
    let ethernet = ["vni=5", "tunnel=geneve vni=5", "tunnel=gre key=7 inside=ethernet"];
    let ip = ["tunnel=geneve vni=5 inside=ip", "tunnel=gre", "tunnel=ipip", "tunnel=gue"];
    let kind = |text: &str| {
        let word = text.strip_prefix("tunnel=").map_or("vxlan", |text| text.split(' ').next().unwrap());
        TunnelKind::from_word(word).unwrap()
    };
    for (outer, inside) in ["10.0.0.1 dst=10.0.0.2", "2001:db8::1 dst=2001:db8::2"]
        .into_iter()
        .flat_map(|outer| [inner, inner6].map(|inner| (outer, inner)))
    {
        let link = "eth.src=02:00:00:00:00:07 eth.dst=02:00:00:00:00:08 vlan=5.1";
        for tunnel in ethernet {
            let bytes = frame(&format!("{link} src={outer} {tunnel} inner({inside}) trailer=eeee"));
            let out = acted(vec![Operation::Decap(kind(tunnel))], &bytes);
            assert_eq!(out, frame(inside), "{tunnel}");
        }
        for tunnel in ip {
            let bytes = frame(&format!("{link} src={outer} {tunnel} inner({inside}) trailer=eeee"));
            let out = acted(vec![Operation::Decap(kind(tunnel))], &bytes);
            assert_eq!(out, frame(&format!("{link} {inside}")), "{tunnel}");
        }
    }
    for (tunnel, other) in [("vni=5", TunnelKind::Geneve), ("tunnel=gre", TunnelKind::Ipip)] {
        let bytes = frame(&format!("{tunnel} inner({inner})"));
        assert_eq!(
            fails(vec![Operation::Decap(other)], &bytes),
            dropped(DropReason::NotApplicable),
            "{tunnel}"
        );
    }
}

#[test]
fn a9_what_encap_adds_decap_removes() {
    for kind in TunnelKind::ALL {
        for (ethernet, ipv6) in [(false, false), (true, false), (false, true), (true, true)] {
            let spec = kind.spec();
            if !(if ethernet { spec.ethernet } else { spec.ip }) {
                continue;
            }
            let encap = Encap { ethernet, ..tunnel(*kind, ipv6) };
            let out = acted(vec![Operation::Encap(encap)], &frame(UDP));
            let back = acted(vec![Operation::Decap(*kind)], &out);
            let start = if ethernet { 0 } else { 14 };
            assert_eq!(back[start..], frame(UDP)[start..], "{encap:?}");
            assert_eq!(back[12..14], [8, 0]);
        }
    }
}

#[test]
fn a17_an_unknown_critical_option_is_not_decapsulated() {
    let geneve = |header: &str| frame(&format!("tunnel=geneve header={header} inside=ethernet inner({UDP})"));
    let decap = || vec![Operation::Decap(TunnelKind::Geneve)];
    // Eight bytes; then class 0x0102, type 1 or 0x81, a length in words, data.
    assert_eq!(acted(decap(), &geneve("02006558000005000102010100000000")), frame(UDP));
    let critical = dropped(DropReason::GeneveCriticalOption);
    assert_eq!(fails(decap(), &geneve("014065580000050001028100")), critical);
    assert_eq!(fails(decap(), &geneve("0300655800000500010201010000000001028100")), critical);
    let too_long = geneve("010065580000050001020101");
    assert_eq!(fails(decap(), &too_long), dropped(DropReason::MalformedGeneve));
    // A node that does not terminate the tunnel forwards them.
    let bytes = geneve("014065580000050001028100");
    assert_eq!(acted(vec![Operation::DecrementTtl], &bytes)[42..], bytes[42..]);
}

/// The select hash of packets from 10.0.0.1 to 10.0.0.2 over UDP.
fn hash(ports: (u16, u16)) -> u64 {
    select_hash(7, &FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, ports, None).0)
}

/// A packet as hashed by [`hash`].
fn flow((sport, dport): (u16, u16)) -> String {
    format!("src=10.0.0.1 dst=10.0.0.2 proto=udp sport={sport} dport={dport}")
}

/// The outer source address, as a number.
fn source(out: &[u8], ipv6: bool) -> u128 {
    let at = if ipv6 { 22..38 } else { 26..30 };
    out[at].iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

#[test]
fn a23_low_bits_of_the_outer_source_come_from_the_select_hash() {
    let text = flow((7, 80));
    let part = |numbers: u128| 1 + ((u128::from(hash((7, 80)).rotate_left(32)) * numbers) >> 64);
    for kind in TunnelKind::ALL {
        for (ipv6, src, prefix) in
            [(false, 0x0aff_0001, 0x0aff_0000), (true, 0xfd00 << 112 | 1, 0xfd00_u128 << 112)]
        {
            for udp_checksum in [false, true] {
                let with = |bits| {
                    let (src, src_bits) = (Value::Const(src), Some(Value::Const(bits)));
                    let out = wrapped(Encap { src, src_bits, udp_checksum, ..tunnel(*kind, ipv6) }, &text);
                    assert!(checksums_are_right(&out), "{kind}");
                    source(&out, ipv6)
                };
                assert_eq!([0, 1].map(with), [src, src], "{kind}");
                assert_eq!(with(2), prefix + part(2), "{kind}");
                assert_eq!(with(8), prefix + part(254), "{kind}");
                assert_eq!(with(16), prefix + part(65_534), "{kind}");
                if ipv6 {
                    assert_eq!([64, 255].map(with), [prefix + part((1 << 64) - 2); 2], "{kind}");
                } else {
                    assert_eq!([24, 255].map(with), [0x0a00_0000 + part((1 << 24) - 2); 2], "{kind}");
                }
            }
        }
    }
}

#[test]
fn a23_a_flow_has_one_source_and_many_flows_have_many() {
    for (ipv6, prefix) in [(false, 0x0aff_0000), (true, 0xfd00_u128 << 112)] {
        let (src, src_bits) = (Value::Const(prefix), Some(Value::Const(8)));
        let encap = Encap { src, src_bits, ..tunnel(TunnelKind::Ipip, ipv6) };
        let mut executors = start(&program(vec![act(vec![Operation::Encap(encap)])]));
        let mut from = |bytes: &[u8]| {
            let walk = executors.walk(PortId(0), bytes, 128, 0);
            assert_eq!(walk.verdict, HIT, "{:?}", walk.trace);
            source(&walk.bytes, ipv6) - prefix
        };
        let mut of = |sport: u16, more: &str| from(&frame(&format!("{} {more}", flow((sport, 53)))));
        let seen: HashSet<u128> = (1..=2000).map(|sport| of(sport, "")).collect();
        assert!(seen.len() >= 250 && seen.iter().all(|host| (1..=254).contains(host)), "{seen:?}");
        assert!((1..=20).all(|sport| of(sport, "") == of(sport, "dscp=46 ttl=3 payload=c0ffee")));
        // Errors about a flow's packets belong to the flow.
        let about = "src=10.0.0.2 dst=10.0.0.1 proto=udp sport=53 dport=7";
        let about: String = frame(about)[14..42].iter().map(|byte| format!("{byte:02x}")).collect();
        let error = format!("src=10.0.0.9 dst=10.0.0.2 proto=icmp icmp_type=11 payload={about}");
        let error = frame(&error);
        let wanted = of(7, "");
        assert_eq!(from(&error), wanted);
    }
}

#[test]
fn a24_the_flow_label_comes_from_the_select_hash_and_is_never_0() {
    let label = |out: &[u8]| u32::from(number(out, 14) & 15) << 16 | u32::from(number(out, 16));
    let all = (1..=u16::MAX).flat_map(|dport| (1..500).map(move |sport| (sport, dport)));
    let unlabelled = all.into_iter().find(|ports| hash(*ports) & 0xf_ffff == 0).unwrap();
    for kind in TunnelKind::ALL {
        for sport in [None, Some(Value::Const(9))] {
            let encap = Encap { sport, ..tunnel(*kind, true) };
            let wanted = hash((7, 80)) as u32 & 0xf_ffff;
            assert_eq!(label(&wrapped(encap, &flow((7, 80)))), wanted, "{kind}");
            assert_eq!(label(&wrapped(encap, &flow(unlabelled))), 1, "{kind}");
        }
    }
}
