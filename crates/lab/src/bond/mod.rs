//! `weir lab bond`: a bond of weir to an Open vSwitch that speaks LACP, over two links and then four. Links
//! fail and recover, members come and go, both ends restart.
//!
//! During each event, a paced stream of numbered packets (stream.rs) shows which packets were lost or
//! reordered, and how long the outage lasted; between events there is also TCP (iperf.rs). topology.rs
//! describes the network, phase.rs what must hold.

mod iperf;
mod node;
mod partner;
mod phase;
pub mod stream;
mod topology;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use self::iperf::Iperf;
use self::node::{Bond, Node};
use self::partner::Partner;
use self::phase::{Phase, Promise};
use self::stream::Stream;
use self::topology::{LINKS, Topology};
use super::ovs::{PACKAGE, SWITCH};
use super::run::Run;
use super::screen::Screen;
use super::{INTERRUPTED, Interrupt, Interrupted, namespace};

/// How often the lab polls.
const TICK: Duration = Duration::from_millis(20);
/// How long a stream runs before an event, and after recovery.
const LEAD: Duration = Duration::from_millis(500);
/// How long LACP may take to negotiate, and a partner or weir to start.
const PATIENCE: Duration = Duration::from_secs(20);
/// The longest time from loss of carrier to the first packet on another member, in milliseconds, at the
/// median.
const FAILOVER_MS: f64 = 10.0;
/// The longest time until LACP silence is detected, in milliseconds: LACPDUs come every second, three of them
/// are missed (802.1AX 6.4.4), and the lab polls every 20 ms.
const SILENCE_MS: f64 = 3000.0 + 100.0;
const NEEDED: [&str; 8] =
    ["ip", "ethtool", "nft", "iperf3", "ovs-vsctl", "ovs-ofctl", "ovsdb-server", "ovsdb-tool"];

/// Options of the lab.
pub struct Options {
    /// Duration of each quiet phase.
    pub seconds: u32,
    /// Packets per second of the stream.
    pub rate: u32,
    /// How often links fail and recover.
    pub cuts: u32,
    /// Print a JSON object on the last line.
    pub json: bool,
    /// Leave everything in place for inspection.
    pub keep: bool,
}

/// Runs the lab. Succeeds if all phases keep their promises.
pub fn run(options: &Options) -> Result<ExitCode> {
    check_means()?;
    let interrupt = Interrupt::on_signals()?;
    let mut run = Run::begin(options.keep)?;
    let mut screen = Screen::new(options.json);
    let phases = match perform(options, &mut run, &interrupt, &mut screen) {
        Err(error) if error.is::<Interrupted>() => {
            screen.say("interrupted");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        result => result?,
    };
    let ok = phases.iter().all(|phase| phase.reasons().is_empty());
    screen.say(if ok { "All phases succeeded." } else { "Some phases failed." });
    if options.keep {
        screen.say("Kept until the next lab: `ip netns` lists the namespaces.");
    }
    if options.json {
        let phases: Vec<_> = phases.iter().map(Phase::json).collect();
        println!("{}", json!({ "ok": ok, "phases": phases }));
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_means() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("labs create network namespaces: run this as root (sudo weir lab bond)");
    }
    let mut missing = namespace::missing(&NEEDED);
    if !std::fs::exists(SWITCH).unwrap_or(false) {
        missing.push(PACKAGE);
    }
    match missing.as_slice() {
        [] => Ok(()),
        missing => bail!("missing: {}; `./setup` installs what labs need", missing.join(", ")),
    }
}

fn perform(
    options: &Options,
    run: &mut Run,
    interrupt: &Interrupt,
    screen: &mut Screen,
) -> Result<Vec<Phase>> {
    screen.say("inside -- weir == two links, then four == Open vSwitch -- outside");
    let topology = Topology::build(run)?;
    let partner = Partner::start(run, &topology, interrupt)?;
    let node = Node::start(run, &topology, 2, interrupt)?;
    let mut lab = Lab { options, run, interrupt, screen, topology, partner, node, phases: Vec::new() };
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
    lab.lead_elsewhere("a link has another key", "br0")?;
    lab.lead_elsewhere("a link leads to another system", "br1")?;
    lab.speak_otherwise()?;
    lab.restart_partner()?;
    lab.restart_weir()?;
    let Lab { node, run, phases, .. } = lab;
    if !options.keep {
        node.stop(run)?;
    }
    Ok(phases)
}

struct Lab<'a> {
    options: &'a Options,
    run: &'a mut Run,
    interrupt: &'a Interrupt,
    screen: &'a mut Screen,
    topology: Topology,
    partner: Partner,
    node: Node,
    phases: Vec<Phase>,
}

impl Lab<'_> {
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

    /// As much TCP as possible: every link must carry some of it.
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

    /// Adds two members by a new configuration.
    fn become_four(&mut self) -> Result<()> {
        let mut phase = Phase::new("two links become four", Promise::Nothing);
        let ms = self.through(&mut phase, |lab, stream| {
            let start = Instant::now();
            lab.node.set_members(LINKS)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)?;
            Ok(milliseconds(start.elapsed()))
        })?;
        phase.recovered(Some(ms));
        self.end(phase);
        Ok(())
    }

    fn cut_and_mend(&mut self) -> Result<()> {
        let mut cut = Phase::new("a link is cut", Promise::Elsewhere { within_ms: FAILOVER_MS });
        let mut mended = Phase::new("the link is mended", Promise::Nothing);
        for time in 0..self.options.cuts as usize {
            let link = 1 + time % LINKS;
            let tally = self.through(&mut cut, |lab, stream| {
                lab.topology.set_link(link, false)?;
                lab.wait_in(stream, "the link's loss", |bond| !bond.uses(link))?;
                lab.pass(LEAD, stream, &format!("link {link} is cut"))
            });
            tally?;
            let ms = self.through(&mut mended, |lab, stream| {
                let start = Instant::now();
                lab.topology.set_link(link, true)?;
                lab.settled("the link's return", stream, |bond| bond.uses(link))?;
                Ok(milliseconds(start.elapsed()))
            })?;
            mended.recovered(Some(ms));
        }
        self.end(cut);
        self.end(mended);
        Ok(())
    }

    fn remove_and_add(&mut self) -> Result<()> {
        let mut removed = Phase::new("a member is removed", Promise::Nothing);
        let ms = self.through(&mut removed, |lab, stream| {
            let start = Instant::now();
            lab.node.command("disable p2")?;
            lab.settled("the member's leave", stream, |bond| bond.buckets_of(2) == 0)?;
            Ok(milliseconds(start.elapsed()))
        })?;
        removed.recovered(Some(ms));
        self.end(removed);
        let mut added = Phase::new("the member is added again", Promise::Nothing);
        let ms = self.through(&mut added, |lab, stream| {
            let start = Instant::now();
            lab.node.command("enable p2")?;
            lab.settled("the member's return", stream, |bond| bond.buckets_of(2) > 0)?;
            Ok(milliseconds(start.elapsed()))
        })?;
        added.recovered(Some(ms));
        self.end(added);
        Ok(())
    }

    /// Blocks LACPDUs on one link, which keeps its carrier.
    fn fall_silent(&mut self) -> Result<()> {
        let mut phase = Phase::new("LACP falls silent on a link", Promise::Noticed { within_ms: SILENCE_MS });
        let ms = self.through(&mut phase, |lab, stream| {
            let start = Instant::now();
            lab.topology.silence(3)?;
            lab.wait_in(stream, "the silence", |bond| !bond.uses(3))?;
            Ok(milliseconds(start.elapsed()))
        })?;
        phase.recovered(Some(ms));
        self.end(phase);
        let mut phase = Phase::new("LACP speaks again", Promise::Nothing);
        let ms = self.through(&mut phase, |lab, stream| {
            let start = Instant::now();
            lab.topology.speak()?;
            lab.settled("the link's return", stream, |bond| bond.uses(3))?;
            Ok(milliseconds(start.elapsed()))
        })?;
        phase.recovered(Some(ms));
        self.end(phase);
        Ok(())
    }

    /// Moves a link to another aggregate of the partner, or to another system. The bond must not use it with
    /// the others.
    fn lead_elsewhere(&mut self, name: &str, bridge: &str) -> Result<()> {
        let mut phase = Phase::new(name, Promise::Back);
        self.through(&mut phase, |lab, stream| {
            lab.partner.take_out(LINKS, bridge)?;
            lab.wait_in(stream, "the link to be left", |bond| !bond.uses(LINKS))
        })?;
        self.end(phase);
        self.partner.take_in(LINKS)?;
        self.wait_for("four members", |bond| bond.enabled() == LINKS)
    }

    /// Makes one end passive and slow, then the other.
    fn speak_otherwise(&mut self) -> Result<()> {
        let mut phase = Phase::new("the partner is passive and slow", Promise::Back);
        self.through(&mut phase, |lab, stream| {
            lab.partner.speak("passive", "slow")?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS && !bond.is_active("partner"))
        })?;
        self.end(phase);
        self.partner.speak("active", "fast")?;
        self.wait_for("four members", |bond| bond.enabled() == LINKS && bond.is_active("partner"))?;
        let mut phase = Phase::new("weir is passive and slow", Promise::Nothing);
        self.through(&mut phase, |lab, stream| {
            lab.node.speak("passive", "slow")?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS && !bond.is_active("actor"))
        })?;
        self.end(phase);
        self.node.speak("active", "fast")?;
        self.wait_for("four members", |bond| bond.enabled() == LINKS && bond.is_active("actor"))
    }

    fn restart_partner(&mut self) -> Result<()> {
        let mut phase = Phase::new("the partner restarts", Promise::Back);
        let tally = self.through(&mut phase, |lab, stream| {
            lab.partner.stop(lab.run)?;
            lab.partner.restart(lab.run, &lab.topology, lab.interrupt)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)
        });
        tally?;
        self.end(phase);
        Ok(())
    }

    fn restart_weir(&mut self) -> Result<()> {
        let mut phase = Phase::new("weir restarts", Promise::Back);
        self.through(&mut phase, |lab, stream| {
            lab.node.stop(lab.run)?;
            lab.node = Node::start(lab.run, &lab.topology, LINKS, lab.interrupt)?;
            lab.settled("four members", stream, |bond| bond.enabled() == LINKS)
        })?;
        self.end(phase);
        Ok(())
    }

    /// Runs a stream during an event, and adds its result to the phase.
    fn through<T>(
        &mut self,
        phase: &mut Phase,
        event: impl FnOnce(&mut Self, &Stream) -> Result<T>,
    ) -> Result<T> {
        let stream = Stream::start(self.run, &self.topology, self.options.rate, self.interrupt)?;
        let name = phase.name.clone();
        self.pass(LEAD, &stream, &name)?;
        let busy = self.node.bond()?.moved_busy();
        let result = event(self, &stream)?;
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

    /// Waits for `time`, updating the screen.
    fn pass(&mut self, time: Duration, stream: &Stream, what: &str) -> Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.tick(stream, what)?;
        }
        Ok(())
    }

    fn tick(&mut self, stream: &Stream, what: &str) -> Result<()> {
        self.interrupt.sleep(TICK)?;
        if self.screen.is_due() {
            let (sent, received) = stream.counts();
            let enabled = self.node.bond().map_or(0, |bond| bond.enabled());
            self.screen.live(&[format!("  {what}: sent {sent}, received {received}, members {enabled}")]);
        }
        Ok(())
    }

    /// Waits, while a stream runs, until the bond satisfies `is_so` and the partner uses as many links.
    fn settled(&mut self, what: &str, stream: &Stream, is_so: impl Fn(&Bond) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            let (bond, partner) = (self.node.bond()?, self.partner.members_enabled()?);
            if is_so(&bond) && bond.waiting() == 0 && bond.enabled() == partner {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("timed out waiting for {what}; the partner uses {partner} links: {}", bond.text());
            }
            self.tick(stream, what)?;
        }
    }

    /// Waits, while a stream runs, until the bond satisfies `is_so`.
    fn wait_in(&mut self, stream: &Stream, what: &str, is_so: impl Fn(&Bond) -> bool) -> Result<()> {
        let start = Instant::now();
        while !is_so(&self.node.bond()?) {
            if start.elapsed() > PATIENCE {
                bail!("timed out waiting for {what}: {}", self.node.bond()?.text());
            }
            self.tick(stream, what)?;
        }
        Ok(())
    }

    /// Waits until the bond satisfies `is_so` and the partner uses as many links.
    fn wait_for(&mut self, what: &str, is_so: impl Fn(&Bond) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            let (bond, partner) = (self.node.bond()?, self.partner.members_enabled()?);
            if is_so(&bond) && bond.enabled() == partner {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("timed out waiting for {what}; the partner uses {partner} links: {}", bond.text());
            }
            self.interrupt.sleep(TICK)?;
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

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
