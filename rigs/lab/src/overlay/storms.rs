//! Phases about bursts of events, and about connections that connection tracking forgets.

use std::fmt::Write;
use std::time::Duration;

use anyhow::Result;

use super::bed::OverlayBed;
use super::phases::{Phase, SETTLED, SOME, TCP, UDP};
use super::topology::{UPLINK, pod};
use crate::Interrupt;
use weir_bed::Run;

/// Rounds in which rules come and go, and transactions in each round.
const ROUNDS: usize = 10;
const FLIPS: usize = 1000;
/// Bursts of neighbour changes.
const BURSTS: usize = 10;
const BURST: usize = 10_000;
/// Receive buffer, in bytes, of a daemon that must lose some messages.
const LITTLE_ROOM: &str = "4096";
/// The time after a rule takes effect within which packets in flight arrive and the daemon learns of the
/// rule.
const SOON: Duration = Duration::from_millis(300);

/// A rule that denies the flow is added and removed 10 000 times, each in its own transaction. Whenever it
/// stays, nothing passes: no frame may have entered the previous permission into the cache.
pub fn rule_flips(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let talk = bed.ask(run, &["--flows", "4", "--pause-ms", "1"])?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let deny = format!("add rule inet guard deny ip daddr {} udp dport 5001 drop\n", pod(1, 0));
    let allow = "flush chain inet guard deny\n";
    let mut flips = String::new();
    for _ in 0..FLIPS / 2 {
        let _ = write!(flips, "{allow}{deny}");
    }
    for round in 0..ROUNDS {
        bed.topology.nodes[0].input("nft", &["-i"], &flips)?;
        interrupt.sleep(SOON)?;
        let then = bed.answers.now();
        interrupt.sleep(SOON)?;
        let arrived = bed.answers.answered_since(then);
        phase.misdelivered += arrived;
        phase.must(arrived == 0, format!("{arrived} forbidden requests arrived after round {round}"));
    }
    bed.topology.allow(0)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path");
    phase.add(&talk.end(run, interrupt)?);
    Ok(phase)
}

/// 100 000 neighbours change while the daemon can buffer only a few messages; a rule takes effect in between.
pub fn neighbour_events(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    run.kill(bed.daemons[0].process())?;
    bed.restart_with(run, 0, &[("WEIR_NETLINK_ROOM", LITTLE_ROOM)], interrupt)?;
    let talk = bed.ask(run, &UDP)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "no fast path");
    let line = |at: usize| {
        let mac = format!("02:77:00:00:{:02x}:{:02x}", at / 256 % 256, at % 256);
        format!("neighbour replace 10.98.0.77 lladdr {mac} dev {UPLINK}\n")
    };
    let burst: String = (0..BURST).map(line).collect();
    for at in 0..BURSTS {
        if at == BURSTS / 2 {
            bed.topology.deny(0, &format!("ip daddr {} udp dport 5001 drop", pod(1, 0)))?;
        }
        bed.topology.nodes[0].ip(&burst)?;
    }
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    interrupt.sleep(SETTLED)?;
    phase.misdelivered = bed.answers.answered_since(then);
    phase.must(phase.misdelivered == 0, "forbidden requests arrived");
    let lost = bed.show(0)?["causes"]["lost"].as_u64().unwrap_or_default();
    phase.must(lost > 0, "no message was lost");
    bed.topology.allow(0)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path");
    phase.add(&talk.end(run, interrupt)?);
    run.kill(bed.daemons[0].process())?;
    bed.restart(run, 0, interrupt)?;
    Ok(phase)
}

/// Connection tracking sees enough of a flow to keep it, and sees its end. A connection that it forgets is
/// forgotten by the cache, too.
pub fn connections(bed: &mut OverlayBed, run: &mut Run, interrupt: &Interrupt) -> Result<Phase> {
    let mut phase = Phase::default();
    let node = &bed.topology.nodes[0];
    node.set(&[("netfilter/nf_conntrack_udp_timeout", 2), ("netfilter/nf_conntrack_udp_timeout_stream", 2)])?;
    let talks = [bed.ask(run, &UDP)?, bed.ask(run, &TCP)?];
    phase.must(bed.wait_for_fast(0, 4 * SOME, interrupt)?, "no fast path");
    // No flow may start, so a flow that is forgotten while in use could not continue.
    bed.topology.deny(0, "ct state new drop")?;
    interrupt.sleep(SETTLED * 5)?;
    for talk in &talks {
        phase.must(bed.wait_for_answers(talk, SOME, interrupt)?, "a used flow was forgotten");
    }
    let [udp, tcp] = talks;
    // TCP flows that end are closed in connection tracking, too.
    let ended = tcp.end(run, interrupt)?;
    phase.add(&ended);
    let established = || {
        let all = bed.topology.nodes[0].output("cat", &["/proc/net/nf_conntrack"])?;
        Ok(!all.lines().any(|line| line.contains("ESTABLISHED") && line.contains("dport=5001")))
    };
    phase.must(interrupt.wait(SETTLED * 5, established)?, "the end of a flow was not seen");
    // A forgotten flow counts as new, which is denied.
    bed.forget_connections(0)?;
    interrupt.sleep(SETTLED)?;
    let then = bed.answers.now();
    interrupt.sleep(SETTLED)?;
    phase.misdelivered = bed.answers.answered_since(then);
    phase.must(phase.misdelivered == 0, "forgotten flows continued");
    bed.topology.allow(0)?;
    phase.must(bed.wait_for_fast(0, SOME, interrupt)?, "not back on the fast path");
    phase.add(&udp.end(run, interrupt)?);
    // A flow that pauses for longer than its timeout is new each time.
    let idle = bed.ask(run, &["--flows", "2", "--pause-ms", "4000"])?;
    interrupt.sleep(SETTLED * 9)?;
    let counts = idle.end(run, interrupt)?;
    phase.must(counts["sent"] == counts["answered"], format!("after a pause: {counts}"));
    phase.add(&counts);
    Ok(phase)
}
