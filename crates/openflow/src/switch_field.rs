//! The fields of Open vSwitch: their names and notation.

use std::net::{Ipv4Addr, Ipv6Addr};

/// A field of Open vSwitch. The order is that of the text: headers are named before their fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SwitchField {
    InPort,
    EthType,
    Protocol,
    Fragment,
    EthSrc,
    EthDst,
    /// A tag: priority, a bit that says that there is one, VLAN id.
    Vlan,
    Dscp,
    Ecn,
    Ttl,
    Ipv4Src,
    Ipv4Dst,
    Ipv6Src,
    Ipv6Dst,
    Ipv6Label,
    ArpOperation,
    ArpSender,
    ArpTarget,
    SourcePort,
    DestinationPort,
    TcpFlags,
    IcmpType,
    IcmpCode,
    Register(u8),
    /// ARP that is understood; it has no text.
    IsArp,
}

/// The bit of a tag that says that there is one.
pub(crate) const TAGGED: u128 = 0x1000;

pub(crate) const IPV4: u128 = 0x0800;
pub(crate) const IPV6: u128 = 0x86dd;
pub(crate) const ARP: u128 = 0x0806;

pub(crate) const ICMP: u128 = 1;
pub(crate) const TCP: u128 = 6;
pub(crate) const UDP: u128 = 17;
pub(crate) const ICMPV6: u128 = 58;

impl SwitchField {
    /// The mask of all of its bits.
    pub(crate) fn all(self) -> u128 {
        let bits = match self {
            SwitchField::InPort | SwitchField::EthType | SwitchField::Vlan | SwitchField::ArpOperation => 16,
            SwitchField::Protocol | SwitchField::Ttl | SwitchField::IcmpType | SwitchField::IcmpCode => 8,
            SwitchField::Fragment | SwitchField::IsArp => 1,
            SwitchField::EthSrc | SwitchField::EthDst => 48,
            SwitchField::Dscp => 6,
            SwitchField::Ecn => 2,
            SwitchField::Ipv4Src
            | SwitchField::Ipv4Dst
            | SwitchField::ArpSender
            | SwitchField::ArpTarget
            | SwitchField::Register(_) => 32,
            SwitchField::Ipv6Src | SwitchField::Ipv6Dst => return u128::MAX,
            SwitchField::Ipv6Label => 20,
            SwitchField::SourcePort | SwitchField::DestinationPort => 16,
            SwitchField::TcpFlags => 12,
        };
        (1 << bits) - 1
    }

    /// Whether a match may have only some of its bits.
    pub(crate) fn has_mask(self) -> bool {
        match self {
            SwitchField::EthSrc
            | SwitchField::EthDst
            | SwitchField::Ipv4Src
            | SwitchField::Ipv4Dst
            | SwitchField::Ipv6Src
            | SwitchField::Ipv6Dst => true,
            SwitchField::Ipv6Label
            | SwitchField::ArpSender
            | SwitchField::ArpTarget
            | SwitchField::Register(_) => true,
            SwitchField::SourcePort
            | SwitchField::DestinationPort
            | SwitchField::TcpFlags
            | SwitchField::Vlan => true,
            SwitchField::InPort
            | SwitchField::EthType
            | SwitchField::Protocol
            | SwitchField::Fragment
            | SwitchField::Dscp
            | SwitchField::Ecn
            | SwitchField::Ttl => false,
            SwitchField::ArpOperation
            | SwitchField::IcmpType
            | SwitchField::IcmpCode
            | SwitchField::IsArp => false,
        }
    }

    /// Its name in a match or action, for packets of a transport protocol.
    pub(crate) fn name(self, protocol: Option<u128>) -> String {
        let udp = protocol == Some(UDP);
        let of_icmpv6 = protocol == Some(ICMPV6);
        match self {
            SwitchField::InPort => "in_port",
            SwitchField::EthType => "eth_type",
            SwitchField::Protocol => "nw_proto",
            SwitchField::Fragment => "ip_frag",
            SwitchField::EthSrc => "eth_src",
            SwitchField::EthDst => "eth_dst",
            SwitchField::Vlan => "vlan_tci",
            SwitchField::Dscp => "ip_dscp",
            SwitchField::Ecn => "nw_ecn",
            SwitchField::Ttl => "nw_ttl",
            SwitchField::Ipv4Src => "ip_src",
            SwitchField::Ipv4Dst => "ip_dst",
            SwitchField::Ipv6Src => "ipv6_src",
            SwitchField::Ipv6Dst => "ipv6_dst",
            SwitchField::Ipv6Label => "ipv6_label",
            SwitchField::ArpOperation => "arp_op",
            SwitchField::ArpSender => "arp_spa",
            SwitchField::ArpTarget => "arp_tpa",
            SwitchField::SourcePort if udp => "udp_src",
            SwitchField::SourcePort => "tcp_src",
            SwitchField::DestinationPort if udp => "udp_dst",
            SwitchField::DestinationPort => "tcp_dst",
            SwitchField::TcpFlags => "tcp_flags",
            SwitchField::IcmpType if of_icmpv6 => "icmpv6_type",
            SwitchField::IcmpType => "icmp_type",
            SwitchField::IcmpCode if of_icmpv6 => "icmpv6_code",
            SwitchField::IcmpCode => "icmp_code",
            SwitchField::Register(number) => return format!("reg{number}"),
            SwitchField::IsArp => "",
        }
        .to_string()
    }

    /// A value, or a mask, in the field's notation.
    pub(crate) fn number(self, value: u128) -> String {
        match self {
            SwitchField::EthSrc | SwitchField::EthDst => {
                let bytes = (value as u64).to_be_bytes();
                bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
            }
            SwitchField::Ipv4Src | SwitchField::Ipv4Dst | SwitchField::ArpSender | SwitchField::ArpTarget => {
                Ipv4Addr::from(value as u32).to_string()
            }
            SwitchField::Ipv6Src | SwitchField::Ipv6Dst => Ipv6Addr::from(value).to_string(),
            SwitchField::Dscp
            | SwitchField::Ecn
            | SwitchField::Ttl
            | SwitchField::Protocol
            | SwitchField::ArpOperation => value.to_string(),
            SwitchField::IcmpType | SwitchField::IcmpCode => value.to_string(),
            SwitchField::InPort
            | SwitchField::EthType
            | SwitchField::Fragment
            | SwitchField::Vlan
            | SwitchField::Ipv6Label
            | SwitchField::SourcePort => {
                format!("{value:#x}")
            }
            SwitchField::DestinationPort
            | SwitchField::TcpFlags
            | SwitchField::Register(_)
            | SwitchField::IsArp => format!("{value:#x}"),
        }
    }
}
