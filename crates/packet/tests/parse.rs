//! Parsing, against any bytes and against etherparse as an oracle.
//!
//! Wherever both accept a frame, they find the same headers at the same places. Where only one accepts it,
//! the reason is one of those that [`refused_on_purpose`] names.

mod recipes;

use etherparse::{LinkExtSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr};
use weir_packet::craft::{Recipe, frame};
use weir_packet::{
    Base, Depth, DropReason, FlowKey, Headers, KeySource, Layer, Level, TunnelKind, TunnelPorts, parse,
    parse_into,
};

const DEPTHS: [Depth; 4] = [Depth::L2, Depth::L3, Depth::L4, Depth::Inner];

/// The layers that a depth can find.
fn layers_of(depth: Depth) -> u32 {
    match depth {
        Depth::L2 => Layer::Arp as u32 - 1,
        Depth::L3 => Layer::Tcp as u32 - 1,
        Depth::L4 => Layer::Tunnel as u32 - 1,
        Depth::Inner => u32::MAX,
    }
}

/// The depth at which a malformed header is encountered.
fn depth_of(reason: DropReason) -> Depth {
    match reason {
        DropReason::MalformedEthernet => Depth::L2,
        DropReason::MalformedArp
        | DropReason::MalformedIpv4
        | DropReason::Ipv4LengthZero
        | DropReason::MalformedIpv6 => Depth::L3,
        DropReason::TooManyExtensionHeaders => Depth::L3,
        DropReason::MalformedTcp | DropReason::MalformedUdp | DropReason::MalformedIcmp => Depth::L4,
        DropReason::MalformedVxlan | DropReason::MalformedGeneve => Depth::Inner,
        DropReason::MalformedGre | DropReason::MalformedGue | DropReason::MalformedInner => Depth::Inner,
        other => panic!("{other} is no reason to refuse a header"),
    }
}

/// Invariants for any bytes: offsets lie inside the frame in order, keys can be built, and each depth agrees
/// with the one below it.
fn check_depths(bytes: &[u8]) -> Result<(), TestCaseError> {
    let mut shallower = Ok(Headers::default());
    for depth in DEPTHS {
        let result = parse(bytes, depth);
        match (&shallower, &result) {
            (Err(before), now) => prop_assert_eq!(&Err(*before), now),
            (Ok(_), Err(reason)) => prop_assert_eq!(depth_of(*reason), depth),
            (Ok(before), Ok(now)) => {
                check_places(bytes, now)?;
                let kept = if depth == Depth::L2 { 0 } else { layers_of(DEPTHS[depth as usize - 1]) };
                let (before, now) = (before.outer(), now.outer());
                prop_assert_eq!(now.layers.0 & kept, before.layers.0);
                prop_assert_eq!(now.layers.0 & !layers_of(depth), 0);
                prop_assert!(
                    depth <= Depth::L3
                        || (before.protocol, before.ether_type) == (now.protocol, now.ether_type)
                );
            }
        }
        shallower = result;
    }
    Ok(())
}

fn check_places(bytes: &[u8], headers: &Headers) -> Result<(), TestCaseError> {
    let ends = [
        (Layer::Ethernet as u32, Base::L2, 14),
        (Layer::Arp as u32, Base::L3, 28),
        (Layer::Ipv4 as u32, Base::L3, 20),
        (Layer::Ipv6 as u32, Base::L3, 40),
        (Layer::Udp as u32 | Layer::Icmp as u32 | Layer::Icmpv6 as u32, Base::L4, 8),
        (Layer::Tcp as u32, Base::L4, 20),
        (Layer::TunnelId as u32, Base::TunnelId, 4),
    ];
    for level in &headers.levels {
        for (layers, base, length) in ends {
            if level.layers.0 & layers != 0 {
                prop_assert!(level.at(base) + length <= bytes.len());
            }
        }
    }
    prop_assert_eq!(headers.tunnel().is_some(), headers.outer().layers.has(Layer::Tunnel));
    prop_assert!(!headers.inner().layers.has(Layer::Tunnel), "a tunnel in a tunnel is payload");
    prop_assert!(headers.tunnel().is_some() || *headers.inner() == Level::default());
    for source in [KeySource::Outer, KeySource::Inner] {
        let ip = |level: &Level| level.layers.has(Layer::Ipv4) || level.layers.has(Layer::Ipv6);
        let key = FlowKey::of(bytes, headers, source);
        let too_wide = source == KeySource::Inner && ip(headers.inner()) && headers.tunnel_id > 0xff_ffff;
        prop_assert_eq!(key.is_some(), ip(headers.outer()) && !too_wide);
        if let Some(key) = key {
            let parts =
                FlowKey::new(key.src(), key.dst(), key.protocol(), (key.sport(), key.dport()), key.vni());
            prop_assert_eq!(key, parts);
        }
    }
    Ok(())
}

/// The results that both parsers provide.
#[derive(Debug, Default, PartialEq)]
struct ParsedFacts {
    l3: usize,
    tags: usize,
    is_arp: bool,
    addresses: Option<(IpAddr, IpAddr)>,
    protocol: Option<u8>,
    is_fragment: bool,
    l4: Option<usize>,
    transport: Option<&'static str>,
    ports: Option<(u16, u16)>,
}

fn ours(bytes: &[u8], headers: &Headers) -> ParsedFacts {
    let level = headers.outer();
    let has = |layer| level.layers.has(layer);
    let key = FlowKey::of(bytes, headers, KeySource::Outer);
    let names = [(Layer::Tcp, "tcp"), (Layer::Udp, "udp"), (Layer::Icmp, "icmp"), (Layer::Icmpv6, "icmpv6")];
    ParsedFacts {
        l3: level.at(Base::L3),
        tags: usize::from(has(Layer::Vlan)) + usize::from(has(Layer::SecondVlan)),
        is_arp: has(Layer::Arp),
        addresses: key.map(|key| (key.src(), key.dst())),
        protocol: key.map(|key| key.protocol()),
        is_fragment: has(Layer::Fragment),
        l4: key.map(|_| level.at(Base::L4)),
        transport: names.into_iter().find(|(layer, _)| has(*layer)).map(|(_, name)| name),
        ports: key.filter(|_| has(Layer::Ports)).map(|key| (key.sport(), key.dport())),
    }
}

fn theirs(bytes: &[u8], packet: &SlicedPacket<'_>) -> ParsedFacts {
    let place = |slice: &[u8]| slice.as_ptr() as usize - bytes.as_ptr() as usize;
    let mut found = ParsedFacts {
        tags: packet.link_exts.len(),
        l3: 14 + 4 * packet.link_exts.len(),
        ..ParsedFacts::default()
    };
    let payload = match &packet.net {
        Some(NetSlice::Ipv4(ip)) => {
            found.addresses = Some((ip.header().source_addr().into(), ip.header().destination_addr().into()));
            Some(ip.payload())
        }
        Some(NetSlice::Ipv6(ip)) => {
            found.addresses = Some((ip.header().source_addr().into(), ip.header().destination_addr().into()));
            Some(ip.payload())
        }
        Some(NetSlice::Arp(_)) => {
            found.is_arp = true;
            None
        }
        None => None,
    };
    if let Some(payload) = payload {
        found.protocol = Some(payload.ip_number.0);
        found.is_fragment = payload.fragmented;
        found.l4 = Some(place(payload.payload));
    }
    (found.transport, found.ports) = match &packet.transport {
        Some(TransportSlice::Tcp(tcp)) => (Some("tcp"), Some((tcp.source_port(), tcp.destination_port()))),
        Some(TransportSlice::Udp(udp)) => (Some("udp"), Some((udp.source_port(), udp.destination_port()))),
        Some(TransportSlice::Icmpv4(_)) => (Some("icmp"), None),
        Some(TransportSlice::Icmpv6(_)) => (Some("icmpv6"), None),
        Some(TransportSlice::Igmp(_)) | None => (None, None),
    };
    found
}

/// Intended differences: etherparse accepts the frame and we do not, or we see less in it.
#[derive(Debug, PartialEq)]
enum Difference {
    /// TPID 0x9100, MACsec or a third tag, which our parser treats as payload.
    OtherLinkHeaders,
    /// A source from which no host may send (RFC 1122 §3.2.1.3, RFC 4291 §2.7): flow keys rely on there being
    /// no multicast one.
    Source,
    /// An IPv6 payload length of 0 or a UDP length of 0 followed by bytes (jumbograms, offload): etherparse
    /// uses the bytes present, we trust the header.
    LengthOfZero,
    /// ARP for anything but IPv4 over Ethernet.
    OtherArp,
    /// An authentication header over IPv4: a protocol like any other to us, not an extension.
    Ipv4Authentication,
    /// ICMP over IPv6 or ICMPv6 over IPv4: their numbers mean nothing there.
    ForeignIcmp,
    /// An ICMP error: its flow key is that of the packet inside.
    IcmpError,
    /// More extension headers than we follow, or in an order or of a kind only one of us follows.
    ExtensionHeaders,
}

fn difference(bytes: &[u8], packet: &SlicedPacket<'_>) -> Option<Difference> {
    let is_other = |ext: &LinkExtSlice<'_>| matches!(ext, LinkExtSlice::Macsec(_));
    let tpids = [12, 16].into_iter().filter_map(|at| bytes.get(at..at + 2)).take(packet.link_exts.len());
    if packet.link_exts.iter().any(is_other)
        || packet.link_exts.len() > 2
        || tpids.into_iter().any(|tpid| tpid == [0x91, 0])
    {
        return Some(Difference::OtherLinkHeaders);
    }
    let udp_length = match &packet.transport {
        Some(TransportSlice::Icmpv4(icmp)) if matches!(icmp.type_u8(), 3 | 4 | 5 | 11 | 12) => {
            return Some(Difference::IcmpError);
        }
        Some(TransportSlice::Icmpv6(icmp)) if icmp.type_u8() < 128 => return Some(Difference::IcmpError),
        Some(TransportSlice::Udp(udp)) => udp.length(),
        _ => 8,
    };
    match packet.net.as_ref()? {
        NetSlice::Ipv6(ip)
            if ip.header().source_addr().is_multicast()
                || (ip.header().source_addr().is_unspecified()
                    && !ip.header().destination_addr().is_multicast()) =>
        {
            Some(Difference::Source)
        }
        NetSlice::Ipv4(ip) if !can_send(ip.header().source_addr(), ip.header().destination_addr()) => {
            Some(Difference::Source)
        }
        NetSlice::Ipv6(ip)
            if ip.header().payload_length() == 0
                && !(ip.extensions().slice().is_empty() && ip.payload().payload.is_empty()) =>
        {
            Some(Difference::LengthOfZero)
        }
        _ if udp_length == 0 => Some(Difference::LengthOfZero),
        NetSlice::Arp(arp) if arp.slice()[..6] != [0, 1, 8, 0, 6, 4] => Some(Difference::OtherArp),
        NetSlice::Ipv4(ip) if ip.header().protocol().0 == 51 => Some(Difference::Ipv4Authentication),
        NetSlice::Ipv4(ip) if ip.payload().ip_number.0 == 58 => Some(Difference::ForeignIcmp),
        NetSlice::Ipv6(ip) if ip.payload().ip_number.0 == 1 => Some(Difference::ForeignIcmp),
        NetSlice::Ipv6(ip) if !plain_extensions(ip.header().next_header().0, ip.extensions().slice()) => {
            Some(Difference::ExtensionHeaders)
        }
        _ => None,
    }
}

fn can_send(source: Ipv4Addr, destination: Ipv4Addr) -> bool {
    let to_many = destination.is_multicast() || destination.is_broadcast();
    !source.is_multicast() && !source.is_broadcast() && (!source.is_unspecified() || to_many)
}

/// Kinds that both follow: at most eight, hop-by-hop options first and once, and nothing after a fragment
/// header.
fn plain_extensions(first: u8, mut rest: &[u8]) -> bool {
    let mut next = first;
    for count in 0.. {
        let is_extension = matches!(next, 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140);
        if !is_extension || rest.is_empty() {
            return !is_extension;
        }
        let bytes = match next {
            44 => 8,
            51 => (usize::from(rest[1]) + 2) * 4,
            _ => (usize::from(rest[1]) + 1) * 8,
        };
        if count == 8 || next > 60 || (next == 0 && count > 0) || (next == 44 && bytes < rest.len()) {
            return false;
        }
        (next, rest) = (rest[0], &rest[bytes..]);
    }
    true
}

/// Compares with the oracle; true when both accepted.
fn check_oracle(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let Ok(packet) = SlicedPacket::from_ethernet(bytes) else { return Ok(false) };
    if difference(bytes, &packet).is_some() {
        return Ok(false);
    }
    let headers = parse(bytes, Depth::L4);
    prop_assert!(headers.is_ok(), "{:?} where etherparse finds {:?}", headers, theirs(bytes, &packet));
    let headers = headers.unwrap_or_default();
    prop_assert_eq!(ours(bytes, &headers), theirs(bytes, &packet));
    Ok(true)
}

/// Bytes written over some places, most of them headers, and bytes cut off or appended.
fn corrupted(bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        prop::sample::select(vec![0, 1, 6, 17, 43, 44, 51, 58, 60, 0x45, 0x60, 0x81, 0xff])
    ];
    let change = (prop_oneof![3 => 0..60usize, 1 => 0..200usize], byte);
    (prop::collection::vec(change, 0..4), prop_oneof![2 => Just(0usize), 1 => 0..80usize]).prop_map(
        move |(changes, cut)| {
            let mut bytes = bytes.clone();
            for (at, value) in changes {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = value;
                }
            }
            bytes.truncate(bytes.len().saturating_sub(cut));
            bytes
        },
    )
}

fn crafted() -> impl Strategy<Value = Vec<u8>> {
    recipes::any_recipe()
        .prop_map(|text| text.parse::<Recipe>().map(|recipe| recipe.build()).unwrap_or_default())
}

/// Valid packets built by etherparse.
fn built() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop::collection::vec(any::<u8>(), 0..80);
    (any::<[u16; 2]>(), any::<[u8; 16]>(), any::<[u8; 16]>(), 0..3u8, 0..8u8, payload).prop_map(
        |(mut ports, mut src, dst, tags, kind, payload)| {
            src[0] &= 0x7f;
            // No tunnel has a port this high: what follows UDP is payload, never the header of a tunnel.
            ports[1] |= 0x8000;
            let start = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let v4 = ([src[1] & 0x7f | 1, src[2], src[3], src[4]], [dst[1], dst[2], dst[3], dst[4]]);
            let is_ipv4 = kind < 4;
            let vlan = |vid: u8| etherparse::VlanId::try_new(u16::from(vid)).unwrap_or_default();
            let step = match (tags, is_ipv4) {
                (0, true) => start.ipv4(v4.0, v4.1, 9),
                (0, false) => start.ipv6(src, dst, 9),
                (1, true) => start.single_vlan(vlan(src[5])).ipv4(v4.0, v4.1, 9),
                (1, false) => start.single_vlan(vlan(src[5])).ipv6(src, dst, 9),
                (_, true) => start.double_vlan(vlan(src[5]), vlan(src[6])).ipv4(v4.0, v4.1, 9),
                (_, false) => start.double_vlan(vlan(src[5]), vlan(src[6])).ipv6(src, dst, 9),
            };
            let mut bytes = Vec::new();
            let written = match kind % 4 {
                0 => step.udp(ports[0], ports[1]).write(&mut bytes, &payload),
                1 => step.tcp(ports[0], ports[1], 1, 2).syn().write(&mut bytes, &payload),
                2 if is_ipv4 => step.icmpv4_echo_request(1, 2).write(&mut bytes, &payload),
                2 => step.icmpv6_echo_request(1, 2).write(&mut bytes, &payload),
                _ => step.write(&mut bytes, etherparse::IpNumber(200), &payload),
            };
            assert!(written.is_ok());
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_bytes_parse_at_every_depth(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        check_depths(&bytes)?;
    }

    #[test]
    fn corrupted_frames_parse_at_every_depth(bytes in prop_oneof![crafted(),
        built()].prop_flat_map(corrupted)) {
        check_depths(&bytes)?;
    }

    #[test]
    fn corrupted_frames_agree_with_etherparse(bytes in prop_oneof![crafted(),
        built()].prop_flat_map(corrupted)) {
        check_oracle(&bytes)?;
    }

    #[test]
    fn etherparses_own_frames_agree(bytes in built()) {
        prop_assert!(check_oracle(&bytes)?);
        let headers = parse(&bytes, Depth::Inner);
        prop_assert!(!headers.is_err_and(|reason| depth_of(reason) != Depth::Inner));
        // craft computes the same lengths and checksums, so its text needs none.
        let printed = weir_packet::craft::describe(&bytes);
        prop_assert!(!printed.contains("csum") && !printed.contains("hex"), "{}", printed);
    }

    #[test]
    fn crafted_frames_are_valid(text in recipes::plain()) {
        let bytes = frame(&text);
        check_oracle(&bytes)?;
        prop_assert!(parse(&bytes, Depth::L4).is_ok(), "{}", text);
    }

    #[test]
    fn a_tunnel_shows_what_the_inner_frame_shows_alone(
        inner in recipes::plain(),
        tunnel in prop::sample::select(vec!["vni=77", "tunnel=geneve vni=77",
            "tunnel=gre inside=ethernet key=77"]),
        is_ipv6: bool,
    ) {
        let addresses = if is_ipv6 { "src=fd00::1 ext=dst" } else { "src=10.0.0.1 options=1" };
        check_inner(&frame(&inner), &frame(&format!("{addresses} {tunnel} inner({inner})")), 77)?;
    }

    #[test]
    fn a_tunnel_shows_what_the_inner_packet_shows_alone(
        inner in recipes::packet(),
        tunnel in prop::sample::select(vec![
            "tunnel=geneve vni=0 inside=ip", "tunnel=gre", "tunnel=gre key=0", "tunnel=ipip", "tunnel=gue",
        ]),
        is_ipv6: bool,
    ) {
        let addresses = if is_ipv6 { "src=fd00::1 ext=dst" } else { "src=10.0.0.1 options=1" };
        // A length counts Ethernet, which the inner packet does not have.
        let packet = inner.split(' ').filter(|word| !word.starts_with("len=")).collect::<Vec<_>>().join(" ");
        let alone = frame(&packet);
        check_inner(&alone, &frame(&format!("{addresses} {tunnel} inner({packet})")), 0)?;
        // GUE's variant 1 is the packet after UDP.
        let hex: String = alone[14..].iter().map(|byte| format!("{byte:02x}")).collect();
        check_inner(&alone, &frame(&format!("{addresses} udp_csum=0 dport=6080 payload={hex}")), 0)?;
    }
}

/// The inner level of `outer` shows what `alone` shows.
fn check_inner(alone: &[u8], outer: &[u8], id: u32) -> Result<(), TestCaseError> {
    let (alone_headers, headers) = (parse(alone, Depth::L4).unwrap(), parse(outer, Depth::Inner).unwrap());
    let (expected, inner) = (alone_headers.outer(), headers.inner());
    prop_assert_eq!((inner.ether_type, inner.protocol), (expected.ether_type, expected.protocol));
    let ethernet = Layer::Ethernet as u32;
    let start = match inner.layers.has(Layer::Ethernet) {
        true => inner.at(Base::L2),
        false => inner.at(Base::L3) - expected.at(Base::L3),
    };
    prop_assert_eq!(inner.layers.0 | ethernet, expected.layers.0);
    prop_assert_eq!(inner.at(Base::L3), start + expected.at(Base::L3));
    let key = FlowKey::of(outer, &headers, KeySource::Inner);
    match FlowKey::of(alone, &alone_headers, KeySource::Outer) {
        Some(outer) => {
            prop_assert_eq!(inner.at(Base::L4), start + expected.at(Base::L4));
            let ports = (outer.sport(), outer.dport());
            prop_assert_eq!(
                key,
                Some(FlowKey::new(outer.src(), outer.dst(), outer.protocol(), ports, Some(id)))
            );
        }
        None => prop_assert_eq!(key, FlowKey::of(outer, &headers, KeySource::Outer)),
    }
    Ok(())
}

/// The reason for which a frame is refused at the deepest depth.
fn refused(bytes: &[u8]) -> Option<DropReason> {
    parse(bytes, Depth::Inner).err()
}

/// A frame of the recipe with one byte changed.
fn with(text: &str, at: usize, value: u8) -> Vec<u8> {
    let mut bytes = frame(text);
    bytes[at] = value;
    bytes
}

#[test]
fn refused_on_purpose() {
    assert_eq!(refused(&[0; 13]), Some(DropReason::MalformedEthernet));
    assert_eq!(refused(&frame("vlan=1 type=0x88cc")[..17]), Some(DropReason::MalformedEthernet));
    assert_eq!(refused(&frame("arp=request")[..41]), Some(DropReason::MalformedArp));
    assert_eq!(refused(&frame("type=0x0806 payload=000f0800020400")), Some(DropReason::MalformedArp));
    assert_eq!(refused(&with("", 17, 0)), Some(DropReason::Ipv4LengthZero));
    assert_eq!(refused(&with("", 14, 0x44)), Some(DropReason::MalformedIpv4));
    assert_eq!(refused(&with("", 14, 0x65)), Some(DropReason::MalformedIpv4));
    assert_eq!(refused(&with("", 17, 29)), Some(DropReason::MalformedIpv4), "total length beyond the frame");
    assert_eq!(refused(&frame("src=ff02::1")), Some(DropReason::MalformedIpv6), "multicast source");
    assert_eq!(refused(&with("src=fd00::1", 19, 0)), Some(DropReason::MalformedUdp), "payload length 0");
    assert_eq!(refused(&with("src=fd00::1 ext=dst", 55, 9)), Some(DropReason::MalformedIpv6));
    assert_eq!(refused(&with("", 39, 7)), Some(DropReason::MalformedUdp), "UDP length below its header");
    assert_eq!(refused(&with("", 39, 9)), Some(DropReason::MalformedUdp), "UDP length beyond IP's");
    assert_eq!(refused(&with("proto=tcp", 46, 0x40)), Some(DropReason::MalformedTcp));
    assert_eq!(refused(&with("proto=tcp", 46, 0x60)), Some(DropReason::MalformedTcp));
    assert_eq!(refused(&frame("proto=1 payload=08000000000000")), Some(DropReason::MalformedIcmp));
    assert_eq!(refused(&frame("proto=udp dport=4789")), Some(DropReason::MalformedVxlan));
    assert_eq!(
        refused(&with("vni=1 inner(proto=tcp)", 42, 0)),
        Some(DropReason::MalformedVxlan),
        "no I flag"
    );
    assert_eq!(refused(&frame("vni=1 inner(hex=00)")), Some(DropReason::MalformedInner));
    let eight = "src=fd00::1 ext=dst,dst,dst,dst,dst,dst,dst";
    assert_eq!(refused(&frame(&format!("{eight},dst"))), None);
    assert_eq!(refused(&frame(&format!("{eight},dst,dst"))), Some(DropReason::TooManyExtensionHeaders));
    // A fragment ends the walk, whatever its next header is.
    assert_eq!(refused(&frame(&format!("{eight} frag=8 proto=60"))), None);
}

#[test]
fn accepted_on_purpose() {
    let headers = |text: &str| parse(&frame(text), Depth::Inner).unwrap();
    let layers = |text: &str| headers(text).outer().layers;
    let inner = |text: &str| headers(text).inner().layers;
    let ports = |text: &str| layers(text).has(Layer::Ports);
    // Fragments have no L4, including the first; an atomic one is whole (RFC 6946).
    assert!(ports("src=fd00::1 frag=0") && !ports("src=fd00::1 frag=0+") && !ports("src=fd00::1 frag=8"));
    assert!(ports("") && !ports("frag=0+") && !ports("frag=8") && layers("frag=0+").has(Layer::Fragment));
    assert!(ports("df=1"));
    assert!(!layers("vni=5 frag=0+ inner(proto=tcp)").has(Layer::Tunnel), "no tunnel in a fragment");
    assert!(inner("vni=5 inner(frag=0+)").has(Layer::Fragment));
    assert!(!inner("vni=5 inner(frag=0+)").has(Layer::Ports));
    // ICMP's number over IPv6 and ICMPv6's over IPv4 mean nothing.
    let only = |layer: Layer| Layer::Present as u32 | Layer::Ethernet as u32 | layer as u32;
    assert_eq!(layers("proto=58 payload=00").0, only(Layer::Ipv4));
    assert_eq!(layers("src=fd00::1 proto=1 payload=00").0, only(Layer::Ipv6));
    // Ethernet padding, and UDP that is shorter than its IP payload.
    assert!(ports("trailer=000000000000000000000000"));
    assert!(parse(&with("payload=0000", 39, 8), Depth::L4).unwrap().outer().layers.has(Layer::Udp));
    // Two tags are parsed, a third is payload.
    let third = frame("vlan=1 second_vlan=2 type=0x8100 payload=00030800");
    assert_eq!(parse(&third, Depth::Inner).unwrap().outer().ether_type, 0x8100);
    // ARP in a tunnel, and tags of an inner frame.
    assert!(inner("vni=1 inner(arp=request)").has(Layer::Arp));
    // ARP for anything but IPv4 over Ethernet is payload.
    let other_arp = "type=0x0806 payload=000f080002040008";
    assert!(
        !layers(other_arp).has(Layer::Arp) && !inner(&format!("vni=1 inner({other_arp})")).has(Layer::Arp)
    );
    assert!(inner("vni=1 inner(vlan=9 proto=tcp)").has(Layer::Tcp));
}

#[test]
fn keys_tell_families_and_tunnels_apart() {
    let key = |text: &str, source| {
        let bytes = frame(text);
        FlowKey::of(&bytes, &parse(&bytes, Depth::Inner).unwrap(), source)
    };
    let tunnel = "src=10.0.0.1 dst=10.0.0.2 sport=50000 vni=9 inner(src=10.1.0.1 dst=10.1.0.2 proto=tcp \
        sport=1 dport=2)";
    let shown = |source| key(tunnel, source).map(|key| key.to_string()).unwrap_or_default();
    assert_eq!(shown(KeySource::Outer), "udp 10.0.0.1:50000 > 10.0.0.2:4789");
    assert_eq!(shown(KeySource::Inner), "tcp 10.1.0.1:1 > 10.1.0.2:2 vni 9");
    assert_eq!(
        key("vni=9 inner(arp=request)", KeySource::Inner),
        key("vni=9 inner(arp=request)", KeySource::Outer)
    );
    assert_eq!(key("arp=request", KeySource::Outer), None);
    let inside = |text: &str| key(&format!("vni=0 inner({text})"), KeySource::Inner).unwrap();
    assert_eq!(inside("src=10.1.0.1 dst=10.1.0.2").to_string(), "udp 10.1.0.1:1000 > 10.1.0.2:2000 vni 0");
    assert_eq!(inside("src=fd00::1 dst=::2").to_string(), "udp [fd00::1]:1000 > [::2]:2000 vni 0");
    assert_ne!(key("src=0.0.0.1 dst=0.0.0.2", KeySource::Outer), key("src=::1 dst=::2", KeySource::Outer));
    assert_eq!(key("frag=0+ sport=5", KeySource::Outer), key("frag=8 proto=udp", KeySource::Outer));
}

#[test]
fn tunnels_are_read_once() {
    let headers = |text: &str| parse(&frame(text), Depth::Inner).unwrap();
    let kind = |text: &str| headers(text).tunnel().map(|tunnel| (tunnel.kind, tunnel.at, tunnel.id));
    assert_eq!(kind("vni=5 inner()"), Some((TunnelKind::Vxlan, 42, 5)));
    assert_eq!(kind("src=fd00::1 vni=5 inner()"), Some((TunnelKind::Vxlan, 62, 5)));
    assert_eq!(kind("tunnel=geneve vni=5 inner()"), Some((TunnelKind::Geneve, 42, 5)));
    assert_eq!(kind("tunnel=gre key=0x12345678 inner()"), Some((TunnelKind::Gre, 34, 0x1234_5678)));
    assert_eq!(kind("src=fd00::1 tunnel=gre inner()"), Some((TunnelKind::Gre, 54, 0)));
    assert_eq!(kind("tunnel=ipip inner(src=fd00::1)"), Some((TunnelKind::Ipip, 34, 0)));
    assert_eq!(kind("tunnel=gue inner()"), Some((TunnelKind::Gue, 42, 0)));
    // Fragments have no tunnel, and their content is payload.
    for text in ["tunnel=gre inner()", "tunnel=ipip inner()", "tunnel=gue inner()", "tunnel=geneve inner()"] {
        let fragment = with(text, 20, 0x20);
        assert_eq!(parse(&fragment, Depth::Inner).unwrap().tunnel(), None, "{text}");
        let nested = headers(&format!("tunnel=ipip inner({text})"));
        assert_eq!(nested.tunnel().map(|tunnel| tunnel.kind), Some(TunnelKind::Ipip));
        assert!(nested.inner().layers.has(Layer::Ipv4) && !nested.inner().layers.has(Layer::Tunnel));
    }
    // A source that is invalid in IPv4: the version is that of the preceding header.
    assert_eq!(refused(&with("tunnel=ipip inner()", 34, 0x65)), Some(DropReason::MalformedInner));
    assert_eq!(refused(&frame("proto=47 payload=000008")), Some(DropReason::MalformedGre));
    assert_eq!(refused(&frame("dport=6081 payload=00000800000007")), Some(DropReason::MalformedGeneve));
    assert_eq!(refused(&frame("dport=6080")), Some(DropReason::MalformedGue));
    // Other versions are payload, and so are other payloads.
    for text in
        ["proto=47 payload=30010000", "dport=6081 payload=4000080000000700", "dport=6080 payload=80040000"]
    {
        assert_eq!(kind(text), None, "{text}");
    }
    let erspan = headers("proto=47 payload=100088be00000001");
    assert!(erspan.outer().layers.has(Layer::Tunnel) && !erspan.inner().layers.has(Layer::Present));
}

#[test]
fn a_tunnel_is_told_by_its_configured_port() {
    let mut ports = TunnelPorts::default();
    ports.set(TunnelKind::Vxlan, 8472);
    let kind = |text: &str| {
        let mut headers = Headers::default();
        parse_into(&frame(text), Depth::Inner, &ports, &mut headers).unwrap();
        headers.tunnel().map(|tunnel| tunnel.kind)
    };
    assert_eq!(kind("vni=5 inner()"), None);
    assert_eq!(kind("vni=5 dport=8472 inner()"), Some(TunnelKind::Vxlan));
    assert_eq!(kind("src=fd00::1 vni=5 dport=8472 inner()"), Some(TunnelKind::Vxlan));
    assert_eq!(kind("dport=0"), None);
}

/// A batch reuses its rows, and the values that the previous frame left in a row must not show up in the next
/// frame.
#[test]
fn a_row_is_used_again() {
    let texts = [
        "vni=5 inner(proto=tcp)",
        "tunnel=gre inside=ethernet inner(vlan=1)",
        "tunnel=gre inner()",
        "proto=tcp",
        "arp=request",
    ];
    let mut row = Headers::default();
    for text in texts.iter().chain(texts.iter().rev()).chain(&["vni=5 inner(arp=request)", "frag=8"]) {
        let bytes = frame(text);
        parse_into(&bytes, Depth::Inner, &TunnelPorts::STANDARD, &mut row).unwrap();
        let alone = parse(&bytes, Depth::Inner).unwrap();
        for (level, expected) in row.levels.iter().zip(&alone.levels) {
            assert_eq!(level.layers, expected.layers, "{text}");
        }
        assert_eq!(row.tunnel(), alone.tunnel(), "{text}");
        for source in [KeySource::Outer, KeySource::Inner] {
            assert_eq!(FlowKey::of(&bytes, &row, source), FlowKey::of(&bytes, &alone, source), "{text}");
        }
    }
}

#[test]
fn an_id_that_no_key_has_room_for_makes_no_inner_key() {
    let bytes = frame("tunnel=gre key=0x1000000 inner()");
    let headers = parse(&bytes, Depth::Inner).unwrap();
    assert_eq!(FlowKey::of(&bytes, &headers, KeySource::Inner), None);
    assert!(FlowKey::of(&bytes, &headers, KeySource::Outer).is_some());
}
