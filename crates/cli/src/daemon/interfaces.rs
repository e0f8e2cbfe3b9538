//! The interfaces of XDP ports, and what happens to them: they disappear and come back, are renamed, go down
//! and up, get another MTU or MAC address. The kernel tells of it by netlink, the daemon says so, and what
//! can be healed is healed: ports of an interface that is back receive again, and a program that matches the
//! interface's MAC address is rebuilt with the new one. What is for an address that the host has now stays
//! with the host.

use super::added::Added;
use super::takeover::Taking;
use super::{Daemon, apps, open};
use crate::config::{Nic, Nics, Plan, PortConfig, PortKind};
use crate::nics;
use anyhow::{Context, Result, anyhow};
use rustix::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use tracing::{error, info, warn};
use weir_port::XdpInterface;
use weir_port::xdp::{
    Ethtool, Handover, InterfaceNews, InterfaceState, LinkMonitor, Offer, Queues, Remnant, XdpError,
    obstacles,
};
use weir_program::{Operation, PortId, Program};

/// How often an interface that is there but cannot be used is tried again, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

/// Interfaces with weir's program attached, by the port's position in the program.
#[derive(Default)]
pub struct Interfaces {
    of_ports: Vec<Option<XdpInterface>>,
    /// Listens if there is an XDP port.
    monitor: Option<LinkMonitor>,
    retry_ns: Option<u64>,
    /// Of ports that were removed, until they are closed.
    remnants: Vec<Remnant>,
}

impl Interfaces {
    /// Attaches weir's program to the interfaces of all XDP ports, or prepares that for those that another
    /// daemon will hand over.
    pub fn attach(plan: &Plan, taking: Option<&Taking>) -> Result<Interfaces> {
        // Before the first interface is looked up, so that nothing is missed.
        let xdp = plan.ports.iter().any(|port| matches!(port.kind, PortKind::Xdp(_)));
        let monitor = xdp.then(LinkMonitor::open).transpose().context("interfaces cannot be watched")?;
        let of_ports = open::attach(plan, |port| taking.is_some_and(|taking| taking.has(port)))?;
        for (port, interface) in plan.ports.iter().zip(&of_ports) {
            interface.iter().for_each(|interface| say_obstacles(&port.name, interface.name(), plan.chunk()));
        }
        Ok(Interfaces { of_ports, monitor, ..Interfaces::default() })
    }

    /// Goes on with the interfaces that another daemon hands over, all at the same time, because the kernel
    /// takes milliseconds for each socket that is not handed over. Returns how many there are; those that no
    /// port has are left.
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

    /// Puts the programs of these interfaces in the place of the other daemon's.
    pub fn replace(&mut self) -> Result<()> {
        let all = self.of_ports.iter_mut().flatten();
        at_once(all.map(|interface| move || interface.replace()).collect()).map(drop)
    }

    /// Gives interfaces that will be handed over the sockets that the other daemon offers, by their indices.
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

    /// Returns the queues of each interface, for whoever opens them.
    pub fn queues(&self) -> Vec<Option<Queues>> {
        self.of_ports.iter().map(|interface| interface.as_ref().map(XdpInterface::queues)).collect()
    }

    /// Returns the interface of a port.
    pub fn of(&self, port: PortId) -> Option<&XdpInterface> {
        self.of_ports.get(port.index())?.as_ref()
    }

    /// Returns what the program at a port's interface has counted; nothing without one.
    pub fn counted(&self, port: PortId) -> Vec<(&'static str, u64)> {
        self.of(port).map(|one| one.statistics().to_vec()).unwrap_or_default()
    }

    /// Returns the name by which the kernel can be asked about a port's interface; `None` if it cannot be
    /// used now, or if the port has none.
    pub fn usable_name(&self, port: PortId) -> Option<&str> {
        let interface = self.of(port)?;
        let usable = !matches!(interface.state(), InterfaceState::Gone | InterfaceState::Refused);
        usable.then(|| interface.name())
    }

    /// Returns the interfaces of a plan's ports, which are those of `self`; those that are gone as they were
    /// last.
    fn nics(&self) -> Vec<Option<Nic>> {
        let ethtool = Ethtool::open().ok();
        let nic = |one: &XdpInterface| nics::nic(one.link(), ethtool.as_ref());
        self.of_ports.iter().map(|one| one.as_ref().map(nic)).collect()
    }

    /// Notes the present state of the interfaces in the plan whose ports have them.
    fn note(&self, plan: &mut Arc<Plan>) {
        let nics = self.nics();
        if plan.ports.iter().map(|port| &port.nic).ne(&nics) {
            let ports = &mut Arc::make_mut(plan).ports;
            ports.iter_mut().zip(nics).for_each(|(port, nic)| port.nic = nic);
        }
    }

    /// Changes what those take that go on to what `plan` says, whose ports have these present positions; if
    /// one is refused, back to what `former` says.
    pub fn set_take(&mut self, plan: &Plan, order: &[Option<usize>], former: &Plan) -> Result<()> {
        let refused = open::set_take(plan, order, &mut self.of_ports);
        if refused.is_err() {
            let stay: Vec<Option<usize>> = (0..former.ports.len()).map(Some).collect();
            open::set_take(former, &stay, &mut self.of_ports)?;
        }
        refused
    }

    /// Brings what they take up to date if the host's addresses have changed. `plan` is the present one.
    fn mind_addresses(&mut self, plan: &Plan) -> Result<()> {
        if !self.monitor.as_mut().is_some_and(LinkMonitor::addresses_changed) {
            return Ok(());
        }
        let stay: Vec<Option<usize>> = (0..plan.ports.len()).map(Some).collect();
        open::set_take(plan, &stay, &mut self.of_ports)
    }

    /// Takes on the interfaces of a new plan's ports, which have these present positions or are added. Those
    /// that no port has any more leave everything to the kernel.
    pub fn succeed(&mut self, order: &[Option<usize>], plan: &Plan, added: &mut Added) {
        let mut old = std::mem::take(&mut self.of_ports);
        for (at, before) in order.iter().enumerate() {
            let new = added.interfaces.get_mut(at).and_then(Option::take);
            if let Some(new) = &new {
                say_obstacles(&plan.ports[at].name, new.name(), plan.chunk());
                // What has happened to it since it was attached is still to be seen.
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

    /// Returns what is left of interfaces that no port has any more.
    pub fn remnants(&self) -> Vec<Remnant> {
        self.remnants.clone()
    }

    /// Returns what the daemon waits for.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.monitor.as_ref().map(AsFd::as_fd)
    }

    /// Returns when to look again without news.
    pub fn wake_ns(&self) -> Option<u64> {
        self.retry_ns
    }

    /// Follows what has happened to the interfaces. Returns it, by the ports' positions.
    pub fn look(&mut self, now_ns: u64) -> Vec<(PortId, InterfaceNews)> {
        let Some(monitor) = &mut self.monitor else { return Vec::new() };
        let due = self.retry_ns.is_some_and(|retry_ns| retry_ns <= now_ns);
        if !monitor.has_news(self.of_ports.iter().flatten()) && !due {
            return Vec::new();
        }
        // Without the list, nothing is known; then it is tried again.
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

/// Does these works, each on a thread of its own. Returns their number.
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

/// Says the obstacles to a port that `weir ports` knows.
fn say_obstacles(port: &str, interface: &str, chunk: usize) {
    for obstacle in obstacles(interface, chunk) {
        warn!("port {port}: {obstacle}");
    }
}

impl Daemon {
    /// Says why a port's interface cannot carry frames now.
    pub(super) fn obstacle(&self, port: PortId) -> Option<String> {
        let interface = self.interfaces.of(port)?;
        let effect = match interface.state() {
            InterfaceState::Up => return None,
            InterfaceState::Gone | InterfaceState::Refused => "the frame is dropped as `interface_gone`",
            InterfaceState::Down | InterfaceState::NoCarrier => "the frame does not arrive",
        };
        let (name, state) = (interface.name(), interface.state());
        Some(format!("port {}: interface {name} is {state}: {effect}", self.plan.ports[port.index()].name))
    }

    /// Notes the present state of the interfaces for all who ask about a port's.
    pub(super) fn note_interfaces(&mut self) {
        self.interfaces.note(&mut self.plan);
        self.neighbours.place(apps::places(&self.plan));
    }

    /// Follows what has happened to interfaces, and says it.
    pub(super) fn mind_interfaces(&mut self) {
        let news = self.interfaces.look(self.clock.now_ns());
        if !news.is_empty() {
            self.note_interfaces();
        }
        if let Err(error) = self.interfaces.mind_addresses(&self.plan) {
            error!("what is for the host's present addresses may not reach it: {error:#}");
        }
        for (port, news) in &news {
            let name = self.interfaces.of(*port).map_or("", XdpInterface::name);
            let port_name = &self.plan.ports[port.index()].name;
            match news {
                InterfaceNews::Gone | InterfaceNews::Moved | InterfaceNews::Refused(_) => {
                    error!("port {port_name}: interface {name} {news}");
                }
                InterfaceNews::State(state) if *state != InterfaceState::Up => {
                    warn!("port {port_name}: interface {name} {news}");
                }
                _ => info!("port {port_name}: interface {name} {news}"),
            }
            if matches!(news, InterfaceNews::Back | InterfaceNews::Mtu(..)) {
                say_obstacles(port_name, name, self.plan.chunk());
            }
            if matches!(news, InterfaceNews::Mtu(..)) && limits_length(&self.plan.program) {
                self.reloads.mtu = true;
                self.ask_rebuild();
            }
            let usable = self.interfaces.usable_name(*port).map(str::to_string);
            self.host.links.set_interface(*port, usable);
        }
        if news.iter().any(|(_, news)| matches!(news, InterfaceNews::Mac(_))) {
            self.ask_rebuild();
        }
    }
}

/// Returns whether a program has limits of length, which may follow from the MTU of an interface.
fn limits_length(program: &Program) -> bool {
    let mut all = program.pipes.iter().flat_map(|pipe| &pipe.templates).flat_map(|one| &one.operations);
    all.any(|operation| matches!(operation, Operation::LimitLength { .. } | Operation::ClampMss { .. }))
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
