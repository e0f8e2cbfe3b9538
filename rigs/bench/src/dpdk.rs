//! weir compared with dpdk-testpmd on the same DPDK devices: from a looped recording (`net_pcap`) to nowhere
//! (`net_null`).
//!
//! weir runs the `basic2` program, testpmd its `io` and `macswap` modes, with the same number of frames in
//! memory, on the same core, in turns within one run. Rates are frames divided by the processor time of the
//! forwarding thread.

use super::peers::{FRAMES, Forwarder, Setting, TESTPMD, TESTPMD_PACKAGE};
use super::scenarios::shuffled;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use weir_bed::Run;
use weir_bed::namespace;
use weir_lab::screen::line;
use weir_lab::spread::ResultSpread;
use weir_lab::{Interrupt, weir};
use weir_port::Stream;
use weir_port::huge_pages::HugePages;
use weir_port::pcap::Writer;

/// Flows of the recordings, one frame each.
const FLOWS: [u32; 2] = [1000, 10_000];

/// Bytes of a frame, without its checksum.
const FRAME: usize = 60;

/// Rounds whose median is reported, after an uncounted warm-up round.
const ROUNDS: usize = 5;

/// Duration of a turn.
pub const TURN: Duration = Duration::from_millis(800);

/// MiB for the frames of one process: 2.4 KiB per frame with huge pages, one page per frame otherwise.
pub const HUGE_MIB: u32 = 512;
const ORDINARY_MIB: u32 = (FRAMES >> 8) + 128;

/// A row of results, in million frames per second.
#[derive(Clone, Debug)]
pub struct DpdkRow {
    flows: u32,
    /// The rates, in the order of [`NAMES`].
    rates: [ResultSpread; 3],
}

/// weir, and testpmd's two modes, as the keys of a row name them.
const NAMES: [&str; 3] = ["weir", "testpmd_io", "testpmd_macswap"];

impl DpdkRow {
    fn json(&self) -> Value {
        let mut row = json!({ "flows": self.flows });
        NAMES.iter().zip(self.rates).for_each(|(name, rate)| ResultSpread::put(Some(rate), name, &mut row));
        row
    }
}

impl std::fmt::Display for DpdkRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (name, ResultSpread { median, min, max }) in ["weir", "io", "macswap"].iter().zip(self.rates) {
            write!(f, "  {name} {median:.2} ({min:.2} - {max:.2})")?;
        }
        let [weir, _, macswap] = self.rates.map(|rate| rate.median);
        write!(f, "  weir / macswap {:.0} %  ({} flows)", 100.0 * weir / macswap, self.flows)
    }
}

/// Measures; returns `None`, and prints the reason, if that is impossible.
pub fn run() -> Result<Option<Vec<Value>>> {
    if let Some(why) = obstacle() {
        line(format_args!("dpdk: not measured, {why}"))?;
        return Ok(None);
    }
    let interrupt = Interrupt::on_signals()?;
    let pages = HugePages::reserve(2 * HUGE_MIB as usize);
    let mut run = Run::begin(false)?;
    let setting = Setting::new(if pages.enough { HUGE_MIB } else { ORDINARY_MIB }, pages.enough);
    if !pages.enough {
        line("dpdk: no huge pages are available, so ordinary memory is used; both are slower")?;
    }
    let mut rows = Vec::new();
    for flows in FLOWS {
        let row = measure(&mut run, &setting, flows, &interrupt)?;
        line(&row)?;
        rows.push(row.json());
    }
    Ok(Some(rows))
}

/// The speedup of testpmd's macswap from one core to two, each with its own pair of devices; `None` if it
/// cannot be measured.
pub fn scaling() -> Result<Option<Value>> {
    if let Some(why) = obstacle() {
        line(format_args!("testpmd on two cores: not measured, {why}"))?;
        return Ok(None);
    }
    let interrupt = Interrupt::on_signals()?;
    let pages = HugePages::reserve(2 * HUGE_MIB as usize);
    let mut run = Run::begin(false)?;
    let setting = Setting::new(if pages.enough { HUGE_MIB } else { ORDINARY_MIB }, pages.enough);
    let recording = record(run.folder(), FLOWS[0])?;
    let device = |at: usize| {
        [
            format!("net_pcap{at},rx_pcap={},infinite_rx=1", recording.display()),
            format!("net_null{at},no-rx=1"),
        ]
    };
    let plain = |program: &str| Command::new(program);
    let mut one = Forwarder::testpmd(&mut run, plain, &setting, &device(0))?;
    let mut two = Forwarder::testpmd_on_two(&mut run, plain, &setting, &[device(0), device(1)].concat())?;
    let (mut rates, mut ratios) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let alone = one.turn(&run, TURN, &interrupt)?;
        let both = two.turn(&run, TURN, &interrupt)?;
        if round > 0 {
            rates.push(both.mpps());
            ratios.push(both.mpps() / alone.mpps());
        }
    }
    one.stop(&mut run)?;
    two.stop(&mut run)?;
    let (rate, ratio) = (ResultSpread::of(rates), ResultSpread::of(ratios));
    line(format_args!(
        "testpmd macswap      {:>6.2} Mpps  {:.2} of one core ({:.2} - {:.2})",
        rate.median, ratio.median, ratio.min, ratio.max
    ))?;
    Ok(Some(json!({ "workers": 2, "mpps": rate.median, "ratio": ratio.median,
        "ratio_min": ratio.min, "ratio_max": ratio.max })))
}

/// Returns the reason why nothing can be measured here, if any.
pub fn obstacle() -> Option<String> {
    if cfg!(not(feature = "dpdk")) {
        Some("this weir was built without DPDK: build it with `--features dpdk`".into())
    } else if !namespace::missing(&[TESTPMD]).is_empty() {
        Some(format!("{TESTPMD} is not installed: apt-get install {TESTPMD_PACKAGE}"))
    } else {
        (!rustix::process::geteuid().is_root()).then(|| "DPDK needs root".into())
    }
}

fn measure(run: &mut Run, setting: &Setting, flows: u32, interrupt: &Interrupt) -> Result<DpdkRow> {
    let recording = record(run.folder(), flows)?;
    let devices =
        [format!("net_pcap0,rx_pcap={},infinite_rx=1", recording.display()), "net_null0,no-rx=1".to_string()];
    let mut weir = Forwarder::weir(run, "weir", &mut arm(setting, &devices)?)?;
    let mut testpmd = Forwarder::testpmd(run, |program| Command::new(program), setting, &devices)?;
    let mut rates = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        testpmd.set_mode("io")?;
        let io = testpmd.turn(run, TURN, interrupt)?;
        let ours = weir.turn(run, TURN, interrupt)?;
        testpmd.set_mode("macswap")?;
        let macswap = testpmd.turn(run, TURN, interrupt)?;
        if round > 0 {
            rates.iter_mut().zip([ours, io, macswap]).for_each(|(rates, turn)| rates.push(turn.mpps()));
        }
    }
    weir.stop(run)?;
    testpmd.stop(run)?;
    Ok(DpdkRow { flows, rates: rates.map(ResultSpread::of) })
}

/// Returns the command that runs this program as weir's arm.
pub fn arm(setting: &Setting, devices: &[String; 2]) -> Result<Command> {
    let mut command = Command::new(weir::program()?);
    command.args(["bench", "arm", "--core", &setting.core.to_string(), "dpdk"]);
    command.args(["--mebibytes", &setting.mebibytes.to_string()]);
    command.args(setting.huge.then_some("--huge")).args(devices);
    Ok(command)
}

/// Writes a recording with one frame for each of `flows` flows.
pub fn record(folder: &Path, flows: u32) -> Result<PathBuf> {
    let all = record_parts(folder, flows, 1)?;
    Ok(all.into_iter().next().expect("one part"))
}

/// Writes `parts` recordings, which together have one frame for each of `flows` flows. None is empty.
pub fn record_parts(folder: &Path, flows: u32, parts: u32) -> Result<Vec<PathBuf>> {
    let flows = shuffled(flows);
    let of_part = flows.chunks(flows.len().div_ceil(parts as usize));
    of_part
        .enumerate()
        .map(|(part, flows_of_part)| {
            let path = folder.join(format!("{}-{part}.pcap", flows.len()));
            let file =
                File::create(&path).with_context(|| format!("{} cannot be written", path.display()))?;
            let mut writer = Writer::new(file)?;
            let stream = Stream::udp(FRAME, flows_of_part.to_vec());
            for at in 0..stream.frames() {
                writer.write(0, FRAME as u32, &stream.frame(at))?;
            }
            writer.flush()?;
            Ok(path)
        })
        .collect()
}
