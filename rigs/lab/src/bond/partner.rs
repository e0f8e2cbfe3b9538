//! The partner: a switch with an LACP bond over all four links. It is Debian's Open vSwitch with its
//! user-space datapath, or a bridge of the kernel with a bond of its 802.3ad driver (linux.rs).

use std::process::Command;

use anyhow::Result;

use super::linux::Linux;
use super::topology::{LINKS, Topology};
use crate::Interrupt;
use crate::ovs::{Ovs, SWITCH};
use weir_bed::Run;

/// The LACP key of the bond. Without one, Open vSwitch uses the number of one of the links, which changes
/// when that link leaves or the switch restarts.
pub const KEY: u16 = 100;

/// Which switch is the partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PartnerKind {
    /// Open vSwitch.
    Ovs,
    /// The kernel's bridge and its 802.3ad driver (modules `bridge` and `bonding`).
    Linux,
}

impl PartnerKind {
    /// Returns its name for people to read.
    pub fn name(self) -> &'static str {
        match self {
            PartnerKind::Ovs => "Open vSwitch",
            PartnerKind::Linux => "Linux bridge and bond",
        }
    }
}

/// A running partner.
pub enum Partner {
    /// Open vSwitch.
    Ovs(OvsPartner),
    /// The kernel.
    Linux(Linux),
}

impl Partner {
    /// Starts the partner.
    pub fn start(
        kind: PartnerKind,
        run: &mut Run,
        topology: &Topology,
        interrupt: &Interrupt,
    ) -> Result<Partner> {
        Ok(match kind {
            PartnerKind::Ovs => Partner::Ovs(OvsPartner::start(run, topology, interrupt)?),
            PartnerKind::Linux => Partner::Linux(Linux::start(&topology.switch)?),
        })
    }

    /// Returns the number of links that the partner uses.
    pub fn members_enabled(&self) -> Result<usize> {
        match self {
            Partner::Ovs(ovs) => ovs.members_enabled(),
            Partner::Linux(linux) => linux.members_enabled(),
        }
    }

    /// Stops the switch; the database of Open vSwitch continues.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.stop(run),
            Partner::Linux(linux) => linux.stop(),
        }
    }

    /// Restarts the switch.
    pub fn restart(&mut self, run: &mut Run, topology: &Topology, interrupt: &Interrupt) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.restart(run, topology, interrupt),
            Partner::Linux(linux) => linux.restart(),
        }
    }

    /// Changes the partner's LACP settings: `active` or `passive`, `fast` or `slow`.
    pub fn speak(&self, mode: &str, rate: &str) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.speak(mode, rate),
            Partner::Linux(linux) => linux.speak(mode, rate),
        }
    }

    /// Gives the bond another LACP key, so that all links must be aggregated again.
    pub fn rekey(&self) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.change_key(KEY + 1),
            Partner::Linux(linux) => linux.rekey(),
        }
    }

    /// Removes a link (counted from 1) from the bond and lets it speak LACP alone on this bridge: with
    /// another key on `br0`, as another system on any other bridge.
    pub fn take_out(&self, link: usize, bridge: &str) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.take_out(link, bridge),
            Partner::Linux(linux) => linux.take_out(link, bridge),
        }
    }

    /// Takes the link back into the bond.
    pub fn take_in(&self, link: usize) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.take_in(link),
            Partner::Linux(linux) => linux.take_in(link),
        }
    }

    /// Becomes a plain switch with two separate links. The outside host is in this VLAN: the switch sends
    /// tagged frames on the links, and accepts tagged and untagged frames.
    pub fn be_plain(&self, vlan: Option<u16>) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.be_plain(vlan),
            Partner::Linux(linux) => linux.be_plain(vlan),
        }
    }

    /// Makes the plain switch neither forward nor answer frames from a link (counted from 1). The link keeps
    /// its carrier.
    pub fn ignore(&self, link: usize) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.ignore(link),
            Partner::Linux(linux) => linux.ignore(link),
        }
    }

    /// Ends [`Partner::ignore`] for a link, which carries this VLAN.
    pub fn heed(&self, link: usize, vlan: Option<u16>) -> Result<()> {
        match self {
            Partner::Ovs(ovs) => ovs.heed(link, vlan),
            Partner::Linux(linux) => linux.heed(link, vlan),
        }
    }
}

/// Open vSwitch as the partner.
pub struct OvsPartner(Ovs);

impl OvsPartner {
    fn start(run: &mut Run, topology: &Topology, interrupt: &Interrupt) -> Result<OvsPartner> {
        let settings = ["other_config:n-handler-threads=1", "other_config:n-revalidator-threads=1"];
        let ovs = Ovs::start(run, SWITCH, &settings, inside(topology), interrupt)?;
        ovs.vsctl("add-br br0 -- set bridge br0 datapath_type=netdev")?;
        ovs.vsctl("add-port br0 o0")?;
        let links: Vec<String> = (1..=LINKS).map(|link| format!("s{link}")).collect();
        let options = "bond_mode=balance-tcp lacp=active other_config:lacp-time=fast";
        ovs.vsctl(&format!("add-bond br0 bond0 {} {options}", links.join(" ")))?;
        let partner = OvsPartner(ovs);
        partner.change_key(KEY)?;
        Ok(partner)
    }

    fn members_enabled(&self) -> Result<usize> {
        self.0.members_enabled("bond0")
    }

    fn stop(&self, run: &mut Run) -> Result<()> {
        run.stop(self.0.process()).map(drop)
    }

    fn restart(&mut self, run: &mut Run, topology: &Topology, interrupt: &Interrupt) -> Result<()> {
        self.0.restart(run, SWITCH, inside(topology), interrupt)
    }

    fn speak(&self, mode: &str, rate: &str) -> Result<()> {
        self.0.vsctl(&format!("set port bond0 lacp={mode} other_config:lacp-time={rate}"))
    }

    fn change_key(&self, key: u16) -> Result<()> {
        let set: Vec<String> = (1..=LINKS).map(|link| set_key(link, key)).collect();
        self.0.vsctl(&set.join(" -- "))
    }

    fn take_out(&self, link: usize, bridge: &str) -> Result<()> {
        self.0.vsctl(&format!("del-bond-iface bond0 s{link}"))?;
        self.0.vsctl(&format!("--may-exist add-br {bridge} -- set bridge {bridge} datapath_type=netdev"))?;
        let options = "lacp=active other_config:lacp-time=fast";
        self.0.vsctl(&format!("add-port {bridge} s{link} -- set port s{link} {options}"))
    }

    fn be_plain(&self, vlan: Option<u16>) -> Result<()> {
        self.0.vsctl("--if-exists del-port bond0")?;
        if let Some(vlan) = vlan {
            self.0.vsctl(&format!("set port o0 tag={vlan}"))?;
        }
        (1..=2).try_for_each(|link| self.heed(link, vlan))
    }

    fn ignore(&self, link: usize) -> Result<()> {
        self.0.vsctl(&format!("del-port br0 s{link}"))
    }

    fn heed(&self, link: usize, vlan: Option<u16>) -> Result<()> {
        let tagged = |vlan| format!(" -- set port s{link} vlan_mode=native-tagged tag={vlan}");
        let tagged = vlan.map_or_else(String::new, tagged);
        self.0.vsctl(&format!("--may-exist add-port br0 s{link}{tagged}"))
    }

    fn take_in(&self, link: usize) -> Result<()> {
        self.0.vsctl(&format!("del-port s{link}"))?;
        self.0.vsctl(&format!("add-bond-iface bond0 s{link} -- {}", set_key(link, KEY)))
    }
}

fn set_key(link: usize, key: u16) -> String {
    format!("set interface s{link} other_config:lacp-aggregation-key={key}")
}

fn inside(topology: &Topology) -> impl Fn(&str) -> Command {
    |program| topology.switch.preferred(program)
}
