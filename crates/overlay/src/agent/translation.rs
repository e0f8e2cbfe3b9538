//! Translations of connections by NAT, as connection tracking knows them.

use crate::bpf::{OverlayIp, OverlayTuple, TcOverlay};
use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use weir_netlink::{AF_INET, AF_INET6, Protocol, attribute, find, get, nested, read_ip};

/// NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET.
const GET: u16 = 1 << 8 | 1;
/// CTA_TUPLE_ORIG, CTA_TUPLE_REPLY.
pub const ORIGINAL: u16 = 1;
pub const REPLY: u16 = 2;
/// CTA_IP_V4_SRC, CTA_IP_V4_DST, and of IPv6.
const IPV4: [u16; 2] = [1, 2];
const IPV6: [u16; 2] = [3, 4];

/// The translations installed in the programs.
#[derive(Default)]
pub struct Translations {
    /// Tuples with which frames leave.
    known: BTreeSet<OverlayTuple>,
    /// Tuples unknown to the kernel; below, until when not to ask about them again.
    unknown: BTreeSet<OverlayTuple>,
    until_ns: u64,
}

/// How long a negative answer is cached, in nanoseconds.
const UNKNOWN_NS: u64 = 1_000_000_000;

impl Translations {
    /// Answers the programs' requests for the connections to which frames with certain tuples belong.
    pub fn answer(&mut self, now_ns: u64, programs: &mut TcOverlay) {
        if now_ns >= self.until_ns {
            self.unknown.clear();
            self.until_ns = now_ns + UNKNOWN_NS;
        }
        for tuple in programs.asked() {
            if self.known.contains(&tuple) || self.unknown.contains(&tuple) {
                continue;
            }
            // The kernel does not know the connection, which may have ended meanwhile.
            let Some([original, reply]) = connection(&tuple.reversed()).ok().flatten() else {
                self.unknown.insert(tuple);
                continue;
            };
            // If there is no room, the connection stays on the slow path.
            for (from, to) in [(original, reply.reversed()), (reply, original.reversed())] {
                if programs.translate(&from, &to).is_ok() {
                    self.known.insert(to);
                }
            }
        }
    }

    /// Forgets a tuple with which frames left, if it is known.
    pub fn forget(&mut self, tuple: &OverlayTuple, programs: &mut TcOverlay) {
        if self.known.remove(tuple) {
            programs.forget_translation(tuple);
        }
    }

    /// Forgets all translations, because the end of some connections may have been missed.
    pub fn clear(&mut self, programs: &mut TcOverlay) {
        if !std::mem::take(&mut self.known).is_empty() {
            programs.forget_translations();
        }
    }
}

/// Returns both tuples of the connection with this tuple; `None` if the kernel's answer has no ports.
fn connection(tuple: &OverlayTuple) -> io::Result<Option<[OverlayTuple; 2]>> {
    let family = if tuple.ip() == OverlayIp::V4 { AF_INET } else { AF_INET6 };
    let question = [&[family, 0, 0, 0][..], &written(tuple)].concat();
    let (_, body) = get(Protocol::Netfilter, GET, &question)?;
    let both = |body: &[u8]| {
        let rest = body.get(4..)?;
        Some([read(find(rest, ORIGINAL)?)?, read(find(rest, REPLY)?)?])
    };
    Ok(both(&body))
}

/// Writes CTA_TUPLE_ORIG.
fn written(tuple: &OverlayTuple) -> Vec<u8> {
    let address = |at: usize| match tuple.addresses[at] {
        IpAddr::V4(address) => attribute(IPV4[at], &address.octets()),
        IpAddr::V6(address) => attribute(IPV6[at], &address.octets()),
    };
    let ip = [address(0), address(1)];
    let [from, to] = tuple.ports.map(u16::to_be_bytes);
    let ports = [attribute(1, &[tuple.protocol]), attribute(2, &from), attribute(3, &to)];
    nested(ORIGINAL, &[nested(1, &ip), nested(2, &ports)])
}

/// Reads CTA_TUPLE_ORIG or CTA_TUPLE_REPLY, of a protocol with ports.
pub fn read(value: &[u8]) -> Option<OverlayTuple> {
    let (ip, protocol) = (find(value, 1)?, find(value, 2)?);
    let port = |kind: u16| find(protocol, kind)?.first_chunk().map(|two| u16::from_be_bytes(*two));
    let kinds = if find(ip, IPV4[0]).is_some() { IPV4 } else { IPV6 };
    let address = |at: usize| read_ip(find(ip, kinds[at])?);
    Some(OverlayTuple {
        addresses: [address(0)?, address(1)?],
        ports: [port(2)?, port(3)?],
        protocol: *find(protocol, 1)?.first()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuple_is_read_as_it_was_written() {
        for addresses in [["10.244.1.11", "10.96.0.1"], ["fd00:244::11", "fd00:96::1"]] {
            let addresses = addresses.map(|address| address.parse().unwrap());
            let tuple = OverlayTuple { addresses, ports: [40_000, 443], protocol: 6 };
            let bytes = written(&tuple);
            assert_eq!(find(&bytes, ORIGINAL).and_then(read), Some(tuple));
            for length in 0..bytes.len() {
                assert!(find(&bytes[..length], ORIGINAL).and_then(read).is_none(), "cut short");
            }
        }
    }
}
