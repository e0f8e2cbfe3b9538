//! Partial link failures: links that lose a few frames, or those of some source ports, or mark frames.

use crate::bed::{LINKS, PathNetwork, Stream, few_are_lost};
use serde_json::Value;
use weir_bpf::{Impairment, TcImpair, class_of};

/// Attaches a program to the end of a link towards host b.
pub fn impaired(bed: &PathNetwork, link: usize) -> TcImpair {
    bed.within("r1", || {
        let mut impair = TcImpair::load(4789).unwrap();
        impair.attach(&format!("p{link}")).unwrap();
        impair
    })
}

/// Returns the path over a link, as shown.
pub fn path_by(bed: &PathNetwork, link: usize) -> Option<Value> {
    let shown = bed.ask(&["show", "path"])?;
    let paths = shown.pointer("/path/0/nodes/0/paths")?.as_array()?.clone();
    let hop = format!("10.9.{link}.2");
    paths
        .into_iter()
        .find(|path| path["hops"].as_array().is_some_and(|hops| hops.contains(&hop.as_str().into())))
}

/// Returns a bed with four good paths, a stream over one of them, and the link that it takes.
fn flow(name: char) -> Option<(PathNetwork, Stream, usize)> {
    let mut bed = PathNetwork::build(name)?;
    bed.start();
    bed.wait_for("four good paths", PathNetwork::paths);
    let mut stream = Stream::open(&bed, 7001);
    stream.lost_of(50);
    let link = bed.wait_for("the flow's link", |bed| bed.link_of(7001));
    Some((bed, stream, link))
}

#[test]
fn a_path_that_loses_some_probes_is_grey_and_left() {
    let Some((bed, mut stream, link)) = flow('l') else { return };
    let mut impair = impaired(&bed, link);
    // Three times the threshold for a grey path, so that chance does not keep it below for long.
    impair.set(&Impairment { lost: 0.03, ..Impairment::default() }).unwrap();
    bed.wait_for("a grey path that is not used", |bed| {
        stream.lost_of(500);
        let is_grey = path_by(bed, link)?["state"] == "grey";
        (is_grey && bed.link_of(7001)? != link).then_some(())
    });
    assert!(impair.counts().lost > 0);
    // No flow takes it: only probes are left there, not all of which need to use this link.
    let before = impair.counts().seen;
    let lost = stream.lost_of(1000);
    assert!(impair.counts().seen - before < 500 && lost < 20, "{lost} of 1000 were lost");
    impair.set(&Impairment::default()).unwrap();
    bed.wait_for("no grey path", |bed| {
        let state = path_by(bed, link)?["state"].clone();
        (state == "good" || state == "returning").then_some(())
    });
}

/// Lets the port of the path that a flow takes lose everything, until the path has another one. Returns how
/// many packets were lost.
fn port_dies(bed: &PathNetwork, stream: &mut Stream) -> usize {
    bed.wait_for("four good paths", |bed| bed.paths().filter(|paths| paths.len() == LINKS));
    let link = bed.wait_for("the flow's link", |bed| {
        stream.lost_of(50);
        bed.link_of(7001)
    });
    let port = path_by(bed, link).unwrap()["port"].as_u64().unwrap() as u16;
    let mut impair = impaired(bed, link);
    // A third of the ports of this link, including that of its path.
    impair.set(&Impairment { class_lost: Some((3, class_of(port, 3))), ..Impairment::default() }).unwrap();
    let lost = stream.lost_of(1000);
    let path = bed.wait_for("the path by another port", |bed| {
        stream.lost_of(100);
        path_by(bed, link).filter(|path| path["port"] != port && path["state"] == "good")
    });
    let now = path["port"].as_u64().unwrap() as u16;
    assert_ne!(class_of(now, 3), class_of(port, 3));
    assert!(impair.counts().lost_by_class > 0);
    impair.set(&Impairment::default()).unwrap();
    lost
}

#[test]
fn a_path_whose_port_dies_goes_on_by_another_port() {
    let Some((bed, mut stream, _)) = flow('h') else { return };
    few_are_lost(|| port_dies(&bed, &mut stream));
}

#[test]
fn marks_drive_new_flows_away() {
    let Some((bed, mut stream, link)) = flow('m') else { return };
    let mut impair = impaired(&bed, link);
    // So slow that probes alone fill it.
    impair.set(&Impairment { queue: Some((1000, 500)), ..Impairment::default() }).unwrap();
    bed.wait_for("a congested path with little weight", |bed| {
        stream.lost_of(100);
        let path = path_by(bed, link)?;
        let is_light = path["weight"].as_u64()? <= 128;
        (path["state"] == "congested" && path["why"] == "packets are ECN-marked" && is_light).then_some(())
    });
    assert!(impair.counts().marked > 0);
    for port in 8000..8060 {
        Stream::open(&bed, port).lost_of(1);
    }
    let flows = bed.wait_for("sixty new flows", |bed| {
        let flows = bed.ask(&["path", "conntrack", "fabric"])?["flows"].as_array()?.clone();
        let new = |flow: &Value| flow["dport"].as_u64().is_some_and(|port| (8000..8060).contains(&port));
        let flows: Vec<Value> = flows.into_iter().filter(new).collect();
        (flows.len() == 60).then_some(flows)
    });
    let path = path_by(&bed, link).unwrap();
    let there = flows.iter().filter(|flow| flow["port"] == path["port"]).count();
    assert!(there < 60 / LINKS / 2, "{there} of 60 flows are on the marked path");
}
