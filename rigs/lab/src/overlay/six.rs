//! Phases about pods with IPv6, and nodes that tunnel over IPv6.

use anyhow::Result;

use super::bed::{OverlayBed, PATIENCE};
use super::phases::{Phase, SETTLED, SOME, TCP, UDP};
use super::talk::Talk;
use super::topology::{BRIDGE, PORT, TUNNEL, UPLINK, node, node_6, pod, pod_6, pod_mac};
use crate::Interrupt;
use weir_bed::Run;

/// Pods with IPv6: both protocols take the fast path, and all changes take effect for them.
pub fn pods(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let answers = answer(bed, run, [1, 0], &pod_6(1, 0), 61)?;
    answers.started(interrupt)?;
    let near = bed.ask_from(run, [1, 1], &asked(), &UDP)?;
    phase.must(bed.wait_for_sent(1, SOME, interrupt)?, "no fast path on the same node");
    phase.add(&near.end(run, interrupt)?);
    phase.must(phase.lost == 0, "requests were lost");
    live_changes(bed, run, interrupt, (&mut phase, &answers, node(1)))?;
    replaced(bed, run, interrupt, (&mut phase, &answers))?;
    answers.stop(run)?;
    Ok(phase)
}

/// Nodes that tunnel over IPv6, with checksums: pods with IPv4 and with IPv6, changes, a pod that moves, and
/// a node without a cache, whose kernel verifies the checksums.
pub fn nodes(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let answers = answer(bed, run, [1, 0], &pod_6(1, 0), 62)?;
    answers.started(interrupt)?;
    bed.topology.underlay(true)?;
    for pod in [&bed.topology.pods[0][0], &bed.topology.pods[1][0]] {
        pod.output("ethtool", &["-K", "eth0", "tx", "off"])?;
    }
    let four = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path for pods with IPv4");
    phase.must(knows(bed, &pod(1, 0), &node_6(1), interrupt)?, "no flow of IPv4 by IPv6");
    four.end(run, interrupt)?;
    live_changes(bed, run, interrupt, (&mut phase, &answers, node_6(1)))?;
    let talks = [bed.ask_from(run, [0, 0], &asked(), &UDP)?, bed.ask_from(run, [0, 0], &asked(), &TCP)?];
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    run.kill(bed.daemons[1].process())?;
    for talk in &talks {
        phase.must(bed.wait_for_answers(talk, SOME, interrupt)?, "no answers from a node without a cache");
    }
    phase.must(bed.wait_for_sent(0, SOME, interrupt)?, "no fast path to a node without a cache");
    let [udp, tcp] = talks;
    let counts = tcp.end(run, interrupt)?;
    phase.must(counts["sent"] == counts["answered"], format!("TCP lost some: {counts}"));
    phase.add(&counts);
    moved(bed, run, interrupt, (&mut phase, &answers, &udp))?;
    phase.add(&udp.end(run, interrupt)?);
    for pod in [&bed.topology.pods[0][0], &bed.topology.pods[1][0]] {
        pod.output("ethtool", &["-K", "eth0", "tx", "on"])?;
    }
    bed.topology.underlay(false)?;
    bed.restart(run, 1, interrupt)?;
    let again = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path over IPv4");
    again.end(run, interrupt)?;
    Ok(phase)
}

/// The address and port that all requests of these phases go to.
pub fn asked() -> String {
    format!("[{}]:{PORT}", pod_6(1, 0))
}

/// Makes a pod answer at an IPv6 address.
pub fn answer(
    bed: &OverlayBed,
    run: &mut Run,
    [node, pod]: [usize; 2],
    address: &str,
    name: u64,
) -> Result<Talk> {
    Talk::answer(run, &bed.topology.pods[node][pod], &format!("[{address}]:{PORT}"), name)
}

/// Waits until the first node knows a flow to a pod on a given node.
fn knows(bed: &OverlayBed, remote: &str, node: &str, interrupt: &Interrupt) -> Result<bool> {
    interrupt.wait(PATIENCE, || {
        let flows = bed.flows(0)?;
        Ok(flows["flows"].as_array().into_iter().flatten().any(|flow| {
            flow["remote"] == remote && flow["node"] == node && flow["packets"]["sent"].as_u64() > Some(0)
        }))
    })
}

/// A deny rule, a next hop with another MAC address, and an underlay with a smaller MTU, all on IPv6 flows
/// between the first two nodes; the second node has this address.
fn live_changes(
    bed: &mut OverlayBed,
    run: &mut Run,
    interrupt: &Interrupt,
    (phase, answers, address): (&mut Phase, &Talk, String),
) -> Result<()> {
    let talks = [bed.ask_from(run, [0, 0], &asked(), &UDP)?, bed.ask_from(run, [0, 0], &asked(), &TCP)?];
    for at in [0, 1] {
        phase.must(bed.wait_for_fast(at, 4 * SOME, interrupt)?, format!("n{} has no fast path", at + 1));
    }
    phase.must(knows(bed, &pod_6(1, 0), &address, interrupt)?, "no flow of IPv6");
    let [udp, tcp] = talks;
    let counts = tcp.end(run, interrupt)?;
    phase.must(counts["sent"] == counts["answered"], format!("TCP lost some: {counts}"));
    phase.add(&counts);
    bed.topology.deny(0, &format!("ip6 daddr {} udp dport {PORT} drop", pod_6(1, 0)))?;
    interrupt.sleep(SETTLED / 2)?;
    let then = answers.now();
    interrupt.sleep(SETTLED / 2)?;
    let forbidden = answers.answered_since(then);
    phase.misdelivered += forbidden;
    phase.must(forbidden == 0, "forbidden requests arrived");
    bed.topology.allow(0)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path when it is allowed again");
    let mac = "02:98:00:00:00:96";
    bed.topology.nodes[1].ip(&format!("link set {UPLINK} address {mac}\n"))?;
    for other in [0, 2] {
        let line = format!("neighbour replace {address} lladdr {mac} dev {UPLINK} nud reachable\n");
        bed.topology.nodes[other].ip(&line)?;
    }
    for at in [0, 1] {
        let fault = format!("n{} has no fast path to another MAC address", at + 1);
        phase.must(bed.wait_for_fast(at, SOME, interrupt)?, fault);
    }
    for mtu in [1400, 1500] {
        bed.topology.nodes[0].ip(&format!("link set {UPLINK} mtu {mtu}\n"))?;
        let fault = format!("no fast path with an MTU of {mtu}");
        phase.must(bed.wait_for_fast(0, SOME, interrupt)?, fault);
    }
    phase.add(&udp.end(run, interrupt)?);
    Ok(())
}

/// The address is given to the second pod of the node; the first still has it, and would answer.
fn replaced(
    bed: &mut OverlayBed,
    run: &mut Run,
    interrupt: &Interrupt,
    (phase, former): (&mut Phase, &Talk),
) -> Result<()> {
    let talk = bed.ask_from(run, [0, 0], &asked(), &UDP)?;
    phase.must(bed.wait_for_fast(1, SOME, interrupt)?, "no fast path");
    let address = pod_6(1, 0);
    let leads_to = |bed: &OverlayBed, at: usize| {
        let mac = pod_mac(1, at);
        let line = format!("neighbour replace {address} lladdr {mac} dev {BRIDGE} nud permanent\n");
        bed.topology.nodes[1].ip(&line)
    };
    bed.topology.pods[1][1].ip(&format!("address add {address}/128 dev eth0 nodad\n"))?;
    answer(bed, run, [1, 1], &address, 63)?.started(interrupt)?;
    leads_to(bed, 1)?;
    went_over(bed, interrupt, (phase, former, &talk), (63, 1))?;
    phase.add(&talk.end(run, interrupt)?);
    leads_to(bed, 0)?;
    bed.topology.pods[1][1].ip(&format!("address del {address}/128 dev eth0\n"))
}

/// The address moves to the third node; the old pod still exists, and would answer.
fn moved(
    bed: &mut OverlayBed,
    run: &mut Run,
    interrupt: &Interrupt,
    (phase, former, talk): (&mut Phase, &Talk, &Talk),
) -> Result<()> {
    let address = pod_6(1, 0);
    bed.topology.pods[2][0].ip(&format!("address add {address}/128 dev eth0 nodad\n"))?;
    answer(bed, run, [2, 0], &address, 64)?.started(interrupt)?;
    bed.topology.nodes[2].ip(&format!("route add {address}/128 dev {BRIDGE}\n"))?;
    let leads = format!("route add {address}/128 via fd00:244:3::ffff dev {TUNNEL} onlink\n");
    bed.topology.nodes[0].ip(&leads)?;
    went_over(bed, interrupt, (phase, former, talk), (64, 2))
}

/// Waits until another pod answers, by the fast path at a node; the old pod must get no more requests.
fn went_over(
    bed: &OverlayBed,
    interrupt: &Interrupt,
    (phase, former, talk): (&mut Phase, &Talk, &Talk),
    (name, at): (u64, usize),
) -> Result<()> {
    interrupt.sleep(SETTLED / 2)?;
    let then = former.now();
    let answers = interrupt.wait(PATIENCE, || Ok(talk.of("name") == name))?;
    phase.must(answers, "the new pod does not answer");
    phase.must(bed.wait_for_fast(at, SOME, interrupt)?, "no fast path to the new pod");
    let late = former.answered_since(then);
    phase.misdelivered += late;
    phase.must(late == 0, "the previous pod got requests");
    Ok(())
}
