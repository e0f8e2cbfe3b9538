//! The weir node: a daemon with a bond between host and links, and what its bond says of itself.

use anyhow::{Context, Result};
use serde_json::Value;

use super::topology::{LINKS, Topology};
use crate::Interrupt;
use crate::run::Run;
use crate::weir::Weir;

/// See above.
pub struct Node(Weir);

/// The bond at one moment.
pub struct Bond(Value);

impl Node {
    /// Starts it with so many members.
    pub fn start(run: &mut Run, topology: &Topology, members: usize, interrupt: &Interrupt) -> Result<Node> {
        let command = |program: &str| topology.weir.preferred(program);
        Weir::start(run, "weir", command, &configuration(members, "active", "fast"), interrupt).map(Node)
    }

    /// Changes the number of members.
    pub fn set_members(&self, members: usize) -> Result<()> {
        self.0.reload(&configuration(members, "active", "fast"))
    }

    /// Changes how it speaks LACP over all links: `active` or `passive`, `fast` or `slow`.
    pub fn speak(&self, mode: &str, rate: &str) -> Result<()> {
        self.0.reload(&configuration(LINKS, mode, rate))
    }

    /// `weir bond WORDS`, such as `disable p1`.
    pub fn command(&self, words: &str) -> Result<()> {
        self.0.app("bond0", words).map(drop)
    }

    /// How the bond is now.
    pub fn bond(&self) -> Result<Bond> {
        self.0.app("bond0", "show").map(Bond)
    }

    /// Frames that each of the links was sent.
    pub fn sent_by_link(&self) -> Result<[u64; LINKS]> {
        let ports = self.0.show("ports")?;
        let ports = ports["ports"].as_array().context("no ports")?;
        let sent = |link: usize| {
            let port = ports.iter().find(|port| port["name"] == format!("p{link}"));
            port.and_then(|port| port["transmitted"].as_u64()).unwrap_or(0)
        };
        Ok([1, 2, 3, 4].map(sent))
    }

    /// Stops it; an error unless it ends well.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        self.0.stop(run)
    }
}

impl Bond {
    /// How many members carry traffic.
    pub fn enabled(&self) -> usize {
        self.members().filter(|member| member["enabled"] == true).count()
    }

    /// Whether the member on this link (from 1) does.
    pub fn uses(&self, link: usize) -> bool {
        self.member(link).is_some_and(|member| member["enabled"] == true)
    }

    /// Buckets that the member on this link (from 1) has.
    pub fn buckets_of(&self, link: usize) -> u64 {
        self.member(link).and_then(|member| member["buckets"].as_u64()).unwrap_or(0)
    }

    /// Moves that still wait for their bucket to be idle.
    pub fn waiting(&self) -> u64 {
        self.0["waiting"].as_u64().unwrap_or(0)
    }

    /// Buckets that were moved under a flow that never paused.
    pub fn moved_busy(&self) -> u64 {
        self.0["moved_busy"].as_u64().unwrap_or(0)
    }

    /// Whether every member's `end` of LACP (`actor` is weir's) speaks first.
    pub fn is_active(&self, end: &str) -> bool {
        let says = |member: &Value| {
            let state = member["lacp"][end]["state"].as_array();
            state.is_some_and(|bits| bits.iter().any(|bit| bit == "activity"))
        };
        self.members().all(says)
    }

    /// All of it.
    pub fn text(&self) -> String {
        self.0.to_string()
    }

    fn members(&self) -> impl Iterator<Item = &Value> {
        self.0["members"].as_array().into_iter().flatten()
    }

    fn member(&self, link: usize) -> Option<&Value> {
        self.members().find(|member| member["name"] == format!("p{link}"))
    }
}

/// Five ports, of which the first so many links are members. One is used a moment after the partner has said that it takes
/// frames from it: Open vSwitch says so before it does.
fn configuration(members: usize, mode: &str, rate: &str) -> String {
    let ports: String = (0..=LINKS).map(|port| format!("  p{port}: {{ xdp: p{port} }}\n")).collect();
    let members: Vec<String> = (1..=members).map(|link| format!("p{link}")).collect();
    format!(
        "workers: 1\nports:\n{ports}apps:\n  - bond: {{ name: bond0, mode: balance_tcp, members: [{}], inside: p0, \
         updelay: 100ms, lacp: {{ mode: {mode}, rate: {rate} }} }}\n",
        members.join(", ")
    )
}
