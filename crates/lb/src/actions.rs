//! The actions on packets on their way to a back end. There is one action per forwarding mode; a back end's
//! entry names one of them and supplies the addresses.
//!
//! Pipes that keep flows always have all actions of their kind: a reload with a different list would end
//! their flows (changes.md S2).

use super::service::{BackEnd, Mode, Service, SourceMac};
use super::vlan::{OUT, VLAN};
use std::net::IpAddr;
use weir_config::attachment::{Attachment, Mac};
use weir_packet::{Field, TunnelKind};
use weir_program::builder::Number;
use weir_program::{Encap, Entry, EntryMatch, Forward, NatPart, Operation, Template, Value};

/// An action of a pipe that balances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Action {
    what: What,
    /// Whether the VLAN is written into metadata, for the pipes of `vlan.rs`.
    tagged: bool,
    /// Whether packets too long for the path are refused. Packets for tunnels always have this limit.
    limited: bool,
}

/// What an action does to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// New MAC addresses.
    L2(SourceMacOrigin),
    /// A tunnel, over IPv6 or IPv4.
    Tunnel(Encapsulation, bool),
    /// GUE over IPv4 in the format of the GLB director, which includes the other back end of the packet's
    /// row.
    SecondChance,
    /// Destination rewritten.
    Nat(Translation),
    /// The return path of translated flows.
    Answers(Translation),
    /// Nothing, for packets that are rejected.
    Reject,
}

/// Where the source MAC address comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourceMacOrigin {
    /// Taken from the entry.
    Given,
    /// The address that the packet was sent to.
    Copied,
}

/// Which parts of a packet are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Translation {
    /// Whether the addresses are IPv6.
    pub ipv6: bool,
    /// Whether the destination port is rewritten as well.
    pub port: bool,
    /// Whether the source is replaced with an address and a port from a pool.
    pub full: bool,
    /// Where the source MAC address comes from.
    pub source: SourceMacOrigin,
}

/// Tunnels to back ends.
const TUNNELS: [Encapsulation; 5] = [
    Encapsulation::of(TunnelKind::Ipip),
    Encapsulation::of(TunnelKind::Gue),
    Encapsulation { kind: TunnelKind::Gue, bare: true },
    Encapsulation::of(TunnelKind::Gre),
    Encapsulation::of(TunnelKind::Vxlan),
];

/// A kind of tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Encapsulation {
    kind: TunnelKind,
    /// Whether it is GUE of variant 1, which has no header.
    bare: bool,
}

impl Encapsulation {
    const fn of(kind: TunnelKind) -> Encapsulation {
        Encapsulation { kind, bare: false }
    }
}

/// Returns the actions, their VLAN variants, and, for back ends without a tunnel, variants with a length
/// limit.
fn with_tags(all: Vec<What>) -> Vec<Action> {
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    let of = |(limited, tagged): (bool, bool)| {
        let fits = move |what: &&What| !limited || matches!(what, What::L2(_) | What::Nat(_));
        all.iter().filter(fits).map(move |what| Action { what: *what, tagged, limited })
    };
    ways.into_iter().flat_map(of).collect()
}

impl Action {
    /// The action on packets that are rejected.
    const REJECT: Action = Action { what: What::Reject, tagged: false, limited: false };

    /// Returns all actions that leave addresses alone. `rows` is true for a pipe whose packets pick a row,
    /// and then a back end from that row.
    pub fn direct(rows: bool) -> Vec<Action> {
        let tunnels = TUNNELS.into_iter().flat_map(|kind| [false, true].map(|ipv6| What::Tunnel(kind, ipv6)));
        let stations = [What::L2(SourceMacOrigin::Given), What::L2(SourceMacOrigin::Copied)];
        let second_chance = rows.then_some(What::SecondChance);
        let mut all = with_tags(stations.into_iter().chain(tunnels).chain(second_chance).collect());
        all.push(Action::REJECT);
        all
    }

    /// Returns all actions that translate addresses, including those for answers.
    pub fn translating(ipv6: bool, full: bool) -> Vec<Action> {
        let mut all = Vec::new();
        for source in [SourceMacOrigin::Given, SourceMacOrigin::Copied] {
            for port in [false, true] {
                all.push(What::Nat(Translation { ipv6, port, full, source }));
            }
        }
        all.push(Action::answers(ipv6, full, false).what);
        let mut all = with_tags(all);
        if full {
            // In a pipe without a pool, the actions of other back ends include it.
            all.push(Action::REJECT);
        }
        all
    }

    /// Returns the action for answers.
    pub fn answers(ipv6: bool, full: bool, tagged: bool) -> Action {
        let what = What::Answers(Translation { ipv6, port: true, full, source: SourceMacOrigin::Copied });
        Action { what, tagged, limited: false }
    }

    /// Returns the action of a back end, one of `all`.
    fn of((service, back_end): (&Service, &BackEnd), own: Option<Mac>, all: &[Action]) -> Action {
        let has_rows = || all.iter().any(|one| one.what == What::SecondChance);
        let source = if own.is_some() { SourceMacOrigin::Given } else { SourceMacOrigin::Copied };
        let tunnel = |kind, ip: IpAddr| What::Tunnel(Encapsulation::of(kind), ip.is_ipv6());
        let nat = |port: Option<u16>, full| {
            let ipv6 = service.has(true);
            What::Nat(Translation { ipv6, port: port.is_some(), full, source })
        };
        let what = match back_end.mode {
            Mode::L2 => What::L2(source),
            Mode::Ipip(ip) => tunnel(TunnelKind::Ipip, ip),
            mode if service.has_second_chance(mode) && has_rows() => What::SecondChance,
            Mode::Gue(ip) => tunnel(TunnelKind::Gue, ip),
            Mode::BareGue(ip) => {
                What::Tunnel(Encapsulation { kind: TunnelKind::Gue, bare: true }, ip.is_ipv6())
            }
            Mode::Gre(ip) => tunnel(TunnelKind::Gre, ip),
            Mode::Vxlan { ip, .. } => tunnel(TunnelKind::Vxlan, ip),
            Mode::Nat { port, .. } => nat(port, false),
            Mode::FullNat { port, .. } => nat(port, true),
            Mode::Reject => return Action::REJECT,
        };
        let limited = service.limited && !back_end.mode.is_tunnel();
        Action { what, tagged: back_end.vlan.is_some(), limited }
    }

    /// Returns the name of the action in its pipe.
    fn name(self) -> String {
        let from = |source| if source == SourceMacOrigin::Copied { "_back" } else { "" };
        let name = match self.what {
            What::L2(source) => format!("l2{}", from(source)),
            What::Tunnel(Encapsulation { kind, bare }, ipv6) => {
                let (variant, over) = (if bare { "1" } else { "" }, if ipv6 { "ipv6" } else { "ipv4" });
                format!("{kind}{variant}_over_{over}")
            }
            What::SecondChance => "gue_with_second_chance".to_string(),
            What::Nat(Translation { port, full, source, .. }) => {
                let (kind, port) = (if full { "full_nat" } else { "nat" }, if port { "_port" } else { "" });
                format!("{kind}{port}{}", from(source))
            }
            What::Answers(_) => "answers".to_string(),
            What::Reject => "reject".to_string(),
        };
        let name = if self.limited { format!("{name}_limited") } else { name };
        if self.tagged { format!("{name}_vlan") } else { name }
    }

    /// Returns the action as a template of a pipe.
    pub fn template(self) -> Template {
        let operations = match self.what {
            What::L2(source) => stations(source).to_vec(),
            What::Tunnel(way, ipv6) => tunnel(way, ipv6, false),
            What::SecondChance => tunnel(Encapsulation::of(TunnelKind::Gue), false, true),
            What::Nat(translation) => translate(translation),
            What::Answers(translation) => restore(translation),
            What::Reject => Vec::new(),
        };
        let mut tags = Vec::new();
        if self.tagged {
            let is_back = matches!(self.what, What::Answers(_));
            let vlan = if is_back { Value::Learnt(Field::VlanVid) } else { Value::PerEntry };
            tags = vec![Operation::Set(VLAN, vlan), Operation::Set(OUT, Value::PerEntry)];
        }
        // The length is limited first, so that a packet that is too long reaches the app unmodified.
        let limit = Operation::LimitLength { bytes: Value::PerEntry, frame: false };
        let limit = self.limited.then_some(limit);
        Template::new(self.name(), tags.into_iter().chain(limit).chain(operations))
    }
}

/// Sets both MAC addresses.
fn stations(source: SourceMacOrigin) -> [Operation; 2] {
    let from = match source {
        SourceMacOrigin::Given => Operation::Set(Field::EthSrc, Value::PerEntry),
        SourceMacOrigin::Copied => Operation::Copy { from: Field::EthDst, to: Field::EthSrc },
    };
    [from, Operation::Set(Field::EthDst, Value::PerEntry)]
}

/// The outer headers. To let downstream routers and NICs spread flows, the flow's hash is written into the
/// UDP source port (if the tunnel uses UDP), into the IPv6 flow label, and into the source address (if the
/// service has a prefix). UDP over IPv6 carries a checksum: by default receivers drop packets without one
/// (RFC 6936 §4; Linux's vxlan and fou).
fn tunnel(Encapsulation { kind, bare }: Encapsulation, ipv6: bool, second_chance: bool) -> Vec<Operation> {
    let given = Value::PerEntry;
    let is_vxlan = kind == TunnelKind::Vxlan;
    let encap = Encap {
        eth_dst: given,
        eth_src: given,
        ipv6,
        src: given,
        src_bits: Some(given),
        dst: given,
        id: is_vxlan.then_some(given),
        dscp: None,
        ethernet: is_vxlan,
        udp_checksum: ipv6 && kind.is_udp(),
        second_chance,
        bare,
        ..Encap::new(kind)
    };
    // The length is limited first, so that a packet that is too long reaches the app unmodified.
    let limit = Operation::LimitLength { bytes: given, frame: is_vxlan };
    let inside = is_vxlan.then_some(Operation::Set(Field::EthDst, given));
    [limit].into_iter().chain(inside).chain([Operation::Encap(encap)]).collect()
}

/// Bytes of an Ethernet header without tags.
pub(super) const ETHERNET: u16 = 14;

/// Returns how many bytes a mode of a service adds around its payload: a packet, or for VXLAN the whole
/// frame.
pub(super) fn around(service: &Service, mode: Mode) -> u16 {
    let (kind, ip) = match mode {
        Mode::Ipip(ip) => (TunnelKind::Ipip, ip),
        Mode::Gue(ip) | Mode::BareGue(ip) => (TunnelKind::Gue, ip),
        Mode::Gre(ip) => (TunnelKind::Gre, ip),
        Mode::Vxlan { ip, .. } => (TunnelKind::Vxlan, ip),
        Mode::L2 | Mode::Nat { .. } | Mode::FullNat { .. } | Mode::Reject => return 0,
    };
    let second_chance = service.has_second_chance(mode);
    let bare = matches!(mode, Mode::BareGue(_));
    let encap = Encap { ipv6: ip.is_ipv6(), second_chance, bare, ..Encap::new(kind) };
    (encap.shape().length() as u16).saturating_sub(ETHERNET)
}

/// The fields of source and destination addresses.
fn addresses(ipv6: bool) -> [Field; 2] {
    if ipv6 { [Field::Ipv6Src, Field::Ipv6Dst] } else { [Field::Ipv4Src, Field::Ipv4Dst] }
}

fn translate(Translation { ipv6, port, full, source }: Translation) -> Vec<Operation> {
    let [src, dst] = addresses(ipv6);
    let mut operations = vec![Operation::DecrementTtl, Operation::Set(dst, Value::PerEntry)];
    if port {
        operations.push(Operation::Set(Field::L4Dport, Value::PerEntry));
    }
    if full {
        operations.push(Operation::Set(src, Value::Nat(NatPart::Address)));
        operations.push(Operation::Set(Field::L4Sport, Value::Nat(NatPart::Port)));
    }
    operations.extend(stations(source));
    operations
}

/// The operations that restore answers: their source becomes the original destination of the flow, and they
/// are sent to the station that the flow came from.
fn restore(Translation { ipv6, full, .. }: Translation) -> Vec<Operation> {
    let [src, dst] = addresses(ipv6);
    let learnt = |to, from| Operation::Set(to, Value::Learnt(from));
    let mut operations =
        vec![Operation::DecrementTtl, learnt(src, dst), learnt(Field::L4Sport, Field::L4Dport)];
    if full {
        operations.extend([learnt(dst, src), learnt(Field::L4Dport, Field::L4Sport)]);
    }
    operations.extend([learnt(Field::EthSrc, Field::EthDst), learnt(Field::EthDst, Field::EthSrc)]);
    operations
}

/// Returns the source MAC address of packets to a back end of a service, if it is known. It is the address of
/// the port through which a packet leaves. If that is the port on which the packet arrived, it is the address
/// to which the packet was sent; tunnels have no such address to copy, so they use the port's.
pub(super) fn own_mac(
    (service, back_end): (&Service, &BackEnd),
    is_tunnel: bool,
    of_port: Option<Mac>,
) -> Option<Mac> {
    if let SourceMac::Fixed(mac) = service.source_mac {
        return Some(mac);
    }
    if is_tunnel {
        return service.way(back_end).map_or(of_port, |out| out.mac);
    }
    let is_back = |out: &&Attachment| out.to == Forward::Port(out.lead) && service.ports == [out.lead];
    service.way(back_end).filter(|out| !is_back(out)).and_then(|out| out.mac)
}

/// Writes the MAC address of a back end into its entry.
pub(super) fn set_station(mode: Mode, entry: &mut Entry, mac: Mac) {
    let at = match mode {
        Mode::Vxlan { .. } => 2,
        Mode::Ipip(_) | Mode::Gue(_) | Mode::BareGue(_) | Mode::Gre(_) => 1,
        Mode::L2 | Mode::Nat { .. } | Mode::FullNat { .. } => entry.values.len().saturating_sub(1),
        // No packet leaves for a back end.
        Mode::Reject => return,
    };
    if let Some(value) = entry.values.get_mut(at) {
        *value = mac.number();
    }
}

/// Returns the action of a back end, one of `all`, given the MAC address of the service's port.
pub(super) fn action(pair: (&Service, &BackEnd), of_port: Option<Mac>, all: &[Action]) -> Action {
    Action::of(pair, own_mac(pair, pair.1.mode.is_tunnel(), of_port), all)
}

/// Returns the entry of a back end in a pipe with these actions. `out` is the number of the destination of
/// packets that get a VLAN tag. The back end must be possible: see [`super::problems`].
pub(super) fn entry(
    (service, back_end): (&Service, &BackEnd),
    (of_port, out): (Option<Mac>, u16),
    actions: &[Action],
    given: impl Into<EntryMatch>,
) -> Entry {
    let own = own_mac((service, back_end), back_end.mode.is_tunnel(), of_port);
    let action = Action::of((service, back_end), own, actions);
    let position = actions.iter().position(|one| *one == action).unwrap_or_default();
    let mut entry = Entry::on(given).template(position as u16).origin(back_end.origin);
    if let Some(vlan) = back_end.vlan {
        entry = entry.value(vlan).value(out);
    }
    if action.limited {
        entry = entry.value(service.mtu);
    }
    match (back_end.mode, action.what) {
        (Mode::Reject, _) => entry,
        (mode, What::Tunnel(..) | What::SecondChance) => {
            let ipv6 = mode.ip().is_some_and(|ip| ip.is_ipv6());
            entry = entry.value(service.mtu.saturating_sub(around(service, mode)));
            if let Mode::Vxlan { inner_mac, .. } = mode {
                entry = entry.value(inner_mac);
            }
            entry = entry.value(back_end.mac).value(own.unwrap_or_default());
            let (v4, v6) = service.source;
            entry = match (ipv6, v4, v6) {
                (false, Some((address, bits)), _) => entry.value(address).value(bits),
                (true, _, Some((address, bits))) => entry.value(address).value(bits),
                _ => entry.value(0_u8).value(0_u8),
            };
            entry = entry.value(mode.ip().map_or(0, Number::number));
            if let Mode::Vxlan { vni, .. } = mode {
                entry = entry.value(vni);
            }
            entry
        }
        (Mode::Nat { ip, port } | Mode::FullNat { ip, port }, _) => {
            entry = entry.value(ip);
            entry = port.into_iter().fold(entry, Entry::value);
            own.into_iter().fold(entry, Entry::value).value(back_end.mac)
        }
        _ => own.into_iter().fold(entry, Entry::value).value(back_end.mac),
    }
}
