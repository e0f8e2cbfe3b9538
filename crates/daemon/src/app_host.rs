//! The main thread's resources for running apps (their rings, sockets and links), and the changes that apps
//! make to a program before it starts.

pub use super::app_socket::AppSocket as Socket;
use super::app_socket::AppSocket;
use super::links::Links;
use super::neighbours::{self, Places, PortInterface};
use crate::config::{Plan, PortConfig};
use anyhow::Result;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use weir_app::neighbour::{Hop, Mac};
use weir_app::{RequestId, RunningApps};
use weir_engine::ring::{CarrierReceiver, CarrierSender, carriers};
use weir_engine::worker::Histogram;
use weir_program::{AppId, Program};

/// Capacity of the ring for an app's frames: two batches, plus slack for a stalled receiver.
const RING: usize = 1024;

/// The apps with their rings, sockets and links.
#[derive(Default)]
pub struct AppHost {
    pub running: RunningApps,
    pub rings: Vec<Ring>,
    pub former: Option<Former>,
    pub sockets: Vec<AppSocket>,
    pub links: Links,
    /// How late the timers of apps and the checks of the links were.
    pub late: Histogram,
    /// Requests whose answer a client is waiting for, with the answer once it has arrived.
    pub requests: HashMap<RequestId, Option<Result<Value, String>>>,
    pub next_request: u64,
}

impl AppHost {
    /// Returns the id of a request that a client waits for from now on.
    pub fn expect(&mut self) -> RequestId {
        let id = RequestId(self.next_request);
        self.next_request += 1;
        self.requests.insert(id, None);
        id
    }

    /// Records the answer to a request, unless the client no longer waits for it.
    pub fn answer(&mut self, id: RequestId, answer: Result<Value, String>) {
        if let Some(waiting) = self.requests.get_mut(&id) {
            *waiting = Some(answer);
        }
    }
}

/// Frames from one worker for one of the program's apps.
pub struct Ring {
    pub app: AppId,
    pub name: Arc<str>,
    pub receiver: CarrierReceiver,
}

/// Rings of the previous program, which workers fill until they have switched to the current one.
pub struct Former {
    pub rings: Vec<Ring>,
    /// The previous number of each port, if it had one.
    pub order: Vec<Option<usize>>,
}

/// A counter of apps.
pub struct Family {
    /// Its name, without `weir_app_`.
    pub name: &'static str,
    /// What it counts.
    pub help: &'static str,
    /// Its values, by app.
    pub counts: Vec<(String, u64)>,
}

/// A gauge of apps.
pub struct Gauges {
    /// Its name, without `weir_app_`.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// Its values, by app.
    pub values: Vec<(String, f64)>,
}

/// Creates a ring from every worker to every app. Returns the workers' ends, and ours.
pub fn rings(program: &Program, workers: usize) -> (Vec<Vec<CarrierSender>>, Vec<Ring>) {
    let (mut senders, mut rings) = (Vec::new(), Vec::new());
    for _ in 0..workers {
        let ring = |(at, name): (usize, &String)| {
            let (sender, receiver) = carriers(RING);
            (sender, Ring { app: AppId(at as u16), name: name.as_str().into(), receiver })
        };
        let (own, theirs): (Vec<_>, Vec<_>) = program.apps.iter().enumerate().map(ring).unzip();
        senders.push(own);
        rings.extend(theirs);
    }
    (senders, rings)
}

/// Returns the sockets that the apps of `plan` need: `None` in place of those in `old` that stay, and
/// otherwise a new socket. An error leaves the old ones in place.
pub fn sockets(plan: &Plan, old: &[AppSocket]) -> Result<Vec<Option<AppSocket>>> {
    let mut new = Vec::new();
    for app in plan.apps.running() {
        let Some(path) = app.socket() else { continue };
        let stays = old.iter().any(|socket| socket.is(app.name(), path));
        new.push(if stays { None } else { Some(AppSocket::bind(app.name(), path)?) });
    }
    Ok(new)
}

/// Returns the positions of ports that have an interface.
pub fn places(plan: &Plan) -> Places {
    let place = |port: &PortConfig| {
        let (index, name) = (port.nic.as_ref().map_or(0, |nic| nic.index), port.interface_name()?);
        Some((port.name.clone(), PortInterface { index, name: name.to_string() }))
    };
    plan.ports.iter().filter_map(place).collect()
}

/// Writes neighbours into a plan's program before it starts: those that the kernel knows, and for the others
/// the address that was `known` before.
pub fn settle(plan: &mut Plan, mut known: HashMap<Hop, Mac>) {
    known.extend(neighbours::known(places(plan), plan.apps.hops()));
    plan.apps.settle(&known, &mut plan.program);
}

/// Starts with the weights that apps want: a back end that is down gets nothing from the new program either.
/// The apps recompute them when they start.
pub fn weigh(weights: &[(String, String, u32)], program: &mut Program) {
    let mut wanted: BTreeMap<&str, BTreeMap<&str, u32>> = BTreeMap::new();
    for (group, target, weight) in weights {
        wanted.entry(group).or_default().insert(target, *weight);
    }
    for group in &mut program.groups {
        let Some(weights) = wanted.get(group.name.as_str()) else { continue };
        for target in Arc::make_mut(&mut group.targets) {
            if let Some(weight) = weights.get(target.name.as_str()) {
                target.weight = *weight;
            }
        }
    }
}
