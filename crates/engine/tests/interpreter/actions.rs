//! A1-A12.

use crate::setup::*;
use weir_packet::{DropReason, Field, FlowKey, TunnelKind, select_hash};
use weir_program::check::{FindingKind, check};
use weir_program::{Encap, Entry, Operation, PipeId, PortId, Value};

const TCP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=80 payload=010203";
const UDP: &str = "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=80 payload=010203";
const TCP6: &str = "src=2001:db8::1 dst=2001:db8::2 proto=tcp sport=7 dport=80 payload=010203";
const TUNNEL: &str =
    "src=10.0.0.1 dst=10.0.0.2 csum=good vni=5 inner(src=10.1.0.1 dst=10.1.0.2 proto=tcp sport=1 dport=2)";
/// Where the inner frame of [`TUNNEL`] starts.
const INNER: usize = 14 + 20 + 8 + 8;

fn set(field: Field, value: u128) -> Operation {
    Operation::Set(field, Value::Const(value))
}

fn push(vid: u128) -> Operation {
    Operation::PushVlan { tpid: 0x88a8, vid: Value::Const(vid), pcp: Value::Const(3) }
}

fn encap(ipv6: bool, sport: Option<Value>) -> Operation {
    let [src, dst] = if ipv6 { [1 << 64 | 1, 1 << 64 | 2] } else { [0x0a09_0001, 0x0a09_0002] };
    Operation::Encap(Encap {
        eth_dst: Value::Const(0x0200_0000_0009),
        eth_src: Value::Const(0x0200_0000_0008),
        ipv6,
        src: Value::Const(src),
        dst: Value::Const(dst),
        id: Some(Value::Const(0x01_0203)),
        ttl: Value::Const(33),
        sport,
        ..Encap::new(TunnelKind::Vxlan)
    })
}

#[test]
fn a1_the_check_refuses_another_order() {
    let good = vec![
        Operation::Decap(TunnelKind::Vxlan),
        Operation::PopVlan,
        Operation::DecrementTtl,
        push(5),
        encap(false, None),
    ];
    let refused = |operations: Vec<Operation>| {
        let program = program(vec![act(operations)]);
        check(&program).iter().any(|one| matches!(one.kind, FindingKind::ActionOrder { .. }))
    };
    assert!(!refused(good.clone()));
    for at in 0..good.len() - 1 {
        let mut bad = good.clone();
        bad.swap(at, at + 1);
        assert!(refused(bad), "{at}");
    }
}

#[test]
fn a1_operations_are_carried_out_in_order() {
    let bytes = frame(&format!("vlan=7.0 {UDP}"));
    let out = acted(vec![Operation::PopVlan, set(Field::L4Dport, 53), push(9), encap(false, None)], &bytes);
    assert_eq!(out[50 + 12..50 + 16], [0x88, 0xa8, 0x60, 9]);
    assert_eq!(number(&out, 50 + 18 + 20 + 2), 53);
    assert!(checksums_are_right(&out[50..]));
}

#[test]
fn a2_an_operation_on_an_absent_header_drops_with_not_applicable() {
    let arp = frame("arp=request sender_ip=10.0.0.1 target_ip=10.0.0.2");
    let bad = dropped(DropReason::NotApplicable);
    assert_eq!(fails(vec![set(Field::TcpDport, 1)], &frame(UDP)), bad);
    assert_eq!(fails(vec![Operation::Add(Field::VlanVid, Value::Const(1))], &frame(UDP)), bad);
    assert_eq!(fails(vec![Operation::Copy { from: Field::VlanVid, to: Field::Meta0 }], &frame(UDP)), bad);
    assert_eq!(fails(vec![Operation::Copy { from: Field::Ipv4Ttl, to: Field::VlanVid }], &frame(UDP)), bad);
    assert_eq!(fails(vec![Operation::DecrementTtl], &arp), bad);
    assert_eq!(fails(vec![Operation::PopVlan], &frame(UDP)), bad);
    assert_eq!(fails(vec![Operation::Decap(TunnelKind::Vxlan)], &frame(UDP)), bad);
}

#[test]
fn a2_layers_are_those_after_decap_and_pop_vlan() {
    let out = acted(vec![Operation::Decap(TunnelKind::Vxlan), set(Field::TcpDport, 99)], &frame(TUNNEL));
    assert_eq!(number(&out, 14 + 20 + 2), 99);
    assert!(checksums_are_right(&out));
    let two = frame(&format!("vlan=7.0 second_vlan=8.0 {UDP}"));
    let out = acted(vec![Operation::PopVlan, set(Field::VlanVid, 9)], &two);
    assert_eq!(number(&out, 14) & 0xfff, 9);
    let bad = fails(vec![Operation::PopVlan, set(Field::SecondVlanVid, 9)], &two);
    assert_eq!(bad, dropped(DropReason::NotApplicable));
    let hidden = frame("vlan=7.0 second_vlan=8.0 type=33024 payload=000a0806");
    let pop_and_more = only(Field::IpVersion, 0, 15).act([Operation::PopVlan, push(1)]);
    assert_eq!(meets(pop_and_more, &hidden), dropped(DropReason::MalformedArp), "found again at once");
    let pop = only(Field::IpVersion, 0, 15).act([Operation::PopVlan]);
    assert_eq!(meets(pop, &hidden), HIT, "nothing follows");
}

#[test]
fn a3_add_wraps_and_copy_keeps_the_low_bits() {
    let out = acted(vec![Operation::Add(Field::L4Sport, Value::Const(0xfffa))], &frame(UDP));
    assert_eq!(number(&out, 34), 1);
    let out = acted(vec![Operation::Add(Field::Ipv6Dst, Value::Const(u128::MAX))], &frame(TCP6));
    assert_eq!(out[53], 1);
    assert!(checksums_are_right(&out));
    let out = acted(vec![Operation::Copy { from: Field::Ipv4Dst, to: Field::L4Dport }], &frame(TCP));
    assert_eq!(number(&out, 36), 2, "10.0.0.2 in 16 bits");
    let out = acted(vec![Operation::Copy { from: Field::L4Dport, to: Field::Ipv4Dst }], &frame(TCP));
    assert_eq!(out[30..34], [0, 0, 0, 80]);
    assert!(checksums_are_right(&out));
    let out = acted(vec![Operation::Copy { from: Field::Ipv4Ttl, to: Field::Ipv4Ecn }], &frame(TCP));
    assert_eq!(out[15], 0, "64 has no low bits");
}

#[test]
fn a3_a_field_in_the_middle_of_a_byte_leaves_its_neighbours() {
    let text = "src=2001:db8::1 dst=2001:db8::2 dscp=63 ecn=3 flow_label=1048575";
    let out = acted(vec![set(Field::Ipv6TrafficClass, 0x5a)], &frame(text));
    assert_eq!(out[14..18], [0x65, 0xaf, 0xff, 0xff]);
    let out = acted(vec![set(Field::Ipv6FlowLabel, 0x12345)], &frame(text));
    assert_eq!(out[14..18], [0x6f, 0xf1, 0x23, 0x45]);
    let out = acted(vec![set(Field::VlanPcp, 2)], &frame(&format!("vlan=4095.7 {UDP}")));
    assert_eq!(out[14..16], [0x4f, 0xff]);
    let out = acted(vec![set(Field::Ipv4Dscp, 0x2a)], &frame("src=10.0.0.1 dst=10.0.0.2 ecn=1"));
    assert_eq!(out[15], 0xa9);
}

#[test]
fn a4_a_ttl_of_0_or_1_expires() {
    for (ttl, verdict) in
        [(0, dropped(DropReason::TtlExpired)), (1, dropped(DropReason::TtlExpired)), (2, HIT)]
    {
        for family in ["src=10.0.0.1 dst=10.0.0.2", "src=2001:db8::1 dst=2001:db8::2"] {
            let bytes = frame(&format!("{family} ttl={ttl}"));
            assert_eq!(fails(vec![Operation::DecrementTtl], &bytes), verdict, "{family} {ttl}");
        }
    }
    let out = acted(vec![Operation::DecrementTtl], &frame(TCP));
    assert_eq!(out[14 + 8], 63);
    assert!(checksums_are_right(&out));
    assert_eq!(acted(vec![Operation::DecrementTtl], &frame(TCP6))[14 + 7], 63);
}

#[test]
fn a5_right_checksums_stay_right() {
    let icmpv6 = "src=2001:db8::1 dst=2001:db8::2 proto=icmpv6 icmp_type=128 payload=0102030405";
    let writes: &[(&str, &[Field])] = &[
        (
            TCP,
            &[
                Field::Ipv4Src,
                Field::Ipv4Dst,
                Field::Ipv4Ttl,
                Field::Ipv4Dscp,
                Field::Ipv4Ecn,
                Field::TcpSport,
            ],
        ),
        (UDP, &[Field::Ipv4Src, Field::Ipv4Dst, Field::UdpDport, Field::L4Sport]),
        (TCP6, &[Field::Ipv6Src, Field::Ipv6Dst, Field::Ipv6HopLimit, Field::Ipv6FlowLabel, Field::L4Dport]),
        (icmpv6, &[Field::Ipv6Src, Field::Ipv6Dst]),
    ];
    for (text, fields) in writes {
        for &field in *fields {
            let odd_value = field.max() / 3;
            let out = acted(vec![set(field, odd_value)], &frame(text));
            assert!(checksums_are_right(&out), "{field} of {text}");
            assert_ne!(out, frame(text));
        }
    }
}

#[test]
fn a5_a_change_inside_vxlan_mends_the_inner_checksums_and_the_outer_one() {
    let fields = [
        Field::Ipv4Src.inner(),
        Field::Ipv4Dst.inner(),
        Field::Ipv4Ttl.inner(),
        Field::Ipv4Dscp.inner(),
        Field::L4Sport.inner(),
        Field::EthDst.inner(),
        Field::VxlanVni,
        Field::Ipv4Src,
        Field::UdpSport,
    ];
    for field in fields {
        let bytes = frame(TUNNEL);
        assert!(checksums_are_right(&bytes) && number(&bytes, 40) != 0);
        let out = acted(vec![set(field, field.max() / 7)], &bytes);
        assert!(checksums_are_right(&out), "the outer ones, {field}");
        assert!(checksums_are_right(&out[INNER..]), "the inner ones, {field}");
    }
    let none = frame(&TUNNEL.replace("csum=good", "csum=0"));
    let out = acted(vec![set(Field::Ipv4Src.inner(), 9)], &none);
    assert_eq!(number(&out, 40), 0, "no outer checksum, so none to update");
    assert!(checksums_are_right(&out[INNER..]));
}

/// Over header and payload, which are everything after the outer IP header.
#[test]
fn a5_a_change_inside_gre_mends_its_checksum() {
    let text =
        "tunnel=gre header=a00008000000000000000007 inner(src=10.1.0.1 dst=10.1.0.2 proto=udp payload=0102)";
    let mut bytes = frame(text);
    let sum = weir_packet::checksum(weir_packet::Sum::default().bytes(&bytes[34..]));
    bytes[38..40].copy_from_slice(&sum.to_be_bytes());
    for (field, value) in [(Field::Ipv4Dst.inner(), 0x0a01_0063), (Field::GreKey, 0x1234_5678)] {
        let out = acted(vec![Operation::Set(field, Value::Const(value))], &bytes);
        assert_ne!(out[38..40], bytes[38..40], "{field}");
        assert_eq!(weir_packet::checksum(weir_packet::Sum::default().bytes(&out[34..])), 0, "{field}");
    }
}

#[test]
fn a5_a_wrong_checksum_stays_as_wrong_as_it_was() {
    let good = frame(TCP);
    let mut bad = good.clone();
    bad[14 + 20 + 17] ^= 1;
    let change = vec![set(Field::Ipv4Src, 0x0a00_0044), set(Field::L4Dport, 9)];
    let (good, bad) = (acted(change.clone(), &good), acted(change, &bad));
    let differ: Vec<usize> = (0..good.len()).filter(|&at| good[at] != bad[at]).collect();
    assert!(differ.iter().all(|&at| at == 50 || at == 51) && !differ.is_empty());
    assert!(!checksums_are_right(&bad));
}

#[test]
fn a6_no_udp_checksum_stays_none_and_a_mended_one_is_never_0() {
    let none = acted(vec![set(Field::L4Dport, 9)], &frame(&format!("{UDP} csum=0")));
    assert_eq!(number(&none, 40), 0);
    // Incrementing a port decrements the checksum: from 1 to 0, which is written as 0xffff.
    let one = acted(vec![Operation::Add(Field::L4Dport, Value::Const(1))], &frame(&format!("{UDP} csum=1")));
    assert_eq!(number(&one, 40), 0xffff);
}

#[test]
fn a6_another_mended_checksum_is_never_all_ones() {
    // From 0xfffe up to all ones, which is written as 0.
    let bytes = frame(&format!("{TCP} csum=65534 ip_csum=65534"));
    let minus_one = |field: Field| Operation::Add(field, Value::Const(field.max()));
    assert_eq!(number(&acted(vec![minus_one(Field::L4Dport)], &bytes), 50), 0);
    assert_eq!(
        number(
            &acted(
                vec![minus_one(Field::Ipv4Ecn), minus_one(Field::Ipv4Ecn), minus_one(Field::Ipv4Ecn)],
                &frame(&format!("{TCP} ecn=3 ip_csum=65532"))
            ),
            24
        ),
        0
    );
}

#[test]
fn a6_a_value_that_stays_is_written_all_the_same() {
    let bytes = frame(&format!("{TCP} csum=65535"));
    assert_eq!(
        number(&acted(vec![set(Field::L4Dport, 80)], &bytes), 50),
        0,
        "0xffff and 0 are the same \
        number"
    );
    let udp = frame(&format!("{UDP} csum=65535"));
    assert_eq!(number(&acted(vec![set(Field::L4Dport, 80)], &udp), 40), 0xffff);
}

#[test]
fn a7_addresses_of_a_first_fragment_mend_its_checksum() {
    for text in [TCP, UDP, TCP6] {
        let whole = frame(text);
        let ipv6 = text == TCP6;
        let field = if ipv6 { Field::Ipv6Dst } else { Field::Ipv4Dst };
        let changed = acted(vec![set(field, 0x0a00_0077)], &whole);
        let first = frame(&format!("{text} frag=0+"));
        let out = acted(vec![set(field, 0x0a00_0077)], &first);
        // The checksum of a fragment built by `craft` covers the fragment: it changes by the same amount.
        let shift = if ipv6 { 8 } else { 0 };
        let at = if text == UDP {
            40
        } else if ipv6 {
            54 + 16
        } else {
            50
        };
        let moved = |before: u16, after: u16| (u32::from(after) + 0xffff - u32::from(before)) % 0xffff;
        let expected = moved(number(&whole, at), number(&changed, at));
        assert_eq!(moved(number(&first, at + shift), number(&out, at + shift)), expected, "{text}");
    }
}

#[test]
fn a7_a_checksum_beyond_the_fragment_and_later_fragments_are_left_alone() {
    let later = "src=10.0.0.1 dst=10.0.0.2 proto=udp frag=1480 payload=000102030405060708090a0b0c0d0e0f";
    for text in [later, &later.replace("frag=1480", "frag=1480+")] {
        let bytes = frame(text);
        let out = acted(vec![set(Field::Ipv4Src, 1)], &bytes);
        assert_eq!(out[34..], bytes[34..], "{text}");
    }
    // A TCP checksum lies 16 bytes into the header; this first fragment carries 16 and then padding.
    let mut short = frame("src=10.0.0.1 dst=10.0.0.2 proto=tcp frag=0+");
    short[17] = 20 + 16;
    let out = acted(vec![set(Field::Ipv4Src, 1)], &short);
    assert_eq!(out[34..], short[34..]);
}

#[test]
fn a8_encap_puts_the_outer_headers_in_front() {
    let bytes = frame(UDP);
    let out = acted(vec![encap(false, Some(Value::Const(0xbeef)))], &bytes);
    let ip_length = 20 + 8 + 8 + bytes.len() as u16;
    assert_eq!(out[..14], [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8, 8, 0]);
    assert_eq!((out[14], out[15], number(&out, 16), number(&out, 18)), (0x45, 0, ip_length, 0));
    assert_eq!((number(&out, 20), out[22], out[23]), (0x4000, 33, 17), "DF, TTL, UDP");
    assert_eq!(out[26..34], [10, 9, 0, 1, 10, 9, 0, 2]);
    assert_eq!([34, 36, 38, 40].map(|at| number(&out, at)), [0xbeef, 4789, ip_length - 20, 0]);
    assert_eq!(out[42..50], [8, 0, 0, 0, 1, 2, 3, 0]);
    assert_eq!(out[50..], bytes);
    assert!(checksums_are_right(&out));
    let out = acted(vec![encap(true, Some(Value::Const(0xbeef)))], &bytes);
    assert_eq!((number(&out, 12), out[14], out[15] >> 4), (0x86dd, 0x60, 0), "the flow label follows it");
    assert_eq!(out[18..22], [0, 16 + bytes.len() as u8, 17, 33]);
    assert_eq!((out[22 + 7], out[22 + 15], out[38 + 15]), (1, 1, 2));
    assert_eq!([54, 56, 58, 60].map(|at| number(&out, at)), [0xbeef, 4789, 16 + bytes.len() as u16, 0]);
    assert_eq!(out[70..], bytes);
}

#[test]
fn a8_the_source_port_comes_from_the_select_hash() {
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (7, 80), None);
    let out = acted(vec![set(Field::L4Dport, 9), encap(false, None)], &frame(UDP));
    assert_eq!(number(&out, 34), 49152 + (select_hash(7, &key.0) >> 50) as u16, "of the key as received");
    let arp = frame(
        "eth.src=02:00:00:00:00:01 eth.dst=ff:ff:ff:ff:ff:ff arp=request sender_ip=10.0.0.1 \
            target_ip=10.0.0.2",
    );
    let out = acted(vec![encap(false, None)], &arp);
    let hash = select_hash(7, &[0xffff_ffff_ffff, 0x0200_0000_0001, 0x0806]);
    assert_eq!(number(&out, 34), 49152 + (hash >> 50) as u16);
}

#[test]
fn a8_not_enough_headroom_drops_with_no_headroom() {
    for (operation, needed) in [(push(5), 4), (encap(false, None), 50), (encap(true, None), 70)] {
        let mut interpreter = start(&program(vec![act(vec![operation])]));
        assert_eq!(interpreter.walk(PortId(0), &frame(UDP), needed, 0).verdict, HIT);
        let verdict = interpreter.walk(PortId(0), &frame(UDP), needed - 1, 0).verdict;
        assert_eq!(verdict, dropped(DropReason::NoHeadroom));
    }
    // Removing headers makes room.
    let mut interpreter =
        start(&program(vec![act(vec![Operation::Decap(TunnelKind::Vxlan), encap(false, None)])]));
    assert_eq!(interpreter.walk(PortId(0), &frame(TUNNEL), 0, 0).verdict, HIT);
}

#[test]
fn a9_decap_cuts_off_what_lies_behind_the_datagram() {
    let bytes = frame(&format!("{TUNNEL} trailer=eeeeee"));
    let out = acted(vec![Operation::Decap(TunnelKind::Vxlan)], &bytes);
    assert_eq!(out, bytes[INNER..bytes.len() - 3]);
    assert_eq!(
        fails(vec![Operation::Decap(TunnelKind::Vxlan)], &frame(UDP)),
        dropped(DropReason::NotApplicable)
    );
}

#[test]
fn a10_push_puts_a_tag_in_front_and_pop_takes_the_outermost_off() {
    let bytes = frame(&format!("vlan=7.0 {UDP}"));
    let out = acted(vec![push(9)], &bytes);
    assert_eq!(out[..12], bytes[..12]);
    assert_eq!(out[12..16], [0x88, 0xa8, 0x60, 9]);
    assert_eq!(out[16..], bytes[12..]);
    assert_eq!(acted(vec![Operation::PopVlan], &out), bytes);
}

#[test]
fn a11_metadata_starts_as_0_and_lasts_for_the_frame() {
    let read = |value| only(Field::Meta2, value, u128::from(u32::MAX));
    assert_eq!(meets(read(0), &frame(UDP)), HIT);
    let write = act(vec![set(Field::Meta2, 5)]).forward(PipeId(1));
    let mut interpreter = start(&program(vec![write, read(5)]));
    for _ in 0..2 {
        assert_eq!(interpreter.walk(PortId(0), &frame(UDP), 128, 0).verdict, HIT);
    }
    let counted = act(vec![Operation::Add(Field::Meta2, Value::Const(1))]).forward(PipeId(1));
    let mut interpreter = start(&program(vec![counted, read(1)]));
    for _ in 0..2 {
        assert_eq!(
            interpreter.walk(PortId(0), &frame(UDP), 128, 0).verdict,
            HIT,
            "the next frame starts from 0"
        );
    }
}

#[test]
fn a11_the_check_refuses_metadata_read_before_every_way_has_written_it() {
    let read = only(Field::Meta2, 5, u128::from(u32::MAX));
    let write = act(vec![set(Field::Meta2, 5)]).forward(PipeId(1)).miss(PipeId(1));
    let program = program(vec![write, read]);
    assert!(check(&program).iter().any(|one| matches!(one.kind, FindingKind::MetadataUnwritten { .. })));
}

#[test]
fn a12_an_action_that_fails_drops_the_packet_after_counting_it() {
    let mut interpreter = start(&program(vec![act(vec![set(Field::EthDst, 1), Operation::PopVlan])]));
    let walk = interpreter.walk(PortId(0), &frame(UDP), 128, 0);
    assert_eq!(walk.verdict, dropped(DropReason::NotApplicable));
    assert_eq!(hits(&interpreter, 0, 0).packets, 1);
}

#[test]
fn values_of_an_entry_are_used_in_the_order_of_its_operations() {
    let operations = vec![
        Operation::Set(Field::EthDst, Value::PerEntry),
        Operation::Set(Field::L4Dport, Value::Const(9)),
        Operation::PushVlan { tpid: 0x8100, vid: Value::PerEntry, pcp: Value::PerEntry },
    ];
    let mut pipe = act(operations);
    let entry = Entry::default().value(0x0200_0000_0044_u64).value(5).value(6);
    pipe.entries.edit(|all| all[0] = entry);
    let out = walk(&program(vec![pipe]), &frame(UDP)).bytes;
    assert_eq!((out[5], number(&out, 14), number(&out, 40)), (0x44, 6 << 13 | 5, 9));
}
