//! The table of fields agrees with the frames that `craft` builds without using the table.

use std::collections::HashSet;
use weir_packet::craft::frame;
use weir_packet::{Access, Depth, Field, FieldKind, LevelId, Source, parse};

/// The value at a field's place; `None` if the frame does not have the field.
fn read(frame: &[u8], field: Field) -> Option<u128> {
    let spec = field.spec();
    let headers = parse(frame, field.depth()).ok()?;
    let Source::Frame(base) = spec.source else { return None };
    if !headers.has_all(field.needs()) {
        return None;
    }
    let at = headers.level(field.level).at(base).checked_add_signed(isize::from(spec.offset))?;
    let bytes = frame.get(at..at + usize::from(spec.bytes))?;
    let value = bytes.iter().fold(0, |value: u128, &byte| value << 8 | u128::from(byte));
    Some(value >> spec.shift & field.max())
}

const ETHERNET: &str = "eth.src=02:11:22:33:44:55 eth.dst=02:66:77:88:99:aa";
const MACS: &[(&str, u128)] = &[("eth.src", 0x0211_2233_4455), ("eth.dst", 0x0266_7788_99aa)];
const IPV4: &str = "src=1.2.3.4 dst=5.6.7.8 ttl=77 dscp=46 ecn=1 id=0x1357 options=2";
const IPV6: &str = "src=fd00::1:2 dst=fd00::3:4 ttl=78 dscp=42 ecn=2 flow_label=0xabcde ext=hbh,dst";

/// A TCP packet as an ICMP error carries it, in hexadecimal digits.
fn inside(src: &str, dst: &str) -> String {
    let mut packet = frame(&format!("src={src} dst={dst} proto=tcp sport=4002 dport=81")).split_off(14);
    packet.truncate(if src.contains(':') { 48 } else { 28 });
    packet.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Recipes, and the values that fields must have in their frames.
fn cases() -> Vec<(String, Vec<(&'static str, u128)>)> {
    let v4 = || {
        vec![
            ("ipv4.src", 0x0102_0304),
            ("ipv4.dst", 0x0506_0708),
            ("ipv4.ttl", 77),
            ("ipv4.dscp", 46),
            ("ipv4.ecn", 1),
            ("ipv4.identification", 0x1357),
        ]
    };
    let v6 = || {
        vec![
            ("ipv6.src", 0xfd00 << 112 | 0x1_0002),
            ("ipv6.dst", 0xfd00 << 112 | 0x3_0004),
            ("ipv6.hop_limit", 78),
            ("ipv6.traffic_class", 42 << 2 | 2),
            ("ipv6.flow_label", 0xabcde),
        ]
    };
    let tcp = vec![
        ("tcp.sport", 4000),
        ("tcp.dport", 80),
        ("l4.sport", 4000),
        ("l4.dport", 80),
        ("tcp.flags", 0x92),
    ];
    let udp = vec![("udp.sport", 4001), ("udp.dport", 53), ("l4.sport", 4001), ("l4.dport", 53)];
    let tags = [("vlan.vid", 0xabc), ("vlan.pcp", 5), ("second_vlan.vid", 0x123), ("second_vlan.pcp", 6)];
    let tcp_text = "proto=tcp sport=4000 dport=80 flags=SAC";
    vec![
        (format!("{IPV4} {tcp_text}"), [v4(), tcp.clone()].concat()),
        (format!("{IPV6} {tcp_text} vlan=0xabc.5 second_vlan=0x123.6"), [v6(), tcp, tags.to_vec()].concat()),
        (
            format!("{IPV4} sport=4001 dport=53 vlan=0xabc.5"),
            [v4(), udp.clone(), tags[..2].to_vec()].concat(),
        ),
        (format!("{IPV6} sport=4001 dport=53"), [v6(), udp].concat()),
        (format!("{IPV4} proto=icmp icmp_type=3 icmp_code=4"), vec![("icmp.type", 3), ("icmp.code", 4)]),
        (
            format!("{IPV6} proto=icmpv6 icmp_type=1 icmp_code=6"),
            vec![("icmpv6.type", 1), ("icmpv6.code", 6)],
        ),
        (
            "arp=reply sender_ip=9.8.7.6 target_ip=5.4.3.2".to_string(),
            vec![("arp.operation", 2), ("arp.sender_ip", 0x0908_0706), ("arp.target_ip", 0x0504_0302)],
        ),
    ]
}

/// The packets inside ICMP errors.
fn error_cases() -> Vec<(String, Vec<(&'static str, u128)>)> {
    vec![
        (
            format!("{IPV4} proto=icmp icmp_type=3 payload={}", inside("1.1.1.1", "2.2.2.2")),
            vec![
                ("error.ipv4.protocol", 6),
                ("error.ipv4.src", 0x0101_0101),
                ("error.ipv4.dst", 0x0202_0202),
                ("error.sport", 4002),
                ("error.dport", 81),
            ],
        ),
        (
            format!("{IPV6} proto=icmpv6 icmp_type=2 payload={}", inside("fd00::5", "fd00::6")),
            vec![
                ("error.ipv6.protocol", 6),
                ("error.ipv6.src", 0xfd00 << 112 | 5),
                ("error.ipv6.dst", 0xfd00 << 112 | 6),
                ("error.sport", 4002),
                ("error.dport", 81),
            ],
        ),
    ]
}

/// The IDs of tunnels.
fn tunnel_cases() -> Vec<(String, Vec<(&'static str, u128)>)> {
    vec![
        ("options=1 tunnel=geneve vni=0xfedcba inner()".to_string(), vec![("geneve.vni", 0xfe_dcba)]),
        ("src=fd00::1 tunnel=gre key=0xfedcba98 inner()".to_string(), vec![("gre.key", 0xfedc_ba98)]),
        ("tunnel=gre header=a0000800ffff000000000009 inner()".to_string(), vec![("gre.key", 9)]),
        ("tunnel=gre inner()".to_string(), vec![]),
    ]
}

/// The same inside VXLAN.
fn inner_cases() -> Vec<(String, Vec<(&'static str, u128)>)> {
    let inner = |(text, values): (String, Vec<(&'static str, u128)>)| {
        let twins = values.into_iter().chain(MACS.iter().copied()).filter_map(|(name, value)| {
            Field::from_name(&format!("inner.{name}")).map(|field| (field.name(), value))
        });
        (
            format!("options=1 vni=0xfedcba inner({ETHERNET} {text})"),
            twins.chain([("vxlan.vni", 0xfe_dcba)]).collect(),
        )
    };
    cases().into_iter().chain(error_cases()).map(inner).collect()
}

#[test]
fn fields_are_where_the_recipe_has_put_them() {
    let mut seen = HashSet::new();
    let outer = cases()
        .into_iter()
        .chain(error_cases())
        .map(|(text, values)| (format!("{ETHERNET} {text}"), [MACS, &values].concat()));
    let tunnels = tunnel_cases().into_iter().map(|(text, values)| (format!("{ETHERNET} {text}"), values));
    for (text, values) in outer.chain(inner_cases()).chain(tunnels) {
        let bytes = frame(&text);
        for (name, value) in values {
            let field = Field::from_name(name).unwrap_or_else(|| panic!("no field {name}"));
            assert_eq!(read(&bytes, field), Some(value), "{name} of {text}");
            seen.insert(field);
        }
        for &field in Field::ALL {
            // A field that a frame has is found at the field's own depth and at every greater one.
            let headers = parse(&bytes, Depth::Inner).unwrap();
            let in_frame = matches!(field.spec().source, Source::Frame(_));
            let has = in_frame && headers.has_all(field.needs());
            assert_eq!(read(&bytes, field).is_some(), has, "{field} of {text}");
        }
    }
    let in_frame = |field: &&Field| matches!(field.spec().source, Source::Frame(_));
    let unseen = Field::ALL.iter().filter(in_frame).filter(|field| !seen.contains(field));
    assert_eq!(unseen.collect::<Vec<_>>(), Vec::<&Field>::new());
}

#[test]
fn the_table_agrees_with_itself() {
    let names: HashSet<&str> = Field::ALL.iter().map(|field| field.name()).collect();
    assert_eq!(names.len(), Field::ALL.len(), "names are unique");
    for &field in Field::ALL {
        let spec = field.spec();
        assert_eq!(Field::from_name(field.name()), Some(field));
        assert_eq!(field.to_string(), field.name());
        assert!(spec.bits + spec.shift <= spec.bytes * 8, "{field} fits its bytes");
        assert!(spec.bits + spec.shift > (spec.bytes - 1) * 8, "{field} has no superfluous byte");
        assert_eq!(field.max().count_ones(), u32::from(spec.bits), "{field}");
        assert_eq!(
            field.meta_word().is_some(),
            field.name().starts_with("meta.") && spec.access == Access::Writable
        );
        assert_eq!(field.name().starts_with("inner."), field.level == LevelId::Inner, "{field}");
        let is_inner = field.level == LevelId::Inner || spec.tunnel.is_some() || field == Field::TunnelId;
        assert_eq!(field.depth() == Depth::Inner, is_inner, "{field}");
    }
    let twins = FieldKind::ALL.iter().filter(|kind| kind.has_inner()).count();
    assert_eq!(Field::ALL.len(), FieldKind::ALL.len() + twins);
}
