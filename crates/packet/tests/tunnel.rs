//! Tunnel headers as the RFCs draw them, read and written.

use std::net::{Ipv4Addr, Ipv6Addr};
use weir_packet::tunnel::{Carried, Header, Id, Inside, Outer, OuterShape, Unread};
use weir_packet::{Sum, TunnelKind, TunnelPorts, checksum};

fn read(kind: TunnelKind, bytes: &[u8]) -> Result<Header, Unread> {
    kind.read(bytes, 0)
}

fn header(length: usize, id: Option<u32>, inside: Option<Inside>) -> Result<Header, Unread> {
    Ok(Header { length, id: id.map(|value| Id { at: 4, value }), inside })
}

#[test]
fn geneve_options_are_stepped_over() {
    let plain = [0, 0, 0x65, 0x58, 0, 0, 7, 0];
    assert_eq!(read(TunnelKind::Geneve, &plain), header(8, Some(7), Some(Inside::Ethernet)));
    let options = [0x02, 0x40, 0x86, 0xdd, 1, 2, 3, 0, 1, 2, 0x80, 1, 0, 0, 0, 0];
    assert_eq!(read(TunnelKind::Geneve, &options), header(16, Some(0x010203), Some(Inside::Ipv6)));
    assert_eq!(read(TunnelKind::Geneve, &options[..15]), Err(Unread::Malformed));
    let control = [0, 0x80, 0x08, 0, 0, 0, 7, 0];
    assert_eq!(read(TunnelKind::Geneve, &control), header(8, Some(7), None), "a control message");
    assert_eq!(read(TunnelKind::Geneve, &[0x40, 0, 8, 0, 0, 0, 7, 0]), Err(Unread::Unknown), "version 1");
}

#[test]
fn gre_has_a_key_where_its_bit_says_so() {
    assert_eq!(read(TunnelKind::Gre, &[0, 0, 8, 0]), header(4, None, Some(Inside::Ipv4)));
    let key = [0x20, 0, 0x65, 0x58, 1, 2, 3, 4];
    assert_eq!(read(TunnelKind::Gre, &key), header(8, Some(0x01020304), Some(Inside::Ethernet)));
    let all = [0xb0, 0, 0x86, 0xdd, 9, 9, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1];
    let behind_checksum = Some(Id { at: 8, value: 5 });
    assert_eq!(
        read(TunnelKind::Gre, &all).map(|header| (header.length, header.id)),
        Ok((16, behind_checksum))
    );
    assert_eq!(read(TunnelKind::Gre, &all[..15]), Err(Unread::Malformed));
    assert_eq!(read(TunnelKind::Gre, &[0, 0, 0x88, 0xbe]), header(4, None, None), "ERSPAN is not read");
    assert_eq!(read(TunnelKind::Gre, &[0x30, 1, 0x88, 0x0b]), Err(Unread::Unknown), "version 1: PPTP");
    assert_eq!(read(TunnelKind::Gre, &[0x40, 0, 8, 0]), Err(Unread::Unknown), "a source route");
}

#[test]
fn gue_has_two_variants() {
    assert_eq!(read(TunnelKind::Gue, &[0, 4, 0, 0]), header(4, None, Some(Inside::Ipv4)));
    assert_eq!(read(TunnelKind::Gue, &[1, 41, 0, 0, 0, 0, 0, 0]), header(8, None, Some(Inside::Ipv6)));
    assert_eq!(read(TunnelKind::Gue, &[1, 41, 0, 0]), Err(Unread::Malformed));
    assert_eq!(read(TunnelKind::Gue, &[0x20, 0, 0, 0]), header(4, None, None), "a control message");
    assert_eq!(
        read(TunnelKind::Gue, &[0, 6, 0, 0]),
        header(4, None, None),
        "TCP directly in GUE is not read"
    );
    assert_eq!(read(TunnelKind::Gue, &[0x45]), header(0, None, Some(Inside::Ipv4)));
    assert_eq!(read(TunnelKind::Gue, &[0x60]), header(0, None, Some(Inside::Ipv6)));
    assert_eq!(read(TunnelKind::Gue, &[0x80, 4, 0, 0]), Err(Unread::Unknown), "variant 2");
    assert_eq!(read(TunnelKind::Gue, &[0x50]), Err(Unread::Unknown), "variant 1 with neither IPv4 nor IPv6");
}

#[test]
fn ip_in_ip_is_told_by_the_protocol_alone() {
    assert_eq!(TunnelKind::Ipip.read(&[], 4), header(0, None, Some(Inside::Ipv4)));
    assert_eq!(TunnelKind::Ipip.read(&[], 41), header(0, None, Some(Inside::Ipv6)));
    let kinds = [47, 4, 41, 17].map(TunnelKind::of_protocol);
    assert_eq!(kinds, [Some(TunnelKind::Gre), Some(TunnelKind::Ipip), Some(TunnelKind::Ipip), None]);
}

#[test]
fn a_port_means_a_kind_and_can_be_another() {
    let mut ports = TunnelPorts::default();
    let kinds = [4789, 6081, 6080, 0, 53].map(|port| ports.kind(port));
    assert_eq!(kinds, [Some(TunnelKind::Vxlan), Some(TunnelKind::Geneve), Some(TunnelKind::Gue), None, None]);
    ports.set(TunnelKind::Vxlan, 8472);
    assert_eq!([4789, 8472].map(|port| ports.kind(port)), [None, Some(TunnelKind::Vxlan)]);
}

/// Every written kind can be read again, and etherparse finds the outer headers whole.
#[test]
fn outer_headers_are_read_again() {
    for &kind in TunnelKind::ALL {
        let spec = kind.spec();
        let carried = [(spec.ethernet, Inside::Ethernet), (spec.ip, Inside::Ipv4), (spec.ip, Inside::Ipv6)];
        for is_ipv6 in [false, true] {
            for inside in carried.into_iter().filter_map(|(can, inside)| can.then_some(inside)) {
                for extended in [spec.id_needed, spec.id.is_some() || kind == TunnelKind::Gue] {
                    written(OuterShape { kind, is_ipv6, extended, bare: false }, inside);
                }
                if kind == TunnelKind::Gue {
                    written(OuterShape { kind, is_ipv6, extended: false, bare: true }, inside);
                }
            }
        }
    }
}

fn written(shape: OuterShape, inside: Inside) {
    let (src, dst) = match shape.is_ipv6 {
        true => ("fd00::".parse().unwrap(), Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9).into()),
        false => (Ipv4Addr::new(10, 0, 0, 0).into(), Ipv4Addr::new(10, 0, 0, 2).into()),
    };
    let outer = Outer { eth_dst: [2; 6], eth_src: [4; 6], src, dst, ttl: 61, id: 0x123456 };
    let mut frame = vec![0xff; shape.length()];
    shape.write(&outer, inside, &TunnelPorts::default(), &mut frame);
    let has_id = shape.extended && shape.kind.spec().id.is_some();
    assert_eq!(shape.read(&frame), Outer { id: if has_id { outer.id } else { 0 }, ..outer }, "{shape:?}");
    let (host, flow_label) = (0x00ff_fffe, 0xa_bcde);
    let carried = Carried { length: 60, traffic_class: 0xb9, sport: Some(50000), flow_label, host };
    shape.finish().write(&mut frame, carried);
    frame.extend([0x5a; 60]);
    if shape.bare {
        // The version nibble of the inner packet identifies its type.
        frame[shape.length()] = if inside == Inside::Ipv4 { 0x45 } else { 0x60 };
    }
    let parsed = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
    let (protocol, tos, payload) = match parsed.net.as_ref().unwrap() {
        etherparse::NetSlice::Ipv4(ip) => {
            assert_eq!(checksum(Sum::default().bytes(&frame[14..34])), 0, "{shape:?}");
            let header = ip.header();
            assert_eq!(header.source(), [10, 255, 255, 254]);
            (header.protocol().0, header.dcp().value() << 2 | header.ecn().value(), ip.payload().payload)
        }
        etherparse::NetSlice::Ipv6(ip) => {
            let header = ip.header();
            assert_eq!(header.source_addr(), "fd00::ff:fffe".parse::<Ipv6Addr>().unwrap());
            assert_eq!((header.version(), header.flow_label().value()), (6, flow_label));
            (ip.header().next_header().0, ip.header().traffic_class(), ip.payload().payload)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!((protocol, tos), (shape.kind.protocol(inside), 0xb9), "{shape:?}");
    let header = match shape.kind.is_udp() {
        true => {
            let ports = [0, 2].map(|at| u16::from_be_bytes([payload[at], payload[at + 1]]));
            assert_eq!(ports, [50000, TunnelPorts::default().of(shape.kind)]);
            assert_eq!(usize::from(u16::from_be_bytes([payload[4], payload[5]])), payload.len());
            &payload[8..]
        }
        false => payload,
    };
    let found = shape.kind.read(header, protocol);
    let length = shape.length() - shape.tunnel();
    let id = Some(0x123456).filter(|_| shape.extended && shape.kind.spec().id.is_some());
    assert_eq!(found, self::header(length, id, Some(inside)), "{shape:?}");
    assert_eq!(header[length + 1..], [0x5a; 59]);
}
