//! The match of a flow: fields of Open vSwitch with value and mask, and how a program's fields become such
//! matches. A field that several headers can have, such as `l4.dport`, becomes several matches.

use crate::Why;
use crate::switch_field::{ARP, ICMP, ICMPV6, IPV4, IPV6, SwitchField, TAGGED, TCP, UDP};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::Ipv6Addr;
use weir_packet::{Field, FieldKind, Layer, LevelId};

/// What all of a set of packets have: for each field, a value under a mask.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowMatch {
    parts: BTreeMap<SwitchField, (u128, u128)>,
}

impl FlowMatch {
    /// All frames of an EtherType.
    pub(crate) fn of_type(ether_type: u128) -> FlowMatch {
        FlowMatch::default().and(SwitchField::EthType, ether_type, 0xffff)
    }

    /// Keeps the packets with this value under this mask, and returns false if there are none.
    pub(crate) fn narrow(&mut self, key: SwitchField, value: u128, mask: u128) -> bool {
        let (old, old_mask) = self.parts.get(&key).copied().unwrap_or_default();
        if (old ^ value) & old_mask & mask != 0 {
            return false;
        }
        if mask != 0 {
            self.parts.insert(key, (old | value & mask, old_mask | mask));
        }
        true
    }

    /// The same, where the packets are known to exist.
    pub(crate) fn and(mut self, key: SwitchField, value: u128, mask: u128) -> FlowMatch {
        self.narrow(key, value, mask);
        self
    }

    /// The same with nothing but EtherType and transport protocol, on which the tool insists in front of
    /// actions on their headers.
    pub(crate) fn headers(&self) -> FlowMatch {
        let is_header = |key: &SwitchField| matches!(key, SwitchField::EthType | SwitchField::Protocol);
        let parts = self.parts.iter().filter(|(key, _)| is_header(key));
        FlowMatch { parts: parts.map(|(key, value)| (*key, *value)).collect() }
    }

    /// The transport protocol, if it is known.
    pub(crate) fn protocol(&self) -> Option<u128> {
        self.parts.get(&SwitchField::Protocol).map(|(value, _)| *value)
    }

    /// Whether all of the packets are IP, or none; `None` if there may be both.
    pub(crate) fn is_ip(&self) -> Option<bool> {
        self.parts.get(&SwitchField::EthType).map(|(value, _)| [IPV4, IPV6].contains(value))
    }

    /// Whether the packets may include ARP that Open vSwitch does not understand, although the program asks
    /// for ARP that weir does.
    fn has_other_arp(&self) -> bool {
        let fields = [SwitchField::ArpOperation, SwitchField::ArpSender, SwitchField::ArpTarget];
        let set = |key: &SwitchField| self.parts.get(key).is_some_and(|(value, _)| *value != 0);
        self.parts.contains_key(&SwitchField::IsArp) && !fields.iter().any(set)
    }

    /// The text for `ovs-ofctl`, with these names of ports.
    pub(crate) fn text(&self, ports: &[String]) -> String {
        let protocol = self.protocol();
        let mut text = String::new();
        for (key, (value, mask)) in &self.parts {
            let comma = if text.is_empty() { "" } else { "," };
            let name = key.name(protocol);
            let _ = match key {
                SwitchField::IsArp => Ok(()),
                SwitchField::InPort => write!(
                    text,
                    "{comma}{name}=\"{}\"",
                    ports.get(*value as usize).map_or("", String::as_str)
                ),
                SwitchField::Fragment => {
                    write!(text, "{comma}{name}={}", if *value == 0 { "no" } else { "yes" })
                }
                _ if *mask == key.all() => write!(text, "{comma}{name}={}", key.number(*value)),
                SwitchField::Ipv6Src | SwitchField::Ipv6Dst if let Some(length) = prefix(*mask) => {
                    write!(text, "{comma}{name}={}/{length}", key.number(*value))
                }
                _ => write!(text, "{comma}{name}={}/{}", key.number(*value), key.number(*mask)),
            };
        }
        text
    }
}

/// Matches that are tried one after the other and have no packet in common.
pub(crate) type Matches = Vec<FlowMatch>;

/// Fields that have these values.
type Conditions = Vec<(SwitchField, u128)>;

/// Keeps the packets that have all layers that a field needs.
pub(crate) fn with_layers_of(matches: Matches, field: Field) -> Result<Matches, Why> {
    const IMPLIED: [Layer; 2] = [Layer::Present, Layer::Ethernet];
    if field.level == LevelId::Inner || field.spec().tunnel.is_some() {
        return Err(Why::Match(field));
    }
    let needs = field.spec().needs;
    let mut matches = matches;
    for layer in LAYERS {
        if needs.has(layer) && !IMPLIED.contains(&layer) {
            matches = with_layer(matches, layer).ok_or(Why::Match(field))?;
        }
    }
    Ok(matches)
}

const LAYERS: [Layer; 17] = [
    Layer::Present,
    Layer::Ethernet,
    Layer::Vlan,
    Layer::SecondVlan,
    Layer::Arp,
    Layer::Ipv4,
    Layer::Ipv6,
    Layer::Fragment,
    Layer::Tcp,
    Layer::Udp,
    Layer::Icmp,
    Layer::Icmpv6,
    Layer::Ports,
    Layer::Tunnel,
    Layer::TunnelId,
    Layer::IcmpError,
    Layer::ErrorPorts,
];

/// Keeps the packets with a layer; `None` if a match cannot say it.
pub(crate) fn with_layer(matches: Matches, layer: Layer) -> Option<Matches> {
    let ip = |ether_type: u128| vec![(SwitchField::EthType, ether_type)];
    let l4 = |ether_type: u128, protocol: u128| {
        // OpenFlow's fragments have ports that are 0 (docs/reference/pipes.md F5).
        vec![
            (SwitchField::EthType, ether_type),
            (SwitchField::Protocol, protocol),
            (SwitchField::Fragment, 0),
        ]
    };
    let both = |protocol: u128| vec![l4(IPV4, protocol), l4(IPV6, protocol)];
    let options: Vec<Conditions> = match layer {
        Layer::Present | Layer::Ethernet => return Some(matches),
        Layer::Vlan => return Some(narrowed(matches, SwitchField::Vlan, TAGGED, TAGGED)),
        Layer::Arp => vec![vec![(SwitchField::EthType, ARP), (SwitchField::IsArp, 1)]],
        Layer::Ipv4 => vec![ip(IPV4)],
        Layer::Ipv6 => vec![ip(IPV6)],
        Layer::Fragment => return None,
        Layer::Tcp => both(TCP),
        Layer::Udp => both(UDP),
        Layer::Icmp => vec![l4(IPV4, ICMP)],
        Layer::Icmpv6 => vec![l4(IPV6, ICMPV6)],
        Layer::Ports => [both(TCP), both(UDP)].concat(),
        Layer::SecondVlan | Layer::Tunnel | Layer::TunnelId | Layer::IcmpError | Layer::ErrorPorts => {
            return None;
        }
    };
    Some(either(matches, &options))
}

/// Keeps the packets that are IP.
pub(crate) fn with_ip(matches: Matches) -> Matches {
    either(matches, &[vec![(SwitchField::EthType, IPV4)], vec![(SwitchField::EthType, IPV6)]])
}

/// Keeps the packets that meet one of several lists of conditions.
fn either(matches: Matches, options: &[Conditions]) -> Matches {
    let mut all = Matches::new();
    for one in &matches {
        for option in options {
            let mut narrower = one.clone();
            let fits = option.iter().all(|(key, value)| narrower.narrow(*key, *value, key.all()));
            if fits && !all.contains(&narrower) {
                all.push(narrower);
            }
        }
    }
    all
}

/// Keeps the packets with this value under this mask.
fn narrowed(mut matches: Matches, key: SwitchField, value: u128, mask: u128) -> Matches {
    matches.retain_mut(|one| one.narrow(key, value, mask));
    matches
}

/// How Open vSwitch matches a field.
enum Form {
    /// As a field of its own with the same bits.
    Same(SwitchField),
    /// As such a field, whose masks the tool cannot always read.
    Address6(SwitchField),
    EthType,
    Priority,
    Version,
    Protocol,
    Fragment,
    TrafficClass,
    ArpOperation,
    /// Not at all.
    None,
}

fn form(kind: FieldKind) -> Form {
    match kind {
        FieldKind::EthDst => Form::Same(SwitchField::EthDst),
        FieldKind::EthSrc => Form::Same(SwitchField::EthSrc),
        FieldKind::EthType => Form::EthType,
        FieldKind::VlanPcp => Form::Priority,
        FieldKind::VlanVid => Form::Same(SwitchField::Vlan),
        FieldKind::ArpOperation => Form::ArpOperation,
        FieldKind::ArpSenderIp => Form::Same(SwitchField::ArpSender),
        FieldKind::ArpTargetIp => Form::Same(SwitchField::ArpTarget),
        FieldKind::IpVersion => Form::Version,
        FieldKind::IpProtocol => Form::Protocol,
        FieldKind::IpFragment => Form::Fragment,
        FieldKind::Ipv4Dscp => Form::Same(SwitchField::Dscp),
        FieldKind::Ipv4Ecn => Form::Same(SwitchField::Ecn),
        FieldKind::Ipv4Ttl | FieldKind::Ipv6HopLimit => Form::Same(SwitchField::Ttl),
        FieldKind::Ipv4Src => Form::Same(SwitchField::Ipv4Src),
        FieldKind::Ipv4Dst => Form::Same(SwitchField::Ipv4Dst),
        FieldKind::Ipv6TrafficClass => Form::TrafficClass,
        FieldKind::Ipv6FlowLabel => Form::Same(SwitchField::Ipv6Label),
        FieldKind::Ipv6Src => Form::Address6(SwitchField::Ipv6Src),
        FieldKind::Ipv6Dst => Form::Address6(SwitchField::Ipv6Dst),
        FieldKind::L4Sport | FieldKind::TcpSport | FieldKind::UdpSport => Form::Same(SwitchField::SourcePort),
        FieldKind::L4Dport | FieldKind::TcpDport | FieldKind::UdpDport => {
            Form::Same(SwitchField::DestinationPort)
        }
        FieldKind::TcpFlags => Form::Same(SwitchField::TcpFlags),
        FieldKind::IcmpType | FieldKind::Icmpv6Type => Form::Same(SwitchField::IcmpType),
        FieldKind::IcmpCode | FieldKind::Icmpv6Code => Form::Same(SwitchField::IcmpCode),
        FieldKind::InputPort => Form::Same(SwitchField::InPort),
        FieldKind::Meta0 => Form::Same(SwitchField::Register(0)),
        FieldKind::Meta1 => Form::Same(SwitchField::Register(1)),
        FieldKind::Meta2 => Form::Same(SwitchField::Register(2)),
        FieldKind::Meta3 => Form::Same(SwitchField::Register(3)),
        FieldKind::SecondVlanPcp | FieldKind::SecondVlanVid | FieldKind::Ipv4Identification => Form::None,
        FieldKind::ErrorV4Protocol | FieldKind::ErrorV4Src | FieldKind::ErrorV4Dst => Form::None,
        FieldKind::ErrorV6Protocol | FieldKind::ErrorV6Src | FieldKind::ErrorV6Dst => Form::None,
        FieldKind::ErrorSport | FieldKind::ErrorDport | FieldKind::MeterColor => Form::None,
        FieldKind::VxlanVni | FieldKind::GeneveVni | FieldKind::GreKey | FieldKind::TunnelId => Form::None,
    }
}

/// Keeps the packets that have a field, with this value under this mask.
pub(crate) fn with_field(matches: Matches, field: Field, value: u128, mask: u128) -> Result<Matches, Why> {
    let matches = with_layers_of(matches, field)?;
    if value & !field.max() != 0 {
        return Ok(Matches::new());
    }
    let mask = mask & field.max();
    let whole = mask == field.max();
    let same = |key: SwitchField| {
        // A mask of no bits asks for the header alone.
        if mask != 0 && !whole && !key.has_mask() {
            return Err(Why::Mask(field));
        }
        Ok(narrowed(matches.clone(), key, value, mask))
    };
    match form(field.kind) {
        Form::Same(key) => same(key),
        Form::Address6(_) if !is_readable(mask) => Err(Why::MaskText(field)),
        Form::Address6(key) => same(key),
        // Below 0x600, it is a length; Open vSwitch then matches the type in an LLC header, or 0x5ff.
        Form::EthType if whole && value < 0x600 => Err(Why::Match(field)),
        Form::EthType => same(SwitchField::EthType),
        Form::Priority if mask != 0 && !whole => Err(Why::Mask(field)),
        Form::Priority => Ok(narrowed(matches, SwitchField::Vlan, value << 13, mask << 13)),
        Form::ArpOperation if whole && (1..=255).contains(&value) => same(SwitchField::ArpOperation),
        Form::ArpOperation | Form::Protocol | Form::Fragment if mask == 0 => Ok(matches),
        Form::ArpOperation => Err(Why::Arp(field)),
        Form::Version => of_version(matches, field, value, mask),
        Form::Protocol if !whole => Err(Why::Mask(field)),
        Form::Protocol if value == 0 => Err(Why::NotIp(field)),
        Form::Protocol => Ok(narrowed(with_ip(matches), SwitchField::Protocol, value, 0xff)),
        Form::Fragment => with_fragment(matches, field, value == 1),
        Form::TrafficClass => {
            if ![0, 0xfc].contains(&(mask & 0xfc)) || ![0, 3].contains(&(mask & 3)) {
                return Err(Why::Mask(field));
            }
            let matches = narrowed(matches, SwitchField::Dscp, value >> 2, mask >> 2);
            Ok(narrowed(matches, SwitchField::Ecn, value & 3, mask & 3))
        }
        Form::None => Err(Why::Match(field)),
    }
}

/// Keeps fragments, or everything else. That a packet is not a fragment can be said of IP only.
fn with_fragment(matches: Matches, field: Field, is_fragment: bool) -> Result<Matches, Why> {
    if is_fragment {
        return Ok(narrowed(with_ip(matches), SwitchField::Fragment, 1, 1));
    }
    if matches.iter().any(|one| one.is_ip().is_none()) {
        return Err(Why::NotIp(field));
    }
    let keep = |mut one: FlowMatch| {
        (one.is_ip() == Some(false) || one.narrow(SwitchField::Fragment, 0, 1)).then_some(one)
    };
    Ok(matches.into_iter().filter_map(keep).collect())
}

/// The length of a mask that is a prefix.
fn prefix(mask: u128) -> Option<u32> {
    let length = mask.leading_ones();
    (mask.count_ones() == length).then_some(length)
}

/// Whether `ovs-ofctl` reads a mask of IPv6 addresses: one that begins with a digit is a length to it.
fn is_readable(mask: u128) -> bool {
    let begins_with_digit = Ipv6Addr::from(mask).to_string().starts_with(|one: char| one.is_ascii_digit());
    prefix(mask).is_some() || !begins_with_digit
}

/// Keeps the packets of some versions of IP; version 0 is everything else.
fn of_version(matches: Matches, field: Field, value: u128, mask: u128) -> Result<Matches, Why> {
    let has = |version: u128| version & mask == value;
    match (has(4), has(6), has(0)) {
        (true, true, true) => Ok(matches),
        (four, six, false) => {
            let all = [(four, IPV4), (six, IPV6)];
            let some =
                all.into_iter().filter(|(has, _)| *has).map(|(_, ip)| vec![(SwitchField::EthType, ip)]);
            Ok(either(matches, &some.collect::<Vec<_>>()))
        }
        (_, _, true) => Err(Why::NotIp(field)),
    }
}

/// Refuses matches that Open vSwitch understands in another way.
pub(crate) fn understood(matches: Matches) -> Result<Matches, Why> {
    match matches.iter().any(FlowMatch::has_other_arp) {
        true => Err(Why::Arp(Field::ArpOperation)),
        false => Ok(matches),
    }
}
