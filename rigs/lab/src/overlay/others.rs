//! Phases about other parties: a node that is replaced, a pod that forwards, foreign programs.

use std::fs::{self, File};

use anyhow::Result;
use serde_json::Value;

use super::bed::{OverlayBed, PATIENCE};
use super::phases::{Phase, SETTLED, SOME, TCP, UDP};
use super::talk::Talk;
use super::topology::{BRIDGE, PORT, TUNNEL, UPLINK, node, pod, tunnel_mac};
use crate::Interrupt;
use crate::weir;
use weir_bed::{Namespace, Run, cable};

/// The MAC addresses of the node that replaces the second one: those of its uplink and its VXLAN device.
const NEW_NODE: [&str; 2] = ["02:98:00:00:00:22", "02:98:00:00:01:22"];
/// An address behind a pod of the second node.
const BEHIND: &str = "10.244.2.99";
/// Requests of many segments, which reach the forwarding pod in large frames.
const LONG_TCP: [&str; 7] = ["--tcp", "--flows", "2", "--pause-ms", "5", "--size", "60000"];

/// Another node appears with the address of the second one, and a pod with the address of its pod. The old
/// node and pod still exist, and would accept frames for their MAC addresses.
pub fn node_replaced(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let [other, new] = replacement(bed, run)?;
    let answers = Talk::answer(run, &new, &format!("0.0.0.0:{PORT}"), 51)?;
    answers.started(interrupt)?;
    leads_to(bed, [&tunnel_mac(1), NEW_NODE[1]], NEW_NODE[0])?;
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    phase.must(interrupt.wait(PATIENCE, || Ok(talk.of("name") == 51))?, "the new pod does not answer");
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path to the new node");
    phase.misdelivered = bed.answers.answered_since(then);
    phase.must(phase.misdelivered == 0, "the previous pod got requests");
    // Then switch back, as if the node had been away for a while.
    let own = bed.topology.nodes[1].output("cat", &[&format!("/sys/class/net/{UPLINK}/address")])?;
    leads_to(bed, [NEW_NODE[1], &tunnel_mac(1)], own.trim())?;
    interrupt.sleep(SETTLED)?;
    let then = answers.now();
    phase.must(
        interrupt.wait(PATIENCE, || Ok(talk.of("name") == 21))?,
        "the previous pod has not resumed answering",
    );
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path to the previous node");
    let wrong = answers.answered_since(then);
    phase.misdelivered += wrong;
    phase.must(wrong == 0, "the other pod got requests");
    phase.add(&talk.end(run, interrupt)?);
    other.ip(&format!("link del {UPLINK}\n"))?;
    Ok(phase)
}

/// Creates a node without a cache at the switch, and returns it and its pod.
fn replacement(bed: &OverlayBed, run: &Run) -> Result<[Namespace; 2]> {
    let (new, inside, [mac, tunnel]) = (run.namespace("n2b")?, run.namespace("p2b")?, NEW_NODE);
    let (local, first, address) = (node(1), node(0), pod(1, 0));
    bed.topology.switch.plug("f2b", None, &new.end(UPLINK).mac(mac).address(format!("{local}/24")))?;
    // Two hosts must not answer ARP for the same address; neighbour entries are static.
    new.set(&[("ipv4/ip_forward", 1), (&format!("ipv4/conf/{UPLINK}/arp_ignore"), 8)])?;
    let gateway = new.end("vp1").mtu(1450).address("10.244.2.1/32");
    cable(None, &gateway, &inside.end("eth0").mtu(1450).address(format!("{address}/32")))?;
    new.ip(&format!(
        "neighbour add {first} lladdr 02:98:00:00:00:01 dev {UPLINK} nud permanent\n\
         link add {TUNNEL} address {tunnel} mtu 1450 type vxlan id 42 local {local} dstport 4789 \
         dev {UPLINK} nolearning noudpcsum\nlink set {TUNNEL} up\nroute add {address}/32 dev vp1\n\
         route add 10.244.1.0/24 via 10.244.1.0 dev {TUNNEL} onlink\n\
         neighbour add 10.244.1.0 lladdr {} dev {TUNNEL} nud permanent\n",
        tunnel_mac(0)
    ))?;
    new.bridge(&format!("fdb add {} dev {TUNNEL} dst {first}\n", tunnel_mac(0)))?;
    inside.ip("route add 10.244.2.1/32 dev eth0\nroute add default via 10.244.2.1 dev eth0\n")?;
    Ok([new, inside])
}

/// Updates the first node's entries for the second one, as an agent of the container network does, given the
/// MAC addresses of the previous and the new VXLAN device, and that of the uplink.
fn leads_to(bed: &OverlayBed, [former, new]: [&str; 2], uplink: &str) -> Result<()> {
    let first = &bed.topology.nodes[0];
    first.bridge(&format!("fdb add {new} dev {TUNNEL} dst {}\n", node(1)))?;
    first.ip(&format!(
        "neighbour replace {} lladdr {uplink} dev {UPLINK} nud reachable\n\
         neighbour replace 10.244.2.0 lladdr {new} dev {TUNNEL} nud permanent\n",
        node(1)
    ))?;
    first.bridge(&format!("fdb del {former} dev {TUNNEL} dst {}\n", node(1)))
}

/// A pod forwards short and long frames to an address behind it, wherever they are segmented.
pub fn pod_forwards(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let behind = run.namespace("p21b")?;
    let router = &bed.topology.pods[1][0];
    let gateway = router.end("down0").mtu(1450).address("10.244.2.98/32");
    cable(None, &gateway, &behind.end("eth0").mtu(1450).address(format!("{BEHIND}/32")))?;
    router.ip(&format!("route add {BEHIND}/32 dev down0\n"))?;
    router.set(&[("ipv4/ip_forward", 1)])?;
    behind.ip("route add 10.244.2.98/32 dev eth0\nroute add default via 10.244.2.98 dev eth0\n")?;
    bed.topology.nodes[1].ip(&format!("route add {BEHIND}/32 via {} dev {BRIDGE}\n", pod(1, 0)))?;
    Talk::answer(run, &behind, &format!("0.0.0.0:{PORT}"), 41)?.started(interrupt)?;
    let to = format!("{BEHIND}:{PORT}");
    let own = bed.answers.of("answered");
    for offload in ["on", "off"] {
        // Without offload, the pod segments large frames itself before it forwards them.
        bed.topology.pods[1][0].output("ethtool", &["-K", "down0", "tso", offload, "gso", offload])?;
        let talks = [bed.ask_from(run, [0, 0], &to, &UDP)?, bed.ask_from(run, [0, 0], &to, &LONG_TCP)?];
        for at in [0, 1] {
            phase.must(bed.wait_for_fast(at, 4 * SOME, interrupt)?, format!("n{} has no fast path", at + 1));
        }
        for talk in talks {
            phase.must(
                bed.wait_for_answers(&talk, 10, interrupt)?,
                format!("no answers with offload {offload}"),
            );
            phase.must(talk.of("name") == 41, "another host answers");
            phase.add(&talk.end(run, interrupt)?);
        }
    }
    phase.misdelivered = bed.answers.of("answered") - own;
    phase.must(phase.misdelivered == 0, "the pod that forwards got requests itself");
    phase.must(phase.lost == 0, "requests were lost");
    bed.topology.nodes[1].ip(&format!("route del {BEHIND}/32\n"))?;
    bed.topology.pods[1][0].ip("link del down0\n")?;
    Ok(phase)
}

/// Foreign programs at the same hook: one attached earlier sees all frames, one attached later only those of
/// the slow path, and an event informs the operator.
pub fn foreign_programs(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let file = run.folder().join("foreign.json");
    // `weir decap` decapsulates tunnels that do not exist here, and counts all other frames.
    let mut foreign = bed.topology.nodes[0].command(&weir::program()?);
    foreign.args(["decap", UPLINK, "--json", "--vni", "7", "--from", "192.0.2.0/24", "--to", &node(0)]);
    let foreign = run.start("foreign", foreign.stdout(File::create(&file)?))?;
    phase.must(
        interrupt.wait(PATIENCE, || is_reported(bed, "runs behind ours"))?,
        "the program behind is not reported",
    );
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path with another program behind");
    run.kill(bed.daemons[0].process())?;
    bed.restart(run, 0, interrupt)?;
    phase.must(
        interrupt.wait(PATIENCE, || is_reported(bed, "runs before ours"))?,
        "the program in front is not reported",
    );
    phase.must(bed.wait_for_fast(0, 4 * SOME, interrupt)?, "no fast path with another program in front");
    let [_, received] = bed.fast(0)?;
    run.stop(foreign)?;
    let counts = fs::read_to_string(&file)?;
    let counts: Value = serde_json::from_str(counts.lines().last().unwrap_or_default())?;
    let seen: u64 = counts["counts"].as_object().into_iter().flatten().filter_map(|(_, n)| n.as_u64()).sum();
    phase.must(seen >= received, format!("the program in front saw {seen} of {received} frames: {counts}"));
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path when it is gone");
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    phase.must(phase.lost == 0, "requests were lost");
    Ok(phase)
}

/// Returns true if an event says so.
fn is_reported(bed: &OverlayBed, what: &str) -> Result<bool> {
    let shown = bed.show(0)?;
    let mut events = shown["events"].as_array().into_iter().flatten();
    Ok(events.any(|event| event["what"].as_str().is_some_and(|said| said.contains(what))))
}
