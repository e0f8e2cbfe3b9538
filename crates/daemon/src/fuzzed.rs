//! Parsers inside the daemon, for fuzzers: their input comes from the kernel or from another process.

use super::takeover;
use weir_app::kind::Kind;
use weir_netlink::messages;

/// Parses a netlink datagram, and every body in it, as each of the daemon's threads does. Bytes without a
/// whole message are parsed as a body.
pub fn netlink(datagram: &[u8]) {
    let mut bodies = 0;
    for (kind, body) in messages(datagram) {
        weir_netlink::parse_all(kind, body);
        bodies += 1;
    }
    if bodies == 0
        && let Some((kind, body)) = datagram.split_first_chunk()
    {
        weir_netlink::parse_all(u16::from_ne_bytes(*kind), body);
    }
}

/// Parses a message of a takeover between daemons with these kinds of apps: a JSON object, and bytes.
pub fn takeover_message(kinds: &[Kind], head: &[u8], bytes: &[u8]) {
    takeover::read(kinds, head, bytes);
}
