//! The configuration of a service with names resolved, and what can be wrong with it.

use config::attachment::Attachment;
use engine::program::{Origin, PortId};
use packet::{PROTOCOL_TCP, PROTOCOL_UDP};
use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use thiserror::Error;

/// The largest number of bits in a source mask: each of their values is an entry.
pub const BITS_MAX: u32 = 8;

/// An address, protocol and port that clients know, and the back ends that serve it.
#[derive(Clone, Debug, PartialEq)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Ports on which its packets arrive.
    pub ports: Vec<PortId>,
    /// Where the back ends are; `None` means through the port on which a packet arrived.
    pub out: Option<Attachment>,
    /// The address of the service.
    pub vip: IpAddr,
    /// TCP or UDP.
    pub protocol: u8,
    /// Its TCP or UDP port.
    pub dport: u16,
    /// How packets are assigned to back ends.
    pub by: By,
    /// Number of buckets in its group, a prime.
    pub size: u32,
    /// The back ends.
    pub back_ends: Vec<BackEnd>,
    /// Source MAC address of packets to back ends.
    pub source_mac: SourceMac,
    /// Place in the configuration.
    pub origin: Origin,
}

/// How packets are assigned to back ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By addresses, protocol and ports: each connection independently.
    FiveTuple,
    /// By source address: a client stays with its back end.
    Source,
    /// By some bits of the IPv4 source address, in turn.
    SourceBits(u32),
}

impl FromStr for By {
    type Err = Problem;

    fn from_str(text: &str) -> Result<By, Problem> {
        match text {
            "5-tuple" => Ok(By::FiveTuple),
            "source" => Ok(By::Source),
            _ => {
                let mask = text.strip_prefix("src/").and_then(|mask| mask.parse::<Ipv4Addr>().ok());
                let mask = mask.ok_or_else(|| Problem::By { text: text.to_string() })?.to_bits();
                let bits = mask.count_ones();
                if bits == 0 || bits > BITS_MAX {
                    Err(Problem::SourceBits { bits })
                } else {
                    Ok(By::SourceBits(mask))
                }
            }
        }
    }
}

/// A server for a service. It has the service's address on a loopback interface.
#[derive(Clone, Debug, PartialEq)]
pub struct BackEnd {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its share relative to the others; with 0 it gets nothing.
    pub weight: u32,
    /// Place in the configuration.
    pub origin: Origin,
}

/// The source MAC address of packets to back ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceMac {
    /// The address of the port through which they leave; if unknown, the address to which the packet was
    /// sent.
    #[default]
    Auto,
    /// This address.
    Fixed([u8; 6]),
}

/// What can be wrong with a service.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "every variant's sentence is its documentation, its fields are what the sentence names"
)]
pub enum Problem {
    #[error("two services are called `{name}`")]
    NameTwice { name: String },
    #[error("service `{first}` has this address, protocol and port on the same port already")]
    ServiceTwice { first: String },
    #[error("service `{name}` has no back ends")]
    NoBackEnds { name: String },
    #[error("all back ends of service `{name}` have weight 0: nobody answers")]
    NobodyAnswers { name: String },
    #[error("two back ends of service `{service}` are called `{name}`")]
    BackEndTwice { service: String, name: String },
    #[error("service `{name}` has no port to receive from")]
    NoPorts { name: String },
    #[error("a service is TCP or UDP, not protocol {protocol}")]
    Protocol { protocol: u8 },
    #[error("{vip} cannot be the address of a service")]
    Vip { vip: IpAddr },
    #[error("`{text}` is not 5-tuple, source, or bits of the source address such as src/0.0.0.1")]
    By { text: String },
    #[error("a source mask has 1 to {BITS_MAX} bits, this one {bits}: each value of them is an entry")]
    SourceBits { bits: u32 },
    #[error("`by: src/MASK` is for IPv4; the address of service `{name}` is IPv6")]
    SourceBitsV6 { name: String },
}

/// Returns everything wrong with `services`.
pub(super) fn problems(services: &[Service]) -> Vec<(Origin, Problem)> {
    let mut list = Vec::new();
    let mut names = HashSet::new();
    for (at, service) in services.iter().enumerate() {
        let mut add = |problem| list.push((service.origin, problem));
        let name = || service.name.clone();
        if !names.insert(&service.name) {
            add(Problem::NameTwice { name: name() });
        }
        if let Some(first) = services[..at].iter().find(|first| same(first, service)) {
            add(Problem::ServiceTwice { first: first.name.clone() });
        }
        if service.ports.is_empty() {
            add(Problem::NoPorts { name: name() });
        }
        if ![PROTOCOL_TCP, PROTOCOL_UDP].contains(&service.protocol) {
            add(Problem::Protocol { protocol: service.protocol });
        }
        if !is_station(service.vip) {
            add(Problem::Vip { vip: service.vip });
        }
        source_bits(service, &mut add);
        back_ends(service, &mut list);
    }
    list
}

fn is_station(address: IpAddr) -> bool {
    let broadcast = address == IpAddr::V4(Ipv4Addr::BROADCAST);
    !(broadcast || address.is_multicast() || address.is_unspecified() || address.is_loopback())
}

fn same(first: &Service, second: &Service) -> bool {
    (first.vip, first.protocol, first.dport) == (second.vip, second.protocol, second.dport)
        && first.ports.iter().any(|port| second.ports.contains(port))
}

fn source_bits(service: &Service, add: &mut impl FnMut(Problem)) {
    let By::SourceBits(mask) = service.by else { return };
    let bits = mask.count_ones();
    if bits == 0 || bits > BITS_MAX {
        add(Problem::SourceBits { bits });
    }
    if service.vip.is_ipv6() {
        add(Problem::SourceBitsV6 { name: service.name.clone() });
    }
}

fn back_ends(service: &Service, list: &mut Vec<(Origin, Problem)>) {
    let name = || service.name.clone();
    if service.back_ends.is_empty() {
        list.push((service.origin, Problem::NoBackEnds { name: name() }));
    } else if service.back_ends.iter().all(|back_end| back_end.weight == 0) {
        list.push((service.origin, Problem::NobodyAnswers { name: name() }));
    }
    let mut names = HashSet::new();
    for back_end in &service.back_ends {
        if !names.insert(&back_end.name) {
            list.push((
                back_end.origin,
                Problem::BackEndTwice { service: name(), name: back_end.name.clone() },
            ));
        }
    }
}
