//! Messages and attributes as bytes (linux/netlink.h).

use super::{AF_INET, AF_INET6};
use std::net::IpAddr;

/// The object may be created.
pub const NLM_F_CREATE: u16 = 0x400;
/// An existing object may be replaced.
pub const NLM_F_REPLACE: u16 = 0x100;
/// An existing object must not be replaced.
pub const NLM_F_EXCL: u16 = 0x200;
/// The object goes behind the existing ones.
pub const NLM_F_APPEND: u16 = 0x800;

/// The kernel acknowledges the request.
pub const NLM_F_ACK: u16 = 4;

pub(crate) const NLM_F_REQUEST: u16 = 1;
pub(crate) const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;

const NLA_F_NESTED: u16 = 1 << 15;
/// The upper two bits of an attribute's type say how the value is encoded.
const NLA_TYPE_MASK: u16 = 0x3fff;
/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `struct nlattr`.
const ATTRIBUTE: usize = 4;

/// A request: its type, its flags, and its body, which is the header of its family and attributes.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The type of the message.
    pub kind: u16,
    /// `NLM_F_*` flags, except those that the sending function adds.
    pub flags: u16,
    /// What follows `struct nlmsghdr`.
    pub body: &'a [u8],
}

impl Request<'_> {
    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = ((HEADER + self.body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend((self.flags | NLM_F_REQUEST).to_ne_bytes());
        // Sequence number and sender, which the kernel fills in for a socket with one request at a time.
        bytes.extend([0; 8]);
        bytes.extend(self.body);
        bytes
    }
}

/// Iterates over the types and bodies of the messages in a datagram.
pub fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = rest.get(..HEADER)?;
        let length = word(head) as usize;
        let body = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([head[4], head[5]]), body))
    })
}

/// Iterates over attributes: their types and values.
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(rest.get(0..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(rest.get(2..4)?.try_into().ok()?);
        let value = rest.get(ATTRIBUTE..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & NLA_TYPE_MASK, value))
    })
}

/// Returns the value of the first attribute of a type.
#[must_use]
pub fn find(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// Encodes an attribute.
#[must_use]
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((ATTRIBUTE + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Encodes an attribute whose value consists of attributes.
#[must_use]
pub fn nested(kind: u16, values: &[Vec<u8>]) -> Vec<u8> {
    attribute(kind | NLA_F_NESTED, &values.concat())
}

/// Returns a value as a number; 0 if the value is too short.
#[must_use]
pub fn word(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

/// Returns a value as text.
#[must_use]
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).trim_end_matches('\0').to_owned()
}

/// Returns a value as an IP address.
#[must_use]
pub fn read_ip(value: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(value).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from)).ok()
}

/// Returns the family and the bytes of an IP address.
pub(crate) fn family_and_octets(address: IpAddr) -> (u8, Vec<u8>) {
    match address {
        IpAddr::V4(address) => (AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (AF_INET6, address.octets().to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_with_a_wrong_length_end_the_walk() {
        assert_eq!(attributes(&[8, 0, 4, 0, 220, 5, 0, 0]).collect::<Vec<_>>(), [(4, &[220, 5, 0, 0][..])]);
        for broken in [&[0, 0, 1, 0][..], &[9, 0, 1, 0, 1, 2, 3, 4], &[4], &[]] {
            assert_eq!(attributes(broken).count(), 0);
        }
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_a_wrong_length_ends_the_walk() {
        let body = nested(7, &[attribute(1, b"eth0\0"), attribute(2, &[1, 2])]);
        let one = Request { kind: 16, flags: NLM_F_CREATE, body: &body }.encode();
        let two = [&one[..], &one].concat();
        assert_eq!(messages(&two).collect::<Vec<_>>(), [(16, &body[..]); 2]);
        let inner = find(&body, 7).unwrap();
        assert_eq!((find(inner, 1).map(text), find(inner, 2)), (Some("eth0".into()), Some(&[1, 2][..])));
        for length in 0..one.len() {
            assert_eq!(messages(&two[..length]).count(), 0, "{length}");
        }
        assert_eq!(messages(&[0; 64]).count(), 0);
    }
}
