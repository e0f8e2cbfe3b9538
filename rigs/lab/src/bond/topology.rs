//! The network of the lab: two hosts, and between them weir and a switch that are bonded over four links.
//!
//! ```text
//!             +------+ p1 --- s1 +--------+
//!  inside --- | weir | p2 --- s2 | switch | --- outside
//!          p0 |      | p3 --- s3 |        | o0
//!             +------+ p4 --- s4 +--------+
//! ```
//!
//! Each host has the other's MAC address as a permanent neighbour, so that no lost ARP packet prolongs an
//! outage.

use anyhow::Result;
use weir_bed::{CableEnd, Namespace, Run, cable};

/// Addresses of the hosts.
pub const INSIDE: &str = "10.88.0.1";
pub const OUTSIDE: &str = "10.88.0.2";
const INSIDE_MAC: &str = "02:88:00:00:00:01";
const OUTSIDE_MAC: &str = "02:88:00:00:00:02";
const INTERFACE: &str = "eth0";

/// Links between weir and the switch: `p1` to `p4` at one end, `s1` to `s4` at the other.
pub const LINKS: usize = 4;

/// The namespaces of the lab.
pub struct Topology {
    /// The host that sends.
    pub inside: Namespace,
    /// Where weir runs.
    pub weir: Namespace,
    /// Where the partner is.
    pub switch: Namespace,
    /// The host that receives.
    pub outside: Namespace,
}

impl Topology {
    /// Creates the network; `run` removes it.
    pub fn build(run: &Run) -> Result<Topology> {
        let topology = Topology {
            inside: run.namespace("inside")?,
            weir: run.namespace("weir")?,
            switch: run.namespace("switch")?,
            outside: run.namespace("outside")?,
        };
        let Topology { inside, weir, switch, outside } = &topology;
        // weir has one worker, and needs one queue.
        cable(Some(1), &weir.end("p0"), &host(inside, INSIDE, INSIDE_MAC))?;
        for link in 1..=LINKS {
            cable(Some(1), &weir.end(&format!("p{link}")), &switch.end(&format!("s{link}")))?;
        }
        cable(Some(1), &switch.end("o0"), &host(outside, OUTSIDE, OUTSIDE_MAC))?;
        know(inside, OUTSIDE, OUTSIDE_MAC)?;
        know(outside, INSIDE, INSIDE_MAC)?;
        Ok(topology)
    }

    /// Returns the ends of a stream: the host that sends, and the one that receives with its address.
    pub fn ends(&self) -> (&Namespace, (&Namespace, &'static str)) {
        (&self.inside, (&self.outside, OUTSIDE))
    }

    /// Takes a link (counted from 1) down at the switch's end, so that weir's end loses its carrier, or up
    /// again.
    pub fn set_link(&self, link: usize, up: bool) -> Result<()> {
        self.switch.ip(&format!("link set s{link} {}\n", if up { "up" } else { "down" }))
    }

    /// Blocks the switch's LACPDUs on a link (counted from 1), which keeps its carrier and all other traffic.
    pub fn silence(&self, link: usize) -> Result<()> {
        let rules = format!(
            "add table netdev lab\n\
             add chain netdev lab out {{ type filter hook egress device \"s{link}\" priority 0; }}\n\
             add rule netdev lab out ether type 0x8809 drop\n"
        );
        self.switch.input("nft", &["-f", "-"], &rules)
    }

    /// Unblocks the switch's LACPDUs on all links.
    pub fn speak(&self) -> Result<()> {
        self.switch.output("nft", &["delete", "table", "netdev", "lab"]).map(drop)
    }
}

fn host<'a>(host: &'a Namespace, address: &str, mac: &str) -> CableEnd<'a> {
    host.end(INTERFACE).mac(mac).address(format!("{address}/24"))
}

/// Makes another host a permanent neighbour of `host`.
fn know(host: &Namespace, other: &str, mac: &str) -> Result<()> {
    host.ip(&format!("neighbour add {other} lladdr {mac} dev {INTERFACE} nud permanent\n"))?;
    host.checksum_in_software(INTERFACE)
}
