//! The host's interfaces, as far as the configuration reader knows them. The reader does not query the host:
//! the caller does, and a daemon still knows an interface that is temporarily gone.

use std::collections::BTreeMap;

/// An interface of the host as it was last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// The interface's index, which survives renaming.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The interface's alternative names (`ip link property add ... altname`).
    pub alternatives: Vec<String>,
    /// The interface's MAC address.
    pub mac: [u8; 6],
    /// The interface's MTU, in bytes.
    pub mtu: u32,
    /// The number of receive queues in use.
    pub rx_queues: u32,
    /// Whether receive and transmit queues are paired, which `ethtool -L` calls `combined`.
    pub paired: bool,
    /// Whether the interface is a veth, which sends from XDP only to a peer that receives with NAPI.
    pub veth: bool,
}

impl Nic {
    /// Returns the command that sets the number of queues in use.
    #[must_use]
    pub fn resize(&self, queues: usize) -> String {
        let what = if self.paired { "combined" } else { "rx" };
        format!("ethtool -L {} {what} {queues}", self.name)
    }

    /// Returns the command that directs incoming traffic to these queues.
    fn direct(&self, queues: &[u32]) -> String {
        let weight = |queue: u32| if queues.contains(&queue) { " 1" } else { " 0" };
        let weights: String = (0..self.rx_queues).map(weight).collect();
        format!("ethtool -X {} weight{weights}", self.name)
    }

    /// Returns what to do if the interface of a port with these queues does not have all of them; `None` if
    /// it does.
    #[must_use]
    pub fn missed(&self, queues: &[u32]) -> Option<String> {
        let all = self.rx_queues as usize;
        if (0..self.rx_queues).all(|queue| queues.contains(&queue)) {
            return None;
        }
        let are_first = (0..).zip(queues).all(|(at, queue)| at == *queue);
        let command = if are_first { self.resize(queues.len()) } else { self.direct(queues) };
        Some(format!("`{command}`, or `queues: all` and `workers: {all}`"))
    }

    /// Returns whether `name` is one of the interface's names.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.alternatives.iter().any(|one| one == name)
    }
}

/// Interfaces by each of their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nics(BTreeMap<String, Nic>);

impl Nics {
    /// Returns the interface with this name, which may be an alternative one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Nic> {
        self.0.get(name)
    }

    /// Adds an interface under a name used in a configuration. An existing interface with that name is kept.
    pub fn add(&mut self, name: &str, nic: &Nic) {
        self.0.entry(name.to_owned()).or_insert_with(|| nic.clone());
    }

    /// Returns these interfaces, plus `others` under names that none of these has.
    #[must_use]
    pub fn or(mut self, others: &Nics) -> Nics {
        others.0.iter().for_each(|(name, nic)| self.add(name, nic));
        self
    }
}

impl FromIterator<Nic> for Nics {
    fn from_iter<I: IntoIterator<Item = Nic>>(all: I) -> Nics {
        let mut nics = Nics::default();
        for nic in all {
            nic.alternatives.iter().for_each(|name| nics.add(name, &nic));
            nics.0.insert(nic.name.clone(), nic);
        }
        nics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_a_port_misses_are_named_with_the_command_that_helps() {
        let nic = Nic { name: "eth0".into(), rx_queues: 3, paired: true, ..Nic::default() };
        let missed = |queues: &[u32]| nic.missed(queues);
        assert_eq!((missed(&[0, 1, 2]), missed(&[2, 1, 0])), (None, None));
        let all = ", or `queues: all` and `workers: 3`";
        assert_eq!(missed(&[0]), Some(format!("`ethtool -L eth0 combined 1`{all}")));
        assert_eq!(missed(&[1]), Some(format!("`ethtool -X eth0 weight 0 1 0`{all}")));
        let single = Nic { paired: false, ..nic.clone() };
        assert_eq!(single.missed(&[0, 1]), Some(format!("`ethtool -L eth0 rx 2`{all}")));
    }
}
