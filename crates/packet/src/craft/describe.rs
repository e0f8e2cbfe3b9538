//! From bytes to a recipe, and from a recipe to text.
//!
//! The reader may misread a frame, so the recipe is built again and the result is compared with the frame;
//! only an exact copy is accepted. Frames that no recipe describes exactly are written in hex.

use super::{
    Addresses, Arp, Body, Checksum, ETH_DST, ETH_SRC, Extension, ExtensionKind, FLAG_LETTERS, Fragment, Icmp,
    Ip, NOP, Recipe, TTL, Tag, Tcp, Transport, Tunnel, Udp, WINDOW,
};
use crate::{
    Base, Depth, ETHER_ARP, ETHER_QINQ, ETHER_VLAN, Layer, Level, PROTOCOL_ICMP, PROTOCOL_ICMPV6,
    PROTOCOL_TCP, PROTOCOL_UDP, TunnelKind, TunnelPorts, parse, write_hex,
};
use std::fmt::{Display, Formatter, Result as Written};

/// Describes a frame in one line of text from which `parse` and `build` make the same bytes.
#[must_use]
pub fn describe(frame: &[u8]) -> String {
    Recipe::of(frame).to_string()
}

/// [`describe`] for people: long payloads are cut short, so the text no longer builds the frame.
#[must_use]
pub fn describe_short(frame: &[u8]) -> String {
    format!("{:#}", Recipe::of(frame))
}

/// Bytes of a payload that the short form shows.
const SHOWN: usize = 16;
/// A payload that ends in at least this many zeros is described with `len=`.
const ZEROS: usize = 4;

/// How many bytes of a frame are read as headers; the rest is payload.
#[derive(Clone, Copy, PartialEq)]
enum HeaderBytes {
    Transport,
    Network,
}

impl Recipe {
    /// The recipe of a frame: `Recipe::of(frame).build() == frame`.
    #[must_use]
    pub fn of(frame: &[u8]) -> Recipe {
        recipe_of(frame, 0)
    }
}

pub(super) fn recipe_of(frame: &[u8], nesting: usize) -> Recipe {
    for reading in [HeaderBytes::Transport, HeaderBytes::Network] {
        let exact = |recipe: &Recipe| recipe.build() == frame;
        if let Some(recipe) = read(frame, reading, nesting).filter(exact) {
            return plain(recipe, frame);
        }
    }
    Recipe { body: Body::Raw(frame.to_vec()), ..Recipe::default() }
}

/// The same recipe with checksums written as good or bad and zeros as a length, where that yields the same
/// bytes.
fn plain(mut recipe: Recipe, frame: &[u8]) -> Recipe {
    for place in [ip_checksum, transport_checksum] {
        for name in [Checksum::Bad, Checksum::Good] {
            let mut named = recipe.clone();
            if let Some(checksum) = place(&mut named) {
                *checksum = name;
            }
            if named.build() == frame {
                recipe = named;
            }
        }
    }
    let zeros = recipe.payload.iter().rev().take_while(|&&byte| byte == 0).count();
    if zeros >= ZEROS {
        recipe.payload.truncate(recipe.payload.len() - zeros);
        recipe.length = Some(frame.len());
    }
    recipe
}

fn ip_checksum(recipe: &mut Recipe) -> Option<&mut Checksum> {
    let Body::Ip(ip) = &mut recipe.body else { return None };
    Some(&mut ip.checksum)
}

fn transport_checksum(recipe: &mut Recipe) -> Option<&mut Checksum> {
    let Body::Ip(ip) = &mut recipe.body else { return None };
    match &mut ip.transport {
        Transport::Udp(udp) => Some(&mut udp.checksum),
        Transport::Tcp(tcp) => Some(&mut tcp.checksum),
        Transport::Icmp(icmp) => Some(&mut icmp.checksum),
        Transport::Tunnel(_) | Transport::Other(_) => None,
    }
}

fn read(frame: &[u8], reading: HeaderBytes, nesting: usize) -> Option<Recipe> {
    let headers = parse(frame, Depth::L3).ok()?;
    let headers = headers.outer();
    let l3 = headers.at(Base::L3);
    let is_double = headers.layers.has(Layer::SecondVlan);
    let tag = |at: usize, usual: u16| {
        let (tpid, word) = (be16(frame, at - 2)?, be16(frame, at)?);
        let (vid, pcp, dei) = (word & 0xfff, (word >> 13) as u8, word & 0x1000 != 0);
        Some(Tag { vid, pcp, dei, tpid: Some(tpid).filter(|tpid| *tpid != usual) })
    };
    let outer = if is_double { ETHER_QINQ } else { ETHER_VLAN };
    let mut recipe = Recipe {
        eth_dst: frame.get(..6)?.try_into().ok()?,
        eth_src: frame.get(6..12)?.try_into().ok()?,
        vlan: if headers.layers.has(Layer::Vlan) { tag(14, outer) } else { None },
        second_vlan: if is_double { tag(18, ETHER_VLAN) } else { None },
        ..Recipe::default()
    };
    let behind = frame.get(l3..)?;
    if headers.layers.has(Layer::Ipv4) || headers.layers.has(Layer::Ipv6) {
        read_ip(&mut recipe, frame, (headers, reading, nesting))?;
    } else if headers.ether_type == ETHER_ARP {
        recipe.body = Body::Arp(read_arp(behind)?);
        recipe.payload = behind.get(28..)?.to_vec();
    } else {
        recipe.body = Body::Ethernet(headers.ether_type);
        recipe.payload = behind.to_vec();
    }
    Some(recipe)
}

fn read_arp(packet: &[u8]) -> Option<Arp> {
    Some(Arp {
        is_reply: be16(packet, 6)? == 2,
        sender_ip: be32(packet, 14)?.into(),
        target_ip: be32(packet, 24)?.into(),
    })
}

fn read_ip(recipe: &mut Recipe, frame: &[u8], how: (&Level, HeaderBytes, usize)) -> Option<()> {
    let (headers, reading, nesting) = how;
    let (l3, l4) = (headers.at(Base::L3), headers.at(Base::L4));
    let (mut ip, end) = if headers.layers.has(Layer::Ipv4) {
        let header = frame.get(l3..l4)?;
        (read_ipv4(header)?, l3 + usize::from(be16(header, 2)?))
    } else {
        let header = frame.get(l3..l4)?;
        (read_ipv6(header)?, l3 + 40 + usize::from(be16(header, 4)?))
    };
    recipe.trailer = frame.get(end..)?.to_vec();
    let segment = frame.get(l4..end)?;
    let is_first = ip.fragment.is_none_or(|part| part.offset == 0);
    let transport = match headers.protocol {
        _ if reading == HeaderBytes::Network || !is_first => None,
        PROTOCOL_UDP => Some(read_udp(segment, nesting)?),
        PROTOCOL_TCP => Some(read_tcp(segment)?),
        PROTOCOL_ICMP if ip.addresses.is_ipv4() => Some(read_icmp(segment)?),
        PROTOCOL_ICMPV6 if !ip.addresses.is_ipv4() => Some(read_icmp(segment)?),
        // A tunnel that words cannot describe becomes a number and a payload.
        protocol => TunnelKind::of_protocol(protocol)
            .and_then(|kind| Tunnel::read(kind, protocol, segment, nesting))
            .map(|(tunnel, length)| (Transport::Tunnel(tunnel), length)),
    };
    let (transport, header_length) = transport.unwrap_or((Transport::Other(headers.protocol), 0));
    ip.transport = transport;
    recipe.payload = segment.get(header_length..)?.to_vec();
    recipe.body = Body::Ip(ip);
    Some(())
}

fn read_ipv4(header: &[u8]) -> Option<Ip> {
    let fragment = be16(header, 6)?;
    let part = Fragment { offset: (fragment & 0x1fff) << 3, more: fragment & 0x2000 != 0 };
    Some(Ip {
        addresses: Addresses::V4(be32(header, 12)?.into(), be32(header, 16)?.into()),
        ttl: *header.get(8)?,
        dscp: header.get(1)? >> 2,
        ecn: header.get(1)? & 3,
        identification: u32::from(be16(header, 4)?),
        dont_fragment: fragment & 0x4000 != 0,
        fragment: Some(part).filter(|part| part.more || part.offset != 0),
        options: header.get(20..)?.to_vec(),
        checksum: Checksum::Value(be16(header, 10)?),
        ..Ip::default()
    })
}

fn read_ipv6(header: &[u8]) -> Option<Ip> {
    let first = be32(header, 0)?;
    let address = |at: usize| <[u8; 16]>::try_from(header.get(at..at + 16)?).ok().map(Into::into);
    let mut ip = Ip {
        addresses: Addresses::V6(address(8)?, address(24)?),
        ttl: *header.get(7)?,
        dscp: (first >> 22) as u8 & 63,
        ecn: (first >> 20) as u8 & 3,
        flow_label: first & 0xf_ffff,
        ..Ip::default()
    };
    let (mut next, mut rest) = (*header.get(6)?, header.get(40..)?);
    while let [following, length, ..] = *rest {
        let kind = ExtensionKind::ALL.into_iter().find(|kind| kind.number() == next);
        let bytes = kind.map_or(8, |kind| kind.bytes(length));
        let (extension, behind) = rest.split_at_checked(bytes)?;
        match kind {
            Some(kind) => ip.extensions.push(Extension { kind, content: extension[2..].to_vec() }),
            None => {
                let part = be16(extension, 2)?;
                ip.fragment = Some(Fragment { offset: part & 0xfff8, more: part & 1 != 0 });
                ip.identification = be32(extension, 4)?;
            }
        }
        (next, rest) = (following, behind);
    }
    Some(ip)
}

fn read_udp(segment: &[u8], nesting: usize) -> Option<(Transport, usize)> {
    let (sport, dport) = (be16(segment, 0)?, be16(segment, 2)?);
    let checksum = Checksum::Value(be16(segment, 6)?);
    let kind = TunnelPorts::STANDARD.kind(dport);
    let tunnel = kind.and_then(|kind| Tunnel::read(kind, PROTOCOL_UDP, segment.get(8..)?, nesting));
    let (tunnel, length) = tunnel.map_or((None, 0), |(tunnel, length)| (Some(tunnel), length));
    Some((Transport::Udp(Udp { sport, dport, checksum, tunnel }), 8 + length))
}

fn read_tcp(segment: &[u8]) -> Option<(Transport, usize)> {
    let header_length = usize::from(segment.get(12)? >> 4) * 4;
    let tcp = Tcp {
        sport: be16(segment, 0)?,
        dport: be16(segment, 2)?,
        sequence: be32(segment, 4)?,
        acknowledgment: be32(segment, 8)?,
        flags: *segment.get(13)?,
        window: be16(segment, 14)?,
        options: segment.get(20..header_length)?.to_vec(),
        checksum: Checksum::Value(be16(segment, 16)?),
    };
    Some((Transport::Tcp(tcp), header_length))
}

fn read_icmp(segment: &[u8]) -> Option<(Transport, usize)> {
    let checksum = Checksum::Value(be16(segment, 2)?);
    let icmp = Icmp { kind: *segment.first()?, code: *segment.get(1)?, rest: be32(segment, 4)?, checksum };
    Some((Transport::Icmp(icmp), 8))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Collects the words of a line. Default values are left out, except those that readers look for.
pub(super) struct Description {
    pub(super) words: Vec<String>,
    pub(super) is_short: bool,
}

impl Description {
    pub(super) fn say(&mut self, key: &str, value: impl Display) {
        self.words.push(format!("{key}={value}"));
    }

    fn say_unless<T: Display + PartialEq>(&mut self, key: &str, value: T, default: T) {
        if value != default {
            self.say(key, value);
        }
    }

    pub(super) fn bytes(&mut self, key: &str, bytes: &[u8]) {
        let shown = if self.is_short { &bytes[..bytes.len().min(SHOWN)] } else { bytes };
        let hex = write_hex(shown, "");
        match bytes.len() - shown.len() {
            0 => self.say(key, hex),
            left => self.say(key, format_args!("{hex}...({left}_more)")),
        }
    }

    fn bytes_unless_empty(&mut self, key: &str, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.bytes(key, bytes);
        }
    }

    fn mac_unless(&mut self, key: &str, mac: [u8; 6], default: [u8; 6]) {
        if mac != default {
            self.say(key, write_hex(&mac, ":"));
        }
    }

    fn checksum(&mut self, key: &str, checksum: Checksum) {
        match checksum {
            Checksum::Good => {}
            Checksum::Bad => self.say(key, "bad"),
            Checksum::Value(value) => self.say(key, format_args!("{value:#06x}")),
        }
    }
}

impl Display for Recipe {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        let mut line = Description { words: Vec::new(), is_short: f.alternate() };
        match &self.body {
            Body::Raw(bytes) => line.bytes("hex", bytes),
            _ => say_frame(&mut line, self),
        }
        f.write_str(&line.words.join(" "))
    }
}

fn say_frame(line: &mut Description, recipe: &Recipe) {
    line.mac_unless("eth.src", recipe.eth_src, ETH_SRC);
    line.mac_unless("eth.dst", recipe.eth_dst, ETH_DST);
    for (key, tag) in [("vlan", recipe.vlan), ("second_vlan", recipe.second_vlan)] {
        if let Some(tag) = tag {
            line.say(key, tag);
        }
    }
    match &recipe.body {
        Body::Raw(_) => {}
        Body::Ethernet(ether_type) => line.say("type", format_args!("{ether_type:#06x}")),
        Body::Arp(arp) => {
            line.say("arp", if arp.is_reply { "reply" } else { "request" });
            line.say("sender_ip", arp.sender_ip);
            line.say("target_ip", arp.target_ip);
        }
        Body::Ip(ip) => say_ip(line, ip),
    }
    line.bytes_unless_empty("payload", &recipe.payload);
    if let Some(length) = recipe.length {
        line.say("len", length);
    }
    line.bytes_unless_empty("trailer", &recipe.trailer);
}

impl Display for Tag {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        write!(f, "{}", self.vid)?;
        if self.pcp != 0 || self.dei {
            write!(f, ".{}", self.pcp)?;
        }
        f.write_str(if self.dei { ".dei" } else { "" })?;
        self.tpid.map_or(Ok(()), |tpid| write!(f, "@{tpid:#06x}"))
    }
}

fn say_ip(line: &mut Description, ip: &Ip) {
    match ip.addresses {
        Addresses::V4(src, dst) => line.words.push(format!("src={src} dst={dst}")),
        Addresses::V6(src, dst) => line.words.push(format!("src={src} dst={dst}")),
    }
    line.say_unless("ttl", ip.ttl, TTL);
    line.say_unless("dscp", ip.dscp, 0);
    line.say_unless("ecn", ip.ecn, 0);
    if ip.addresses.is_ipv4() {
        if ip.options.iter().all(|byte| *byte == NOP) {
            line.say_unless("options", ip.options.len() / 4, 0);
        } else {
            line.bytes("ip_options", &ip.options);
        }
        line.say_unless("df", u8::from(ip.dont_fragment), 0);
        line.checksum("ip_csum", ip.checksum);
    } else {
        line.say_unless("flow_label", ip.flow_label, 0);
        let all = ip.extensions.iter().map(Extension::to_string).collect::<Vec<_>>();
        line.say_unless("ext", all.join(","), String::new());
    }
    if let Some(part) = ip.fragment {
        line.say("frag", format_args!("{}{}", part.offset, if part.more { "+" } else { "" }));
    }
    if ip.addresses.is_ipv4() || ip.fragment.is_some() {
        line.say_unless("id", ip.identification, 0);
    }
    say_transport(line, ip);
}

impl ExtensionKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            ExtensionKind::HopByHop => "hbh",
            ExtensionKind::Routing => "routing",
            ExtensionKind::Authentication => "ah",
            ExtensionKind::Destination => "dst",
        }
    }
}

impl Display for Extension {
    fn fmt(&self, f: &mut Formatter<'_>) -> Written {
        f.write_str(self.kind.name())?;
        if *self == self.kind.blank() {
            return Ok(());
        }
        f.write_str(":")?;
        self.content.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

fn say_transport(line: &mut Description, ip: &Ip) {
    match &ip.transport {
        Transport::Udp(udp) => say_udp(line, udp),
        Transport::Tcp(tcp) => say_tcp(line, tcp),
        Transport::Icmp(icmp) => {
            line.say("proto", if ip.addresses.is_ipv4() { "icmp" } else { "icmpv6" });
            line.say("icmp_type", icmp.kind);
            line.say("icmp_code", icmp.code);
            line.say_unless("icmp_rest", format!("{:#010x}", icmp.rest), format!("{:#010x}", 0));
            line.checksum("csum", icmp.checksum);
        }
        Transport::Tunnel(tunnel) => tunnel.say(line),
        Transport::Other(protocol) => line.say("proto", protocol),
    }
}

fn say_udp(line: &mut Description, udp: &Udp) {
    line.words.push(format!("proto=udp sport={} dport={}", udp.sport, udp.dport));
    match (udp.checksum, &udp.tunnel) {
        (Checksum::Value(0), Some(_)) => {}
        (Checksum::Good, Some(_)) => line.say("udp_csum", "full"),
        (Checksum::Value(0), None) => line.say("udp_csum", "0"),
        (checksum, _) => line.checksum("csum", checksum),
    }
    if let Some(tunnel) = &udp.tunnel {
        tunnel.say(line);
    }
}

fn say_tcp(line: &mut Description, tcp: &Tcp) {
    line.words.push(format!("proto=tcp sport={} dport={}", tcp.sport, tcp.dport));
    let letters: String =
        FLAG_LETTERS.chars().enumerate().filter(|(bit, _)| tcp.flags >> bit & 1 == 1).map(|x| x.1).collect();
    line.say("flags", if letters.is_empty() { "none" } else { &letters });
    line.say_unless("seq", tcp.sequence, 0);
    line.say_unless("ack", tcp.acknowledgment, 0);
    line.say_unless("window", tcp.window, WINDOW);
    line.bytes_unless_empty("tcp_options", &tcp.options);
    line.checksum("csum", tcp.checksum);
}
