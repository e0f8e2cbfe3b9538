//! The interfaces of XDP ports, and what happens to them: they disappear and come back, are renamed, go down
//! and up, get another MTU or MAC address. The kernel reports this over netlink; the daemon logs it and
//! repairs what it can: ports of a returned interface receive again, and a program that matches the
//! interface's MAC address is rebuilt with the new one. Traffic to an address that the host currently has
//! stays with the host.

use super::added::Added;
use super::open;
use crate::config::{Nic, Nics, Plan, PortConfig, PortKind};
use crate::nics;
use anyhow::{Context, Result, anyhow};
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tracing::warn;
use weir_port::XdpInterface;
use weir_port::xdp::{
    Ethtool, Handover, InterfaceNews, InterfaceState, LinkMonitor, Offer, Queues, Remnant, XdpError,
    obstacles,
};
use weir_program::PortId;

/// How often to retry an interface that exists but cannot be used, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

/// Interfaces with weir's program attached, by the port's position in the program.
#[derive(Default)]
pub struct Interfaces {
    of_ports: Vec<Option<XdpInterface>>,
    /// Present if there is an XDP port.
    monitor: Option<LinkMonitor>,
    retry_ns: Option<u64>,
    /// Remnants of removed ports, until they are closed.
    remnants: Vec<Remnant>,
}

impl Interfaces {
    /// Attaches weir's program to the interfaces of all XDP ports, or only prepares those that another daemon
    /// will hand over.
    pub fn attach(plan: &Plan, is_handed_over: impl Fn(&PortConfig) -> bool) -> Result<Interfaces> {
        // Before the first interface is looked up, so that no change is missed.
        let xdp = plan.ports.iter().any(|port| matches!(port.kind, PortKind::Xdp(_)));
        let monitor = xdp.then(LinkMonitor::open).transpose().context("cannot watch interfaces")?;
        let of_ports = open::attach(plan, is_handed_over)?;
        for (port, interface) in plan.ports.iter().zip(&of_ports) {
            interface.iter().for_each(|interface| say_obstacles(&port.name, interface.name(), plan.chunk()));
        }
        Ok(Interfaces { of_ports, monitor, ..Interfaces::default() })
    }

    /// Takes over the interfaces that another daemon hands over, all in parallel, because the kernel takes
    /// milliseconds for each socket that is not handed over. Returns how many there are; interfaces without a
    /// port are ignored.
    pub fn take_over(&mut self, mut all: Vec<Handover>) -> Result<usize> {
        let prepared = self.of_ports.iter_mut().flatten().filter(|one| one.is_prepared());
        let mut works = Vec::new();
        for interface in prepared {
            if let Some(at) = all.iter().position(|from| from.index == interface.index()) {
                let from = all.swap_remove(at);
                works.push(move || interface.take_over(from));
            }
        }
        at_once(works)
    }

    /// Replaces the other daemon's programs on these interfaces.
    pub fn replace(&mut self) -> Result<()> {
        let all = self.of_ports.iter_mut().flatten();
        at_once(all.map(|interface| move || interface.replace()).collect()).map(drop)
    }

    /// Assigns the sockets that the other daemon offers, by interface index, to interfaces that will be
    /// handed over.
    pub fn offer(&self, mut offers: Vec<(u32, Offer)>) {
        for interface in self.prepared() {
            let mut own = Vec::new();
            while let Some(at) = offers.iter().position(|(index, _)| *index == interface.index()) {
                own.push(offers.swap_remove(at).1);
            }
            interface.offer(own);
        }
    }

    /// Returns the prepared interfaces.
    pub fn prepared(&self) -> impl Iterator<Item = &XdpInterface> {
        self.of_ports.iter().flatten().filter(|one| one.is_prepared())
    }

    /// Returns the interfaces of all ports that have one.
    pub fn all(&self) -> impl Iterator<Item = &XdpInterface> {
        self.of_ports.iter().flatten()
    }

    /// Returns how many frames were dropped so far because another daemon takes over.
    pub fn held_back(&self) -> u64 {
        self.of_ports.iter().flatten().map(|one| one.counters().held_back).sum()
    }

    /// Returns the queues of each interface, for opening them.
    pub fn queues(&self) -> Vec<Option<Queues>> {
        self.of_ports.iter().map(|interface| interface.as_ref().map(XdpInterface::queues)).collect()
    }

    /// Returns the interface of a port.
    pub fn of(&self, port: PortId) -> Option<&XdpInterface> {
        self.of_ports.get(port.index())?.as_ref()
    }

    /// Returns the counters of the program at a port's interface; empty without one.
    pub fn counted(&self, port: PortId) -> Vec<(&'static str, u64)> {
        self.of(port).map(|one| one.statistics().to_vec()).unwrap_or_default()
    }

    /// Returns the name with which the kernel can be queried about a port's interface; `None` if it cannot be
    /// used at the moment, or if the port has none.
    pub fn usable_name(&self, port: PortId) -> Option<&str> {
        let interface = self.of(port)?;
        let usable = !matches!(interface.state(), InterfaceState::Gone | InterfaceState::Refused);
        usable.then(|| interface.name())
    }

    /// Returns the interfaces of a plan's ports, which are those of `self`; those that are gone are returned
    /// as last seen.
    pub fn nics(&self) -> Vec<Option<Nic>> {
        let ethtool = Ethtool::open().ok();
        let nic = |one: &XdpInterface| nics::nic(one.link(), ethtool.as_ref());
        self.of_ports.iter().map(|one| one.as_ref().map(nic)).collect()
    }

    /// Records the current state of the interfaces in the plan of their ports.
    pub fn note(&self, plan: &mut Arc<Plan>) {
        let nics = self.nics();
        if plan.ports.iter().map(|port| &port.nic).ne(&nics) {
            let ports = &mut Arc::make_mut(plan).ports;
            ports.iter_mut().zip(nics).for_each(|(port, nic)| port.nic = nic);
        }
    }

    /// Changes the rules of interfaces that stay to those of `plan`, whose ports have these current
    /// positions; if one is refused, changes them back to those of `former`.
    pub fn set_take(&mut self, plan: &Plan, order: &[Option<usize>], former: &Plan) -> Result<()> {
        let refused = open::set_take(plan, order, &mut self.of_ports);
        if refused.is_err() {
            let stay: Vec<Option<usize>> = (0..former.ports.len()).map(Some).collect();
            open::set_take(former, &stay, &mut self.of_ports)?;
        }
        refused
    }

    /// Updates the rules if the host's addresses have changed. `plan` is the current one.
    pub fn refresh_addresses(&mut self, plan: &Plan) -> Result<()> {
        if !self.monitor.as_mut().is_some_and(LinkMonitor::addresses_changed) {
            return Ok(());
        }
        let stay: Vec<Option<usize>> = (0..plan.ports.len()).map(Some).collect();
        open::set_take(plan, &stay, &mut self.of_ports)
    }

    /// Takes on the interfaces of a new plan's ports, which have these current positions or are added.
    /// Interfaces that no longer have a port leave all traffic to the kernel.
    pub fn succeed(&mut self, order: &[Option<usize>], plan: &Plan, added: &mut Added) {
        let mut old = std::mem::take(&mut self.of_ports);
        for (at, before) in order.iter().enumerate() {
            let new = added.interfaces.get_mut(at).and_then(Option::take);
            if let Some(new) = &new {
                say_obstacles(&plan.ports[at].name, new.name(), plan.chunk());
                // Changes since it was attached have not been seen yet.
                self.retry_ns = Some(0);
            }
            let kept = before.and_then(|before| old.get_mut(before)?.take());
            self.of_ports.push(new.or(kept));
        }
        self.remnants.retain(Remnant::is_left);
        self.remnants.extend(old.into_iter().flatten().map(XdpInterface::withdraw));
        if self.monitor.is_none() {
            self.monitor = added.monitor.take();
        }
    }

    /// Returns the remnants of interfaces that no longer have a port.
    pub fn remnants(&self) -> Vec<Remnant> {
        self.remnants.clone()
    }

    /// Returns the descriptor on which the daemon waits.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.monitor.as_ref().map(AsFd::as_fd)
    }

    /// Returns when to check again if there is no news.
    pub fn wake_ns(&self) -> Option<u64> {
        self.retry_ns
    }

    /// Follows changes of the interfaces. Returns them, by the ports' positions.
    pub fn look(&mut self, now_ns: u64) -> Vec<(PortId, InterfaceNews)> {
        let Some(monitor) = &mut self.monitor else { return Vec::new() };
        let due = self.retry_ns.is_some_and(|retry_ns| retry_ns <= now_ns);
        if !monitor.has_news(self.of_ports.iter().flatten()) && !due {
            return Vec::new();
        }
        // Without the list, nothing is known; then retry.
        self.retry_ns = Some(now_ns + RETRY_NS);
        let Ok(links) = monitor.links() else { return Vec::new() };
        let mut all = Vec::new();
        for (at, interface) in self.of_ports.iter_mut().enumerate() {
            let news = interface.as_mut().map(|interface| interface.follow(&links));
            all.extend(news.into_iter().flatten().map(|news| (PortId(at as u16), news)));
        }
        let refused = |interface: &XdpInterface| interface.state() == InterfaceState::Refused;
        if !self.of_ports.iter().flatten().any(refused) {
            self.retry_ns = None;
        }
        all
    }
}

/// Runs these jobs in parallel, each on its own thread. Returns their number.
fn at_once<W: FnOnce() -> Result<(), XdpError> + Send>(works: Vec<W>) -> Result<usize> {
    std::thread::scope(|scope| {
        let works: Vec<_> = works.into_iter().map(|work| scope.spawn(work)).collect();
        let count = works.len();
        for one in works {
            one.join().map_err(|_| anyhow!("a thread has panicked"))??;
        }
        Ok(count)
    })
}

/// Logs the obstacles to a port that `weir ports` knows.
pub fn say_obstacles(port: &str, interface: &str, chunk: usize) {
    for obstacle in obstacles(interface, chunk) {
        warn!("port {port}: {obstacle}");
    }
}

/// Returns true if `plan` was read with the MAC addresses that its interfaces have.
pub fn knows(plan: &Plan) -> bool {
    let knows = |nic: &Nic, port: &PortConfig| port.mac_configured || port.mac == Some(nic.mac);
    plan.ports.iter().all(|port| port.nic.as_ref().is_none_or(|nic| knows(nic, port)))
}

/// Returns the interfaces of a plan's ports by the names that the plan has for them.
pub fn nics_of(plan: &Plan) -> Nics {
    let mut nics = Nics::default();
    for port in &plan.ports {
        if let (PortKind::Xdp(xdp), Some(nic)) = (&port.kind, &port.nic) {
            nics.add(&xdp.interface, nic);
        }
    }
    nics
}
