//! Probes over IPv6: without extension headers, and with the flow label 0, which is the default of the
//! kernel's tunnels: a fabric that hashes the label sees the same label for all ports.
//!
//! Two things differ from IPv4. UDP has a checksum, because not every box on the path passes a checksum of 0
//! (RFC 6936), and the kernel's VXLAN has one by default. IPv6 has no identification with which a router's
//! message could be matched, so a request carries an identification in place of `arrived`, which only answers
//! need: routers quote as much of a packet as fits (RFC 4443, section 3.3).

use super::{
    Address, BODY_LENGTH, CE, ECT0, ETHERNET, Kind, Outer, Packet, PacketRefusal, Secret, UDP, VNI, bytes,
    may_be_long,
};
use crate::tunnel::{PROBE_HEADER, PathTunnel};
use std::net::Ipv6Addr;
use weir_packet::{Sum, checksum};

const IP: usize = 40;
const HEADER: usize = ETHERNET + IP + UDP;
const BODY: usize = HEADER + PROBE_HEADER;

/// Bytes of a probe and of an answer over IPv6.
pub const FRAME6: usize = BODY + BODY_LENGTH;

/// Bytes of a probe over IPv6 without the Ethernet header.
pub const DATAGRAM6: usize = FRAME6 - ETHERNET;

impl Address for Ipv6Addr {
    fn words(pair: [Ipv6Addr; 2]) -> Vec<u64> {
        pair.iter().flat_map(|address| [(address.to_bits() >> 64) as u64, address.to_bits() as u64]).collect()
    }
}

impl Packet<Ipv6Addr> {
    /// Returns the request as it is on the wire, with its identification in place of `arrived`.
    #[must_use]
    pub fn with_id(self) -> Packet<Ipv6Addr> {
        Packet { arrived: self.outer.id.into(), ..self }
    }

    /// Its bytes, without FCS.
    #[must_use]
    pub fn frame6(&self, secret: Secret) -> [u8; FRAME6] {
        let mut frame = [0; FRAME6];
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        let Outer { macs, source, destination, port, tunnel, dscp, marked, ttl, .. } = self.outer;
        let class = dscp << 2 | if marked { CE } else { ECT0 };
        let length = ((FRAME6 - ETHERNET - IP) as u16).to_be_bytes();
        put(0, macs.as_flattened());
        put(12, &[0x86, 0xdd, 0x60 | class >> 4, class << 4]);
        put(18, &length);
        put(20, &[17, ttl]);
        put(22, &source.octets());
        put(38, &destination.octets());
        put(54, &port.to_be_bytes());
        put(56, &tunnel.port.to_be_bytes());
        put(58, &length);
        put(HEADER, &tunnel.probe_header(VNI));
        put(BODY, &self.body(secret));
        complete(&mut frame);
        frame
    }

    /// The bytes of a request that is padded to this length from the IP header on, without FCS.
    #[must_use]
    pub fn padded6(&self, secret: Secret, length: u16) -> Vec<u8> {
        let length = length.max(DATAGRAM6 as u16);
        let mut frame = self.frame6(secret).to_vec();
        frame.resize(ETHERNET + usize::from(length), 0);
        let length = (length - IP as u16).to_be_bytes();
        frame[18..20].copy_from_slice(&length);
        frame[58..60].copy_from_slice(&length);
        complete(&mut frame);
        frame
    }

    /// Its bytes from the IP header on, for a socket that adds the rest.
    #[must_use]
    pub fn datagram6(&self, secret: Secret) -> [u8; DATAGRAM6] {
        let frame = self.frame6(secret);
        std::array::from_fn(|at| frame[ETHERNET + at])
    }

    /// Reads a frame without VLAN tags.
    ///
    /// # Errors
    /// The error says why the packet is rejected.
    pub fn read6(
        frame: &[u8],
        tunnel: PathTunnel,
        secret: Secret,
    ) -> Result<Packet<Ipv6Addr>, PacketRefusal> {
        if !may_be_long(frame, BODY) {
            return Err(PacketRefusal::Malformed);
        }
        let length = ((frame.len() - ETHERNET - IP) as u16).to_be_bytes();
        let class = frame[14] << 4 | frame[15] >> 4;
        let shape = frame[12..14] == [0x86, 0xdd]
            && frame[14] >> 4 == 6
            && frame[18..20] == length
            && frame[20] == 17
            && frame[58..60] == length
            && tunnel.is_probe_header(bytes(frame, HEADER), VNI)
            && checksum(covered(frame)) == 0;
        let outer = Outer {
            macs: [bytes(frame, 0), bytes(frame, 6)],
            source: Ipv6Addr::from(bytes(frame, 22)),
            destination: Ipv6Addr::from(bytes(frame, 38)),
            port: u16::from_be_bytes(bytes(frame, 54)),
            tunnel,
            dscp: class >> 2,
            marked: class & CE == CE,
            id: u16::from_be_bytes(bytes(frame, BODY + 22)),
            ttl: frame[21],
        };
        if !shape || frame[56..58] != tunnel.port.to_be_bytes() {
            return Err(PacketRefusal::Malformed);
        }
        let packet = Packet::read_body(outer, &bytes(frame, BODY), secret)?;
        let id = if packet.kind == Kind::Request { outer.id } else { 0 };
        Ok(Packet { outer: Outer { id, ..outer }, ..packet })
    }
}

/// The sum of everything that the UDP checksum covers: the pseudo header, and everything from the UDP header
/// on (RFC 8200, section 8.1).
fn covered(frame: &[u8]) -> Sum {
    let length = (frame.len() - ETHERNET - IP) as u16;
    Sum::default().bytes(&frame[22..]).word(17).word(length)
}

/// Writes the UDP checksum.
fn complete(frame: &mut [u8]) {
    frame[60..62].fill(0);
    let check = match checksum(covered(frame)) {
        0 => 0xffff,
        check => check,
    };
    frame[60..62].copy_from_slice(&check.to_be_bytes());
}

/// The identification of a request that a router has quoted, from the UDP header on.
#[must_use]
pub fn quoted_id(udp: &[u8]) -> Option<u16> {
    let at = UDP + PROBE_HEADER + 22;
    udp.get(at..)?.first_chunk().map(|two| u16::from_be_bytes(*two))
}

#[cfg(test)]
mod tests {
    use super::super::ProbeId;
    use super::*;

    const SECRET: Secret = Secret([7, 9]);

    fn request() -> Packet<Ipv6Addr> {
        let outer = Outer {
            macs: [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]],
            source: Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, 7),
            destination: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9),
            port: 50_000,
            tunnel: PathTunnel::VXLAN,
            dscp: 9,
            marked: false,
            id: 0x0203,
            ttl: 3,
        };
        Packet::request(outer, ProbeId { session: 7, number: 0x0102_0304 }, 5, 0).with_id()
    }

    #[test]
    fn what_is_written_is_read_and_answered() {
        let request = request();
        let frame = request.frame6(SECRET);
        assert_eq!((frame.len(), &frame[18..20]), (118, &[0, 64][..]));
        assert_eq!(Packet::read6(&frame, PathTunnel::VXLAN, SECRET), Ok(request));
        assert_eq!(quoted_id(&frame[54..]), Some(0x0203));
        let answer = Packet { marked: true, ..request.answer(50_001, 3, 9) };
        assert_eq!((answer.arrived, answer.outer.id, answer.outer.source), (3, 0, request.outer.destination));
        assert_eq!(Packet::read6(&answer.frame6(SECRET), PathTunnel::VXLAN, SECRET), Ok(answer));
    }

    #[test]
    fn a_request_may_be_padded_and_an_answer_may_not() {
        let request = request();
        for length in [DATAGRAM6 as u16, DATAGRAM6 as u16 + 1, 1500, 9000, u16::MAX] {
            let frame = request.padded6(SECRET, length);
            assert_eq!(frame.len(), ETHERNET + usize::from(length));
            assert_eq!(Packet::read6(&frame, PathTunnel::VXLAN, SECRET), Ok(request));
            let mut other = frame.clone();
            *other.last_mut().expect("a byte") ^= 0x40;
            assert!(
                Packet::read6(&other, PathTunnel::VXLAN, SECRET).is_err(),
                "the checksum covers the padding"
            );
            assert_eq!(
                Packet::read6(&frame[..frame.len() - 1], PathTunnel::VXLAN, SECRET),
                Err(PacketRefusal::Malformed)
            );
        }
        let answer = request.answer(50_001, 3, 9);
        assert_eq!(
            Packet::read6(&answer.padded6(SECRET, 1500), PathTunnel::VXLAN, SECRET),
            Err(PacketRefusal::Malformed)
        );
    }

    #[test]
    fn a_changed_bit_is_seen_and_what_is_cut_short_refused() {
        let frame = request().frame6(SECRET);
        for at in 12..FRAME6 {
            let mut other = frame;
            other[at] ^= 0x40;
            // The traffic class, flow label and hop limit are not covered.
            let says = [15, 16, 17, 21].contains(&at);
            assert_eq!(Packet::read6(&other, PathTunnel::VXLAN, SECRET).is_ok(), says, "byte {at}");
        }
        assert_eq!(Packet::read6(&frame, PathTunnel::VXLAN, Secret([7, 8])), Err(PacketRefusal::BadCookie));
        assert_eq!(
            Packet::read6(&frame[..FRAME6 - 1], PathTunnel::VXLAN, SECRET),
            Err(PacketRefusal::Malformed)
        );
        assert!((0..40).all(|length| quoted_id(&frame[54..][..length.min(39)]).is_none()));
    }
}
