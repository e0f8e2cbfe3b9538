//! Frames from readable text, and text from frames: one vocabulary for golden walk files, `weir explain
//! --packet`, benches, labs and tests.
//!
//! ```
//! use weir_packet::craft::Recipe;
//!
//! let recipe: Recipe = "src=10.0.0.1 dst=10.0.0.9 proto=tcp sport=4000 dport=80 flags=S".parse()?;
//! let frame = recipe.build();
//! assert_eq!(weir_packet::craft::describe(&frame), recipe.to_string());
//! # Ok::<(), weir_packet::craft::RecipeError>(())
//! ```
//!
//! Promises: lengths and checksums are right unless the text says otherwise; a frame that is printed builds
//! again, byte by byte, from what was printed (`hex=` when nothing else says it exactly); a text that
//! contradicts itself is an error that says where and what to do. It allocates freely: nothing here is for
//! the data path.
//!
//! The words are listed in [`KEYS`]. What is not said has a default: an IPv4 UDP packet 10.0.0.1:1000 >
//! 10.0.0.2:2000.

mod build;
mod describe;
mod tunnel;
mod words;

pub use describe::{describe, describe_short};
pub use tunnel::Tunnel;
pub use words::{KEYS, Problem, RecipeError};

use std::net::{Ipv4Addr, Ipv6Addr};

/// Recipes inside recipes at most: hostile text or frames cost a bounded recursion.
pub const NESTING_MAX: usize = 4;
/// Bytes of a frame at most: the largest IPv4 datagram, and every offset fits 16 bits.
pub const FRAME_MAX: usize = 65535;
/// 4-byte words of IPv4 options at most: the header length has four bits (RFC 791 §3.1).
pub const OPTIONS_MAX: usize = 10;
/// IPv6 extension headers at most: twice what the parser follows.
pub const EXTENSIONS_MAX: usize = 16;

/// A frame as a person would write it. Text becomes a recipe by `parse`, a recipe becomes text by
/// `to_string`, with payloads shortened (not to be parsed again) by `{:#}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Source MAC address.
    pub eth_src: [u8; 6],
    /// Destination MAC address.
    pub eth_dst: [u8; 6],
    /// The outer (or only) VLAN tag.
    pub vlan: Option<Tag>,
    /// The inner VLAN tag.
    pub second_vlan: Option<Tag>,
    /// What the Ethernet header leads to.
    pub body: Body,
    /// Bytes behind the last header.
    pub payload: Vec<u8>,
    /// Zeros are appended to the payload until the frame is this long.
    pub length: Option<usize>,
    /// Bytes behind everything, outside all lengths (Ethernet padding).
    pub trailer: Vec<u8>,
}

/// What an Ethernet header leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The whole frame as it is; nothing else of the recipe counts.
    Raw(Vec<u8>),
    /// An EtherType, and the payload behind it.
    Ethernet(u16),
    /// ARP for IPv4 over Ethernet.
    Arp(Arp),
    /// IPv4 or IPv6.
    Ip(Ip),
}

/// A VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// VLAN identifier, 12 bits.
    pub vid: u16,
    /// Priority, 3 bits.
    pub pcp: u8,
    /// Drop eligible.
    pub dei: bool,
    /// Its TPID, if it is not 0x8100, or for the outer of two tags 0x88a8 (IEEE 802.1ad).
    pub tpid: Option<u16>,
}

/// An ARP packet. The sender's MAC address is the frame's, the target's is the frame's for a reply and 0 for
/// a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// A reply or a request?
    pub is_reply: bool,
    /// Sender's protocol address.
    pub sender_ip: Ipv4Addr,
    /// Target's protocol address.
    pub target_ip: Ipv4Addr,
}

/// An IP packet. What only one version has is ignored by the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source and destination; they decide the version.
    pub addresses: Addresses,
    /// Time to live or hop limit.
    pub ttl: u8,
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits.
    pub ecn: u8,
    /// Identification: 16 bits of an IPv4 header, 32 bits of an IPv6 fragment header.
    pub identification: u32,
    /// IPv4: do not fragment.
    pub dont_fragment: bool,
    /// A fragment; IPv6 has a fragment header then, also for an atomic one.
    pub fragment: Option<Fragment>,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Options (IPv4), a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// Extension headers in their order (IPv6); a fragment header follows them.
    pub extensions: Vec<Extension>,
    /// Checksum of the IPv4 header.
    pub checksum: Checksum,
    /// What IP leads to.
    pub transport: Transport,
}

/// Source and destination of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// IPv4.
    V4(Ipv4Addr, Ipv4Addr),
    /// IPv6.
    V6(Ipv6Addr, Ipv6Addr),
}

/// Which part of a datagram a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Bytes of the datagram before it, a multiple of 8.
    pub offset: u16,
    /// More fragments follow.
    pub more: bool,
}

/// An IPv6 extension header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its kind.
    pub kind: ExtensionKind,
    /// What follows its next header and length.
    pub content: Vec<u8>,
}

/// Kinds of extension headers besides the fragment header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtensionKind {
    /// Hop-by-hop options (RFC 8200 §4.3).
    HopByHop,
    /// A routing header (RFC 8200 §4.4).
    Routing,
    /// An authentication header (RFC 4302).
    Authentication,
    /// Destination options (RFC 8200 §4.6).
    Destination,
}

/// What IP leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP, and perhaps a tunnel in it.
    Udp(Udp),
    /// TCP.
    Tcp(Tcp),
    /// ICMP over IPv4, ICMPv6 over IPv6.
    Icmp(Icmp),
    /// A tunnel that follows IP.
    Tunnel(Tunnel),
    /// The payload follows the IP header: any protocol number, or a fragment other than the first.
    Other(u8),
}

/// A UDP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Checksum.
    pub checksum: Checksum,
    /// A tunnel in front of the payload.
    pub tunnel: Option<Tunnel>,
}

/// A TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Flags, as in the header.
    pub flags: u8,
    /// Window.
    pub window: u16,
    /// Options, a multiple of 4 bytes, 40 at most.
    pub options: Vec<u8>,
    /// Checksum.
    pub checksum: Checksum,
}

/// An ICMP or ICMPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Type.
    pub kind: u8,
    /// Code.
    pub code: u8,
    /// The second word of the header: identifier and sequence number of an echo.
    pub rest: u32,
    /// Checksum.
    pub checksum: Checksum,
}

/// What a checksum field shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The right value.
    #[default]
    Good,
    /// A wrong one, not 0.
    Bad,
    /// This one.
    Value(u16),
}

/// The letters of TCP flags from the lowest bit on: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.
const FLAG_LETTERS: &str = "FSRPAUEC";
/// Source MAC address when none is said.
const ETH_SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Destination MAC address when none is said.
const ETH_DST: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// TTL and hop limit when none is said.
const TTL: u8 = 64;
/// An IPv4 option that does nothing (RFC 791 §3.1).
const NOP: u8 = 1;
/// TCP window when none is said.
const WINDOW: u16 = 65535;

impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            eth_src: ETH_SRC,
            eth_dst: ETH_DST,
            vlan: None,
            second_vlan: None,
            body: Body::Ip(Ip::default()),
            payload: Vec::new(),
            length: None,
            trailer: Vec::new(),
        }
    }
}

impl Default for Ip {
    fn default() -> Ip {
        Ip {
            addresses: Addresses::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)),
            ttl: TTL,
            dscp: 0,
            ecn: 0,
            identification: 0,
            dont_fragment: false,
            fragment: None,
            flow_label: 0,
            options: Vec::new(),
            extensions: Vec::new(),
            checksum: Checksum::Good,
            transport: Transport::Udp(Udp {
                sport: 1000,
                dport: 2000,
                checksum: Checksum::Good,
                tunnel: None,
            }),
        }
    }
}

impl Addresses {
    fn is_ipv4(&self) -> bool {
        matches!(self, Addresses::V4(..))
    }
}

impl Transport {
    /// The protocol number that an IP header shows for it.
    #[must_use]
    pub fn protocol(&self, is_ipv4: bool) -> u8 {
        match self {
            Transport::Udp(_) => crate::PROTOCOL_UDP,
            Transport::Tcp(_) => crate::PROTOCOL_TCP,
            Transport::Icmp(_) if is_ipv4 => crate::PROTOCOL_ICMP,
            Transport::Icmp(_) => crate::PROTOCOL_ICMPV6,
            Transport::Tunnel(tunnel) => tunnel.kind.protocol(tunnel.inside()),
            Transport::Other(protocol) => *protocol,
        }
    }
}

/// The frame of a recipe's text.
///
/// # Panics
/// With the error's sentence when the text is no recipe: for tests and benches, whose texts are part of the
/// program.
#[must_use]
pub fn frame(text: &str) -> Vec<u8> {
    match text.parse::<Recipe>() {
        Ok(recipe) => recipe.build(),
        Err(error) => panic!("{error}"),
    }
}
