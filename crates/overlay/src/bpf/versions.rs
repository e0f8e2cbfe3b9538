//! Converts between our structures and those of the programs, which depend on the IP versions for which the
//! programs are compiled.

use super::flow::{OverlayEnd, OverlayFlow, OverlayGone, OverlayKey, OverlayTuple};
use super::shared::{v44, v46, v64, v66};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use weir_bpf::Plain;

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OverlayIp {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

/// Number of flows in a set.
pub(super) const WAYS: usize = 4;

/// An address as on the wire.
trait WireAddress {
    /// Reads it.
    fn ip(self) -> IpAddr;

    /// Converts an address of this version; an IPv4 address may also become an IPv6 address.
    fn of(address: IpAddr) -> Self;
}

impl WireAddress for u32 {
    fn ip(self) -> IpAddr {
        Ipv4Addr::from(self.to_ne_bytes()).into()
    }

    fn of(address: IpAddr) -> u32 {
        match address {
            IpAddr::V4(address) => u32::from_ne_bytes(address.octets()),
            IpAddr::V6(_) => unreachable!("the structure of a version is chosen by its addresses"),
        }
    }
}

macro_rules! address_of_six {
    ($($version:ident)*) => {$(
        impl WireAddress for $version::In6Addr {
            fn ip(self) -> IpAddr {
                Ipv6Addr::from(self.bytes()).into()
            }

            fn of(address: IpAddr) -> Self {
                Self::of(&match address {
                    IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                    IpAddr::V6(address) => address.octets(),
                })
            }
        }
    )*};
}

address_of_six! { v46 v64 v66 }

/// Reads an `enum end`, which only this version's own programs write.
fn end(why: u32) -> OverlayEnd {
    match why as usize {
        v44::MADE_ROOM => OverlayEnd::MadeRoom,
        v44::ENDED => OverlayEnd::Ended,
        v44::IDLE => OverlayEnd::Idle,
        v44::ALIVE => OverlayEnd::Alive,
        v44::STOPPED => OverlayEnd::Stopped,
        other => unreachable!("`enum end` has no value {other}"),
    }
}

// With the type of the outer destination, where it is in the headers, and the length of those.
macro_rules! version {
    ($version:ident, $node:ty, $at:literal, $length:literal) => {
        impl From<&OverlayTuple> for $version::Tuple {
            fn from(tuple: &OverlayTuple) -> Self {
                let ([saddr, daddr], [sport, dport]) = (tuple.addresses.map(WireAddress::of), tuple.ports);
                let (sport, dport) = (sport.to_be(), dport.to_be());
                Self { saddr, daddr, sport, dport, protocol: tuple.protocol.into() }
            }
        }

        impl From<$version::Tuple> for OverlayTuple {
            fn from(tuple: $version::Tuple) -> OverlayTuple {
                OverlayTuple {
                    addresses: [tuple.saddr, tuple.daddr].map(WireAddress::ip),
                    ports: [tuple.sport, tuple.dport].map(u16::from_be),
                    protocol: tuple.protocol as u8,
                }
            }
        }

        impl From<&OverlayKey> for $version::Key {
            fn from(key: &OverlayKey) -> Self {
                let ([local, remote], [local_port, remote_port]) =
                    (key.addresses.map(WireAddress::of), key.ports);
                Self {
                    local,
                    remote,
                    local_port: local_port.to_be(),
                    remote_port: remote_port.to_be(),
                    vni: key.vni,
                    protocol: key.protocol.into(),
                }
            }
        }

        impl From<$version::Key> for OverlayKey {
            fn from(key: $version::Key) -> OverlayKey {
                OverlayKey {
                    addresses: [key.local, key.remote].map(WireAddress::ip),
                    ports: [key.local_port, key.remote_port].map(u16::from_be),
                    vni: key.vni,
                    protocol: key.protocol as u8,
                }
            }
        }

        impl From<$version::Gone> for OverlayGone {
            fn from(gone: $version::Gone) -> OverlayGone {
                let key = OverlayKey::from(gone.key);
                OverlayGone {
                    key,
                    born_ns: gone.born_ns,
                    used_ns: gone.used_ns,
                    packets: gone.packets,
                    bytes: gone.bytes,
                    received: if gone.is_translated == 0 { key.sent().reversed() } else { gone.to.into() },
                    why: end(gone.why),
                }
            }
        }

        impl $version::Way {
            /// Returns the flow; `None` if there is none, or if it is gone and only its key is kept.
            pub fn flow(self) -> Option<OverlayFlow> {
                let plan = self.plan;
                let halves = [plan.send, plan.receive];
                let is = |half: $version::Half, flags: usize| half.flags as usize & flags == flags;
                let bytes = plan.headers.into_iter().flat_map(u64::to_ne_bytes);
                let headers: Vec<u8> = bytes.take($length).collect();
                let node = <$node as Plain>::read(&headers[$at..][..size_of::<$node>()]);
                (self.key.protocol != 0 && self.born_ns != 0).then(|| OverlayFlow {
                    key: self.key.into(),
                    learnt_ns: halves.map(|half| half.learnt_ns),
                    stamps: halves.map(|half| [half.global, half.policy, half.own]),
                    stamp_of: halves.map(|half| half.at),
                    is_usable: halves.map(|half| is(half, v44::USABLE)),
                    translated: halves
                        .map(|half| is(half, v44::USABLE | v44::TRANSLATED).then(|| half.to.into())),
                    peer: is(plan.send, v44::LOCAL).then_some(plan.peer),
                    node: node.ip(),
                    headers,
                    pod: plan.pod,
                    born_ns: self.born_ns,
                    used_ns: self.used_ns,
                    packets: self.packets,
                    bytes: self.bytes,
                })
            }
        }
    };
}

version! { v44, u32, 30, 64 }
version! { v46, v46::In6Addr, 38, 84 }
version! { v64, u32, 30, 64 }
version! { v66, v66::In6Addr, 38, 84 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_that_the_programs_report_has_its_name() {
        for (why, name) in (0..).zip(v44::END_NAMES) {
            assert_eq!(format!("{:?}", end(why)).to_lowercase(), name.replace('_', ""));
        }
    }
}
