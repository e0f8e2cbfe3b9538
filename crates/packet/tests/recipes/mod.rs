//! Random recipes as text, for the tests of the parser, its oracle and `craft`.

use proptest::prelude::*;

/// A recipe's text, in parts joined by spaces.
type Text = BoxedStrategy<String>;

fn joined(parts: Vec<Text>) -> Text {
    parts
        .prop_map(|parts| parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "))
        .boxed()
}

/// Generates the words, or nothing.
fn perhaps(text: impl Strategy<Value = String> + 'static) -> Text {
    prop_oneof![Just(String::new()), text].boxed()
}

fn number(key: &'static str, range: std::ops::RangeInclusive<u64>) -> Text {
    range.prop_map(move |number| format!("{key}={number}")).boxed()
}

fn bytes(key: &'static str, count: std::ops::Range<usize>) -> Text {
    proptest::collection::vec(any::<u8>(), count)
        .prop_map(move |bytes| {
            format!("{key}={}", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        })
        .boxed()
}

/// Frames without a tunnel.
pub fn plain() -> Text {
    let tail = joined(vec![
        perhaps(bytes("payload", 0..64)),
        perhaps(number("len", 400..=700)),
        perhaps(bytes("trailer", 1..20)),
    ]);
    joined(vec![link(), prop_oneof![1 => other(), 1 => arp(), 8 => ip(transport)].boxed(), tail])
}

/// Frames of every kind.
pub fn any_recipe() -> Text {
    let hex = bytes("hex", 0..80);
    prop_oneof![8 => plain(), 4 => tunnel(prop_oneof![5 => plain(), 1 => hex.clone()].boxed()), 1 => hex]
        .boxed()
}

/// IP packets without a tunnel, for use without Ethernet.
pub fn packet() -> Text {
    joined(vec![ip(transport), perhaps(bytes("payload", 0..64)), perhaps(number("len", 400..=700))])
}

/// Any tunnel around a frame, or around a packet.
pub fn tunnel(inner: Text) -> Text {
    let word = |word: &'static str| Just(word.to_string()).boxed();
    let inside = |text: Text| text.prop_map(|inner| format!("inner({inner})")).boxed();
    let udp_csum = perhaps(Just("udp_csum=full".to_string()));
    let udp = joined(vec![perhaps(number("sport", 0..=65535)), udp_csum]);
    let vni = || number("vni", 0..=0xff_ffff);
    let key = || perhaps(number("key", 0..=0xffff_ffff));
    let geneve = || prop_oneof![3 => vni(), 1 => word("header=01006558000007000102000000")].boxed();
    let gre = || prop_oneof![3 => key(), 1 => word("header=b0000800000000000000000700000001")].boxed();
    let (frame, packet) = (inside(inner), inside(packet()));
    let tunnel = prop_oneof![
        joined(vec![word("proto=udp"), udp.clone(), vni(), frame.clone()]),
        joined(vec![word("tunnel=geneve"), udp.clone(), geneve(), frame.clone()]),
        joined(vec![word("tunnel=geneve inside=ip"), udp.clone(), vni(), packet.clone()]),
        joined(vec![word("tunnel=gre inside=ethernet"), key(), frame]),
        joined(vec![word("tunnel=gre"), gre(), packet.clone()]),
        joined(vec![word("tunnel=ipip"), packet.clone()]),
        joined(vec![word("tunnel=gue"), udp, packet]),
    ];
    let tunnel = tunnel.boxed();
    joined(vec![link(), ip(move |_| tunnel.clone()), perhaps(bytes("payload", 1..8))])
}

fn link() -> Text {
    let mac = any::<[u8; 6]>()
        .prop_map(|mac| format!("eth.src={}", mac.map(|byte| format!("{byte:02x}")).join(":")));
    let tag = |key| (0..4096u32, 0..8u32).prop_map(move |(vid, pcp)| format!("{key}={vid}.{pcp}"));
    let tag = |key| {
        let end = proptest::sample::select(vec!["", "", ".dei", "@0x88a8", ".dei@0x8100"]);
        (tag(key), end).prop_map(|(tag, end)| tag + end).boxed()
    };
    let tags = prop_oneof![3 => Just(String::new()).boxed(), 1 => tag("vlan"), 1 => joined(vec![tag("vlan"),
        tag("second_vlan")])];
    joined(vec![perhaps(mac), tags.boxed()])
}

fn other() -> Text {
    proptest::sample::select(vec!["type=0x88cc", "type=0x0842", "type=5", "type=65535"])
        .prop_map(String::from)
        .boxed()
}

fn arp() -> Text {
    let kind = proptest::sample::select(vec!["request", "reply"]);
    (kind, any::<u32>(), any::<u32>())
        .prop_map(|(kind, sender, target)| {
            let (sender, target) = (std::net::Ipv4Addr::from(sender), std::net::Ipv4Addr::from(target));
            format!("arp={kind} sender_ip={sender} target_ip={target}")
        })
        .boxed()
}

fn ip(transport: impl Fn(bool) -> Text) -> Text {
    let shared = |is_fragment: bool| {
        let words = vec![number("ttl", 0..=255), number("dscp", 0..=63), number("ecn", 0..=3)];
        let id = if is_fragment { vec![perhaps(number("id", 0..=65535))] } else { vec![] };
        joined(words.into_iter().map(perhaps).chain(id).collect())
    };
    let later =
        proptest::sample::select(vec!["proto=udp", "proto=tcp", "proto=99"]).prop_map(String::from).boxed();
    let first_fragment =
        |is_ipv4| joined(vec![Just("frag=0+".to_string()).boxed(), transport(is_ipv4), shared(true)]);
    let later_fragment = joined(vec![
        (1..8191u32, any::<bool>())
            .prop_map(|(at, more)| format!("frag={}{}", at * 8, if more { "+" } else { "" }))
            .boxed(),
        later,
        shared(true),
    ]);
    let rest = |is_ipv4| {
        let whole = joined(vec![transport(is_ipv4), shared(is_ipv4)]);
        prop_oneof![6 => whole, 1 => first_fragment(is_ipv4), 1 => later_fragment.clone()].boxed()
    };
    prop_oneof![joined(vec![v4(), rest(true)]), joined(vec![v6(), rest(false)])].boxed()
}

fn v4() -> Text {
    // A source is an address that any host may send from, because the parser rejects others.
    let address = |key, top: u32| {
        (1..top).prop_map(move |bits| format!("{key}={}", std::net::Ipv4Addr::from(bits))).boxed()
    };
    let csum = prop_oneof![Just("ip_csum=bad".to_string()), Just("ip_csum=0x1234".to_string())];
    joined(vec![
        address("src", 0xe000_0000),
        address("dst", u32::MAX),
        prop_oneof![
            3 => perhaps(number("options", 0..=10)),
            1 => (0..11usize).prop_map(|words| format!("ip_options={}", "94040000".repeat(words))),
        ]
        .boxed(),
        perhaps(number("df", 0..=1)),
        perhaps(csum),
    ])
}

fn v6() -> Text {
    // A source is never multicast, because the parser rejects those.
    let address = |key, top: u128| {
        any::<u128>()
            .prop_map(move |bits| {
                format!("{key}={}", std::net::Ipv6Addr::from(bits & (u128::MAX >> 1) | top))
            })
            .boxed()
    };
    let names = vec!["hbh", "dst", "routing", "ah", "hbh:050200000100", "ah:0000000000010000000201020304"];
    let names = proptest::sample::select(names);
    let ext = proptest::collection::vec(names, 1..7).prop_map(|names| format!("ext={}", names.join(",")));
    joined(vec![
        address("src", 0),
        address("dst", 0xff << 120),
        perhaps(number("flow_label", 0..=0xf_ffff)),
        perhaps(ext),
    ])
}

fn transport(is_ipv4: bool) -> Text {
    let csum = || perhaps(prop_oneof![Just("csum=bad".to_string()), Just("csum=0x1234".to_string())]);
    let word = |word: &str| Just(word.to_string()).boxed();
    let ports = || joined(vec![number("sport", 0..=65535), number("dport", 0..=65535)]);
    let flags = (0..256u32).prop_map(|bits| {
        let letters: String =
            (0..8).filter(|bit| bits >> bit & 1 == 1).map(|bit| &"FSRPAUEC"[bit..=bit]).collect();
        format!("flags={}", if letters.is_empty() { "none" } else { &letters })
    });
    let tcp_options = (0..11usize).prop_map(|words| format!("tcp_options={}", "01010402".repeat(words)));
    let udp = joined(vec![word("proto=udp"), ports(), prop_oneof![csum(), word("udp_csum=0")].boxed()]);
    let tcp = vec![
        word("proto=tcp"),
        ports(),
        perhaps(flags),
        perhaps(number("seq", 0..=0xffff_ffff)),
        perhaps(number("ack", 0..=0xffff_ffff)),
        perhaps(number("window", 0..=65535)),
        perhaps(tcp_options),
        csum(),
    ];
    let (name, kind) = if is_ipv4 { ("proto=icmp", 0..=12) } else { ("proto=icmpv6", 128..=140) };
    let icmp = vec![
        word(name),
        perhaps(number("icmp_type", kind)),
        perhaps(number("icmp_rest", 0..=0xffff_ffff)),
        csum(),
    ];
    let raw = number("proto", 100..=130);
    prop_oneof![3 => udp, 3 => joined(tcp), 1 => joined(icmp), 1 => raw].boxed()
}
