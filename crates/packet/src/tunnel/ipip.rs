//! IP in IP: IPv4 (RFC 2003, RFC 2473) or IPv6 (RFC 4213, RFC 2473) after an IP header of either version,
//! without a header of its own. The outer protocol number determines which of the two it is.

use super::{Header, Inside, Unread};

pub(super) const fn read(_bytes: &[u8], protocol: u8) -> Result<Header, Unread> {
    Ok(Header { length: 0, id: None, inside: Inside::of_protocol(protocol) })
}

pub(super) const fn length(_extended: bool) -> usize {
    0
}

pub(super) const fn write(_place: &mut [u8], _id: Option<u32>) {}

pub(super) const fn carry(_place: &mut [u8], _inside: Inside) {}
