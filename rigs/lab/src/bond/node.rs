//! The weir node: a daemon with a bond between host and links, and the reported state of its bond.

use anyhow::{Context, Result};
use serde_json::Value;

use super::topology::{LINKS, Topology};
use crate::Interrupt;
use crate::weir::Weir;
use weir_bed::Run;

/// A running weir node.
pub struct WeirNode {
    weir: Weir,
    /// How many times slower this machine is than usual.
    slowdown: u32,
}

/// A snapshot of the bond.
pub struct Bond(Value);

impl WeirNode {
    /// Starts the node with `members` members.
    pub fn start(
        run: &mut Run,
        topology: &Topology,
        members: usize,
        interrupt: &Interrupt,
    ) -> Result<WeirNode> {
        let command = |program: &str| topology.weir.preferred(program);
        let slowdown = interrupt.slowdown();
        let text = configuration((members, slowdown), "active", "fast");
        Ok(WeirNode { weir: Weir::start(run, "weir", command, &text, interrupt)?, slowdown })
    }

    /// Lets another weir take over from this one.
    pub fn succeed(&mut self, run: &mut Run, topology: &Topology, interrupt: &Interrupt) -> Result<()> {
        self.weir.succeed(run, "successor", |program| topology.weir.preferred(program), interrupt)
    }

    /// Changes the number of members.
    pub fn set_members(&self, members: usize) -> Result<()> {
        self.weir.reload(&configuration((members, self.slowdown), "active", "fast"))
    }

    /// Changes weir's LACP settings on all links: `active` or `passive`, `fast` or `slow`.
    pub fn speak(&self, mode: &str, rate: &str) -> Result<()> {
        self.weir.reload(&configuration((LINKS, self.slowdown), mode, rate))
    }

    /// Uses two links, one at a time and without LACP, with these probe settings.
    pub fn probe(&self, settings: &str) -> Result<()> {
        self.weir.reload(&with_bond(&format!(
            "mode: active_backup, members: [p1, p2], inside: p0, probe: {settings}"
        )))
    }

    /// Runs `weir bond WORDS`, such as `disable p1`.
    pub fn command(&self, words: &str) -> Result<()> {
        self.weir.app("bond0", words).map(drop)
    }

    /// Takes a snapshot of the bond.
    pub fn bond(&self) -> Result<Bond> {
        self.weir.app("bond0", "show").map(Bond)
    }

    /// Returns the number of frames sent on each link.
    pub fn sent_by_link(&self) -> Result<[u64; LINKS]> {
        let ports = self.weir.show("ports")?;
        let ports = ports["ports"].as_array().context("no ports")?;
        let sent = |link: usize| {
            let port = ports.iter().find(|port| port["name"] == format!("p{link}"));
            port.and_then(|port| port["transmitted"].as_u64()).unwrap_or(0)
        };
        Ok([1, 2, 3, 4].map(sent))
    }

    /// Stops the node. Fails unless it exits successfully.
    pub fn stop(&self, run: &mut Run) -> Result<()> {
        self.weir.stop(run)
    }
}

impl Bond {
    /// Returns the number of enabled members.
    pub fn enabled(&self) -> usize {
        self.members().filter(|member| member["enabled"] == true).count()
    }

    /// Returns true if the member on this link (counted from 1) is enabled.
    pub fn uses(&self, link: usize) -> bool {
        self.member(link).is_some_and(|member| member["enabled"] == true)
    }

    /// Returns the link (counted from 1) of the active member.
    pub fn active(&self) -> Option<usize> {
        (1..=LINKS).find(|link| self.member(*link).is_some_and(|member| member["active"] == true))
    }

    /// Returns the number of buckets of the member on this link (counted from 1).
    pub fn buckets_of(&self, link: usize) -> u64 {
        self.member(link).and_then(|member| member["buckets"].as_u64()).unwrap_or(0)
    }

    /// Returns the number of moves that wait for their bucket to become idle.
    pub fn waiting(&self) -> u64 {
        self.0["waiting"].as_u64().unwrap_or(0)
    }

    /// Returns the number of buckets moved while in use.
    pub fn moved_busy(&self) -> u64 {
        self.0["moved_busy"].as_u64().unwrap_or(0)
    }

    /// Returns true if this `end` of every member is active in LACP (`actor` is weir's end).
    pub fn is_active(&self, end: &str) -> bool {
        let says = |member: &Value| {
            let state = member["lacp"][end]["state"].as_array();
            state.is_some_and(|bits| bits.iter().any(|bit| bit == "activity"))
        };
        self.members().all(says)
    }

    /// Returns the whole snapshot as text.
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

/// A configuration with five ports, of which the first `members` links are members. A member is used only a
/// moment after the partner has announced that it accepts frames, because Open vSwitch announces that too
/// early. A bucket moves only after it has been idle for longer than one link may be ahead of another, which
/// is how long the partner may leave frames in its queues.
fn configuration((members, slowdown): (usize, u32), mode: &str, rate: &str) -> String {
    let members: Vec<String> = (1..=members).map(|link| format!("p{link}")).collect();
    with_bond(&format!(
        "mode: balance_tcp, members: [{}], inside: p0, updelay: {}ms, idle_gap: {slowdown}ms, \
         lacp: {{ mode: {mode}, rate: {rate} }}",
        members.join(", "),
        100 * slowdown
    ))
}

fn with_bond(settings: &str) -> String {
    let ports: String = (0..=LINKS).map(|port| format!("  p{port}: {{ xdp: p{port} }}\n")).collect();
    format!("workers: 1\nports:\n{ports}apps:\n  - bond: {{ name: bond0, {settings} }}\n")
}
