//! The kernel as the partner: a bridge, and a bond of the 802.3ad driver over all four links. Debian's own
//! kernel has the driver.

use anyhow::{Context, Result};
use serde_json::Value;

use super::partner::KEY;
use super::topology::LINKS;
use weir_bed::{Namespace, namespace};

/// The MAC address of the bond's LACP system, and that of another system.
const SYSTEMS: [&str; 2] = ["02:88:00:00:01:01", "02:88:00:00:01:02"];
/// The key of a link that is in no bond with the others.
const KEY_ALONE: u16 = 200;
/// Bits of a port's LACP state: collecting and distributing.
const USED: u64 = 0x30;

/// The devices `br0` and `bond0` of a namespace.
pub struct Linux {
    /// The namespace with the links `s1` to `s4`, and `o0`.
    switch: Namespace,
}

impl Linux {
    /// Creates the devices.
    pub fn start(switch: &Namespace) -> Result<Linux> {
        let linux = Linux { switch: Namespace::existing(switch.name()) };
        linux.switch.ip("link add br0 type bridge stp_state 0 mcast_snooping 0\n\
             link set br0 up\n\
             link set o0 master br0\n")?;
        (1..=LINKS).try_for_each(|link| linux.tag_in_software(link))?;
        linux.bond(KEY)?;
        Ok(linux)
    }

    /// Lets the kernel write VLAN tags into frames. A veth keeps them outside of the frame, where XDP at the
    /// other end does not see them.
    fn tag_in_software(&self, link: usize) -> Result<()> {
        self.switch.output("ethtool", &["-K", &format!("s{link}"), "txvlan", "off"]).map(drop)
    }

    /// Creates the bond.
    fn bond(&self, key: u16) -> Result<()> {
        self.switch.ip(&bond("bond0", SYSTEMS[0], key)).context("the kernel's module `bonding` is needed")?;
        (1..=LINKS).try_for_each(|link| self.enslave(link, "bond0"))?;
        self.switch.ip("link set bond0 up master br0\n")
    }

    fn enslave(&self, link: usize, bond: &str) -> Result<()> {
        self.switch.ip(&format!("link set s{link} down\nlink set s{link} master {bond}\n"))
    }

    /// Returns the number of links that the bond uses, which are those of its active aggregator.
    pub fn members_enabled(&self) -> Result<usize> {
        let text = namespace::output("ip", &["-n", self.switch.name(), "-d", "-j", "link", "show"])?;
        enabled(&serde_json::from_str(&text).context("`ip` printed no JSON")?)
    }

    /// Removes the bond, which leaves its links down.
    pub fn stop(&self) -> Result<()> {
        self.switch.ip("link del bond0\n")
    }

    /// Creates the bond again.
    pub fn restart(&self) -> Result<()> {
        self.bond(KEY)
    }

    /// Changes the LACP settings, which the driver accepts only while the bond is down.
    pub fn speak(&self, mode: &str, rate: &str) -> Result<()> {
        let active = if mode == "active" { "on" } else { "off" };
        self.switch.ip(&format!(
            "link set bond0 down\n\
             link set bond0 type bond lacp_active {active} lacp_rate {rate}\n\
             link set bond0 up\n"
        ))
    }

    /// Changes the LACP key. The bond is created again, because the driver gives a link its key when it
    /// becomes a member.
    pub fn rekey(&self) -> Result<()> {
        self.stop()?;
        self.bond(KEY + 1)
    }

    /// Moves a link to a bond of its own: of the same system with another key, which is in `br0`, or of
    /// another system, which is in no bridge.
    pub fn take_out(&self, link: usize, bridge: &str) -> Result<()> {
        let is_same = bridge == "br0";
        let system = if is_same { SYSTEMS[0] } else { SYSTEMS[1] };
        self.switch.ip(&format!("link set s{link} nomaster\n{}", bond("bond1", system, KEY_ALONE)))?;
        self.enslave(link, "bond1")?;
        self.switch.ip(&format!("link set bond1 up{}\n", if is_same { " master br0" } else { "" }))
    }

    /// Moves the link back into the bond.
    pub fn take_in(&self, link: usize) -> Result<()> {
        self.switch.ip("link del bond1\n")?;
        self.enslave(link, "bond0")
    }

    /// Replaces the bond by two separate ports of the bridge.
    pub fn be_plain(&self, vlan: Option<u16>) -> Result<()> {
        // The second time, there is no bond.
        if self.switch.ip("link show bond0\n").is_ok() {
            self.stop()?;
        }
        if let Some(vlan) = vlan {
            self.switch.ip("link set br0 type bridge vlan_filtering 1\n")?;
            self.be_in(vlan, "o0", " untagged")?;
        }
        (1..=2).try_for_each(|link| self.heed(link, vlan))
    }

    /// Makes a port a member of this VLAN alone, in which untagged frames are received as well.
    fn be_in(&self, vlan: u16, port: &str, untagged: &str) -> Result<()> {
        self.switch
            .bridge(&format!("vlan add dev {port} vid {vlan} pvid{untagged}\nvlan del dev {port} vid 1\n"))
    }

    /// Removes a link from the bridge.
    pub fn ignore(&self, link: usize) -> Result<()> {
        self.switch.ip(&format!("link set s{link} nomaster\n"))
    }

    /// Adds a link to the bridge, unless it is there already.
    pub fn heed(&self, link: usize, vlan: Option<u16>) -> Result<()> {
        self.switch.ip(&format!("link set s{link} up master br0\n"))?;
        match vlan {
            Some(vlan) => self.be_in(vlan, &format!("s{link}"), ""),
            None => Ok(()),
        }
    }
}

/// A command of `ip` that creates a bond without links.
fn bond(name: &str, system: &str, key: u16) -> String {
    format!(
        "link add {name} type bond mode 802.3ad miimon 20 lacp_rate fast xmit_hash_policy layer3+4 \
         ad_actor_system {system} ad_user_port_key {key}\n"
    )
}

/// Counts the links that `bond0` uses, in the output of `ip -d -j link show`. Without a bond, there are none.
fn enabled(links: &Value) -> Result<usize> {
    let links = links.as_array().context("`ip` printed no list")?;
    let Some(bond) = links.iter().find(|link| link["ifname"] == "bond0") else { return Ok(0) };
    let active = &bond["linkinfo"]["info_data"]["ad_info"]["aggregator"];
    let is_used = |link: &&Value| {
        let slave = &link["linkinfo"]["info_slave_data"];
        let state = slave["ad_actor_oper_port_state"].as_u64().unwrap_or(0);
        link["master"] == "bond0" && slave["ad_aggregator_id"] == *active && state & USED == USED
    };
    Ok(links.iter().filter(is_used).count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn links_of_the_active_aggregator_count_once_they_are_used() {
        let slave = |master: &str, aggregator: u64, state: u64| {
            let data = json!({ "ad_aggregator_id": aggregator, "ad_actor_oper_port_state": state });
            json!({ "ifname": "s", "master": master, "linkinfo": { "info_slave_data": data } })
        };
        let bond =
            json!({ "ifname": "bond0", "linkinfo": { "info_data": { "ad_info": { "aggregator": 2 } } } });
        let links = json!([
            bond,
            slave("bond0", 2, 63),
            slave("bond0", 2, 60),
            slave("bond0", 2, 0x1f),
            slave("bond0", 3, 63),
            slave("bond1", 2, 63),
            json!({ "ifname": "lo" })
        ]);
        assert_eq!(enabled(&links).unwrap(), 2);
        assert_eq!(enabled(&json!([slave("bond0", 2, 63)])).unwrap(), 0);
    }
}
