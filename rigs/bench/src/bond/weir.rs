//! weir's arm: a daemon whose bond has two members.

use super::arm::{BondArm, Carrier, account};
use super::sink::{Sink, memif};
use crate::peers::Setting;
use anyhow::Result;
use std::path::Path;
use std::process::{Command, Stdio};
use weir_bed::Run;
use weir_lab::Interrupt;
use weir_lab::weir::Weir;

/// Returns a command for a program that must not wait for other programs.
pub fn preferred(program: &str) -> Command {
    let mut command = Command::new("nice");
    command.args(["-n", "-20", program]).stdin(Stdio::null());
    command
}

/// Starts weir on a recording of `streams` frames.
pub fn start(
    run: &mut Run,
    setting: &Setting,
    recording: &Path,
    streams: u32,
    interrupt: &Interrupt,
) -> Result<BondArm> {
    let socket = run.folder().join("weir.memif");
    let weir =
        Weir::start(run, "weir", preferred, &configuration(setting, recording, streams, &socket), interrupt)?;
    let sink = Sink::start(run, "weir-sink", setting, &socket, 1)?;
    let account = account(run, weir.process(), "weir-worker")?;
    BondArm::new(run, weir.process(), account, Carrier::Weir(weir), sink)
}

fn configuration(setting: &Setting, recording: &Path, streams: u32, socket: &Path) -> String {
    format!(
        "workers: [{core}]
busy: true
ports:
  p0: {{ dpdk: \"net_pcap0,rx_pcap={recording},infinite_rx=1\", frames: {streams} }}
  p1: {{ dpdk: \"{p1}\", mac: 02:00:00:00:00:11 }}
  p2: {{ dpdk: \"{p2}\", mac: 02:00:00:00:00:12 }}
apps:
  - bond: {{ name: bond0, mode: balance_tcp, members: [p1, p2], inside: p0, lacp: {{ mode: active,
      rate: slow }} }}
",
        core = setting.core,
        recording = recording.display(),
        p1 = memif("server", 0, socket),
        p2 = memif("server", 1, socket),
    )
}
