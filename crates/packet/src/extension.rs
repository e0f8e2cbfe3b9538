//! IPv6 extension headers: their lengths, and their effect on the pseudo-header of checksums.
//!
//! A checksum is computed for the endpoints of a path: its pseudo-header has the final destination and the
//! source's home address. While a packet is on a path given by a routing header, or if it comes from a mobile
//! node, its IPv6 header has other addresses.

/// Next header values (IANA).
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// Length of the IPv6 header, and the offset of its next-header field.
const IPV6: usize = 40;
const NEXT_HEADER: usize = 6;

/// Options (RFC 8200 §4.2, RFC 6275 §6.3) and the length of the home address.
const PAD_1: u8 = 0;
const HOME_ADDRESS: u8 = 201;
const ADDRESS: u8 = 16;

/// Returns the bytes of an extension header of this kind with this value in its length field.
#[inline(always)]
pub(crate) fn length(kind: u8, length: u8) -> usize {
    match kind {
        FRAGMENT => 8,                                   // RFC 8200 §4.5
        AUTHENTICATION => (usize::from(length) + 2) * 4, // RFC 4302 §2.2
        _ => (usize::from(length) + 1) * 8,              // RFC 8200 §4.3, §4.4, §4.6
    }
}

/// Returns whether the source and the destination address in the IPv6 header at `l3` are those of the
/// pseudo-header of the transport header at `l4`. The destination differs while a routing header has segments
/// left (RFC 8200 §8.1), and the source differs if there is a home address (RFC 6275 §11.3.1).
#[cold]
#[must_use]
pub fn pseudo_header(frame: &[u8], l3: usize, l4: usize) -> [bool; 2] {
    let (mut source, mut destination) = (true, true);
    let Some(&(mut kind)) = frame.get(l3 + NEXT_HEADER) else { return [source, destination] };
    let mut rest = frame.get(l3 + IPV6..l4).unwrap_or_default();
    while let [next, units, _, segments_left, ..] = *rest {
        let Some((header, behind)) = rest.split_at_checked(length(kind, units)) else { break };
        match kind {
            ROUTING if segments_left > 0 => destination = false,
            DESTINATION_OPTIONS if has_home_address(&header[2..]) => source = false,
            _ => {}
        }
        (kind, rest) = (next, behind);
    }
    [source, destination]
}

fn has_home_address(mut options: &[u8]) -> bool {
    while let [kind, behind @ ..] = options {
        options = match (*kind, behind) {
            (PAD_1, _) => behind,
            (HOME_ADDRESS, [ADDRESS, value @ ..]) if value.len() >= usize::from(ADDRESS) => return true,
            (_, [length, value @ ..]) => value.get(usize::from(*length)..).unwrap_or_default(),
            (_, []) => behind,
        };
    }
    false
}
