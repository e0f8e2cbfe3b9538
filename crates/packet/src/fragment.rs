//! Fragments of TCP and UDP datagrams: which datagram they belong to, and which part of it they are.
//!
//! Only the first fragment has ports. To treat all fragments of a datagram alike, remember its ports by
//! [`DatagramId`], which every fragment carries.

use crate::DropReason;
use crate::flow_key::addresses;
use crate::headers::{Base, Layer, Level};
use crate::parse::{PROTOCOL_TCP, PROTOCOL_UDP};

const IPV6: usize = 40;
/// The fragment header of IPv6 (RFC 8200 §4.5); parsing stops after it.
const FRAGMENT_HEADER: usize = 8;
const TCP_MIN: usize = 20;
const UDP: usize = 8;

/// Identifies the datagram of a fragment. All fragments of a datagram share this value, and no other datagram
/// of the same time does: addresses, protocol and identification (RFC 791 §3.2, RFC 8200 §4.5), and the VLANs
/// in which they arrive.
///
/// Source (two words), destination (two words), `identification << 32 | protocol << 24 | vid << 12 | second
/// vid`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatagramId(pub [u64; 5]);

/// Which part of a datagram a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentPart {
    /// The first fragment, with the first four bytes of its TCP or UDP header: both ports.
    First([u8; 4]),
    /// A later fragment.
    Later,
}

/// Returns true if the headers are those of a TCP or UDP fragment.
#[inline]
#[must_use]
pub fn is_of_ports(level: &Level) -> bool {
    level.layers.has(Layer::Fragment) && matches!(level.protocol, PROTOCOL_TCP | PROTOCOL_UDP)
}

/// Returns which part of its datagram a TCP or UDP fragment is.
///
/// # Errors
/// A first fragment must contain the whole header except options, and no TCP fragment may begin inside it:
/// otherwise ports and flags could be hidden, or overwritten at reassembly (RFC 1858 §3, RFC 7112 §5). The
/// drop reason is that of the header.
pub fn part(frame: &[u8], level: &Level) -> Result<FragmentPart, DropReason> {
    let is_tcp = level.protocol == PROTOCOL_TCP;
    let malformed = if is_tcp { DropReason::MalformedTcp } else { DropReason::MalformedUdp };
    let offset = offset(frame, level);
    if offset != 0 {
        let overlaps = is_tcp && offset < TCP_MIN;
        return if overlaps { Err(malformed) } else { Ok(FragmentPart::Later) };
    }
    let start = level.at(Base::L4);
    let segment = frame.get(start..end(frame, level)).unwrap_or_default();
    let is_whole = match is_tcp {
        true => segment.len() >= TCP_MIN && usize::from(segment[12] >> 4) * 4 >= TCP_MIN,
        false => segment.len() >= UDP && usize::from(be16(segment, 4)) >= UDP,
    };
    match segment.first_chunk() {
        Some(ports) if is_whole => Ok(FragmentPart::First(*ports)),
        _ => Err(malformed),
    }
}

/// Returns the datagram that a TCP or UDP fragment belongs to.
#[must_use]
pub fn datagram(frame: &[u8], level: &Level) -> Option<DatagramId> {
    let is_ipv4 = level.layers.has(Layer::Ipv4);
    let (l3, l4) = (level.at(Base::L3), level.at(Base::L4));
    let [src_hi, src_lo, dst_hi, dst_lo] = addresses(frame, l3, is_ipv4)?;
    let identification = match is_ipv4 {
        true => u32::from(be16(frame, l3 + 4)),
        false => u32::from_be_bytes(*frame.get(l4 - 4..)?.first_chunk()?),
    };
    let tag = |layer, at: usize| match level.layers.has(layer) {
        true => u64::from(be16(frame, level.at(Base::L2) + at) & 0xfff),
        false => 0,
    };
    let tags = tag(Layer::Vlan, 14) << 12 | tag(Layer::SecondVlan, 18);
    let last = u64::from(identification) << 32 | u64::from(level.protocol) << 24 | tags;
    Some(DatagramId([src_hi, src_lo, dst_hi, dst_lo, last]))
}

/// Returns the number of bytes of the datagram that precede a fragment.
#[must_use]
pub fn offset(frame: &[u8], level: &Level) -> usize {
    usize::from(match level.layers.has(Layer::Ipv4) {
        true => (be16(frame, level.at(Base::L3) + 6) & 0x1fff) << 3,
        false => be16(frame, (level.at(Base::L4) + 2).saturating_sub(FRAGMENT_HEADER)) & 0xfff8,
    })
}

/// Returns where the packet ends, according to the length in its IP header.
fn end(frame: &[u8], level: &Level) -> usize {
    let l3 = level.at(Base::L3);
    match level.layers.has(Layer::Ipv4) {
        true => l3 + usize::from(be16(frame, l3 + 2)),
        false => l3 + IPV6 + usize::from(be16(frame, l3 + 4)),
    }
}

/// The number at an offset; 0 beyond the end, which parsing has ruled out.
fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |pair| u16::from_be_bytes([pair[0], pair[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Depth, craft, parse};

    fn read(text: &str) -> (Result<FragmentPart, DropReason>, DatagramId) {
        let frame = craft::frame(text);
        let headers = parse(&frame, Depth::L4).unwrap();
        assert!(is_of_ports(headers.outer()), "{text}");
        (part(&frame, headers.outer()), datagram(&frame, headers.outer()).unwrap())
    }

    #[test]
    fn the_first_fragment_has_the_ports_and_all_have_the_datagram() {
        for (text, payload) in [
            ("src=10.0.0.1 dst=10.0.0.2 id=77", "proto=udp"),
            ("vlan=5.0 second_vlan=6.0 src=10.0.0.1 dst=10.0.0.2 options=2 id=77", "proto=tcp"),
            ("src=fd00::1 dst=fd00::2 ext=hbh id=0xabcdef01", "proto=udp"),
        ] {
            let (first, id) = read(&format!("{text} frag=0+ {payload} sport=258 dport=772"));
            assert_eq!(first, Ok(FragmentPart::First([1, 2, 3, 4])), "{text}");
            let (later, same) = read(&format!("{text} frag=1480+ {payload} payload=00"));
            assert_eq!((later, same), (Ok(FragmentPart::Later), id));
            let (_, other) = read(&format!("{} frag=1480 {payload} payload=00", text.replace("77", "78")));
            assert!(other != id || text.contains("fd00"));
        }
        let (_, tagged) = read("vlan=5.0 src=10.0.0.1 dst=10.0.0.2 frag=8 id=77 proto=udp payload=00");
        let (_, other) = read("vlan=6.0 src=10.0.0.1 dst=10.0.0.2 frag=8 id=77 proto=udp payload=00");
        assert_ne!(tagged, other, "a VLAN is a network of its own");
    }

    #[test]
    fn a_header_that_is_not_whole_in_the_first_fragment_is_malformed() {
        let tcp = "src=10.0.0.1 dst=10.0.0.2 frag=0+ proto=tcp sport=1 dport=2";
        let mut frame = craft::frame(tcp);
        let headers = parse(&frame, Depth::L4).unwrap();
        // The total length leaves 16 bytes for TCP.
        frame[17] = 36;
        assert_eq!(part(&frame, headers.outer()), Err(DropReason::MalformedTcp));
        for (text, reason) in [
            ("src=10.0.0.1 dst=10.0.0.2 frag=8 proto=tcp payload=0001", DropReason::MalformedTcp),
            ("src=10.0.0.1 dst=10.0.0.2 frag=16+ proto=tcp payload=0001", DropReason::MalformedTcp),
        ] {
            assert_eq!(read(text).0, Err(reason), "{text}");
        }
        assert_eq!(read("src=10.0.0.1 dst=10.0.0.2 frag=24 proto=tcp payload=00").0, Ok(FragmentPart::Later));
        assert_eq!(read("src=10.0.0.1 dst=10.0.0.2 frag=8 proto=udp payload=00").0, Ok(FragmentPart::Later));
    }
}
