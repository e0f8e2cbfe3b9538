//! GRE, RFC 2784 §2 and RFC 2890 §2: C, R, K, S, reserved, version 3, protocol 16; then, each if its bit is
//! set, checksum 16 and reserved 16, key 32, sequence number 32.

use super::{Header, Id, Inside, Unread};

/// Bytes of the header without the optional fields.
const LENGTH: usize = 4;
const CHECKSUM: u16 = 0x8000;
const ROUTING: u16 = 0x4000;
const KEY: u16 = 0x2000;
const SEQUENCE: u16 = 0x1000;
const VERSION: u16 = 0x0007;

pub(super) fn read(bytes: &[u8], _protocol: u8) -> Result<Header, Unread> {
    let header: &[u8; LENGTH] = bytes.first_chunk().ok_or(Unread::Malformed)?;
    let [flags, protocol] = [0, 2].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    // Version 1 is PPTP's (RFC 2637); source routes (RFC 1701) carry their own length.
    if flags & (VERSION | ROUTING) != 0 {
        return Err(Unread::Unknown);
    }
    let word = |flag: u16| if flags & flag == 0 { 0 } else { 4 };
    let at = LENGTH + word(CHECKSUM);
    let length = at + word(KEY) + word(SEQUENCE);
    let header = bytes.get(..length).ok_or(Unread::Malformed)?;
    let key = header[at..].first_chunk().filter(|_| flags & KEY != 0);
    let id = key.map(|key| Id { at, value: u32::from_be_bytes(*key) });
    Ok(Header { length, id, inside: Inside::of_ether_type(protocol) })
}

pub(super) const fn length(extended: bool) -> usize {
    if extended { LENGTH + 4 } else { LENGTH }
}

pub(super) fn write(place: &mut [u8], id: Option<u32>) {
    if let Some(key) = id {
        place[..2].copy_from_slice(&KEY.to_be_bytes());
        place[4..8].copy_from_slice(&key.to_be_bytes());
    }
}

pub(super) fn carry(place: &mut [u8], inside: Inside) {
    place[2..4].copy_from_slice(&inside.ether_type().to_be_bytes());
}
