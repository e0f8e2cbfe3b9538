//! Decides when back ends that seem to be lost keep their flows. If weir's own link is down, no back end can
//! answer; if a service has no other back end left, none can take over the flows. In both cases, ending the
//! flows would only break connections that may survive.

use super::app::LbApp;
use super::{Guarded, Times, Watch};
use crate::service::Service;
use std::collections::HashMap;
use std::sync::Arc;
use weir_app::{Action, Level};
use weir_program::{PortId, Program};

/// How long losses are still ignored after the link or the first back end is back. A switch with classic
/// spanning tree forwards nothing at a port for twice its forward delay of 15 s (IEEE 802.1D), and the kernel
/// then takes 3 s to look for a neighbour, every 6 s.
pub const SETTLE_NS: u64 = 40_000_000_000;

/// How long to wait before acting on a loss: links are polled every 20 ms, and a loss of the link must be
/// detected first. Neighbours that are found or lost within this time also cause a single change of weights:
/// thousands may appear when a network comes up, and each change fills buckets.
pub const TOGETHER_NS: u64 = 30_000_000;

/// The ports through which back ends are reached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BackEndPorts {
    /// All ports, with their names.
    pub ports: Arc<[(PortId, String)]>,
    /// For each service, in the order of `Health`: the positions of its ports in that list.
    pub of_services: Arc<[Vec<usize>]>,
}

impl BackEndPorts {
    /// Finds the ports of services, in the order of `names`.
    pub fn find<'a>(names: &[&str], services: &'a [Service], program: &Program) -> BackEndPorts {
        let by_name: HashMap<&str, &'a Service> =
            services.iter().map(|service| (service.name.as_str(), service)).collect();
        let mut ports: Vec<(PortId, String)> = Vec::new();
        let mut place = |port: PortId| {
            ports.iter().position(|(one, _)| *one == port).unwrap_or_else(|| {
                let name = program.ports.get(port.index()).map(|port| port.name.clone());
                ports.push((port, name.unwrap_or_default()));
                ports.len() - 1
            })
        };
        let of = |name: &&str| {
            let ports = by_name.get(name).map(|service| service.back_ports());
            ports.into_iter().flatten().map(&mut place).collect()
        };
        let of_services = names.iter().map(of).collect();
        BackEndPorts { ports: ports.into(), of_services }
    }
}

/// Until when losses do not end a service's flows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Doubt {
    until_ns: u64,
}

impl Doubt {
    /// Records whether there is a reason for doubt now. The doubt outlasts its reason for a while.
    pub fn note(&mut self, reason: bool, now_ns: u64, settle_ns: u64) {
        if reason {
            self.until_ns = u64::MAX;
        } else if self.until_ns == u64::MAX {
            self.until_ns = now_ns.saturating_add(settle_ns).min(u64::MAX - 1);
        }
    }

    /// Returns whether losses currently leave flows alone.
    pub fn holds(self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Returns when it ends, if that is known.
    pub fn ends_ns(self, now_ns: u64) -> Option<u64> {
        (self.holds(now_ns) && self.until_ns != u64::MAX).then_some(self.until_ns)
    }
}

/// Returns how long a service's losses leave flows alone after the reason for doubt is gone, including the
/// time that its checks need to determine which back ends are up.
pub fn settle_ns(service: &Guarded) -> u64 {
    let heard = |watch: &Watch| {
        let Times { interval_ns, jitter, rise, .. } = watch.times;
        let longest = u128::from(interval_ns) * u128::from(1000 + jitter) / 1000 * (u128::from(rise) + 1);
        u64::try_from(longest).unwrap_or(u64::MAX).saturating_add(watch.check.timeout_ns)
    };
    let watches = service.back_ends.iter().filter_map(|(.., watch)| watch.as_ref());
    watches.map(heard).max().unwrap_or(0).max(SETTLE_NS)
}

impl LbApp {
    /// Whether none of the ports through which a service's back ends are reached has carrier.
    pub(super) fn is_dark(&self, at: usize) -> bool {
        let ports = self.health.links.of_services.get(at);
        ports.is_some_and(|ports| !ports.is_empty() && ports.iter().all(|port| self.dark.contains(port)))
    }

    /// A port has gained or lost carrier. Services whose back ends cannot be lost are unaffected.
    pub(super) fn link(&mut self, port: PortId, up: bool, now_ns: u64, actions: &mut Vec<Action>) {
        let links = self.health.links.clone();
        let Some(port) = links.ports.iter().position(|(one, _)| *one == port) else { return };
        let changed = if up { self.dark.remove(&port) } else { self.dark.insert(port) };
        if !changed {
            return;
        }
        let mut any = false;
        for (at, ports) in links.of_services.iter().enumerate() {
            let can_lose = self.services[at].rows.iter().any(|row| row.hop.is_some() || row.server.is_some());
            if can_lose && ports.contains(&port) {
                any = true;
                self.evaluate(at, now_ns, actions);
            }
        }
        let name = &links.ports[port].1;
        let text = match up {
            false => format!("port {name} lost its link: flows to the back ends behind it are kept"),
            true => format!(
                "the link of port {name} is up again: back ends that are still down keep their flows for \
                 {} s",
                SETTLE_NS / 1_000_000_000
            ),
        };
        actions.extend(any.then_some(Action::Say(if up { Level::Info } else { Level::Warning }, text)));
    }
}
