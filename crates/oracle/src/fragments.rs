//! Fragments, the slow way: sentences F11 to F13 with a plain, unbounded map and list.

use super::bytes::{Fragment, Headers, headers, number16};
use super::fields::read_bits;
use super::source::Arrival;
use std::collections::BTreeMap;
use weir_packet::{Depth, DropReason, TunnelPorts};
use weir_program::fragments::{KNOWN_NS, WAIT_NS};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Returns the ports of a fragment's datagram: those in the fragment's bytes, or those already known. `None`
/// if the packet is not a fragment of TCP or UDP.
pub(super) fn ports_of(
    frame: &[u8],
    headers: &Headers,
    known: Option<[u16; 2]>,
) -> Result<Option<[u16; 2]>, DropReason> {
    let Some(ip) = headers.ip.as_ref().filter(|ip| ip.protocol == TCP || ip.protocol == UDP) else {
        return Ok(None);
    };
    let (header, malformed) = match ip.protocol {
        TCP => (20, DropReason::MalformedTcp),
        _ => (8, DropReason::MalformedUdp),
    };
    let segment = &frame[ip.payload..ip.end];
    match ip.fragment {
        Fragment::Whole => Ok(None),
        // RFC 7112 §5: the first fragment contains the header, whose stated length must be possible.
        Fragment::First => {
            let is_possible = segment.len() >= header
                && match ip.protocol {
                    TCP => segment[12] / 16 >= 5,
                    _ => number16(segment, 4) >= Some(8),
                };
            let port = |at| number16(segment, at).ok_or(malformed);
            if is_possible { Ok(Some([port(0)?, port(2)?])) } else { Err(malformed) }
        }
        // RFC 1858 §4.2: no other fragment contains a part of it.
        Fragment::Later if place(frame, headers).0 < header => Err(malformed),
        Fragment::Later => known.map(Some).ok_or(DropReason::FirstFragmentMissing),
    }
}

/// Returns the offset of a fragment in its datagram, and the identification.
fn place(frame: &[u8], headers: &Headers) -> (usize, u128) {
    match &headers.ip {
        // RFC 791 §3.1: the offset counts 8 bytes.
        Some(ip) if ip.version == 4 => {
            let number = |first, count| read_bits(frame, 8 * ip.start + first, count);
            (8 * number(51, 13) as usize, number(32, 16))
        }
        // RFC 8200 §4.5: next header 8, reserved 8, offset 13, reserved 2, more 1, identification 32.
        Some(ip) => {
            let number = |first, count| read_bits(frame, 8 * (ip.payload - 8) + first, count);
            (8 * number(16, 13) as usize, number(32, 32))
        }
        None => (0, 0),
    }
}

/// Addresses, protocol, identification and VLAN tags.
type Id = (Vec<u8>, u8, u128, Vec<u128>);

/// What is known about fragmented datagrams.
#[derive(Clone, Debug, Default)]
pub struct Datagrams {
    /// Ports, and when the last fragment arrived.
    known: BTreeMap<Id, ([u16; 2], u64)>,
    waiting: Vec<(Id, Vec<u8>, u64)>,
}

impl Datagrams {
    /// Receives a frame. Returns the frames that can continue now, in order, with ports for those that are
    /// later fragments.
    pub fn receive(&mut self, frame: &[u8], now_ns: u64) -> Vec<(Vec<u8>, Option<[u16; 2]>)> {
        let at_once = |ports| vec![(frame.to_vec(), ports)];
        let Ok(found) = headers(frame, Depth::L4, &TunnelPorts::STANDARD) else { return at_once(None) };
        let Some(id) = id(frame, &found) else { return at_once(None) };
        let known = self.known.get(&id).filter(|(_, last_ns)| now_ns - last_ns <= KNOWN_NS);
        match ports_of(frame, &found, known.map(|(ports, _)| *ports)) {
            Ok(Some(ports)) => {
                self.known.insert(id.clone(), (ports, now_ns));
                let mut all = at_once(Some(ports));
                self.waiting.retain(|(of, bytes, _)| {
                    let due = *of == id;
                    all.extend(due.then(|| (bytes.clone(), Some(ports))));
                    !due
                });
                all
            }
            Err(DropReason::FirstFragmentMissing) => {
                self.waiting.push((id, frame.to_vec(), now_ns));
                Vec::new()
            }
            Ok(None) | Err(_) => at_once(None),
        }
    }

    /// Drops frames that have waited too long. Returns how many there were.
    pub fn expire(&mut self, now_ns: u64) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|(_, _, since_ns)| now_ns - since_ns <= WAIT_NS);
        before - self.waiting.len()
    }

    /// Returns the number of frames that wait.
    #[must_use]
    pub fn held(&self) -> usize {
        self.waiting.len()
    }
}

/// Returns the datagram of a fragment; `None` for a whole datagram.
fn id(frame: &[u8], found: &Headers) -> Option<Id> {
    let ip = found.ip.as_ref().filter(|ip| ip.fragment != Fragment::Whole)?;
    let addresses = if ip.version == 4 { ip.start + 12..ip.start + 20 } else { ip.start + 8..ip.start + 40 };
    let tags = found.tags.iter().map(|tag| read_bits(frame, 8 * tag + 20, 12)).collect();
    Some((frame[addresses].to_vec(), ip.protocol, place(frame, found).1, tags))
}

impl<'a> Arrival<'a> {
    /// Returns the same frame as a fragment of a datagram with these ports.
    #[must_use]
    pub fn with_ports(self, ports: Option<[u16; 2]>) -> Arrival<'a> {
        Arrival { ports, ..self }
    }
}
