//! Tunnels over IPv6, with IPv6 inside.

use crate::bed::{PathNetwork, SPINES, Stream, few_are_lost};
use serde_json::Value;
use std::collections::BTreeSet;

/// Returns both paths, when they are good.
fn two_good(bed: &PathNetwork) -> Option<Vec<Value>> {
    bed.paths().filter(|paths| paths.len() == SPINES)
}

/// Lets the router that a flow takes lose everything, until the flow has left it. Returns how many packets
/// were lost.
fn spine_fails(bed: &PathNetwork, stream: &mut Stream) -> usize {
    bed.wait_for("two good paths", two_good);
    let path = bed
        .wait_for("the flow's path", |bed| (stream.lost_of(300) == 0).then(|| bed.path_of(7001)).flatten());
    let spine = path["hops"][1].as_str().expect("a router").to_string();
    let link = if spine == "fd09:1:1::2" { "x0" } else { "x1" };
    bed.ip("r1", &format!("neigh replace {spine} lladdr 02:de:ad:00:00:01 dev {link}"));
    let lost = stream.lost_of(1000);
    bed.wait_for("the flow leaves the router", |bed| {
        stream.lost_of(1);
        bed.path_of(7001).filter(|path| path["hops"][1] != spine.as_str())
    });
    bed.ip("r1", &format!("neigh del {spine} dev {link}"));
    lost
}

#[test]
fn over_ipv6_paths_are_found_and_a_failed_one_is_left() {
    let Some(mut bed) = PathNetwork::build('6') else { return };
    bed.over_six();
    bed.start();
    let paths = bed.wait_for("two good paths", two_good);
    let spines: BTreeSet<&str> = paths.iter().filter_map(|path| path["hops"][1].as_str()).collect();
    assert_eq!(spines, BTreeSet::from(["fd09:1:1::2", "fd09:1:2::2"]));
    assert!(paths.iter().all(|path| path["hops"][0] == "fd00:1::ff"));

    let mut stream = Stream::open(&bed, 7001);
    // The first packets wait for neighbours.
    stream.lost_of(50);
    few_are_lost(|| spine_fails(&bed, &mut stream));
    bed.wait_for("two good paths", two_good);
    let text = bed.output_of(&["path", "conntrack", "fabric"]);
    assert!(text.contains("fd06::1") && text.contains("by fd00:2::1"), "{text}");
    let output_of = bed.output_of(&["show", "path"]);
    assert!(output_of.contains("fd00:2::1: 2 paths") && output_of.contains("fd09:1:2::2"), "{output_of}");

    devices_come_and_go(&bed, &mut stream);
}

/// A device that vanishes is reported once, and frames continue with the kernel's ports.
fn devices_come_and_go(bed: &PathNetwork, stream: &mut Stream) {
    let obstacle = |bed: &PathNetwork| bed.ask(&["show", "path"])?.pointer("/path/0/obstacle").cloned();
    bed.ip("a", "link set dev up0 name gone0");
    bed.wait_for("an obstacle", |bed| obstacle(bed)?.as_str().map(|_| ()));
    assert!(stream.lost_of(300) < 30);
    bed.ip("a", "link set dev gone0 name up0");
    let is_free = |bed: &PathNetwork| {
        bed.ask(&["show", "path"])?.pointer("/path/0")?.get("obstacle").is_none().then_some(())
    };
    bed.wait_for("no obstacle", is_free);
    let shown = bed.ask(&["show", "path"]).expect("it runs");
    let events = shown.pointer("/path/0/events").and_then(Value::as_array).expect("events");
    let says = |event: &&Value| event["what"].as_str().is_some_and(|what| what.contains("no interface"));
    assert_eq!(events.iter().filter(says).count(), 1, "{events:?}");
    bed.ip("a", "link del vx6");
    bed.tunnel_over_six("a");
    let mut stream = Stream::open(bed, 7002);
    stream.lost_of(50);
    assert!(stream.lost_of(300) < 30);
    bed.wait_for("the flow's path", |bed| bed.path_of(7002));
}
