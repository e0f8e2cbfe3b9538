//! What TCP connections reveal: round trips, and segments that are sent again.

use super::*;
use weir_path::bpf::{PathOut, PathPeer, PathSeen};
use weir_path::tunnel::TunnelType;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
const MS: u64 = 1_000_000;
const SYN: u8 = 2;
const ACK: u8 = 16;

/// A segment of a connection between port 7 here and port 80 there, without timestamps.
#[derive(Clone, Copy)]
struct Segment {
    leaves: bool,
    flags: u8,
    sequence: u32,
    acknowledges: u32,
    bytes: u16,
}

impl Segment {
    fn sent(flags: u8, sequence: u32, bytes: u16) -> Segment {
        Segment { leaves: true, flags, sequence, acknowledges: 0, bytes }
    }

    fn ack(acknowledges: u32) -> Segment {
        Segment { leaves: false, flags: ACK, sequence: 1, acknowledges, bytes: 0 }
    }

    /// Its frame in a tunnel.
    fn frame(self, of: TunnelType) -> Vec<u8> {
        let header: &[u8] = match of {
            TunnelType::Vxlan => &[8, 0, 0, 0, 0, 0, 42, 0, 2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1, 8, 0],
            TunnelType::Geneve => &[2, 0, 8, 0, 0, 0, 42, 0, 1, 2, 3, 1, 5, 6, 7, 8],
            TunnelType::Gue => &[0, 4, 0, 0],
        };
        let around = 8 + header.len() as u16;
        let (mut outer, mut ports) = ([HERE, PEER], [7, 80]);
        let mut inner = [[192, 168, 0, 1], [192, 168, 0, 2]].map(Ipv4Addr::from);
        if !self.leaves {
            outer.reverse();
            inner.reverse();
            ports.reverse();
        }
        let ip = |protocol: u8, length: u16, [source, destination]: [Ipv4Addr; 2]| {
            let mut ip = vec![0x45, 0];
            ip.extend(length.to_be_bytes());
            ip.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
            ip.extend(source.octets());
            ip.extend(destination.octets());
            ip
        };
        let length = 40 + self.bytes;
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        frame.extend(ip(17, 20 + around + length, outer));
        frame.extend(KERNEL_PORT.to_be_bytes());
        frame.extend(of.standard_port().to_be_bytes());
        frame.extend((around + length).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend(header);
        frame.extend(ip(6, length, inner));
        ports.into_iter().for_each(|port: u16| frame.extend(port.to_be_bytes()));
        frame.extend(self.sequence.to_be_bytes());
        frame.extend(self.acknowledges.to_be_bytes());
        frame.extend([0x50, self.flags, 1, 0, 0, 0, 0, 0]);
        frame.resize(frame.len() + usize::from(self.bytes), 0);
        frame
    }
}

/// The programs at a point in time.
struct Watched(TcPath, u64, TunnelType);

impl Watched {
    /// `None` without root.
    fn new(of: TunnelType) -> Option<Watched> {
        let mut programs = weir_bed::is_root().then(|| TcPath::load_scripted(1, 64).unwrap())?;
        let tunnel = PathTunnel { of, port: of.standard_port() };
        programs.set(&PathSettings { tunnel, ..SETTINGS }).unwrap();
        programs.set_locals(&[HERE]).unwrap();
        let path = |port| PathOut { port, weight: 1024, congested: false, cost_ns: 0 };
        programs.set_peer(PEER, &PathPeer { index: 0, paths: vec![path(PORTS[0])] }).unwrap();
        programs.set_script(0, Some(1)).unwrap();
        Some(Watched(programs, 1000 * MS, of))
    }

    /// A segment leaves or arrives after this time.
    fn pass(&mut self, after: u64, segment: Segment) {
        self.1 += after;
        self.0.set_script(self.1, None).unwrap();
        let frame = segment.frame(self.2);
        let placed = if segment.leaves { self.0.test_egress(&frame).unwrap().1 } else { frame };
        let (verdict, out) = self.0.test_watch(&placed, segment.leaves).unwrap();
        assert_eq!((verdict, out), (PASS, placed), "no frame is changed");
    }

    fn seen(&self) -> PathSeen {
        self.0.seen(0)[0]
    }

    /// The latest round trip, if there was one since `before`.
    fn round_trip(&self, before: PathSeen) -> Option<u64> {
        let [(window, least_ns), _] = self.seen().least;
        (window != before.least[0].0).then_some(least_ns)
    }
}

#[test]
fn round_trips_are_those_of_acknowledgements_that_are_sent_at_once() {
    TunnelType::WORDS.into_iter().for_each(|(_, of)| round_trips_in(of));
}

fn round_trips_in(of: TunnelType) {
    let Some(mut watched) = Watched::new(of) else { return };
    let start = watched.seen();
    watched.pass(0, Segment::sent(SYN, 100, 0));
    watched.pass(3 * MS, Segment::ack(101));
    assert_eq!(watched.round_trip(start), Some(3 * MS), "a handshake");
    let handshake = watched.seen();
    watched.pass(20 * MS, Segment::sent(ACK, 101, 500));
    watched.pass(40 * MS, Segment::ack(601));
    assert_eq!(watched.round_trip(handshake), None, "the acknowledgement of one segment may be delayed");
    watched.pass(20 * MS, Segment::sent(ACK, 601, 500));
    watched.pass(MS, Segment::sent(ACK, 1101, 500));
    watched.pass(MS, Segment::ack(1101));
    assert_eq!(watched.round_trip(handshake), None, "that is of the first");
    watched.pass(MS, Segment::ack(1601));
    assert_eq!(watched.round_trip(handshake), Some(2 * MS));
    let PathSeen { segments, again, acknowledgements, .. } = watched.seen();
    assert_eq!((segments, again, acknowledgements), (4, 0, 4));
    // An acknowledgement that was heard before, and one of another connection, reveal nothing.
    watched.pass(9 * MS, Segment::ack(1601));
    assert_eq!(watched.seen().acknowledgements, 4);
}

#[test]
fn a_segment_that_is_sent_again_counts_and_reveals_no_time() {
    let Some(mut watched) = Watched::new(TunnelType::Vxlan) else { return };
    let start = watched.seen();
    for _ in 0..2 {
        watched.pass(1000 * MS, Segment::sent(SYN, u32::MAX - 1, 0));
    }
    watched.pass(2 * MS, Segment::ack(u32::MAX));
    assert_eq!(watched.round_trip(start), None, "either SYN may have arrived (Karn)");
    // Sequence numbers wrap around.
    watched.pass(MS, Segment::sent(ACK, u32::MAX, 500));
    watched.pass(MS, Segment::sent(ACK, 499, 500));
    watched.pass(MS, Segment::sent(ACK, 999, 500));
    watched.pass(MS, Segment::sent(ACK, 499, 500));
    let PathSeen { segments, again, acknowledgements, .. } = watched.seen();
    assert_eq!((segments, again, acknowledgements), (6, 2, 1));
    watched.pass(MS, Segment::ack(1499));
    assert_eq!(watched.round_trip(start), None);
    // The connection continues, and another one begins with the same ports.
    watched.pass(MS, Segment::sent(SYN, 7_000_000, 0));
    watched.pass(5 * MS, Segment::ack(7_000_001));
    assert_eq!((watched.round_trip(start), watched.seen().again), (Some(5 * MS), 2));
}
