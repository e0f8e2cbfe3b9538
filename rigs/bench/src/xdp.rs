//! weir compared with dpdk-testpmd on AF_XDP, on the same two veth pairs.
//!
//! ```text
//!   far:  f0 (source)      f1 (counts)
//!         |                ^
//!   node: w0 --[ weir | testpmd macswap ]-- w1
//! ```
//!
//! The source sends more than either can forward, in the kernel, on its own core (`papers::XdpGenerate`). The
//! kernel counts the frames that arrive at f1, for both in the same way. Only one program can use an
//! interface at a time, so each turn starts its own process; the turns alternate.

use super::peers::{Forwarder, Setting, TESTPMD, TESTPMD_PACKAGE};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use weir_bed::namespace;
use weir_bed::{Namespace, Run, cable};
use weir_lab::premise::carried;
use weir_lab::screen::line;
use weir_lab::spread::ResultSpread;
use weir_lab::{Interrupt, weir};
use weir_port::huge_pages::HugePages;

/// Rounds whose median is reported, after an uncounted warm-up round.
const ROUNDS: usize = 5;

/// How long a turn runs before it is measured, and how long it is measured.
const SETTLE: Duration = Duration::from_millis(300);
const TURN: Duration = Duration::from_millis(1500);

/// MiB of testpmd's memory.
const HUGE_MIB: u32 = 512;
const ORDINARY_MIB: u32 = 800;

/// Runs the benchmark. Returns `None`, and prints the reason, if that is impossible.
pub fn run() -> Result<Option<Vec<Value>>> {
    if !namespace::missing(&[TESTPMD]).is_empty() {
        line(format_args!(
            "xdp: not measured, {TESTPMD} is not installed: apt-get install {TESTPMD_PACKAGE}"
        ))?;
        return Ok(None);
    }
    if !rustix::process::geteuid().is_root() {
        line("xdp: not measured, network namespaces and AF_XDP need root")?;
        return Ok(None);
    }
    let interrupt = Interrupt::on_signals()?;
    let pages = HugePages::reserve(HUGE_MIB as usize);
    let mut run = Run::begin(false)?;
    let setting = Setting::new(if pages.enough { HUGE_MIB } else { ORDINARY_MIB }, pages.enough);
    let mut bench = XdpBench::new(&mut run, setting, interrupt)?;
    line("turn     weir  testpmd  (Mpps delivered, offered)")?;
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        let (weir, offered) = bench.turn(&mut run, XdpBench::weir)?;
        let (testpmd, _) = bench.turn(&mut run, XdpBench::testpmd)?;
        let warm = if round > 0 { "" } else { "warm" };
        line(format_args!("{warm:<6} {weir:>6.3}  {testpmd:>7.3}  ({offered:.3})"))?;
        if round > 0 {
            rates.iter_mut().zip([weir, testpmd, offered]).for_each(|(rates, rate)| rates.push(rate));
        }
    }
    let [weir, testpmd, offered] = rates.map(ResultSpread::of);
    let ratio = weir.median / testpmd.median;
    let (ours, theirs, percent) = (weir.median, testpmd.median, 100.0 * ratio);
    line(format_args!("median {ours:>6.3}  {theirs:>7.3}  weir / testpmd {percent:.0} %"))?;
    let mut row = json!({});
    ResultSpread::put(Some(weir), "weir", &mut row);
    ResultSpread::put(Some(testpmd), "testpmd", &mut row);
    row["ratio"] = json!(ratio);
    row["offered_mpps"] = json!(offered.median);
    Ok(Some(vec![row]))
}

struct XdpBench {
    node: Namespace,
    setting: Setting,
    interrupt: Interrupt,
    source: Forwarder,
    /// The kernel's counters of the far end's interfaces.
    counters: String,
}

impl XdpBench {
    fn new(run: &mut Run, setting: Setting, interrupt: Interrupt) -> Result<XdpBench> {
        let (far, node) = (run.namespace("far")?, run.namespace("node")?);
        for (end, other) in [("f0", "w0"), ("f1", "w1")] {
            cable(None, &far.end(end), &node.end(other))?;
        }
        let mut command = far.command(&weir::program()?);
        command.args(["bench", "arm", "--core", &setting.other.to_string(), "source", "f0"]);
        let source = Forwarder::weir(run, "source", &mut command)?;
        let counters = format!("/proc/{}/net/dev", source.process_id(run));
        Ok(XdpBench { node, setting, interrupt, source, counters })
    }

    fn weir(&self, run: &mut Run) -> Result<Forwarder> {
        let mut command = self.node.command(&weir::program()?);
        command.args(["bench", "arm", "--core", &self.setting.core.to_string(), "xdp", "w0", "w1"]);
        Forwarder::weir(run, "weir", &mut command)
    }

    fn testpmd(&self, run: &mut Run) -> Result<Forwarder> {
        let devices = ["net_af_xdp0,iface=w0".to_string(), "net_af_xdp1,iface=w1".to_string()];
        Forwarder::testpmd(run, |program| self.node.command(program), &self.setting, &devices)
    }

    /// Runs a turn. Returns million frames per second that arrived at the far end, and that were sent to it.
    fn turn(
        &mut self,
        run: &mut Run,
        start: fn(&XdpBench, &mut Run) -> Result<Forwarder>,
    ) -> Result<(f64, f64)> {
        let mut forwarder = start(self, run)?;
        forwarder.begin(run)?;
        let begun = Instant::now();
        self.source.begin(run)?;
        self.interrupt.sleep(SETTLE)?;
        let (before, counted) = (self.delivered()?, Instant::now());
        self.interrupt.sleep(TURN)?;
        let delivered = (self.delivered()? - before) as f64 / counted.elapsed().as_secs_f64();
        let offered = self.source.end(run)? as f64 / begun.elapsed().as_secs_f64();
        forwarder.stop(run)?;
        carried("the source", offered)?;
        carried("one of weir and testpmd", delivered)?;
        Ok((delivered / 1e6, offered / 1e6))
    }

    /// Returns the number of frames that the kernel has received on f1.
    fn delivered(&self) -> Result<u64> {
        let table = std::fs::read_to_string(&self.counters).context("the source has ended")?;
        let line = table.lines().find_map(|line| line.trim().strip_prefix("f1:")).context("f1 has gone")?;
        Ok(line.split_whitespace().nth(1).context("its counters")?.parse()?)
    }
}
