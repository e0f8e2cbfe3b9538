//! `weir lab dns`: real DNS queries through weir to three real name servers, and the same load without weir.
//!
//! Each round has four loads. The first goes directly to one back end, to show what this machine can do. Two
//! go to a VIP each, through weir: on one node its workers handle the queries, on the other the kernel does.
//! The last goes directly to a back end again; the difference from the first is the noise of the machine. All
//! loads are dnsperf's, with the same rate and duration. topology.rs describes the network, clients.rs
//! defines a flow, share.rs defines which shares count as even, and verdict.rs what must hold.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::clients::Clients;
use super::daemon::{self, Daemon, Snapshot};
use super::dnsperf::{self, Load, LoadParameters};
use super::page::{self, NodePage};
use super::reloads::Reloads;
use super::report::{LabReport, LoadReport, NodeReport, grouped};
use super::screen::Screen;
use super::session::{self, KeptLab, LabOutcome, SessionOptions};
use super::topology::{Topology, WeirNode};
use super::witness::Witness;
use super::{Interrupt, nsd, verdict};
use weir_bed::Run;
use weir_bed::namespace;

/// How often the lab polls while a load runs.
const TICK: Duration = Duration::from_millis(20);
/// How long name servers may take to reply, and frames to arrive.
const SETTLE: Duration = Duration::from_secs(10);
/// Queries per second to each node of a kept lab, and for how long: a month.
const KEPT_RATE: u32 = 100;
const KEPT_S: u32 = 30 * 86_400;
/// The most loads through a node that are added on a machine that is too slow for all reloads in the others.
const ADDED_MAX: u32 = 5;
const NEEDED: [&str; 5] = ["ip", "bridge", "ethtool", "nsd", "dnsperf"];

/// The options of `weir lab dns`.
#[derive(clap::Args)]
pub struct DnsOptions {
    /// Duration of each of the four loads of a round (direct, through weir's workers, through the kernel's
    /// executor, and direct again).
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    /// Queries per second.
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    rate: u32,
    /// Rounds of four loads. Latencies are medians of the rounds; all other results are added up.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Other processes, each of which keeps a processor busy.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=64))]
    busy: u32,
    /// Number of weir's workers on each node, each with its own queue.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    workers: u32,
    /// Reloads during the loads through each node, alternating between two configurations that differ in
    /// pipes, entries and back ends.
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000))]
    reloads: u32,
    #[command(flatten)]
    common: SessionOptions,
}

/// Runs the lab. Succeeds if nothing was lost and all counts agree.
pub fn run(options: &DnsOptions) -> Result<ExitCode> {
    let missing = namespace::missing(&NEEDED);
    session::check_means("dns", &missing, "./setup --for demo")?;
    session::run(&options.common, |interrupt, screen| {
        // A kept lab ends here, so that it leaves nothing behind either.
        let run = SessionOptions { keep: false, ..options.common }.begin()?;
        let mut lab = DnsLab { options, run, interrupt, screen };
        let (report, topology) = lab.perform()?;
        let reasons = verdict::reasons(&report);
        let (text, json) = (report.text(&reasons), report.json(&reasons));
        let kept = options.common.keep.then(|| lab.stay(topology)).transpose()?;
        Ok(LabOutcome { ok: reasons.is_empty(), text, json, kept })
    })
}

struct DnsLab<'a> {
    options: &'a DnsOptions,
    run: Run,
    interrupt: &'a Interrupt,
    screen: &'a mut Screen,
}

/// A node with a running daemon, and the loads through it.
struct NodeUnderLoad<'a> {
    node: &'a WeirNode,
    daemon: Daemon,
    before: Witness,
    reloads: Reloads,
    load: LoadReport,
}

impl DnsLab<'_> {
    fn perform(&mut self) -> Result<(LabReport, Topology)> {
        let DnsOptions { seconds, rate, rounds, busy, workers, .. } = *self.options;
        self.screen.say(&format!(
            "client -- switch -- weir, three name servers: {rate} queries/s for {seconds} s, four times"
        ));
        let mut topology = Topology::build(&self.run, workers)?;
        if self.options.common.keep {
            let pages = page::open(&self.run, topology.nodes.len())?;
            topology.nodes.iter_mut().zip(pages).for_each(|(node, page)| node.page = Some(page));
        }
        let queries = nsd::write_queries(self.run.folder(), nsd::NAMES)?;
        self.start_servers(&topology)?;
        (0..busy).try_for_each(|number| keep_busy(&mut self.run, number))?;
        let nodes = topology.nodes.iter().map(|node| self.start_weir(&topology, node));
        let mut nodes = nodes.collect::<Result<Vec<_>>>()?;
        let mut direct = [LoadReport::default(), LoadReport::default()];
        for round in 0..rounds {
            if rounds > 1 {
                self.screen.say(&format!("round {} of {rounds}", round + 1));
            }
            let earlier = Duration::from_secs(u64::from(seconds)) * round;
            self.direct(&topology, &queries, &mut direct[0])?;
            for node in &mut nodes {
                self.through_weir(&topology, &queries, node, earlier)?;
            }
            self.direct(&topology, &queries, &mut direct[1])?;
        }
        for node in &mut nodes {
            self.complete_reloads(&topology, &queries, node)?;
        }
        let nodes = nodes.into_iter().map(|node| self.finish(&topology, node)).collect::<Result<_>>()?;
        Ok((LabReport { nodes, direct, busy }, topology))
    }

    /// Keeps the nodes and a small load through each of them, for people who look at the web pages.
    fn stay(mut self, topology: Topology) -> Result<KeptLab> {
        let queries = nsd::write_queries(self.run.folder(), nsd::NAMES)?;
        let plan = LoadParameters { rate: KEPT_RATE, seconds: KEPT_S, slowdown: 1 };
        let mut text = "It runs until Ctrl-C, with 200 queries a second. Open its web pages:\n".to_string();
        let mut loads = Vec::new();
        for node in &topology.nodes {
            let clients = Clients::start(&mut self.run, &topology.client, node.vip, plan.rate)?;
            loads.push((clients, Load::start(&mut self.run, &topology.client, node.vip, plan, &queries)?));
            let url = node.page.as_ref().map(NodePage::url).unwrap_or_default();
            text += &format!("  {:<6}  {url}\n", node.executor.name());
        }
        text += &format!(
            "Each has a token that permits changes. Try Explain with `udp 10.77.128.1:4000 > {}:53`.",
            topology.nodes[0].vip
        );
        Ok(KeptLab { text, held: Box::new((loads, topology, self.run)) })
    }

    fn start_weir<'t>(&mut self, topology: &'t Topology, node: &'t WeirNode) -> Result<NodeUnderLoad<'t>> {
        let DnsOptions { seconds, rounds, workers, reloads, .. } = *self.options;
        let before = Witness::read(topology, node)?;
        let configuration = daemon::configuration(node, &topology.back_ends, workers);
        let daemon = Daemon::start(&mut self.run, topology, node, &configuration, self.interrupt)?;
        let time = Duration::from_secs(u64::from(seconds)) * rounds;
        let reloads = Reloads::over(time, reloads, topology, node, workers);
        Ok(NodeUnderLoad { node, daemon, before, reloads, load: LoadReport::default() })
    }

    /// Reads the counts of a node, and stops its daemon.
    fn finish(&mut self, topology: &Topology, node: NodeUnderLoad<'_>) -> Result<NodeReport> {
        let NodeUnderLoad { node, daemon, before, mut reloads, load } = node;
        reloads.finish(&daemon, &mut self.run)?;
        let snapshot = self.settled(&daemon)?;
        let witness = Witness::read(topology, node)?.since(&before);
        if !self.options.common.keep {
            daemon.stop(&mut self.run)?;
        }
        let names: Vec<&'static str> = topology.back_ends.iter().map(|back_end| back_end.name).collect();
        let shares = reloads.shares(&names, snapshot.frames("received"), load.flows);
        let mut kernel = reloads.kernel().clone();
        kernel.add(&snapshot.kernel);
        let (executor, reloads) = (node.executor, reloads.done());
        Ok(NodeReport { executor, load, snapshot, kernel, witness, shares, reloads })
    }

    fn start_servers(&mut self, topology: &Topology) -> Result<()> {
        let query = nsd::write_queries(self.run.folder(), 1)?;
        for back_end in &topology.back_ends {
            nsd::start(&mut self.run, back_end)?;
        }
        for back_end in &topology.back_ends {
            let answers = || Ok(dnsperf::answers(&topology.client, back_end.address, &query));
            if !self.interrupt.wait(SETTLE, answers)? {
                let log = self.run.last_words(&format!("nsd-{}", back_end.name));
                bail!("the name server of {} does not answer: {log}", back_end.name);
            }
        }
        Ok(())
    }

    fn direct(&mut self, topology: &Topology, queries: &Path, report: &mut LoadReport) -> Result<()> {
        let server = &topology.back_ends[0];
        self.screen.say(&format!("direct: the client asks {} itself", server.name));
        self.load(topology, server.address, queries, report, |_, _| Ok(Vec::new()))
    }

    /// Runs one load through a node, after loads that took `earlier`.
    fn through_weir(
        &mut self,
        topology: &Topology,
        queries: &Path,
        node: &mut NodeUnderLoad<'_>,
        earlier: Duration,
    ) -> Result<()> {
        let NodeUnderLoad { node, daemon, reloads, load, .. } = node;
        let (name, vip) = (node.executor.name(), node.vip);
        self.screen.say(&format!("{name}: the client asks {vip}, weir chooses among three"));
        self.load(topology, vip, queries, load, |lab, elapsed| {
            reloads.tick(earlier + elapsed, daemon, &mut lab.run)?;
            if lab.screen.is_due() { Ok(rows(&daemon.snapshot(&mut lab.run)?)) } else { Ok(Vec::new()) }
        })
    }

    /// Adds loads through a node until all reloads have been done under load. Each takes as long as this
    /// machine needs for it.
    fn complete_reloads(
        &mut self,
        topology: &Topology,
        queries: &Path,
        node: &mut NodeUnderLoad<'_>,
    ) -> Result<()> {
        let DnsOptions { seconds, rounds, .. } = *self.options;
        for added in 0..ADDED_MAX {
            let (done, wanted) = node.reloads.done();
            if done >= wanted {
                break;
            }
            self.screen.say(&format!("{done} of {wanted} reloads are done: another load"));
            let earlier = Duration::from_secs(u64::from(seconds)) * (rounds + added);
            self.through_weir(topology, queries, node, earlier)?;
        }
        Ok(())
    }

    /// Runs one load, and adds it to a report; `tick` is called periodically and returns rows for the live
    /// table.
    fn load(
        &mut self,
        topology: &Topology,
        server: &'static str,
        queries: &Path,
        report: &mut LoadReport,
        mut tick: impl FnMut(&mut Self, Duration) -> Result<Vec<String>>,
    ) -> Result<()> {
        let DnsOptions { rate, seconds, .. } = *self.options;
        let plan = LoadParameters { rate, seconds, slowdown: self.interrupt.slowdown() };
        let clients = Clients::start(&mut self.run, &topology.client, server, plan.rate)?;
        let load = Load::start(&mut self.run, &topology.client, server, plan, queries)?;
        while !load.ended(&mut self.run)? {
            self.interrupt.sleep(TICK)?;
            let rows = tick(self, load.elapsed())?;
            if self.screen.is_due() {
                let lines: Vec<String> = [progress(&load, plan)].into_iter().chain(rows).collect();
                self.screen.live(&lines);
            }
        }
        let addresses = clients.stop()?;
        report.add(&load.outcome(&self.run)?, addresses);
        Ok(())
    }

    /// Waits until no frame is in flight: two readings are equal.
    fn settled(&mut self, daemon: &Daemon) -> Result<Snapshot> {
        let deadline = Instant::now() + self.interrupt.limit(SETTLE);
        let mut last = daemon.snapshot(&mut self.run)?;
        loop {
            self.interrupt.sleep(5 * TICK)?;
            let now = daemon.snapshot(&mut self.run)?;
            if now == last || Instant::now() > deadline {
                return Ok(now);
            }
            last = now;
        }
    }
}

/// Starts a process that keeps a processor busy until the run ends.
fn keep_busy(run: &mut Run, number: u32) -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "while :; do :; done"]).stdin(Stdio::null()).stdout(Stdio::null());
    run.start(&format!("busy-{number}"), &mut command).map(drop)
}

fn progress(load: &Load, plan: LoadParameters) -> String {
    let tally = load.tally();
    let seconds = load.elapsed().as_secs_f64().min(f64::from(plan.seconds));
    format!(
        "  {seconds:>5.1} of {} s  answered {:>9}  lost {}  p50 {} us  p99 {} us",
        plan.seconds,
        grouped(tally.answered),
        grouped(tally.lost),
        tally.latency.percentile(50),
        tally.latency.percentile(99)
    )
}

/// Returns a bar for each back end; a full bar is the whole load.
fn rows(snapshot: &Snapshot) -> Vec<String> {
    const WIDTH: u64 = 40;
    let total = snapshot.packets().max(1);
    let row = |name: &str, packets: u64| {
        let bar = "#".repeat((packets * WIDTH / total) as usize);
        format!(
            "  {name:<4}{:>12}  {:>5.1} %  {bar}",
            grouped(packets),
            100.0 * packets as f64 / total as f64
        )
    };
    snapshot.back_ends.iter().map(|back_end| row(back_end.name, back_end.packets)).collect()
}
