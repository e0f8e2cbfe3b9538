//! The interpreter's own handling of lengths: sentences A21 and A22.

use super::action::Done;
use super::bytes::{TransportKind, number16};
use super::checksum::mend;
use super::packet::Packet;
use super::trace::Change;
use weir_packet::{DropReason, Field};

/// Refuses a packet that is longer than `most`; with `of_frame`, the frame's length counts, otherwise that of
/// the IP packet. Records the maximum length of such a packet.
pub(super) fn limit(packet: &mut Packet, most: u16, of_frame: bool) -> Done {
    let Some(ip) = &packet.headers.ip else { return Err(DropReason::NotApplicable) };
    let (bytes, start, most) = (&packet.bytes, ip.start, usize::from(most));
    let length = if of_frame { bytes.len() } else { ip.end - start };
    if length <= most {
        return Ok((Change::Fits { length, most }, Vec::new()));
    }
    let dont_fragment = ip.version == 6 || bytes[start + 6] / 0x40 % 2 == 1;
    if !dont_fragment {
        return Err(DropReason::NotFragmented);
    }
    packet.limit = Some(if of_frame { most.saturating_sub(start) } else { most } as u16);
    Err(DropReason::TooLong)
}

/// RFC 9293 §3.1 and §3.2: flags 13 bytes after the start of the TCP header, the second of which is SYN;
/// options after 20 bytes, up to the length in words of four bytes.
pub(super) fn clamp(packet: &mut Packet, most: u16) -> Done {
    let unchanged = Ok((Change::Nothing, Vec::new()));
    let Some(start) = packet.headers.transport_of(TransportKind::Tcp) else { return unchanged };
    let is_syn = packet.bytes[start + 13] / 2 % 2 == 1;
    let end = start + 4 * usize::from(packet.bytes[start + 12] / 16);
    let found = if is_syn { find_mss(&packet.bytes[..end], start + 20) } else { None };
    let Some((at, before)) = found.filter(|(_, before)| *before > most) else { return unchanged };
    let old = packet.bytes.clone();
    packet.bytes[at..at + 2].copy_from_slice(&most.to_be_bytes());
    // The same checksum covers the ports.
    let mended = mend(&old, &mut packet.bytes, &packet.headers, Field::TcpSport);
    Ok((Change::Mss { before, after: most }, mended))
}

/// Returns where the value of the first MSS option is, and the value. `header` ends with the options, which
/// begin at `first`.
fn find_mss(header: &[u8], first: usize) -> Option<(usize, u16)> {
    let mut at = first;
    while at < header.len() {
        match (header[at], header.get(at + 1)) {
            (0, _) | (_, None) => return None,
            (1, _) => at += 1,
            (2, Some(4)) => return number16(header, at + 2).map(|value| (at + 2, value)),
            (2, _) | (_, Some(0 | 1)) => return None,
            (_, Some(length)) => at += usize::from(*length),
        }
    }
    None
}
