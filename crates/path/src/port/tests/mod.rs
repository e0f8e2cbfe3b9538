//! The app and its program in an engine, on a virtual clock, in front of a fabric of four links.

mod discovery;
mod rig;

use crate::paths::MISSES_MAX;
use crate::port::PathPort;
use crate::scheme::Scheme;
use crate::tunnel::PathTunnel;
use crate::wire::{FRAME, Kind, Packet, Secret};
use rig::*;
use serde_json::json;
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use weir_packet::KeySource;

fn adaptive() -> TunnelRig {
    TunnelRig::new(config(Scheme::Adaptive))
}

#[test]
fn a_first_packet_leaves_at_once_and_its_flow_keeps_its_port() {
    let mut rig = adaptive();
    for flow in 0..100 {
        rig.send(flow);
    }
    let second: Vec<u16> = (0..100).map(|flow| rig.send(flow)).collect();
    rig.run(SEC);
    let later: Vec<u16> = (0..100).map(|flow| rig.send(flow)).collect();
    assert_eq!(second, later);
    assert_eq!(second.iter().copied().collect::<BTreeSet<_>>(), PORTS.into(), "all paths are used");
    assert_eq!((rig.pinned(), rig.count("pinned"), rig.refused.len()), (100, 100, 0));
}

#[test]
fn what_weir_encapsulates_keeps_its_port_as_well() {
    for key in [KeySource::Inner, KeySource::Outer] {
        let mut rig = TunnelRig::new(PathPort { input: None, key, ..config(Scheme::Adaptive) });
        (0..50).for_each(|flow| _ = rig.send(flow));
        let second: Vec<u16> = (0..50).map(|flow| rig.send(flow)).collect();
        assert_eq!(second.iter().copied().collect::<BTreeSet<_>>(), PORTS.into(), "all paths are used");
        assert_eq!((rig.pinned(), rig.count("pinned"), rig.refused.len()), (50, 50, 0), "{key:?}");
    }
}

#[test]
fn both_forms_take_the_same_port_for_the_same_path() {
    let mut rig = adaptive();
    rig.links[2].is_cut = true;
    rig.run_with(64, 2 * SEC);
    // The form at an uplink places frames of the kernel's VXLAN by these, as a test of crate bpf shows.
    let offers = rig.app.nodes[0].paths.offers();
    assert_eq!(offers.iter().map(|offer| offer.port).collect::<Vec<_>>(), PORTS);
    let mut used = BTreeSet::new();
    for flow in 0..64 {
        let port = rig.send(flow);
        let path = offers.iter().position(|offer| offer.port == port).expect("a port of a path");
        assert!(offers[path].weight > 0, "the other form would not take path {path}");
        used.insert(path);
    }
    assert_eq!(used, [0, 1, 3].into());
}

#[test]
fn frames_to_strangers_pass_as_they_are() {
    let mut rig = adaptive();
    rig.frame(INPUT, &data(Ipv4Addr::new(10, 0, 0, 77), 1, 61_234));
    assert_eq!(rig.sent[0].port, 61_234);
    assert_eq!(rig.pinned(), 0);
}

#[test]
fn probes_have_the_right_lengths_and_are_answered() {
    let mut rig = adaptive();
    rig.run_with(4, SEC);
    assert_eq!(rig.states(), ["good"; 4]);
    assert!(rig.injected.len() > 300, "{}", rig.injected.len());
    for frame in &rig.injected {
        assert_eq!((frame.len(), &frame[16..18], &frame[38..40]), (FRAME, &[0, 84][..], &[0, 64][..]));
    }
    assert_eq!(rig.count("late"), 0);
    let shown = rig.show();
    let path = &shown["nodes"][0]["paths"][1];
    assert_eq!((&path["port"], &path["loss"]), (&serde_json::json!(PORTS[1]), &serde_json::json!(0.0)));
    assert!(path["rtt_us"].as_f64().unwrap() >= 200.0 && path["bytes"].as_u64().unwrap() > 0, "{path}");
}

#[test]
fn a_node_that_nothing_is_sent_to_is_probed_seldom() {
    let mut rig = adaptive();
    rig.run(60 * SEC);
    assert!((220..=260).contains(&rig.injected.len()), "a round each second: {}", rig.injected.len());
    assert_eq!(rig.states(), ["good"; 4]);
    rig.run_with(1, SEC);
    let before = rig.injected.len();
    rig.run_with(1, SEC);
    assert!((340..=440).contains(&(rig.injected.len() - before)), "{}", rig.injected.len() - before);
}

#[test]
fn a_path_that_fails_has_no_packet_after_three_missed_probes() {
    let mut rig = adaptive();
    rig.run_with(64, 500 * MS);
    rig.links[2].is_cut = true;
    let cut_ns = rig.now_ns;
    rig.run_with(64, 500 * MS);
    let last = rig.sent.iter().rfind(|one| one.port == PORTS[2]).expect("it was used");
    assert!(last.at_ns < cut_ns + 50 * MS, "{} ms", (last.at_ns - cut_ns) / MS);
    assert_eq!(rig.states()[2], "failed");
    assert!(rig.said.iter().any(|line| line.contains("path 2 to 10.0.0.2")), "{:?}", rig.said);
    assert_eq!(MISSES_MAX, 3);

    rig.links[2].is_cut = false;
    rig.run_with(64, 5 * SEC);
    assert_eq!(rig.states()[2], "good");
    assert!(
        rig.sent.last().unwrap().at_ns > cut_ns
            && rig.sent[rig.sent.len() - 64..].iter().any(|one| one.port == PORTS[2])
    );
}

#[test]
fn buckets_leave_a_long_queue_few_at_a_time() {
    let mut rig = adaptive();
    rig.run_with(64, 500 * MS);
    rig.moves.clear();
    rig.links[1].delay_ns += 3 * MS;
    rig.run_with(64, 3 * SEC);
    assert_eq!(rig.states()[1], "congested");
    assert!(!rig.moves.is_empty() && rig.moves.iter().all(|count| *count <= crate::buckets::MOVES_MAX));
    let recent = &rig.sent[rig.sent.len() - 6400..];
    let share = recent.iter().filter(|one| one.port == PORTS[1]).count();
    assert!(share < 6400 / 8, "{share} of 6400");
}

#[test]
fn without_answers_traffic_is_spread_and_goes_on() {
    let mut rig = adaptive();
    rig.answers = false;
    rig.run_with(64, 2 * SEC);
    assert_eq!(rig.states(), ["failed"; 4]);
    let recent = &rig.sent[rig.sent.len() - 64..];
    assert_eq!(recent.iter().map(|one| one.port).collect::<BTreeSet<_>>(), PORTS.into());
}

#[test]
fn a_reload_keeps_flows_buckets_and_states() {
    let mut rig = adaptive();
    rig.links[3].is_cut = true;
    rig.run_with(64, SEC);
    let before: Vec<u16> = (0..64).map(|flow| rig.send(flow)).collect();
    rig.moves.clear();
    let mut new = config(Scheme::Adaptive);
    let other = new.peers[0];
    new.peers.insert(0, crate::port::Peer { address: Ipv4Addr::new(10, 0, 0, 9), ..other });
    rig.reload(new);
    let after: Vec<u16> = (0..64).map(|flow| rig.send(flow)).collect();
    assert_eq!((before, rig.pinned(), rig.refused.len()), (after, 64, 0));
    assert_eq!(rig.moves, [64], "those of the new peer");
    let shown = rig.show();
    assert_eq!(shown["nodes"][1]["paths"][3]["state"], "failed");
    rig.run_with(64, 100 * MS);
    let later = rig.show();
    let path = &later["nodes"][1]["paths"][0];
    assert_eq!((&path["state"], &path["loss"]), (&serde_json::json!("good"), &serde_json::json!(0.0)));
    assert!(path["probes"].as_u64() > Some(50), "what was known about the path is kept: {path}");
    rig.reload(config(Scheme::Adaptive));
    rig.run_with(64, 100 * MS);
    assert_eq!(rig.refused.len(), 0);
}

#[test]
fn ten_times_16_384_flows_leave_no_state_behind() {
    for scheme in [Scheme::Adaptive, Scheme::DocaAr] {
        let mut rig = TunnelRig::new(config(scheme));
        for round in 0..10 {
            for flow in 0..16_384 {
                rig.send(round * 16_384 + flow);
                if flow % 64 == 0 {
                    rig.run(20 * MS);
                }
            }
            rig.run(12 * SEC);
            rig.age();
            assert_eq!((rig.pinned(), rig.app.waiting.len()), (0, 0), "{scheme} round {round}");
        }
        assert_eq!((rig.count("unpinned"), rig.refused.len()), (0, 0), "{scheme}");
        assert_eq!(rig.count("pinned"), 163_840, "{scheme}");
    }
}

#[test]
fn a_full_table_costs_nobody_a_packet() {
    let mut few = config(Scheme::Adaptive);
    few.flows = 16;
    let mut rig = TunnelRig::new(few);
    (0..200).for_each(|flow| _ = rig.send(flow));
    assert_eq!((rig.pinned(), rig.count("unpinned")), (16, 184));
    assert_eq!(rig.refused.len(), 1, "the app does nothing");
}

#[test]
fn doca_ar_takes_the_first_answer_and_waits_for_nobody() {
    let mut rig = TunnelRig::new(config(Scheme::DocaAr));
    (0..4).for_each(|link| rig.links[link].delay_ns = MS * (4 - link as u64));
    let own = rig.send(1);
    assert_eq!(rig.injected.len(), 4);
    let tried: Vec<u16> =
        rig.injected.iter().map(|frame| u16::from_be_bytes([frame[34], frame[35]])).collect();
    assert_eq!(tried, (own..own + 4).collect::<Vec<_>>());
    rig.run(20 * MS);
    let port = rig.send(1);
    assert_ne!(port, own);
    assert!(tried.contains(&port));
    rig.answers = false;
    let lonely = rig.send(2);
    rig.run(60 * MS);
    assert_eq!((rig.send(2), rig.count("timed_out"), rig.injected.len()), (lonely, 1, 8));
}

#[test]
fn ecmp_changes_nothing() {
    let mut rig = TunnelRig::new(config(Scheme::Ecmp));
    let ports: Vec<u16> = (0..9).map(|flow| rig.send(flow)).collect();
    assert_eq!(ports, (60_000..60_009).collect::<Vec<_>>());
    rig.run(SEC);
    assert_eq!(rig.injected.len(), 0);
}

/// A probe from the remote node.
fn probe(number: u32) -> Packet {
    let outer = crate::wire::Outer {
        macs: [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]],
        source: REMOTE,
        destination: LOCAL,
        port: PORTS[1],
        tunnel: PathTunnel::VXLAN,
        dscp: 0,
        marked: true,
        id: 0,
        ttl: 61,
    };
    Packet::request(outer, crate::wire::ProbeId { session: 7, number }, number as u8, 5)
}

#[test]
fn probes_of_peers_are_answered_and_no_others() {
    let mut rig = adaptive();
    rig.run(MS);
    rig.frame(0, &probe(1).frame(SECRET));
    let answers = |rig: &TunnelRig| -> Vec<Packet> {
        let all = rig.injected.iter().map(|frame| Packet::read(frame, PathTunnel::VXLAN, SECRET).unwrap());
        all.filter(|packet| packet.kind == Kind::Answer).collect()
    };
    let answer = answers(&rig)[0];
    assert_eq!((answer.kind, answer.marked, answer.hops, answer.number), (Kind::Answer, true, 61, 1));
    assert_eq!((answer.outer.source, answer.outer.destination, answer.port), (LOCAL, REMOTE, PORTS[1]));

    rig.frame(0, &probe(1).frame(SECRET));
    rig.frame(0, &probe(2).frame(Secret([9, 9])));
    let mut longer = probe(3).frame(SECRET).to_vec();
    longer.extend([0; 9]);
    rig.frame(0, &longer);
    let mut stranger = probe(4);
    stranger.outer.source = Ipv4Addr::new(10, 0, 0, 66);
    rig.frame(0, &stranger.frame(SECRET));
    let counts = ["answered", "repeated", "bad_cookie", "malformed"].map(|name| rig.count(name));
    assert_eq!((counts, answers(&rig).len()), ([1, 1, 1, 1], 1));
    assert_eq!(rig.dropped.values().sum::<u64>(), 1, "the stranger's: {:?}", rig.dropped);

    (10..2_000).for_each(|number| rig.frame(0, &probe(number).frame(SECRET)));
    assert!(rig.count("limited") > 1_500 && answers(&rig).len() < 300);
    rig.frame(0, &data(LOCAL, 1, 50_000));
    assert_eq!(rig.inside.len(), 1, "data continues to the input");
}

#[test]
fn probes_of_all_paths_are_numbered_together_and_the_session_ends_with_the_numbers() {
    // With more than four paths not all are probed in a round, so their sequence numbers diverge.
    let mut config = config(Scheme::Adaptive);
    config.ports = (50_000..50_008).collect();
    let mut rig = TunnelRig::new(config);
    rig.run_with(2, SEC);
    rig.app.nodes[0].number = u32::MAX - 20;
    rig.injected.clear();
    rig.run_with(2, SEC);
    let probes: Vec<Packet> =
        rig.injected.iter().map(|frame| Packet::read(frame, PathTunnel::VXLAN, SECRET).unwrap()).collect();
    assert!(probes.len() > 100);
    assert!(
        probes.is_sorted_by_key(|probe| (probe.session, probe.number)),
        "no peer takes one for an old \
        one"
    );
    assert_eq!(probes.last().unwrap().session, probes[0].session + 1);
    assert_eq!(rig.count("late"), 0);
}

#[test]
fn a_node_with_a_broken_way_back_is_no_node_with_grey_paths() {
    let mut rig = adaptive();
    rig.is_broken_back = true;
    rig.run_with(8, 10 * SEC);
    assert_eq!(rig.states(), ["good"; 4]);
    assert!(rig.injected.len() > 3000, "{}", rig.injected.len());
}

#[test]
fn events_say_how_long_ago_they_were() {
    let mut rig = adaptive();
    rig.links[2].is_cut = true;
    rig.run_with(4, SEC);
    let shown = rig.show();
    let ago_ms = shown["events"][0]["ago_ms"].as_u64().unwrap();
    assert!(ago_ms <= 1000, "{ago_ms}");
    assert!(shown.get("obstacle").is_none(), "{shown}");
}

#[test]
fn equal_events_give_equal_frames() {
    let run = || {
        let mut rig = adaptive();
        rig.run_with(16, 300 * MS);
        (rig.sent, rig.injected)
    };
    assert_eq!(run(), run());
}

#[test]
fn a_path_that_loses_large_frames_is_left_until_they_pass() {
    let mut rig = TunnelRig::new(PathPort { mtu: 1500, ..config(Scheme::Adaptive) });
    rig.run(20 * SEC);
    assert_eq!(rig.states(), ["good"; 4]);
    let large = rig.injected.iter().filter(|frame| frame.len() == 14 + 1500).count();
    assert!((5..=12).contains(&large), "each path once in ten seconds: {large}");
    rig.narrow = Some(1);
    rig.run(20 * SEC);
    let narrow = PORTS.iter().position(|port| rig.link_of(*port) == 1).expect("a port");
    let path = rig.show()["nodes"][0]["paths"][narrow].clone();
    assert_eq!((&path["state"], &path["large"]), (&json!("grey"), &json!("lost")));
    assert_eq!(rig.states().iter().filter(|state| *state == "good").count(), 3);
    assert!((0..100).all(|flow| rig.send(flow) != PORTS[narrow]), "no flow takes it");
    rig.narrow = None;
    rig.run(20 * SEC);
    assert_eq!(rig.states(), ["good"; 4]);
}
