//! The ceiling: dpdk-testpmd, which inspects nothing, forwards frames over the same devices, two pairs on one
//! core.

use super::arm::{BondArm, Carrier};
use super::sink::{Sink, memif};
use super::weir::preferred;
use crate::peers::{Forwarder, Setting};
use anyhow::Result;
use std::path::Path;
use weir_bed::Run;

/// Starts testpmd, with a separate recording (pcap file) for each pair.
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
    BondArm::new(run, process, account, Carrier::Testpmd(testpmd), sink)
}
