//! Nodes whose pipes send and answer probes talk to nodes whose programs in the kernel do. The programs need
//! root.

use bpf::{BUCKETS, PathOut, PathPeer, PathSettings, Steer, TcPath};
use path::wire::{Kind, Outer, Packet, Secret, VNI};
use std::net::Ipv4Addr;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 1);
const SECRET: [u64; 2] = [0x0123_4567_89ab_cdef, 42];
const PORT: u16 = 50_001;

/// A probe of the pipes.
fn probe(source: Ipv4Addr, destination: Ipv4Addr) -> Packet {
    let macs = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 1]];
    let (marked, id, ttl) = (false, 0, 64);
    let outer = Outer { macs, source, destination, port: PORT, vxlan_port: 4789, dscp: 10, marked, id, ttl };
    Packet::request(outer, (7, 0x0102_0304), 5, 1_000)
}

/// The programs with a peer; `None` without root.
fn programs() -> Option<TcPath> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    if !status.lines().any(|line| line.starts_with("Uid:\t0\t")) {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root");
        eprintln!("skipped: needs root");
        return None;
    }
    let mut programs = TcPath::load(4, 16).unwrap();
    let settings = PathSettings {
        steer: Steer::Ecmp,
        vxlan_port: 4789,
        sources: [49_152, 65_535],
        answers: 1_000,
        answers_burst: 100,
        pinned_ms: 10_000,
        gap_us: 50_000,
        noise_ns: 1000,
        reroute_bytes: 64_000,
        gain_ns: 100_000,
        hold_us: 1000,
        drain_ns: 819,
        half_life_us: 1000,
        probe_vni: VNI,
        secret: SECRET,
    };
    programs.set(&settings).unwrap();
    let paths = vec![PathOut { port: PORT, usable: true, congested: false, cost_ns: 0 }];
    programs.set_peer(PEER, &PathPeer { index: 1, paths, buckets: [0; BUCKETS] }).unwrap();
    Some(programs)
}

#[test]
fn each_form_answers_the_other() {
    let Some(mut programs) = programs() else { return };
    let (_, answer) = programs.test_reflect(&probe(PEER, HERE).frame(Secret(SECRET))).unwrap();
    let answer = Packet::read(&answer, 4789, Secret(SECRET)).unwrap();
    assert_eq!((answer.kind, answer.number, answer.sent_ns), (Kind::Answer, 0x0102_0304, 1_000));
    assert_eq!((answer.outer.source, answer.outer.destination, answer.hops), (HERE, PEER, 64));

    let answer = probe(HERE, PEER).answer(PORT, 9).frame(Secret(SECRET));
    programs.test_reflect(&answer).unwrap();
    assert_eq!(programs.counters().collected, 1);
    let collected = programs.answer().unwrap();
    assert_eq!((collected.peer, collected.number, collected.port), (PEER, 0x0102_0304, PORT));
    assert_eq!((collected.sent_ns, collected.reflected_ns, collected.ttl), (1_000, 9, 64));
}
