//! The contents of a flow record besides the numbers of packets and bytes.

use crate::flow_key::KeySource;
use crate::headers::{Base, Headers, Layer};

/// No target: the packets were not sent to a back end or a member.
pub const NO_TARGET_OBSERVED: u32 = u32::MAX;

/// Observations of one packet, or of several packets of one flow. Octets add up and TCP flags are collected;
/// everything else comes from the first packet (RFC 7012 section 2.1: a field that does not tell flows apart
/// has the value of the first packet).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Bytes of the IP packets, from the IP header to the end of the payload: without Ethernet header, VLAN
    /// tags and padding. For a flow inside a tunnel, of the inner packets.
    pub octets: u64,
    /// The target that the packet was sent to, if its flow is not pinned to one: numbered over all groups of
    /// the program, or [`NO_TARGET_OBSERVED`].
    pub target: u32,
    /// The number of the port that received the packet.
    pub input: u16,
    /// The generation of the program to which these numbers belong, modulo 256.
    pub generation: u8,
    /// The ID of the outermost VLAN tag; 0 without one.
    pub vlan: u16,
    /// Type and code of ICMP, in the upper and the lower half; 0 for other protocols.
    pub icmp: u16,
    /// The flags of all TCP headers; 0 for other protocols.
    pub flags: u8,
    /// IPv4's type of service or IPv6's traffic class.
    pub class: u8,
}

impl Default for Observed {
    fn default() -> Observed {
        let (target, input, generation) = (NO_TARGET_OBSERVED, 0, 0);
        Observed { octets: 0, target, input, generation, vlan: 0, icmp: 0, flags: 0, class: 0 }
    }
}

impl Observed {
    /// Reads the observations from a parsed frame. `source` names the headers that make up the flow's key;
    /// without IP, nothing is observed.
    #[inline]
    #[must_use]
    pub fn of(frame: &[u8], headers: &Headers, source: KeySource) -> Observed {
        let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
        let word = |at: usize| u16::from_be_bytes([byte(at), byte(at + 1)]);
        let (outer, level) = (headers.outer(), source.level(headers));
        let (l3, l4) = (level.at(Base::L3), level.at(Base::L4));
        let is_ipv4 = level.layers.has(Layer::Ipv4);
        if !is_ipv4 && !level.layers.has(Layer::Ipv6) {
            return Observed::default();
        }
        let is_icmp = level.layers.has(Layer::Icmp) || level.layers.has(Layer::Icmpv6);
        Observed {
            octets: if is_ipv4 { word(l3 + 2).into() } else { 40 + u64::from(word(l3 + 4)) },
            vlan: if outer.layers.has(Layer::Vlan) { word(14) & 0xfff } else { 0 },
            icmp: if is_icmp { word(l4) } else { 0 },
            flags: if level.layers.has(Layer::Tcp) { byte(l4 + 13) } else { 0 },
            class: if is_ipv4 { byte(l3 + 1) } else { (word(l3) >> 4) as u8 },
            ..Observed::default()
        }
    }

    /// Adds the observations of later packets.
    #[inline(always)]
    pub fn join(&mut self, later: &Observed) {
        self.octets += later.octets;
        self.flags |= later.flags;
    }

    /// Returns the same in three words; zeros mean that no packet was observed.
    #[inline(always)]
    #[must_use]
    pub fn words(&self) -> [u64; 3] {
        let Observed { octets, target, input, generation, vlan, icmp, flags, class } = *self;
        let numbers = u64::from(target.wrapping_add(1)) << 32 | u64::from(input) << 16 | u64::from(vlan);
        let read = u64::from(icmp) << 16 | u64::from(flags) << 8 | u64::from(class);
        [octets, numbers, u64::from(generation) << 32 | read]
    }

    /// Reads [`Observed::words`].
    #[inline(always)]
    #[must_use]
    pub fn from_words([octets, numbers, rest]: [u64; 3]) -> Observed {
        Observed {
            octets,
            target: ((numbers >> 32) as u32).wrapping_sub(1),
            input: (numbers >> 16) as u16,
            generation: (rest >> 32) as u8,
            vlan: numbers as u16,
            icmp: (rest >> 16) as u16,
            flags: (rest >> 8) as u8,
            class: rest as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::parse;
    use crate::{Depth, craft};

    fn of(text: &str, pad: usize) -> Observed {
        let mut frame = craft::frame(text);
        frame.resize(frame.len().max(pad), 0);
        let headers = parse(&frame, Depth::Inner).unwrap();
        Observed::of(&frame, &headers, KeySource::Inner)
    }

    #[test]
    fn octets_are_those_of_ip_whatever_is_around_it() {
        let tcp = "src=10.0.0.1 dst=10.0.0.2 proto=tcp flags=A len=54";
        assert_eq!(of(tcp, 54).octets, 40);
        assert_eq!(of(tcp, 60).octets, 40);
        let tagged = "src=10.0.0.1 dst=10.0.0.2 proto=udp vlan=5 len=1018";
        assert_eq!((of(tagged, 0).octets, of(tagged, 0).vlan), (1000, 5));
        let ipv6 = "src=2001:db8::1 dst=2001:db8::2 proto=udp len=100";
        assert_eq!((of(ipv6, 0).octets, of(ipv6, 130).octets), (86, 86));
        let inside = format!("src=1.1.1.1 dst=2.2.2.2 tunnel=vxlan vni=7 inner({tcp})");
        assert_eq!((of(&inside, 0).octets, of(&inside, 0).flags), (40, 16));
    }

    #[test]
    fn class_flags_and_icmp_are_read_from_the_key_s_headers() {
        let tcp = of("src=10.0.0.1 dst=10.0.0.2 proto=tcp flags=S dscp=46", 0);
        assert_eq!((tcp.flags, tcp.class, tcp.icmp), (2, 46 << 2, 0));
        let ipv6 = of("src=2001:db8::1 dst=2001:db8::2 proto=tcp flags=S dscp=10", 0);
        assert_eq!((ipv6.flags, ipv6.class), (2, 10 << 2));
        assert_eq!(of("src=10.0.0.1 dst=10.0.0.2 proto=icmp", 0).icmp, 8 << 8);
    }

    #[test]
    fn later_packets_add_octets_and_flags_and_words_say_it_all() {
        let of = |octets, flags, rest: u8| {
            let (target, input, vlan) = (rest.into(), rest.into(), rest.into());
            let (generation, icmp, class) = (rest, rest.into(), rest);
            Observed { octets, flags, target, input, generation, vlan, icmp, class }
        };
        let (mut sum, both) = (of(40, 2, 7), of(100, 18, 7));
        sum.join(&of(60, 16, 8));
        assert_eq!(sum, both);
        assert_eq!(Observed::from_words(both.words()), both);
        assert_eq!(
            (Observed::default().words(), Observed::from_words([0; 3])),
            ([0; 3], Observed::default())
        );
    }
}
