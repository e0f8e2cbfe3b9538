//! Tunnels: frames and packets inside UDP or IP. There is one file per kind, each with the same four
//! functions: `read` parses a header, `length` returns the length of the header to write, `write` writes the
//! header, and `carry` records in the header what it carries. Only the table below names the kinds: the
//! parser, the configuration, the check, the engine and `craft` all use it.
//!
//! A tunnel is recognised by a UDP destination port ([`TunnelPorts`]) or by an IP protocol. Only one level is
//! parsed: a tunnel inside a tunnel is payload.

mod geneve;
mod gre;
mod gue;
mod ipip;
mod outer;
mod vxlan;

pub use outer::{Carried, Finish, Outer, OuterShape};

use crate::{DropReason, ETHER_IPV4, ETHER_IPV6, PROTOCOL_UDP};

/// How a tunnel is recognised, and what can be configured.
#[derive(Clone, Copy, Debug)]
pub struct TunnelSpec {
    /// The word in configurations and output: `decap_WORD`, `encap_WORD`.
    pub word: &'static str,
    /// What precedes the tunnel header.
    pub carrier: TunnelCarrier,
    /// The word for the tunnel's ID and the ID's number of bits, if the tunnel has an ID.
    pub id: Option<(&'static str, u8)>,
    /// Whether a written header must have the ID.
    pub id_needed: bool,
    /// A checksum over header and payload: the bit in the first byte that says it is present, and the number
    /// of bytes before it.
    pub checksum: Option<(u8, usize)>,
    /// Whether the tunnel can carry Ethernet.
    pub ethernet: bool,
    /// Whether the tunnel can carry IP without Ethernet.
    pub ip: bool,
    /// Whether the tunnel carries Ethernet unless configured otherwise.
    pub ethernet_first: bool,
    /// The drop reason of a frame whose tunnel header cannot be read.
    pub malformed: DropReason,
}

/// What precedes a tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelCarrier {
    /// A UDP header with this destination port, unless the configuration specifies another.
    Udp(u16),
    /// An IP header with one of these protocol numbers.
    Ip(&'static [u8]),
}

macro_rules! tunnels {
    ($($(#[$doc:meta])* $kind:ident, $module:ident: $spec:expr;)*) => {
        /// Kinds of tunnels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum TunnelKind { $($(#[$doc])* $kind,)* }

        impl TunnelKind {
            /// Every kind.
            pub const ALL: &[TunnelKind] = &[$(TunnelKind::$kind,)*];

            /// The properties of this kind.
            #[must_use]
            pub const fn spec(self) -> TunnelSpec {
                match self { $(TunnelKind::$kind => $spec,)* }
            }

            /// Bytes of the header that [`OuterShape::write`] writes.
            pub(crate) const fn header_length(self, extended: bool) -> usize {
                match self { $(TunnelKind::$kind => $module::length(extended),)* }
            }

            /// Writes a header into zeroed bytes, without recording what follows it.
            pub(crate) fn write(self, place: &mut [u8], id: Option<u32>) {
                match self { $(TunnelKind::$kind => $module::write(place, id),)* }
            }

            /// Records in a written header what follows it.
            #[inline]
            pub(crate) fn carry(self, place: &mut [u8], inside: Inside) {
                match self { $(TunnelKind::$kind => $module::carry(place, inside),)* }
            }

            /// Reads the header at the start of `bytes`, the payload of its carrier. `protocol` is that of
            /// the IP header.
            ///
            /// # Errors
            /// The reason why there is no tunnel header.
            pub fn read(self, bytes: &[u8], protocol: u8) -> Result<Header, Unread> {
                match self { $(TunnelKind::$kind => $module::read(bytes, protocol),)* }
            }
        }
    };
}

tunnels! {
    /// VXLAN (RFC 7348).
    Vxlan, vxlan: TunnelSpec {
        word: "vxlan", carrier: TunnelCarrier::Udp(4789), id: Some(("vni", 24)), id_needed: true,
        checksum: None, ethernet: true, ip: false, ethernet_first: true,
        malformed: DropReason::MalformedVxlan,
    };
    /// Geneve (RFC 8926).
    Geneve, geneve: TunnelSpec {
        word: "geneve", carrier: TunnelCarrier::Udp(6081), id: Some(("vni", 24)), id_needed: true,
        checksum: None, ethernet: true, ip: true, ethernet_first: true,
        malformed: DropReason::MalformedGeneve,
    };
    /// GRE (RFC 2784, RFC 2890).
    Gre, gre: TunnelSpec {
        word: "gre", carrier: TunnelCarrier::Ip(&[47]), id: Some(("key", 32)), id_needed: false,
            checksum: Some((0x80, 4)),
        ethernet: true, ip: true, ethernet_first: false, malformed: DropReason::MalformedGre,
    };
    /// IP in IP (RFC 2003, RFC 2473, RFC 4213).
    Ipip, ipip: TunnelSpec {
        word: "ipip", carrier: TunnelCarrier::Ip(&[4, 41]), id: None, id_needed: false, checksum: None,
        ethernet: false, ip: true, ethernet_first: false, malformed: DropReason::MalformedInner,
    };
    /// GUE (draft-ietf-intarea-gue).
    Gue, gue: TunnelSpec {
        word: "gue", carrier: TunnelCarrier::Udp(6080), id: None, id_needed: false, checksum: None,
        ethernet: false, ip: true, ethernet_first: false, malformed: DropReason::MalformedGue,
    };
}

impl TunnelKind {
    /// Returns the word for this kind.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.spec().word
    }

    /// Returns the kind with this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<TunnelKind> {
        TunnelKind::ALL.iter().copied().find(|kind| kind.word() == word)
    }

    /// Returns the kind with this IP protocol number.
    #[must_use]
    pub fn of_protocol(protocol: u8) -> Option<TunnelKind> {
        let means = |kind: &TunnelKind| {
            matches!(kind.spec().carrier,
            TunnelCarrier::Ip(numbers) if numbers.contains(&protocol))
        };
        TunnelKind::ALL.iter().copied().find(means)
    }

    /// Returns the protocol number of the IP header in front of the tunnel, given what the tunnel carries.
    #[must_use]
    pub fn protocol(self, inside: Inside) -> u8 {
        match self.spec().carrier {
            TunnelCarrier::Udp(_) => PROTOCOL_UDP,
            TunnelCarrier::Ip(numbers) if numbers.contains(&inside.protocol()) => inside.protocol(),
            TunnelCarrier::Ip(numbers) => numbers[0],
        }
    }

    /// Returns true if this kind runs over UDP.
    #[must_use]
    pub const fn is_udp(self) -> bool {
        matches!(self.spec().carrier, TunnelCarrier::Udp(_))
    }
}

impl std::fmt::Display for TunnelKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// What a tunnel carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// An Ethernet frame.
    Ethernet,
    /// An IPv4 packet.
    Ipv4,
    /// An IPv6 packet.
    Ipv6,
}

impl Inside {
    /// By EtherType; Ethernet is Transparent Ethernet Bridging.
    #[must_use]
    pub const fn of_ether_type(ether_type: u16) -> Option<Inside> {
        match ether_type {
            ETHER_BRIDGING => Some(Inside::Ethernet),
            ETHER_IPV4 => Some(Inside::Ipv4),
            ETHER_IPV6 => Some(Inside::Ipv6),
            _ => None,
        }
    }

    /// By IP protocol number.
    #[must_use]
    pub const fn of_protocol(protocol: u8) -> Option<Inside> {
        match protocol {
            PROTOCOL_IPV4 => Some(Inside::Ipv4),
            PROTOCOL_IPV6 => Some(Inside::Ipv6),
            _ => None,
        }
    }

    /// Returns the EtherType.
    #[must_use]
    pub const fn ether_type(self) -> u16 {
        match self {
            Inside::Ethernet => ETHER_BRIDGING,
            Inside::Ipv4 => ETHER_IPV4,
            Inside::Ipv6 => ETHER_IPV6,
        }
    }

    /// Returns the IP protocol number.
    #[must_use]
    pub const fn protocol(self) -> u8 {
        match self {
            Inside::Ethernet => PROTOCOL_ETHERNET,
            Inside::Ipv4 => PROTOCOL_IPV4,
            Inside::Ipv6 => PROTOCOL_IPV6,
        }
    }
}

/// EtherType of Transparent Ethernet Bridging (RFC 7637 §3.2).
const ETHER_BRIDGING: u16 = 0x6558;
/// IPv4 in IP (RFC 2003).
const PROTOCOL_IPV4: u8 = 4;
/// IPv6 in IP (RFC 2473).
const PROTOCOL_IPV6: u8 = 41;
/// Ethernet in IP (RFC 8986 §10.1).
const PROTOCOL_ETHERNET: u8 = 143;

/// A tunnel header that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The header's length in bytes, including options.
    pub length: usize,
    /// The header's ID, if it has one.
    pub id: Option<Id>,
    /// What follows the header; `None` if it is not parsed.
    pub inside: Option<Inside>,
}

/// The ID in a tunnel header: a VNI or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// Number of header bytes before the ID.
    pub at: usize,
    /// The ID as a number: 24 bits for a VNI, 32 for a GRE key.
    pub value: u32,
}

impl Id {
    /// A VNI: 24 bits after the first word of a header.
    fn vni(header: &[u8; 8]) -> Id {
        Id { at: 4, value: u32::from_be_bytes([0, header[4], header[5], header[6]]) }
    }
}

/// The reason why there is no tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The header is truncated or contradicts itself: the frame is dropped ([`TunnelSpec::malformed`]).
    Malformed,
    /// Another version or variant: the frame is passed on as one without a tunnel.
    Unknown,
}

/// UDP destination ports that identify a tunnel, by kind; 0 if the kind does not run over UDP. There are as
/// many as fit into a vector register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunnelPorts([u16; 8]);

const _: () = assert!(TunnelKind::ALL.len() <= 8, "TunnelPorts has a place for every kind");

impl TunnelPorts {
    /// The ports that IANA assigned.
    pub const STANDARD: TunnelPorts = {
        let (mut ports, mut at) = ([0; 8], 0);
        while at < TunnelKind::ALL.len() {
            if let TunnelCarrier::Udp(port) = TunnelKind::ALL[at].spec().carrier {
                ports[at] = port;
            }
            at += 1;
        }
        TunnelPorts(ports)
    };

    /// Returns the port of a kind; 0 if it does not run over UDP.
    #[inline(always)]
    #[must_use]
    pub const fn of(&self, kind: TunnelKind) -> u16 {
        self.0[kind as usize]
    }

    /// Sets the port of a kind that runs over UDP.
    pub fn set(&mut self, kind: TunnelKind, port: u16) {
        debug_assert!(kind.is_udp() && port != 0, "{kind} has no port {port}");
        self.0[kind as usize] = port;
    }

    /// Returns false if the port does not identify a tunnel; also returns true for port 0.
    #[inline(always)]
    pub(crate) fn may_mean(&self, port: u16) -> bool {
        self.0.contains(&port)
    }

    /// Returns the kind that a UDP destination port identifies.
    #[must_use]
    pub fn kind(&self, port: u16) -> Option<TunnelKind> {
        let kinds = TunnelKind::ALL.iter().copied();
        kinds.zip(self.0).find(|&(_, own)| own == port && port != 0).map(|(kind, _)| kind)
    }
}

impl Default for TunnelPorts {
    fn default() -> TunnelPorts {
        TunnelPorts::STANDARD
    }
}
