//! Senders and real sockets on the loopback interface.

use super::*;
use crate::FlowRecord;
use crate::export::End;
use std::io::Read;
use std::net::TcpListener;
use weir_packet::{FlowKey, Observed};

fn given(n: u16) -> Given {
    let key = FlowKey::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, (n, 53), None);
    let (first_ns, last_ns, observed) = (1_000_000, 2_000_000, Observed::default());
    let record = FlowRecord { key, packets: 1, bytes: 100, first_ns, last_ns, observed };
    Given { record, end: End::Active, target: None, ingress: None, point: None, names: [None, None] }
}

fn batch(records: u16) -> Vec<Given> {
    (0..records).map(given).collect()
}

fn sender(to: SocketAddr, tcp: bool) -> Sender {
    Sender::new(Ipfix { to, tcp, domain: 9 }, Arc::new(Counts::default()))
}

fn counts(sender: &Sender) -> (u64, u64) {
    let tally = sender.tally.export();
    (tally.sent, tally.lost)
}

#[test]
fn messages_go_over_udp_with_templates_in_the_first() {
    let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sender = sender(collector.local_addr().unwrap(), false);
    sender.send_all(&batch(100));
    let mut bytes = [0; 2048];
    let length = collector.recv(&mut bytes).unwrap();
    assert_eq!((&bytes[..2], usize::from(u16::from_be_bytes([bytes[2], bytes[3]]))), (&[0, 10][..], length));
    assert_eq!((&bytes[8..16], &bytes[16..18]), (&[0, 0, 0, 0, 0, 0, 0, 9][..], &[0, 2][..]));
    assert_eq!(counts(&sender), (100, 0));
}

#[test]
fn a_tcp_collector_that_is_away_is_counted_and_found_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let mut sender = sender(address, true);
    let begun = Instant::now();
    sender.send_all(&batch(10));
    assert_eq!(counts(&sender), (0, 10));
    // The sender pauses before it retries; here for longer, in case this machine is busy.
    let CollectorConnection::Down(again, pause) = sender.line else { panic!("it is connected") };
    assert!(again >= begun + PAUSES[0]);
    sender.line = CollectorConnection::Down(again + 100 * PAUSES[0], pause);
    let listener = TcpListener::bind(address).unwrap();
    sender.send_all(&batch(10));
    assert_eq!(counts(&sender), (0, 20));
    sender.line = CollectorConnection::Down(Instant::now(), PAUSES[0]);
    sender.send_all(&batch(10));
    assert_eq!(counts(&sender), (10, 20));
    let mut stream = listener.accept().unwrap().0;
    let mut head = [0; 18];
    stream.read_exact(&mut head).unwrap();
    assert_eq!((&head[..2], &head[8..12], &head[16..]), (&[0, 10][..], &[0; 4][..], &[0, 2][..]));
    // The collector closes the connection, and the sender notices before it sends the next batch. The next
    // connection starts from scratch.
    drop(stream);
    while let CollectorConnection::Tcp(stream) = &sender.line
        && !is_closed(stream)
    {}
    sender.send_all(&batch(10));
    assert_eq!(counts(&sender), (10, 30));
    sender.line = CollectorConnection::Down(Instant::now(), PAUSES[0]);
    sender.send_all(&batch(10));
    let mut stream = listener.accept().unwrap().0;
    stream.read_exact(&mut head).unwrap();
    assert_eq!((&head[8..12], &head[16..]), (&[0; 4][..], &[0, 2][..]));
    assert_eq!(counts(&sender), (20, 30));
}
