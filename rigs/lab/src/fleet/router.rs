//! The router: BIRD or FRR learns from the nodes by BGP which of them announce the VIP, and the kernel
//! spreads packets over them.
//!
//! With plain ECMP, it gives the kernel one route with a next hop for each node; when a node leaves, the
//! kernel divides the hash space anew, and connections of other nodes move as well. A resilient group of next
//! hops moves only those of the node that left. Neither BIRD nor FRR installs such a group, so the lab
//! follows their routes, replaces the group's members, and adds a route through the group to a table of its
//! own.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weir_netlink::{Groups, Monitor};

use super::clients::now_us;
use super::network::{FleetHost, FleetNetwork, LONG, VIP};
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

/// The nodes, from 0, to which the router sends packets, since when. The last is current.
type History = Arc<Mutex<Vec<(u64, Vec<usize>)>>>;

/// The running router.
pub struct Router {
    history: History,
    stop: Arc<AtomicBool>,
    follower: Option<JoinHandle<()>>,
    /// Why routes can no longer be followed.
    fault: Arc<Mutex<Option<String>>>,
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
            network.router.ip(&format!("{hops}rule add pref 100 lookup {TABLE}\n"))?;
        }
        let monitor = network.router.within(|| Monitor::open(Groups::ROUTING))?;
        let history = History::default();
        let stop = Arc::new(AtomicBool::new(false));
        let mut follower = Follower {
            monitor,
            router: Namespace::existing(network.router.name()),
            nodes: network.nodes.iter().map(|node| node.address.clone()).collect(),
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
        let router = Router { history, stop, follower: Some(follower), fault };
        daemon.start_at_router(run, network)?;
        Ok(router)
    }

    /// Returns the nodes to which it sends packets.
    pub fn nodes(&self) -> Vec<usize> {
        self.history().last().map(|(_, nodes)| nodes.clone()).unwrap_or_default()
    }

    /// Returns when its next hops changed first since `then`.
    pub fn changed_since(&self, then_us: u64) -> Option<u64> {
        self.history().iter().map(|(at, _)| *at).find(|at| *at >= then_us)
    }

    fn history(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Vec<usize>)>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it sends packets to exactly these nodes.
    pub fn wait_for(&self, nodes: &[usize], run: &Run, interrupt: &Interrupt) -> Result<()> {
        let is_so = || match self.fault.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            Some(fault) => bail!("the routes of the router can no longer be followed: {fault}"),
            None => Ok(self.nodes() == nodes),
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
        let mut lines = String::new();
        for port in ports.clone() {
            let _ =
                writeln!(lines, "route get {VIP} from {LONG} iif clients ipproto tcp sport {port} dport 80");
        }
        let text = network.router.ask_ip(&lines)?;
        let hops = text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(" via ")?;
            let address = rest.split(' ').next()?;
            network.nodes.iter().position(|node| node.address == address)
        });
        let owners: BTreeMap<u16, usize> = ports.clone().zip(hops).collect();
        if owners.len() != ports.len() {
            bail!("the router has no route to the VIP: {text}");
        }
        Ok(owners)
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

    /// Returns the nodes that the route daemon has a route through.
    fn announced(&self) -> Result<Vec<usize>> {
        let text = self.router.ask_ip(&format!("route show {VIP} proto {}\n", self.protocol))?;
        let mut words = text.split_ascii_whitespace();
        let mut nodes = Vec::new();
        while let Some(word) = words.next() {
            if word == "via" {
                let hop = words.next().unwrap_or_default();
                nodes.extend(self.nodes.iter().position(|node| node == hop));
            }
        }
        nodes.sort_unstable();
        Ok(nodes)
    }

    /// Gives the group these members, and the VIP a route through it.
    fn replace(&self, nodes: &[usize]) -> Result<()> {
        if nodes.is_empty() {
            return self.router.ip(&format!("route del {VIP}/32 table {TABLE}\n"));
        }
        let members: Vec<String> = nodes.iter().map(|at| (HOPS + at).to_string()).collect();
        self.router.ip(&format!(
            "nexthop replace id {GROUP} group {} type resilient buckets {BUCKETS} idle_timer {IDLE_S} \
             unbalanced_timer 0\nroute replace {VIP}/32 nhid {GROUP} table {TABLE}\n",
            members.join("/")
        ))
    }
}
