//! Reloads during the loads through a node, alternating between two configurations that differ in pipes,
//! entries and back ends.
//!
//! The other configuration lacks the last back end. How many frames met which configuration is known only to
//! within the number of frames between the reading before a reload is requested and the reading after it is
//! acknowledged. Therefore shares are ranges.

use std::time::Duration;

use anyhow::Result;

use super::daemon::{Daemon, KernelCounts, configuration, other_configuration};
use super::share::Share;
use super::topology::{Topology, WeirNode};
use weir_bed::Run;

/// Reloads over the duration of all loads through a node.
pub struct Reloads {
    configurations: [String; 2],
    interval: Duration,
    wanted: u32,
    done: u32,
    /// Frames received before and after the reload to the current configuration.
    entered: (u64, u64),
    /// Minimum and maximum number of frames that met the first configuration.
    first: (u64, u64),
    /// The kernel's counts before each reload, after which they begin again.
    kernel: KernelCounts,
}

impl Reloads {
    /// Plans `wanted` reloads, evenly spaced over `time`.
    pub fn over(time: Duration, wanted: u32, topology: &Topology, node: &WeirNode, workers: u32) -> Reloads {
        let back_ends = &topology.back_ends;
        let configurations =
            [configuration(node, back_ends, workers), other_configuration(node, back_ends, workers)];
        Reloads {
            configurations,
            interval: time / (wanted + 1),
            wanted,
            done: 0,
            entered: (0, 0),
            first: (0, 0),
            kernel: KernelCounts::default(),
        }
    }

    /// Returns the number of reloads so far, and of those that were wanted.
    pub fn done(&self) -> (u32, u32) {
        (self.done, self.wanted)
    }

    /// Returns the kernel's counts before the last reload.
    pub fn kernel(&self) -> &KernelCounts {
        &self.kernel
    }

    /// Reloads if the next reload is due after this time under load.
    pub fn tick(&mut self, elapsed: Duration, daemon: &Daemon, run: &mut Run) -> Result<()> {
        if self.done < self.wanted && elapsed >= self.interval * (self.done + 1) {
            self.swap(daemon, run)?;
            self.done += 1;
        }
        Ok(())
    }

    /// Ends with the first configuration active, so that every back end is in the last reading.
    pub fn finish(&mut self, daemon: &Daemon, run: &mut Run) -> Result<()> {
        if !self.done.is_multiple_of(2) {
            self.swap(daemon, run)?;
        }
        self.leave(daemon.snapshot(run)?.frames("received"), daemon.snapshot(run)?.frames("received"));
        Ok(())
    }

    fn swap(&mut self, daemon: &Daemon, run: &mut Run) -> Result<()> {
        let is_first = self.done.is_multiple_of(2);
        let snapshot = daemon.snapshot(run)?;
        let before = snapshot.frames("received");
        self.kernel.add(&snapshot.kernel);
        daemon.reload(&self.configurations[usize::from(is_first)])?;
        let after = daemon.snapshot(run)?.frames("received");
        if is_first {
            self.leave(before, after);
        }
        self.entered = (before, after);
        Ok(())
    }

    fn leave(&mut self, before: u64, after: u64) {
        self.first.0 += before.saturating_sub(self.entered.1);
        self.first.1 += after.saturating_sub(self.entered.0);
    }

    /// Returns how many of `packets` in `flows` each back end should have received.
    pub fn shares(&self, names: &[&'static str], packets: u64, flows: u64) -> Vec<Share> {
        let all = names.len() as f64;
        let fewer = all - 1.0;
        let total = packets as f64;
        let (least, most) = (self.first.0 as f64, self.first.1 as f64);
        // A back end in both configurations gets 1/all of the frames under the first and 1/fewer of the
        // others.
        let of_both = |first: f64| first / all + (total - first) / fewer;
        let last = names.len() - 1;
        let share = |(index, &name): (usize, &&'static str)| {
            let expected =
                if index == last { (least / all, most / all) } else { (of_both(most), of_both(least)) };
            let fraction = if packets == 0 { 0.0 } else { (expected.0 + expected.1) / 2.0 / total };
            Share { expected, ..Share::of(name, fraction, packets, flows) }
        };
        names.iter().enumerate().map(share).collect()
    }
}
