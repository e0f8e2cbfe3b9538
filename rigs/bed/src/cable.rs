//! Cables between namespaces, which are veth pairs, and switches.

use anyhow::Result;

use super::namespace::Namespace;
use super::run::Run;

/// The interface at one end of a cable.
pub struct CableEnd<'a> {
    namespace: &'a Namespace,
    name: &'a str,
    mac: Option<String>,
    mtu: Option<u32>,
    addresses: Vec<String>,
}

impl Namespace {
    /// Returns an end of a cable, for [`cable`]: an interface in this namespace.
    #[must_use]
    pub fn end<'a>(&'a self, name: &'a str) -> CableEnd<'a> {
        CableEnd { namespace: self, name, mac: None, mtu: None, addresses: Vec::new() }
    }
}

impl CableEnd<'_> {
    /// Gives the interface a MAC address; otherwise the kernel chooses one.
    #[must_use]
    pub fn mac(mut self, mac: impl Into<String>) -> Self {
        self.mac = Some(mac.into());
        self
    }

    /// Gives the interface an MTU other than 1500 bytes.
    #[must_use]
    pub fn mtu(mut self, mtu: u32) -> Self {
        self.mtu = Some(mtu);
        self
    }

    /// Gives the interface another address, such as `10.0.0.1/24`. IPv6 addresses are used without DAD.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.addresses.push(address.into());
        self
    }

    /// Returns the arguments of `ip link add` for this end.
    fn settings(&self, queues: Option<u32>) -> String {
        let mut text = format!("name {}", self.name);
        if let Some(mac) = &self.mac {
            text += &format!(" address {mac}");
        }
        if let Some(mtu) = self.mtu {
            text += &format!(" mtu {mtu}");
        }
        if let Some(queues) = queues {
            text += &format!(" numtxqueues {queues} numrxqueues {queues}");
        }
        text
    }

    fn set_up(&self) -> Result<()> {
        let mut lines = format!("link set dev {} up\n", self.name);
        for address in &self.addresses {
            let without_dad = if address.contains(':') { " nodad" } else { "" };
            lines += &format!("address add {address} dev {}{without_dad}\n", self.name);
        }
        self.namespace.ip(&lines)
    }
}

/// Connects two ends, each with `queues` queues (`None`: one for each processor), and sets them up.
///
/// # Errors
/// A command of `ip` fails.
pub fn cable(queues: Option<u32>, one: &CableEnd<'_>, other: &CableEnd<'_>) -> Result<()> {
    one.namespace.ip(&format!(
        "link add {} type veth peer {} netns {}\n",
        one.settings(queues),
        other.settings(queues),
        other.namespace.name()
    ))?;
    other.set_up()?;
    one.set_up()
}

/// A namespace with a bridge.
pub struct Switch(Namespace);

impl Switch {
    /// The name of the bridge.
    pub const BRIDGE: &str = "switch";

    /// Creates the namespace `role` with a bridge without ports.
    ///
    /// # Errors
    /// A command of `ip` fails.
    pub fn create(run: &Run, role: &str) -> Result<Switch> {
        let namespace = run.namespace(role)?;
        namespace.ip("link add switch type bridge stp_state 0 mcast_snooping 0\nlink set switch up\n")?;
        Ok(Switch(namespace))
    }

    /// Connects a host to a port of the switch, with `queues` queues at both ends. With a static entry for
    /// the host's MAC address, the switch never floods frames for it to other hosts.
    ///
    /// # Errors
    /// A command of `ip` or `bridge` fails.
    pub fn plug(&self, port: &str, queues: Option<u32>, host: &CableEnd<'_>) -> Result<()> {
        let mut end = self.0.end(port);
        end.mtu = host.mtu;
        cable(queues, &end, host)?;
        self.0.ip(&format!("link set dev {port} master {}\n", Switch::BRIDGE))?;
        match &host.mac {
            // The switch may already have learned it, hence `replace`.
            Some(mac) => self.0.bridge(&format!("fdb replace {mac} dev {port} master static\n")),
            None => Ok(()),
        }
    }

    /// Returns the switch's namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.0
    }
}
