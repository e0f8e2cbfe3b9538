//! The health of back ends: whether they are up, what an operator wants for them, and the resulting weights.
//! See README.md.
//!
//! [`monitor`] decides from the outcomes of checks whether a server is up, and [`weights`] decides the share
//! of every back end of a service: both are pure functions of events and time. The running app ([`app`])
//! requests checks when they are due and changes the weights of groups.

mod amend;
mod app;
mod board;
mod doubt;
mod monitor;
mod neighbours;
mod news;
mod passive;
mod requests;
mod routes;
mod rows;
mod series;
#[cfg(test)]
mod tests;
mod ways;
mod weights;
mod wishes;
mod yaml;

pub(super) use app::LbApp;
pub use board::{BackEndReport, HealthPublisher};
pub use doubt::BackEndPorts;
#[cfg(test)]
pub use doubt::SETTLE_NS;
pub use monitor::{Monitor, ServerState, Step, Times};
pub use passive::Passive;
pub use routes::{Routed, Serving, wish};
pub use weights::{Fail, Member, RAMP, Standing, weights};
pub(super) use yaml::{CHECK, FAIL, PASSIVE, is_rate_possible, read, value};

use super::neighbours::Neighbours;
use super::probes::{self, Probe};
use super::service::Service;
use super::state::Place;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use weir_app::check::Check;
use weir_program::Program;

/// The check of a server, and its interval. Back ends with equal checks share their outcome.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    /// The check itself.
    pub check: Arc<Check>,
    /// The intervals, and how many outcomes change the state.
    pub times: Times,
    /// Whether a server that fails the check keeps its flows and only gets no new ones.
    pub drains: bool,
}

/// A service, reduced to what its health depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// Its name.
    pub name: String,
    /// What it does when no back end is up.
    pub fail: Fail,
    /// Whether and when unanswered new flows count against a back end.
    pub passive: Option<Passive>,
    /// Whether weir announces its addresses, in whichever way, so that others rely on it.
    pub is_announced: bool,
    /// When the service's addresses are announced to routers, if they ever are.
    pub routed: Option<Arc<Routed>>,
    /// The back ends: name, configured weight, and the check if there is one.
    pub back_ends: Vec<(String, u32, Option<Watch>)>,
}

/// The factor that the weights of the service's group are multiplied by, so that they can rise in steps.
#[must_use]
pub fn scale(service: &Guarded) -> u32 {
    let ramps = |watch: &Option<Watch>| watch.as_ref().is_some_and(|watch| watch.times.slow_start_ns > 0);
    if service.back_ends.iter().any(|(.., watch)| ramps(watch)) { RAMP } else { 1 }
}

/// The health of a load balancer's services, as configured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// The services.
    pub services: Vec<Arc<Guarded>>,
    /// Where their status is published.
    pub board: HealthPublisher,
    /// Where their back ends are in the program.
    pub places: Arc<Vec<Arc<[Place]>>>,
    /// Back ends whose MAC addresses are resolved.
    pub neighbours: Neighbours,
    /// Back ends that are checked along the service's own path.
    pub probes: Arc<Vec<Probe>>,
    /// The ports through which back ends are reached.
    pub links: BackEndPorts,
}

impl Health {
    /// Locates the back ends in the program that was written.
    pub(super) fn find(&mut self, services: &[Service], program: &Program) {
        let names: Vec<&str> = self.services.iter().map(|service| service.name.as_str()).collect();
        self.places = Arc::new(Place::of_all(program, &names).into_iter().map(Into::into).collect());
        self.links = BackEndPorts::find(&names, services, program);
        self.probes = Arc::new(probes::find(services, &self.services, program));
    }

    /// Returns the names of services that reject packets for which they have no back end.
    pub(super) fn rejecting(&self) -> HashSet<&str> {
        let rejects = self.services.iter().filter(|service| service.fail == Fail::Reject);
        rejects.map(|service| service.name.as_str()).collect()
    }

    /// Returns the factors of the weights of services' groups.
    pub(super) fn scales(&self) -> Scales {
        let all = self.services.iter().map(|service| (service.name.clone(), scale(service)));
        Scales(all.filter(|(_, scale)| *scale > 1).collect())
    }
}

/// The factors of the weights of services' groups, where they are not 1.
pub(super) struct Scales(HashMap<String, u32>);

impl Scales {
    /// Returns all factors that are not 1, with the names of their services.
    pub fn all(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|(service, scale)| (service.as_str(), *scale))
    }

    /// Returns the factor of a service.
    pub fn of(&self, service: &str) -> u32 {
        self.0.get(service).copied().unwrap_or(1)
    }
}
