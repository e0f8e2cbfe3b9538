//! The events that the flows go through, phase by phase.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::bed::{OverlayBed, ROOM};
use super::talk::Talk;
use super::topology::{BRIDGE, OTHER_PORT, PORT, SERVICE, TUNNEL, UPLINK, node, pod, pod_mac, port};
use super::{frames, others, policies, records, six, storms};
use crate::Interrupt;
use weir_bed::Run;

/// The time after which no old state may be left.
pub const SETTLED: Duration = Duration::from_secs(1);
/// Number of frames that shows that a flow takes the fast path.
pub const SOME: u64 = 50;
/// UDP flows, each with a request every 5 ms.
pub const UDP: [&str; 4] = ["--flows", "4", "--pause-ms", "5"];
/// TCP flows.
pub const TCP: [&str; 5] = ["--tcp", "--flows", "4", "--pause-ms", "5"];

/// The counts of asking ends in a phase.
#[derive(Default)]
pub struct Asked {
    pub sent: u64,
    /// Requests that reached a different pod than the one the slow path leads to.
    pub misdelivered: u64,
    pub lost: u64,
}

/// The result of a phase.
pub type Phase = crate::phase::Phase<Asked>;

pub type Perform = fn(&mut OverlayBed, &mut Run, &Interrupt) -> Result<Phase>;

/// The phase that needs bonds as uplinks.
pub const MEMBER_FAILS: &str = "member_fails";

/// The phases that use the tunnel between the first two nodes only.
pub const OF_TWO_NODES: [&str; 8] = [
    "short_way",
    "flow_records",
    "same_node",
    "deny",
    "mtu",
    "daemon_killed",
    "segments_and_checksums",
    "one_end_alone",
];

/// All phases, in order.
pub const ALL: [(&str, Perform); 28] = [
    ("short_way", short_way),
    (MEMBER_FAILS, member_fails),
    ("flow_records", records::flow_records),
    ("same_node", same_node),
    ("service", service),
    ("deny", deny),
    ("policy", policies::policy),
    ("next_hop", next_hop),
    ("mtu", mtu),
    ("daemon_killed", daemon_killed),
    ("daemon_stopped_and_events_lost", events_lost),
    ("more_flows_than_room", more_flows_than_room),
    ("pod_replaced", pod_replaced),
    ("explained", frames::explained),
    ("long_frames", frames::long_frames),
    ("segments_and_checksums", frames::segments_and_checksums),
    ("one_end_alone", frames::one_end_alone),
    ("foreign_filters", frames::foreign_filters),
    ("foreign_programs", others::foreign_programs),
    ("pod_forwards", others::pod_forwards),
    ("node_replaced", others::node_replaced),
    ("connections", storms::connections),
    ("rule_flips", storms::rule_flips),
    ("neighbour_events", storms::neighbour_events),
    ("ipv6", six::pods),
    ("ipv6_between_nodes", six::nodes),
    // These two must be last: afterwards, the pod is elsewhere, and pods are not at the bridge.
    ("pod_moves", pod_moves),
    ("without_bridge", without_bridge),
];

impl Phase {
    /// Adds the counts of an asking end.
    pub fn add(&mut self, counts: &Value) {
        let of = |name: &str| counts[name].as_u64().unwrap_or_default();
        self.sent += of("sent");
        self.lost += of("sent").saturating_sub(of("answered"));
        self.needs(of("sent") > 0, || "nothing was asked".into());
        self.must(of("broken") == 0, format!("{} flows broke", of("broken")));
    }

    /// The result as a line of text.
    pub fn text(&self, name: &str) -> String {
        let word = if self.is_ok() { "ok" } else { "FAILED" };
        let Asked { sent, misdelivered, lost } = **self;
        format!(
            "  {name:<32} {word:<6} sent {sent} misdelivered {misdelivered} lost {lost} {}",
            self.faults().join("; ")
        )
    }

    /// The result as JSON.
    pub fn json(&self, name: &str) -> Value {
        json!({
            "name": name, "ok": self.is_ok(), "sent": self.sent, "misdelivered": self.misdelivered,
            "lost": self.lost, "faults": self.faults(),
        })
    }
}

/// Established flows skip the VXLAN device without any loss.
fn short_way(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    for at in [0, 1] {
        phase.must(bed.wait_for_fast(at, 4 * SOME, interrupt)?, format!("n{} has no fast path", at + 1));
    }
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    phase.must(phase.lost == 0, "requests were lost");
    for at in [0, 1] {
        let shown = bed.show(at)?;
        for direction in ["sent", "received"] {
            let frames = shown["frames"][direction].as_object().into_iter().flatten();
            let count =
                |(name, count): (&String, &Value)| (name == "seen", count.as_u64().unwrap_or_default());
            let (seen, rest): (Vec<_>, Vec<_>) = frames.map(count).partition(|(is_seen, _)| *is_seen);
            let sum = |all: &[(bool, u64)]| all.iter().map(|(_, count)| count).sum::<u64>();
            phase.must(sum(&seen) == sum(&rest), format!("the ledger does not balance: {shown}"));
        }
        phase.must(shown["frames"]["sent"]["dropped"] == 0, "frames were dropped");
    }
    Ok(phase)
}

/// The active link of a node's bond fails: flows continue over the other, on the fast path.
fn member_fails(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let switch = bed.topology.switch.namespace();
    for (link, up) in [(0, "down"), (0, "up"), (1, "down"), (1, "up")] {
        let port = port(0, link);
        switch.ip(&format!("link set {port} {up}\n"))?;
        // Long enough for the bond to notice.
        interrupt.sleep(SETTLED)?;
        for talk in &talks {
            let answered = bed.wait_for_answers(talk, SOME, interrupt)?;
            phase.must(answered, format!("no answers with {port} {up}"));
        }
        phase.must(bed.wait_for_fast(0, SOME, interrupt)?, format!("no fast path with {port} {up}"));
    }
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    Ok(phase)
}

/// Flows between pods of one node skip its bridge, and a rule that denies them takes effect.
fn same_node(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let to = format!("{}:{PORT}", pod(1, 0));
    let talks = [bed.ask_from(run, [1, 1], &to, &UDP)?, bed.ask_from(run, [1, 1], &to, &TCP)?];
    phase.must(bed.wait_for_sent(1, 8 * SOME, interrupt)?, "no fast path");
    let [_, received] = bed.fast(1)?;
    bed.topology.deny(1, &format!("ip daddr {} udp dport 5001 drop", pod(1, 0)))?;
    interrupt.sleep(SETTLED)?;
    let then = talks[0].now();
    interrupt.sleep(SETTLED)?;
    phase.misdelivered = talks[0].answered_since(then);
    phase.must(phase.misdelivered == 0, "forbidden requests were answered");
    phase.must(bed.fast(1)?[1] == received, "the tunnel is not involved");
    bed.topology.allow(1)?;
    phase.must(bed.wait_for_answers(&talks[0], SOME, interrupt)?, "allowed requests are not answered");
    phase.must(bed.wait_for_sent(1, 8 * SOME, interrupt)?, "not back on the fast path");
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    Ok(phase)
}

/// A service address leads to a pod by NAT, with and without source translation, on another node and on the
/// same one. When it is redirected to another pod, no flow goes to the previous one.
fn service(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    for (asks, masquerade) in [([0, 0], false), ([0, 0], true), ([1, 1], false)] {
        let node = asks[0];
        bed.topology.serve(node, &pod(1, 0), masquerade)?;
        let to = format!("{SERVICE}:80");
        let talks = [bed.ask_from(run, asks, &to, &UDP)?, bed.ask_from(run, asks, &to, &TCP)?];
        phase.must(
            bed.wait_for_sent(node, 8 * SOME, interrupt)?,
            format!("no fast path for {asks:?}, masquerade {masquerade}: {}", bed.show(node)?["entries"]),
        );
        for talk in talks {
            phase.add(&talk.end(run, interrupt)?);
        }
    }
    phase.must(phase.lost == 0, "requests were lost");
    // The service moves to a pod of the third node, and its connections are flushed, as kube-proxy does.
    bed.topology.serve(0, &pod(1, 0), false)?;
    let other = &bed.topology.pods[2][0];
    Talk::answer(run, other, &format!("{}:{PORT}", pod(2, 0)), 30)?.started(interrupt)?;
    let talk = bed.ask_from(run, [0, 0], &format!("{SERVICE}:80"), &UDP)?;
    phase.must(bed.wait_for_sent(0, SOME, interrupt)?, "no fast path");
    bed.topology.serve(0, &pod(2, 0), false)?;
    bed.forget_connections(0)?;
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    phase.must(interrupt.wait(SETTLED * 20, || Ok(talk.of("name") == 30))?, "the new pod does not answer");
    phase.must(bed.wait_for_sent(0, SOME, interrupt)?, "no fast path to the new pod");
    let former = bed.answers.answered_since(then);
    phase.misdelivered += former;
    phase.must(former == 0, "the previous pod got requests");
    phase.add(&talk.end(run, interrupt)?);
    for node in [0, 1] {
        bed.topology.nodes[node].input("nft", &["-f", "-"], "delete table ip service\n")?;
    }
    Ok(phase)
}

/// A rule that denies a live flow takes effect, and so does its removal.
fn deny(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    bed.topology.deny(0, &format!("ip daddr {} udp dport 5001 drop", pod(1, 0)))?;
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    interrupt.sleep(SETTLED)?;
    phase.misdelivered = bed.answers.answered_since(then);
    phase.must(phase.misdelivered == 0, "forbidden requests arrived");
    bed.topology.allow(0)?;
    phase.must(bed.wait_for_answers(&talk, SOME, interrupt)?, "allowed requests do not arrive");
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path");
    phase.add(&talk.end(run, interrupt)?);
    Ok(phase)
}

/// The remote node's interface gets another MAC address.
fn next_hop(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let mac = "02:98:00:00:00:99";
    bed.topology.nodes[1].ip(&format!("link set {UPLINK} address {mac}\n"))?;
    for other in [0, 2] {
        let neighbour = format!("neighbour replace {} lladdr {mac} dev {UPLINK} nud reachable\n", node(1));
        bed.topology.nodes[other].ip(&neighbour)?;
    }
    phase.must(bed.wait_for_answers(&talks[0], SOME, interrupt)?, "answers do not resume");
    for at in [0, 1] {
        phase.must(
            bed.wait_for_fast(at, SOME, interrupt)?,
            format!("n{} is not back on the fast path", at + 1),
        );
    }
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    Ok(phase)
}

/// The MTU of the underlay and of a pod's interface shrinks.
fn mtu(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    bed.topology.nodes[0].ip(&format!("link set {UPLINK} mtu 1400\n"))?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path with a smaller MTU");
    bed.topology.nodes[0].ip(&format!("link set {UPLINK} mtu 1500\n"))?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path with the previous MTU");
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    phase.must(phase.lost == 0, "requests were lost");
    Ok(phase)
}

/// A daemon is killed: its programs and its rule are gone, and flows continue.
fn daemon_killed(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let refused = bed.cleanup(0).err().map(|error| format!("{error:#}")).unwrap_or_default();
    phase.must(refused.contains("stop it first"), format!("cleanup beside a daemon: {refused}"));
    run.kill(bed.daemons[0].process())?;
    for talk in &talks {
        phase.must(bed.wait_for_answers(talk, SOME, interrupt)?, "answers do not resume");
    }
    let tables = bed.topology.nodes[0].output("nft", &["list", "tables"])?;
    phase.must(!tables.contains("weir"), format!("nftables has: {tables}"));
    // As if somebody reloads rules that were saved while the daemon ran.
    bed.topology.nodes[0].input("nft", &["-f", "-"], "table inet weir_pods { }\n")?;
    // Filters of clsact, which weir has on a kernel without tcx, stay when their process is killed.
    let filters_left = bed.has_clsact(0, UPLINK)?;
    for (tables, filters) in [(1, filters_left), (0, false)] {
        let said = bed.cleanup(0)?;
        let removed: Vec<&str> =
            said["removed"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let (of_filters, others): (Vec<&str>, Vec<&str>) =
            removed.into_iter().partition(|what| what.contains(" filters from "));
        let is_clean = said["ok"] == true && said["left"].as_array().is_some_and(Vec::is_empty);
        phase.must(
            is_clean && others.len() == tables && of_filters.is_empty() != filters,
            format!("cleanup: {said}"),
        );
    }
    bed.restart(run, 0, interrupt)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path");
    for talk in talks {
        phase.add(&talk.end(run, interrupt)?);
    }
    phase.must(phase.lost == 0, "requests were lost");
    Ok(phase)
}

/// A daemon is suspended while a rule changes and more events occur than the kernel buffers for it.
fn events_lost(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    run.hold(bed.daemons[0].process());
    bed.topology.deny(0, &format!("ip daddr {} udp dport 5001 drop", pod(1, 0)))?;
    let burst: String = (0..10_000)
        .map(|at| {
            format!(
                "neighbour replace 10.98.0.77 lladdr 02:77:00:00:{:02x}:{:02x} dev {UPLINK}\n",
                at / 256,
                at % 256
            )
        })
        .collect();
    bed.topology.nodes[0].ip(&burst)?;
    // The lease expires on its own.
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    interrupt.sleep(SETTLED)?;
    run.go_on(bed.daemons[0].process());
    interrupt.sleep(SETTLED)?;
    phase.misdelivered = bed.answers.answered_since(then);
    phase.must(phase.misdelivered == 0, "forbidden requests arrived");
    let lost = || Ok(bed.show(0)?["causes"]["lost"].as_u64().unwrap_or_default() > 0);
    phase.must(interrupt.wait(SETTLED * 20, lost)?, "no message was lost");
    bed.topology.allow(0)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path");
    phase.add(&talk.end(run, interrupt)?);
    Ok(phase)
}

/// Ten times as many flows as fit.
fn more_flows_than_room(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let flows = (10 * ROOM).to_string();
    let talk = bed.ask(run, &["--flows", &flows, "--pause-ms", "100"])?;
    phase.must(bed.wait_for_answers(&talk, 20 * 10 * ROOM, interrupt)?, "too few answers");
    phase.add(&talk.end(run, interrupt)?);
    let evicted = bed.show(0)?["entries"]["overlay_evicted"].as_u64().unwrap_or_default();
    phase.must(evicted > 0, "no flow made room for another");
    phase.must(phase.lost == 0, "requests were lost");
    Ok(phase)
}

/// A pod's address is given to another pod of the same node.
fn pod_replaced(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(1, SOME, interrupt)?, "no fast path");
    // The second pod of the node gets the address; the first still has it, and would answer.
    let address = pod(1, 0);
    let second = &bed.topology.pods[1][1];
    let leads_to = |at: usize| {
        let mac = pod_mac(1, at);
        let lines = format!("neighbour replace {address} lladdr {mac} dev {BRIDGE} nud permanent\n");
        bed.topology.nodes[1].ip(&lines)
    };
    second.ip(&format!("address add {address}/32 dev eth0\n"))?;
    let new = Talk::answer(run, second, &format!("{address}:{PORT}"), 22)?;
    new.started(interrupt)?;
    leads_to(1)?;
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    phase.must(interrupt.wait(SETTLED * 20, || Ok(talk.of("name") == 22))?, "the new pod does not answer");
    phase.must(bed.wait_for_fast(1, SOME, interrupt)?, "not back on the fast path");
    phase.misdelivered = bed.answers.answered_since(then);
    phase.must(phase.misdelivered == 0, "the previous pod got requests");
    phase.add(&talk.end(run, interrupt)?);
    leads_to(0)?;
    second.ip(&format!("address del {address}/32 dev eth0\n"))?;
    Ok(phase)
}

/// A pod's address moves to another node; the old pod still exists, and would answer.
fn pod_moves(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let address = pod(1, 0);
    let other = &bed.topology.pods[2][0];
    other.ip(&format!("address add {address}/32 dev eth0\n"))?;
    Talk::answer(run, other, &format!("{address}:{PORT}"), 31)?.started(interrupt)?;
    bed.topology.nodes[2].ip(&format!("route add {address}/32 dev {BRIDGE}\n"))?;
    bed.topology.nodes[0].ip(&format!("route add {address}/32 via 10.244.3.0 dev {TUNNEL} onlink\n"))?;
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    phase.must(interrupt.wait(SETTLED * 20, || Ok(talk.of("name") == 31))?, "the moved pod does not answer");
    phase.must(bed.wait_for_fast(2, SOME, interrupt)?, "no fast path to the new node");
    phase.misdelivered = bed.answers.answered_since(then);
    phase.must(phase.misdelivered == 0, "the previous pod got requests");
    phase.add(&talk.end(run, interrupt)?);
    Ok(phase)
}

/// Routed pods, each behind its own interface: flows from another node and from the same one, and a pod whose
/// address passes to another pod.
fn without_bridge(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    run.kill(bed.daemons[2].process())?;
    bed.topology.without_bridge(2)?;
    bed.restart_for(run, 2, "pods: vp*", interrupt)?;
    let address = pod(2, 0);
    let first = Talk::answer(run, &bed.topology.pods[2][0], &format!("{address}:{OTHER_PORT}"), 131)?;
    first.started(interrupt)?;
    bed.topology.open(OTHER_PORT)?;
    let to = format!("{address}:{OTHER_PORT}");
    let far = [bed.ask_from(run, [0, 0], &to, &UDP)?, bed.ask_from(run, [0, 0], &to, &TCP)?];
    phase.must(bed.wait_for_fast(2, SOME, interrupt)?, "no fast path from another node");
    let near = bed.ask_from(run, [2, 1], &to, &UDP)?;
    phase.must(bed.wait_for_answers(&near, SOME, interrupt)?, "no answers on the same node");
    phase.must(bed.wait_for_sent(2, 20 * SOME, interrupt)?, "no fast path on the same node");
    phase.add(&near.end(run, interrupt)?);
    let [udp, tcp] = far;
    phase.add(&tcp.end(run, interrupt)?);
    phase.must(phase.lost == 0, "requests were lost");
    // The second pod of the node gets the address; the first still has it, and would answer.
    let second = &bed.topology.pods[2][1];
    second.ip(&format!("address add {address}/32 dev eth0\n"))?;
    Talk::answer(run, second, &to, 132)?.started(interrupt)?;
    bed.topology.nodes[2].ip(&format!("route replace {address}/32 dev vp2\n"))?;
    interrupt.sleep(SETTLED)?;
    let then = first.now();
    phase.must(interrupt.wait(SETTLED * 20, || Ok(udp.of("name") == 132))?, "the new pod does not answer");
    phase.must(bed.wait_for_fast(2, SOME, interrupt)?, "not back on the fast path");
    phase.misdelivered = first.answered_since(then);
    phase.must(phase.misdelivered == 0, "the previous pod got requests");
    phase.add(&udp.end(run, interrupt)?);
    Ok(phase)
}
