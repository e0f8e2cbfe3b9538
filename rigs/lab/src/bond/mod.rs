//! `weir lab bond`: bonds weir to another switch with LACP, over two links and then four. Links fail and
//! recover, members come and go, both ends restart.
//!
//! During each event, a paced stream of numbered packets (stream.rs) shows which packets were lost or
//! reordered, and how long the outage lasted; between events there is also TCP (iperf.rs). topology.rs
//! describes the network, phase.rs what must hold.

mod iperf;
mod linux;
mod node;
mod partner;
mod phase;
mod topology;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::iperf::Iperf;
use self::node::{Bond, WeirNode};
use self::partner::{Partner, PartnerKind};
use self::phase::{Phase, Promise};
use self::topology::{LINKS, OUTSIDE, Topology};
use super::ovs::{PACKAGE, SWITCH};
use super::phase::outcome;
use super::premise::premise;
use super::screen::Screen;
use super::session;
use super::stream::RunningStream;
use super::{Interrupt, kernel};
use weir_bed::Run;
use weir_bed::namespace;

/// How often the lab polls.
const TICK: Duration = Duration::from_millis(20);
/// How long a stream runs before an event, and after recovery.
const LEAD: Duration = Duration::from_millis(500);
/// How long flows may take to resume once LACP has settled. After that, the phase ends, and flows that have
/// not resumed have failed.
const RESUMPTION: Duration = Duration::from_secs(1);
/// How long LACP may take to negotiate, and a partner or weir to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest time from loss of carrier to the first packet on another member, at the median.
const FAILOVER: Duration = Duration::from_millis(10);
/// The longest time until LACP silence is detected: LACPDUs arrive every second, and three of them must be
/// missed (802.1AX 6.4.4). The rest is for the lab, which polls every 20 ms.
const SILENCE: (Duration, Duration) = (Duration::from_secs(3), Duration::from_millis(100));
/// The longest time until traffic has left a link on which probes are no longer answered, at the median.
const UNANSWERED: Duration = Duration::from_millis(100);
/// The interval of probes to the partner while it is a plain switch (two links, one of them active), and how
/// many of them may be missed. The bond notices within 2 + 1 intervals.
const PROBES: (Duration, u32) = (Duration::from_millis(20), 2);
/// Maximum number of the bond's own frames on a link in half of [`LEAD`].
const OWN_FRAMES: u64 = 2;
/// How long traffic may pause while another weir takes over with the same sockets.
const TAKEOVER: Duration = Duration::from_millis(50);
/// How long traffic may pause if the sockets must be reopened, with the frame memory of five interfaces.
const TAKEOVER_ANEW: Duration = Duration::from_millis(400);
const NEEDED: [&str; 5] = ["ip", "bridge", "ethtool", "nft", "iperf3"];
/// What is also needed if Open vSwitch is the partner.
const NEEDED_BY_OVS: [&str; 4] = ["ovs-vsctl", "ovs-ofctl", "ovsdb-server", "ovsdb-tool"];

/// The options of `weir lab bond`.
#[derive(clap::Args)]
pub struct BondOptions {
    /// Duration of each quiet phase: steady traffic and TCP, over two links and over four.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Packets per second of the stream.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(64..=100_000))]
    rate: u32,
    /// How often a link fails and recovers.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    cuts: u32,
    /// The switch at the other end.
    #[arg(long, value_enum, default_value_t = PartnerKind::Ovs)]
    partner: PartnerKind,
    #[command(flatten)]
    common: session::SessionOptions,
}

/// Runs the lab. Succeeds if every phase keeps its promise.
pub fn run(options: &BondOptions) -> Result<ExitCode> {
    let mut missing = namespace::missing(&NEEDED);
    if options.partner == PartnerKind::Ovs {
        missing.extend(namespace::missing(&NEEDED_BY_OVS));
        if !std::fs::exists(SWITCH).unwrap_or(false) {
            missing.push(PACKAGE);
        }
    }
    session::check_means("bond", &missing, "./setup")?;
    session::run(&options.common, |interrupt, screen| {
        let phases = perform(options, &mut options.common.begin()?, interrupt, screen)?;
        let phases = phases.iter().map(Phase::json).collect();
        Ok(outcome(phases, ["All phases succeeded.", "Some phases failed."]))
    })
}

fn perform(
    options: &BondOptions,
    run: &mut Run,
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> Result<Vec<Phase>> {
    let name = options.partner.name();
    screen.say(&format!("inside -- weir == two links, then four == {name} -- outside"));
    if !kernel::maps_bound_sockets() {
        screen.say("this kernel cannot hand sockets over (needs Linux 6.4): a takeover reopens them");
    }
    let topology = Topology::build(run)?;
    let partner = Partner::start(options.partner, run, &topology, interrupt)?;
    let node = WeirNode::start(run, &topology, 2, interrupt)?;
    let mut lab = BondLab { options, run, interrupt, screen, topology, partner, node, phases: Vec::new() };
    lab.wait_for("two members", |bond| bond.enabled() == 2)?;
    lab.screen.say(&Phase::heading());
    lab.steady("steady over two links", 2)?;
    lab.load("TCP over two links", 2)?;
    lab.become_four()?;
    lab.steady("steady over four links", 4)?;
    lab.load("TCP over four links", 4)?;
    lab.cut_and_mend()?;
    lab.remove_and_add()?;
    lab.fall_silent()?;
    lab.lead_elsewhere("a link has a different key", "br0")?;
    lab.lead_elsewhere("a link leads to another system", "br1")?;
    lab.speak_otherwise()?;
    lab.restart_partner()?;
    lab.change_key()?;
    lab.restart_weir()?;
    lab.take_over()?;
    lab.fall_silent_under_probes(None)?;
    lab.fall_silent_under_probes(Some(7))?;
    let BondLab { node, run, phases, .. } = lab;
    if !options.common.keep {
        node.stop(run)?;
    }
    Ok(phases)
}

struct BondLab<'a> {
    options: &'a BondOptions,
    run: &'a mut Run,
    interrupt: &'a Interrupt,
    screen: &'a mut Screen,
    topology: Topology,
    partner: Partner,
    node: WeirNode,
    phases: Vec<Phase>,
}

impl BondLab<'_> {
    /// A phase without events.
    fn steady(&mut self, name: &str, members: usize) -> Result<()> {
        let mut phase = Phase::new(name, Promise::Nothing);
        let time = Duration::from_secs(self.options.seconds.into());
        let before = self.node.sent_by_link()?;
        self.through(&mut phase, |lab, stream| lab.pass(time, stream, name))?;
        phase.carried(self.sent_since(before)?, members);
        self.end(phase);
        Ok(())
    }

    /// A phase with as much TCP as possible: every link must carry some of it.
    fn load(&mut self, name: &str, members: usize) -> Result<()> {
        let mut phase = Phase::new(name, Promise::Nothing);
        let before = self.node.sent_by_link()?;
        let load = Iperf::start(self.run, &self.topology, self.options.seconds, self.interrupt)?;
        while !load.ended(self.run)? {
            self.interrupt.sleep(TICK)?;
            if self.screen.is_due() {
                let frames = self.sent_since(before)?;
                self.screen.live(&[format!("  {name}: frames by link {frames:?}")]);
            }
        }
        phase.load(load.throughput(self.run)?, &self.sent_since(before)?[..members]);
        phase.carried(self.sent_since(before)?, members);
        self.end(phase);
        Ok(())
    }

    /// Adds two members through a new configuration.
    fn become_four(&mut self) -> Result<()> {
        self.timed("two links become four", Promise::Nothing, |lab, stream| {
            lab.node.set_members(LINKS)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)
        })
    }

    fn cut_and_mend(&mut self) -> Result<()> {
        let within = self.interrupt.limit(FAILOVER);
        let mut cut = Phase::new("a link is cut", Promise::Elsewhere { within });
        let mut mended = Phase::new("the link is mended", Promise::Nothing);
        for time in 0..self.options.cuts as usize {
            let link = self.through(&mut cut, |lab, stream| {
                let link = lab.link_in_use(stream, time)?;
                lab.topology.set_link(link, false)?;
                lab.wait_in(stream, "the link's loss", |bond| !bond.uses(link))?;
                lab.pass(LEAD, stream, &format!("link {link} is cut"))?;
                Ok(link)
            })?;
            self.through_timed(&mut mended, |lab, stream| {
                lab.topology.set_link(link, true)?;
                lab.settled("the link's return", stream, |bond| bond.uses(link))
            })?;
        }
        self.end(cut);
        self.end(mended);
        Ok(())
    }

    /// Returns a link (counted from 1) that carries a part of a stream; if several do, a different one each
    /// time. A link may carry none of a few flows, and cutting it would then show nothing.
    fn link_in_use(&mut self, stream: &RunningStream, time: usize) -> Result<usize> {
        let start = Instant::now();
        loop {
            let before = self.node.sent_by_link()?;
            self.pass(LEAD / 2, stream, "links are counted")?;
            let frames = self.sent_since(before)?;
            let mut links = (0..LINKS).map(|step| (time + step) % LINKS);
            if let Some(used) = links.find(|link| frames[*link] > OWN_FRAMES) {
                return Ok(1 + used);
            }
            // On a slow machine, the sender may not have started yet.
            let is_over = start.elapsed() > self.interrupt.limit(PATIENCE);
            premise(!is_over, || format!("no link carries the stream: {frames:?}"))?;
        }
    }

    /// Removes a member and adds it again, several times. How much the partner loses, if frames are sent
    /// before it accepts them, depends on timing.
    fn remove_and_add(&mut self) -> Result<()> {
        let mut removed = Phase::new("a member is removed", Promise::Nothing);
        let mut added = Phase::new("the member is added again", Promise::Nothing);
        for _ in 0..self.options.cuts {
            self.through_timed(&mut removed, |lab, stream| {
                lab.node.command("disable p2")?;
                lab.settled("the member's removal", stream, |bond| bond.buckets_of(2) == 0)
            })?;
            self.through_timed(&mut added, |lab, stream| {
                lab.node.command("enable p2")?;
                lab.settled("the member's return", stream, |bond| bond.buckets_of(2) > 0)
            })?;
        }
        self.end(removed);
        self.end(added);
        Ok(())
    }

    /// Blocks LACPDUs on one link, which keeps its carrier.
    fn fall_silent(&mut self) -> Result<()> {
        let within = SILENCE.0 + self.interrupt.limit(SILENCE.1);
        let mut phase = Phase::new("LACP falls silent on a link", Promise::Noticed { within });
        let time = self.through(&mut phase, |lab, stream| {
            lab.topology.silence(3)?;
            // On a slow machine, `nft` alone takes seconds.
            let start = Instant::now();
            lab.wait_in(stream, "the silence", |bond| !bond.uses(3))?;
            Ok(start.elapsed())
        })?;
        phase.recovered(Some(time.as_secs_f64() * 1e3));
        self.end(phase);
        self.timed("LACP speaks again", Promise::Nothing, |lab, stream| {
            lab.topology.speak()?;
            lab.settled("the link's return", stream, |bond| bond.uses(3))
        })
    }

    /// Moves a link to another aggregate of the partner, or to another system. The bond must not use it with
    /// the others.
    fn lead_elsewhere(&mut self, name: &str, bridge: &str) -> Result<()> {
        self.during(name, Promise::Back, |lab, stream| {
            lab.partner.take_out(LINKS, bridge)?;
            lab.wait_in(stream, "removal of the link", |bond| !bond.uses(LINKS))
        })?;
        self.partner.take_in(LINKS)?;
        self.wait_for("four members", |bond| bond.enabled() == LINKS)
    }

    /// Makes one end passive and slow, then the other one.
    fn speak_otherwise(&mut self) -> Result<()> {
        self.during("the partner is passive and slow", Promise::Back, |lab, stream| {
            lab.partner.speak("passive", "slow")?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS && !bond.is_active("partner"))
        })?;
        self.partner.speak("active", "fast")?;
        self.wait_for("four members", |bond| bond.enabled() == LINKS && bond.is_active("partner"))?;
        self.during("weir is passive and slow", Promise::Nothing, |lab, stream| {
            lab.node.speak("passive", "slow")?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS && !bond.is_active("actor"))
        })?;
        self.node.speak("active", "fast")?;
        self.wait_for("four members", |bond| bond.enabled() == LINKS && bond.is_active("actor"))
    }

    fn restart_partner(&mut self) -> Result<()> {
        self.during("the partner restarts", Promise::Back, |lab, stream| {
            lab.partner.stop(lab.run)?;
            lab.partner.restart(lab.run, &lab.topology, lab.interrupt)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)
        })
    }

    /// All links must leave the bond and be aggregated again, which takes the 2 s that IEEE 802.1AX requires.
    fn change_key(&mut self) -> Result<()> {
        self.during("the partner has a different key", Promise::Back, |lab, stream| {
            lab.partner.rekey()?;
            lab.wait_in(stream, "removal of the members", |bond| bond.enabled() == 0)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)
        })
    }

    fn restart_weir(&mut self) -> Result<()> {
        self.during("weir restarts", Promise::Back, |lab, stream| {
            lab.node.stop(lab.run)?;
            lab.node = WeirNode::start(lab.run, &lab.topology, LINKS, lab.interrupt)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)
        })
    }

    /// The links' partner notices nothing, and only frames that arrive while the sockets change hands are
    /// lost.
    fn take_over(&mut self) -> Result<()> {
        let limit = if kernel::maps_bound_sockets() { TAKEOVER } else { TAKEOVER_ANEW };
        let elsewhere = Promise::Elsewhere { within: self.interrupt.limit(limit) };
        self.during("another weir is taking over", elsewhere, |lab, stream| {
            lab.node.succeed(lab.run, &lab.topology, lab.interrupt)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)
        })
    }

    /// The partner, now a plain switch without LACP, ignores the active link, which keeps its carrier.
    fn fall_silent_under_probes(&mut self, vlan: Option<u16>) -> Result<()> {
        let tag = vlan.map_or_else(String::new, |vlan| format!(", vlan: {vlan}"));
        self.partner.be_plain(vlan)?;
        if vlan.is_some() {
            // A reload trusts members that are enabled until probes go unanswered. Untagged probes, which the
            // switch now answers in the VLAN, take all of them out: from here on, only an answer to a probe
            // in the VLAN enables one.
            self.wait_for_bond("silence after untagged probes", |bond| bond.enabled() == 0)?;
        }
        let (interval_ms, missed) = (self.interrupt.limit(PROBES.0).as_millis(), PROBES.1);
        self.node.probe(&format!(
            "{{ targets: [{OUTSIDE}], interval: {interval_ms}ms, missed_max: {missed}{tag} }}"
        ))?;
        self.wait_for_bond("answers to probes", |bond| bond.enabled() == 2)?;
        let within = vlan.map_or_else(String::new, |_| " in a VLAN".to_string());
        let mut silent = Phase::new(
            &format!("a probed partner falls silent{within}"),
            Promise::Elsewhere { within: self.interrupt.limit(UNANSWERED) },
        );
        let mut speaks = Phase::new(&format!("the probed partner answers again{within}"), Promise::Nothing);
        for _ in 0..self.options.cuts {
            let link = self.active_link()?;
            self.through(&mut silent, |lab, stream| {
                lab.partner.ignore(link)?;
                lab.wait_in(stream, "the silence", |bond| !bond.uses(link))?;
                lab.pass(LEAD, stream, &format!("link {link} is silent"))
            })?;
            self.through_timed(&mut speaks, |lab, stream| {
                lab.partner.heed(link, vlan)?;
                lab.wait_in(stream, "the link's return", |bond| bond.uses(link))
            })?;
        }
        // For a single cut, this may be true by chance if the sender is slow; if it is true for all cuts, the
        // silence did not occur.
        silent.needs(silent.tally.lost > 0, || "nothing was sent on a link while it was silent".into());
        self.end(silent);
        self.end(speaks);
        Ok(())
    }

    /// Returns the active link (counted from 1). While this machine stands still, probes go unanswered, and
    /// for a moment no member is active.
    fn active_link(&self) -> Result<usize> {
        let mut active = None;
        self.interrupt.wait(PATIENCE, || {
            active = self.node.bond()?.active();
            Ok(active.is_some())
        })?;
        active.context("no member is active")
    }

    /// A phase with one event.
    fn during(
        &mut self,
        name: &str,
        promise: Promise,
        event: impl FnOnce(&mut Self, &RunningStream) -> Result<()>,
    ) -> Result<()> {
        let mut phase = Phase::new(name, promise);
        self.through(&mut phase, event)?;
        self.end(phase);
        Ok(())
    }

    /// A phase with one event, which has recovered when `event` returns.
    fn timed(
        &mut self,
        name: &str,
        promise: Promise,
        event: impl FnOnce(&mut Self, &RunningStream) -> Result<()>,
    ) -> Result<()> {
        let mut phase = Phase::new(name, promise);
        self.through_timed(&mut phase, event)?;
        self.end(phase);
        Ok(())
    }

    fn through_timed(
        &mut self,
        phase: &mut Phase,
        event: impl FnOnce(&mut Self, &RunningStream) -> Result<()>,
    ) -> Result<()> {
        let time = self.through(phase, |lab, stream| {
            let start = Instant::now();
            event(lab, stream).map(|()| start.elapsed())
        })?;
        phase.recovered(Some(time.as_secs_f64() * 1e3));
        Ok(())
    }

    /// Runs a stream during an event, and adds its result to the phase.
    fn through<T>(
        &mut self,
        phase: &mut Phase,
        event: impl FnOnce(&mut Self, &RunningStream) -> Result<T>,
    ) -> Result<T> {
        let stream = RunningStream::start(self.run, self.topology.ends(), self.options.rate, self.interrupt)?;
        let name = phase.name.clone();
        self.pass(LEAD, &stream, &name)?;
        let busy = self.node.bond()?.moved_busy();
        let result = event(self, &stream)?;
        if phase.is_outage() {
            self.resumed(&stream, &name)?;
        }
        self.pass(LEAD, &stream, &name)?;
        // A restarted weir counts from zero.
        let busy = self.node.bond()?.moved_busy().saturating_sub(busy);
        let tally = stream.finish(self.run, self.interrupt)?;
        phase.add(&tally, busy);
        if phase.is_outage() {
            phase.recovered(Some(tally.outage_ms.unwrap_or(0.0)));
        }
        Ok(result)
    }

    /// Waits until the packets of half a second have arrived, so that flows have time to resume even on a
    /// slow machine. The stream's result says whether each has.
    fn resumed(&mut self, stream: &RunningStream, what: &str) -> Result<()> {
        let (start, (_, before)) = (Instant::now(), stream.counts());
        let enough = before + u64::from(self.options.rate / 2);
        while stream.counts().1 < enough && start.elapsed() < self.interrupt.limit(RESUMPTION) {
            self.tick(stream, what)?;
        }
        Ok(())
    }

    /// Waits for `time`, updating the screen.
    fn pass(&mut self, time: Duration, stream: &RunningStream, what: &str) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.tick(stream, what)?;
        }
        Ok(())
    }

    fn tick(&mut self, stream: &RunningStream, what: &str) -> Result<()> {
        self.interrupt.sleep(TICK)?;
        if self.screen.is_due() {
            let (sent, received) = stream.counts();
            let enabled = self.node.bond().map_or(0, |bond| bond.enabled());
            self.screen.live(&[format!("  {what}: sent {sent}, received {received}, members {enabled}")]);
        }
        Ok(())
    }

    /// Waits, while a stream runs, until the bond satisfies `is_so` and the partner uses as many links.
    fn settled(&mut self, what: &str, stream: &RunningStream, is_so: impl Fn(&Bond) -> bool) -> Result<()> {
        self.wait(what, Some(stream), true, |bond| is_so(bond) && bond.waiting() == 0)
    }

    /// Waits, while a stream runs, until the bond satisfies `is_so`.
    fn wait_in(&mut self, stream: &RunningStream, what: &str, is_so: impl Fn(&Bond) -> bool) -> Result<()> {
        self.wait(what, Some(stream), false, is_so)
    }

    /// Waits until the bond satisfies `is_so` and the partner uses as many links.
    fn wait_for(&mut self, what: &str, is_so: impl Fn(&Bond) -> bool) -> Result<()> {
        self.wait(what, None, true, is_so)
    }

    /// Waits until the bond satisfies `is_so`, whatever the partner uses.
    fn wait_for_bond(&mut self, what: &str, is_so: impl Fn(&Bond) -> bool) -> Result<()> {
        self.wait(what, None, false, is_so)
    }

    /// Waits until the bond satisfies `is_so`, and also, if `agreed`, the partner uses as many links.
    /// Otherwise, the partner is not asked, because that takes longer than asking weir.
    fn wait(
        &mut self,
        what: &str,
        stream: Option<&RunningStream>,
        agreed: bool,
        is_so: impl Fn(&Bond) -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            let bond = self.node.bond()?;
            if is_so(&bond) && (!agreed || self.partner.members_enabled()? == bond.enabled()) {
                return Ok(());
            }
            if start.elapsed() > self.interrupt.limit(PATIENCE) {
                let partner = self.partner.members_enabled()?;
                bail!("timed out waiting for {what}; the partner uses {partner} links: {}", bond.text());
            }
            match stream {
                Some(stream) => self.tick(stream, what)?,
                None => self.interrupt.sleep(TICK)?,
            }
        }
    }

    fn sent_since(&self, before: [u64; LINKS]) -> Result<[u64; LINKS]> {
        let now = self.node.sent_by_link()?;
        Ok(std::array::from_fn(|link| now[link] - before[link]))
    }

    fn end(&mut self, phase: Phase) {
        self.screen.say(&phase.text());
        self.phases.push(phase);
    }
}
