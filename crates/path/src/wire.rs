//! The wire format of probes, starting with the Ethernet header.
//!
//! A probe is a packet of the same tunnels as data, so that routers treat it the same: IPv4 without options,
//! or IPv6 (`six`), UDP whose source port selects the path, and a tunnel header: VXLAN (RFC 7348 §5) or
//! Geneve (RFC 8926 §3.4) with a VNI that no overlay should use, or a control message of GUE with that VNI as
//! its private data. Each of these headers has 8 bytes ([`PathTunnel`]). These fields follow it, in network
//! byte order:
//!
//! ```text
//!   0      4      5    6      7      8         12       16     18     19
//!   magic  kind   CE   hops   turn   session   number   port   path   zero
//!
//!   20       24         32              40     48
//!   arrived  sent, ns   reflected, ns   cookie
//! ```
//!
//! A request may be padded with zeros after its cookie, to test whether large frames pass. An answer is never
//! padded, so it is at most as long as its probe, and a reflector cannot amplify. An answer repeats session,
//! number, port, path and `sent`, and adds the reflector's clock, whether the probe arrived marked, the TTL
//! with which it arrived, and how many probes of that path have arrived in this session, which distinguishes
//! losses on the way there from losses on the way back. The cookie is SipHash-2-4 of both addresses and all
//! these fields, keyed with a secret of the fabric; a request's cookie does not cover `sent`, because a
//! program at the interface may write that timestamp after the cookie was computed.
//!
//! A probe that must expire in transit (`trace`) has kind 3, a cookie of its survey in place of session and
//! number, and a UDP checksum.
//!
//! `bpf/maps.h` has the same layout for the kernel's data plane, and a test compares it with the bytes
//! written here.

mod six;
mod trace;

pub use six::{DATAGRAM6, FRAME6, quoted_id};
pub use trace::trace_checksum;

use crate::tunnel::{PROBE_HEADER, PathTunnel};
use std::net::Ipv4Addr;
use weir_packet::{Sum, checksum};

/// The VNI of probes: the highest one.
pub const VNI: u32 = 0xff_ffff;

/// Bytes of a probe and of an answer.
pub const FRAME: usize = BODY + BODY_LENGTH;

/// Bytes of a probe without the Ethernet header.
pub const DATAGRAM: usize = FRAME - ETHERNET;

/// The path of a probe that belongs to none, such as a survey's.
pub const NO_PATH: u8 = 255;

const ETHERNET: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
const HEADER: usize = ETHERNET + IP + UDP;
const BODY: usize = HEADER + PROBE_HEADER;
const BODY_LENGTH: usize = 48;
const MAGIC: &[u8; 4] = b"wpr2";
const TTL: u8 = 64;
/// ECN-capable, so that a marking queue marks it instead of dropping it; and the marked value.
const ECT0: u8 = 2;
const CE: u8 = 3;

/// Authenticates probes: only senders who know it are answered.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret(pub [u64; 2]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A probe.
    Request = 1,
    /// The answer to a probe.
    Answer = 2,
    /// A probe that must expire in transit (`trace`).
    Trace = 3,
}

/// An underlay address, IPv4 or IPv6.
pub trait Address: Copy {
    /// The words of source and destination that the cookie covers.
    fn words(pair: [Self; 2]) -> Vec<u64>;
}

impl Address for Ipv4Addr {
    fn words([source, destination]: [Ipv4Addr; 2]) -> Vec<u64> {
        vec![u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits())]
    }
}

/// The outer headers of a probe or an answer: Ethernet, IP and UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer<A = Ipv4Addr> {
    /// MAC addresses: destination, source.
    pub macs: [[u8; 6]; 2],
    /// The underlay address of the sender.
    pub source: A,
    /// The underlay address of the receiver.
    pub destination: A,
    /// The UDP source port, which selects the path.
    pub port: u16,
    /// The tunnels whose packets the probe looks like.
    pub tunnel: PathTunnel,
    /// The DSCP, 0 to 63.
    pub dscp: u8,
    /// Whether the packet is marked (CE).
    pub marked: bool,
    /// The IP identification, which routers quote; IPv6 has none, so the probe itself carries it.
    pub id: u16,
    /// The TTL, or the hop limit of IPv6. A small one makes a router on the path report itself.
    pub ttl: u8,
}

impl<A> Outer<A> {
    /// The outer headers of a packet, in which all other fields have defaults.
    #[must_use]
    pub fn between(source: A, destination: A, port: u16, tunnel: PathTunnel) -> Outer<A> {
        let macs = [[0; 6]; 2];
        Outer { macs, source, destination, port, tunnel, dscp: 0, marked: false, id: 0, ttl: TTL }
    }
}

/// A probe, or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<A = Ipv4Addr> {
    /// The outer headers.
    pub outer: Outer<A>,
    /// Which it is.
    pub kind: Kind,
    /// In an answer: whether the probe arrived marked.
    pub marked: bool,
    /// In an answer: the TTL with which the probe arrived.
    pub hops: u8,
    /// Successive probes of a path have successive turns: their answers come back along different paths.
    pub turn: u8,
    /// The session of its sender, which begins when the sender starts; later sessions have larger numbers.
    pub session: u32,
    /// Increases within a session, but probes of different paths may overtake each other.
    pub number: u32,
    /// The source port from which the probe left.
    pub port: u16,
    /// The number of its path at its sender, among those over all uplinks; [`NO_PATH`] if it belongs to none.
    pub path: u8,
    /// In an answer: probes of that path that have arrived in this session, including this one.
    pub arrived: u32,
    /// When the probe left, by its sender's clock, ns.
    pub sent_ns: u64,
    /// In an answer: when the probe arrived, by the reflector's clock, ns.
    pub reflected_ns: u64,
}

/// Why a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketRefusal {
    /// Its length or layout is wrong.
    Malformed,
    /// Its cookie does not match the secret.
    BadCookie,
}

/// What identifies a probe among those of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeId {
    /// Its session, which begins when the node starts.
    pub session: u32,
    /// Its number in the session.
    pub number: u32,
}

impl<A: Address> Packet<A> {
    /// A request that belongs to no path, with the source port of `outer`, whose other fields are as on the
    /// wire.
    #[must_use]
    pub fn request(outer: Outer<A>, id: ProbeId, turn: u8, sent_ns: u64) -> Packet<A> {
        Packet {
            outer,
            kind: Kind::Request,
            marked: false,
            hops: 0,
            turn,
            session: id.session,
            number: id.number,
            port: outer.port,
            path: NO_PATH,
            arrived: 0,
            sent_ns,
            reflected_ns: 0,
        }
    }

    /// The answer to the request, from a port; `arrived` probes of the request's path have arrived.
    #[must_use]
    pub fn answer(&self, port: u16, arrived: u32, now_ns: u64) -> Packet<A> {
        let Outer { macs: [to, from], source, destination, .. } = self.outer;
        let outer = Outer {
            macs: [from, to],
            source: destination,
            destination: source,
            port,
            marked: false,
            id: 0,
            ttl: TTL,
            ..self.outer
        };
        let (marked, hops) = (self.outer.marked, self.outer.ttl);
        Packet { outer, kind: Kind::Answer, marked, hops, arrived, reflected_ns: now_ns, ..*self }
    }

    /// The bytes that follow the tunnel header.
    fn body(&self, secret: Secret) -> [u8; BODY_LENGTH] {
        let mut body = [0; BODY_LENGTH];
        let mut put = |at: usize, bytes: &[u8]| body[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(4, &[self.kind as u8, u8::from(self.marked), self.hops, self.turn]);
        put(8, &self.session.to_be_bytes());
        put(12, &self.number.to_be_bytes());
        put(16, &self.port.to_be_bytes());
        put(18, &[self.path, 0]);
        put(20, &self.arrived.to_be_bytes());
        put(24, &self.sent_ns.to_be_bytes());
        put(32, &self.reflected_ns.to_be_bytes());
        put(40, &self.cookie(secret).to_be_bytes());
        body
    }

    /// Reads what `body` writes, and checks its cookie.
    fn read_body(
        outer: Outer<A>,
        body: &[u8; BODY_LENGTH],
        secret: Secret,
    ) -> Result<Packet<A>, PacketRefusal> {
        let [kind, marked, hops, turn] = bytes(body, 4);
        let kind = match kind {
            1 => Kind::Request,
            2 => Kind::Answer,
            3 => Kind::Trace,
            _ => return Err(PacketRefusal::Malformed),
        };
        if body[..4] != *MAGIC || marked > 1 {
            return Err(PacketRefusal::Malformed);
        }
        let packet = Packet {
            outer,
            kind,
            marked: marked == 1,
            hops,
            turn,
            session: u32::from_be_bytes(bytes(body, 8)),
            number: u32::from_be_bytes(bytes(body, 12)),
            port: u16::from_be_bytes(bytes(body, 16)),
            path: body[18],
            arrived: u32::from_be_bytes(bytes(body, 20)),
            sent_ns: u64::from_be_bytes(bytes(body, 24)),
            reflected_ns: u64::from_be_bytes(bytes(body, 32)),
        };
        let cookie = u64::from_be_bytes(bytes(body, 40));
        if cookie == packet.cookie(secret) { Ok(packet) } else { Err(PacketRefusal::BadCookie) }
    }

    fn cookie(&self, secret: Secret) -> u64 {
        let Outer { source, destination, .. } = self.outer;
        let flags = [self.kind as u8, u8::from(self.marked), self.hops, self.turn];
        let sent_ns = if self.kind == Kind::Answer { self.sent_ns } else { 0 };
        let mut words = A::words([source, destination]);
        words.extend([
            u64::from(u32::from_be_bytes(flags)) << 32 | u64::from(self.port),
            u64::from(self.session) << 32 | u64::from(self.number),
            u64::from(self.arrived) << 32 | u64::from(self.path),
            sent_ns,
            self.reflected_ns,
        ]);
        // Probes that must expire are meant for routers, and are authenticated by the part that routers
        // quote.
        siphash(if self.kind == Kind::Trace { Secret::default() } else { secret }, &words)
    }
}

impl Packet {
    /// Its bytes, without FCS.
    #[must_use]
    pub fn frame(&self, secret: Secret) -> [u8; FRAME] {
        let mut frame = [0; FRAME];
        let mut put = |at: usize, bytes: &[u8]| frame[at..at + bytes.len()].copy_from_slice(bytes);
        let Outer { macs, source, destination, port, tunnel, dscp, marked, id, ttl } = self.outer;
        put(0, macs.as_flattened());
        put(12, &[8, 0, 0x45, dscp << 2 | if marked { CE } else { ECT0 }]);
        put(16, &((FRAME - ETHERNET) as u16).to_be_bytes());
        put(18, &id.to_be_bytes());
        // Packets in a tunnel must not be fragmented.
        put(20, &[0x40, 0, ttl, 17]);
        put(26, &source.octets());
        put(30, &destination.octets());
        put(34, &port.to_be_bytes());
        put(36, &tunnel.port.to_be_bytes());
        put(38, &((FRAME - ETHERNET - IP) as u16).to_be_bytes());
        put(HEADER, &tunnel.probe_header(VNI));
        put(BODY, &self.body(secret));
        let sum = checksum(Sum::default().bytes(&frame[ETHERNET..ETHERNET + IP]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        if self.kind == Kind::Trace {
            let sum =
                checksum(Sum::default().bytes(&frame[26..]).word(17).word((FRAME - ETHERNET - IP) as u16));
            frame[40..42].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
        }
        frame
    }

    /// Its bytes from the IP header on, for a socket that adds the rest.
    #[must_use]
    pub fn datagram(&self, secret: Secret) -> [u8; DATAGRAM] {
        let frame = self.frame(secret);
        std::array::from_fn(|at| frame[ETHERNET + at])
    }

    /// The bytes of a request that is padded to this length from the IP header on, without FCS.
    #[must_use]
    pub fn padded(&self, secret: Secret, length: u16) -> Vec<u8> {
        let length = length.max(DATAGRAM as u16);
        let mut frame = self.frame(secret).to_vec();
        frame.resize(ETHERNET + usize::from(length), 0);
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        frame[38..40].copy_from_slice(&(length - IP as u16).to_be_bytes());
        frame[24..26].fill(0);
        let sum = checksum(Sum::default().bytes(&frame[ETHERNET..ETHERNET + IP]));
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    }

    /// Reads a frame without VLAN tags.
    ///
    /// # Errors
    /// The error says why the packet is rejected.
    pub fn read(frame: &[u8], tunnel: PathTunnel, secret: Secret) -> Result<Packet, PacketRefusal> {
        if !may_be_long(frame, BODY) {
            return Err(PacketRefusal::Malformed);
        }
        let [tos, long, longer] = [frame[15], 16, 38].map(usize::from);
        let length = |at: usize| usize::from(u16::from_be_bytes(bytes(frame, at)));
        let shape = frame[12..15] == [8, 0, 0x45]
            && length(long) == frame.len() - ETHERNET
            && length(longer) == frame.len() - ETHERNET - IP
            && frame[20] & 0x3f == 0
            && frame[21] == 0
            && frame[23] == 17
            && tunnel.is_probe_header(bytes(frame, HEADER), VNI);
        let outer = Outer {
            macs: [bytes(frame, 0), bytes(frame, 6)],
            source: Ipv4Addr::from(bytes(frame, 26)),
            destination: Ipv4Addr::from(bytes(frame, 30)),
            port: u16::from_be_bytes(bytes(frame, 34)),
            tunnel,
            dscp: tos as u8 >> 2,
            marked: tos as u8 & CE == CE,
            id: u16::from_be_bytes(bytes(frame, 18)),
            ttl: frame[22],
        };
        if !shape || frame[36..38] != tunnel.port.to_be_bytes() {
            return Err(PacketRefusal::Malformed);
        }
        Packet::read_body(outer, &bytes(frame, BODY), secret)
    }
}

/// Returns true if a frame with its probe at `body` contains all of it, and nothing after it unless it is a
/// request.
fn may_be_long(frame: &[u8], body: usize) -> bool {
    let least = body + BODY_LENGTH;
    frame.len() == least || frame.len() > least && frame[body + 4] == Kind::Request as u8
}

fn bytes<const N: usize>(frame: &[u8], at: usize) -> [u8; N] {
    frame[at..].first_chunk().copied().unwrap_or([0; N])
}

/// SipHash-2-4 (Aumasson and Bernstein, 2012) of whole words.
#[must_use]
pub fn siphash(Secret([k0, k1]): Secret, words: &[u64]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let length = (words.len() as u64 * 8) << 56;
    for word in words.iter().copied().chain([length]) {
        v[3] ^= word;
        (0..2).for_each(|_| round(&mut v));
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: Secret = Secret([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);

    fn request() -> Packet {
        let outer = Outer {
            macs: [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]],
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            port: 50_000,
            tunnel: PathTunnel::VXLAN,
            dscp: 8,
            marked: false,
            id: 9,
            ttl: 64,
        };
        Packet::request(outer, ProbeId { session: 7, number: 0x0102_0304 }, 5, 1_000)
    }

    #[test]
    fn siphash_is_that_of_its_authors() {
        // Key 00 01 .. 0f, input 00 01 .. 07: the ninth vector of the reference implementation.
        assert_eq!(siphash(SECRET, &[0x0706_0504_0302_0100]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn lengths_are_those_of_the_headers() {
        let frame = request().frame(SECRET);
        assert_eq!((frame.len(), &frame[16..18], &frame[38..40]), (98, &[0, 84][..], &[0, 64][..]));
        assert_eq!(checksum(Sum::default().bytes(&frame[14..34])), 0, "the IP header's is right");
    }

    #[test]
    fn what_is_written_is_read_and_answered() {
        let request = request();
        assert_eq!(Packet::read(&request.frame(SECRET), PathTunnel::VXLAN, SECRET), Ok(request));
        let mut marked = request;
        (marked.outer.marked, marked.outer.ttl) = (true, 61);
        let answer = marked.answer(50_001, 3, 9);
        assert_eq!((answer.marked, answer.hops, answer.reflected_ns, answer.sent_ns), (true, 61, 9, 1_000));
        assert_eq!((answer.path, answer.arrived), (NO_PATH, 3));
        assert_eq!(
            (answer.port, answer.outer.port, answer.outer.source),
            (50_000, 50_001, [10, 0, 0, 2].into())
        );
        assert_eq!(Packet::read(&answer.frame(SECRET), PathTunnel::VXLAN, SECRET), Ok(answer));
    }

    #[test]
    fn a_request_may_be_padded_and_an_answer_may_not() {
        let request = request();
        for length in [DATAGRAM as u16, DATAGRAM as u16 + 1, 1500, 9000, u16::MAX] {
            let frame = request.padded(SECRET, length);
            assert_eq!(frame.len(), ETHERNET + usize::from(length));
            assert_eq!(checksum(Sum::default().bytes(&frame[14..34])), 0, "the IP header's is right");
            assert_eq!(Packet::read(&frame, PathTunnel::VXLAN, SECRET), Ok(request));
            assert_eq!(
                Packet::read(&frame, PathTunnel::VXLAN, Secret([1, 2])),
                Err(PacketRefusal::BadCookie)
            );
            assert_eq!(
                Packet::read(&[&frame[..], &[0]].concat(), PathTunnel::VXLAN, SECRET),
                Err(PacketRefusal::Malformed)
            );
            assert_eq!(
                Packet::read(&frame[..frame.len() - 1], PathTunnel::VXLAN, SECRET),
                Err(PacketRefusal::Malformed)
            );
        }
        for other in [request.answer(50_001, 3, 9), Packet { kind: Kind::Trace, ..request }] {
            assert_eq!(
                Packet::read(&other.padded(SECRET, DATAGRAM as u16), PathTunnel::VXLAN, SECRET),
                Ok(other)
            );
            assert_eq!(
                Packet::read(&other.padded(SECRET, 1500), PathTunnel::VXLAN, SECRET),
                Err(PacketRefusal::Malformed)
            );
        }
    }

    #[test]
    fn a_request_may_be_stamped_on_its_way_out_and_nothing_else_be_changed() {
        let frame = request().frame(SECRET);
        for at in 12..FRAME {
            let mut other = frame;
            other[at] ^= 0x40;
            let free = [15, 18, 19, 22, 24, 25, 34, 35, 40, 41, 42, 43, 44, 45, 49];
            // DSCP, identification, TTL, checksums, source port and reserved bits are not part of its
            // content.
            let stamp = (BODY + 24..BODY + 32).contains(&at) || at == BODY + 19;
            let says = free.contains(&at) || stamp || at == 20;
            assert_eq!(Packet::read(&other, PathTunnel::VXLAN, SECRET).is_ok(), says, "byte {at}");
        }
        assert_eq!(Packet::read(&frame, PathTunnel::VXLAN, Secret([1, 2])), Err(PacketRefusal::BadCookie));
        assert_eq!(Packet::read(&frame[..97], PathTunnel::VXLAN, SECRET), Err(PacketRefusal::Malformed));
        assert_eq!(Packet::read(&frame, PathTunnel::vxlan(4790), SECRET), Err(PacketRefusal::Malformed));
    }
}
