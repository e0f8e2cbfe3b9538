//! Recordings without Ethernet: the header in front of the IP packet, by the link type of the recording
//! (<https://www.tcpdump.org/linktypes.html>), is replaced with an Ethernet header, so that one parser reads
//! all packets.

use weir_packet::{ETHER_IPV4, ETHER_IPV6};

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// The smallest EtherType; smaller numbers are lengths, and in SLL frame types.
const ETHER_TYPE_LEAST: u16 = 0x600;
/// Hardware types whose frames have no EtherType in the SLL header: FRAD, GRE, 802.11 with radiotap, netlink.
const WITHOUT_ETHER_TYPE: [u16; 4] = [770, 778, 803, 824];

/// A link type whose packets can belong to flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Ethernet.
    Ethernet,
    /// An IP packet, with nothing before it.
    Raw,
    /// A BSD loopback: an address family of 4 bytes, in host or network byte order.
    Loopback,
    /// Linux's `any`, first version.
    Sll,
    /// Linux's `any`, second version.
    Sll2,
}

impl Link {
    /// Finds a link type by its number.
    #[must_use]
    pub fn of(number: u16) -> Option<Link> {
        match number {
            1 => Some(Link::Ethernet),
            // BSDs write 12 and 14 in place of 101; 228 and 229 each mean a single IP version.
            12 | 14 | 101 | 228 | 229 => Some(Link::Raw),
            0 | 108 => Some(Link::Loopback),
            113 => Some(Link::Sll),
            276 => Some(Link::Sll2),
            _ => None,
        }
    }

    /// Bytes in front of the packet.
    fn header(self) -> usize {
        match self {
            Link::Ethernet => ETHERNET,
            Link::Raw => 0,
            Link::Loopback => 4,
            Link::Sll => 16,
            Link::Sll2 => 20,
        }
    }

    /// Writes the recorded bytes into `frame`, with an Ethernet header instead of their own. Returns the
    /// length that the whole frame would have had.
    pub(crate) fn as_ethernet(self, bytes: &[u8], length: u32, frame: &mut Vec<u8>) -> u32 {
        frame.clear();
        let header = self.header();
        let length = length.saturating_sub(header as u32);
        let Some(packet) = bytes.get(header..).filter(|packet| !packet.is_empty()) else {
            // Nothing of the packet was recorded, if there was one.
            return length;
        };
        let number = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let (hardware, protocol) = match self {
            Link::Ethernet => (0, number(12)),
            Link::Raw | Link::Loopback => (0, by_version(packet)),
            Link::Sll => (number(2), number(14)),
            Link::Sll2 => (number(8), number(0)),
        };
        let is_ether_type = protocol >= ETHER_TYPE_LEAST && !WITHOUT_ETHER_TYPE.contains(&hardware);
        frame.extend([0; ETHERNET - 2]);
        frame.extend(if is_ether_type { protocol } else { 0 }.to_be_bytes());
        frame.extend_from_slice(packet);
        length.saturating_add(ETHERNET as u32)
    }
}

/// The EtherType for the version of an IP packet; 0 for none.
fn by_version(packet: &[u8]) -> u16 {
    match packet.first().map(|first| first >> 4) {
        Some(4) => ETHER_IPV4,
        Some(6) => ETHER_IPV6,
        _ => 0,
    }
}
