//! Fields that no packet can have together: a pipe that matches two of them is never hit.

use super::finding::FindingKind;
use crate::{Criterion, Match};
use weir_packet::tunnel::TunnelCarrier;
use weir_packet::{Field, FieldKind, Layer, LevelId, TunnelKind};

/// The layers and protocols that a packet must have to match a field: bits, by level.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meant([u64; 2]);

/// Bits for protocol numbers, implied by `ip.protocol` or by a layer. A fragment can have them even though it
/// lacks the layer.
const TCP: u64 = 1 << 32;
const UDP: u64 = 1 << 33;
const ICMP: u64 = 1 << 34;
const ICMPV6: u64 = 1 << 35;
const OTHER: u64 = 1 << 36;

const fn bit(layer: Layer) -> u64 {
    layer as u64
}

/// Sets of bits that are mutually exclusive at a level.
const EXCLUSIVE: &[&[u64]] = &[
    &[bit(Layer::Arp), bit(Layer::Ipv4), bit(Layer::Ipv6)],
    &[TCP, UDP, ICMP, ICMPV6, OTHER, bit(Layer::Arp)],
    &[bit(Layer::Ports), ICMP],
    &[ICMP, bit(Layer::Fragment)],
    &[bit(Layer::Ports), ICMPV6, bit(Layer::Arp)],
    &[bit(Layer::Ports), OTHER],
    &[ICMP, bit(Layer::Ipv6)],
    &[ICMPV6, bit(Layer::Ipv4)],
    &[bit(Layer::Tcp), bit(Layer::Fragment)],
    &[bit(Layer::Udp), bit(Layer::Fragment)],
    &[bit(Layer::Icmpv6), bit(Layer::Fragment)],
    &[bit(Layer::Tunnel), TCP, ICMP],
    &[bit(Layer::Tunnel), ICMPV6, bit(Layer::Fragment)],
    &[bit(Layer::Tunnel), bit(Layer::Arp)],
];

/// The same where fragments do not have the ports of their datagram.
const WITHOUT_FOLLOWING: &[&[u64]] = &[&[bit(Layer::Ports), bit(Layer::Fragment)]];

/// Reports two fields that no packet can have together. With `follows`, fragments may have ports.
pub(super) fn contradiction(
    fields: impl Iterator<Item = (Field, Meant)>,
    follows: bool,
    kinds: &mut Vec<FindingKind>,
) {
    let more = if follows { &[] } else { WITHOUT_FOLLOWING };
    let fields: Vec<_> = fields.collect();
    for (at, (first, mine)) in fields.iter().enumerate() {
        for (second, theirs) in &fields[at + 1..] {
            if excludes(*mine, *theirs, more) {
                let (first, second) = (first.to_string(), second.to_string());
                kinds.push(FindingKind::NeverHits { first, second });
                return;
            }
        }
    }
}

fn excludes(one: Meant, other: Meant, more: &[&[u64]]) -> bool {
    one.0.into_iter().zip(other.0).any(|(one, other)| {
        let tunnels: Vec<u64> = TunnelKind::ALL.iter().map(|kind| own_bit(*kind)).collect();
        EXCLUSIVE.iter().chain(more).copied().chain([tunnels.as_slice()]).any(|set| {
            let mut pairs = set.iter().flat_map(|first| set.iter().map(move |second| (*first, *second)));
            pairs.any(|(first, second)| first != second && one & first != 0 && other & second != 0)
        })
    })
}

/// The bit that only this kind of tunnel has.
fn own_bit(kind: TunnelKind) -> u64 {
    u64::from(weir_packet::Layers::of_tunnel(kind).0) & !bit(Layer::Tunnel)
}

/// The layers and protocols of a matching packet, by the field and its constant value.
pub(super) fn of_match(one: &Match) -> Option<(Field, Meant)> {
    match one.criterion {
        Criterion::Const { value, mask } => Some((one.field, of_value(one.field, value, mask))),
        Criterion::PerEntry { .. } | Criterion::Prefix => Some((one.field, of_field(one.field))),
        // An entry's `any` matches without the layer.
        Criterion::Masked | Criterion::Range => None,
    }
}

/// The layers and protocols that a field with this value implies.
pub(super) fn of_value(field: Field, value: u128, mask: u128) -> Meant {
    let meant = match (field.kind, value) {
        _ if mask != field.max() => 0,
        (FieldKind::IpVersion, 4) | (FieldKind::EthType, 0x0800) => bit(Layer::Ipv4),
        (FieldKind::IpVersion, 6) | (FieldKind::EthType, 0x86dd) => bit(Layer::Ipv6),
        (FieldKind::EthType, 0x0806) => bit(Layer::Arp),
        (FieldKind::IpProtocol, 6) => TCP,
        (FieldKind::IpProtocol, 17) => UDP,
        (FieldKind::IpProtocol, 1) => ICMP,
        (FieldKind::IpProtocol, 58) => ICMPV6,
        (FieldKind::IpFragment, 1) => bit(Layer::Fragment),
        _ => 0,
    };
    let mut all = of_field(field);
    all.0[field.level as usize] |= meant;
    all
}

/// The layers and protocols of a packet with this field.
pub(super) fn of_field(field: Field) -> Meant {
    let mut meant = Meant(field.needs().0.map(|layers| u64::from(layers.0)));
    let [outer, inner] = &mut meant.0;
    if field.level == LevelId::Inner {
        *outer |= bit(Layer::Tunnel);
    }
    match field.spec().tunnel.map(|kind| kind.spec().carrier) {
        Some(TunnelCarrier::Udp(_)) => *outer |= bit(Layer::Udp) | bit(Layer::Ports),
        Some(TunnelCarrier::Ip(_)) => *outer |= OTHER,
        None => {}
    }
    for level in [outer, inner] {
        let protocols = [(Layer::Tcp, TCP), (Layer::Udp, UDP), (Layer::Icmp, ICMP), (Layer::Icmpv6, ICMPV6)];
        let meant = protocols.into_iter().filter(|(layer, _)| *level & bit(*layer) != 0);
        *level = meant.fold(*level, |layers, (_, protocol)| layers | protocol);
    }
    meant
}
