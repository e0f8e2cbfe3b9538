//! The links that apps watch: looked at every 2 ms, and only while an app watches one.

use crate::config::{Plan, PortKind};
use engine::program::PortId;
use port::xdp::{Carrier, LinkState};

/// How often links are looked at, in nanoseconds.
const PERIOD_NS: u64 = 2_000_000;

/// One that is watched.
struct Link {
    port: PortId,
    /// `None`: a port without carrier, always up.
    interface: Option<String>,
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
    /// The ports that each app watches, as they are at this moment.
    pub fn watch(plan: &Plan, watched: &[Vec<PortId>]) -> std::io::Result<Links> {
        let mut links = Links::default();
        for (app, ports) in watched.iter().enumerate() {
            for &port in ports {
                match links.links.iter_mut().find(|link| link.port == port) {
                    Some(link) => link.apps.push(app),
                    None => links.links.push(Link::new(plan, port, app)),
                }
            }
        }
        if links.links.iter().any(|link| link.interface.is_some()) {
            let carrier = Carrier::open()?;
            links.links.iter_mut().for_each(|link| link.look(&carrier));
            links.carrier = Some(carrier);
        }
        Ok(links)
    }

    /// The state of every link, for every app that watches it.
    pub fn all(&self) -> Vec<News> {
        self.links.iter().flat_map(Link::news).collect()
    }

    /// When to look again.
    pub fn wake_ns(&self) -> Option<u64> {
        self.carrier.as_ref().map(|_| self.next_ns)
    }

    /// Looks, if it is time; what has changed.
    pub fn look(&mut self, now_ns: u64) -> Vec<News> {
        let Some(carrier) = self.carrier.as_ref().filter(|_| self.next_ns <= now_ns) else { return Vec::new() };
        self.next_ns = now_ns + PERIOD_NS;
        let mut news = Vec::new();
        for link in &mut self.links {
            let Some(interface) = &link.interface else { continue };
            if carrier.is_up(interface) != link.state.up {
                link.look(carrier);
                news.extend(link.news());
            }
        }
        news
    }
}

impl Link {
    fn new(plan: &Plan, port: PortId, app: usize) -> Link {
        let interface = match plan.ports.get(port.index()).map(|port| &port.kind) {
            Some(PortKind::Xdp(xdp)) => Some(xdp.interface.clone()),
            _ => None,
        };
        Link { port, interface, apps: vec![app], state: LinkState { up: true, speed_bps: None } }
    }

    fn look(&mut self, carrier: &Carrier) {
        if let Some(interface) = &self.interface {
            self.state = carrier.state(interface);
        }
    }

    fn news(&self) -> Vec<News> {
        self.apps.iter().map(|&app| News { app, port: self.port, state: self.state }).collect()
    }
}
