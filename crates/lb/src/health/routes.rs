//! Which services' addresses should be announced to routers: a plain function of the standings of back ends
//! and of the ports. The daemon writes the routes.

use super::app::{LbApp, Row};
use super::weights::Standing;
use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;
use weir_app::Action;
use weir_app::route::{Prefix, RouteWish};
use weir_program::PortId;

/// When the addresses of a service are announced, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routed {
    /// Its addresses.
    pub prefixes: Arc<[Prefix]>,
    /// The ports on which its packets arrive.
    pub ports: Vec<PortId>,
    /// How many back ends must serve. With 0, checks do not matter.
    pub min_up: u32,
    /// With fewer than this number of serving back ends, other nodes are preferred.
    pub degraded_below: u32,
}

/// How many back ends of a service get packets because they work, by what is known of them. Those with weight
/// 0 do not count, and neither do those that an operator has taken out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Serving {
    /// Back ends that serve.
    pub up: u32,
    /// Back ends of which no check has ended yet.
    pub unknown: u32,
    /// All back ends of the service.
    pub of: u32,
}

impl Serving {
    /// Counts back ends: their standings and weights. Suspects serve if no other back end does, because they
    /// then get packets.
    pub fn of(back_ends: impl Iterator<Item = (Standing, u32)>) -> Serving {
        let (mut serving, mut suspects) = (Serving::default(), 0);
        for (standing, weight) in back_ends {
            serving.of += 1;
            let counts = u32::from(weight > 0);
            match standing {
                Standing::Up | Standing::Unchecked => serving.up += counts,
                Standing::Unknown => serving.unknown += counts,
                Standing::Suspect => suspects += counts,
                Standing::Down
                | Standing::Withdrawn
                | Standing::NoNeighbour
                | Standing::Draining
                | Standing::Maintenance => {}
            }
        }
        if serving.up == 0 && serving.unknown == 0 {
            serving.up = suspects;
        }
        serving
    }

    /// Returns a sentence that says that no back end of the service serves; `None` if one does.
    pub fn complaint(self) -> Option<String> {
        match self {
            Serving { up: 0, unknown: 0, of } => Some(format!("none of its {of} back ends serves")),
            Serving { up: 0, unknown, .. } => Some(format!("{unknown} back ends have not been checked yet")),
            _ => None,
        }
    }
}

/// Returns whether a service should be announced, given whether any of its ports can receive packets.
pub fn wish(routed: &Routed, serving: Serving, is_attached: bool) -> RouteWish {
    let Serving { up, unknown, of } = serving;
    let announced = RouteWish::Announce { degraded: up < routed.degraded_below };
    if !is_attached {
        return RouteWish::Withhold("none of its ports has a link".to_string());
    }
    if routed.min_up == 0 {
        return announced;
    }
    if up + unknown < routed.min_up {
        let needs = routed.min_up;
        return RouteWish::Withhold(format!("{up} of {of} back ends serve, and `min_up` is {needs}"));
    }
    if unknown > 0 {
        return RouteWish::Keep(format!("{unknown} of {of} back ends have not been checked yet"));
    }
    announced
}

impl LbApp {
    /// Lets the sources continue, which depend on which back ends serve.
    pub(super) fn tick_sources(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let mut sources = std::mem::take(&mut self.sources);
        sources.tick(now_ns, &self.who_serves(), actions);
        self.sources = sources;
    }

    /// Returns a function that says whether a back end serves, given the names of its service and the back
    /// end. A back end that is not known yet counts as serving.
    fn who_serves(&self) -> impl Fn(&str, &str) -> bool {
        let places: OnceCell<HashMap<&str, usize>> = OnceCell::new();
        move |service, back_end| {
            let all = || self.services.iter().enumerate().map(|(at, one)| (one.name.as_str(), at)).collect();
            let service = places.get_or_init(all).get(service).map(|at| &self.services[*at]);
            let row = service.and_then(|service| service.rows.iter().find(|row| row.name == back_end));
            row.is_none_or(|row| match self.standing(row).0 {
                Standing::Unchecked | Standing::Unknown | Standing::Up | Standing::Suspect => true,
                Standing::Down
                | Standing::Withdrawn
                | Standing::NoNeighbour
                | Standing::Draining
                | Standing::Maintenance => false,
            })
        }
    }

    /// Returns how many back ends of a service serve.
    fn serving(&self, at: usize) -> Serving {
        let standing = |row: &Row| (self.standing(row).0, row.full);
        Serving::of(self.services[at].rows.iter().map(standing))
    }

    /// Requests that a service is announced, or that this stops, if that has changed.
    pub(super) fn announce(&mut self, at: usize, actions: &mut Vec<Action>) {
        let Some(routed) = self.health.services[at].routed.clone() else { return };
        let is_attached = routed.ports.iter().any(|port| self.attached.contains(port));
        let wish = wish(&routed, self.serving(at), is_attached);
        let service = &mut self.services[at];
        if service.wish.as_ref() != Some(&wish) {
            service.wish = Some(wish.clone());
            let (service, prefixes) = (service.name.clone(), routed.prefixes.clone());
            actions.push(Action::Announce { service, prefixes, wish });
        }
    }

    /// Records whether a port can receive packets.
    pub(super) fn attach(&mut self, port: PortId, up: bool, actions: &mut Vec<Action>) {
        let changed = if up { self.attached.insert(port) } else { self.attached.remove(&port) };
        if changed {
            (0..self.services.len()).for_each(|at| self.announce(at, actions));
        }
    }

    /// Returns the ports on which packets of announced services arrive.
    pub(super) fn arrivals(&self) -> impl Iterator<Item = PortId> {
        let routed = self.health.services.iter().filter_map(|service| service.routed.as_ref());
        routed.flat_map(|routed| routed.ports.iter().copied())
    }

    /// Returns a sentence about each service that is announced in some way while none of its back ends
    /// serves.
    pub(super) fn unserved(&self) -> Vec<String> {
        let announced = |(_, service): &(usize, &Arc<super::Guarded>)| service.is_announced;
        let all = self.health.services.iter().enumerate().filter(announced);
        let complaint = |(at, service): (usize, &Arc<super::Guarded>)| {
            let complaint = self.serving(at).complaint()?;
            Some(format!("service {}: {complaint}", service.name))
        };
        all.filter_map(complaint).collect()
    }
}
