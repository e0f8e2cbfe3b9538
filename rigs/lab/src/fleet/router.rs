//! The router: BIRD or FRR learns from the nodes by BGP which of them announce the VIP, and the kernel
//! spreads packets over them.
//!
//! With plain ECMP, it gives the kernel one route with a next hop for each node; when a node leaves, the
//! kernel divides the hash space again, and connections of other nodes move as well. A resilient group of
//! next hops moves only those of the node that left. Neither BIRD nor FRR installs such a group, so the lab
//! follows their routes, replaces the group's members, and adds a route through the group to a table of its
//! own.
//!
//! All changes of the next hops are recorded. Those that the lab did not ask for, for example because BFD
//! gave up a session on a busy machine, are reported, and so is which connections they moved.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_netlink::{Groups, Monitor};

use super::clients::now_us;
use super::network::{self, Family, FleetHost, FleetNetwork};
use super::probes::{self, NextHops, TRIAL_MARK};
use super::routing::RouteDaemon;
use crate::Interrupt;
use crate::topology::INTERFACE;
use weir_bed::{Namespace, Run};

/// The table of the route through the group, which the router consults first. FRR would prefer such a route
/// in the main table to its own.
const TABLE: u32 = 200;
/// The number of the resilient group, and of the first of its next hops.
const GROUP: usize = 1000;
const HOPS: usize = 1;
/// Buckets of the resilient group, as many as commodity switches have at most.
const BUCKETS: u32 = 4096;
/// Seconds without a packet after which a bucket may move to a next hop that was added: longer than the
/// pauses of long-lived connections, so that they stay.
const IDLE_S: u32 = 3;
/// The table in which the lab tries next hops. Only probes use it. The kernel's hash does not depend on the
/// table.
const TRIAL: u32 = 201;
/// How long the router may take to follow a node.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a route may be absent while it is replaced.
const REPLACED: Duration = Duration::from_millis(20);
/// How often the thread that follows routes looks whether it should end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// RTM_NEWROUTE and RTM_DELROUTE of linux/rtnetlink.h.
const ROUTE_CHANGES: std::ops::RangeInclusive<u16> = 24..=25;

/// How the router spreads packets over the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Ecmp {
    /// By a route with several next hops.
    Plain,
    /// By a group of next hops from which only the connections of a lost member move.
    Resilient,
}

impl Ecmp {
    /// Its name in the lab's options and results.
    pub fn word(self) -> &'static str {
        match self {
            Ecmp::Plain => "plain",
            Ecmp::Resilient => "resilient",
        }
    }
}

/// The nodes, from 0, to which the router sends packets, in the order of its next hops, since when. The last
/// is current.
type History = Arc<Mutex<Vec<(u64, Vec<usize>)>>>;

/// A change of the router's next hops.
#[derive(Clone, Debug, PartialEq)]
pub struct RouteChange {
    /// When the lab noticed it, in microseconds since 1970.
    pub at_us: u64,
    /// The nodes before and after it, in the order of next hops.
    pub from: Vec<usize>,
    pub to: Vec<usize>,
    /// Whether the lab caused it.
    pub asked: bool,
}

impl RouteChange {
    /// Returns the nodes that left.
    pub fn left(&self) -> impl Iterator<Item = usize> {
        self.from.iter().copied().filter(|node| !self.to.contains(node))
    }

    /// Returns the nodes that joined.
    pub fn joined(&self) -> impl Iterator<Item = usize> {
        self.to.iter().copied().filter(|node| !self.from.contains(node))
    }
}

/// Finds out which changes the lab asked for: those that led to the sets of nodes that it wanted, in order.
fn changes(
    before: Vec<usize>,
    history: impl IntoIterator<Item = (u64, Vec<usize>)>,
    wanted: &[Vec<usize>],
) -> Vec<RouteChange> {
    let mut wanted = wanted.iter();
    let mut next = wanted.next();
    let mut from = before;
    let change = |(at_us, to): (u64, Vec<usize>)| {
        let asked = next.is_some_and(|next| *next == sorted(&to));
        if asked {
            next = wanted.next();
        }
        RouteChange { at_us, from: std::mem::replace(&mut from, to.clone()), to, asked }
    };
    history.into_iter().map(change).collect()
}

fn sorted(nodes: &[usize]) -> Vec<usize> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    nodes
}

/// The running router.
pub struct Router {
    pub daemon: RouteDaemon,
    pub ecmp: Ecmp,
    history: History,
    /// The sets of nodes that the lab has wanted, each other than the one before.
    wanted: Mutex<Vec<Vec<usize>>>,
    stop: Arc<AtomicBool>,
    follower: Option<JoinHandle<()>>,
    /// Why routes can no longer be followed.
    fault: Arc<Mutex<Option<String>>>,
}

/// A moment in the router's history.
#[derive(Clone, Copy)]
pub struct Moment {
    changes: usize,
    wanted: usize,
}

impl Router {
    /// Starts the route daemon and follows its routes.
    pub fn start(
        run: &mut Run,
        network: &FleetNetwork,
        (daemon, ecmp): (RouteDaemon, Ecmp),
    ) -> Result<Router> {
        if ecmp == Ecmp::Resilient {
            let hop = |(at, node): (usize, &FleetHost)| {
                format!("nexthop add id {} via {} dev {INTERFACE}\n", HOPS + at, node.address)
            };
            let hops: String = network.nodes.iter().enumerate().map(hop).collect();
            network.ask_router(&format!("{hops}rule add pref 100 lookup {TABLE}\n"))?;
        }
        network.ask_router(&format!("rule add pref 90 fwmark {TRIAL_MARK} lookup {TRIAL}\n"))?;
        probes::prepare(network)?;
        let monitor = network.router.within(|| Monitor::open(Groups::ROUTING))?;
        let history = History::default();
        let stop = Arc::new(AtomicBool::new(false));
        let mut follower = Follower {
            monitor,
            router: Namespace::existing(network.router.name()),
            nodes: network.nodes.iter().map(|node| node.address.clone()).collect(),
            vip: network.addresses().vip_alone(),
            family: network.family,
            protocol: daemon.protocol(),
            ecmp,
            history: history.clone(),
        };
        let stopped = stop.clone();
        let fault = Arc::new(Mutex::new(None));
        let noted = fault.clone();
        let follower = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Err(error) = follower.follow() {
                    *noted.lock().unwrap_or_else(PoisonError::into_inner) = Some(format!("{error:#}"));
                    return;
                }
            }
        });
        let (wanted, follower) = (Mutex::default(), Some(follower));
        let router = Router { daemon, ecmp, history, wanted, stop, follower, fault };
        daemon.start_at_router(run, network)?;
        Ok(router)
    }

    /// Returns the nodes to which it sends packets, in the order of its next hops.
    pub fn nodes(&self) -> Vec<usize> {
        self.history().last().map(|(_, nodes)| nodes.clone()).unwrap_or_default()
    }

    /// Returns the present moment.
    pub fn now(&self) -> Moment {
        Moment { changes: self.history().len(), wanted: self.wanted().len() }
    }

    /// Returns all changes of its next hops since then.
    pub fn changes_since(&self, then: Moment) -> Vec<RouteChange> {
        let history = self.history();
        let before = then.changes.checked_sub(1).map(|at| history[at].1.clone()).unwrap_or_default();
        changes(before, history[then.changes..].iter().cloned(), &self.wanted()[then.wanted..])
    }

    fn history(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Vec<usize>)>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self) -> std::sync::MutexGuard<'_, Vec<Vec<usize>>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it sends packets to the nodes that the lab wanted last, if changes that the lab did not
    /// ask for are not over.
    pub fn settle(&self, run: &Run, interrupt: &Interrupt) -> Result<()> {
        let last = self.wanted().last().cloned();
        last.map_or(Ok(()), |nodes| self.wait_for(&nodes, run, interrupt))
    }

    /// Waits until it sends packets to exactly these nodes, sorted, after the lab has caused that.
    pub fn wait_for(&self, nodes: &[usize], run: &Run, interrupt: &Interrupt) -> Result<()> {
        let mut wanted = self.wanted();
        if wanted.last().is_none_or(|last| last != nodes) {
            wanted.push(nodes.to_vec());
        }
        drop(wanted);
        let is_so = || match self.fault.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(fault) => bail!("the routes of the router can no longer be followed: {fault}"),
            None => Ok(sorted(&self.nodes()) == nodes),
        };
        if !interrupt.wait(PATIENCE, is_so)? {
            bail!(
                "the router sends packets to nodes {:?} rather than {nodes:?}: {}",
                self.nodes(),
                ["bird-router", "bgpd"].map(|name| run.last_words(name)).join("")
            );
        }
        Ok(())
    }

    /// Returns the node that gets the packets of the connection from each of these ports.
    pub fn owners(
        &self,
        network: &FleetNetwork,
        ports: std::ops::Range<u16>,
    ) -> Result<BTreeMap<u16, usize>> {
        probes::owners(network, ports, NextHops::InUse)
    }

    /// Returns the node that would get those packets if these were the next hops of plain ECMP.
    pub fn owners_with(
        &self,
        network: &FleetNetwork,
        hops: &[usize],
        ports: std::ops::Range<u16>,
    ) -> Result<BTreeMap<u16, usize>> {
        let vip = network.addresses().vip_alone();
        let hop = |node: &usize| format!(" nexthop via {} dev {INTERFACE}", network.nodes[*node].address);
        let hops: String = hops.iter().map(hop).collect();
        network.ask_router(&format!("route replace {vip} table {TRIAL}{hops}\n"))?;
        probes::owners(network, ports, NextHops::Trial)
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(follower) = self.follower.take() {
            let _ = follower.join();
        }
    }
}

/// Reads the routes of the route daemon whenever some route has changed.
struct Follower {
    monitor: Monitor,
    router: Namespace,
    nodes: Vec<String>,
    vip: String,
    family: Family,
    /// The kernel's name for the protocol of the routes.
    protocol: &'static str,
    ecmp: Ecmp,
    history: History,
}

impl Follower {
    fn follow(&mut self) -> Result<()> {
        let mut ready = [PollFd::new(&self.monitor, PollFlags::IN)];
        match poll(&mut ready, Some(&LOOK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error).context("cannot wait for routes"),
        }
        let at = now_us();
        let mut changed = false;
        let read = self.monitor.read(|kind, _| changed |= ROUTE_CHANGES.contains(&kind));
        if !changed && read != weir_netlink::Read::Lost {
            return Ok(());
        }
        let mut nodes = self.announced()?;
        if nodes.is_empty() {
            // FRR replaces a route by removing it first.
            std::thread::sleep(REPLACED);
            nodes = self.announced()?;
        }
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        if history.last().is_some_and(|(_, last)| *last == nodes) {
            return Ok(());
        }
        let at = match self.ecmp {
            Ecmp::Plain => at,
            Ecmp::Resilient => {
                self.replace(&nodes)?;
                now_us()
            }
        };
        history.push((at, nodes));
        Ok(())
    }

    /// Returns the nodes that the route daemon has a route through, in the order of its next hops.
    fn announced(&self) -> Result<Vec<usize>> {
        let asked = format!("route show {} proto {}\n", self.vip, self.protocol);
        let text = network::ask(&self.router, self.family, &asked)?;
        let mut words = text.split_ascii_whitespace();
        let mut nodes = Vec::new();
        while let Some(word) = words.next() {
            if word == "via" {
                let hop = words.next().unwrap_or_default();
                nodes.extend(self.nodes.iter().position(|node| node == hop));
            }
        }
        Ok(nodes)
    }

    /// Gives the group these members, and the VIP a route through it.
    fn replace(&self, nodes: &[usize]) -> Result<()> {
        if nodes.is_empty() {
            return self.router.ip(&format!("route del {} table {TABLE}\n", self.vip));
        }
        let members: Vec<String> = nodes.iter().map(|at| (HOPS + at).to_string()).collect();
        self.router.ip(&format!(
            "nexthop replace id {GROUP} group {} type resilient buckets {BUCKETS} idle_timer {IDLE_S} \
             unbalanced_timer 0\nroute replace {} nhid {GROUP} table {TABLE}\n",
            members.join("/"),
            self.vip
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_that_the_lab_did_not_ask_for_are_recognised() {
        let (all, without) = (vec![0, 1, 2], vec![0, 1]);
        // The second node flaps before the third leaves, and the order of next hops changes afterwards.
        let history = [vec![0, 2], all.clone(), without.clone(), vec![1, 0], vec![1, 0, 2]];
        let history = history.into_iter().enumerate().map(|(at, nodes)| (at as u64, nodes));
        let seen = changes(all.clone(), history, &[without, all]);
        let asked: Vec<bool> = seen.iter().map(|change| change.asked).collect();
        assert_eq!(asked, [false, false, true, false, true]);
        assert_eq!((&seen[0].from, seen[0].left().collect()), (&vec![0, 1, 2], vec![1]));
        assert_eq!(seen[1].joined().collect::<Vec<_>>(), [1]);
        assert_eq!((seen[3].left().count(), seen[3].joined().count()), (0, 0));
    }
}
