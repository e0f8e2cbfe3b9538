//! VXLAN, RFC 7348 §5: flags 8 (I is 0x08), reserved 24, VNI 24, reserved 8; then Ethernet.

use super::{Header, Id, Inside, Unread};

/// Bytes of the header.
pub(super) const LENGTH: usize = 8;

pub(super) fn read(bytes: &[u8], _protocol: u8) -> Result<Header, Unread> {
    let header: &[u8; LENGTH] = bytes.first_chunk().ok_or(Unread::Malformed)?;
    // Without the I flag there is no VNI.
    if header[0] & 0x08 == 0 {
        return Err(Unread::Malformed);
    }
    Ok(Header { length: LENGTH, id: Some(Id::vni(header)), inside: Some(Inside::Ethernet) })
}

pub(super) const fn length(_extended: bool) -> usize {
    LENGTH
}

pub(super) fn write(place: &mut [u8], id: Option<u32>) {
    place[0] = 0x08;
    place[4..8].copy_from_slice(&(id.unwrap_or(0) << 8).to_be_bytes());
}

pub(super) const fn carry(_place: &mut [u8], _inside: Inside) {}
