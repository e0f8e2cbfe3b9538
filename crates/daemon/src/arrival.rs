//! The first part of `explain --live`: whether a frame reaches weir at all, or stays with the host.
//!
//! The XDP program itself answers this. A copy of the program with the rules of the port is loaded and run on
//! the frame (`BPF_PROG_TEST_RUN`), so the answer cannot differ from reality, and no counter changes.

use super::open;
use crate::config::{Plan, PortKind, Xdp};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use weir_bpf::{Judged, XdpTake};
use weir_packet::write_hex;
use weir_port::XdpInterface;
use weir_program::PortId;

/// The relevant facts about a port's interface.
#[derive(Clone, Debug)]
pub struct Arrival {
    interface: String,
    mac: [u8; 6],
    /// How many receive queues are in use.
    queues: u32,
}

impl Arrival {
    pub fn of(interface: &XdpInterface) -> Arrival {
        let (name, mac) = (interface.name().to_string(), interface.mac());
        Arrival { interface: name, mac, queues: interface.queues().count() }
    }

    /// The queues whose frames reach weir, and all other queues.
    fn queues(&self, xdp: &Xdp) -> (Vec<u32>, Vec<u32>) {
        let has_port = |queue: &u32| xdp.queues.as_ref().is_none_or(|queues| queues.contains(queue));
        (0..self.queues).partition(has_port)
    }
}

/// Describes in JSON and in text what happens to a frame that arrives at an XDP port.
pub fn explain(plan: &Plan, port: PortId, arrival: &Arrival, frame: &[u8]) -> Option<(Value, String)> {
    let config = plan.ports.get(port.index())?;
    let PortKind::Xdp(xdp) = &config.kind else { return None };
    let name = &arrival.interface;
    let own = [arrival.mac, config.mac.unwrap_or(arrival.mac)];
    let judged = match judge(plan, port, own, frame) {
        Ok(judged) => judged,
        Err(error) => {
            let why = format!("{error:#}");
            let text = format!("xdp     cannot tell whether it reaches weir at {name}: {why}\n");
            return Some((json!({ "interface": name, "verdict": "unknown", "error": why }), text));
        }
    };
    let (ours, others) = arrival.queues(xdp);
    let text = match judged {
        Judged::Taken => taken(name, &ours, &others),
        Judged::Left => format!(
            "xdp     left to the host at {name}: no rule takes it, or a `leave` rule matches; the rest shows \
             what would happen if it were taken\n"
        ),
        Judged::NotOurs => format!(
            "xdp     left to the host at {name}: its destination MAC address is not {}; the rest shows what \
             would happen if it were taken\n",
            mac(own[1])
        ),
    };
    Some((
        json!({ "interface": name, "verdict": judged.word(), "queues": ours, "other_queues": others }),
        text,
    ))
}

fn taken(name: &str, ours: &[u32], others: &[u32]) -> String {
    let ours = list(ours);
    match others {
        [] => format!("xdp     taken from {name}, queue {ours}\n"),
        others => format!(
            "xdp     taken from {name} on queue {ours}; on queue {} it stays with the host, because no \
             worker has that queue\n",
            list(others)
        ),
    }
}

fn list(queues: &[u32]) -> String {
    queues.iter().map(u32::to_string).collect::<Vec<_>>().join(" or ")
}

fn mac(mac: [u8; 6]) -> String {
    write_hex(&mac, ":")
}

fn judge(plan: &Plan, port: PortId, own: [[u8; 6]; 2], frame: &[u8]) -> Result<Judged> {
    let wanted = open::wanted(plan, port.index())?;
    XdpTake::judge(own, &wanted.take, frame).context("the XDP program cannot be run on the frame")
}
