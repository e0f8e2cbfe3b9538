//! The frames and semantics in which Open vSwitch and weir differ, as docs/explanation/hardware.md lists
//! them: nothing else is left out of the comparison.

use weir_oracle::Walk;
use weir_packet::DropReason;
use weir_program::Operation;

/// An IP packet, as far as its extension headers.
struct IpPacket {
    /// Where the header begins in the frame, and where what it carries does.
    start: usize,
    payload: usize,
    protocol: u8,
    is_fragment: bool,
    is_later_fragment: bool,
    has_extensions: bool,
}

/// The number of tags, and the type or length behind them.
fn ether_type(bytes: &[u8]) -> (usize, Option<u16>) {
    let (mut at, mut tags) = (12, 0);
    while let Some(0x8100 | 0x88a8) = half(bytes, at) {
        (at, tags) = (at + 4, tags + 1);
    }
    (tags, half(bytes, at))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]))
}

impl IpPacket {
    fn of(bytes: &[u8]) -> Option<IpPacket> {
        let (tags, ether_type) = ether_type(bytes);
        let start = 14 + 4 * tags;
        match ether_type? {
            0x0800 => {
                let [first, .., protocol] = bytes.get(start..start + 10)? else { return None };
                let fragment = half(bytes, start + 6)?;
                Some(IpPacket {
                    start,
                    payload: start + usize::from(first & 15) * 4,
                    protocol: *protocol,
                    is_fragment: fragment & 0x3fff != 0,
                    is_later_fragment: fragment & 0x1fff != 0,
                    has_extensions: false,
                })
            }
            0x86dd => {
                let mut ip = IpPacket {
                    start,
                    payload: start + 40,
                    protocol: *bytes.get(start + 6)?,
                    is_fragment: false,
                    is_later_fragment: false,
                    has_extensions: false,
                };
                while [0, 43, 44, 51, 60].contains(&ip.protocol) && !ip.is_later_fragment {
                    let [next, length] = *bytes.get(ip.payload..ip.payload + 2)? else { return None };
                    let size = match ip.protocol {
                        44 => 8,
                        51 => (usize::from(length) + 2) * 4,
                        _ => (usize::from(length) + 1) * 8,
                    };
                    if ip.protocol == 44 {
                        // Also an atomic fragment, which weir takes for a whole packet.
                        ip.is_fragment = true;
                        ip.is_later_fragment = half(bytes, ip.payload + 2)? & 0xfff8 != 0;
                    }
                    (ip.protocol, ip.payload, ip.has_extensions) = (next, ip.payload + size, true);
                }
                Some(ip)
            }
            _ => None,
        }
    }

    /// Where the checksum of what it carries may be.
    fn checksum_at(&self) -> Option<usize> {
        let place = match self.protocol {
            6 => 16,
            17 | 33 | 112 | 136 => 6,
            58 | 103 => 2,
            89 => 12,
            135 | 139 => 4,
            _ => return None,
        };
        Some(self.payload + place)
    }
}

/// What a frame meets on its ways through a program.
pub struct MetOnTheWay {
    /// How many tags it has at most.
    tags: usize,
    /// Whether an operation is carried out.
    is_changed: bool,
}

impl MetOnTheWay {
    pub fn new(bytes: &[u8]) -> MetOnTheWay {
        MetOnTheWay { tags: ether_type(bytes).0, is_changed: false }
    }

    /// Adds one way.
    pub fn follow(&mut self, bytes: &[u8], walk: &Walk) {
        let mut tags = ether_type(bytes).0;
        for performed in walk.trace.iter().flat_map(|step| &step.operations) {
            match performed.operation {
                Operation::PushVlan { .. } => tags += 1,
                Operation::PopVlan => tags = tags.saturating_sub(1),
                _ => self.is_changed = true,
            }
            self.tags = self.tags.max(tags);
        }
    }
}

/// The difference that a frame meets in some programs, of which `compiled` are the flows.
pub fn not_promised(bytes: &[u8], met: &MetOnTheWay, compiled: &str) -> Option<&'static str> {
    if ether_type(bytes).1.is_some_and(|length| length < 0x600) {
        return Some("a length instead of a type");
    }
    if met.tags > 2 {
        return Some("a third tag");
    }
    let ip = IpPacket::of(bytes)?;
    if met.is_changed && ip.protocol == 0 {
        return Some("a change of IPv4 with protocol 0");
    }
    let asks = compiled.contains("nw_proto=");
    (asks && ip.has_extensions && ip.is_later_fragment).then_some("the protocol of a later IPv6 fragment")
}

/// The difference between two frames that should be the same, if it is a documented one: a checksum.
pub fn of_checksums(wanted: &[u8], sent: &[u8]) -> Option<&'static str> {
    let ip = IpPacket::of(wanted)?;
    if wanted.len() != sent.len() {
        return None;
    }
    let (mut wanted, mut sent) = (wanted.to_vec(), sent.to_vec());
    let mut what = None;
    for at in [Some(ip.start + 10).filter(|_| ip.start + 20 <= ip.payload), ip.checksum_at()] {
        let Some(at) = at else { continue };
        let both = [half(&wanted, at), half(&sent, at)];
        let [Some(one), Some(other)] = both else { continue };
        if one == other {
            continue;
        }
        what = Some(match [one, other] {
            [0, 0xffff] | [0xffff, 0] => "a checksum of 0, written as 0xffff",
            _ if at < ip.payload => return None,
            _ if ip.is_fragment => "the checksum of a fragment",
            _ if ip.has_extensions => "a checksum behind extension headers",
            _ if ![6, 17, 58].contains(&ip.protocol) => "a checksum that Open vSwitch does not know",
            _ => return None,
        });
        wanted[at..at + 2].fill(0);
        sent[at..at + 2].fill(0);
    }
    what.filter(|_| wanted == sent)
}

/// Whether weir drops a frame for its headers; what Open vSwitch does with it is not promised.
pub fn is_malformed(reason: DropReason) -> bool {
    let name = reason.as_str();
    name.starts_with("malformed") || ["ipv4_length_zero", "too_many_extension_headers"].contains(&name)
}
