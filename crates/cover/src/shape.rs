//! Shapes of packets: which headers a packet has, and the frame of a shape with given values.
//!
//! Whether a packet has a field depends on its shape alone. So the search fixes a shape first; then every
//! field is present or absent, and only values are unknown.

use crate::domain::{Condition, ones};
use crate::solve::{Conjunction, Point};
use std::net::{Ipv4Addr, Ipv6Addr};
use weir_packet::craft::{
    Addresses, Arp, Body, Checksum, Fragment, Icmp, Ip, Recipe, Tag, Tcp, Transport, Tunnel, Udp,
};
use weir_packet::tunnel::{TunnelCarrier, Unread};
use weir_packet::{
    Depth, ETHER_ARP, ETHER_IPV4, ETHER_IPV6, ETHER_QINQ, ETHER_VLAN, Field, FieldKind, Layer, Layers,
    LevelId, PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP, PROTOCOL_UDP, TunnelKind,
};
use weir_program::Program;

/// The layer behind Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Network {
    /// An EtherType that no parser follows.
    Other,
    /// ARP for IPv4.
    Arp,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// The layer behind IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer4 {
    /// There is no IP.
    Absent,
    /// TCP.
    Tcp,
    /// UDP without a tunnel.
    Udp,
    /// ICMP, or ICMPv6 over IPv6, without a packet that it is about. Its type may be that of an error.
    Icmp,
    /// An ICMP error about such a packet of the same IP version.
    IcmpError(Quoted),
    /// A fragment of any protocol. It has no header behind IP.
    Fragment,
    /// The first fragment of a TCP datagram or, if true, of a UDP one, where fragments have the ports of
    /// their datagrams.
    FirstFragment(bool),
    /// A protocol that no parser follows.
    Other,
    /// A tunnel, over UDP or directly over IP.
    Tunnel,
}

/// The packet that an ICMP error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Quoted {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// A packet without ports: over IPv4 a fragment of any protocol, over IPv6 another protocol.
    Other,
}

impl Quoted {
    /// All kinds.
    pub const ALL: [Quoted; 3] = [Quoted::Tcp, Quoted::Udp, Quoted::Other];
}

/// The headers at one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HeaderSet {
    /// Whether there is an Ethernet header.
    pub ethernet: bool,
    /// Number of VLAN tags, at most two.
    pub tags: u8,
    /// What follows.
    pub network: Network,
    /// What follows IP.
    pub transport: Layer4,
}

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PacketShape {
    /// The outer headers.
    pub outer: HeaderSet,
    /// The tunnel, whether its header has an ID, and the headers inside.
    pub tunnel: Option<(TunnelKind, bool, HeaderSet)>,
}

impl HeaderSet {
    /// The headers after a tunnel header if nothing there is parsed.
    pub const NOTHING: HeaderSet =
        HeaderSet { ethernet: false, tags: 0, network: Network::Other, transport: Layer4::Absent };

    /// Returns the layers that [`Field::needs`] refers to, without those of tunnels.
    #[must_use]
    pub fn layers(self) -> Layers {
        if self == HeaderSet::NOTHING {
            return Layers(0);
        }
        let mut bits = Layer::Present as u32;
        let mut add = |present: bool, layer: Layer| bits |= if present { layer as u32 } else { 0 };
        let (ipv4, ipv6) = (self.network == Network::Ipv4, self.network == Network::Ipv6);
        add(self.ethernet, Layer::Ethernet);
        add(self.tags > 0, Layer::Vlan);
        add(self.tags > 1, Layer::SecondVlan);
        add(self.network == Network::Arp, Layer::Arp);
        add(ipv4, Layer::Ipv4);
        add(ipv6, Layer::Ipv6);
        add(self.transport == Layer4::Tcp, Layer::Tcp);
        add(self.transport == Layer4::Udp, Layer::Udp);
        let error = matches!(self.transport, Layer4::IcmpError(_));
        add(ipv4 && (self.transport == Layer4::Icmp || error), Layer::Icmp);
        add(ipv6 && (self.transport == Layer4::Icmp || error), Layer::Icmpv6);
        add(error, Layer::IcmpError);
        add(matches!(self.transport, Layer4::IcmpError(Quoted::Tcp | Quoted::Udp)), Layer::ErrorPorts);
        let first = matches!(self.transport, Layer4::FirstFragment(_));
        add(first || self.transport == Layer4::Fragment, Layer::Fragment);
        add(first || matches!(self.transport, Layer4::Tcp | Layer4::Udp), Layer::Ports);
        Layers(bits)
    }
}

impl PacketShape {
    /// Returns the headers at a level.
    #[must_use]
    pub fn level(&self, level: LevelId) -> Option<HeaderSet> {
        match level {
            LevelId::Outer => Some(self.outer),
            LevelId::Inner => self.tunnel.map(|(.., inner)| inner),
        }
    }

    /// Returns the layers at a level.
    #[must_use]
    pub fn layers(&self, level: LevelId) -> Layers {
        let mut layers = self.level(level).map_or(Layers(0), HeaderSet::layers);
        if let (LevelId::Outer, Some((kind, id, _))) = (level, self.tunnel) {
            layers.0 |= Layers::of_tunnel(kind).0 | if id { Layer::TunnelId as u32 } else { 0 };
            if kind.is_udp() {
                layers.0 |= Layer::Udp as u32 | Layer::Ports as u32;
            }
        }
        layers
    }

    /// Whether packets of this shape have a field.
    #[must_use]
    pub fn has(&self, field: Field) -> bool {
        let needs = field.needs();
        self.layers(LevelId::Outer).has_all(needs.0[0]) && self.layers(LevelId::Inner).has_all(needs.0[1])
    }

    /// Returns the value of a field that the shape determines.
    #[must_use]
    pub fn fixed(&self, field: Field, program: &Program) -> Option<u128> {
        let level = self.level(field.level)?;
        let is_ipv4 = level.network == Network::Ipv4;
        let tunnel = self.tunnel.filter(|_| field.level == LevelId::Outer);
        let inside = tunnel.map(|(.., inner)| inner);
        Some(match field.kind {
            FieldKind::EthType => match level.network {
                Network::Other => return None,
                Network::Arp => u128::from(ETHER_ARP),
                Network::Ipv4 => u128::from(ETHER_IPV4),
                Network::Ipv6 => u128::from(ETHER_IPV6),
            },
            FieldKind::IpVersion => match level.network {
                Network::Ipv4 => 4,
                Network::Ipv6 => 6,
                Network::Other | Network::Arp => 0,
            },
            FieldKind::IpProtocol => match (level.transport, tunnel.zip(inside)) {
                (Layer4::Absent, _) => 0,
                (Layer4::Tcp | Layer4::FirstFragment(false), _) => u128::from(PROTOCOL_TCP),
                (Layer4::Udp | Layer4::FirstFragment(true), _) => u128::from(PROTOCOL_UDP),
                (Layer4::Icmp | Layer4::IcmpError(_), _) if is_ipv4 => u128::from(PROTOCOL_ICMP),
                (Layer4::Icmp | Layer4::IcmpError(_), _) => u128::from(PROTOCOL_ICMPV6),
                (Layer4::Tunnel, Some(((kind, ..), inner))) => u128::from(kind.protocol(carried(inner))),
                (Layer4::Other | Layer4::Fragment | Layer4::Tunnel, _) => return None,
            },
            FieldKind::ErrorV4Protocol | FieldKind::ErrorV6Protocol => match level.transport {
                Layer4::IcmpError(Quoted::Udp) => u128::from(PROTOCOL_UDP),
                Layer4::IcmpError(Quoted::Tcp) => u128::from(PROTOCOL_TCP),
                _ => return None,
            },
            FieldKind::IpFragment => {
                u128::from(matches!(level.transport, Layer4::Fragment | Layer4::FirstFragment(_)))
            }
            FieldKind::L4Dport | FieldKind::UdpDport => {
                let (kind, ..) = tunnel?;
                return port_of(program, kind).map(u128::from);
            }
            FieldKind::TunnelId => match tunnel? {
                (_, true, _) => return None,
                (_, false, _) => 0,
            },
            _ => return None,
        })
    }

    /// Returns what no packet of this shape may be, because the parser would find another shape or drop it as
    /// malformed. This follows `weir_packet::parse` condition by condition: any more of them, and entries
    /// would be called unreachable that packets reach.
    #[must_use]
    pub fn excluded(&self, program: &Program) -> Vec<Conjunction> {
        let mut excluded = Vec::new();
        if let Some((_, bits)) = self.tunnel.and_then(|(kind, ..)| kind.spec().id) {
            let first = ones(bits).saturating_add(1);
            excluded.push(vec![(Field::TunnelId, Condition::Range { first, last: u128::MAX })]);
        }
        let levels = [LevelId::Outer, LevelId::Inner];
        for (at, level) in levels.into_iter().filter_map(|id| self.level(id).map(|level| (id, level))) {
            let field = |field: Field| if at == LevelId::Inner { field.inner() } else { field };
            let mut never = |wanted: &[(Field, Condition)]| {
                excluded.push(wanted.iter().map(|(of, condition)| (field(*of), *condition)).collect());
            };
            level.no_addresses(&mut never);
            // Tunnels are recognised only where the program looks into them, and only at the outer level.
            let tunnels = TunnelKind::ALL.iter().copied().filter(|kind| !may_be_foreign(*kind));
            let looks = at == LevelId::Outer && program.depth() == Depth::Inner;
            let tunnels: Vec<TunnelKind> = tunnels.filter(|_| looks).collect();
            let mut not = |field: Field, values: &mut dyn Iterator<Item = u128>| {
                values.for_each(|value| never(&[(field, Condition::equal(value))]));
            };
            match level.transport {
                Layer4::Udp => {
                    let ports = tunnels.iter().filter_map(|kind| port_of(program, *kind));
                    not(Field::L4Dport, &mut ports.map(u128::from));
                }
                Layer4::Other => {
                    let is_ipv4 = level.network == Network::Ipv4;
                    let own = if is_ipv4 { PROTOCOL_ICMP } else { PROTOCOL_ICMPV6 };
                    let protocols = tunnels.iter().flat_map(|kind| match kind.spec().carrier {
                        TunnelCarrier::Ip(protocols) => protocols,
                        TunnelCarrier::Udp(_) => &[],
                    });
                    let mut known = vec![PROTOCOL_TCP, PROTOCOL_UDP, own];
                    known.extend(protocols);
                    known.extend(EXTENSIONS.iter().filter(|_| !is_ipv4));
                    not(Field::IpProtocol, &mut known.into_iter().map(u128::from));
                }
                // Those of TCP and UDP have ports where the program follows fragments.
                Layer4::Fragment if at == LevelId::Outer && program.follows() => {
                    not(Field::IpProtocol, &mut [PROTOCOL_TCP, PROTOCOL_UDP].map(u128::from).into_iter());
                }
                Layer4::IcmpError(quoted) => no_errors(level.network, quoted, &mut never),
                Layer4::Icmp
                | Layer4::Fragment
                | Layer4::FirstFragment(_)
                | Layer4::Absent
                | Layer4::Tcp
                | Layer4::Tunnel => {}
            }
        }
        excluded
    }

    /// Returns a frame of this shape.
    #[must_use]
    pub fn frame(&self, program: &Program, point: &Point) -> Vec<u8> {
        let mut frame = self.recipe(program, point).build();
        let is_arp = |at| self.level(at).is_some_and(|level| level.network == Network::Arp);
        for field in
            [Field::ArpOperation, Field::ArpOperation.inner()].into_iter().filter(|one| is_arp(one.level))
        {
            // Recipes know requests and replies only. ARP is the last header.
            let start = frame.len() - ARP + 6;
            frame[start..start + 2].copy_from_slice(&(value(point, field) as u16).to_be_bytes());
        }
        frame
    }

    /// Returns the recipe of a frame of this shape. Its ARP operation is a request or a reply.
    #[must_use]
    pub fn recipe(&self, program: &Program, point: &Point) -> Recipe {
        let inside = self.tunnel.map(|(kind, has_id, inner)| {
            let id = has_id.then(|| value(point, Field::TunnelId) as u32);
            let content = recipe_of((inner, LevelId::Inner), program, point, None);
            let inner_recipe = Some(std::boxed::Box::new(content));
            (kind, Tunnel { kind, id, header: None, ethernet: inner.ethernet, inner: inner_recipe })
        });
        let mut recipe = recipe_of(
            (self.outer, LevelId::Outer),
            program,
            point,
            inside.as_ref().map(|(_, tunnel)| tunnel),
        );
        if let (Some((kind, _)), Body::Ip(Ip { transport: Transport::Udp(udp), .. })) =
            (&inside, &mut recipe.body)
        {
            udp.dport = port_of(program, *kind).unwrap_or(udp.dport);
        }
        recipe
    }
}

impl HeaderSet {
    /// Excludes EtherTypes that something else follows, and sources that the parser refuses.
    fn no_addresses(self, never: &mut impl FnMut(&[(Field, Condition)])) {
        let bits = |value, mask| Condition::Bits { value, mask };
        let range = |first, last| Condition::Range { first, last };
        match self.network {
            Network::Ipv4 => {
                never(&[(Field::Ipv4Src, bits(0xe000_0000, 0xf000_0000))]);
                never(&[(Field::Ipv4Src, Condition::equal(0xffff_ffff))]);
                // A host without an address sends only to several hosts.
                for hosts in [range(0, 0xdfff_ffff), range(0xf000_0000, 0xffff_fffe)] {
                    never(&[(Field::Ipv4Src, Condition::equal(0)), (Field::Ipv4Dst, hosts)]);
                }
            }
            Network::Ipv6 => {
                never(&[(Field::Ipv6Src, bits(0xff << 120, 0xff << 120))]);
                let hosts = range(0, (0xff << 120) - 1);
                never(&[(Field::Ipv6Src, Condition::equal(0)), (Field::Ipv6Dst, hosts)]);
            }
            // ARP for other hardware is payload.
            Network::Other if self.ethernet => {
                let tags = [ETHER_VLAN, ETHER_QINQ].into_iter().filter(|_| self.tags < 2);
                for known in tags.chain([ETHER_IPV4, ETHER_IPV6]) {
                    never(&[(Field::EthType, Condition::equal(u128::from(known)))]);
                }
            }
            Network::Arp | Network::Other => {}
        }
    }
}

/// Protocol numbers of the IPv6 extension headers that the parser skips (RFC 8200 §4, RFC 4302).
const EXTENSIONS: [u8; 5] = [0, 43, 44, 51, 60];

/// Excludes packets that are not an ICMP error about such a packet.
fn no_errors(network: Network, quoted: Quoted, never: &mut impl FnMut(&[(Field, Condition)])) {
    let range = |first, last| Condition::Range { first, last };
    if network == Network::Ipv4 {
        // RFC 792: 3 unreachable, 4 source quench, 5 redirect, 11 time exceeded, 12 parameter problem.
        for others in [range(0, 2), range(6, 10), range(13, 255)] {
            never(&[(Field::IcmpType, others)]);
        }
    } else {
        // RFC 4443 has errors 1 to 4.
        for others in [range(0, 0), range(5, 255)] {
            never(&[(Field::Icmpv6Type, others)]);
        }
        never(&[(Field::ErrorV6Dst, Condition::Bits { value: 0xff << 120, mask: 0xff << 120 })]);
        if quoted == Quoted::Other {
            for known in [PROTOCOL_TCP, PROTOCOL_UDP].into_iter().chain(EXTENSIONS) {
                never(&[(Field::ErrorV6Protocol, Condition::equal(u128::from(known)))]);
            }
        }
    }
}

/// The start of bytes at the place of a tunnel header that have another version or variant, so that the
/// parser takes them as payload.
const FOREIGN: [u8; 8] = [0xff; 8];

/// Whether a packet with the port or protocol of a tunnel may be something else.
fn may_be_foreign(kind: TunnelKind) -> bool {
    kind.read(&FOREIGN, 0) == Err(Unread::Unknown)
}

/// Returns the UDP port of a tunnel, if it runs over UDP.
fn port_of(program: &Program, kind: TunnelKind) -> Option<u16> {
    kind.is_udp().then(|| program.tunnels.of(kind))
}

/// Bytes of an ARP packet for IPv4 over Ethernet.
const ARP: usize = 28;

/// Returns what a tunnel carries.
fn carried(inner: HeaderSet) -> weir_packet::tunnel::Inside {
    use weir_packet::tunnel::Inside;
    match inner.network {
        _ if inner.ethernet => Inside::Ethernet,
        Network::Ipv6 => Inside::Ipv6,
        Network::Other | Network::Arp | Network::Ipv4 => Inside::Ipv4,
    }
}

fn value(point: &Point, field: Field) -> u128 {
    point.get(&field).copied().unwrap_or_else(|| default(field))
}

fn recipe_of(
    (level, at): (HeaderSet, LevelId),
    program: &Program,
    point: &Point,
    tunnel: Option<&Tunnel>,
) -> Recipe {
    let get = |field: Field| value(point, if at == LevelId::Inner { field.inner() } else { field });
    let mac = |number: u128| {
        let [_, _, bytes @ ..] = (number as u64).to_be_bytes();
        bytes
    };
    let tag =
        |vid: Field, pcp: Field| Tag { vid: get(vid) as u16, pcp: get(pcp) as u8, dei: false, tpid: None };
    let ipv4 = |field: Field| Ipv4Addr::from_bits(get(field) as u32);
    let body = match level.network {
        Network::Other => Body::Ethernet(get(Field::EthType) as u16),
        Network::Arp => Body::Arp(Arp {
            is_reply: get(Field::ArpOperation) == 2,
            sender_ip: ipv4(Field::ArpSenderIp),
            target_ip: ipv4(Field::ArpTargetIp),
        }),
        Network::Ipv4 => Body::Ip(Ip {
            addresses: Addresses::V4(ipv4(Field::Ipv4Src), ipv4(Field::Ipv4Dst)),
            ttl: get(Field::Ipv4Ttl) as u8,
            dscp: get(Field::Ipv4Dscp) as u8,
            ecn: get(Field::Ipv4Ecn) as u8,
            identification: get(Field::Ipv4Identification) as u32,
            dont_fragment: level.fragment().is_none(),
            fragment: level.fragment(),
            transport: transport(level, get, tunnel),
            ..Ip::default()
        }),
        Network::Ipv6 => {
            let address = |field: Field| Ipv6Addr::from_bits(get(field));
            let class = get(Field::Ipv6TrafficClass) as u8;
            Body::Ip(Ip {
                addresses: Addresses::V6(address(Field::Ipv6Src), address(Field::Ipv6Dst)),
                ttl: get(Field::Ipv6HopLimit) as u8,
                dscp: class >> 2,
                ecn: class & 3,
                flow_label: get(Field::Ipv6FlowLabel) as u32,
                fragment: level.fragment(),
                transport: transport(level, get, tunnel),
                ..Ip::default()
            })
        }
    };
    Recipe {
        eth_src: mac(get(Field::EthSrc)),
        eth_dst: mac(get(Field::EthDst)),
        vlan: (level.tags > 0).then(|| tag(Field::VlanVid, Field::VlanPcp)),
        second_vlan: (level.tags > 1).then(|| tag(Field::SecondVlanVid, Field::SecondVlanPcp)),
        body,
        payload: payload(level, program, get),
        ..Recipe::default()
    }
}

impl HeaderSet {
    /// Returns which fragment a packet is.
    fn fragment(self) -> Option<Fragment> {
        match self.transport {
            Layer4::Fragment => Some(Fragment { offset: 8, more: false }),
            Layer4::FirstFragment(_) => Some(Fragment { offset: 0, more: true }),
            _ => None,
        }
    }
}

/// Returns the bytes after the headers of a level that determine the level's shape: the packet that an ICMP
/// error is about, or bytes which show that a packet with the mark of ARP or of a tunnel is neither.
fn payload(level: HeaderSet, program: &Program, get: impl Fn(Field) -> u128) -> Vec<u8> {
    let mark = |field: Field| get(field);
    match level.transport {
        Layer4::IcmpError(quoted) => about(level, quoted, get),
        Layer4::Absent
            if level.network == Network::Other && mark(Field::EthType) == u128::from(ETHER_ARP) =>
        {
            OTHER_ARP.to_vec()
        }
        Layer4::Udp if is_tunnel_port(program, mark(Field::L4Dport)) => FOREIGN.to_vec(),
        Layer4::Other if TunnelKind::of_protocol(mark(Field::IpProtocol) as u8).is_some() => FOREIGN.to_vec(),
        _ => Vec::new(),
    }
}

/// The start of an ARP packet for IPv4 over IEEE 802 networks (RFC 826; hardware type 6).
const OTHER_ARP: [u8; 8] = [0, 6, 8, 0, 6, 4, 0, 1];

fn is_tunnel_port(program: &Program, port: u128) -> bool {
    TunnelKind::ALL.iter().filter_map(|kind| port_of(program, *kind)).any(|one| u128::from(one) == port)
}

/// Returns the packet that an ICMP error is about.
fn about(level: HeaderSet, quoted: Quoted, get: impl Fn(Field) -> u128) -> Vec<u8> {
    let (sport, dport, checksum) =
        (get(Field::ErrorSport) as u16, get(Field::ErrorDport) as u16, Checksum::Good);
    let addresses = if level.network == Network::Ipv4 {
        let address = |field: Field| Ipv4Addr::from_bits(get(field) as u32);
        Addresses::V4(address(Field::ErrorV4Src), address(Field::ErrorV4Dst))
    } else {
        let address = |field: Field| Ipv6Addr::from_bits(get(field));
        Addresses::V6(address(Field::ErrorV6Src), address(Field::ErrorV6Dst))
    };
    let is_ipv4 = level.network == Network::Ipv4;
    let transport = match quoted {
        Quoted::Udp => Transport::Udp(Udp { sport, dport, checksum, tunnel: None }),
        Quoted::Tcp => Transport::Tcp(tcp((sport, dport), 0x10)),
        Quoted::Other if is_ipv4 => Transport::Other(get(Field::ErrorV4Protocol) as u8),
        Quoted::Other => Transport::Other(get(Field::ErrorV6Protocol) as u8),
    };
    // A fragment has no ports, whatever its protocol.
    let fragment = (is_ipv4 && quoted == Quoted::Other).then_some(Fragment { offset: 0, more: true });
    let ip = Ip { addresses, transport, fragment, ..Ip::default() };
    let packet = Recipe { body: Body::Ip(ip), ..Recipe::default() };
    packet.build()[ETHERNET..].to_vec()
}

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

fn transport(level: HeaderSet, get: impl Fn(Field) -> u128, tunnel: Option<&Tunnel>) -> Transport {
    let port = |field: Field| get(field) as u16;
    let (sport, dport, checksum) = (port(Field::L4Sport), port(Field::L4Dport), Checksum::Good);
    match (level.transport, tunnel) {
        (Layer4::Tunnel, Some(tunnel)) if tunnel.kind.is_udp() => {
            Transport::Udp(Udp { sport, dport, checksum, tunnel: Some(tunnel.clone()) })
        }
        (Layer4::Tunnel, Some(tunnel)) => Transport::Tunnel(tunnel.clone()),
        (Layer4::Udp | Layer4::FirstFragment(true), _) => {
            Transport::Udp(Udp { sport, dport, checksum, tunnel: None })
        }
        (Layer4::Tcp | Layer4::FirstFragment(false), _) => {
            Transport::Tcp(tcp((sport, dport), get(Field::TcpFlags) as u8))
        }
        (Layer4::Icmp | Layer4::IcmpError(_), _) => {
            let ipv4 = level.network == Network::Ipv4;
            let (kind, code) = if ipv4 {
                (Field::IcmpType, Field::IcmpCode)
            } else {
                (Field::Icmpv6Type, Field::Icmpv6Code)
            };
            Transport::Icmp(Icmp { kind: get(kind) as u8, code: get(code) as u8, rest: 1, checksum })
        }
        (Layer4::Other | Layer4::Fragment | Layer4::Absent | Layer4::Tunnel, _) => {
            Transport::Other(get(Field::IpProtocol) as u8)
        }
    }
}

fn tcp((sport, dport): (u16, u16), flags: u8) -> Tcp {
    let (window, options, checksum) = (u16::MAX, Vec::new(), Checksum::Good);
    Tcp { sport, dport, sequence: 1, acknowledgment: 0, flags, window, options, checksum }
}

/// Returns the value that a field has in a packet unless something else is needed.
#[must_use]
pub fn default(field: Field) -> u128 {
    let inner = u128::from(field.level == LevelId::Inner);
    let value = match field.kind {
        FieldKind::EthDst => 0x0200_0000_0002 + 0x100 * inner,
        FieldKind::EthSrc => 0x0200_0000_0001 + 0x100 * inner,
        FieldKind::EthType => 0x88b5,
        FieldKind::VlanVid => 1,
        FieldKind::SecondVlanVid => 2,
        FieldKind::ArpOperation => 1,
        FieldKind::ArpSenderIp | FieldKind::Ipv4Src => 0xc000_0201 + 0x100 * inner,
        FieldKind::ArpTargetIp | FieldKind::Ipv4Dst => 0xc633_6402 + inner,
        FieldKind::Ipv6Src => (0x2001_0db8 << 96) | (0x0001 + 0x10 * inner),
        FieldKind::Ipv6Dst => (0x2001_0db8 << 96) | (0x0002 + 0x10 * inner),
        FieldKind::IpProtocol | FieldKind::ErrorV4Protocol | FieldKind::ErrorV6Protocol => 253,
        FieldKind::Ipv4Ttl | FieldKind::Ipv6HopLimit => 64,
        FieldKind::L4Sport => 40_000 + inner,
        FieldKind::L4Dport => 9,
        FieldKind::TcpFlags => 2,
        FieldKind::IcmpType => 8,
        FieldKind::Icmpv6Type => 128,
        // An error is about a packet to its own source.
        FieldKind::ErrorV4Src => default_of(FieldKind::Ipv4Dst, field.level),
        FieldKind::ErrorV4Dst => default_of(FieldKind::Ipv4Src, field.level),
        FieldKind::ErrorV6Src => default_of(FieldKind::Ipv6Dst, field.level),
        FieldKind::ErrorV6Dst => default_of(FieldKind::Ipv6Src, field.level),
        FieldKind::ErrorSport => default_of(FieldKind::L4Dport, field.level),
        FieldKind::ErrorDport => default_of(FieldKind::L4Sport, field.level),
        FieldKind::TunnelId => 1,
        _ => 0,
    };
    value & ones(field.spec().bits)
}

fn default_of(kind: FieldKind, level: LevelId) -> u128 {
    default(Field { level, kind })
}
