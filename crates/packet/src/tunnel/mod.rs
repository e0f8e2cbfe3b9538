//! Tunnels: frames and packets inside UDP or IP. One file a kind, each with the same four functions: `read` a
//! header, the `length` of one that is to be written, `write` it, and say in it what it is to `carry`. The
//! table below is all that names them: the parser, the configuration, the check, the engine and `craft` go by
//! it.
//!
//! A tunnel is recognised by a UDP destination port ([`TunnelPorts`]) or by an IP protocol. What is inside is
//! read once: a tunnel in it is payload.

mod geneve;
mod gre;
mod gue;
mod ipip;
mod outer;
mod vxlan;

pub use outer::{Carried, Finish, Outer, OuterShape};

use crate::{DropReason, ETHER_IPV4, ETHER_IPV6, PROTOCOL_UDP};

/// How a tunnel is recognised, and what it can be told.
#[derive(Clone, Copy, Debug)]
pub struct TunnelSpec {
    /// The word in configurations and output: `decap_WORD`, `encap_WORD`.
    pub word: &'static str,
    /// What the tunnel header follows.
    pub carrier: Carrier,
    /// The word and the bits of its id, if it has one.
    pub id: Option<(&'static str, u8)>,
    /// Must a header that is written have that id?
    pub id_needed: bool,
    /// A checksum over header and payload: the bit of the first byte that says it is there, and the bytes in
    /// front of it.
    pub checksum: Option<(u8, usize)>,
    /// Can it carry Ethernet?
    pub ethernet: bool,
    /// Can it carry IP without Ethernet?
    pub ip: bool,
    /// Does it carry Ethernet unless told otherwise?
    pub ethernet_first: bool,
    /// Why a frame is dropped whose tunnel header cannot be read.
    pub malformed: DropReason,
}

/// What a tunnel header follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// A UDP header with this destination port, unless the configuration says another.
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

            /// What is known of the kind.
            #[must_use]
            pub const fn spec(self) -> TunnelSpec {
                match self { $(TunnelKind::$kind => $spec,)* }
            }

            /// Bytes of the header that [`OuterShape::write`] writes.
            pub(crate) const fn header_length(self, extended: bool) -> usize {
                match self { $(TunnelKind::$kind => $module::length(extended),)* }
            }

            /// Writes a header into zeros, but for what follows it.
            pub(crate) fn write(self, place: &mut [u8], id: Option<u32>) {
                match self { $(TunnelKind::$kind => $module::write(place, id),)* }
            }

            /// Says in a header that was written what follows it.
            #[inline]
            pub(crate) fn carry(self, place: &mut [u8], inside: Inside) {
                match self { $(TunnelKind::$kind => $module::carry(place, inside),)* }
            }

            /// Reads the header at the start of `bytes`, what its carrier carries. `protocol` is that of the
            /// IP header.
            ///
            /// # Errors
            /// Why there is none.
            pub fn read(self, bytes: &[u8], protocol: u8) -> Result<Header, Unread> {
                match self { $(TunnelKind::$kind => $module::read(bytes, protocol),)* }
            }
        }
    };
}

tunnels! {
    /// VXLAN (RFC 7348).
    Vxlan, vxlan: TunnelSpec {
        word: "vxlan", carrier: Carrier::Udp(4789), id: Some(("vni", 24)), id_needed: true, checksum: None,
        ethernet: true, ip: false, ethernet_first: true, malformed: DropReason::MalformedVxlan,
    };
    /// Geneve (RFC 8926).
    Geneve, geneve: TunnelSpec {
        word: "geneve", carrier: Carrier::Udp(6081), id: Some(("vni", 24)), id_needed: true, checksum: None,
        ethernet: true, ip: true, ethernet_first: true, malformed: DropReason::MalformedGeneve,
    };
    /// GRE (RFC 2784, RFC 2890).
    Gre, gre: TunnelSpec {
        word: "gre", carrier: Carrier::Ip(&[47]), id: Some(("key", 32)), id_needed: false,
            checksum: Some((0x80, 4)),
        ethernet: true, ip: true, ethernet_first: false, malformed: DropReason::MalformedGre,
    };
    /// IP in IP (RFC 2003, RFC 2473, RFC 4213).
    Ipip, ipip: TunnelSpec {
        word: "ipip", carrier: Carrier::Ip(&[4, 41]), id: None, id_needed: false, checksum: None,
        ethernet: false, ip: true, ethernet_first: false, malformed: DropReason::MalformedInner,
    };
    /// GUE (draft-ietf-intarea-gue).
    Gue, gue: TunnelSpec {
        word: "gue", carrier: Carrier::Udp(6080), id: None, id_needed: false, checksum: None,
        ethernet: false, ip: true, ethernet_first: false, malformed: DropReason::MalformedGue,
    };
}

impl TunnelKind {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        self.spec().word
    }

    /// The kind of that word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<TunnelKind> {
        TunnelKind::ALL.iter().copied().find(|kind| kind.word() == word)
    }

    /// The kind that an IP protocol number means.
    #[must_use]
    pub fn of_protocol(protocol: u8) -> Option<TunnelKind> {
        let means = |kind: &TunnelKind| {
            matches!(kind.spec().carrier,
            Carrier::Ip(numbers) if numbers.contains(&protocol))
        };
        TunnelKind::ALL.iter().copied().find(means)
    }

    /// The protocol number of the IP header in front, when it carries that.
    #[must_use]
    pub fn protocol(self, inside: Inside) -> u8 {
        match self.spec().carrier {
            Carrier::Udp(_) => PROTOCOL_UDP,
            Carrier::Ip(numbers) if numbers.contains(&inside.protocol()) => inside.protocol(),
            Carrier::Ip(numbers) => numbers[0],
        }
    }

    /// Is it in UDP?
    #[must_use]
    pub const fn is_udp(self) -> bool {
        matches!(self.spec().carrier, Carrier::Udp(_))
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

    /// Its EtherType.
    #[must_use]
    pub const fn ether_type(self) -> u16 {
        match self {
            Inside::Ethernet => ETHER_BRIDGING,
            Inside::Ipv4 => ETHER_IPV4,
            Inside::Ipv6 => ETHER_IPV6,
        }
    }

    /// Its IP protocol number.
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
    /// Its bytes, with options.
    pub length: usize,
    /// Its id, if it has one.
    pub id: Option<Id>,
    /// What follows; `None`: nothing that is read.
    pub inside: Option<Inside>,
}

/// The id in a tunnel header: a VNI, a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Id {
    /// Bytes of the header in front of it.
    pub at: usize,
    /// Its value.
    pub value: u32,
}

impl Id {
    /// A VNI: 24 bits behind the first word of a header.
    fn vni(header: &[u8; 8]) -> Id {
        Id { at: 4, value: u32::from_be_bytes([0, header[4], header[5], header[6]]) }
    }
}

/// Why there is no tunnel header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It is cut short or contradicts itself: the frame is dropped ([`TunnelSpec::malformed`]).
    Malformed,
    /// Another version or variant: the frame is passed on as one without a tunnel.
    Unknown,
}

/// UDP destination ports that mean a tunnel, by kind; 0 where it is not in UDP. As many as fit a vector
/// register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TunnelPorts([u16; 8]);

const _: () = assert!(TunnelKind::ALL.len() <= 8, "TunnelPorts has a place for every kind");

impl TunnelPorts {
    /// The ports that IANA assigned.
    pub const STANDARD: TunnelPorts = {
        let (mut ports, mut at) = ([0; 8], 0);
        while at < TunnelKind::ALL.len() {
            if let Carrier::Udp(port) = TunnelKind::ALL[at].spec().carrier {
                ports[at] = port;
            }
            at += 1;
        }
        TunnelPorts(ports)
    };

    /// The port of a kind; 0 if it is not in UDP.
    #[inline(always)]
    #[must_use]
    pub const fn of(&self, kind: TunnelKind) -> u16 {
        self.0[kind as usize]
    }

    /// Gives a kind that is in UDP another port.
    pub fn set(&mut self, kind: TunnelKind, port: u16) {
        debug_assert!(kind.is_udp() && port != 0, "{kind} has no port {port}");
        self.0[kind as usize] = port;
    }

    /// False when the port means no tunnel; true also of port 0.
    #[inline(always)]
    pub(crate) fn may_mean(&self, port: u16) -> bool {
        self.0.contains(&port)
    }

    /// The kind that a UDP destination port means.
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
