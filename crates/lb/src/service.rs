//! The configuration of a service with names resolved.

use super::actions;
use super::announce::{Announce, IcmpEcho};
use super::problems::Problem;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;
use weir_app::route::Prefix;
use weir_config::attachment::Attachment;
use weir_config::sets::default_size;
use weir_program::{
    Affinity, Fill, FlowState, Forward, NatPoolId, NewFlows, Origin, PortId, QuicConfig, ServerId, Timeouts,
};

/// The maximum number of bits in a source mask: each of their values is an entry.
pub const BITS_MAX: u32 = 8;

/// Addresses, protocols and ports that clients know, and the back ends that serve them.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Ports on which its packets arrive.
    pub ports: Vec<PortId>,
    /// Where the back ends are; `None` means through the port on which a packet arrived.
    pub out: Option<Attachment>,
    /// The addresses that clients send to.
    pub addresses: Vec<Address>,
    /// The clients that are served, as prefixes: address and length in bits. If empty, all clients are
    /// served.
    pub clients: Vec<(IpAddr, u8)>,
    /// How packets are assigned to back ends.
    pub by: By,
    /// Whether each packet is assigned independently. Otherwise flows stay with their back end, which
    /// requires [`By::FiveTuple`].
    pub stateless: bool,
    /// How long its flows may be idle, if they are kept.
    pub timeouts: Timeouts,
    /// Whether both ends of a TCP connection are reset when its flow has been idle for too long.
    pub resets_idle: bool,
    /// How the buckets of its group are filled: as Maglev does, or as another system does, whose flow hash
    /// then picks from them.
    pub fill: Fill,
    /// How the back ends of new flows are chosen, if they are kept.
    pub new_flows: NewFlows,
    /// The part of a client's address that is hashed for its new flows, or packets, instead of the 5-tuple.
    pub affinity: Option<Affinity>,
    /// How server IDs are encoded in QUIC connection IDs, if back ends are found by them.
    pub quic: Option<Arc<[QuicConfig]>>,
    /// Number of buckets in its group, a prime.
    pub size: u32,
    /// The back ends; services may share a list.
    pub back_ends: Arc<[BackEnd]>,
    /// Source MAC address of packets to back ends.
    pub source_mac: SourceMac,
    /// Sources of tunnels.
    pub source: Sources,
    /// The longest IP packet that fits the path to the back ends, in bytes.
    pub mtu: u16,
    /// Whether longer packets may arrive, so that the length of packets to back ends without a tunnel is
    /// checked, too.
    pub limited: bool,
    /// The limit to which the MSS of TCP connections is clamped.
    pub mss: Option<Mss>,
    /// The pool from which flows to back ends with [`Mode::FullNat`] take their source addresses and ports.
    pub nat_pool: Option<NatPoolId>,
    /// Who announces its VIPs.
    pub announce: Announce,
    /// The VLANs in which VIPs are announced unsolicited; 0 means untagged.
    pub announce_vlans: Vec<u16>,
    /// How pings to its VIPs are handled.
    pub icmp_echo: IcmpEcho,
    /// Its position in the configuration.
    pub origin: Origin,
}

/// A prefix, a protocol and a range of ports that packets of a service are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// The first address.
    pub vip: IpAddr,
    /// The length of the prefix in bits.
    pub prefix: u8,
    /// TCP or UDP.
    pub protocol: u8,
    /// The first and the last port.
    pub ports: (u16, u16),
}

/// All ports of a protocol.
pub const ALL_PORTS: (u16, u16) = (0, u16::MAX);

impl Address {
    /// Returns whether the addresses are IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.vip.is_ipv6()
    }

    /// Returns whether this is a single address.
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.prefix == if self.is_ipv6() { 128 } else { 32 }
    }

    /// Returns the addresses as a prefix.
    #[must_use]
    pub fn prefix(&self) -> Prefix {
        Prefix { address: self.vip, length: self.prefix }
    }

    /// Returns whether this is a single address with a single port, so that an exact match finds it.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.is_host() && self.ports.0 == self.ports.1
    }

    /// Returns whether an address is among its addresses.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let whole = Address { vip: address, prefix: if address.is_ipv4() { 32 } else { 128 }, ..*self };
        self.meets(&whole)
    }

    /// Returns whether the two share an address, regardless of protocols and ports.
    fn meets(&self, other: &Address) -> bool {
        let prefix = self.prefix.min(other.prefix);
        match (self.vip, other.vip) {
            (IpAddr::V4(one), IpAddr::V4(two)) => {
                (one.to_bits() ^ two.to_bits()).checked_shr(32 - u32::from(prefix)).unwrap_or(0) == 0
            }
            (IpAddr::V6(one), IpAddr::V6(two)) => {
                (one.to_bits() ^ two.to_bits()).checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Returns its rank in the lookup order; more specific addresses have lower ranks. Longer prefixes come
    /// first, and among prefixes of equal length those with fewer ports, as in Katran and IPVS.
    #[must_use]
    pub fn rank(&self) -> u32 {
        let bits = if self.is_ipv6() { 128 } else { 32 };
        u32::from(bits - self.prefix.min(bits)) << 16 | u32::from(self.ports.1 - self.ports.0)
    }

    /// Returns whether some packet matches both although neither is more specific than the other.
    #[must_use]
    pub fn collides(&self, other: &Address) -> bool {
        let ((first, last), (start, end)) = (self.ports, other.ports);
        let (shares, same) = (first <= end && start <= last, self.ports == other.ports);
        let nested = first <= start && end <= last || start <= first && last <= end;
        self.protocol == other.protocol
            && self.prefix == other.prefix
            && self.meets(other)
            && shares
            && (same || !nested)
    }
}

/// An MSS limit, to which the option of a client's SYN is clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mss {
    /// The largest segment that fits the path to every back end of the service.
    Auto,
    /// A number of bytes.
    Fixed(u16),
}

/// The default MTU of a path.
pub const MTU: u16 = 1500;

/// Bytes of an IP and a TCP header without options (RFC 6691 §2).
const IPV4_AND_TCP: u16 = 40;
const IPV6_AND_TCP: u16 = 60;

/// How packets are assigned to back ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By addresses, protocol and ports: each connection independently.
    FiveTuple,
    /// By source address: a client stays with its back end.
    Source,
    /// By source address and destination port: a client stays with its back end on each port.
    SourcePort,
    /// By some bits of the IPv4 source address, round robin.
    SourceBits(u32),
}

impl FromStr for By {
    type Err = Problem;

    fn from_str(text: &str) -> Result<By, Problem> {
        match text {
            "5-tuple" => Ok(By::FiveTuple),
            "source" => Ok(By::Source),
            "source + dport" => Ok(By::SourcePort),
            _ => {
                let mask = text.strip_prefix("src/").and_then(|mask| mask.parse::<Ipv4Addr>().ok());
                let mask = mask.ok_or_else(|| Problem::By { text: text.to_string() })?.to_bits();
                let bits = mask.count_ones();
                if bits == 0 || bits > BITS_MAX {
                    Err(Problem::SourceBits { bits })
                } else {
                    Ok(By::SourceBits(mask))
                }
            }
        }
    }
}

/// A server for a service.
#[derive(Clone, Debug, PartialEq)]
pub struct BackEnd {
    /// Its name.
    pub name: String,
    /// The destination MAC address of frames for the back end: its own, or that of the router towards it. 0
    /// if the address is resolved.
    pub mac: [u8; 6],
    /// The address that is resolved to the destination MAC address of frames for it, if any: its own, or that
    /// of the router towards it.
    pub resolve: Option<IpAddr>,
    /// How packets are sent to it.
    pub mode: Mode,
    /// Where the back end is, if not where the service's other back ends are.
    pub out: Option<Arc<Attachment>>,
    /// The VLAN that frames for it are tagged with; `None` leaves tags as they are.
    pub vlan: Option<u16>,
    /// Its server ID in QUIC connection IDs.
    pub server_id: Option<ServerId>,
    /// Its share relative to the others; with 0 it gets no new flows.
    pub weight: u32,
    /// Whether it may get flows.
    pub state: State,
    /// Its own address, used by checks and by rings of other systems, if it differs from the one that packets
    /// are sent to.
    pub address: Option<IpAddr>,
    /// Its position in the configuration.
    pub origin: Origin,
}

impl BackEnd {
    /// Creates a back end that gets its packets unchanged, under this MAC address.
    #[must_use]
    pub fn new(name: impl Into<String>, mac: [u8; 6]) -> BackEnd {
        BackEnd {
            name: name.into(),
            mac,
            resolve: None,
            mode: Mode::L2,
            out: None,
            vlan: None,
            server_id: None,
            weight: 1,
            state: State::Up,
            address: None,
            origin: Origin::default(),
        }
    }

    /// Returns the address that identifies the back end in other systems, by default the one that packets are
    /// sent to.
    #[must_use]
    pub fn known_as(&self) -> Option<IpAddr> {
        self.mode.ip().or(self.address)
    }

    /// Returns its weight if it may get new flows, otherwise 0.
    #[must_use]
    pub fn effective_weight(&self) -> u32 {
        if self.state == State::Up { self.weight } else { 0 }
    }
}

/// What happens to a back end's flows, and whether it gets new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum State {
    /// The back end gets new flows according to its weight.
    #[default]
    Up,
    /// The back end does not answer: its flows end, and the next packet of each starts a new flow at another
    /// back end.
    Down,
    /// The back end keeps its flows and gets no new ones.
    Draining,
    /// The back end gets nothing: its flows end as if it were down.
    Maintenance,
}

impl State {
    /// The states with their names.
    pub const WORDS: [(&'static str, State); 4] = [
        ("up", State::Up),
        ("down", State::Down),
        ("draining", State::Draining),
        ("maintenance", State::Maintenance),
    ];

    /// Returns its name.
    #[must_use]
    pub fn word(self) -> &'static str {
        State::WORDS.iter().find(|(_, state)| *state == self).map_or("up", |(word, _)| word)
    }

    /// Returns whether a back end in this state keeps the flows that it has.
    #[must_use]
    pub fn keeps_flows(self) -> bool {
        matches!(self, State::Up | State::Draining)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// How packets are sent to a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// With new MAC addresses only. The back end has the service's address and answers the client directly.
    #[default]
    L2,
    /// As IP in IP (RFC 2003, RFC 2473, RFC 4213) to this address. The back end answers directly.
    Ipip(IpAddr),
    /// In GUE, variant 0, to this address. The back end answers directly.
    Gue(IpAddr),
    /// In GUE, variant 1, to this address. It has no GUE header and is plain UDP, as sent by Katran.
    BareGue(IpAddr),
    /// In GRE without key (RFC 2784), to this address. The back end answers directly.
    Gre(IpAddr),
    /// The whole frame in VXLAN (RFC 7348).
    Vxlan {
        /// The address of the tunnel's end.
        ip: IpAddr,
        /// The network's identifier, of 24 bits.
        vni: u32,
        /// The destination MAC address inside.
        inner_mac: [u8; 6],
    },
    /// The service's address, and its port if that differs, are replaced with the back end's. Answers return
    /// through weir, which restores the service's address and port.
    Nat {
        /// The address.
        ip: IpAddr,
        /// The port; `None` keeps the one that the client sent to.
        port: Option<u16>,
    },
    /// Like [`Mode::Nat`], but the client's address and port are also replaced with an address and a port of
    /// a pool.
    FullNat {
        /// The address.
        ip: IpAddr,
        /// The port; `None` keeps the one that the client sent to.
        port: Option<u16>,
    },
    /// Not at all: weir rejects the packets of its flows, with a reset or "port unreachable".
    Reject,
}

impl Mode {
    /// The names of all modes.
    pub const WORDS: [&'static str; 9] =
        ["l2", "ipip", "gue", "gue1", "gre", "vxlan", "nat", "full_nat", "reject"];

    /// Returns its name.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Mode::L2 => "l2",
            Mode::Ipip(_) => "ipip",
            Mode::Gue(_) => "gue",
            Mode::BareGue(_) => "gue1",
            Mode::Gre(_) => "gre",
            Mode::Vxlan { .. } => "vxlan",
            Mode::Nat { .. } => "nat",
            Mode::FullNat { .. } => "full_nat",
            Mode::Reject => "reject",
        }
    }

    /// Returns the address that packets are rewritten to, if any.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match *self {
            Mode::L2 | Mode::Reject => None,
            Mode::Ipip(ip) | Mode::Gue(ip) | Mode::BareGue(ip) | Mode::Gre(ip) => Some(ip),
            Mode::Vxlan { ip, .. } | Mode::Nat { ip, .. } | Mode::FullNat { ip, .. } => Some(ip),
        }
    }

    /// Returns the port that packets are rewritten to, if any.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match *self {
            Mode::Nat { port, .. } | Mode::FullNat { port, .. } => port,
            Mode::L2 | Mode::Ipip(_) | Mode::Gue(_) | Mode::BareGue(_) | Mode::Gre(_) => None,
            Mode::Vxlan { .. } | Mode::Reject => None,
        }
    }

    /// Returns whether packets are put into a tunnel.
    #[must_use]
    pub fn is_tunnel(&self) -> bool {
        match self {
            Mode::Ipip(_) | Mode::Gue(_) | Mode::BareGue(_) | Mode::Gre(_) | Mode::Vxlan { .. } => true,
            Mode::L2 | Mode::Nat { .. } | Mode::FullNat { .. } | Mode::Reject => false,
        }
    }

    /// Returns whether packets leave for a back end, rather than being rejected here.
    #[must_use]
    pub fn is_forwarded(&self) -> bool {
        match self {
            Mode::L2 | Mode::Nat { .. } | Mode::FullNat { .. } => true,
            Mode::Ipip(_) | Mode::Gue(_) | Mode::BareGue(_) | Mode::Gre(_) | Mode::Vxlan { .. } => true,
            Mode::Reject => false,
        }
    }

    /// Returns whether answers return through weir.
    #[must_use]
    pub fn is_nat(&self) -> bool {
        matches!(self, Mode::Nat { .. } | Mode::FullNat { .. })
    }
}

/// Source addresses of IPv4 and IPv6, each with the number of low bits that vary by flow.
pub type Sources = (Option<(Ipv4Addr, u8)>, Option<(Ipv6Addr, u8)>);

/// The source MAC address of packets to back ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceMac {
    /// The address of the port through which they leave or, if that is unknown, the address to which the
    /// packet was sent.
    #[default]
    Auto,
    /// A fixed address.
    Fixed([u8; 6]),
}

const SECOND: u64 = 1_000_000_000;

/// The default idle timeouts of flows: 30 s for a TCP connection that is not established, 10 s for a closed
/// one, and 30 s for everything but TCP. Where answers return through weir, an established connection is kept
/// for two hours and a half-closed one for one hour, as in Kubernetes. Where they do not, anyone can forge
/// the packets that weir sees, and weir cannot tell whether a client's FIN is the first or the last of the
/// connection. The timeouts are then 15 minutes, as in IPVS, and 4 minutes, as in RFC 5382 REQ-5.
#[must_use]
pub fn timeouts(answers_pass: bool) -> Timeouts {
    let (established, half_closed) = if answers_pass { (7200, 3600) } else { (900, 240) };
    [
        (FlowState::TcpSyn, 30),
        (FlowState::TcpEstablished, established),
        (FlowState::TcpHalfClosed, half_closed),
        (FlowState::TcpFin, 10),
        (FlowState::TcpRst, 10),
        (FlowState::Single, 30),
        (FlowState::Stream, 30),
    ]
    .into_iter()
    .fold(Timeouts::NEVER, |all, (state, seconds)| all.with(state, seconds * SECOND))
}

impl Service {
    /// Creates a service whose flows are assigned by their 5-tuple and kept, with the defaults of the
    /// configuration for everything else. It has no ports.
    #[must_use]
    pub fn new(name: impl Into<String>, address: Address, back_ends: Arc<[BackEnd]>) -> Service {
        Service {
            name: name.into(),
            ports: Vec::new(),
            out: None,
            addresses: vec![address],
            clients: Vec::new(),
            by: By::FiveTuple,
            stateless: false,
            timeouts: timeouts(false),
            resets_idle: false,
            fill: Fill::Maglev,
            new_flows: NewFlows::Hash,
            affinity: None,
            quic: None,
            size: default_size(Fill::Maglev, Some(1), back_ends.len()),
            back_ends,
            source_mac: SourceMac::Auto,
            source: (None, None),
            nat_pool: None,
            mtu: MTU,
            limited: false,
            mss: None,
            announce: Announce::default(),
            announce_vlans: vec![0],
            icmp_echo: IcmpEcho::default(),
            origin: Origin::default(),
        }
    }

    /// Returns where a back end is; `None` means through the port on which a packet arrived.
    #[must_use]
    pub fn way<'a>(&'a self, back_end: &'a BackEnd) -> Option<&'a Attachment> {
        back_end.out.as_deref().or(self.out.as_ref())
    }

    /// Returns where packets to a back end are sent.
    #[must_use]
    pub fn way_out(&self, back_end: &BackEnd) -> Forward {
        self.way(back_end).map_or(Forward::InputPort, |way| way.to)
    }

    /// Returns the port that represents the path to a back end where only one port can be used.
    #[must_use]
    pub fn lead(&self, back_end: &BackEnd) -> PortId {
        self.way(back_end).map_or(self.ports[0], |way| way.lead)
    }

    /// Returns every distinct path to back ends: those of the back ends, or the service's own if it has none.
    pub fn ways(&self) -> Vec<Option<&Attachment>> {
        let mut ways: Vec<Option<&Attachment>> = Vec::new();
        if self.back_ends.iter().all(|back_end| back_end.out.is_none()) {
            return vec![self.out.as_ref()];
        }
        for back_end in &*self.back_ends {
            let way = self.way(back_end);
            if !ways.contains(&way) {
                ways.push(way);
            }
        }
        ways
    }

    /// Returns the ports on the paths to back ends, without duplicates.
    pub fn back_ports(&self) -> Vec<PortId> {
        let ports = self.ways().into_iter().flat_map(|way| way.map_or(&self.ports, |way| &way.ports));
        let mut ports: Vec<PortId> = ports.copied().collect();
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Returns whether the service has an address of this family.
    #[must_use]
    pub fn has(&self, ipv6: bool) -> bool {
        self.addresses.iter().any(|address| address.is_ipv6() == ipv6)
    }

    /// Returns whether headers of a mode carry the other back end of the packet's row, as the GLB director's
    /// do.
    #[must_use]
    pub fn has_second_chance(&self, mode: Mode) -> bool {
        matches!((self.fill, mode), (Fill::Glb(..), Mode::Gue(IpAddr::V4(_))))
    }

    /// Returns the longest IP packet that fits the path to a back end, in bytes.
    #[must_use]
    pub fn fits(&self, back_end: &BackEnd) -> u16 {
        let around = actions::around(self, back_end.mode);
        let ethernet = if matches!(back_end.mode, Mode::Vxlan { .. }) { actions::ETHERNET } else { 0 };
        self.mtu.saturating_sub(around).saturating_sub(ethernet)
    }

    /// Returns the MSS for clients of this address family, if it is clamped.
    #[must_use]
    pub fn mss(&self, ipv6: bool) -> Option<u16> {
        let headers = if ipv6 { IPV6_AND_TCP } else { IPV4_AND_TCP };
        match self.mss? {
            Mss::Fixed(mss) => Some(mss),
            Mss::Auto => {
                let least = self.back_ends.iter().map(|one| self.fits(one)).min();
                Some(least.unwrap_or(self.mtu).saturating_sub(headers))
            }
        }
    }

    /// Returns whether its flows stay with their back end.
    #[must_use]
    pub fn is_sticky(&self) -> bool {
        self.by == By::FiveTuple && !self.stateless
    }
}
