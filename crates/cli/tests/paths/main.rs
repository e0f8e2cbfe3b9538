//! The `path` app on real tunnels: two hosts with VXLAN, two routers, four links between them, all in network
//! namespaces. Needs root; skipped without, except in CI.

mod bed;
mod impaired;
mod narrow;
mod one_sided;
mod openflow;
mod silent;
mod six;
#[path = "../spaces/mod.rs"]
mod spaces;
mod uplinks;

use bed::{LINKS, PathNetwork, Stream, few_are_lost};
use std::collections::BTreeSet;

/// Lets the link that a flow takes lose everything, until the flow has left it. Returns how many packets were
/// lost.
fn link_fails(bed: &PathNetwork, stream: &mut Stream) -> usize {
    bed.wait_for("four good paths", |bed| bed.paths().filter(|paths| paths.len() == LINKS));
    // If the test is kept from sending, that makes a pause, after which the flow may move: then try once
    // more.
    let link = bed.wait_for("500 packets by one link", |bed| {
        let before = bed.sent_by_link();
        let lost = stream.lost_of(500);
        let link = bed.wait_for("the flow's link", |bed| bed.link_of(7001));
        let sent = bed.sent_by_link()[link] - before[link];
        (lost == 0 && sent >= 500).then_some(link)
    });

    // The link still has carrier, but nothing arrives.
    bed.ip("r1", &format!("neigh replace 10.9.{link}.2 lladdr 02:de:ad:00:00:01 dev p{link}"));
    let lost = stream.lost_of(1000);
    bed.wait_for("the flow leaves the link", |bed| {
        stream.lost_of(1);
        bed.link_of(7001).filter(|now| *now != link)
    });
    bed.ip("r1", &format!("neigh del 10.9.{link}.2 dev p{link}"));
    lost
}

#[test]
fn four_paths_are_found_a_flow_takes_one_and_leaves_it_when_it_loses_everything() {
    let Some(mut bed) = PathNetwork::build('p') else { return };
    bed.start();
    let paths = bed.wait_for("four good paths", PathNetwork::paths);
    let hops: BTreeSet<String> = paths.iter().map(|path| path["hops"].to_string()).collect();
    let all = (0..LINKS).map(|link| format!(r#"["10.0.1.254","10.9.{link}.2"]"#)).collect();
    assert_eq!((paths.len(), hops), (LINKS, all));

    let mut stream = Stream::open(&bed, 7001);
    // The first packets wait for ARP.
    stream.lost_of(50);
    few_are_lost(|| link_fails(&bed, &mut stream));

    let attached = |bed: &PathNetwork| bed.within("a", || weir_path::bpf::programs_at("up0").unwrap());
    assert_eq!(attached(&bed), 2);
    // SIGKILL: it cannot clean up.
    let daemon = bed.daemons[0];
    bed.run_mut().kill(daemon).unwrap();
    bed.wait_for("nothing is left at the uplink", |bed| (attached(bed) == 0).then_some(()));
}

#[test]
fn the_doctor_says_what_is_wrong_with_a_node_and_its_fabric() {
    let Some(mut bed) = PathNetwork::build('d') else { return };
    bed.configure("a");
    bed.wait_for_doctor("fabric", "warning", "no weir daemon is running here");
    bed.start_at("a");
    bed.wait_for_doctor("fabric", "fault", "it does not answer probes: run weir there");
    ["r1", "r2"].iter().for_each(|router| bed.set(router, &["net.ipv4.fib_multipath_hash_policy=0"]));
    bed.start_at("b");
    bed.wait_for_doctor("fabric", "warning", "probes from 32 source ports took one path");
    let node = bed.ask(&["show", "path"]).and_then(|shown| shown.pointer("/path/0/nodes/0/state").cloned());
    assert!(node.is_some_and(|state| state.as_str().is_some_and(|state| state.contains("uses ECMP"))));
    let mut stream = Stream::open(&bed, 7001);
    stream.lost_of(50);
    bed.wait_for("frames keep the kernel's port", |bed| {
        let shown = bed.ask(&["show", "path"])?;
        (shown.pointer("/path/0/counts/path_unsteered")?.as_u64()? > 0).then_some(())
    });
    ["r1", "r2"].iter().for_each(|router| bed.set(router, &["net.ipv4.fib_multipath_hash_policy=1"]));
    bed.wait_for_doctor("fabric", "ok", "the fabric hashes source ports: 4 paths");

    // Without a device below it, the kernel uses 1500.
    bed.ip("a", "link set dev vx mtu 1450");
    for check in ["mtu", "source_ports", "uplink", "route", "kernel", "hash_policy"] {
        bed.wait_for_doctor(check, "ok", "");
    }
    bed.ip("a", "link set dev vx mtu 1500");
    bed.wait_for_doctor("mtu", "fault", "`ip link set vx mtu 1450`");
    bed.set("a", &["net.ipv4.ip_forward=1", "net.ipv4.fib_multipath_hash_policy=0", "net.core.txrehash=0"]);
    bed.wait_for_doctor("hash_policy", "warning", "`sysctl -w net.ipv4.fib_multipath_hash_policy=1`");
    bed.wait_for_doctor("rehash", "warning", "net.core.txrehash=1");
    bed.ip("a", "route replace 10.0.2.1/32 dev lo");
    bed.wait_for_doctor("route", "fault", "its route uses `lo`");
}
