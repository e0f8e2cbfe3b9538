//! The stand-in for a virtual machine in the PVP comparison (from a port to the machine and back to a port):
//! testpmd in `io` mode on virtio-user devices, the other ends of the switch's vhost-user ports. The switch
//! does the same work as with a virtual machine, but there is no guest, no QEMU, and no virtual interrupt.

use super::weir::preferred;
use crate::peers::{Forwarder, Setting, Testpmd};
use anyhow::Result;
use std::path::{Path, PathBuf};
use weir_bed::{Run, Started};
use weir_lab::premise::premise;

/// What the stand-in is, for those who read results.
pub const DESCRIPTION: &str = "dpdk-testpmd io on net_virtio_user, as the stand-in for a virtual machine";

/// MiB of the stand-in's memory.
pub const MEBIBYTES: u32 = 96;

/// Descriptors of a queue: the most that QEMU offers for virtio-net.
const DESCRIPTORS: u32 = 1024;

/// Frames of the stand-in: its queues, and as many again in caches.
const FRAMES: u32 = 16_384;

/// The forwarding thread has a real-time priority below that of the sink, which shares its core. The sink
/// sleeps most of the time, but must not wait for the forwarding thread, which never pauses.
const PRIORITY: u32 = 1;

/// Without `--single-file-segments`, the switch would have to map a file for each huge page, and vhost-user
/// maps 8 at most. `loop`: frames leave through the device on which they came.
const TESTPMD: Testpmd = Testpmd {
    threads: 1,
    dpdk: &["--single-file-segments"],
    own: &["--port-topology=loop", "--rxd=1024", "--txd=1024"],
};

/// Tolerance when the frames that passed the stand-in are compared with those that left the switch.
const UNDERWAY: u64 = 4 * DESCRIPTORS as u64;

/// The way of frames through a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum BondWay {
    /// From a port to the bond.
    Direct,
    /// From a port to the stand-in for a virtual machine, from there back to the switch, and to the bond.
    Pvp,
}

impl BondWay {
    /// Returns true if a virtual machine is on the way.
    pub fn has_machine(self) -> bool {
        match self {
            BondWay::Direct => false,
            BondWay::Pvp => true,
        }
    }

    /// The share of dropped frames above which a turn does not count.
    ///
    /// Dropped frames are not counted, but cost the switch less time than others, so a rate with loss differs
    /// from the rate without. With a machine, more is tolerated, because its rings are short and overflow now
    /// and then: a frame that is dropped there has cost the switch half of its way, so that the rate is too
    /// low by about the share that was dropped at most.
    pub fn dropped_max(self) -> f64 {
        match self {
            BondWay::Direct => 0.001,
            BondWay::Pvp => 0.02,
        }
    }

    /// The setting for a switch's process. With a machine, whose thread occupies the other core, everything
    /// of the switch runs on the core that forwards frames; its processor time is measured per thread.
    pub fn of_switch(self, setting: &Setting) -> Setting {
        let other = if self.has_machine() { setting.core } else { setting.other };
        Setting { other, ..*setting }
    }
}

/// The socket of the machine's device number `number`, in the run's folder.
pub fn socket(folder: &Path, arm: &str, number: usize) -> PathBuf {
    folder.join(format!("{arm}-machine{number}.sock"))
}

/// The device of DPDK for the switch's end of such a socket, as a client, which may start first.
pub fn vhost(socket: &Path) -> String {
    format!("net_vhost0,iface={},queues=1,client=1", socket.display())
}

/// A running stand-in.
pub struct Machine(Forwarder);

impl Machine {
    /// Starts it on the core that does not forward frames, with a device for each of these sockets, which the
    /// switch connects to.
    pub fn start(run: &mut Run, setting: &Setting, sockets: &[PathBuf]) -> Result<Machine> {
        let device = |(at, socket): (usize, &PathBuf)| {
            let socket = socket.display();
            format!("net_virtio_user{at},path={socket},server=1,queues=1,queue_size={DESCRIPTORS}")
        };
        let devices: Vec<String> = sockets.iter().enumerate().map(device).collect();
        let setting =
            Setting { core: setting.other, mebibytes: MEBIBYTES, huge: true, frames: FRAMES, ..*setting };
        let mut testpmd = Forwarder::testpmd_with(run, preferred, &setting, &devices, &TESTPMD)?;
        // With `retry`, it waits while the switch does not take its frames, so that none is lost in it.
        testpmd.set_mode("io retry")?;
        testpmd.begin(run)?;
        testpmd.make_real_time(run, PRIORITY)?;
        Ok(Machine(testpmd))
    }

    /// Its process.
    pub fn process(&self) -> Started {
        self.0.process()
    }

    /// Returns the number of frames that have passed it.
    pub fn passed(&mut self, run: &Run) -> Result<u64> {
        Ok(self.0.forwarded(run, None)?.0)
    }
}

/// Fails unless the frames that left the switch have passed the stand-in.
pub fn all_passed(passed: u64, left: u64) -> Result<()> {
    premise(passed + UNDERWAY >= left, || {
        format!("{left} frames left the switch, but only {passed} passed the stand-in for a virtual machine")
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_bypass_the_machine_are_noticed() {
        assert!(all_passed(1_000_000, 1_000_000 + UNDERWAY).is_ok());
        let error = all_passed(0, 2_000_000).expect_err("none has passed it").to_string();
        assert!(error.contains("2000000 frames left the switch, but only 0 passed"), "{error}");
    }
}
