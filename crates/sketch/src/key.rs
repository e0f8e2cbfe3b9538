//! The keys that packets are aggregated by: an address, a prefix, a pair, a port, or a flow.
//!
//! A key has the words of a [`FlowKey`], with zeros in place of the parts that it leaves out, so every key
//! can be read as a flow key. If all traffic is IPv4, two words hold the whole key ([`narrow`]): 13 bytes and
//! the tunnel's ID.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{FlowKey, IPV4_MARK};

/// Which parts of a flow's key are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeyKind {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
    /// Both addresses.
    Pair,
    /// Both addresses and ports.
    FourTuple,
    /// Both addresses and ports, and the protocol.
    FiveTuple,
    /// The source port and the protocol.
    SourcePort,
    /// The destination port and the protocol.
    DestinationPort,
}

impl KeyKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [KeyKind; 7] = [
        KeyKind::Source,
        KeyKind::Destination,
        KeyKind::Pair,
        KeyKind::FourTuple,
        KeyKind::FiveTuple,
        KeyKind::SourcePort,
        KeyKind::DestinationPort,
    ];

    /// Returns the kind's name in tables and JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            KeyKind::Source => "source",
            KeyKind::Destination => "destination",
            KeyKind::Pair => "pair",
            KeyKind::FourTuple => "4-tuple",
            KeyKind::FiveTuple => "5-tuple",
            KeyKind::SourcePort => "sport",
            KeyKind::DestinationPort => "dport",
        }
    }

    const fn has_source(self) -> bool {
        matches!(self, KeyKind::Source | KeyKind::Pair | KeyKind::FourTuple | KeyKind::FiveTuple)
    }

    const fn has_destination(self) -> bool {
        matches!(self, KeyKind::Destination | KeyKind::Pair | KeyKind::FourTuple | KeyKind::FiveTuple)
    }

    /// The bits of a flow key's last word that are kept, without the tunnel's ID.
    const fn last_bits(self) -> u64 {
        const SPORT: u64 = 0xffff << 48;
        const DPORT: u64 = 0xffff << 32;
        const PROTOCOL: u64 = 0xff << 24;
        match self {
            KeyKind::Source | KeyKind::Destination | KeyKind::Pair => 0,
            KeyKind::FourTuple => SPORT | DPORT,
            KeyKind::FiveTuple => SPORT | DPORT | PROTOCOL,
            KeyKind::SourcePort => SPORT | PROTOCOL,
            KeyKind::DestinationPort => DPORT | PROTOCOL,
        }
    }
}

/// A projection of flow keys: a kind, prefixes, and whether flows in different tunnels are different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Projection {
    kind: KeyKind,
    v4_bits: u8,
    v6_bits: u8,
    tunnels: bool,
}

/// The bits of a tunnel's ID in a key's last word.
const ID_BITS: u64 = 0xff_ffff;

impl Projection {
    /// Keeps whole addresses, and distinguishes tunnels.
    #[must_use]
    pub const fn new(kind: KeyKind) -> Projection {
        Projection { kind, v4_bits: 32, v6_bits: 128, tunnels: true }
    }

    /// Truncates addresses to prefixes of these lengths in bits (at most 32 and 128).
    #[must_use]
    pub const fn prefixes(self, v4_bits: u8, v6_bits: u8) -> Projection {
        let v4_bits = if v4_bits > 32 { 32 } else { v4_bits };
        let v6_bits = if v6_bits > 128 { 128 } else { v6_bits };
        Projection { v4_bits, v6_bits, ..self }
    }

    /// Treats flows that differ only in the tunnel around them as one flow.
    #[must_use]
    pub const fn across_tunnels(self) -> Projection {
        Projection { tunnels: false, ..self }
    }

    /// The kind of the projection's keys.
    #[must_use]
    pub const fn kind(&self) -> KeyKind {
        self.kind
    }

    /// Returns the key of a flow.
    #[inline]
    #[must_use]
    pub fn of(&self, flow: &FlowKey) -> [u64; 5] {
        let [mark, src, _, dst, last] = flow.0;
        if mark != IPV4_MARK {
            return self.of_any(flow);
        }
        let mask = v4_mask(self.v4_bits);
        let src = if self.kind.has_source() { src & mask } else { 0 };
        let dst = if self.kind.has_destination() { dst & mask } else { 0 };
        [IPV4_MARK, src, 0, dst, last & (self.kind.last_bits() | self.id_bits())]
    }

    /// Returns the key of any flow, including those of IPv6 and those inside tunnels whose ID is 0.
    #[inline(never)]
    fn of_any(&self, flow: &FlowKey) -> [u64; 5] {
        let cut = |address: IpAddr, is_kept: bool| match address {
            IpAddr::V4(address) => {
                let mask = if is_kept { v4_mask(self.v4_bits) as u32 } else { 0 };
                IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
            }
            IpAddr::V6(address) => {
                let mask = if is_kept { v6_mask(self.v6_bits) } else { 0 };
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        };
        let src = cut(flow.src(), self.kind.has_source());
        let dst = cut(flow.dst(), self.kind.has_destination());
        let bits = self.kind.last_bits();
        let ports = (flow.sport() & (bits >> 48) as u16, flow.dport() & (bits >> 32) as u16);
        let protocol = flow.protocol() & (bits >> 24) as u8;
        FlowKey::new(src, dst, protocol, ports, flow.vni().filter(|_| self.tunnels)).0
    }

    const fn id_bits(&self) -> u64 {
        if self.tunnels { ID_BITS } else { 0 }
    }

    /// Returns the source and destination of a key, where the key has the whole address.
    #[must_use]
    pub fn addresses(&self, key: &[u64; 5]) -> [Option<IpAddr>; 2] {
        let flow = FlowKey(*key);
        let is_whole = |address: &IpAddr| match address {
            IpAddr::V4(_) => self.v4_bits == 32,
            IpAddr::V6(_) => self.v6_bits == 128,
        };
        let (src, dst) = (self.kind.has_source(), self.kind.has_destination());
        [src.then(|| flow.src()).filter(is_whole), dst.then(|| flow.dst()).filter(is_whole)]
    }

    /// Writes a key in human-readable form.
    #[must_use]
    pub fn text(&self, key: &[u64; 5]) -> String {
        let flow = FlowKey(*key);
        let end = |address: IpAddr| {
            let (bits, all) = if address.is_ipv4() { (self.v4_bits, 32) } else { (self.v6_bits, 128) };
            if bits == all { address.to_string() } else { format!("{address}/{bits}") }
        };
        let with_port = |address: IpAddr, port: u16| {
            if address.is_ipv6() {
                format!("[{}]:{port}", end(address))
            } else {
                format!("{}:{port}", end(address))
            }
        };
        let (src, dst) = (flow.src(), flow.dst());
        let text = match self.kind {
            KeyKind::Source => end(src),
            KeyKind::Destination => end(dst),
            KeyKind::Pair => format!("{} > {}", end(src), end(dst)),
            KeyKind::FourTuple => {
                format!("{} > {}", with_port(src, flow.sport()), with_port(dst, flow.dport()))
            }
            KeyKind::FiveTuple => {
                let protocol = protocol_text(flow.protocol());
                format!("{protocol} {} > {}", with_port(src, flow.sport()), with_port(dst, flow.dport()))
            }
            KeyKind::SourcePort => format!("{} {}", protocol_text(flow.protocol()), flow.sport()),
            KeyKind::DestinationPort => format!("{} {}", protocol_text(flow.protocol()), flow.dport()),
        };
        flow.vni().map_or(text.clone(), |id| format!("{text} vni {id}"))
    }
}

fn protocol_text(protocol: u8) -> String {
    match protocol {
        weir_packet::PROTOCOL_TCP => "tcp".to_string(),
        weir_packet::PROTOCOL_UDP => "udp".to_string(),
        other => format!("protocol {other}"),
    }
}

const fn v4_mask(bits: u8) -> u64 {
    (u32::MAX as u64) << (32 - bits) & u32::MAX as u64
}

const fn v6_mask(bits: u8) -> u128 {
    if bits == 0 { 0 } else { u128::MAX << (128 - bits) }
}

/// Returns the two words of an IPv4 key outside tunnels or inside one with an ID: addresses, and the last
/// word. `None` for all other keys.
#[inline(always)]
#[must_use]
pub fn narrow(key: &[u64; 5]) -> Option<[u64; 2]> {
    let [mark, src, _, dst, last] = *key;
    (mark == IPV4_MARK).then_some([src << 32 | dst, last])
}

/// Returns the key whose words [`narrow`] returned.
#[inline(always)]
#[must_use]
pub fn widen([addresses, last]: [u64; 2]) -> [u64; 5] {
    [IPV4_MARK, addresses >> 32, 0, addresses & 0xffff_ffff, last]
}

/// Returns the source address of a key as the number that a reversible sketch can recover: 32 bits for
/// IPv4, the upper 64 bits for IPv6.
#[inline]
#[must_use]
pub fn source_number(key: &[u64; 5]) -> u64 {
    match FlowKey(*key).src() {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => (address.to_bits() >> 64) as u64,
    }
}

/// Writes such a number in human-readable form: an IPv4 address, or an IPv6 prefix of 64 bits.
#[must_use]
pub fn number_text(number: u64) -> String {
    match u32::try_from(number) {
        Ok(address) => Ipv4Addr::from_bits(address).to_string(),
        Err(_) => format!("{}/64", Ipv6Addr::from_bits(u128::from(number) << 64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(src: &str, dst: &str, id: Option<u32>) -> FlowKey {
        FlowKey::new(src.parse().unwrap(), dst.parse().unwrap(), 6, (1000, 443), id)
    }

    #[test]
    fn a_key_keeps_what_its_kind_names() {
        let flow = flow("10.1.2.3", "192.0.2.9", None);
        let texts = KeyKind::ALL.map(|kind| {
            let projection = Projection::new(kind);
            projection.text(&projection.of(&flow))
        });
        let expected = [
            "10.1.2.3",
            "192.0.2.9",
            "10.1.2.3 > 192.0.2.9",
            "10.1.2.3:1000 > 192.0.2.9:443",
            "tcp 10.1.2.3:1000 > 192.0.2.9:443",
            "tcp 1000",
            "tcp 443",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn flows_that_differ_only_in_what_is_dropped_have_one_key() {
        for (one, other) in [("10.1.2.3", "10.1.2.200"), ("2001:db8:1:2::3", "2001:db8:1:2:ffff::")] {
            for id in [None, Some(0), Some(77)] {
                for kind in KeyKind::ALL {
                    let projection = Projection::new(kind).prefixes(24, 64);
                    let keys = [one, other].map(|src| projection.of(&flow(src, one, id)));
                    assert_eq!(keys[0], keys[1], "{kind:?} {id:?}");
                    let whole = Projection::new(kind);
                    let keys = [one, other].map(|src| whole.of(&flow(src, one, id)));
                    assert_eq!(keys[0] == keys[1], !kind.has_source(), "{kind:?} {id:?}");
                }
            }
        }
    }

    #[test]
    fn a_tunnels_id_tells_flows_apart_or_not() {
        for src in ["10.0.0.1", "2001:db8::1"] {
            for kind in KeyKind::ALL {
                let apart = Projection::new(kind);
                let keys = [None, Some(0), Some(5)].map(|id| flow(src, src, id));
                let [outside, zero, five] = keys.map(|key| apart.of(&key));
                assert!(outside != zero && zero != five && outside != five);
                let text = apart.text(&zero);
                assert!(text.ends_with(" vni 0"), "{text}");
                let [outside, zero, five] = keys.map(|key| apart.across_tunnels().of(&key));
                assert!(outside == zero && zero == five);
            }
        }
    }

    #[test]
    fn a_narrow_key_is_the_whole_key() {
        let keys = [flow("10.1.2.3", "192.0.2.9", None), flow("10.1.2.3", "192.0.2.9", Some(9))];
        for key in keys {
            assert_eq!(narrow(&key.0).map(widen), Some(key.0));
        }
        assert_eq!(narrow(&flow("10.1.2.3", "192.0.2.9", Some(0)).0), None);
        assert_eq!(narrow(&flow("::1", "::2", None).0), None);
    }

    #[test]
    fn a_source_is_a_number_and_can_be_read_again() {
        for (src, text) in [("10.1.2.3", "10.1.2.3"), ("2001:db8:1:2::9", "2001:db8:1:2::/64")] {
            let key = Projection::new(KeyKind::Pair).of(&flow(src, src, None));
            assert_eq!(number_text(source_number(&key)), text);
        }
    }

    #[test]
    fn a_prefix_is_written_with_its_length() {
        let projection = Projection::new(KeyKind::Source).prefixes(8, 32);
        assert_eq!(projection.text(&projection.of(&flow("10.1.2.3", "10.0.0.1", None))), "10.0.0.0/8");
        let v6 = projection.of(&flow("2001:db8:1::1", "::1", None));
        assert_eq!(projection.text(&v6), "2001:db8::/32");
    }
}
