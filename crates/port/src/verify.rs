//! Checks whether the checksums of a received frame are correct. weir updates checksums and never computes
//! one from scratch, so a wrong checksum is still wrong when the frame leaves. This module detects it.

use weir_packet::{Base, Depth, Layer, Level, Sum, parse, pseudo_header};

/// A checksum that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongChecksum {
    /// The header that contains it: `ipv4`, `tcp`, `udp`, `icmp`, `icmpv6`.
    pub header: &'static str,
    /// The checksum in the frame.
    pub found: u16,
    /// The correct checksum.
    pub expected: u16,
}

/// Returns the wrong checksums of a frame's outer IPv4 header and of its TCP, UDP or ICMP; packets inside
/// tunnels are not checked. The checksum of a fragment cannot be checked, because it covers the whole
/// datagram, and neither can that of a truncated frame.
#[must_use]
pub fn wrong_checksums(frame: &[u8]) -> [Option<WrongChecksum>; 2] {
    let Ok(headers) = parse(frame, Depth::L4) else { return [None; 2] };
    let level = headers.outer();
    let l3 = level.at(Base::L3);
    match ip_end(frame, level, l3) {
        Some(end) => [ipv4(frame, level, l3), transport(frame, level, (l3, end))],
        None => [None; 2],
    }
}

/// Where the IP packet ends; `None` without IP.
fn ip_end(frame: &[u8], level: &Level, l3: usize) -> Option<usize> {
    let length = if level.layers.has(Layer::Ipv4) {
        usize::from(be16(frame, l3 + 2)?)
    } else if level.layers.has(Layer::Ipv6) {
        40 + usize::from(be16(frame, l3 + 4)?)
    } else {
        return None;
    };
    Some(l3 + length).filter(|end| *end <= frame.len())
}

fn ipv4(frame: &[u8], level: &Level, l3: usize) -> Option<WrongChecksum> {
    if !level.layers.has(Layer::Ipv4) {
        return None;
    }
    let length = usize::from(frame.get(l3)? & 15) * 4;
    let sum = Sum::default().bytes(frame.get(l3..l3 + length)?);
    wrong("ipv4", sum, be16(frame, l3 + 10)?)
}

fn transport(frame: &[u8], level: &Level, (l3, end): (usize, usize)) -> Option<WrongChecksum> {
    let l4 = level.at(Base::L4);
    let segment = frame.get(l4..end)?;
    let has = |layer| level.layers.has(layer);
    if has(Layer::Fragment) {
        return None;
    }
    if has(Layer::Icmp) {
        return wrong("icmp", Sum::default().bytes(segment), be16(segment, 2)?);
    }
    let (header, at) = match (has(Layer::Tcp), has(Layer::Udp), has(Layer::Icmpv6)) {
        (true, ..) => ("tcp", 16),
        (_, true, _) => ("udp", 6),
        (.., true) => ("icmpv6", 2),
        (false, false, false) => return None,
    };
    let found = be16(segment, at)?;
    // A UDP datagram may be shorter than its packet, and 0 means that it has no checksum (RFC 768).
    let covered = if header == "udp" { segment.get(..usize::from(be16(segment, 4)?))? } else { segment };
    if header == "udp" && found == 0 {
        return None;
    }
    let addresses = if has(Layer::Ipv4) {
        frame.get(l3 + 12..l3 + 20)?
    } else {
        // Extension headers may name other endpoints of the path.
        (pseudo_header(frame, l3, l4) == [true; 2]).then(|| frame.get(l3 + 8..l3 + 40)).flatten()?
    };
    let pseudo = Sum::default().bytes(addresses).value32(covered.len() as u32).word(level.protocol.into());
    let wrong = wrong(header, pseudo.bytes(covered), found)?;
    let none = header == "udp" && wrong.expected == 0;
    Some(WrongChecksum { expected: if none { 0xffff } else { wrong.expected }, ..wrong })
}

/// Judges a checksum by the sum of all bytes that it covers, including its own.
fn wrong(header: &'static str, sum: Sum, found: u16) -> Option<WrongChecksum> {
    if sum.fold() == 0xffff {
        return None;
    }
    let expected = match !sum.word(!found).fold() {
        0xffff => 0,
        expected => expected,
    };
    Some(WrongChecksum { header, found, expected })
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_packet::craft::frame;

    /// Describes in words which checksums of a recipe's frame are wrong.
    fn said(recipe: &str) -> Vec<String> {
        let found = wrong_checksums(&frame(recipe));
        let say = |one: WrongChecksum| format!("{} {:04x} {:04x}", one.header, one.found, one.expected);
        found.into_iter().flatten().map(say).collect()
    }

    #[test]
    fn each_header_is_judged_and_the_right_value_is_told() {
        let packets = ["proto=udp", "proto=tcp", "proto=icmp", "proto=udp vlan=5 payload=010203"];
        let six = "src=2001:db8::1 dst=2001:db8::2";
        let packets = packets.map(str::to_string).into_iter();
        let six = ["proto=udp", "proto=tcp payload=01", "proto=icmpv6"].map(|proto| format!("{six} {proto}"));
        for packet in packets.chain(six) {
            assert_eq!(said(&packet), Vec::<String>::new(), "{packet}");
            let good = frame(&packet);
            let bad = frame(&format!("{packet} csum=bad"));
            let at = (0..good.len()).step_by(2).find(|at| good[*at..at + 2] != bad[*at..at + 2]).unwrap();
            let [None, Some(wrong)] = wrong_checksums(&bad) else { panic!("{packet}") };
            assert_eq!(Some(wrong.expected), be16(&good, at), "{packet}");
            assert_eq!(Some(wrong.found), be16(&bad, at), "{packet}");
            (0..bad.len()).for_each(|length| assert_eq!(wrong_checksums(&bad[..length]), [None; 2]));
        }
    }

    #[test]
    fn the_header_of_ipv4_has_its_own() {
        let good = frame("proto=udp");
        let expected = be16(&good, 24).unwrap();
        let bad = frame("proto=udp ip_csum=0x1234");
        let wrong = WrongChecksum { header: "ipv4", found: 0x1234, expected };
        assert_eq!(wrong_checksums(&bad), [Some(wrong), None]);
    }

    #[test]
    fn what_has_no_checksum_of_its_own_is_not_judged() {
        for packet in ["proto=udp csum=0", "arp=request", "proto=udp csum=bad frag=0+"] {
            assert_eq!(said(packet), Vec::<String>::new(), "{packet}");
        }
    }
}
