//! The links that apps watch: looked at every 2 ms, and only while an app watches one that can change. An interface is
//! asked by the kernel's ethtool ioctl, a DPDK port by its driver; recordings and memory are always up.

use super::dpdk::DpdkLink;
use crate::config::{Plan, PortKind};
use engine::program::PortId;
use port::LinkState;
use port::xdp::Carrier;

/// How often links are looked at, in nanoseconds.
const PERIOD_NS: u64 = 2_000_000;

/// Where a link's state is known.
enum Source {
    /// Nowhere: a port without carrier, always up.
    None,
    /// In the kernel, by the interface's name.
    Interface(String),
    /// In a DPDK driver.
    Dpdk(DpdkLink),
}

/// One that is watched.
struct Link {
    port: PortId,
    source: Source,
    /// By the numbers of the running apps.
    apps: Vec<usize>,
    state: LinkState,
}

/// All that are watched.
#[derive(Default)]
pub struct Links {
    links: Vec<Link>,
    carrier: Option<Carrier>,
    next_ns: u64,
}

/// An app to be told of a link.
pub struct News {
    /// Which app.
    pub app: usize,
    /// Which link.
    pub port: PortId,
    /// How it is.
    pub state: LinkState,
}

impl Links {
    /// The ports that each app watches, as they are at this moment. `dpdk` are the links of DPDK ports, by the port's
    /// place in the plan.
    pub fn watch(plan: &Plan, dpdk: &[Option<DpdkLink>], watched: &[Vec<PortId>]) -> std::io::Result<Links> {
        let mut links = Links::default();
        for (app, ports) in watched.iter().enumerate() {
            for &port in ports {
                match links.links.iter_mut().find(|link| link.port == port) {
                    Some(link) => link.apps.push(app),
                    None => links.links.push(Link::new(plan, dpdk, port, app)),
                }
            }
        }
        if links.links.iter().any(|link| matches!(link.source, Source::Interface(_))) {
            links.carrier = Some(Carrier::open()?);
        }
        for link in &mut links.links {
            link.state = link.source.look(links.carrier.as_ref(), None);
        }
        Ok(links)
    }

    /// The state of every link, for every app that watches it.
    pub fn all(&self) -> Vec<News> {
        self.links.iter().flat_map(Link::news).collect()
    }

    /// When to look again.
    pub fn wake_ns(&self) -> Option<u64> {
        let changes = self.links.iter().any(|link| !matches!(link.source, Source::None));
        changes.then_some(self.next_ns)
    }

    /// Looks, if it is time; what has changed.
    pub fn look(&mut self, now_ns: u64) -> Vec<News> {
        if self.wake_ns().is_none_or(|wake_ns| wake_ns > now_ns) {
            return Vec::new();
        }
        self.next_ns = now_ns + PERIOD_NS;
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

impl Source {
    /// How it is now. What was known `before` spares an interface the question for its speed, which takes longer, as long
    /// as it has not gone down or come up.
    fn look(&self, carrier: Option<&Carrier>, before: Option<LinkState>) -> LinkState {
        match (self, carrier) {
            (Source::Interface(interface), Some(carrier)) => {
                let same = before.filter(|before| before.up == carrier.is_up(interface));
                same.unwrap_or_else(|| carrier.state(interface))
            }
            (Source::Dpdk(link), _) => link.state(),
            (Source::None | Source::Interface(_), _) => LinkState { up: true, speed_bps: None },
        }
    }
}

impl Link {
    fn new(plan: &Plan, dpdk: &[Option<DpdkLink>], port: PortId, app: usize) -> Link {
        let source = match plan.ports.get(port.index()).map(|port| &port.kind) {
            Some(PortKind::Xdp(xdp)) => Source::Interface(xdp.interface.clone()),
            _ => dpdk.get(port.index()).cloned().flatten().map_or(Source::None, Source::Dpdk),
        };
        Link { port, source, apps: vec![app], state: LinkState::default() }
    }

    fn news(&self) -> Vec<News> {
        self.apps.iter().map(|&app| News { app, port: self.port, state: self.state }).collect()
    }
}
