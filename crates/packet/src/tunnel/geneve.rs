//! Geneve, RFC 8926 §3.4: version 2, option length 6 (in words), O, C, reserved 6, protocol 16, VNI 24,
//! reserved 8; then options. Options are skipped and stay in the frame.

use super::{Header, Id, Inside, Unread};

/// Bytes of the header without options.
pub(super) const LENGTH: usize = 8;
/// The payload is a control message, which only tunnel endpoints may read.
const CONTROL: u8 = 0x80;

pub(super) fn read(bytes: &[u8], _protocol: u8) -> Result<Header, Unread> {
    let header: &[u8; LENGTH] = bytes.first_chunk().ok_or(Unread::Malformed)?;
    // Headers of an unknown version must not be interpreted.
    if header[0] >> 6 != 0 {
        return Err(Unread::Unknown);
    }
    let length = LENGTH + usize::from(header[0] & 0x3f) * 4;
    if bytes.len() < length {
        return Err(Unread::Malformed);
    }
    let protocol = u16::from_be_bytes([header[2], header[3]]);
    let inside = if header[1] & CONTROL == 0 { Inside::of_ether_type(protocol) } else { None };
    Ok(Header { length, id: Some(Id::vni(header)), inside })
}

pub(super) const fn length(_extended: bool) -> usize {
    LENGTH
}

pub(super) fn write(place: &mut [u8], id: Option<u32>) {
    place[4..8].copy_from_slice(&(id.unwrap_or(0) << 8).to_be_bytes());
}

pub(super) fn carry(place: &mut [u8], inside: Inside) {
    place[2..4].copy_from_slice(&inside.ether_type().to_be_bytes());
}
