//! Phases about frames: long frames, segments, checksums, an end without a cache, other programs at the same
//! interfaces.

use anyhow::Result;

use super::bed::OverlayBed;
use super::phases::{Phase, SOME, TCP, UDP};
use super::topology::{PORT, UPLINK, pod};
use crate::Interrupt;
use weir_bed::Run;

/// Requests that just fit a pod's MTU, with Don't Fragment set.
const LONG_UDP: [&str; 6] = ["--flows", "4", "--pause-ms", "5", "--size", "1400"];
/// Requests of many segments.
const LONG_TCP: [&str; 7] = ["--tcp", "--flows", "2", "--pause-ms", "5", "--size", "60000"];
/// The longest frame that a pod may send, and the shortest possible TCP frame.
const FRAMES: [u64; 2] = [14 + 1450, 14 + 20 + 20];

/// The priority of a foreign filter.
const FOREIGN: &str = "10";

/// Frames that no longer fit the underlay are fragmented by the kernel, as without a cache.
pub fn long_frames(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talks = [bed.ask(run, &LONG_UDP)?, bed.ask(run, &LONG_TCP)?];
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let oversize = |bed: &OverlayBed| {
        anyhow::Ok(bed.show(0)?["frames"]["sent"]["oversize"].as_u64().unwrap_or_default())
    };
    let before = oversize(bed)?;
    for mtu in [1400, 1500] {
        bed.set_mtu(mtu)?;
        for talk in &talks {
            phase.must(
                bed.wait_for_answers(talk, SOME, interrupt)?,
                format!("no answers with an MTU of {mtu}"),
            );
        }
    }
    phase.must(oversize(bed)? > before, "nothing was too long");
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path");
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    // Between the changes on the two nodes, one sends frames that the other does not accept.
    phase.must(phase.lost < phase.sent / 10, "many requests were lost");
    Ok(phase)
}

/// Segmentation and checksums, done by the pods or offloaded; a frame of several segments counts as that many
/// packets.
pub fn segments_and_checksums(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    for offload in [&["tx", "off"][..], &["tx", "on"], &["gro", "on"], &["gso", "off", "tso", "off"]] {
        for pod in [&bed.topology.pods[0][0], &bed.topology.pods[1][0]] {
            pod.output("ethtool", &[&["-K", "eth0"], offload].concat())?;
        }
        let talks = [bed.ask(run, &LONG_TCP)?, bed.ask(run, &UDP)?];
        phase.must(bed.wait_for_fast(0, SOME, interrupt)?, format!("no fast path with {offload:?}"));
        for talk in &talks {
            phase.must(bed.wait_for_answers(talk, SOME, interrupt)?, format!("no answers with {offload:?}"));
        }
        let flows = bed.flows(0)?;
        for flow in flows["flows"].as_array().into_iter().flatten() {
            let of = |what: &str| flow[what]["sent"].as_u64().unwrap_or_default();
            let (packets, bytes) = (of("packets"), of("bytes"));
            // Each segment has its own headers, as on the wire.
            let [longest, shortest] = FRAMES.map(|length| packets * length);
            phase.must(
                (shortest..=longest).contains(&bytes),
                format!("{bytes} bytes in {packets} packets: {flow}"),
            );
        }
        for talk in talks {
            phase.add(&talk.end(run, interrupt)?);
        }
    }
    for pod in [&bed.topology.pods[0][0], &bed.topology.pods[1][0]] {
        pod.output("ethtool", &["-K", "eth0", "gso", "on", "tso", "on", "gro", "off"])?;
    }
    phase.must(phase.lost == 0, "requests were lost");
    Ok(phase)
}

/// Only one end has a cache, with complete checksums from the pods; then only the other.
pub fn one_end_alone(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    for pod in [&bed.topology.pods[0][0], &bed.topology.pods[1][0]] {
        pod.output("ethtool", &["-K", "eth0", "tx", "off"])?;
    }
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    for (without, with) in [(1, 0), (0, 1)] {
        phase.must(bed.wait_for_fast(with, SOME, interrupt)?, "no fast path");
        run.kill(bed.daemons[without].process())?;
        phase.must(bed.wait_for_fast(with, SOME, interrupt)?, format!("no fast path at n{} alone", with + 1));
        for talk in &talks {
            phase.must(bed.wait_for_answers(talk, SOME, interrupt)?, "no answers");
        }
        bed.restart(run, without, interrupt)?;
    }
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    for pod in [&bed.topology.pods[0][0], &bed.topology.pods[1][0]] {
        pod.output("ethtool", &["-K", "eth0", "tx", "on"])?;
    }
    phase.must(phase.lost == 0, "requests were lost");
    Ok(phase)
}

/// Foreign filters at the same interfaces stay, and see the frames that the cache leaves to the kernel.
pub fn foreign_filters(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let node = &bed.topology.nodes[0];
    // Without tcx, weir's programs are filters too, placed after foreign ones. A filter that returns a
    // verdict ends the chain, so these filters leave the decision to the next one.
    let shares = bed.has_clsact(0, UPLINK)?;
    let decision: &[&str] = if shares { &["action", "continue"] } else { &["classid", "1:1"] };
    for interface in ["vp1", UPLINK] {
        if !shares {
            node.output("tc", &["qdisc", "add", "dev", interface, "clsact"])?;
        }
        for hook in ["ingress", "egress"] {
            let add = ["filter", "add", "dev", interface, hook, "pref", FOREIGN, "protocol", "ip"];
            node.output("tc", &[&add[..], &["u32", "match", "u32", "0", "0"], decision].concat())?;
        }
    }
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    run.kill(bed.daemons[0].process())?;
    phase.must(bed.wait_for_answers(&talk, SOME, interrupt)?, "no answers without a daemon");
    bed.restart(run, 0, interrupt)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path when they were there first");
    for interface in ["vp1", UPLINK] {
        for hook in ["ingress", "egress"] {
            let there = bed.topology.nodes[0].output("tc", &["filter", "show", "dev", interface, hook])?;
            phase.must(there.contains("u32"), format!("the filter at {interface} {hook} is gone"));
            let filter = ["filter", "del", "dev", interface, hook, "pref", FOREIGN];
            bed.topology.nodes[0].output("tc", &filter)?;
        }
        if !shares {
            bed.topology.nodes[0].output("tc", &["qdisc", "del", "dev", interface, "clsact"])?;
        }
    }
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path when they are gone");
    phase.add(&talk.end(run, interrupt)?);
    // An interface that gains or loses such a qdisc sends nothing for a moment.
    phase.must(phase.lost < phase.sent / 10, "many requests were lost");
    Ok(phase)
}

/// The output of `weir overlay explain` for a flow matches what happens to it.
pub fn explained(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    // One that is in use; it may pause while this machine is busy.
    let is_its = |flow: &&serde_json::Value| {
        let idle = flow["idle_ms"].as_u64();
        flow["protocol"] == 17 && flow["remote"] == pod(1, 0).as_str() && idle < Some(500)
    };
    let mut port = None;
    interrupt.wait(super::bed::PATIENCE, || {
        let flows = bed.flows(0)?;
        let mut flows = flows["flows"].as_array().into_iter().flatten();
        port = flows.find(is_its).map(|flow| flow["local_port"].clone());
        Ok(port.is_some())
    })?;
    phase.must(port.is_some(), "no flow is in use");
    let from = format!("{}:{}", pod(0, 0), port.unwrap_or_default());
    let to = format!("{}:{PORT}", pod(1, 0));
    // At the moment of the check, the kernel may be due to see a frame.
    let is_short = || {
        let said = bed.explain(0, &format!("{from} {to} udp"))?;
        Ok(said["sent"]["short_way"] == true && said["received"]["short_way"] == true)
    };
    phase.must(interrupt.wait(super::bed::PATIENCE, is_short)?, "a fast flow is explained as slow");
    let said = bed.explain(0, &format!("{from} {to} tcp"))?;
    phase.must(said["in_table"] == false, format!("another flow is in the table: {said}"));
    phase.add(&talk.end(run, interrupt)?);
    Ok(phase)
}
