//! The phase about flow records: compares the counts of pod flows, as seen by `weir show flows`, a
//! measurement and an external IPFIX collector, with the ledger and with what was sent.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::bed::{AT_BRIDGE, OverlayBed, PATIENCE, configuration};
use super::phases::{Phase, SETTLED, SOME, TCP, UDP};
use super::six;
use super::topology::pod_6;
use crate::Interrupt;
use weir_bed::{Run, Started};

/// The collector's port, and how the address of a socket on it ends in /proc/net/udp.
const COLLECTOR: &str = "4739";
const COLLECTOR_HEX: &str = ":1283";
/// How that file shows the queues of a socket that has sent and read everything.
const READ: &str = "00000000:00000000";
/// Bytes of a UDP request on the pod's wire: Ethernet, IPv4, UDP and the lab's payload.
const REQUEST: u64 = 14 + 20 + 8 + 64;
/// Extra bytes of an IPv6 header.
const LONGER: u64 = 20;
/// A measurement with short intervals, and a short idle timeout for flows.
const MEASURED: &str =
    "  - measure: { name: records, overlay: pods, interval: 500ms, ipfix: { to: \"127.0.0.1:4739\" } }\n";
const SOON_IDLE: &str = ", idle_timeout: 1s";

/// A node's counts of frames, entries and records.
struct NodeCounts {
    shown: Value,
    measured: Value,
}

impl NodeCounts {
    fn look(bed: &OverlayBed) -> Result<NodeCounts> {
        Ok(NodeCounts { shown: bed.show(0)?, measured: bed.daemons[0].app("records", "interval")? })
    }

    fn frames(&self, direction: &str, count: &str) -> u64 {
        self.shown["frames"][direction][count].as_u64().unwrap_or_default()
    }

    /// Frames that took the fast path, in both directions.
    fn fast(&self) -> u64 {
        self.frames("sent", "fast") + self.frames("received", "fast")
    }

    /// Packets in the deltas that flows have reported.
    fn given(&self) -> u64 {
        self.entry("overlay_given_sent") + self.entry("overlay_given_received")
    }

    fn entry(&self, name: &str) -> u64 {
        self.shown["entries"][name].as_u64().unwrap_or_default()
    }

    /// Packets and bytes counted by the measurement.
    fn measured(&self) -> (u64, u64) {
        let of = |name: &str| self.measured[name].as_u64().unwrap_or_default();
        (of("packets"), of("bytes"))
    }
}

/// Each packet of the fast path is in exactly one record, in every consumer's sum; all other packets that the
/// pods sent took the slow path.
pub fn flow_records(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let folder = run.folder().join("records");
    fs::create_dir_all(&folder)?;
    let collector = collect(bed, run, &folder.to_string_lossy())?;
    // Counts up to now are discarded: the first change starts a new table.
    let quick = configuration(&format!("{AT_BRIDGE}{SOON_IDLE}"));
    for configuration in [&quick, &(quick.clone() + MEASURED)] {
        bed.daemons[0].reload(configuration)?;
        bed.wait_for_work(0, interrupt)?;
    }

    let udp = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, 4 * SOME, interrupt)?, "no fast path");
    let shown = interrupt.wait(PATIENCE, || Ok(shown_flows(bed)? > 0))?;
    phase.must(shown, "`show flows` has no flow of pods");
    let asked = udp.end(run, interrupt)?;
    phase.add(&asked);
    let seen = settled(bed, &mut phase, interrupt)?;
    // Multicast and link-local traffic that pods with IPv6 send on their own.
    let others = ["not_ip", "options", "multicast", "link_local", "protocol"];
    let sent = seen.frames("sent", "seen") - others.map(|why| seen.frames("sent", why)).iter().sum::<u64>();
    phase.must(asked["sent"] == sent, format!("{} requests and {sent} frames", asked["sent"]));
    let (packets, bytes) = seen.measured();
    phase.must(bytes == packets * REQUEST, format!("{bytes} bytes in {packets} packets"));

    let tcp = bed.ask(run, &TCP)?;
    phase.must(bed.wait_for_fast(0, 4 * SOME, interrupt)?, "no fast path");
    phase.add(&tcp.end(run, interrupt)?);
    let seen = settled(bed, &mut phase, interrupt)?;
    let seen = with_ipv6(bed, run, interrupt, (&mut phase, seen.measured()))?;
    phase.must(phase.lost == 0, "requests were lost");

    phase.must(collected(bed, interrupt)?, "the collector does not read all records");
    run.stop(collector)?;
    let exported = exported(bed, &folder.to_string_lossy())?;
    phase.must(
        exported == seen.fast(),
        format!("{exported} packets by IPFIX, {} by the fast path", seen.fast()),
    );
    bed.daemons[0].reload(&configuration(AT_BRIDGE))?;
    bed.wait_for_work(0, interrupt)?;
    Ok(phase)
}

/// IPv6 flows have records like others, with their own header lengths, given the packets measured before.
fn with_ipv6(
    bed: &mut OverlayBed,
    run: &mut Run,
    interrupt: &Interrupt,
    (phase, before): (&mut Phase, (u64, u64)),
) -> Result<NodeCounts> {
    let answers = six::answer(bed, run, [1, 0], &pod_6(1, 0), 60)?;
    answers.started(interrupt)?;
    let udp = bed.ask_from(run, [0, 0], &six::asked(), &UDP)?;
    phase.must(bed.wait_for_fast(0, 4 * SOME, interrupt)?, "no fast path with IPv6");
    phase.add(&udp.end(run, interrupt)?);
    let seen = settled(bed, phase, interrupt)?;
    let (packets, bytes) = seen.measured();
    let (packets, bytes) = (packets - before.0, bytes - before.1);
    phase.must(
        packets > 8 * SOME && bytes == packets * (REQUEST + LONGER),
        format!("{bytes} bytes in {packets} packets of IPv6"),
    );
    answers.stop(run)?;
    Ok(seen)
}

/// Starts an IPFIX collector.
fn collect(bed: &OverlayBed, run: &mut Run, folder: &str) -> Result<Started> {
    let mut command = bed.topology.nodes[0].command("nfcapd");
    command.args(["-b", "127.0.0.1", "-p", COLLECTOR, "-w", folder]);
    run.start("nfcapd", &mut command)
}

/// Waits until no further record has been sent for two intervals, and the collector, which does not read on
/// when it is asked to end, has read all datagrams.
fn collected(bed: &OverlayBed, interrupt: &Interrupt) -> Result<bool> {
    let mut last = None;
    interrupt.wait(PATIENCE, || {
        interrupt.sleep(SETTLED)?;
        let sent = bed.daemons[0].app("records", "interval")?["ipfix"]["sent"].as_u64();
        let is_over = sent.is_some() && sent == last;
        last = sent;
        let sockets = bed.topology.nodes[0].output("cat", &["/proc/net/udp"])?;
        let of_collector = |line: &&str| {
            line.split_whitespace().nth(1).is_some_and(|address| address.ends_with(COLLECTOR_HEX))
        };
        let is_read = |line: &str| line.split_whitespace().nth(4) == Some(READ);
        Ok(is_over && sockets.lines().filter(of_collector).all(is_read))
    })
}

/// Adds up the packets of all records of the collector.
fn exported(bed: &OverlayBed, folder: &str) -> Result<u64> {
    let text = bed.topology.nodes[0].output("nfdump", &["-R", folder, "-q", "-N", "-o", "fmt:%pkt"])?;
    let packets = |line: &str| line.trim().parse::<u64>().with_context(|| format!("nfdump says `{line}`"));
    text.lines().map(packets).sum()
}

/// Returns the packets of the live flows between pods.
fn shown_flows(bed: &OverlayBed) -> Result<u64> {
    let shown = bed.daemons[0].show("flows")?;
    let flows = shown["flows"].as_array().into_iter().flatten();
    Ok(flows.filter(|flow| flow["pipe"] == "overlay/pods").filter_map(|flow| flow["packets"].as_u64()).sum())
}

/// Waits until all flows have expired and their counts are measured, and checks the sums.
fn settled(bed: &OverlayBed, phase: &mut Phase, interrupt: &Interrupt) -> Result<NodeCounts> {
    let gone = || Ok(bed.daemons[0].show("flows")?["live"] == 0);
    phase.must(interrupt.wait(PATIENCE, gone)?, "idle flows do not expire");
    let complete = || NodeCounts::look(bed).map(|seen| seen.measured().0 == seen.given());
    phase.must(interrupt.wait(PATIENCE, complete)?, "what flows reported is not measured");
    let seen = NodeCounts::look(bed)?;
    let (fast, given) = (seen.fast(), seen.given());
    phase.must(given == fast, format!("{given} packets in records, {fast} by the fast path"));
    phase.must(seen.entry("overlay_lost_packets") == 0, "records were lost");
    Ok(seen)
}
