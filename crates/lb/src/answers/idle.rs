//! Resets connections whose flows have been idle for too long, so that neither end waits for the other
//! (pipes.md C16). Only the client's newest segment is known, since in some modes weir sees no answers.
//! Its acknowledgement number is the sequence number that the client expects next (RFC 9293 §3.10.7.4), and
//! the sequence number after its data is the one the back end expects.

use super::Punted;
use super::reject::Connection;
use weir_app::Action;

/// The length of the longest IP packet, which limits the number of zeros that substitute for a segment's
/// data.
const LONGEST: usize = 65_535;

/// Counts of resets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Idle {
    reset: u64,
    unreadable: u64,
}

impl Idle {
    /// Resets both ends of the connection whose newest segment begins with these headers. The reset for the
    /// client leaves through the port on which the segment arrived, and the back end along the path of the
    /// client's packets.
    pub fn handle(&mut self, punted: Punted<'_>, actions: &mut Vec<Action>) {
        let input = punted.input;
        let Some([client, back_end]) = resets(punted.bytes) else {
            self.unreadable += 1;
            return;
        };
        self.reset += 1;
        actions.push(Action::Inject { bytes: client, output: input });
        actions.push(Action::InjectThrough { bytes: back_end, input });
    }

    /// Returns the counters.
    pub fn counts(&self) -> [(&'static str, u64); 2] {
        [("idle_connections_reset", self.reset), ("idle_connections_unreadable", self.unreadable)]
    }
}

/// Returns the frames that reset the client and the back end.
fn resets(headers: &[u8]) -> Option<[Vec<u8>; 2]> {
    let mut segment = headers.to_vec();
    segment.resize(headers.len() + LONGEST, 0);
    let connection = Connection::of(&segment)?;
    Some([connection.reset_sender()?, connection.reset_receiver()?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{NetHeaders, PacketHeaders, TcpHeader, TransportHeader};
    use weir_packet::craft;

    const MACS: &str = "eth.src=02:00:00:00:00:0c eth.dst=02:00:00:00:00:01";
    /// Ethernet with a tag, IPv6 and TCP.
    const HEADERS: usize = 14 + 4 + 40 + 20;

    /// Returns the MAC addresses, the source port, and the TCP header of a reset, whose checksum is verified.
    fn read(bytes: &[u8]) -> (&[u8], TcpHeader) {
        let parsed = PacketHeaders::from_ethernet_slice(bytes).unwrap();
        let Some(TransportHeader::Tcp(tcp)) = parsed.transport else { panic!("{parsed:?}") };
        let sum = match parsed.net {
            Some(NetHeaders::Ipv4(ip, _)) => tcp.calc_checksum_ipv4(&ip, &[]),
            Some(NetHeaders::Ipv6(ip, _)) => tcp.calc_checksum_ipv6(&ip, &[]),
            other => panic!("{other:?}"),
        };
        assert_eq!(sum.unwrap(), tcp.checksum);
        assert!(tcp.rst && !tcp.syn && !tcp.fin);
        (&bytes[..12], tcp)
    }

    #[test]
    fn each_end_gets_the_sequence_number_that_it_expects() {
        for addresses in ["src=10.0.0.9 dst=10.0.0.80", "vlan=7 src=fd00::9 dst=fd00::80"] {
            let segment = format!(
                "{MACS} {addresses} proto=tcp sport=4000 dport=80 seq=0xfffffffe ack=99 flags=PA \
                 tcp_options=01010101 payload=c0ffee"
            );
            let frame = craft::frame(&segment);
            let length = if addresses.starts_with("vlan") { HEADERS } else { 14 + 20 + 20 };
            let [client, back_end] = resets(&frame[..length]).unwrap();
            let (macs, tcp) = read(&client);
            assert_eq!(macs, [2, 0, 0, 0, 0, 0xc, 2, 0, 0, 0, 0, 1]);
            assert_eq!((tcp.source_port, tcp.sequence_number, tcp.ack), (80, 99, false));
            let (macs, tcp) = read(&back_end);
            assert_eq!(macs, [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xc]);
            assert_eq!((tcp.source_port, tcp.sequence_number), (4000, 1), "behind three octets of data");
            assert_eq!((tcp.ack, tcp.acknowledgment_number), (true, 99));
        }
    }

    #[test]
    fn what_is_no_segment_is_counted_and_nothing_panics() {
        let frame = craft::frame(&format!("{MACS} src=10.0.0.9 dst=10.0.0.80 proto=tcp flags=A ack=1"));
        let (mut idle, mut actions) = (Idle::default(), Vec::new());
        for length in 0..=frame.len() {
            let input = weir_program::PortId(0);
            idle.handle(Punted { app: super::super::IDLE, input, bytes: &frame[..length] }, &mut actions);
        }
        let [(_, reset), (_, unreadable)] = idle.counts();
        assert!(reset > 0 && unreadable > 0 && actions.len() as u64 == 2 * reset);
    }
}
