//! Random frames: recipes for `packet::craft`, most of them well-formed, some of which are then corrupted.

use super::Choices;
use super::pools::{
    DSCPS, FLOWS, KEYS, MACS, ORDINARY, PORTS, SPECIAL_V4, SPECIAL_V6, TTLS, V4, V6, VIDS, VNIS,
};
use std::net::IpAddr;
use weir_packet::FlowKey;

/// Protocols that are not parsed, but have checksums with a pseudo header: DCCP, PIM, mobility, UDP-Lite,
/// HIP.
const OTHER_PROTOCOLS: &[u8] = &[33, 103, 135, 136, 139];

/// TCP options: a maximum segment size, alone, after others or at an odd offset, and malformed ones.
const TCP_OPTIONS: &[&str] = &[
    "020405b4",
    "020405b40402010303070101",
    "01020405b4010101",
    "0103030702040218",
    "02040000020405b4",
    "00020405b4000000",
    "0200000000000000",
    "0302020405b4ff00",
    "0102030001010101",
    "01010204",
    "1e00020405b40101",
];

/// Extension headers, including a routing header with segments left and a home address, which change the
/// pseudo header.
const EXTENSIONS: &[&str] = &[
    "hbh",
    "dst",
    "routing",
    "ah",
    "routing:fd0100000000",
    "dst:01020000c91020010db8000000000000000000000009",
];

/// A random frame.
#[must_use]
pub fn frame(random: &mut Choices) -> Vec<u8> {
    let text = recipe(random, true);
    let mut frame = weir_packet::craft::frame(&text);
    if random.percent(20) {
        spoil(random, &mut frame);
    }
    frame
}

/// Truncates the frame, or overwrites a byte near its start, where the headers are.
fn spoil(random: &mut Choices, frame: &mut Vec<u8>) {
    if random.percent(30) {
        frame.truncate(random.below(frame.len() + 1));
        return;
    }
    for _ in 0..random.between(1, 2) {
        let limit = frame.len().min(if random.percent(60) { 60 } else { 140 });
        if limit > 12 {
            let at = random.between(12, limit - 1);
            frame[at] = random.pick(&[0, 1, 4, 6, 17, 0x20, 0x45, 0x60, 0x81, 0xff, 0xfe]);
        }
    }
}

fn recipe(random: &mut Choices, may_tunnel: bool) -> String {
    let mut words = ethernet(random);
    match random.weighted(&[10, 8, 82]) {
        0 if random.percent(50) => words.push("type=35020".to_string()),
        // Removing the tag reveals another tag, followed by a truncated ARP packet.
        0 => return format!("{} type=33024 payload=000a08060001", words.join(" ")),
        1 => words.extend(arp(random)),
        _ => words.extend(ip(random, may_tunnel)),
    }
    payload(random, &mut words);
    if random.percent(15) {
        words.push(format!("trailer={}", "ee".repeat(random.between(1, 9))));
    }
    words.join(" ")
}

fn ethernet(random: &mut Choices) -> Vec<String> {
    let mac = |address: u64| {
        let bytes = &address.to_be_bytes()[2..];
        bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
    };
    let mut words =
        vec![format!("eth.src={}", mac(random.pick(MACS))), format!("eth.dst={}", mac(random.pick(MACS)))];
    if random.percent(35) {
        words.push(format!("vlan={}.{}", random.pick(VIDS), random.below(8)));
        if random.percent(50) {
            words.push(format!("second_vlan={}.{}", random.pick(VIDS), random.below(8)));
        }
    }
    words
}

fn arp(random: &mut Choices) -> Vec<String> {
    vec![
        format!("arp={}", random.pick(&["request", "reply"])),
        format!("sender_ip={}", random.pick(V4)),
        format!("target_ip={}", random.pick(V4)),
    ]
}

fn ip(random: &mut Choices, may_tunnel: bool) -> Vec<String> {
    let usual = random.percent(40);
    let (src, dst, protocol, ports) = random.pick(FLOWS);
    let (src, dst) = if usual { (src, dst) } else { addresses(random) };
    let is_ipv4 = src.is_ipv4();
    let mut words = vec![format!("src={src}"), format!("dst={dst}"), format!("ttl={}", random.pick(TTLS))];
    words.push(format!("dscp={}", random.pick(DSCPS)));
    words.push(format!("ecn={}", random.below(4)));
    words.extend(network(random, is_ipv4));
    let protocol = match random.below(100) {
        _ if usual => protocol,
        0..4 => random.pick(OTHER_PROTOCOLS),
        _ => random.pick(&[6, 6, 17, 17, 17, 1, 1, 58, 58, 47, 47, 4, 41]),
    };
    let fragment = random.percent(12).then(|| random.pick(&["0+", "0+", "0", "1480+", "65528"]));
    let later = fragment.is_some_and(|fragment| !fragment.starts_with('0'));
    words.extend(fragment.map(|fragment| format!("frag={fragment}")));
    let tunnel = may_tunnel && !later && random.percent(55);
    if tunnel && matches!(protocol, 4 | 41 | 47) {
        words.push(tunnel_in_ip(random, protocol));
        return words;
    }
    words.push(protocol_word(protocol, is_ipv4));
    if later || !has_header(protocol, is_ipv4) {
        return words;
    }
    let ports = if usual { ports } else { (random.pick(PORTS), random.pick(PORTS)) };
    words.extend(transport(random, protocol, ports, tunnel && protocol == 17));
    words
}

/// A frame of a flow, or an ICMP error about it on its way back.
pub(super) fn frame_of(random: &mut Choices, key: &FlowKey) -> Vec<u8> {
    let (src, dst) = (key.src(), key.dst());
    let ports = format!("sport={} dport={}", key.sport(), key.dport());
    let flow = format!("src={src} dst={dst} {} {ports}", protocol_word(key.protocol(), src.is_ipv4()));
    if random.percent(75) {
        return weir_packet::craft::frame(&flow);
    }
    let mut inside = weir_packet::craft::frame(&flow).split_off(14);
    inside.truncate(if src.is_ipv4() { 28 } else { 48 });
    let payload: String = inside.iter().map(|byte| format!("{byte:02x}")).collect();
    let (router, protocol) = match src.is_ipv4() {
        true => (random.pick(V4).to_string(), "proto=icmp icmp_type=3"),
        false => (V6[0].to_string(), "proto=icmpv6 icmp_type=1"),
    };
    weir_packet::craft::frame(&format!("src={router} dst={src} {protocol} payload={payload}"))
}

/// The packet that an ICMP error is about, mostly from one of the shared flows, truncated as routers do, as
/// hexadecimal digits.
fn reported(random: &mut Choices) -> String {
    let (src, dst, protocol, (sport, dport)) = random.pick(FLOWS);
    let mut text = format!("src={src} dst={dst} {}", protocol_word(protocol, src.is_ipv4()));
    match random.below(10) {
        0 => text += " frag=0+",
        1 if src.is_ipv4() => text += " options=3",
        1 => text += " ext=dst",
        _ => {}
    }
    text += &format!(" sport={sport} dport={dport}");
    let mut bytes = weir_packet::craft::frame(&text).split_off(14);
    let header = if src.is_ipv4() { 20 } else { 40 };
    let length = random.pick(&[header + 8, header + 8, header + 8, header + 3, header - 1, bytes.len()]);
    bytes.truncate(length);
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// GRE, or IP in IP.
fn tunnel_in_ip(random: &mut Choices, protocol: u8) -> String {
    if protocol != 47 {
        return format!("tunnel=ipip inner({})", packet(random));
    }
    let frame = random.percent(40);
    let ether_type = if frame { "6558" } else { "0800" };
    let header = match random.below(6) {
        0 => String::new(),
        1 => format!(" header=80{:02x}{ether_type}00010000", random.pick(&[0, 0, 0, 1])),
        2 => format!(" header=b000{ether_type}ffff000000000700000001"),
        3 => " header=000088be".to_string(),
        _ => format!(" key={}", random.pick(KEYS)),
    };
    if frame {
        format!("tunnel=gre{header} inside=ethernet inner({})", recipe(random, false))
    } else {
        format!("tunnel=gre{header} inner({})", packet(random))
    }
}

/// A tunnel in UDP.
fn tunnel_in_udp(random: &mut Choices, word: &str) -> String {
    let vni = random.pick(VNIS);
    match word {
        "gue" => format!("tunnel=gue inner({})", packet(random)),
        "geneve" => match random.below(4) {
            0 => format!("tunnel=geneve vni={vni} inside=ip inner({})", packet(random)),
            1 => format!("tunnel=geneve header=014065580000070001028000 inner({})", recipe(random, false)),
            2 => format!("tunnel=geneve header=0080655800000700 inner({})", recipe(random, false)),
            _ => format!("tunnel=geneve vni={vni} inner({})", recipe(random, false)),
        },
        _ => format!("vni={vni} inner({})", recipe(random, false)),
    }
}

/// An IP packet without an Ethernet header.
fn packet(random: &mut Choices) -> String {
    let mut words = ip(random, false);
    payload(random, &mut words);
    words.join(" ")
}

/// Some payload, unless there already is one.
fn payload(random: &mut Choices, words: &mut Vec<String>) {
    if random.percent(30) && !words.iter().any(|word| word.starts_with("payload=")) {
        let payload = if random.percent(40) { quic(random) } else { "5a".repeat(random.below(40)) };
        words.push(format!("payload={payload}"));
    }
}

/// Possibly a QUIC packet with a server ID of one octet, often truncated.
fn quic(random: &mut Choices) -> String {
    let first = random.pick(&[0x00, 0x10, 0x20, 0x3f, 0x40, 0x60, 0xe0]);
    let id = format!("{first:02x}{:02x}{}", random.below(6), "5a".repeat(random.pick(&[3, 4, 5, 15, 18])));
    if random.percent(60) {
        return format!("40{id}");
    }
    let length = if random.percent(80) { id.len() / 2 } else { random.below(24) };
    format!("c000000001{length:02x}{id}")
}

/// Whether a recipe writes a header for this protocol.
fn has_header(protocol: u8, is_ipv4: bool) -> bool {
    matches!((protocol, is_ipv4), (6 | 17, _) | (1, true) | (58, false))
}

fn protocol_word(protocol: u8, is_ipv4: bool) -> String {
    match (protocol, is_ipv4) {
        (6, _) => "proto=tcp".to_string(),
        (17, _) => "proto=udp".to_string(),
        (1, true) => "proto=icmp".to_string(),
        (58, false) => "proto=icmpv6".to_string(),
        (number, _) => format!("proto={number}"),
    }
}

fn addresses(random: &mut Choices) -> (IpAddr, IpAddr) {
    let special = random.percent(6);
    if random.percent(60) {
        let src = if special { random.pick(SPECIAL_V4) } else { random.pick(&V4[..ORDINARY]) };
        let dst = if special { random.pick(SPECIAL_V4) } else { random.pick(V4) };
        (src.into(), dst.into())
    } else {
        let src = if special { random.pick(SPECIAL_V6) } else { random.pick(&V6[..ORDINARY]) };
        let dst = if special { random.pick(SPECIAL_V6) } else { random.pick(V6) };
        (src.into(), dst.into())
    }
}

/// Words that apply to one version of IP only.
fn network(random: &mut Choices, is_ipv4: bool) -> Vec<String> {
    let mut words = Vec::new();
    if is_ipv4 {
        if random.percent(15) {
            words.push(format!("options={}", random.between(1, 10)));
        }
        if random.percent(20) {
            words.push(format!("ip_csum={}", random.pick(&["bad", "0", "65535"])));
        }
    } else {
        if random.percent(20) {
            let count = if random.percent(20) { random.between(8, 10) } else { random.between(1, 3) };
            let all: Vec<&str> = (0..count).map(|_| random.pick(EXTENSIONS)).collect();
            words.push(format!("ext={}", all.join(",")));
        }
        words.push(format!("flow_label={}", random.below(4)));
    }
    words
}

fn transport(random: &mut Choices, protocol: u8, ports: (u16, u16), tunnel: bool) -> Vec<String> {
    let mut words = Vec::new();
    let (word, port) = random.pick(&[("vxlan", 4789), ("vxlan", 4789), ("geneve", 6081), ("gue", 6080)]);
    if protocol == 1 || protocol == 58 {
        words.push(format!("icmp_type={}", random.pick(&[0, 1, 2, 3, 3, 4, 5, 11, 12])));
        words.push(format!("icmp_code={}", random.below(4)));
        if random.percent(60) {
            words.push(format!("payload={}", reported(random)));
        }
    } else {
        words.push(format!("sport={}", ports.0));
        // Some tunnels use a port that only some programs are configured with.
        let port = if tunnel && random.percent(10) { 53 } else { port };
        let meant = tunnel || random.percent(5);
        words.push(format!("dport={}", if meant { port } else { ports.1 }));
    }
    if protocol == 6 {
        words.push(format!("flags={}", random.pick(&["S", "S", "A", "SA", "FA", "R", "none"])));
        words.extend(random.percent(40).then(|| format!("tcp_options={}", random.pick(TCP_OPTIONS))));
    }
    if tunnel {
        words.push(tunnel_in_udp(random, word));
        words.push(format!("csum={}", random.pick(&["0", "0", "good", "bad", "65535"])));
    } else if random.percent(20) {
        words.push(format!("csum={}", random.pick(&["bad", "0", "65535"])));
    }
    words
}
