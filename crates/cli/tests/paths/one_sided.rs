//! weir on one host only: the remote node is unmodified, so the other end of the tunnel is the kernel's
//! alone. Routers answer once a second, which is their default.

use crate::bed::{LINKS, PathNetwork};
use crate::impaired::{impaired, path_by};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use weir_bpf::Impairment;

/// Sends short messages over one connection after another until `until` is met; each gets an answer.
fn messages(bed: &PathNetwork, port: u16, until: impl Fn() -> bool) {
    let listener = bed.within("b", || TcpListener::bind(("192.168.0.2", port)).unwrap());
    let answerer = thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut all = Vec::new();
            let _ = stream.read_to_end(&mut all);
            if all == b"end" {
                return;
            }
            let _ = stream.write_all(b"yes");
        }
    });
    let send = |message: &[u8]| {
        bed.within("a", || {
            let stream = TcpStream::connect(("192.168.0.2", port)).unwrap();
            (&stream).write_all(message).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let _ = (&stream).read_to_end(&mut Vec::new());
        });
    };
    while !until() {
        send(&[7; 20_000]);
    }
    send(b"end");
    answerer.join().unwrap();
}

/// Returns the flows, if connections of the beginning have been forgotten, and those of just now have not.
fn flows_of_the_end(bed: &PathNetwork) -> Option<Vec<Value>> {
    let begin = Instant::now();
    messages(bed, 7003, || begin.elapsed() > Duration::from_millis(100));
    let flows = bed.ask(&["path", "conntrack", "fabric"])?["flows"].as_array()?.clone();
    let is_to = |port: u16| flows.iter().any(|flow| flow["dport"] == port);
    (is_to(7003) && !is_to(7001)).then_some(flows)
}

fn number(path: &Value, pointer: &str) -> u64 {
    path.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

#[test]
fn without_help_paths_are_found_and_connections_leave_one_that_loses_segments() {
    let Some(mut bed) = PathNetwork::build('o') else { return };
    ["r1", "r2"].iter().for_each(|router| bed.set(router, &["net.ipv4.icmp_ratelimit=1000"]));
    bed.configure_alone();
    bed.start_alone();
    let paths = bed.wait_for("four good paths", |bed| bed.paths().filter(|paths| paths.len() == LINKS));
    let asks: std::collections::BTreeSet<&str> =
        paths.iter().filter_map(|path| path["asks"].as_str()).collect();
    assert_eq!(asks, (0..LINKS).map(|link| ["10.9.0.2", "10.9.1.2", "10.9.2.2", "10.9.3.2"][link]).collect());
    let said = bed.output_of(&["show", "path"]);
    assert!(said.contains("remote nodes are unmodified") && said.contains("asks 10.9.3.2; TCP"), "{said}");

    // Connections reveal every path.
    let begin = Instant::now();
    messages(&bed, 7001, || {
        let paths = bed.paths().unwrap_or_default();
        assert!(begin.elapsed() < Duration::from_secs(60), "{paths:?}");
        paths.len() == LINKS
            && paths.iter().all(|path| {
                number(path, "/tcp/acknowledgements") > 10
                    && path.pointer("/tcp/rtt_us").is_some_and(|rtt| *rtt != 0.0)
            })
    });
    bed.wait_for_doctor("fabric", "ok", "TCP connections have revealed 4");

    // A link loses a third of what it gets: connections reveal it, and new ones avoid it.
    let mut impair = impaired(&bed, 2);
    impair.set(&Impairment { lost: 0.3, ..Impairment::default() }).unwrap();
    let is_bad = |bed: &PathNetwork| {
        path_by(bed, 2).filter(|path| path["state"] != "good" && number(path, "/tcp/again") > 0)
    };
    messages(&bed, 7002, || {
        assert!(begin.elapsed() < Duration::from_secs(120), "{:?}", path_by(&bed, 2));
        is_bad(&bed).is_some()
    });
    let before = path_by(&bed, 2).unwrap();
    let begin = Instant::now();
    messages(&bed, 7003, || begin.elapsed() > Duration::from_secs(2));
    let counts = |path: &Value| number(path, "/new_flows");
    let after = path_by(&bed, 2).unwrap();
    let shown = bed.ask(&["show", "path"]).unwrap();
    let all: u64 =
        shown.pointer("/path/0/nodes/0/paths").unwrap().as_array().unwrap().iter().map(counts).sum();
    let new = counts(&after) - counts(&before);
    assert!(new * LINKS as u64 * 2 < all, "{new} of {all} connections: {before} {after}");
    assert!(impair.counts().lost > 0);
    let flows = bed.wait_for("flows of the end", flows_of_the_end);
    assert!(flows.iter().any(|flow| flow["decision"] == "at_first" && flow["state"] == "open"), "{flows:?}");
    assert!(bed.output_of(&["path", "conntrack", "fabric"]).contains(", at_first: "));
    // Loss of a path's own echo requests is known from its router.
    assert!(number(&after, "/probes") > 0, "{after}");
}
