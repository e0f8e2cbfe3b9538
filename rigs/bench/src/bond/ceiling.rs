//! The ceiling: dpdk-testpmd, which inspects nothing, forwards frames over the same devices, two pairs on one
//! core. In PVP, it forwards from the recording to the machine, and from there to one member.

use super::arm::{BondArm, Carrier};
use super::machine::{BondWay, Machine, socket, vhost};
use super::sink::{Sink, memif};
use super::weir::preferred;
use crate::peers::{Forwarder, Setting, Testpmd};
use anyhow::Result;
use std::path::Path;
use weir_bed::Run;

/// With a machine, each port's frames leave through the next. The port of the machine is not up before the
/// machine has started.
const CHAINED: Testpmd =
    Testpmd { threads: 1, dpdk: &[], own: &["--port-topology=chained", "--disable-link-check"] };

/// The number of the member in the chain: after the recording and the machine.
const LAST: u16 = 2;

/// Starts testpmd with a machine between a recording (pcap file) and a member.
pub fn start_with_machine(run: &mut Run, setting: &Setting, recording: &Path) -> Result<BondArm> {
    let (members, machines) = (run.folder().join("testpmd.memif"), [socket(run.folder(), "testpmd", 0)]);
    let source = format!("net_pcap0,rx_pcap={},infinite_rx=1", recording.display());
    // The second member is there because the sink has two devices.
    let [first, second] = [0, 1].map(|at| memif("server", at, &members));
    let devices = [source, vhost(&machines[0]), first, second];
    let own = BondWay::Pvp.of_switch(setting);
    let mut testpmd = Forwarder::testpmd_with(run, preferred, &own, &devices, &CHAINED)?;
    // It is faster than the machine, so without `retry` it would drop most frames. So the ceiling is what the
    // machine lets through, or less.
    testpmd.set_mode("io retry")?;
    testpmd.begin(run)?;
    let sink = Sink::start(run, "testpmd-sink", setting, &members, 1)?;
    let machine = Machine::start(run, setting, &machines)?;
    let (process, account) = (testpmd.process(), testpmd.account().to_owned());
    BondArm::new(run, process, account, Carrier::Testpmd { testpmd, member: Some(LAST) }, sink, Some(machine))
}

/// Starts testpmd, with a separate recording for each pair.
pub fn start(run: &mut Run, setting: &Setting, recordings: [&Path; 2]) -> Result<BondArm> {
    let socket = run.folder().join("testpmd.memif");
    let devices: Vec<String> = (0..2)
        .flat_map(|at| {
            let source = format!("net_pcap{at},rx_pcap={},infinite_rx=1", recordings[at].display());
            [source, memif("server", at, &socket)]
        })
        .collect();
    let mut testpmd = Forwarder::testpmd(run, preferred, setting, &devices)?;
    testpmd.set_mode("io")?;
    testpmd.begin(run)?;
    let sink = Sink::start(run, "testpmd-sink", setting, &socket, 1)?;
    let (process, account) = (testpmd.process(), testpmd.account().to_owned());
    BondArm::new(run, process, account, Carrier::Testpmd { testpmd, member: None }, sink, None)
}
