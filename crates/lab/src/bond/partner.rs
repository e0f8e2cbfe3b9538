//! The partner: Debian's Open vSwitch with its userspace datapath, and an LACP bond over all four links.

use std::process::Command;

use anyhow::Result;

use super::topology::{LINKS, Topology};
use crate::Interrupt;
use crate::ovs::{Ovs, SWITCH};
use crate::run::Run;

/// A running partner.
pub struct Partner(Ovs);

impl Partner {
    /// Starts the partner.
    pub fn start(run: &mut Run, topology: &Topology, interrupt: &Interrupt) -> Result<Partner> {
        let settings = ["other_config:n-handler-threads=1", "other_config:n-revalidator-threads=1"];
        let ovs = Ovs::start(run, SWITCH, &settings, inside(topology), interrupt)?;
        ovs.vsctl(&["add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev"])?;
        ovs.vsctl(&["add-port", "br0", "o0"])?;
        let links: Vec<String> = (1..=LINKS).map(|link| format!("s{link}")).collect();
        let mut words = vec!["add-bond", "br0", "bond0"];
        words.extend(links.iter().map(String::as_str));
        words.extend(["bond_mode=balance-tcp", "lacp=active", "other_config:lacp-time=fast"]);
        ovs.vsctl(&words)?;
        Ok(Partner(ovs))
    }

    /// Returns the number of links it uses.
    pub fn members_enabled(&self) -> Result<usize> {
        self.0.members_enabled("bond0")
    }

    /// Stops the switch, but not its database.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        run.stop(self.0.process()).map(drop)
    }

    /// Starts the switch again.
    pub fn restart(&mut self, run: &mut Run, topology: &Topology, interrupt: &Interrupt) -> Result<()> {
        self.0.restart(run, SWITCH, inside(topology), interrupt)
    }

    /// Changes its LACP settings: `active` or `passive`, `fast` or `slow`.
    pub fn speak(&self, mode: &str, rate: &str) -> Result<()> {
        let (mode, rate) = (format!("lacp={mode}"), format!("other_config:lacp-time={rate}"));
        self.0.vsctl(&["set", "port", "bond0", &mode, &rate])
    }

    /// Removes a link (counted from 1) from the bond and lets it speak LACP alone on this bridge: with
    /// another key on `br0`, as another system on any other bridge.
    pub fn take_out(&self, link: usize, bridge: &str) -> Result<()> {
        let link = format!("s{link}");
        self.0.vsctl(&["del-bond-iface", "bond0", &link])?;
        self.0.vsctl(&[
            "--may-exist",
            "add-br",
            bridge,
            "--",
            "set",
            "bridge",
            bridge,
            "datapath_type=netdev",
        ])?;
        self.0.vsctl(&[
            "add-port",
            bridge,
            &link,
            "--",
            "set",
            "port",
            &link,
            "lacp=active",
            "other_config:lacp-time=fast",
        ])
    }

    /// Returns the link to the bond.
    pub fn take_in(&self, link: usize) -> Result<()> {
        let link = format!("s{link}");
        self.0.vsctl(&["del-port", &link])?;
        self.0.vsctl(&["add-bond-iface", "bond0", &link])
    }
}

fn inside(topology: &Topology) -> impl Fn(&str) -> Command {
    |program| topology.switch.preferred(program)
}
