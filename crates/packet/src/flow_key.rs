//! What makes two packets one flow: addresses, ports, protocol, and the tunnel's id for flows inside one. 40
//! bytes, IPv4 and IPv6 alike.

use crate::headers::{Base, Headers, Layer, Level};
use crate::parse::{PROTOCOL_TCP, PROTOCOL_UDP};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A flow key: source (two words), destination (two words), `sport << 48 | dport << 32 | protocol << 24 |
/// id`.
///
/// An IPv4 source has [`IPV4_MARK`] in its upper word: an IPv6 source cannot, since parsing refuses multicast
/// sources (RFC 4291 §2.7). Ports are 0 for fragments and for protocols without ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct FlowKey(pub [u64; 5]);

/// Upper source word of IPv4 keys: inside ff00::/8.
pub const IPV4_MARK: u64 = 0xff00_0000_0000_0004;

/// The largest tunnel id that a key has room for.
const ID_MAX: u32 = 0xff_ffff;
/// Either version of IP.
const IP: u32 = Layer::Ipv4 as u32 | Layer::Ipv6 as u32;

/// Which headers a flow key is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeySource {
    /// The outer headers.
    #[default]
    Outer,
    /// The headers inside a tunnel with its id; the outer ones for a packet without a tunnel or without IP in
    /// it. Inside a tunnel whose id has more than 24 bits there is no key.
    Inner,
}

impl FlowKey {
    /// A key from its parts, as a person would write them. Mixed address families give the IPv6 form.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr, protocol: u8, ports: (u16, u16), vni: u32) -> FlowKey {
        let [src_hi, src_lo, dst_hi, dst_lo] = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                [IPV4_MARK, u64::from(src.to_bits()), 0, u64::from(dst.to_bits())]
            }
            (src, dst) => {
                let (src, dst) = (to_v6(src).to_bits(), to_v6(dst).to_bits());
                [(src >> 64) as u64, src as u64, (dst >> 64) as u64, dst as u64]
            }
        };
        FlowKey([src_hi, src_lo, dst_hi, dst_lo, last_word(ports, protocol, vni)])
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

    /// Of nearly all frames: IPv4 with ports, outside a tunnel. Source (upper half) and destination address,
    /// and the key's last word; the others are [`IPV4_MARK`] and 0. `None` of all others.
    #[inline(always)]
    #[must_use]
    pub fn ipv4(frame: &[u8], headers: &Headers, source: KeySource) -> Option<(u64, u64)> {
        let outer = headers.outer();
        let usual = Layer::Ipv4 as u32 | Layer::Ports as u32;
        if outer.layers.0 & usual != usual || source == KeySource::Inner && headers.inner().layers.0 & IP != 0
        {
            return None;
        }
        let (l3, l4) = (outer.at(Base::L3), outer.at(Base::L4));
        let addresses = u64::from_be_bytes(frame.get(l3 + 12..l3 + 20)?.try_into().ok()?);
        let ports = u32::from_be_bytes(frame.get(l4..l4 + 4)?.try_into().ok()?);
        Some((addresses, u64::from(ports) << 32 | u64::from(outer.protocol) << 24))
    }

    /// Becomes the key that [`FlowKey::ipv4`] gave the words of, each word stored where it belongs: a key
    /// that is built elsewhere and copied by vectors waits for its own words.
    #[inline(always)]
    pub fn set_ipv4(&mut self, addresses: u64, last: u64) {
        self.0[0] = IPV4_MARK;
        self.0[1] = addresses >> 32;
        self.0[2] = 0;
        self.0[3] = addresses & 0xffff_ffff;
        self.0[4] = last;
    }

    /// As [`FlowKey::of`], of any frame.
    #[inline(never)]
    fn of_any(frame: &[u8], headers: &Headers, source: KeySource) -> Option<FlowKey> {
        if source == KeySource::Inner && headers.inner().layers.0 & IP != 0 {
            return FlowKey::of_level(frame, headers.inner(), headers.tunnel_id);
        }
        FlowKey::of_level(frame, headers.outer(), 0)
    }

    fn of_level(frame: &[u8], level: &Level, id: u32) -> Option<FlowKey> {
        if level.layers.0 & IP == 0 || id > ID_MAX {
            return None;
        }
        let [a, b, c, d] = addresses(frame, level.at(Base::L3), level.layers.has(Layer::Ipv4))?;
        let l4 = level.at(Base::L4);
        let ports = match level.layers.has(Layer::Ports) {
            true => frame.get(l4..l4 + 4)?,
            false => &[0; 4],
        };
        let ports = (u16::from_be_bytes([ports[0], ports[1]]), u16::from_be_bytes([ports[2], ports[3]]));
        Some(FlowKey([a, b, c, d, last_word(ports, level.protocol, id)]))
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
        if self.0[0] == IPV4_MARK {
            IpAddr::V4(Ipv4Addr::from_bits(self.0[word + 1] as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(u128::from(self.0[word]) << 64 | u128::from(self.0[word + 1])))
        }
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

    /// Tunnel id (a VNI, a key), 0 for outer keys and tunnels without one.
    #[must_use]
    pub fn vni(&self) -> u32 {
        self.0[4] as u32 & ID_MAX
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
        if self.vni() != 0 { write!(f, " vni {}", self.vni()) } else { Ok(()) }
    }
}

fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[inline(always)]
fn last_word(ports: (u16, u16), protocol: u8, vni: u32) -> u64 {
    u64::from(ports.0) << 48 | u64::from(ports.1) << 32 | u64::from(protocol) << 24 | u64::from(vni & ID_MAX)
}

#[inline(always)]
fn addresses(frame: &[u8], l3: usize, is_ipv4: bool) -> Option<[u64; 4]> {
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
