//! weir's arm: a daemon whose bond has two members.

use super::arm::{BondArm, Carrier, account};
use super::machine::{BondWay, Machine, socket, vhost};
use super::sink::{Sink, memif};
use crate::peers::Setting;
use anyhow::Result;
use std::path::{Path, PathBuf};
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

/// Starts weir on a recording of `streams` frames, which take this way through it.
pub fn start(
    run: &mut Run,
    setting: &Setting,
    (recording, streams): (&Path, u32),
    way: BondWay,
    interrupt: &Interrupt,
) -> Result<BondArm> {
    let members = run.folder().join("weir.memif");
    let machines: Vec<PathBuf> =
        way.has_machine().then(|| socket(run.folder(), "weir", 0)).into_iter().collect();
    let text = configuration(setting.core, (recording, streams), &members, machines.first());
    let weir = Weir::start(run, "weir", preferred, &text, interrupt)?;
    let sink = Sink::start(run, "weir-sink", setting, &members, 1)?;
    let machine = if machines.is_empty() { None } else { Some(Machine::start(run, setting, &machines)?) };
    let account = account(run, weir.process(), "weir-worker")?;
    BondArm::new(run, weir.process(), account, Carrier::Weir(weir), sink, machine)
}

fn configuration(
    core: usize,
    (recording, streams): (&Path, u32),
    members: &Path,
    machine: Option<&PathBuf>,
) -> String {
    // What is inside the bond: the port of the recording, or that of the machine.
    let (inside, root, machine) = match machine {
        None => ("p0", "", String::new()),
        Some(socket) => {
            let port = format!("  vm0: {{ dpdk: \"{}\", mac: 02:00:00:00:00:21 }}\n", vhost(socket));
            let pipe = "pipes:
  to_machine: { type: basic, match: {}, forward: vm0, miss: drop, entries: [{}] }\n";
            ("vm0", ", root: to_machine", port + pipe)
        }
    };
    format!(
        "workers: [{core}]
busy: true
ports:
  p0: {{ dpdk: \"net_pcap0,rx_pcap={recording},infinite_rx=1\", frames: {streams}{root} }}
  p1: {{ dpdk: \"{p1}\", mac: 02:00:00:00:00:11 }}
  p2: {{ dpdk: \"{p2}\", mac: 02:00:00:00:00:12 }}
{machine}apps:
  - bond: {{ name: bond0, mode: balance_tcp, members: [p1, p2], inside: {inside}, lacp: {{ mode: active,
      rate: slow }} }}
",
        recording = recording.display(),
        p1 = memif("server", 0, members),
        p2 = memif("server", 1, members),
    )
}
