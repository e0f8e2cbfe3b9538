//! How soon a NetworkPolicy stops a cached flow, for each mechanism by which networks enforce policies.

use super::bed::OverlayBed;
use super::phases::{Phase, SOME, UDP};
use super::talk::now_ms;
use super::topology::{PORT, pod};
use crate::Interrupt;
use anyhow::Result;
use std::time::Duration;
use weir_bed::Run;

/// The longest time from the end of the command that denies a flow to the flow's last packet.
const STOPPED_MS: u64 = 100;

/// How long nothing must arrive: the answering end reports its counts every 20 ms.
const SILENCE: Duration = Duration::from_millis(300);

/// How many times each means is tried, in case the machine is busy.
const TRIES: usize = 3;

/// A means to deny a live flow.
#[derive(Clone, Copy)]
enum Denial {
    /// A rule of nftables.
    Nftables,
    /// A rule of iptables-nft, in a table of its own.
    Iptables,
    /// Rules let what is established continue, and no new flow: the flow ends when connection tracking
    /// forgets its connection.
    Conntrack,
}

impl Denial {
    /// What is done before the flow is denied.
    fn prepare(self, bed: &OverlayBed) -> Result<()> {
        match self {
            Denial::Nftables | Denial::Iptables => Ok(()),
            Denial::Conntrack => {
                bed.topology.deny(0, &format!("ip daddr {} udp dport {PORT} ct state new drop", pod(1, 0)))
            }
        }
    }

    fn deny(self, bed: &OverlayBed) -> Result<()> {
        match self {
            Denial::Nftables => {
                bed.topology.deny(0, &format!("ip daddr {} udp dport {PORT} drop", pod(1, 0)))
            }
            Denial::Iptables => iptables(bed, "--insert"),
            Denial::Conntrack => bed.forget_connections(0),
        }
    }

    fn allow(self, bed: &OverlayBed) -> Result<()> {
        match self {
            Denial::Nftables | Denial::Conntrack => bed.topology.allow(0),
            Denial::Iptables => iptables(bed, "--delete"),
        }
    }
}

fn iptables(bed: &OverlayBed, change: &str) -> Result<()> {
    let (pod, port) = (pod(1, 0), PORT.to_string());
    let rule = [change, "FORWARD", "-d", &pod, "-p", "udp", "--dport", &port, "-j", "DROP"];
    bed.topology.nodes[0].output("iptables-nft", &rule).map(drop)
}

/// Denies a cached flow in each way, and allows it again.
pub fn policy(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &UDP)?;
    for (name, way) in
        [("nftables", Denial::Nftables), ("iptables-nft", Denial::Iptables), ("conntrack", Denial::Conntrack)]
    {
        let mut fastest_ms = u64::MAX;
        for _ in 0..TRIES {
            way.prepare(bed)?;
            phase.must(bed.wait_for_fast(0, SOME, interrupt)?, format!("{name}: no fast path"));
            way.deny(bed)?;
            let denied_ms = now_ms();
            let silent = || Ok(now_ms() >= bed.answers.of("last_ms") + SILENCE.as_millis() as u64);
            phase.must(interrupt.wait(10 * SILENCE, silent)?, format!("{name}: the flow continues"));
            fastest_ms = fastest_ms.min(bed.answers.of("last_ms").saturating_sub(denied_ms));
            way.allow(bed)?;
            phase.must(bed.wait_for_answers(&talk, SOME, interrupt)?, format!("{name}: no answers again"));
            if fastest_ms <= STOPPED_MS {
                break;
            }
        }
        phase.must(fastest_ms <= STOPPED_MS, format!("{name}: the flow ended after {fastest_ms} ms"));
    }
    bed.topology.nodes[0].input("nft", &["-f", "-"], "delete table ip filter\n")?;
    phase.add(&talk.end(run, interrupt)?);
    Ok(phase)
}
