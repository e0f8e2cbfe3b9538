//! The fields a program can match, hash, set, add to and copy: one table, so that the configuration, the
//! check, the engine, the interpreter and the documentation use the same names for the same things.
//!
//! A field is a run of bits at a fixed place after a header that parsing has found. Its value is the number
//! those bits spell in network order. The table lists the fields of one level; each exists at the outer level
//! and, as `inner.NAME`, inside a tunnel.

use crate::TunnelKind;
use crate::headers::{Base, Layer, Layers, LevelId, LevelLayers};

/// Where a field's value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Bits of the frame, counted from a header of the field's level.
    Frame(Base),
    /// Results of parsing at the field's level.
    Found,
    /// A property of the packet as a whole: it has no inner counterpart.
    Packet,
}

/// What a program may do with a field besides matching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Match and hash only.
    ReadOnly,
    /// May also be set, added to and copied into.
    Writable,
}

/// Where a field lies, and which layers it needs, at either level.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// Where the field's value comes from.
    pub source: Source,
    /// Bytes from the start of the source to the first byte with a bit of the field.
    pub offset: i8,
    /// Bytes that hold the field.
    pub bytes: u8,
    /// Bits of the field, right-aligned after shifting by `shift`.
    pub bits: u8,
    /// Bits below the field in its last byte.
    pub shift: u8,
    /// Layers that the field's level must all have; a packet without one of them does not have the field.
    pub needs: Layers,
    /// The kind of tunnel whose ID this is.
    pub tunnel: Option<TunnelKind>,
    /// Whether the field may be written.
    pub access: Access,
}

macro_rules! source {
    (Found) => {
        Source::Found
    };
    (Packet) => {
        Source::Packet
    };
    ($base:ident) => {
        Source::Frame(Base::$base)
    };
}

macro_rules! tunnel {
    () => {
        None
    };
    ($kind:ident) => {
        Some(TunnelKind::$kind)
    };
}

macro_rules! fields {
    ($($id:ident $name:literal $source:ident $offset:literal $bytes:literal $bits:literal $shift:literal
        $access:ident
       [$($layer:ident)*] $(of $tunnel:ident)?;)*) => {
        /// A field of one level. See [`FieldKind::spec`] for its place.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum FieldKind { $(#[doc = concat!("`", $name, "`, ", stringify!($bits), " bits.")] $id,)* }

        impl FieldKind {
            /// Every kind.
            pub const ALL: &[FieldKind] = &[$(FieldKind::$id,)*];

            /// Where the field lies.
            #[must_use]
            pub const fn spec(self) -> FieldSpec {
                match self {
                    $(FieldKind::$id => FieldSpec {
                        source: source!($source), offset: $offset, bytes: $bytes, bits: $bits, shift: $shift,
                        needs: Layers(Layer::Present as u32 $(| Layer::$layer as u32)*),
                        tunnel: tunnel!($($tunnel)?), access: Access::$access,
                    },)*
                }
            }
        }

        #[allow(non_upper_case_globals, reason = "they are named after the kinds")]
        impl Field {
            $(#[doc = concat!("`", $name, "`.")]
              pub const $id: Field = Field { level: LevelId::Outer, kind: FieldKind::$id };)*

            /// The name in configurations and output.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match (self.level, self.kind) {
                    $((LevelId::Outer, FieldKind::$id) => $name,
                      (LevelId::Inner, FieldKind::$id) => concat!("inner.", $name),)*
                }
            }
        }
    };
}

fields! {
    // id name source offset bytes bits shift access layers
    EthDst             "eth.dst"             L2        0  6  48 0 Writable [Ethernet];
    EthSrc             "eth.src"             L2        6  6  48 0 Writable [Ethernet];
    EthType            "eth.type"            Found     0  2  16 0 ReadOnly [Ethernet];
    VlanPcp            "vlan.pcp"            L2       14  1   3 5 Writable [Vlan];
    VlanVid            "vlan.vid"            L2       14  2  12 0 Writable [Vlan];
    SecondVlanPcp      "second_vlan.pcp"     L2       18  1   3 5 Writable [SecondVlan];
    SecondVlanVid      "second_vlan.vid"     L2       18  2  12 0 Writable [SecondVlan];
    ArpOperation       "arp.operation"       L3        6  2  16 0 ReadOnly [Arp];
    ArpSenderIp        "arp.sender_ip"       L3       14  4  32 0 ReadOnly [Arp];
    ArpTargetIp        "arp.target_ip"       L3       24  4  32 0 ReadOnly [Arp];
    IpVersion          "ip.version"          Found     0  1   4 0 ReadOnly [];
    IpProtocol         "ip.protocol"         Found     0  1   8 0 ReadOnly [];
    IpFragment         "ip.fragment"         Found     0  1   1 0 ReadOnly [];
    Ipv4Dscp           "ipv4.dscp"           L3        1  1   6 2 Writable [Ipv4];
    Ipv4Ecn            "ipv4.ecn"            L3        1  1   2 0 Writable [Ipv4];
    Ipv4Identification "ipv4.identification" L3        4  2  16 0 ReadOnly [Ipv4];
    Ipv4Ttl            "ipv4.ttl"            L3        8  1   8 0 Writable [Ipv4];
    Ipv4Src            "ipv4.src"            L3       12  4  32 0 Writable [Ipv4];
    Ipv4Dst            "ipv4.dst"            L3       16  4  32 0 Writable [Ipv4];
    Ipv6TrafficClass   "ipv6.traffic_class"  L3        0  2   8 4 Writable [Ipv6];
    Ipv6FlowLabel      "ipv6.flow_label"     L3        1  3  20 0 Writable [Ipv6];
    Ipv6HopLimit       "ipv6.hop_limit"      L3        7  1   8 0 Writable [Ipv6];
    Ipv6Src            "ipv6.src"            L3        8 16 128 0 Writable [Ipv6];
    Ipv6Dst            "ipv6.dst"            L3       24 16 128 0 Writable [Ipv6];
    L4Sport            "l4.sport"            L4        0  2  16 0 Writable [Ports];
    L4Dport            "l4.dport"            L4        2  2  16 0 Writable [Ports];
    TcpSport           "tcp.sport"           L4        0  2  16 0 Writable [Tcp];
    TcpDport           "tcp.dport"           L4        2  2  16 0 Writable [Tcp];
    TcpFlags           "tcp.flags"           L4       13  1   8 0 ReadOnly [Tcp];
    UdpSport           "udp.sport"           L4        0  2  16 0 Writable [Udp];
    UdpDport           "udp.dport"           L4        2  2  16 0 Writable [Udp];
    IcmpType           "icmp.type"           L4        0  1   8 0 ReadOnly [Icmp];
    IcmpCode           "icmp.code"           L4        1  1   8 0 ReadOnly [Icmp];
    Icmpv6Type         "icmpv6.type"         L4        0  1   8 0 ReadOnly [Icmpv6];
    Icmpv6Code         "icmpv6.code"         L4        1  1   8 0 ReadOnly [Icmpv6];
    ErrorV4Protocol    "error.ipv4.protocol" L4       17  1   8 0 ReadOnly [Icmp IcmpError];
    ErrorV4Src         "error.ipv4.src"      L4       20  4  32 0 ReadOnly [Icmp IcmpError];
    ErrorV4Dst         "error.ipv4.dst"      L4       24  4  32 0 ReadOnly [Icmp IcmpError];
    ErrorV6Protocol    "error.ipv6.protocol" L4       14  1   8 0 ReadOnly [Icmpv6 IcmpError];
    ErrorV6Src         "error.ipv6.src"      L4       16 16 128 0 ReadOnly [Icmpv6 IcmpError];
    ErrorV6Dst         "error.ipv6.dst"      L4       32 16 128 0 ReadOnly [Icmpv6 IcmpError];
    ErrorSport         "error.sport"         ErrorL4   0  2  16 0 ReadOnly [ErrorPorts];
    ErrorDport         "error.dport"         ErrorL4   2  2  16 0 ReadOnly [ErrorPorts];
    VxlanVni           "vxlan.vni"           TunnelId  0  3  24 0 Writable [] of Vxlan;
    GeneveVni          "geneve.vni"          TunnelId  0  3  24 0 Writable [] of Geneve;
    GreKey             "gre.key"             TunnelId  0  4  32 0 Writable [TunnelId] of Gre;
    TunnelId           "tunnel.id"           Packet    0  4  32 0 ReadOnly [Tunnel];
    InputPort          "port"                Packet    0  2  16 0 ReadOnly [];
    MeterColor         "meter.color"         Packet    0  1   2 0 ReadOnly [];
    Meta0              "meta.0"              Packet    0  4  32 0 Writable [];
    Meta1              "meta.1"              Packet    4  4  32 0 Writable [];
    Meta2              "meta.2"              Packet    8  4  32 0 Writable [];
    Meta3              "meta.3"              Packet   12  4  32 0 Writable [];
}

/// How deep a frame is parsed: as deep as the program reads, no deeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Depth {
    /// Ethernet and VLAN tags.
    #[default]
    L2 = 0,
    /// Also ARP, and IPv4 or IPv6 with its extension headers.
    L3 = 1,
    /// Also TCP, UDP, ICMP or ICMPv6.
    L4 = 2,
    /// Also tunnels and what they carry.
    Inner = 3,
}

/// A field that a program can name: a kind of field at one of the levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Field {
    /// The level.
    pub level: LevelId,
    /// The field of that level.
    pub kind: FieldKind,
}

impl FieldKind {
    /// Whether the inner level has this field, too.
    #[must_use]
    pub const fn has_inner(self) -> bool {
        !matches!(self.spec().source, Source::Packet | Source::Frame(Base::TunnelId))
    }
}

const COUNT: usize = {
    let (mut count, mut at) = (0, 0);
    while at < FieldKind::ALL.len() {
        count += if FieldKind::ALL[at].has_inner() { 2 } else { 1 };
        at += 1;
    }
    count
};

/// Every field, the inner ones after the outer ones.
static ALL: [Field; COUNT] = {
    let mut all = [Field::EthDst; COUNT];
    let (mut inner, mut at) = (FieldKind::ALL.len(), 0);
    while at < FieldKind::ALL.len() {
        let kind = FieldKind::ALL[at];
        all[at] = Field { level: LevelId::Outer, kind };
        if kind.has_inner() {
            all[inner] = Field { level: LevelId::Inner, kind };
            inner += 1;
        }
        at += 1;
    }
    all
};

impl Field {
    /// Every field.
    pub const ALL: &[Field] = &ALL;

    /// The same field inside a tunnel.
    #[must_use]
    pub const fn inner(self) -> Field {
        assert!(self.kind.has_inner(), "no level has this field");
        Field { level: LevelId::Inner, kind: self.kind }
    }

    /// Where the field lies.
    #[inline(always)]
    #[must_use]
    pub const fn spec(self) -> FieldSpec {
        self.kind.spec()
    }

    /// The layers that a packet needs in order to have the field; none for a field that every packet has.
    #[must_use]
    pub fn needs(self) -> LevelLayers {
        let mut needs = LevelLayers::default();
        let FieldSpec { needs: own, tunnel, .. } = self.spec();
        // Every frame has an outer level with Ethernet.
        let given =
            if self.level == LevelId::Outer { Layer::Present as u32 | Layer::Ethernet as u32 } else { 0 };
        needs.add(self.level, Layers(own.0 & !given));
        if let Some(kind) = tunnel {
            needs.add(self.level, Layers::of_tunnel(kind));
        }
        needs
    }

    /// Returns the field with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Field> {
        Field::ALL.iter().copied().find(|field| field.name() == name)
    }

    /// The largest value the field can have: this is also the mask of all its bits.
    #[must_use]
    pub const fn max(self) -> u128 {
        let bits = self.spec().bits;
        if bits == 128 { u128::MAX } else { (1 << bits) - 1 }
    }

    /// How deep a frame must be parsed to find the field.
    #[must_use]
    pub const fn depth(self) -> Depth {
        match (self.level, self.spec().source, self.kind) {
            (LevelId::Inner, ..) | (_, Source::Frame(Base::TunnelId), _) | (.., FieldKind::TunnelId) => {
                Depth::Inner
            }
            (_, Source::Frame(Base::L4 | Base::ErrorL4), _) => Depth::L4,
            (_, Source::Frame(Base::L3), _) => Depth::L3,
            (.., FieldKind::IpVersion | FieldKind::IpProtocol | FieldKind::IpFragment) => Depth::L3,
            _ => Depth::L2,
        }
    }

    /// The metadata word `meta.N`, if the name is one.
    #[must_use]
    pub const fn meta_word(self) -> Option<usize> {
        match self.kind {
            FieldKind::Meta0 => Some(0),
            FieldKind::Meta1 => Some(1),
            FieldKind::Meta2 => Some(2),
            FieldKind::Meta3 => Some(3),
            _ => None,
        }
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
