//! Answers pings to VIPs: an echo request (RFC 792, RFC 4443 §4.1) gets an echo reply from the VIP with the
//! same identifier, sequence number, data and VLAN tags. The pipes have already matched the VIP.

use super::limit::Limit;
use super::{Punted, sum};
use crate::announce::{ECHO_V4, ECHO_V6};
use std::net::IpAddr;
use weir_app::Action;
use weir_packet::{Base, Depth, Layer, Level, PROTOCOL_ICMP, PROTOCOL_ICMPV6, Sum, checksum};

/// Answers per second, and burst size: enough for some monitoring stations, but not for a flood.
const RATE: u64 = 1000;
const BURST: u64 = 100;
/// The time to live of answers (IANA recommends 64).
const TTL: u8 = 64;
/// Type of an echo reply of ICMP and of ICMPv6.
const REPLY_V4: u8 = 0;
const REPLY_V6: u8 = 129;
/// The start of an ICMP header: type, code, checksum, identifier, sequence number.
const ICMP: usize = 8;
/// Frames are padded to Ethernet's minimum length, without FCS.
const SHORTEST: usize = 60;
/// Don't Fragment (RFC 791); no identification is needed then (RFC 6864 §4).
const DF: [u8; 4] = [0, 0, 0x40, 0];

/// Answers pings.
pub(super) struct Echo {
    limit: Limit,
    answered: u64,
}

impl Default for Echo {
    fn default() -> Echo {
        Echo { limit: Limit::new(RATE, BURST), answered: 0 }
    }
}

impl Echo {
    /// Answers an echo request.
    pub fn handle(&mut self, now_ns: u64, punted: Punted<'_>, actions: &mut Vec<Action>) {
        let Some(bytes) = reply(punted.bytes) else { return };
        if self.limit.allows(now_ns) {
            self.answered += 1;
            actions.push(Action::Inject { bytes, output: punted.input });
        }
    }

    /// Returns the counters.
    pub fn counts(&self) -> [(&'static str, u64); 2] {
        [("pings_answered", self.answered), ("pings_over_limit", self.limit.refused())]
    }
}

/// Returns the answer to an echo request. `None` if the frame is no echo request, is malformed, or comes from
/// an address that no host can have.
pub(super) fn reply(frame: &[u8]) -> Option<Vec<u8>> {
    let headers = weir_packet::parse(frame, Depth::L4).ok()?;
    let level = headers.outer();
    let (network, transport) = (level.at(Base::L3), level.at(Base::L4));
    let ipv6 = level.layers.has(Layer::Ipv6);
    let (kind, answer) = if ipv6 { (ECHO_V6, REPLY_V6) } else { (ECHO_V4, REPLY_V4) };
    if !(level.layers.has(Layer::Icmp) || level.layers.has(Layer::Icmpv6)) || frame[transport] != kind {
        return None;
    }
    let end = network + length(frame, level)?;
    let mut message = frame.get(transport..end).filter(|message| message.len() >= ICMP)?.to_vec();
    let (src, dst) = addresses(frame, level)?;
    let is_host =
        |address: IpAddr| !(address.is_multicast() || address.is_unspecified() || address.is_loopback());
    let is_broadcast = src == IpAddr::from([255; 4]) || frame[0] & 1 == 1 || frame[6] & 1 == 1;
    if !is_host(src) || src == dst || is_broadcast || sum((src, dst), &message) != 0 {
        return None;
    }
    message[0] = answer;
    message[2..4].copy_from_slice(&[0; 2]);
    let computed = sum((dst, src), &message);
    message[2..4].copy_from_slice(&computed.to_be_bytes());
    let mut bytes = [&frame[6..12], &frame[..6], &frame[12..network]].concat();
    let header = if ipv6 { ipv6_header } else { ipv4_header };
    bytes.extend(header(frame, network, &message));
    bytes.extend(message);
    bytes.resize(bytes.len().max(SHORTEST), 0);
    Some(bytes)
}

/// Returns the length of an IP packet, header included.
fn length(frame: &[u8], level: &Level) -> Option<usize> {
    let at = level.at(Base::L3);
    let be16 = |at: usize| Some(usize::from(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().ok()?)));
    if level.layers.has(Layer::Ipv6) { Some(40 + be16(at + 4)?) } else { be16(at + 2) }
}

/// Returns source and destination of an IP packet.
fn addresses(frame: &[u8], level: &Level) -> Option<(IpAddr, IpAddr)> {
    let at = level.at(Base::L3);
    let v4 = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).ok()?));
    let v6 = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).ok()?));
    if level.layers.has(Layer::Ipv6) {
        Some((v6(at + 8)?, v6(at + 24)?))
    } else {
        Some((v4(at + 12)?, v4(at + 16)?))
    }
}

/// The answer's header has no options, and copies the class of the request (RFC 1122 §3.2.2.6) without its
/// ECN bits.
fn ipv4_header(frame: &[u8], at: usize, message: &[u8]) -> Vec<u8> {
    let mut header = vec![0x45, frame[at + 1] & 0xfc];
    header.extend((20 + message.len() as u16).to_be_bytes());
    header.extend(DF);
    header.extend([TTL, PROTOCOL_ICMP, 0, 0]);
    header.extend(&frame[at + 16..at + 20]);
    header.extend(&frame[at + 12..at + 16]);
    let sum = checksum(Sum::default().bytes(&header));
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

fn ipv6_header(frame: &[u8], at: usize, message: &[u8]) -> Vec<u8> {
    // Version 6, the request's class without its ECN bits, no flow label.
    let mut header = vec![0x60 | frame[at] & 0x0f, frame[at + 1] & 0xc0, 0, 0];
    header.extend((message.len() as u16).to_be_bytes());
    header.extend([PROTOCOL_ICMPV6, TTL]);
    header.extend(&frame[at + 24..at + 40]);
    header.extend(&frame[at + 8..at + 24]);
    header
}
