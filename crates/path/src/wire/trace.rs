//! Probes that must expire in transit, so that a router identifies itself. A router quotes the packet that it
//! dropped: at least the IP header and 8 bytes (RFC 792), and usually up to 576 bytes in total (RFC 1812,
//! section 4.3.2.3). An attacker who has not seen the probe must guess a cookie of 64 bits, which replaces
//! session and number; if the router quotes less, the attacker must guess the 12 bits of the cookie that are
//! in the identification, and the UDP checksum, which covers the whole cookie.
//!
//! Such a probe is as long as the others and takes the same path. No peer answers it, and no program stamps
//! it, which would change its checksum.

use super::{Address, Kind, NO_PATH, Outer, Packet, ProbeId, Secret};

impl<A: Address> Packet<A> {
    /// A probe that must expire, with a cookie.
    #[must_use]
    pub fn trace(outer: Outer<A>, cookie: u64) -> Packet<A> {
        let id = ProbeId { session: (cookie >> 32) as u32, number: cookie as u32 };
        Packet { kind: Kind::Trace, path: NO_PATH, ..Packet::request(outer, id, 0, 0) }
    }
}

/// The UDP checksum of the probe that leaves from this port with a cookie, regardless of its identification
/// and TTL.
#[must_use]
pub fn trace_checksum(outer: Outer, cookie: u64) -> u16 {
    let frame = Packet::trace(outer, cookie).frame(Secret::default());
    u16::from_be_bytes([frame[40], frame[41]])
}
