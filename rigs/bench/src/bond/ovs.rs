//! Open vSwitch's arms: its balance-tcp bond on DPDK devices, by lb_output and by hash and recirculation.
//! Both arms are one switch, which is reconfigured between turns.

use super::arm::{BondArm, Carrier, account};
use super::machine::{BondWay, Machine, socket};
use super::sink::{Sink, memif};
use crate::peers::Setting;
use anyhow::Result;
use std::path::{Path, PathBuf};
use weir_bed::Namespace;
use weir_bed::Run;
use weir_lab::Interrupt;
use weir_lab::ovs::{Ovs, SWITCH_DPDK};

/// The number of streams that the switch can loop through from one port: its largest pool has 262 144 frames,
/// and those not used by the recording must fill its rings.
const STREAMS_MAX: u32 = 200_000;

/// Returns the number of ports among which a recording of `streams` streams is divided. Each has another MTU,
/// because ports with equal MTUs share a pool.
pub fn sources(streams: u32) -> u32 {
    streams.div_ceil(STREAMS_MAX)
}

/// Returns the MiB of the switch's memory for a number of sources: pools of 262 144 frames, the first of
/// which is for the members as well.
pub fn mebibytes(sources: u32) -> u32 {
    1024 + (1..sources).map(|source| 640 + 256 * source).sum::<u32>()
}

/// The switch's transmit queues, each with a receive queue, as memif requires symmetric ends: one for the
/// forwarding thread, and one for the main thread, which sends LACPDUs.
const QUEUES: u16 = 2;

/// The destination MAC address of the recording's frames.
const DESTINATION: &str = "02:00:00:00:00:02";

/// Starts the switch on one or more recordings, whose frames take this way through it; it sends by lb_output.
/// Its kernel interfaces are in `namespace`. A machine has a device for each recording, because the switch
/// takes the same number of frames from each port in turn.
pub fn start(
    run: &mut Run,
    setting: &Setting,
    recordings: &[PathBuf],
    way: BondWay,
    namespace: &Namespace,
    interrupt: &Interrupt,
) -> Result<BondArm> {
    let members = run.folder().join("ovs.memif");
    let machines = if way.has_machine() { recordings.len() } else { 0 };
    let machines: Vec<PathBuf> = (0..machines).map(|at| socket(run.folder(), "ovs", at)).collect();
    let command = |program: &str| namespace.preferred(program);
    let ovs = Ovs::start(
        run,
        SWITCH_DPDK,
        &settings(&way.of_switch(setting), recordings.len() as u32).each_ref().map(String::as_str),
        command,
        interrupt,
    )?;
    configure(&ovs, recordings, &members, &machines, setting)?;
    let sink = Sink::start(run, "ovs-sink", setting, &members, QUEUES)?;
    let machine = if machines.is_empty() { None } else { Some(Machine::start(run, setting, &machines)?) };
    let (process, account) = (ovs.process(), account(run, ovs.process(), "pmd-c")?);
    BondArm::new(run, process, account, Carrier::Ovs { ovs, lb_output: true }, sink, machine)
}

fn settings(setting: &Setting, sources: u32) -> [String; 7] {
    [
        "other_config:dpdk-init=true".into(),
        format!("other_config:dpdk-socket-mem={}", mebibytes(sources)),
        format!("other_config:pmd-cpu-mask={:#x}", 1u128 << setting.core),
        format!("other_config:dpdk-lcore-mask={:#x}", 1u128 << setting.other),
        "other_config:dpdk-extra=\"--no-pci --in-memory --no-telemetry\"".into(),
        "other_config:n-handler-threads=1".into(),
        "other_config:n-revalidator-threads=1".into(),
    ]
}

fn configure(
    ovs: &Ovs,
    recordings: &[PathBuf],
    members: &Path,
    machines: &[PathBuf],
    setting: &Setting,
) -> Result<()> {
    ovs.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev other_config:mac-aging-time=3600")?;
    let core = setting.core;
    let bond = "add-bond br0 bond0 p1 p2 bond_mode=balance-tcp lacp=active other_config:lacp-time=slow";
    let member = |at: usize| {
        let device = memif("server", at, members);
        format!(
            " -- set interface p{} type=dpdk options:dpdk-devargs=\"{device}\" options:n_rxq={QUEUES} \
             other_config:pmd-rxq-affinity=0:{core},1:{core}",
            at + 1
        )
    };
    ovs.vsctl(&format!("{bond}{}{}", member(0), member(1)))?;
    for (at, recording) in recordings.iter().enumerate() {
        let device = format!("net_pcap{at},rx_pcap={},infinite_rx=1", recording.display());
        let mtu = 1500 + 1000 * at;
        ovs.vsctl(&format!(
            "add-port br0 in{at} -- set interface in{at} type=dpdk options:dpdk-devargs=\"{device}\" \
             mtu_request={mtu} other_config:pmd-rxq-affinity=0:{core}"
        ))?;
    }
    for (at, socket) in machines.iter().enumerate() {
        let socket = socket.display();
        ovs.vsctl(&format!(
            "add-port br0 vm{at} -- set interface vm{at} type=dpdkvhostuserclient \
             options:vhost-server-path={socket} other_config:pmd-rxq-affinity=0:{core}"
        ))?;
    }
    ovs.set_flows("br0", "actions=NORMAL")?;
    for at in 0..machines.len() {
        ovs.add_flow("br0", &format!("priority=40000,in_port=in{at},actions=output:vm{at}"))?;
    }
    ovs.appctl("fdb/add", &["br0", "p1", "0", DESTINATION]).map(drop)
}
