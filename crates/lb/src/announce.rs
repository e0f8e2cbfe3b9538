//! The configuration of what weir itself answers on behalf of services: requests for the MAC address of a
//! VIP, and pings.
//!
//! A host that owns a VIP resets every TCP connection as soon as weir does not take its frames. So weir
//! announces the VIPs of services with TCP, and the host does not have them. Prefixes are never announced:
//! they are routed to weir, and answering for every address in them would hijack addresses of other hosts on
//! the link. The addresses of a NAT pool are weir's alone, and are announced to back ends. `answers`
//! implements this in the running app.

use super::service::{Address, Service};
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use weir_config::attachment::{Attachments, Mac};
use weir_config::ports::{PortConfig, PortKind};
use weir_config::{Frames, IpRule, TakeRule};
use weir_packet::{PROTOCOL_ICMP, PROTOCOL_ICMPV6, PROTOCOL_TCP};
use weir_program::{Forward, Origin, PortId};

/// The types of echo requests (RFC 792, RFC 4443 §4.1).
pub(super) const ECHO_V4: u8 = 8;
pub(super) const ECHO_V6: u8 = 128;

/// A source address of checks, or an address of a NAT pool, at a port on which answers arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// The port on which answers to the address arrive.
    pub port: PortId,
    /// The address itself, for which weir answers ARP and neighbour discovery.
    pub address: IpAddr,
    /// The position, in the configuration, of the first service that uses it.
    pub origin: Origin,
}

/// Who announces the VIPs of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Announce {
    /// Weir, if the service has TCP.
    #[default]
    Auto,
    /// Weir, by ARP and neighbour discovery.
    Arp,
    /// Routers, to which the daemon announces a route while the service works.
    Route(Routing),
    /// Not weir: the host has the VIP, or routers have a route.
    Never,
}

/// When the VIPs of a service are announced by a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// How many back ends must serve.
    pub min_up: u32,
    /// With fewer than this number of serving back ends, the route has the metric of a degraded service.
    pub degraded_below: u32,
}

/// The values of `min_up` and `degraded_below` where the configuration gives none; 0 means never degraded.
const ROUTING: Routing = Routing { min_up: 1, degraded_below: 0 };

/// How pings to the VIPs of a service are handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IcmpEcho {
    /// Weir answers for VIPs that it announces, except prefixes.
    #[default]
    Auto,
    /// Weir answers.
    Answer,
    /// Pings are forwarded to a back end.
    Forward,
}

/// The values of `announce` that can be written explicitly.
pub(super) const ANNOUNCE: [(&str, Announce); 3] =
    [("arp", Announce::Arp), ("route", Announce::Route(ROUTING)), ("none", Announce::Never)];
/// The values of `icmp_echo` that can be written explicitly.
pub(super) const ICMP_ECHO: [(&str, IcmpEcho); 2] =
    [("answer", IcmpEcho::Answer), ("forward", IcmpEcho::Forward)];

impl Service {
    /// Returns whether weir announces the service's VIPs by ARP and neighbour discovery.
    #[must_use]
    pub fn announces(&self) -> bool {
        match self.announce {
            Announce::Arp => true,
            Announce::Route(_) | Announce::Never => false,
            Announce::Auto => self.has_tcp(),
        }
    }

    /// Returns whether the service has TCP.
    pub(super) fn has_tcp(&self) -> bool {
        self.addresses.iter().any(|address| address.protocol == PROTOCOL_TCP)
    }

    /// Returns the service's VIPs that are single addresses, possibly with duplicates.
    pub(super) fn hosts(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.addresses.iter().filter(|address| address.is_host()).map(|address| address.vip)
    }
}

/// A VIP that weir announces at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The port through which the VIP is announced.
    pub port: PortId,
    /// The VIP: a single address, because prefixes are never announced.
    pub vip: IpAddr,
    /// The position, in the configuration, of the first service that uses it.
    pub origin: Origin,
}

/// Addresses whose pings are not left to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinged {
    /// The port on which pings arrive.
    pub port: PortId,
    /// The first address of the prefix, or the address itself if the prefix has its full length.
    pub vip: IpAddr,
    /// The length of the prefix in bits.
    pub prefix: u8,
    /// The index of the service that gets the pings; `None` if weir answers them.
    pub service: Option<usize>,
    /// The position of the service in the configuration.
    pub origin: Origin,
}

/// A port at which VIPs are announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// The port whose stations receive the announcements.
    pub port: PortId,
    /// The name of the port, for log lines.
    pub name: Arc<str>,
    /// The MAC address under which VIPs are announced here: the port's, or its bond's.
    pub mac: Mac,
    /// Whether unsolicited announcements are needed. Ports on recordings and in memory have no other
    /// stations, and on a bond, announcing is the bond's job.
    pub is_wire: bool,
}

/// A VIP that is announced unsolicited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unasked {
    /// The port through which it is announced.
    pub port: PortId,
    /// The VIP that is announced: a single address.
    pub vip: IpAddr,
    /// The VLAN of the announcement, 1 to 4094; 0 means without a tag.
    pub vlan: u16,
}

/// The requests that weir answers on behalf of services.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answered {
    /// The VIPs that it announces, once per port.
    pub vips: Vec<Announced>,
    /// The VIPs that are announced unsolicited, once per VLAN.
    pub unasked: Vec<Unasked>,
    /// Where pings go, once per address and port.
    pub pings: Vec<Pinged>,
    /// The ports of the VIPs.
    pub speakers: Vec<Speaker>,
}

impl Answered {
    /// Returns the requests to answer for services and for weir's own addresses, which are those of checks
    /// and of NAT pools. Nothing is announced at ports without a known MAC address.
    #[must_use]
    pub fn of(
        (services, sources): (&[Service], &[Source]),
        attachments: &Attachments,
        ports: &[PortConfig],
    ) -> Answered {
        let speaker = |port: PortId| {
            let (config, below) = (ports.get(port.index())?, attachments.with(port)?);
            let mac = below.mac?;
            // Some members of a bond must not send; only the bond knows which.
            let is_alone = below.to == Forward::Port(port);
            let is_wire = is_alone && matches!(config.kind, PortKind::Xdp(_) | PortKind::Dpdk { .. });
            Some(Speaker { port, name: config.name.as_str().into(), mac, is_wire })
        };
        let mut speakers: HashMap<PortId, Speaker> = HashMap::new();
        let (mut vips, mut seen) = (Vec::new(), HashSet::new());
        let (mut unasked, mut reported) = (Vec::new(), HashSet::new());
        let mut announce = |port: PortId, all: &mut dyn Iterator<Item = IpAddr>, vlans: &[u16], origin| {
            let Some(speaker) = speakers.get(&port).cloned().or_else(|| speaker(port)) else { return };
            for vip in all {
                let each = vlans.iter().map(|vlan| Unasked { port, vip, vlan: *vlan });
                unasked.extend(each.filter(|one| reported.insert(*one)));
                if seen.insert((port, vip)) {
                    vips.push(Announced { port, vip, origin });
                    speakers.entry(port).or_insert_with(|| speaker.clone());
                }
            }
        };
        for service in services.iter().filter(|service| service.announces()) {
            for port in &service.ports {
                announce(*port, &mut service.hosts(), &service.announce_vlans, service.origin);
            }
        }
        for Source { port, address, origin } in sources {
            announce(*port, &mut std::iter::once(*address), &[0], *origin);
        }
        let mut speakers: Vec<Speaker> = speakers.into_values().collect();
        speakers.sort_by_key(|speaker| speaker.port);
        let pings = pings(services, &seen);
        Answered { vips, unasked, pings, speakers }
    }

    /// Returns the rules for the frames that ports must take so that weir can answer them.
    pub(super) fn take(&self) -> impl Iterator<Item = TakeRule> + '_ {
        let asked = |one: &Announced| TakeRule { port: one.port, frames: Frames::Asked(one.vip) };
        let pinged = |one: &Pinged| TakeRule { port: one.port, frames: Frames::Ip(one.rule()) };
        self.vips.iter().map(asked).chain(self.pings.iter().map(pinged))
    }
}

/// Returns where pings go. Explicit settings take precedence over defaults, and among several services with
/// one address the first one wins.
fn pings(services: &[Service], announced: &HashSet<(PortId, IpAddr)>) -> Vec<Pinged> {
    let (mut all, mut seen) = (Vec::new(), HashSet::new());
    for written in [true, false] {
        for (at, service) in services.iter().enumerate() {
            if written != (service.icmp_echo != IcmpEcho::Auto) {
                continue;
            }
            let to = (service.icmp_echo == IcmpEcho::Forward).then_some(at);
            for &port in &service.ports {
                for address in &service.addresses {
                    let Address { vip, prefix, .. } = address;
                    let is_routed = matches!(service.announce, Announce::Route(_)) && address.is_host();
                    let is_asked = service.announces() && announced.contains(&(port, *vip));
                    let is_meant = written || is_routed || is_asked;
                    if is_meant && seen.insert((port, *vip, *prefix)) {
                        let (vip, prefix, service, origin) = (*vip, *prefix, to, service.origin);
                        all.push(Pinged { port, vip, prefix, service, origin });
                    }
                }
            }
        }
    }
    all
}

impl Pinged {
    /// Returns whether pings go to a single address, so that an exact match finds them.
    pub(super) fn is_host(&self) -> bool {
        self.prefix == if self.vip.is_ipv6() { 128 } else { 32 }
    }

    /// Matches unfragmented echo requests only, because later fragments do not include the ICMP type.
    fn rule(&self) -> IpRule {
        let (protocol, kind) =
            if self.vip.is_ipv6() { (PROTOCOL_ICMPV6, ECHO_V6) } else { (PROTOCOL_ICMP, ECHO_V4) };
        let first = u16::from(kind) << 8;
        let (dst, prefix, dport) = (self.vip, self.prefix, Some((first, first | 0xff)));
        IpRule { dst, prefix, protocol: Some(protocol), dport, fragments: false }
    }
}

/// Returns the group to which solicitations for an address are sent (RFC 4291 §2.7.1).
pub(super) fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(group | address.to_bits() & 0xff_ffff)
}
