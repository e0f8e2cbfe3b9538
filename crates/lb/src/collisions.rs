//! Finds services whose connections are translated to the same address and port of a back end. If a client
//! uses one source port for both, as proxies and NATs do, the second connection is dropped (`answers_taken`,
//! pipes.md M20).

use super::service::{Address, BackEnd, Mode, Service};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

/// Two translations to one address and port of a back end, possibly of a single service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Collision<'a> {
    pub back_end: &'a BackEnd,
    pub ip: IpAddr,
    pub port: u16,
    pub first: &'a Service,
    pub second: &'a Service,
}

/// An address and a protocol of back ends.
type Station = (IpAddr, u8);
/// A service, by its position, and the address that clients send to.
type ServiceAddress<'a> = (usize, &'a Address);
/// The first and the last port.
type PortRange = (u16, u16);

/// The translations found so far. There may be a million pairs of service and back end.
#[derive(Default)]
struct Translations<'a> {
    single: BTreeMap<(Station, u16), ServiceAddress<'a>>,
    ranges: HashMap<Station, Vec<(PortRange, ServiceAddress<'a>)>>,
}

impl<'a> Translations<'a> {
    /// Adds a translation to these ports. Returns an earlier translation that shares a port with it, and that
    /// port.
    fn add(
        &mut self,
        to: Station,
        (first, last): PortRange,
        way: ServiceAddress<'a>,
    ) -> Option<(ServiceAddress<'a>, u16)> {
        let single = self.single.range((to, first)..=(to, last));
        let single = single.map(|((_, port), other)| (*other, *port)).find(|(other, _)| *other != way);
        let ranges = self.ranges.get(&to).into_iter().flatten();
        let meets = ranges.filter(|((from, until), _)| *from <= last && first <= *until);
        let range =
            meets.map(|((from, _), other)| (*other, first.max(*from))).find(|(other, _)| *other != way);
        if first == last {
            self.single.entry((to, first)).or_insert(way);
        } else {
            self.ranges.entry(to).or_default().push(((first, last), way));
        }
        single.or(range)
    }
}

/// Returns the first collision of each service with an earlier one, or within itself.
pub(super) fn collisions(services: &[Service]) -> Vec<Collision<'_>> {
    let (mut known, mut found) = (Translations::default(), Vec::new());
    for (at, second) in services.iter().enumerate() {
        let mut own = None;
        for back_end in second.back_ends.iter() {
            let Mode::Nat { ip, port } = back_end.mode else { continue };
            for address in &second.addresses {
                let ports = port.map_or(address.ports, |port| (port, port));
                let other = known.add((ip, address.protocol), ports, (at, address));
                let collision = other.map(|((of, _), port)| Collision {
                    back_end,
                    ip,
                    port,
                    first: &services[of],
                    second,
                });
                own = own.or(collision);
            }
        }
        found.extend(own);
    }
    found
}

impl std::fmt::Display for Collision<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Collision { back_end, ip, port, first, second } = self;
        if first.name == second.name {
            write!(f, "two addresses of `{}` lead", first.name)?;
        } else {
            write!(f, "`{}` and `{}` both lead", first.name, second.name)?;
        }
        write!(
            f,
            " to {ip} port {port}: if two connections come from the same client address and port, the \
             second is dropped (`answers_taken`); use `full_nat`, or a different address or port of back \
             end `{}` for each",
            back_end.name
        )
    }
}
