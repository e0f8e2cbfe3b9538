//! DOCA-AR as published: each new tunnel header waits while four probes are sent, and uses the port of the
//! first answer for its lifetime. One thread handles one flow after the other, with a timeout of 50 ms.

use super::aging::Aging;
use super::prober::{PathProbe, Prober, wait};
use super::uplink::Uplinks;
use super::wire::Wire;
use crate::bpf::PathMissed;
use crate::scheme::{DOCA_TIMEOUT_NS, doca_ports};
use crate::survey::Wish;
use crate::tunnel::PathTunnel;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::time::Duration;
use weir_app::clock::monotonic_ns;
use weir_packet::tunnel::Inside;
use weir_packet::{PROTOCOL_UDP, Sum, checksum};

/// How long the thread waits for a flow before it turns to other work.
const PAUSE: Duration = Duration::from_millis(20);

/// The length of an Ethernet header.
const ETHERNET: usize = 14;

/// Runs until stopped.
pub fn run(prober: &mut Prober, mut uplink: Uplinks, wire: &Wire) {
    let mut aging = Aging::new(prober.fabric.idle_timeout_ns);
    while !prober.stops() {
        let now = monotonic_ns();
        if let Some(state) = uplink.mind(now) {
            prober.reporter.obstacle(state);
        }
        aging.tick(now, &uplink.programs);
        prober.reporter.report(now, &uplink.programs, &[], aging.forgotten());
        while let Some(missed) = uplink.programs.missed() {
            place(prober, &mut uplink, wire, &missed);
        }
        wait(PAUSE, &uplink, None);
    }
}

/// Finds the port of a flow, pins it, and sends the frame that was waiting.
fn place(prober: &mut Prober, uplink: &mut Uplinks, wire: &Wire, missed: &PathMissed) {
    let [IpAddr::V4(source), IpAddr::V4(peer)] = missed.key.addresses() else { return };
    let port = race(prober, uplink, wire, (source, peer), missed.kernel_port);
    // If pinning fails, the flow's next frame requests a port again.
    let _ = uplink.programs.pin(missed.key, missed.kernel_port, port, monotonic_ns());
    let mut packet = missed.frame.get(ETHERNET..).unwrap_or_default().to_vec();
    complete(&mut packet, prober.fabric.tunnel);
    let _ = wire.send(&packet, peer.into(), 0);
}

/// Sends four probes and returns the port of the first that is answered in time.
fn race(
    prober: &mut Prober,
    uplink: &mut Uplinks,
    wire: &Wire,
    addresses: (Ipv4Addr, Ipv4Addr),
    kernel_port: u16,
) -> Option<u16> {
    // Discard late answers to earlier probes.
    while uplink.programs.answer().is_some() {}
    let mut numbers = Vec::new();
    for port in doca_ports(kernel_port) {
        let probe = PathProbe::of(Wish::whole(port));
        let (source, peer): (IpAddr, IpAddr) = (addresses.0.into(), addresses.1.into());
        let (number, packet) = prober.packet(source, peer, &probe);
        if wire.send(&packet, peer, 0).is_ok() {
            numbers.push(number);
        }
    }
    let until = monotonic_ns() + DOCA_TIMEOUT_NS;
    // Without a probe there is nothing to wait for; DOCA-AR waits anyway.
    while !numbers.is_empty() && monotonic_ns() < until && !prober.stops() {
        while let Some(answer) = uplink.programs.answer() {
            if answer.session == prober.session() && numbers.contains(&answer.number) {
                return Some(answer.port);
            }
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    None
}

/// Computes the checksum of the inner TCP or UDP packet, which is normally left to the device. The outer UDP
/// checksum is omitted, as IPv4 allows.
fn complete(packet: &mut [u8], tunnel: PathTunnel) {
    const OUTER: usize = 20 + 8;
    if let Some(check) = packet.get_mut(26..28) {
        check.fill(0);
    }
    let Some(payload) = packet.get_mut(OUTER..) else { return };
    let Ok(header) = tunnel.of.kind().read(payload, PROTOCOL_UDP) else { return };
    let ethernet = match header.inside {
        Some(Inside::Ethernet) => ETHERNET,
        Some(Inside::Ipv4 | Inside::Ipv6) => 0,
        None => return,
    };
    let Some(inner) = payload.get_mut(header.length + ethernet..) else { return };
    let Some((protocol, header, length, pseudo)) = inner_ip(inner) else { return };
    let at = match protocol {
        6 => 16,
        17 => 6,
        _ => return,
    };
    let Some(segment) = inner.get_mut(header..header + length).filter(|segment| segment.len() >= at + 2)
    else {
        return;
    };
    segment[at..at + 2].fill(0);
    let sum = checksum(pseudo.word(u16::from(protocol)).word(length as u16).bytes(segment));
    segment[at..at + 2].copy_from_slice(&if sum == 0 { 0xffff } else { sum }.to_be_bytes());
}
/// Returns the protocol, the length of the header and of what follows, and the sum of the addresses.
fn inner_ip(inner: &[u8]) -> Option<(u8, usize, usize, Sum)> {
    let half =
        |at: usize| inner.get(at..)?.first_chunk::<2>().map(|two| usize::from(u16::from_be_bytes(*two)));
    let addresses = |range: Range<usize>| inner.get(range).map(|bytes| Sum::default().bytes(bytes));
    match inner.first()? >> 4 {
        4 => {
            let header = usize::from(inner[0] & 15) * 4;
            let length = half(2)?.checked_sub(header)?;
            // A fragment has no checksum of its own to complete.
            if half(6)? & 0x3fff != 0 {
                return None;
            }
            Some((*inner.get(9)?, header, length, addresses(12..20)?))
        }
        6 => Some((*inner.get(6)?, 40, half(4)?, addresses(8..40)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::TunnelType;

    #[test]
    fn the_inner_checksum_is_completed_and_the_outer_left_out() {
        for (of, header) in [
            (TunnelType::Vxlan, &[8, 0, 0, 0, 0, 0, 42, 0, 2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1, 8, 0][..]),
            (TunnelType::Geneve, &[1, 0, 8, 0, 0, 0, 42, 0, 1, 2, 3, 0]),
            (TunnelType::Gue, &[0, 4, 0, 0]),
            (TunnelType::Gue, &[]),
        ] {
            completes_behind(header, PathTunnel { of, port: of.standard_port() });
        }
    }

    fn completes_behind(header: &[u8], tunnel: PathTunnel) {
        let mut packet = vec![7; 28];
        packet.extend(header);
        packet.extend([0x45, 0, 0, 42, 0, 0, 0, 0, 64, 6, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2]);
        packet
            .extend([0x9c, 0x40, 0x13, 0x89, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0xab, 0xcd, 0, 0]);
        packet.extend([1, 2]);
        complete(&mut packet, tunnel);
        assert_eq!(packet[26..28], [0, 0]);
        let inner = &packet[28 + header.len()..];
        let sum = Sum::default().bytes(&inner[20..]).bytes(&inner[12..20]).word(6).word(22);
        assert_eq!(checksum(sum), 0);
    }

    #[test]
    fn what_is_cut_short_is_left() {
        for length in 0..90 {
            for (_, of) in TunnelType::WORDS {
                complete(&mut vec![0x45; length], PathTunnel { of, port: 1 });
                complete(&mut vec![0x60; length], PathTunnel { of, port: 1 });
                complete(&mut vec![0; length], PathTunnel { of, port: 1 });
            }
        }
    }
}
