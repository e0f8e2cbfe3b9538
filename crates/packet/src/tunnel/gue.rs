//! GUE, draft-ietf-intarea-gue-09. Header of variant 0: variant 2, C, header length 5 (in words, without the
//! first), protocol 8, flags 16; then optional fields, which are skipped. Variant 1 has no header: the IP
//! packet follows directly, and its version nibble doubles as the variant.

use super::{Header, Inside, Unread};

/// Bytes of a variant 0 header without optional fields, which is what Linux sends.
const LENGTH: usize = 4;
/// Set if the payload is a control message.
const CONTROL: u8 = 0x20;

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

pub(super) const fn length(_has_id: bool) -> usize {
    LENGTH
}

pub(super) const fn write(_place: &mut [u8], _id: Option<u32>) {}

pub(super) fn carry(place: &mut [u8], inside: Inside) {
    place[1] = inside.protocol();
}
