//! The kernel's own counters for the interfaces and the XDP hook, to verify weir's ledger.

use std::ops::Sub;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::topology::{BackEnd, INTERFACE, Topology, WeirNode};
use weir_bed::Namespace;

/// Counters of an interface, in frames.
#[derive(Clone, Copy)]
pub struct Interface {
    /// Received, including those taken by XDP.
    pub received: u64,
    /// Sent, including those sent by AF_XDP.
    pub transmitted: u64,
    /// Dropped in either direction.
    pub dropped: u64,
}

/// Counters of the driver at its XDP hook, in frames.
#[derive(Clone, Copy)]
pub struct Xdp {
    /// Passed to the program.
    pub seen: u64,
    /// Redirected or sent back, that is taken by weir.
    pub taken: u64,
    /// Sent back by the program.
    pub sent_back: u64,
    /// Lost there: dropped by the program, or redirected to a full socket.
    pub dropped: u64,
}

/// A reading of all counters, or the difference of two.
pub struct Witness {
    /// The node's interface.
    pub weir: Interface,
    /// Its XDP hook.
    pub xdp: Xdp,
    /// The switch's interface to the node; a veth counts there the frames that did not fit its peer's
    /// ring.
    pub switch: Interface,
    /// The client's interface.
    pub client: Interface,
    /// The back ends' interfaces.
    pub back_ends: Vec<(&'static str, Interface)>,
}

impl Witness {
    /// Reads all counters of a node and of those around it.
    pub fn read(topology: &Topology, node: &WeirNode) -> Result<Witness> {
        let back_end = |back_end: &BackEnd| Ok((back_end.name, interface(&back_end.namespace, INTERFACE)?));
        Ok(Witness {
            weir: interface(&node.namespace, INTERFACE)?,
            xdp: xdp(&node.namespace)?,
            switch: interface(topology.switch.namespace(), node.executor.name())?,
            client: interface(&topology.client, INTERFACE)?,
            back_ends: topology.back_ends.iter().map(back_end).collect::<Result<_>>()?,
        })
    }

    /// Returns what was counted since `earlier`.
    pub fn since(&self, earlier: &Witness) -> Witness {
        let back_ends = self
            .back_ends
            .iter()
            .zip(&earlier.back_ends)
            .map(|(&(name, now), &(_, then))| (name, now - then));
        Witness {
            weir: self.weir - earlier.weir,
            xdp: self.xdp - earlier.xdp,
            switch: self.switch - earlier.switch,
            client: self.client - earlier.client,
            back_ends: back_ends.collect(),
        }
    }

    /// Returns the frames that the XDP program passed to the kernel.
    pub fn passed(&self) -> u64 {
        self.xdp.seen.saturating_sub(self.xdp.taken + self.xdp.dropped)
    }

    /// Returns the frames that the kernel dropped at the node's interface or on the way there.
    pub fn dropped(&self) -> u64 {
        // The interface's count includes losses at the hook, so the higher of the two covers everything.
        self.switch.dropped + self.weir.dropped.max(self.xdp.dropped)
    }

    /// Returns the counters as JSON.
    pub fn json(&self) -> Value {
        let back_ends =
            self.back_ends.iter().map(|(name, at)| json!({"name": name, "rx_packets": at.received}));
        json!({
            "rx_packets": self.weir.received,
            "tx_packets": self.weir.transmitted,
            "dropped": self.dropped(),
            "dropped_on_cable": self.switch.dropped,
            "dropped_at_xdp": self.xdp.dropped,
            "xdp_seen": self.xdp.seen,
            "xdp_taken": self.xdp.taken,
            "xdp_sent_back": self.xdp.sent_back,
            "xdp_passed": self.passed(),
            "client_tx_packets": self.client.transmitted,
            "client_rx_packets": self.client.received,
            "backends": back_ends.collect::<Vec<_>>(),
        })
    }
}

impl Sub for Interface {
    type Output = Interface;

    fn sub(self, earlier: Interface) -> Interface {
        Interface {
            received: self.received - earlier.received,
            transmitted: self.transmitted - earlier.transmitted,
            dropped: self.dropped - earlier.dropped,
        }
    }
}

impl Sub for Xdp {
    type Output = Xdp;

    fn sub(self, earlier: Xdp) -> Xdp {
        Xdp {
            seen: self.seen - earlier.seen,
            taken: self.taken - earlier.taken,
            sent_back: self.sent_back - earlier.sent_back,
            dropped: self.dropped - earlier.dropped,
        }
    }
}

fn interface(namespace: &Namespace, name: &str) -> Result<Interface> {
    let text = namespace.output("ip", &["-j", "-s", "link", "show", "dev", name])?;
    let links: Value = serde_json::from_str(&text).context("`ip -j` printed no JSON")?;
    let count = |direction: &str, name: &str| {
        links[0]["stats64"][direction][name].as_u64().with_context(|| format!("`ip -j` did not print {name}"))
    };
    Ok(Interface {
        received: count("rx", "packets")?,
        transmitted: count("tx", "packets")?,
        dropped: count("rx", "dropped")? + count("tx", "dropped")?,
    })
}

fn xdp(namespace: &Namespace) -> Result<Xdp> {
    let text = namespace.output("ethtool", &["-S", INTERFACE])?;
    let sum = |name| sum_over_queues(&text, name);
    Ok(Xdp {
        seen: sum("_xdp_packets"),
        taken: sum("_xdp_redirect") + sum("_xdp_tx"),
        sent_back: sum("_xdp_tx"),
        dropped: sum("_xdp_drops") + sum("_xdp_tx_errors") + sum("_drops"),
    })
}

/// Sums the lines `rx_queue_<number><name>: <count>` of `ethtool -S` on a veth.
fn sum_over_queues(text: &str, name: &str) -> u64 {
    let of_queue = |line: &str| {
        let (counter, count) = line.trim().strip_prefix("rx_queue_")?.split_once(": ")?;
        let rest = counter.trim_start_matches(|c: char| c.is_ascii_digit());
        if rest == name { count.parse::<u64>().ok() } else { None }
    };
    text.lines().filter_map(of_queue).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_added_over_queues_by_their_whole_name() {
        let text = "NIC statistics:\n     peer_ifindex: 3\n     rx_queue_0_xdp_packets: 5\n     \
            rx_queue_0_drops: 2\n     \
                    rx_queue_0_xdp_drops: 1\n     rx_queue_11_xdp_packets: 7\n     tx_queue_0_xdp_xmit: 9\n";
        assert_eq!(sum_over_queues(text, "_xdp_packets"), 12);
        assert_eq!(sum_over_queues(text, "_drops"), 2);
        assert_eq!(sum_over_queues(text, "_xdp_xmit"), 0);
    }
}
