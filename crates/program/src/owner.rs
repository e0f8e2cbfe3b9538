//! Which worker a flow belongs to.
//!
//! A flow lives on one worker, so the worker is computed from a part of the flow's key that is the same for
//! all its frames. A frame is handed to its worker on reception, before any pipe has seen it:
//! [`crate::check::owners`] finds what the FLOW pipes of a program need from the frame as received. Where
//! their needs differ, the pipes in front of them are looked through first ([`Owning::Ahead`]).

use crate::check::owners;
use crate::{NatPool, NatPoolId, PipeId, PortId, Program};
use std::sync::Arc;
use weir_packet::fragment;
use weir_packet::{Depth, FlowKey, Headers, KeySource, TableHash, TunnelPorts, parse_into, rss_hash};

/// The part of a flow's key that determines which worker the flow belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OwnedBy {
    /// Both addresses, both ports and the protocol: both directions of a flow belong to one worker.
    #[default]
    Both,
    /// Both addresses: all flows between two hosts, and their fragments, belong to one worker.
    Addresses,
    /// The source address: all flows from a host belong to one worker.
    Src,
    /// The destination address: all flows to a host belong to one worker.
    Dst,
    /// Address, port and protocol of the end that begins flows, where answers are learnt with them: the other
    /// end may be translated. Which end that is follows from the [`Side`] that a packet comes from.
    Client,
}

impl OwnedBy {
    /// The YAML keywords.
    pub const WORDS: [(&'static str, OwnedBy); 5] = [
        ("both", OwnedBy::Both),
        ("addresses", OwnedBy::Addresses),
        ("src", OwnedBy::Src),
        ("dst", OwnedBy::Dst),
        ("client", OwnedBy::Client),
    ];

    /// Returns the YAML keyword.
    #[must_use]
    pub fn word(self) -> &'static str {
        OwnedBy::WORDS.iter().find(|(_, by)| *by == self).map_or("both", |(word, _)| word)
    }
}

/// Where a packet comes from, in a pipe that learns answers together with flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From the end that begins flows: metadata chooses a group for it.
    Client,
    /// From the end that answers.
    Server,
}

/// The hash that spreads flows over workers.
#[derive(Clone, Copy, Debug)]
pub struct Steering {
    /// The hash of the tables: it is secret, so an attacker cannot direct all flows at one worker.
    pub hash: TableHash,
    /// Entries of the NICs' indirection tables, if all NICs were configured to hash with
    /// [`weir_packet::RSS_KEY`] and to spread the buckets over their queues, one for each worker, in turn.
    /// Flows with `owner: both` are then spread in the same way as the NICs do, and hardly any frame is
    /// handed over. 0 if NICs spread them otherwise.
    pub rss_table: u32,
}

/// How flows are spread, and over how many workers.
#[derive(Clone, Copy, Debug)]
pub struct Spread<'a> {
    /// How flows are spread.
    pub steering: &'a Steering,
    /// The number of workers.
    pub workers: usize,
}

impl From<TableHash> for Steering {
    fn from(hash: TableHash) -> Steering {
        Steering { hash, rss_table: 0 }
    }
}

/// Pipes that are looked through in this order; pipes with an owner are FLOW pipes.
pub type Ahead = Arc<[(PipeId, Option<Owner>)]>;

/// How to find the worker that a frame belongs to, for frames that arrive on a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owning {
    /// From the headers of each frame, in the same way.
    Same(Owner),
    /// As required by the first FLOW pipe that a frame meets. These pipes are looked through to find it,
    /// without counting. A frame that meets none stays where it arrived.
    Ahead(Ahead),
}

/// The input from which the worker of a frame is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner {
    /// The headers from which the worker is computed.
    pub source: KeySource,
    /// The part of these headers' flow key from which the worker is computed.
    pub by: OwnedBy,
    /// The NAT pool whose slices belong to workers, if the flows take addresses from a pool.
    pub nat: Option<NatPoolId>,
}

impl Owner {
    /// Returns the worker of a received frame; `None` without IP. `ports` are those of a fragment, if they
    /// are known.
    #[inline]
    #[must_use]
    pub fn of(
        self,
        frame: &[u8],
        headers: &Headers,
        ports: Option<[u8; 4]>,
        side: Side,
        pools: &[NatPool],
        spread: Spread<'_>,
    ) -> Option<usize> {
        let mut key = FlowKey::without_id(frame, headers, self.source)?;
        if let Some(ports) = ports {
            key.set_ports(ports);
        }
        Some(match self.nat.and_then(|id| pools.get(id.index())) {
            Some(pool) => NatPool::worker(pool.slice(&key), spread.workers),
            None => worker(self.by, &key, side, spread),
        })
    }
}

/// Returns the worker that learns the ports of a fragment's datagram; `None` without IP.
#[must_use]
pub fn of_fragment(frame: &[u8], headers: &Headers, spread: Spread<'_>) -> Option<usize> {
    let key = FlowKey::without_id(frame, headers, KeySource::Outer)?;
    Some(worker(OwnedBy::Addresses, &key, Side::Client, spread))
}

/// Returns the worker of the flows with this key. The tunnel's id is not included, because the key no longer
/// has it once the frame has left the tunnel.
#[inline]
#[must_use]
pub fn worker(by: OwnedBy, key: &FlowKey, side: Side, spread: Spread<'_>) -> usize {
    let Spread { steering, workers } = spread;
    if by == OwnedBy::Both && steering.rss_table != 0 {
        return (rss_hash(key) % steering.rss_table) as usize % workers;
    }
    let [[src_hi, src_lo, sport], [dst_hi, dst_lo, dport]] = key.ends();
    let of = |words: [u64; 3]| steering.hash.hash(&words);
    let protocol = u64::from(key.protocol()) << 16;
    // A sum is the same in both directions and needs no comparison, whose outcome would be unpredictable.
    let hash = match by {
        OwnedBy::Both => {
            of([src_hi, src_lo, protocol | sport]).wrapping_add(of([dst_hi, dst_lo, protocol | dport]))
        }
        OwnedBy::Addresses => of([src_hi, src_lo, 0]).wrapping_add(of([dst_hi, dst_lo, 0])),
        OwnedBy::Src => of([src_hi, src_lo, 0]),
        OwnedBy::Dst => of([dst_hi, dst_lo, 0]),
        OwnedBy::Client => match side {
            Side::Client => of([src_hi, src_lo, protocol | sport]),
            Side::Server => of([dst_hi, dst_lo, protocol | dport]),
        },
    };
    ((hash >> 32) as usize * workers) >> 32
}

/// Finds the worker that a frame belongs to, for code that runs outside of workers: for frames that apps
/// send, and frames that are explained.
#[derive(Clone, Debug)]
pub struct Owners {
    /// How the worker that a frame belongs to is found, for each port.
    pub ports: Vec<Option<Owning>>,
    /// The program's NAT pools.
    pub pools: Vec<NatPool>,
    /// How deep frames are parsed.
    pub depth: Depth,
    /// The UDP ports of tunnels.
    pub tunnels: TunnelPorts,
    /// Whether fragments have the ports of their datagram.
    pub follows: bool,
    /// How flows are spread.
    pub steering: Steering,
    /// The number of workers.
    pub workers: usize,
}

impl Owners {
    /// Determines how the worker that a frame belongs to is found, given the program and the number of
    /// workers.
    #[must_use]
    pub fn new(program: &Program, steering: Steering, workers: usize) -> Owners {
        let (depth, tunnels, pools) = (program.depth(), program.tunnels, program.nat_pools.clone());
        let (ports, follows) = (owners(program).0, program.follows());
        Owners { ports, pools, depth, tunnels, follows, steering, workers }
    }

    /// Returns the same for another number of `workers`.
    #[must_use]
    pub fn among(&self, steering: Steering, workers: usize) -> Owners {
        Owners { steering, workers, ..self.clone() }
    }

    /// Returns the worker that a frame which claims to arrive on a port belongs to. This is the first worker
    /// for a frame without a flow. It is also the first worker where pipes must be looked through: that
    /// worker then finds the owner, see [`crate::worker::Probe`].
    #[must_use]
    pub fn worker(&self, input: PortId, frame: &[u8]) -> usize {
        let owner = match self.ports.get(input.index()) {
            Some(Some(Owning::Same(owner))) => Some(*owner),
            _ => None,
        };
        if owner.is_none() && !self.follows {
            return 0;
        }
        let mut headers = Headers::default();
        if parse_into(frame, self.depth, &self.tunnels, &mut headers).is_err() {
            return 0;
        }
        let spread = Spread { steering: &self.steering, workers: self.workers };
        let worker = if self.follows && fragment::is_of_ports(headers.outer()) {
            of_fragment(frame, &headers, spread)
        } else {
            owner.and_then(|owner| owner.of(frame, &headers, None, Side::Client, &self.pools, spread))
        };
        worker.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::{Depth, craft, parse};

    fn of(text: &str, source: KeySource, by: OwnedBy) -> usize {
        of_steered(text, source, by, TableHash::new([1, 2]).into(), 1 << 20)
    }

    fn of_steered(text: &str, source: KeySource, by: OwnedBy, steering: Steering, workers: usize) -> usize {
        let frame = craft::frame(text);
        let headers = parse(&frame, Depth::Inner).unwrap();
        let owner = Owner { source, by, nat: None };
        owner
            .of(&frame, &headers, None, Side::Client, &[], Spread { steering: &steering, workers })
            .expect("IP")
    }

    fn outer(text: &str, by: OwnedBy) -> usize {
        of(text, KeySource::Outer, by)
    }

    #[test]
    fn o2_both_is_the_same_for_both_directions_and_by_ports() {
        let there = outer("src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=8", OwnedBy::Both);
        assert_eq!(there, outer("src=10.0.0.2 dst=10.0.0.1 proto=udp sport=8 dport=7", OwnedBy::Both));
        assert_ne!(there, outer("src=10.0.0.2 dst=10.0.0.1 proto=udp sport=7 dport=8", OwnedBy::Both));
        assert_ne!(there, outer("src=10.0.0.1 dst=10.0.0.2 proto=tcp sport=7 dport=8", OwnedBy::Both));
        let there = outer("src=2001:db8::1 dst=2001:db8::2 proto=tcp sport=7 dport=8", OwnedBy::Both);
        assert_eq!(there, outer("src=2001:db8::2 dst=2001:db8::1 proto=tcp sport=8 dport=7", OwnedBy::Both));
    }

    #[test]
    fn o2_addresses_src_and_dst_are_those_of_the_words() {
        let whole = "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=8";
        let back = "src=10.0.0.2 dst=10.0.0.1 proto=tcp sport=1 dport=2";
        let fragment = "src=10.0.0.1 dst=10.0.0.2 frag=24 proto=udp payload=00";
        let from = "src=10.0.0.1 dst=10.0.0.9 proto=udp sport=9 dport=9";
        let all = |by| [whole, back, fragment, from].map(|text| outer(text, by));
        let same = |by, others: [bool; 3]| {
            let [first, rest @ ..] = all(by);
            assert_eq!(rest.map(|one| one == first), others, "{by:?}");
        };
        same(OwnedBy::Both, [false, false, false]);
        same(OwnedBy::Addresses, [true, true, false]);
        same(OwnedBy::Src, [false, true, true]);
        same(OwnedBy::Dst, [false, true, false]);
        let [to, back] = [outer(whole, OwnedBy::Src), outer(back, OwnedBy::Dst)];
        assert_eq!(to, back, "a host's outgoing flows are owned by src, their answers by dst");
    }

    #[test]
    fn o2_client_is_one_end_whatever_the_other_becomes() {
        let key = |src: [u8; 4], dst: [u8; 4], protocol, ports| {
            FlowKey::new(src.into(), dst.into(), protocol, ports, None)
        };
        let (client, vip, back_end) = ([10, 0, 0, 1], [192, 0, 2, 1], [10, 0, 1, 1]);
        let steering = TableHash::new([1, 2]).into();
        let spread = Spread { steering: &steering, workers: 1 << 20 };
        let of = |key, side| worker(OwnedBy::Client, &key, side, spread);
        let there = of(key(client, vip, 6, (4000, 80)), Side::Client);
        assert_eq!(there, of(key(back_end, client, 6, (8080, 4000)), Side::Server));
        assert_ne!(there, of(key(back_end, client, 6, (8080, 4000)), Side::Client));
        assert_ne!(there, of(key(client, vip, 17, (4000, 80)), Side::Client));
        assert_ne!(there, of(key(client, vip, 6, (4001, 80)), Side::Client));
    }

    #[test]
    fn where_nics_were_told_their_hash_picks_the_queue_in_both_directions() {
        let steering = Steering { rss_table: 128, ..TableHash::new([1, 2]).into() };
        let there = "src=10.0.0.1 dst=192.0.2.77 proto=udp sport=2794 dport=1766";
        let back = "src=192.0.2.77 dst=10.0.0.1 proto=udp sport=1766 dport=2794";
        let fragment = "src=10.0.0.1 dst=192.0.2.77 frag=24 proto=udp payload=00";
        for text in [there, back, fragment] {
            let frame = craft::frame(text);
            let headers = parse(&frame, Depth::L4).unwrap();
            let hash = rss_hash(&FlowKey::of(&frame, &headers, KeySource::Outer).unwrap());
            let worker = of_steered(text, KeySource::Outer, OwnedBy::Both, steering, 3);
            assert_eq!(worker, (hash % 128 % 3) as usize, "{text}");
            // Frames that a NIC does not hash go by the secret hash.
            let secret = of_steered(text, KeySource::Outer, OwnedBy::Src, TableHash::new([1, 2]).into(), 3);
            assert_eq!(of_steered(text, KeySource::Outer, OwnedBy::Src, steering, 3), secret);
        }
    }

    #[test]
    fn o3_inside_a_tunnel_the_id_has_no_part_and_without_one_the_outer_headers_count() {
        let plain = "src=10.0.0.1 dst=10.0.0.2 proto=udp sport=7 dport=8";
        let vxlan =
            |vni: u32| format!("src=1.1.1.1 dst=2.2.2.2 sport={} vni={vni} inner({plain})", vni & 0xff);
        let gre = format!("src=1.1.1.1 dst=2.2.2.2 tunnel=gre key=16777223 inner({plain})");
        let inner = |text: &str| of(text, KeySource::Inner, OwnedBy::Both);
        assert_eq!(inner(plain), outer(plain, OwnedBy::Both));
        for tunnelled in [vxlan(0), vxlan(7), vxlan(0xff_ffff), gre] {
            assert_eq!(inner(&tunnelled), inner(plain), "{tunnelled}");
        }
        assert_ne!(outer(&vxlan(7), OwnedBy::Both), outer(&vxlan(8), OwnedBy::Both));
    }
}
