//! Pools of values from which both packets and entries are drawn, so that they often match.

use super::Choices;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_packet::{Field, FieldKind, FlowKey};

pub(super) const MACS: &[u64] =
    &[0x02_00_00_00_00_01, 0x02_00_00_00_00_02, 0x02_00_00_00_00_03, 0xff_ff_ff_ff_ff_ff, 0];
pub(super) const VIDS: &[u16] = &[0, 1, 10, 100, 4095];
pub(super) const PORTS: &[u16] = &[0, 53, 80, 443, 1024, 40000, 65535];
/// Ranges of ports. An entry with two of these ranges expands into few enough prefixes for an ACL table.
pub(super) const RANGES: &[(u16, u16)] =
    &[(0, 65535), (0, 1023), (1024, 65535), (53, 80), (80, 443), (80, 80), (443, 443), (4789, 4789), (0, 0)];
pub(super) const TTLS: &[u8] = &[64, 64, 255, 2, 1, 0];
pub(super) const DSCPS: &[u8] = &[0, 10, 46, 63];
pub(super) const VNIS: &[u32] = &[0, 7, 8, 0xff_ffff];
/// GRE keys; one has more bits than fit in a flow key.
pub(super) const KEYS: &[u32] = &[0, 7, 8, 0xff_ffff, 0x100_0007];
pub(super) const PROTOCOLS: &[u8] = &[6, 17, 1, 58, 47, 4, 41, 132];
/// The number of addresses at the beginning of [`V4`] and [`V6`] that any host may send from.
pub(super) const ORDINARY: usize = 4;
pub(super) const V4: &[Ipv4Addr] = &[
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 0, 0, 2),
    Ipv4Addr::new(10, 0, 1, 1),
    Ipv4Addr::new(192, 168, 7, 9),
    Ipv4Addr::new(0, 0, 0, 0),
    Ipv4Addr::new(255, 255, 255, 255),
];
pub(super) const V6: &[Ipv6Addr] = &[
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2),
    Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9),
    Ipv6Addr::UNSPECIFIED,
];
/// Addresses that no host may send from, at least not to every other host.
pub(super) const SPECIAL_V4: &[Ipv4Addr] =
    &[Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(224, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 1)];
pub(super) const SPECIAL_V6: &[Ipv6Addr] = &[
    Ipv6Addr::UNSPECIFIED,
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
];

/// Flows that packets belong to more often than by chance: source, destination, protocol, ports.
pub(super) const FLOWS: &[(IpAddr, IpAddr, u8, (u16, u16))] = &[
    (IpAddr::V4(V4[0]), IpAddr::V4(V4[1]), 6, (40000, 80)),
    (IpAddr::V4(V4[1]), IpAddr::V4(V4[0]), 6, (80, 40000)),
    (IpAddr::V4(V4[0]), IpAddr::V4(V4[2]), 17, (1024, 53)),
    (IpAddr::V4(V4[3]), IpAddr::V4(V4[2]), 17, (1024, 443)),
    (IpAddr::V6(V6[0]), IpAddr::V6(V6[1]), 6, (40000, 443)),
    (IpAddr::V6(V6[2]), IpAddr::V6(V6[0]), 17, (1024, 53)),
];

/// The key of one of these flows, outside or inside a tunnel.
pub(super) fn flow_key(random: &mut Choices) -> FlowKey {
    let (src, dst, protocol, ports) = random.pick(FLOWS);
    let vni = random.percent(30).then(|| random.pick(VNIS));
    FlowKey::new(src, dst, protocol, ports, vni)
}

/// A value that a field is likely to have.
pub(super) fn value(random: &mut Choices, field: Field) -> u128 {
    if random.percent(4) && field != Field::InputPort {
        return random.wide() & field.max();
    }
    match field.kind {
        FieldKind::EthDst | FieldKind::EthSrc => u128::from(random.pick(MACS)),
        FieldKind::EthType => random.pick(&[0x0800, 0x86dd, 0x0806, 0x88cc, 0x8100]),
        FieldKind::VlanVid | FieldKind::SecondVlanVid => u128::from(random.pick(VIDS)),
        FieldKind::ArpSenderIp | FieldKind::ArpTargetIp => u128::from(random.pick(V4).to_bits()),
        FieldKind::Ipv4Src | FieldKind::Ipv4Dst | FieldKind::ErrorV4Src | FieldKind::ErrorV4Dst => {
            u128::from(random.pick(V4).to_bits())
        }
        FieldKind::Ipv6Src | FieldKind::Ipv6Dst | FieldKind::ErrorV6Src | FieldKind::ErrorV6Dst => {
            random.pick(V6).to_bits()
        }
        FieldKind::ErrorSport | FieldKind::ErrorDport => u128::from(random.pick(PORTS)),
        FieldKind::L4Sport | FieldKind::TcpSport | FieldKind::UdpSport => u128::from(random.pick(PORTS)),
        FieldKind::L4Dport | FieldKind::TcpDport | FieldKind::UdpDport if random.percent(8) => 4789,
        FieldKind::L4Dport | FieldKind::TcpDport | FieldKind::UdpDport => u128::from(random.pick(PORTS)),
        FieldKind::VxlanVni | FieldKind::GeneveVni => u128::from(random.pick(VNIS)),
        FieldKind::GreKey | FieldKind::TunnelId => u128::from(random.pick(KEYS)),
        FieldKind::IpVersion => random.pick(&[4, 4, 6, 6, 0]),
        FieldKind::IpProtocol | FieldKind::ErrorV4Protocol | FieldKind::ErrorV6Protocol => {
            u128::from(random.pick(PROTOCOLS))
        }
        FieldKind::Ipv4Ttl | FieldKind::Ipv6HopLimit => u128::from(random.pick(TTLS)),
        FieldKind::Ipv4Dscp => u128::from(random.pick(DSCPS)),
        FieldKind::TcpFlags => random.pick(&[0x02, 0x10, 0x12, 0x11, 0]),
        // Every program has two ports.
        FieldKind::InputPort => random.below(2) as u128,
        FieldKind::MeterColor => random.below(3) as u128,
        _ => random.below(4) as u128 & field.max(),
    }
}

/// A mask, usually of all bits.
pub(super) fn mask(random: &mut Choices, field: Field) -> u128 {
    match random.below(10) {
        // A port is compared as a whole.
        0..2 if field == Field::InputPort => field.max(),
        0 => random.wide() & field.max(),
        1 => field.max() & !1,
        2 if random.percent(20) && field != Field::InputPort => 0,
        _ => field.max(),
    }
}
