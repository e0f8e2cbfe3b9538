//! What the reader of a configuration knows of the host's interfaces. Reading asks the host nothing: the
//! caller looks, and a daemon still knows an interface that is gone for a moment.

use std::collections::BTreeMap;

/// An interface of the host as it was seen last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nic {
    /// Its index, which it keeps when it is renamed.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its alternative names (`ip link property add ... altname`).
    pub alternatives: Vec<String>,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its MTU, in bytes.
    pub mtu: u32,
    /// Its receive queues in use.
    pub rx_queues: u32,
    /// Whether its receive and transmit queues come in pairs, which `ethtool -L` calls `combined`.
    pub paired: bool,
}

impl Nic {
    /// Returns whether this is one of its names.
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

    /// Adds an interface under a name that a configuration has for it. One that has the name already stays.
    pub fn add(&mut self, name: &str, nic: &Nic) {
        self.0.entry(name.to_owned()).or_insert_with(|| nic.clone());
    }

    /// Returns these and `others` under names that none of these has.
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
