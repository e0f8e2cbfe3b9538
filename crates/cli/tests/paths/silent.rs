//! Routers that do not reveal their address.

use crate::bed::{LINKS, PathNetwork, Stream};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_packet::random::Random;

#[test]
fn without_icmp_ports_are_paths_until_their_delays_tell_and_a_failed_one_is_left() {
    let Some(mut bed) = PathNetwork::build('s') else { return };
    for router in ["r1", "r2"] {
        // Time exceeded, once in a thousand seconds.
        bed.set(router, &["net.ipv4.icmp_ratelimit=1000000", "net.ipv4.icmp_ratemask=2048"]);
    }
    for link in 0..LINKS {
        bed.tc(&format!("qdisc add dev p{link} root tbf rate 20mbit burst 4kb limit 400kb"));
    }
    bed.start();
    let ports = bed.wait_for("ports for paths", |bed| {
        let shown = bed.ask(&["show", "path"])?;
        let state = shown.pointer("/path/0/nodes/0/state")?.as_str()?;
        let says_so = state.contains("routers do not identify themselves: 16 ports");
        says_so.then_some(bed.paths()?.len())
    });
    assert_eq!(ports, 16);

    let stops = AtomicBool::new(false);
    let found = std::thread::scope(|scope| {
        // All links but the first have queues that come and go independently.
        for link in 1..LINKS {
            let (bed, stops) = (&bed, &stops);
            scope.spawn(move || bed.within("r1", || bursts(link, stops)));
        }
        let found = bed.wait_for("ports of one link taken for one path", |bed| {
            let paths = bed.ask(&["show", "path"])?.pointer("/path/0/nodes/0/paths")?.as_array()?.len();
            (paths + 3 <= ports).then_some(paths)
        });
        stops.store(true, Ordering::Relaxed);
        found
    });
    eprintln!("{found} paths of {ports} ports");
    assert!(found >= LINKS - 1, "one of four links may have none of 16 ports");

    let mut stream = Stream::open(&bed, 7001);
    stream.lost_of(50);
    // If the test is kept from sending, that makes a pause, after which the flow may be elsewhere: then try
    // once more.
    bed.wait_for("the flow's link fails under it", |bed| {
        let before = bed.sent_by_link();
        stream.lost_of(300);
        let sent = bed.sent_by_link();
        let link = (0..LINKS).max_by_key(|link| sent[*link] - before[*link]).expect("links");
        bed.ip("r1", &format!("neigh replace 10.9.{link}.2 lladdr 02:de:ad:00:00:01 dev p{link}"));
        let met = stream.lost_of(20) > 0;
        if !met {
            bed.ip("r1", &format!("neigh del 10.9.{link}.2 dev p{link}"));
        }
        met.then_some(())
    });
    // Every port of the link fails independently, and the flow may meet several of them.
    bed.wait_for("the flow leaves the link", |_| (stream.lost_of(300) == 0).then_some(()));
}

/// Fills the queue of a link now and then, for 33 ms.
fn bursts(link: usize, stops: &AtomicBool) {
    let socket = UdpSocket::bind((format!("10.9.{link}.1"), 0)).unwrap();
    let mut random = Random::new(link as u64);
    while !stops.load(Ordering::Relaxed) {
        for _ in 0..60 {
            let _ = socket.send_to(&[0; 1400], (format!("10.9.{link}.2"), 9));
        }
        std::thread::sleep(Duration::from_millis(30 + random.below(60)));
    }
}
