//! The fields a program can match, hash, set, add to and copy: one table, so that the configuration, the check, the
//! engine, the interpreter and the documentation speak of the same things by the same names.
//!
//! A field is a run of bits at a fixed place behind a header that parsing has found. Its value is the number those bits
//! spell in network order.

use crate::parse::{Layer, Layers};

/// Where a field's place is counted from: an index into [`crate::Headers::offsets`], or no frame bytes at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Base {
    /// Start of the frame.
    L2 = 0,
    /// First VLAN tag (its TPID).
    Vlan = 1,
    /// IPv4, IPv6 or ARP header.
    L3 = 2,
    /// TCP, UDP, ICMP or ICMPv6 header.
    L4 = 3,
    /// VXLAN header.
    Tunnel = 4,
    /// Ethernet header inside VXLAN.
    InnerL2 = 5,
    /// IPv4 or IPv6 header inside VXLAN.
    InnerL3 = 6,
    /// TCP, UDP, ICMP or ICMPv6 header inside VXLAN.
    InnerL4 = 7,
    /// Not in the frame: what parsing found, or metadata of the packet.
    Metadata = 8,
}

/// What may be done to a field besides matching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Match and hash only.
    ReadOnly,
    /// May be set, added to and copied into.
    Writable,
}

/// Where a field lies and what it needs.
#[derive(Clone, Copy, Debug)]
pub struct FieldSpec {
    /// The name in configurations, output and documentation.
    pub name: &'static str,
    /// Header that `offset` counts from.
    pub base: Base,
    /// Bytes from there to the first byte with a bit of the field.
    pub offset: i8,
    /// Bytes that hold the field.
    pub bytes: u8,
    /// Bits of the field, right-aligned after shifting by `shift`.
    pub bits: u8,
    /// Bits below the field in its last byte.
    pub shift: u8,
    /// Layers that must be present, all of them; a packet without them does not have the field.
    pub needs: Layers,
    /// May it be written?
    pub access: Access,
}

macro_rules! fields {
    ($($id:ident $name:literal $base:ident $offset:literal $bytes:literal $bits:literal $shift:literal $access:ident [$($layer:ident)*];)*) => {
        /// A field that a program can name. See [`Field::spec`] for its place.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Field { $(#[doc = concat!("`", $name, "`, ", stringify!($bits), " bits.")] $id,)* }

        impl Field {
            /// Every field.
            pub const ALL: &[Field] = &[$(Field::$id,)*];

            /// Where the field lies.
            #[must_use]
            pub const fn spec(self) -> FieldSpec {
                match self {
                    $(Field::$id => FieldSpec {
                        name: $name, base: Base::$base, offset: $offset, bytes: $bytes, bits: $bits, shift: $shift,
                        needs: Layers(0 $(| Layer::$layer as u32)*), access: Access::$access,
                    },)*
                }
            }
        }
    };
}

fields! {
    // id            name              base  offset bytes bits shift access    layers
    EthDst           "eth.dst"            L2  0  6 48 0 Writable [];
    EthSrc           "eth.src"            L2  6  6 48 0 Writable [];
    EthType          "eth.type"           Metadata 0 2 16 0 ReadOnly [];
    VlanPcp          "vlan.pcp"           Vlan 2 1 3 5 Writable [Vlan];
    VlanVid          "vlan.vid"           Vlan 2 2 12 0 Writable [Vlan];
    SecondVlanPcp    "second_vlan.pcp"    Vlan 6 1 3 5 Writable [SecondVlan];
    SecondVlanVid    "second_vlan.vid"    Vlan 6 2 12 0 Writable [SecondVlan];
    ArpOperation     "arp.operation"      L3  6  2 16 0 ReadOnly [Arp];
    ArpSenderIp      "arp.sender_ip"      L3 14  4 32 0 ReadOnly [Arp];
    ArpTargetIp      "arp.target_ip"      L3 24  4 32 0 ReadOnly [Arp];
    IpVersion        "ip.version"         Metadata 0 1 4 0 ReadOnly [];
    IpProtocol       "ip.protocol"        Metadata 0 1 8 0 ReadOnly [];
    IpFragment       "ip.fragment"        Metadata 0 1 1 0 ReadOnly [];
    Ipv4Dscp         "ipv4.dscp"          L3  1  1 6 2 Writable [Ipv4];
    Ipv4Ecn          "ipv4.ecn"           L3  1  1 2 0 Writable [Ipv4];
    Ipv4Identification "ipv4.identification" L3 4 2 16 0 ReadOnly [Ipv4];
    Ipv4Ttl          "ipv4.ttl"           L3  8  1 8 0 Writable [Ipv4];
    Ipv4Src          "ipv4.src"           L3 12  4 32 0 Writable [Ipv4];
    Ipv4Dst          "ipv4.dst"           L3 16  4 32 0 Writable [Ipv4];
    Ipv6TrafficClass "ipv6.traffic_class" L3  0  2 8 4 Writable [Ipv6];
    Ipv6FlowLabel    "ipv6.flow_label"    L3  1  3 20 0 Writable [Ipv6];
    Ipv6HopLimit     "ipv6.hop_limit"     L3  7  1 8 0 Writable [Ipv6];
    Ipv6Src          "ipv6.src"           L3  8 16 128 0 Writable [Ipv6];
    Ipv6Dst          "ipv6.dst"           L3 24 16 128 0 Writable [Ipv6];
    L4Sport          "l4.sport"           L4  0  2 16 0 Writable [Ports];
    L4Dport          "l4.dport"           L4  2  2 16 0 Writable [Ports];
    TcpSport         "tcp.sport"          L4  0  2 16 0 Writable [Tcp];
    TcpDport         "tcp.dport"          L4  2  2 16 0 Writable [Tcp];
    TcpFlags         "tcp.flags"          L4 13  1 8 0 ReadOnly [Tcp];
    UdpSport         "udp.sport"          L4  0  2 16 0 Writable [Udp];
    UdpDport         "udp.dport"          L4  2  2 16 0 Writable [Udp];
    IcmpType         "icmp.type"          L4  0  1 8 0 ReadOnly [Icmp];
    IcmpCode         "icmp.code"          L4  1  1 8 0 ReadOnly [Icmp];
    Icmpv6Type       "icmpv6.type"        L4  0  1 8 0 ReadOnly [Icmpv6];
    Icmpv6Code       "icmpv6.code"        L4  1  1 8 0 ReadOnly [Icmpv6];
    VxlanVni         "vxlan.vni"          Tunnel 4 3 24 0 Writable [Vxlan];
    InnerEthDst      "inner.eth.dst"      InnerL2 0 6 48 0 Writable [InnerEthernet];
    InnerEthSrc      "inner.eth.src"      InnerL2 6 6 48 0 Writable [InnerEthernet];
    InnerEthType     "inner.eth.type"     Metadata 0 2 16 0 ReadOnly [InnerEthernet];
    InnerIpVersion   "inner.ip.version"   Metadata 0 1 4 0 ReadOnly [InnerEthernet];
    InnerIpProtocol  "inner.ip.protocol"  Metadata 0 1 8 0 ReadOnly [InnerEthernet];
    InnerIpFragment  "inner.ip.fragment"  Metadata 0 1 1 0 ReadOnly [InnerEthernet];
    InnerIpv4Dscp    "inner.ipv4.dscp"    InnerL3 1 1 6 2 Writable [InnerIpv4];
    InnerIpv4Ttl     "inner.ipv4.ttl"     InnerL3 8 1 8 0 Writable [InnerIpv4];
    InnerIpv4Src     "inner.ipv4.src"     InnerL3 12 4 32 0 Writable [InnerIpv4];
    InnerIpv4Dst     "inner.ipv4.dst"     InnerL3 16 4 32 0 Writable [InnerIpv4];
    InnerIpv6HopLimit "inner.ipv6.hop_limit" InnerL3 7 1 8 0 Writable [InnerIpv6];
    InnerIpv6Src     "inner.ipv6.src"     InnerL3 8 16 128 0 Writable [InnerIpv6];
    InnerIpv6Dst     "inner.ipv6.dst"     InnerL3 24 16 128 0 Writable [InnerIpv6];
    InnerL4Sport     "inner.l4.sport"     InnerL4 0 2 16 0 Writable [InnerPorts];
    InnerL4Dport     "inner.l4.dport"     InnerL4 2 2 16 0 Writable [InnerPorts];
    InnerTcpFlags    "inner.tcp.flags"    InnerL4 13 1 8 0 ReadOnly [InnerTcp];
    InnerIcmpType    "inner.icmp.type"    InnerL4 0 1 8 0 ReadOnly [InnerIcmp];
    InputPort        "port"               Metadata 0 2 16 0 ReadOnly [];
    MeterColor       "meter.color"        Metadata 0 1 2 0 ReadOnly [];
    Meta0            "meta.0"             Metadata 0 4 32 0 Writable [];
    Meta1            "meta.1"             Metadata 4 4 32 0 Writable [];
    Meta2            "meta.2"             Metadata 8 4 32 0 Writable [];
    Meta3            "meta.3"             Metadata 12 4 32 0 Writable [];
}

/// How deep a frame is parsed: as deep as the program reads, no deeper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Depth {
    /// Ethernet and VLAN tags.
    #[default]
    L2 = 0,
    /// And ARP, IPv4 or IPv6 with its extension headers.
    L3 = 1,
    /// And TCP, UDP, ICMP or ICMPv6.
    L4 = 2,
    /// And VXLAN and what it carries.
    Inner = 3,
}

impl Field {
    /// The name in configurations and output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.spec().name
    }

    /// The field of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Field> {
        Field::ALL.iter().copied().find(|field| field.name() == name)
    }

    /// The largest value the field can have: also the mask of all its bits.
    #[must_use]
    pub const fn max(self) -> u128 {
        let bits = self.spec().bits;
        if bits == 128 { u128::MAX } else { (1 << bits) - 1 }
    }

    /// How deep a frame must be parsed for the field to be found.
    #[must_use]
    pub const fn depth(self) -> Depth {
        match self {
            Field::EthType | Field::InputPort | Field::MeterColor => Depth::L2,
            Field::Meta0 | Field::Meta1 | Field::Meta2 | Field::Meta3 => Depth::L2,
            Field::IpVersion | Field::IpProtocol | Field::IpFragment => Depth::L3,
            Field::InnerEthType | Field::InnerIpVersion | Field::InnerIpProtocol | Field::InnerIpFragment => {
                Depth::Inner
            }
            _ => match self.spec().base {
                Base::L2 | Base::Vlan | Base::Metadata => Depth::L2,
                Base::L3 => Depth::L3,
                Base::L4 => Depth::L4,
                _ => Depth::Inner,
            },
        }
    }

    /// The metadata word `meta.N`, if this is one.
    #[must_use]
    pub const fn meta_word(self) -> Option<usize> {
        match self {
            Field::Meta0 => Some(0),
            Field::Meta1 => Some(1),
            Field::Meta2 => Some(2),
            Field::Meta3 => Some(3),
            _ => None,
        }
    }
}

impl std::fmt::Display for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
