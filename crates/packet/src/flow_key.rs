//! The key that all packets of a flow have in common: addresses, ports, protocol, and, for flows inside a
//! tunnel, the tunnel's ID. 40 bytes, IPv4 and IPv6 alike.

use crate::headers::{Base, Headers, Layer, Level};
use crate::icmp_error::{Reported, reported};
use crate::parse::{PROTOCOL_TCP, PROTOCOL_UDP};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A flow key: source (two words), destination (two words), `sport << 48 | dport << 32 | protocol << 24 |
/// id`.
///
/// An IPv4 source has [`IPV4_MARK`] in its upper word: an IPv6 source cannot, since parsing refuses multicast
/// sources (RFC 4291 §2.7). Ports are 0 for protocols without ports, and for fragments unless they were set
/// ([`FlowKey::set_ports`]). An ICMP error has the key of the packet inside it, reversed: it belongs to the
/// flow that it is about.
///
/// The ID is 0 outside tunnels. The upper source word marks keys inside a tunnel whose ID is 0 or that has
/// none: it begins with [`INSIDE_IPV4`] or with [`INSIDE_IPV6`], and the 16 bits that the latter displaces
/// are stored in place of the ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct FlowKey(pub [u64; 5]);

/// Upper source word of IPv4 keys: inside ff00::/8.
pub const IPV4_MARK: u64 = 0xff00_0000_0000_0004;

/// Upper source word of IPv4 keys inside a tunnel with id 0.
const INSIDE_IPV4: u64 = IPV4_MARK | 1 << 48;
/// Upper 16 bits of IPv6 keys inside a tunnel with id 0.
const INSIDE_IPV6: u64 = 0xff02;
/// The remaining bits of a source word.
const BELOW: u64 = (1 << 48) - 1;

/// The largest tunnel ID that fits into a key.
const ID_MAX: u32 = 0xff_ffff;
/// Either version of IP.
const IP: u32 = Layer::Ipv4 as u32 | Layer::Ipv6 as u32;

/// Either version of ICMP.
const ICMP: u32 = Layer::Icmp as u32 | Layer::Icmpv6 as u32;

/// The headers that a flow key is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KeySource {
    /// The outer headers.
    #[default]
    Outer,
    /// The headers inside a tunnel, with the tunnel's ID; the outer ones for a packet without a tunnel or
    /// without IP in it. There is no key inside a tunnel whose ID has more than 24 bits.
    Inner,
}

impl KeySource {
    /// The headers that a key is made of.
    #[inline]
    #[must_use]
    pub fn level(self, headers: &Headers) -> &Level {
        match self {
            KeySource::Inner if headers.inner().layers.0 & IP != 0 => headers.inner(),
            KeySource::Inner | KeySource::Outer => headers.outer(),
        }
    }
}

impl FlowKey {
    /// Creates a key from its parts, as a person would write them; `vni` is the VNI of the tunnel around the
    /// packet. Mixed address families result in the IPv6 form.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr, protocol: u8, ports: (u16, u16), vni: Option<u32>) -> FlowKey {
        let addresses = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                [IPV4_MARK, u64::from(src.to_bits()), 0, u64::from(dst.to_bits())]
            }
            (src, dst) => {
                let (src, dst) = (to_v6(src).to_bits(), to_v6(dst).to_bits());
                [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64]
            }
        };
        FlowKey::joined(addresses, last_word(ports, protocol), vni)
    }

    /// Creates a key from its words and the ID of the tunnel around the packet.
    fn joined([src_hi, src_lo, dst_hi, dst_lo]: [u64; 4], last: u64, id: Option<u32>) -> FlowKey {
        let (src_hi, id) = match id {
            Some(0) if src_hi == IPV4_MARK => (INSIDE_IPV4, 0),
            Some(0) => (INSIDE_IPV6 << 48 | src_hi & BELOW, src_hi >> 48),
            id => (src_hi, u64::from(id.unwrap_or(0) & ID_MAX)),
        };
        FlowKey([src_hi, src_lo, dst_hi, dst_lo, last | id])
    }

    /// The key of a parsed frame; `None` without IP.
    #[must_use]
    pub fn of(frame: &[u8], headers: &Headers, source: KeySource) -> Option<FlowKey> {
        match FlowKey::ipv4(frame, headers, source) {
            Some((addresses, last)) => {
                Some(FlowKey([IPV4_MARK, addresses >> 32, 0, addresses & 0xffff_ffff, last]))
            }
            None => FlowKey::of_any(frame, headers, source),
        }
    }

    /// The key of a parsed frame as if its tunnel had no ID, or as if it had no tunnel: the frames of a flow
    /// have the same such key inside a tunnel and after they have left it. `None` without IP.
    #[inline]
    #[must_use]
    pub fn without_id(frame: &[u8], headers: &Headers, source: KeySource) -> Option<FlowKey> {
        if let Some((addresses, last)) = FlowKey::ipv4(frame, headers, source) {
            return Some(FlowKey([IPV4_MARK, addresses >> 32, 0, addresses & 0xffff_ffff, last]));
        }
        let ([src_hi, src_lo, dst_hi, dst_lo], last) = FlowKey::words(frame, source.level(headers))?;
        Some(FlowKey([src_hi, src_lo, dst_hi, dst_lo, last]))
    }

    /// Source and destination: the address in two words, without marks, and the port.
    #[inline]
    #[must_use]
    pub fn ends(&self) -> [[u64; 3]; 2] {
        let [src_hi, src_lo, dst_hi, dst_lo, last] = self.0;
        let src_hi = match src_hi {
            IPV4_MARK | INSIDE_IPV4 => 0,
            inside if inside >> 48 == INSIDE_IPV6 => (last & 0xffff) << 48 | inside & BELOW,
            outside => outside,
        };
        [[src_hi, src_lo, last >> 48], [dst_hi, dst_lo, last >> 32 & 0xffff]]
    }

    /// The two words that vary in the keys of nearly all frames (IPv4 with ports, outside a tunnel): the
    /// addresses, with the source in the upper half, and the key's last word. The other words are
    /// [`IPV4_MARK`] and 0. `None` for all other frames.
    #[inline(always)]
    #[must_use]
    pub fn ipv4(frame: &[u8], headers: &Headers, source: KeySource) -> Option<(u64, u64)> {
        let outer = headers.outer();
        let usual = Layer::Ipv4 as u32 | Layer::Ports as u32;
        // The ports of a fragment are not in its bytes.
        if outer.layers.0 & (usual | Layer::Fragment as u32) != usual
            || source == KeySource::Inner && headers.inner().layers.0 & IP != 0
        {
            return None;
        }
        let (l3, l4) = (outer.at(Base::L3), outer.at(Base::L4));
        let addresses = u64::from_be_bytes(frame.get(l3 + 12..l3 + 20)?.try_into().ok()?);
        let ports = u32::from_be_bytes(frame.get(l4..l4 + 4)?.try_into().ok()?);
        Some((addresses, u64::from(ports) << 32 | u64::from(outer.protocol) << 24))
    }

    /// Turns `self` into the key whose words [`FlowKey::ipv4`] returned, storing each word in place: copying
    /// a key built elsewhere with vector loads would stall on the narrower stores of its words.
    #[inline(always)]
    pub fn set_ipv4(&mut self, addresses: u64, last: u64) {
        self.0[0] = IPV4_MARK;
        self.0[1] = addresses >> 32;
        self.0[2] = 0;
        self.0[3] = addresses & 0xffff_ffff;
        self.0[4] = last;
    }

    /// Sets the ports in the key of a fragment to those of its datagram, as in the first fragment.
    pub fn set_ports(&mut self, ports: [u8; 4]) {
        self.0[4] = u64::from(u32::from_be_bytes(ports)) << 32 | self.0[4] & 0xffff_ffff;
    }

    /// Like [`FlowKey::of`], for any frame.
    #[inline(never)]
    fn of_any(frame: &[u8], headers: &Headers, source: KeySource) -> Option<FlowKey> {
        if source == KeySource::Inner && headers.inner().layers.0 & IP != 0 {
            let (addresses, last) = FlowKey::words(frame, headers.inner())?;
            let id = headers.tunnel_id;
            return (id <= ID_MAX).then(|| FlowKey::joined(addresses, last, Some(id)));
        }
        let ([src_hi, src_lo, dst_hi, dst_lo], last) = FlowKey::words(frame, headers.outer())?;
        Some(FlowKey([src_hi, src_lo, dst_hi, dst_lo, last]))
    }

    /// The words of a key, without the tunnel's ID.
    #[inline(always)]
    fn words(frame: &[u8], level: &Level) -> Option<([u64; 4], u64)> {
        if level.layers.0 & IP == 0 {
            return None;
        }
        if level.layers.0 & ICMP != 0
            && let Some(Reported { addresses, ports, protocol }) = reported(frame, level)
        {
            return Some((addresses, last_word(ports, protocol)));
        }
        let addresses = addresses(frame, level.at(Base::L3), level.layers.has(Layer::Ipv4))?;
        let l4 = level.at(Base::L4);
        let in_bytes = level.layers.has(Layer::Ports) && !level.layers.has(Layer::Fragment);
        let ports = match in_bytes {
            true => frame.get(l4..l4 + 4)?,
            false => &[0; 4],
        };
        let ports = (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]));
        Some((addresses, last_word(ports, level.protocol)))
    }

    /// Source address.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        self.address(0)
    }

    /// Destination address.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        self.address(2)
    }

    fn address(&self, word: usize) -> IpAddr {
        let [first, .., last] = self.0;
        if first == IPV4_MARK || first == INSIDE_IPV4 {
            return IpAddr::V4(Ipv4Addr::from_bits(self.0[word + 1] as u32));
        }
        let upper = match word {
            0 if first >> 48 == INSIDE_IPV6 => (last & 0xffff) << 48 | first & BELOW,
            _ => self.0[word],
        };
        IpAddr::V6(Ipv6Addr::from_bits(u128::from(upper) << 64 | u128::from(self.0[word + 1])))
    }

    /// Source port, 0 without ports.
    #[must_use]
    pub fn sport(&self) -> u16 {
        (self.0[4] >> 48) as u16
    }

    /// Destination port, 0 without ports.
    #[must_use]
    pub fn dport(&self) -> u16 {
        (self.0[4] >> 32) as u16
    }

    /// Transport protocol (IANA).
    #[must_use]
    pub fn protocol(&self) -> u8 {
        (self.0[4] >> 24) as u8
    }

    /// ID of the tunnel around the packet (a VNI or a key), 0 if it has none; `None` outside tunnels.
    #[must_use]
    pub fn vni(&self) -> Option<u32> {
        if self.0[0] == INSIDE_IPV4 || self.0[0] >> 48 == INSIDE_IPV6 {
            return Some(0);
        }
        Some(self.0[4] as u32 & ID_MAX).filter(|id| *id != 0)
    }
}

impl std::fmt::Display for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let protocol = match self.protocol() {
            PROTOCOL_TCP => "tcp".to_string(),
            PROTOCOL_UDP => "udp".to_string(),
            other => format!("protocol {other}"),
        };
        let pair = |ip: IpAddr, port: u16| {
            if ip.is_ipv6() { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
        };
        write!(f, "{protocol} {} > {}", pair(self.src(), self.sport()), pair(self.dst(), self.dport()))?;
        self.vni().map_or(Ok(()), |vni| write!(f, " vni {vni}"))
    }
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[inline(always)]
fn last_word(ports: (u16, u16), protocol: u8) -> u64 {
    u64::from(ports.0) << 48 | u64::from(ports.1) << 32 | u64::from(protocol) << 24
}

#[inline(always)]
pub(crate) fn addresses(frame: &[u8], l3: usize, is_ipv4: bool) -> Option<[u64; 4]> {
    if is_ipv4 {
        let pair = frame.get(l3 + 12..l3 + 20)?;
        let pair = u64::from_be_bytes(pair.try_into().ok()?);
        Some([IPV4_MARK, pair >> 32, 0, pair & 0xffff_ffff])
    } else {
        let pair = frame.get(l3 + 8..l3 + 40)?;
        let word = |at: usize| pair[at..at + 8].try_into().map(u64::from_be_bytes).ok();
        Some([word(0)?, word(8)?, word(16)?, word(24)?])
    }
}
