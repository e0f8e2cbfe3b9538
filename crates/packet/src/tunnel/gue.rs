//! GUE, draft-ietf-intarea-gue-09. Header of variant 0: variant 2, C, header length 5 (in words, without the
//! first), protocol 8, flags 16; then optional fields, which are skipped. Variant 1 has no header: the IP
//! packet follows directly, and its version nibble doubles as the variant.

use super::{Header, Inside, Unread};

/// Bytes of a variant 0 header without optional fields, which is what Linux sends.
const LENGTH: usize = 4;
/// Set if the payload is a control message.
const CONTROL: u8 = 0x20;
/// Length of the GLB director's private data with one hop: type 16, which is 0, index of the next hop 8,
/// number of hops 8, and an IPv4 address for each
/// (github.com/github/glb-director/docs/development/gue-header.md).
const SECOND_CHANCE: usize = 8;
/// Where the number of hops is.
const HOPS: usize = LENGTH + 3;

pub(super) fn read(bytes: &[u8], _protocol: u8) -> Result<Header, Unread> {
    let first = *bytes.first().ok_or(Unread::Malformed)?;
    match first >> 4 {
        0..=3 => variant_0(bytes, first),
        4 => Ok(Header { length: 0, id: None, inside: Some(Inside::Ipv4) }),
        6 => Ok(Header { length: 0, id: None, inside: Some(Inside::Ipv6) }),
        _ => Err(Unread::Unknown),
    }
}

fn variant_0(bytes: &[u8], first: u8) -> Result<Header, Unread> {
    let length = LENGTH + usize::from(first & 0x1f) * 4;
    let header = bytes.get(..length).ok_or(Unread::Malformed)?;
    let inside = if first & CONTROL == 0 { Inside::of_protocol(header[1]) } else { None };
    Ok(Header { length, id: None, inside })
}

pub(super) const fn length(extended: bool) -> usize {
    if extended { LENGTH + SECOND_CHANCE } else { LENGTH }
}

/// With any `id`, the header has room for a second chance, which [`second_chance`] fills in.
pub(super) fn write(place: &mut [u8], id: Option<u32>) {
    if id.is_some() {
        place[0] = (SECOND_CHANCE / 4) as u8;
    }
}

/// Fills in the address of a packet's second chance. A header without room for it stays unchanged.
#[inline]
pub(super) fn second_chance(place: &mut [u8], hop: u32) {
    if let Some(place) = place.get_mut(HOPS..LENGTH + SECOND_CHANCE) {
        place[0] = 1;
        place[1..].copy_from_slice(&hop.to_be_bytes());
    }
}

pub(super) fn carry(place: &mut [u8], inside: Inside) {
    place[1] = inside.protocol();
}
