//! The links that apps watch: checked every 2 ms while frames are passing and every 20 ms otherwise, and only
//! while an app watches one that can change. An idle daemon thus costs little, and where nothing is lost, a
//! link failure need not be detected at once. Interfaces are checked with the kernel's ethtool ioctl, DPDK
//! ports with their driver; recordings and memory ports are always up.

use super::dpdk::DpdkLink;
use crate::config::{Plan, PortConfig};
use weir_port::LinkState;
use weir_port::xdp::Carrier;
use weir_program::PortId;

/// Interval of checks while frames are passing, in nanoseconds.
const PERIOD_NS: u64 = 2_000_000;

/// Interval of checks otherwise, and of measuring whether frames are passing.
const IDLE_PERIOD_NS: u64 = 20_000_000;

/// Frames per [`IDLE_PERIOD_NS`] from which frames count as passing: 400 per second.
const FRAMES_PASSING: u64 = 8;

/// Whether frames are passing.
#[derive(Default)]
struct LinkActivity {
    since_ns: u64,
    frames: u64,
    is_busy: bool,
}

impl LinkActivity {
    /// Updates the pace from the number of frames so far. Returns the interval to the next check of links.
    fn period_ns(&mut self, frames: u64, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.since_ns) >= IDLE_PERIOD_NS {
            self.is_busy = frames.saturating_sub(self.frames) >= FRAMES_PASSING;
            (self.since_ns, self.frames) = (now_ns, frames);
        }
        if self.is_busy { PERIOD_NS } else { IDLE_PERIOD_NS }
    }
}

/// Where the state of a link comes from.
enum LinkSource {
    /// No source: the port has no carrier, and is always up.
    None,
    /// The kernel, by the interface's current name; `None` while it cannot be used.
    Interface(Option<String>),
    /// A DPDK driver.
    Dpdk(DpdkLink),
}

/// A watched link.
struct WatchedLink {
    port: PortId,
    source: LinkSource,
    /// Indices of the running apps that watch it.
    apps: Vec<usize>,
    state: LinkState,
}

/// The links of all ports whose carrier an app wants to know.
#[derive(Default)]
pub struct Links {
    links: Vec<WatchedLink>,
    carrier: Option<Carrier>,
    pace: LinkActivity,
    next_ns: u64,
}

/// A change of a link to report to an app.
pub struct LinkChange {
    /// Index of the app.
    pub app: usize,
    /// The port whose link has changed.
    pub port: PortId,
    /// The state of the link from now on.
    pub state: LinkState,
}

impl Links {
    /// Watches the ports that each app requests, starting from their current state. `dpdk` has the links of
    /// DPDK ports, by position in the plan.
    pub fn watch(plan: &Plan, dpdk: &[Option<DpdkLink>], watched: &[Vec<PortId>]) -> std::io::Result<Links> {
        let mut links = Links::default();
        for (app, ports) in watched.iter().enumerate() {
            for &port in ports {
                match links.links.iter_mut().find(|link| link.port == port) {
                    Some(link) => link.apps.push(app),
                    None => links.links.push(WatchedLink::new(plan, dpdk, port, app)),
                }
            }
        }
        if links.links.iter().any(|link| matches!(link.source, LinkSource::Interface(_))) {
            links.carrier = Some(Carrier::open()?);
        }
        for link in &mut links.links {
            link.state = link.source.look(links.carrier.as_ref(), None);
        }
        Ok(links)
    }

    /// Records the current name of a port's interface, or that it cannot be used.
    pub fn set_interface(&mut self, port: PortId, name: Option<String>) {
        if let Some(link) = self.links.iter_mut().find(|link| link.port == port) {
            link.source = LinkSource::Interface(name);
        }
    }

    /// Returns the state of every link, for every app that watches it.
    pub fn all(&self) -> Vec<LinkChange> {
        self.links.iter().flat_map(WatchedLink::news).collect()
    }

    /// Returns when to check again.
    pub fn wake_ns(&self) -> Option<u64> {
        let changes = self.links.iter().any(|link| !matches!(link.source, LinkSource::None));
        changes.then_some(self.next_ns)
    }

    /// Checks the links if a check is due. `frames` is how many frames the workers have handled so far.
    /// Returns what has changed.
    pub fn look(&mut self, now_ns: u64, frames: u64) -> Vec<LinkChange> {
        if self.wake_ns().is_none_or(|wake_ns| wake_ns > now_ns) {
            return Vec::new();
        }
        self.next_ns = now_ns + self.pace.period_ns(frames, now_ns);
        let mut news = Vec::new();
        for link in &mut self.links {
            let state = link.source.look(self.carrier.as_ref(), Some(link.state));
            if state != link.state {
                link.state = state;
                news.extend(link.news());
            }
        }
        news
    }
}

impl LinkSource {
    /// Returns the current state. With the previous state, the speed of an interface, which takes longer to
    /// query, is queried only after the interface has gone down or up.
    fn look(&self, carrier: Option<&Carrier>, before: Option<LinkState>) -> LinkState {
        match (self, carrier) {
            (LinkSource::Interface(None), _) => LinkState::default(),
            (LinkSource::Interface(Some(interface)), Some(carrier)) => {
                let same = before.filter(|before| before.up == carrier.is_up(interface));
                same.unwrap_or_else(|| carrier.state(interface))
            }
            (LinkSource::Dpdk(link), _) => link.state(),
            (LinkSource::None | LinkSource::Interface(Some(_)), _) => LinkState { up: true, speed_bps: None },
        }
    }
}

impl WatchedLink {
    fn new(plan: &Plan, dpdk: &[Option<DpdkLink>], port: PortId, app: usize) -> WatchedLink {
        let interface = plan.ports.get(port.index()).and_then(PortConfig::interface_name);
        let source = match interface {
            Some(name) => LinkSource::Interface(Some(name.to_string())),
            None => dpdk.get(port.index()).cloned().flatten().map_or(LinkSource::None, LinkSource::Dpdk),
        };
        WatchedLink { port, source, apps: vec![app], state: LinkState::default() }
    }

    fn news(&self) -> Vec<LinkChange> {
        self.apps.iter().map(|&app| LinkChange { app, port: self.port, state: self.state }).collect()
    }
}
