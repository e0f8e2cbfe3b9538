//! Answers packets of a service that has no back end for them: TCP with a reset (RFC 9293 §3.10.7.1), UDP
//! with ICMP "port unreachable" (RFC 792, RFC 4443 §3.1), from the address that they were sent to, so that
//! clients need not wait. Answers are rate-limited, both in total and per client.

use super::icmp::{Wrong, answer, is_station};
use super::limit::{AnswerRates, Limited};
use weir_packet::{Base, Depth, Layer, PROTOCOL_TCP, Sum, checksum};

const RATES: AnswerRates = AnswerRates { all: 5000, burst: 1000, client: 100 };

/// The lengths of headers without options.
const IPV4: usize = 20;
const IPV6: usize = 40;
const TCP: usize = 20;
/// The time to live of answers (IANA recommends 64).
const TTL: u8 = 64;
/// Frames are padded to Ethernet's minimum length, without FCS.
const SHORTEST: usize = 60;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The answers to packets that no back end can receive.
#[derive(Clone, Debug)]
pub(super) struct Reject(Limited);

impl Default for Reject {
    fn default() -> Reject {
        Reject(Limited::new(RATES))
    }
}

impl Reject {
    /// Returns the answer to a packet, if one may be sent now.
    pub fn answer(&mut self, frame: &[u8], now_ns: u64) -> Option<Vec<u8>> {
        self.0.answer(frame, rejection(frame), now_ns)
    }

    /// Returns the counters.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let [sent, limited, unanswerable] = self.0.counts();
        [
            ("rejections_sent", sent),
            ("rejections_limited", limited),
            ("rejections_unanswerable", unanswerable),
        ]
    }
}

/// Returns the answer to a packet, to be sent through the port on which the packet arrived. `None` for a TCP
/// reset, for protocols other than TCP and UDP, and for a packet whose source is not a single station.
fn rejection(frame: &[u8]) -> Option<Vec<u8>> {
    let headers = weir_packet::parse(frame, Depth::L4).ok()?;
    if headers.outer().layers.has(Layer::Udp) {
        return answer(frame, Wrong::Port);
    }
    Connection::of(frame)?.reset_sender()
}

/// The facts about a connection that a segment reveals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection<'a> {
    /// The bytes of the frame in front of the IP header.
    link: &'a [u8],
    ip: &'a [u8],
    tcp: &'a [u8],
    /// The sequence number that follows the segment.
    end: [u8; 4],
}

impl<'a> Connection<'a> {
    /// Parses a TCP segment between two stations.
    pub fn of(frame: &'a [u8]) -> Option<Connection<'a>> {
        let headers = weir_packet::parse(frame, Depth::L4).ok()?;
        let level = headers.outer();
        if !level.layers.has(Layer::Tcp) || frame[0] & 1 == 1 || frame[6] & 1 == 1 {
            return None;
        }
        let (network, transport) = (level.at(Base::L3), level.at(Base::L4));
        let (ip, tcp) = (frame.get(network..transport)?, frame.get(transport..transport + TCP)?);
        let be16 = |at: usize| usize::from(u16::from_be_bytes([ip[at], ip[at + 1]]));
        let end = if level.layers.has(Layer::Ipv6) { IPV6 + be16(4) } else { be16(2) };
        let data = end.checked_sub(ip.len())?.checked_sub(usize::from(tcp[12] >> 4) * 4)?;
        let has = |flag: u8| u32::from(tcp[13] & flag != 0);
        let sequence = u32::from_be_bytes(*tcp[4..8].first_chunk()?);
        let end = sequence.wrapping_add(data as u32 + has(SYN) + has(FIN)).to_be_bytes();
        Some(Connection { link: &frame[..network], ip, tcp, end })
    }

    /// Returns the frame that resets the sender of the segment. Its sequence number is the segment's
    /// acknowledgement number; without one, the reset acknowledges the segment. `None` if the segment is
    /// itself a reset.
    pub fn reset_sender(&self) -> Option<Vec<u8>> {
        let Connection { tcp, end, .. } = *self;
        if tcp[13] & RST != 0 {
            return None;
        }
        let [source, destination] = [*tcp[..2].first_chunk()?, *tcp[2..4].first_chunk()?];
        let reset = match tcp[13] & ACK {
            0 => segment([destination, source], [0; 4], Some(end)),
            _ => segment([destination, source], *tcp[8..12].first_chunk()?, None),
        };
        self.framed(true, reset)
    }

    /// Returns the frame that resets the receiver of the segment, as if its sender had sent it.
    pub fn reset_receiver(&self) -> Option<Vec<u8>> {
        let Connection { tcp, end, .. } = *self;
        let ports = [*tcp[..2].first_chunk()?, *tcp[2..4].first_chunk()?];
        let acknowledged = (tcp[13] & ACK != 0).then_some(*tcp[8..12].first_chunk()?);
        self.framed(false, segment(ports, end, acknowledged))
    }

    /// Returns the frame of a segment, addressed to the original segment's receiver or, if `turned`, to its
    /// sender. `None` if that is not a single station.
    fn framed(&self, turned: bool, mut tcp: [u8; TCP]) -> Option<Vec<u8>> {
        let is_ipv6 = self.ip[0] >> 4 == 6;
        let addresses = self.ip.get(if is_ipv6 { 8..40 } else { 12..20 })?;
        let (source, destination) = addresses.split_at(addresses.len() / 2);
        let (near, far) = if turned { (destination, source) } else { (source, destination) };
        let header = if is_ipv6 { ipv6(source)? } else { ipv4(source)? };
        let addresses = [near, far].concat();
        let mut ip = [&header[..], &addresses].concat();
        if !is_ipv6 {
            let sum = checksum(Sum::default().bytes(&ip));
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        sum_up(&mut tcp, &addresses);
        let (to, from) = self.link[..12].split_at(6);
        let (to, from) = if turned { (from, to) } else { (to, from) };
        let mut bytes = [to, from, &self.link[12..], &ip, &tcp].concat();
        bytes.resize(bytes.len().max(SHORTEST), 0);
        Some(bytes)
    }
}

/// Returns a reset with these ports, sequence number and acknowledgement number, but without its checksum.
fn segment(
    [source, destination]: [[u8; 2]; 2],
    sequence: [u8; 4],
    acknowledged: Option<[u8; 4]>,
) -> [u8; TCP] {
    let mut tcp = [0; TCP];
    tcp[..2].copy_from_slice(&source);
    tcp[2..4].copy_from_slice(&destination);
    tcp[4..8].copy_from_slice(&sequence);
    tcp[8..12].copy_from_slice(&acknowledged.unwrap_or_default());
    tcp[12] = (TCP as u8 / 4) << 4;
    tcp[13] = if acknowledged.is_some() { RST | ACK } else { RST };
    tcp
}

/// Returns an IPv4 header that lacks addresses and checksum, if `source` is the address of a station.
fn ipv4(source: &[u8]) -> Option<Vec<u8>> {
    let source: [u8; 4] = *source.first_chunk()?;
    let header = [0x45, 0, 0, (IPV4 + TCP) as u8, 0, 0, 0x40, 0, TTL, PROTOCOL_TCP, 0, 0];
    is_station(source.into()).then(|| header.to_vec())
}

/// Returns an IPv6 header that lacks addresses, if `source` is the address of a station.
fn ipv6(source: &[u8]) -> Option<Vec<u8>> {
    let source = std::net::Ipv6Addr::from(*source.first_chunk::<16>()?);
    let is_none = source.is_multicast() || source.is_unspecified() || source.is_loopback();
    (!is_none).then(|| vec![0x60, 0, 0, 0, 0, TCP as u8, PROTOCOL_TCP, TTL])
}

/// Writes the checksum of a reset between these addresses.
fn sum_up(reset: &mut [u8; TCP], addresses: &[u8]) {
    let pseudo = Sum::default().bytes(addresses).word(TCP as u16).word(PROTOCOL_TCP.into());
    let sum = checksum(pseudo.bytes(reset));
    reset[16..18].copy_from_slice(&sum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{Icmpv4Type, Icmpv6Type, NetHeaders, PacketHeaders, TcpHeader, TransportHeader};
    use weir_packet::craft;

    const MACS: &str = "eth.src=02:00:00:00:00:0c eth.dst=02:00:00:00:00:01";

    fn asked(what: &str) -> Option<Vec<u8>> {
        rejection(&craft::frame(&format!("{MACS} {what}")))
    }

    /// The reset sent in answer to a segment, with its checksums verified.
    fn reset_of(what: &str) -> TcpHeader {
        let bytes = asked(what).unwrap();
        assert_eq!(bytes[..12], [2, 0, 0, 0, 0, 0xc, 2, 0, 0, 0, 0, 1]);
        let parsed = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
        let Some(TransportHeader::Tcp(tcp)) = parsed.transport else { panic!("{parsed:?}") };
        let sum = match parsed.net {
            Some(NetHeaders::Ipv4(ip, _)) => {
                assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                assert_eq!((ip.source, ip.destination), ([10, 0, 0, 80], [10, 0, 0, 9]));
                tcp.calc_checksum_ipv4(&ip, &[])
            }
            Some(NetHeaders::Ipv6(ip, _)) => {
                assert_eq!((ip.source[15], ip.destination[15]), (0x80, 0x09));
                tcp.calc_checksum_ipv6(&ip, &[])
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(sum.unwrap(), tcp.checksum);
        assert!(tcp.rst && !tcp.syn && !tcp.fin);
        assert_eq!((tcp.source_port, tcp.destination_port), (80, 4000));
        tcp
    }

    #[test]
    fn a_segment_is_answered_by_the_reset_that_its_sender_accepts() {
        for addresses in ["src=10.0.0.9 dst=10.0.0.80", "vlan=7 src=fd00::9 dst=fd00::80"] {
            let segment = |more: &str| format!("{addresses} proto=tcp sport=4000 dport=80 {more}");
            let syn = reset_of(&segment("seq=7 flags=S"));
            assert_eq!((syn.sequence_number, syn.ack, syn.acknowledgment_number), (0, true, 8));
            let options = reset_of(&segment("seq=0xffffffff flags=SF tcp_options=020405b4 payload=c0ffee"));
            assert_eq!((options.ack, options.acknowledgment_number), (true, 4), "the numbers wrap");
            let data = reset_of(&segment("seq=7 ack=99 flags=A payload=c0ffee"));
            assert_eq!((data.sequence_number, data.ack), (99, false));
            assert_eq!(asked(&segment("seq=7 flags=R")), None, "a reset gets no reset");
        }
    }

    #[test]
    fn a_datagram_is_answered_by_port_unreachable() {
        let bytes =
            asked("vlan=7 src=10.0.0.9 dst=10.0.0.80 proto=udp sport=4000 dport=53 payload=c0ffee").unwrap();
        let parsed = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
        let Some(TransportHeader::Icmpv4(icmp)) = parsed.transport else { panic!("{parsed:?}") };
        let port = etherparse::icmpv4::DestUnreachableHeader::Port;
        assert_eq!(icmp.icmp_type, Icmpv4Type::DestinationUnreachable(port));
        let bytes = asked("src=fd00::9 dst=fd00::80 proto=udp sport=4000 dport=53").unwrap();
        let parsed = PacketHeaders::from_ethernet_slice(&bytes).unwrap();
        let Some(TransportHeader::Icmpv6(icmp)) = parsed.transport else { panic!("{parsed:?}") };
        let port = etherparse::icmpv6::DestUnreachableCode::Port;
        assert_eq!(icmp.icmp_type, Icmpv6Type::DestinationUnreachable(port));
    }

    #[test]
    fn what_must_not_be_answered_is_not_and_nothing_panics() {
        for what in [
            "src=0.0.0.0 dst=10.0.0.80 proto=tcp flags=S",
            "src=224.0.0.1 dst=10.0.0.80 proto=tcp flags=S",
            "src=:: dst=fd00::80 proto=tcp flags=S",
            "src=10.0.0.9 dst=10.0.0.80 proto=icmp icmp_type=8",
            "src=10.0.0.9 dst=10.0.0.80 proto=icmp icmp_type=3",
            "src=10.0.0.9 dst=10.0.0.80 frag=1480+ proto=udp",
            "src=10.0.0.9 dst=10.0.0.80 proto=99",
        ] {
            assert_eq!(asked(what), None, "{what}");
        }
        let frame =
            craft::frame(&format!("{MACS} src=10.0.0.9 dst=10.0.0.80 proto=tcp flags=S payload=c0ffee"));
        for length in 0..frame.len() {
            let _ = rejection(&frame[..length]);
            let mut turned = frame.clone();
            turned[length] ^= 0xff;
            let _ = rejection(&turned);
        }
    }

    #[test]
    fn a_client_gets_few_answers_and_others_get_theirs() {
        let mut reject = Reject::default();
        let from =
            |client: u8| craft::frame(&format!("{MACS} src=10.0.1.{client} dst=10.0.0.80 proto=tcp flags=S"));
        let answered = (0..1000).filter(|_| reject.answer(&from(1), 0).is_some()).count();
        assert_eq!(answered, RATES.client as usize);
        assert!(reject.answer(&from(2), 0).is_some(), "another client");
        assert_eq!(reject.counts().map(|count| count.1), [101, 900, 0]);
    }
}
