//! Frames from readable text, and text from frames: one vocabulary shared by golden walk files, `weir explain
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
//! Promises: lengths and checksums are right unless the text says otherwise; a printed frame rebuilds byte
//! for byte from its text (`hex=` when no other words describe it exactly); contradictory text causes an
//! error that locates the problem and suggests a fix. The code allocates freely: nothing here runs on the
//! data path.
//!
//! The words are listed in [`KEYS`]. Anything left out has a default: an IPv4 UDP packet 10.0.0.1:1000 >
//! 10.0.0.2:2000.

mod build;
mod describe;
mod tunnel;
mod words;

pub use describe::{describe, describe_short};
pub use tunnel::Tunnel;
pub use words::{KEYS, RecipeError, WordError};

use std::net::{Ipv4Addr, Ipv6Addr};

/// Maximum depth of nested recipes: bounds the recursion that hostile text or frames can cause.
pub const NESTING_MAX: usize = 4;
/// Maximum frame length in bytes: the largest IPv4 datagram, and every offset fits 16 bits.
pub const FRAME_MAX: usize = 65535;
/// Maximum number of 4-byte words of IPv4 options: the header length has four bits (RFC 791 §3.1).
pub const OPTIONS_MAX: usize = 10;
/// Maximum number of IPv6 extension headers: twice what the parser follows.
pub const EXTENSIONS_MAX: usize = 16;

/// A frame as a person would write it. `parse` turns text into a recipe, and `to_string` turns a recipe into
/// text; `{:#}` shortens payloads, and its output cannot be parsed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// Source MAC address, in the order of transmission.
    pub eth_src: [u8; 6],
    /// Destination MAC address, in the order of transmission.
    pub eth_dst: [u8; 6],
    /// The outer (or only) VLAN tag.
    pub vlan: Option<Tag>,
    /// The inner VLAN tag.
    pub second_vlan: Option<Tag>,
    /// What follows the Ethernet header.
    pub body: Body,
    /// Bytes after the last header.
    pub payload: Vec<u8>,
    /// Zeros are appended to the payload until the frame is this long.
    pub length: Option<usize>,
    /// Trailing bytes, not counted by any length field (Ethernet padding).
    pub trailer: Vec<u8>,
}

/// What follows an Ethernet header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The whole frame verbatim; the rest of the recipe is ignored.
    Raw(Vec<u8>),
    /// An EtherType and the payload that follows it.
    Ethernet(u16),
    /// ARP for IPv4 over Ethernet.
    Arp(Arp),
    /// IPv4 or IPv6.
    Ip(Ip),
}

/// A VLAN tag (IEEE 802.1Q): TPID and tag control information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// VLAN identifier, 12 bits.
    pub vid: u16,
    /// Priority code point, 3 bits: 0 to 7.
    pub pcp: u8,
    /// Drop eligible indicator: whether a congested switch should drop the frame first.
    pub dei: bool,
    /// The tag's TPID, if it is not the default: 0x8100, or 0x88a8 for the outer of two tags (IEEE 802.1ad).
    pub tpid: Option<u16>,
}

/// An ARP packet. The sender's MAC address is the frame's; the target's is the frame's for a reply, and 0 for
/// a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether this is a reply rather than a request.
    pub is_reply: bool,
    /// Sender's IPv4 address (RFC 826: protocol address).
    pub sender_ip: Ipv4Addr,
    /// Target's IPv4 address: the one that a request asks about.
    pub target_ip: Ipv4Addr,
}

/// An IP packet. Fields that exist in only one version are ignored for the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source and destination, which determine the version.
    pub addresses: Addresses,
    /// Time to live (IPv4) or hop limit (IPv6).
    pub ttl: u8,
    /// Differentiated services code point, 6 bits.
    pub dscp: u8,
    /// Explicit congestion notification, 2 bits.
    pub ecn: u8,
    /// Identification: 16 bits of an IPv4 header, 32 bits of an IPv6 fragment header.
    pub identification: u32,
    /// The Don't Fragment flag of IPv4 (RFC 791 §3.1).
    pub dont_fragment: bool,
    /// Set for a fragment; in IPv6 this adds a fragment header, even for an atomic fragment.
    pub fragment: Option<Fragment>,
    /// IPv6 flow label, 20 bits.
    pub flow_label: u32,
    /// Options (IPv4), a multiple of 4 bytes.
    pub options: Vec<u8>,
    /// Extension headers in order (IPv6); a fragment header comes after them.
    pub extensions: Vec<Extension>,
    /// Checksum of the IPv4 header.
    pub checksum: Checksum,
    /// What follows the IP header.
    pub transport: Transport,
}

/// Source and destination, of the same family.
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
    /// Offset in the datagram in bytes, a multiple of 8.
    pub offset: u16,
    /// The More Fragments flag: whether this is not the datagram's last fragment.
    pub more: bool,
}

/// An IPv6 extension header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Which header it is; this sets the next-header field of the header before it.
    pub kind: ExtensionKind,
    /// The bytes after its next-header and length fields.
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

/// What follows the IP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP, optionally with a tunnel in it.
    Udp(Udp),
    /// TCP.
    Tcp(Tcp),
    /// ICMP over IPv4, ICMPv6 over IPv6.
    Icmp(Icmp),
    /// A tunnel directly over IP.
    Tunnel(Tunnel),
    /// The payload directly follows the IP header: any protocol number, or a fragment other than the first.
    Other(u8),
}

/// A UDP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port of the UDP header.
    pub sport: u16,
    /// Destination port of the UDP header. It does not select a tunnel: `tunnel` does.
    pub dport: u16,
    /// Checksum over the pseudo-header, the UDP header and its payload.
    pub checksum: Checksum,
    /// A tunnel in front of the payload.
    pub tunnel: Option<Tunnel>,
}

/// A TCP header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tcp {
    /// Source port of the TCP header.
    pub sport: u16,
    /// Destination port of the TCP header.
    pub dport: u16,
    /// Sequence number of the first byte of the payload, or of the SYN (RFC 9293 §3.1).
    pub sequence: u32,
    /// The next sequence number that the sender expects; meaningful if `flags` has ACK.
    pub acknowledgment: u32,
    /// The eight flag bits as in the header, from FIN (0x01) to CWR (0x80).
    pub flags: u8,
    /// The window field as in the header: no window scaling is applied.
    pub window: u16,
    /// Options, a multiple of 4 bytes, 40 at most.
    pub options: Vec<u8>,
    /// Checksum over the pseudo-header, the TCP header and its payload.
    pub checksum: Checksum,
}

/// An ICMP or ICMPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Icmp {
    /// Type of the message: 8 is an echo request of ICMP, 128 one of ICMPv6.
    pub kind: u8,
    /// Code, which distinguishes messages of one type.
    pub code: u8,
    /// The second word of the header: identifier and sequence number of an echo.
    pub rest: u32,
    /// Checksum over the message and, for ICMPv6, the pseudo-header.
    pub checksum: Checksum,
}

/// What a checksum field contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// The correct value.
    #[default]
    Good,
    /// A wrong value other than 0.
    Bad,
    /// A fixed value.
    Value(u16),
}

/// The letters of TCP flags starting from the lowest bit: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.
const FLAG_LETTERS: &str = "FSRPAUEC";
/// Default source MAC address.
const ETH_SRC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Default destination MAC address.
const ETH_DST: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Default TTL and hop limit.
const TTL: u8 = 64;
/// The no-operation IPv4 option (RFC 791 §3.1).
const NOP: u8 = 1;
/// Default TCP window.
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
    /// The protocol number that an IP header has for this transport.
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

/// Builds the frame that a recipe's text describes.
///
/// # Panics
/// Panics with the error message if the text is not a recipe. This is for tests and benches, whose texts are
/// part of the program.
#[must_use]
pub fn frame(text: &str) -> Vec<u8> {
    match text.parse::<Recipe>() {
        Ok(recipe) => recipe.build(),
        Err(error) => panic!("{error}"),
    }
}
