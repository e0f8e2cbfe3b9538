//! The routes that lead routers to announced services: VIPs in a kernel routing table that a route daemon,
//! such as BIRD or FRR, reads. This module decides on the routes from the apps' wishes (`decide.rs`), and is
//! the only owner of the table's routes and of the TUN device that they lead to (`table.rs`).
//!
//! When this process ends, however it ends, the kernel removes the device, and the routes with it. A process
//! that takes over gets the device's descriptor (`handed.rs`), and the routes stay. The host does not consult
//! the table, so it does not own the VIPs.
//!
//! A VIP is added only while all workers run the program that its service belongs to; it may be removed at
//! any time.

mod decide;
mod handed;
mod look;
mod table;
#[cfg(test)]
mod tests;

pub use handed::Handed;
pub use look::{RouteReader, foreign_routes, route_reader};

use super::doorbell::Doorbell;
use crate::config::RoutesConfig;
use decide::{Decision, decide};
use look::TableNews;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};
use table::{KernelTable, RouteTable};
use tracing::{info, warn};
use weir_app::priority;
use weir_app::route::{Prefix, RouteWish};
use weir_control::answer;
use weir_port::tun::RouteDevice;

/// How long to wait before retrying what the kernel has refused, and before re-examining a table that had
/// other programs' routes.
const AGAIN: Duration = Duration::from_secs(1);

/// How often to add routes again, in case other programs have removed them.
const RENEWAL: Duration = Duration::from_secs(10);

/// How often to observe a table in use.
const OBSERVATION: Duration = Duration::from_secs(30);

/// The reason while the node is drained.
const DRAINING: &str = "the node is draining";

/// The names of an app and of one of its services.
type ServiceKey = (String, String);

/// The addresses of a service, and whether they should be announced.
struct ServiceWish {
    prefixes: Arc<[Prefix]>,
    wish: RouteWish,
}

/// The routes of this node.
pub struct Routes {
    config: RoutesConfig,
    table: Box<dyn RouteTable>,
    examined: Examined,
    /// The last observation of the table, and the thread that is making the next one.
    seen: TableNews,
    observation: Option<Receiver<Result<TableNews, String>>>,
    observe_again: Option<Instant>,
    wishes: BTreeMap<ServiceKey, ServiceWish>,
    /// Services that have not repeated their wishes since their apps were replaced.
    stale: BTreeSet<ServiceKey>,
    vips: BTreeMap<Prefix, Vip>,
    /// Routes that should be gone, but that the kernel has refused to remove so far, with their metrics.
    leftover: BTreeSet<(Prefix, u32)>,
    /// Since when the node is draining, if it is.
    draining_ns: Option<u64>,
    is_due: bool,
    /// Whether additions wait until all workers have switched to the new program.
    is_waiting: bool,
    again: Option<Instant>,
    doorbell: Doorbell,
}

/// Whether the table has routes of other programs.
enum Examined {
    /// The table has not been examined.
    Not,
    /// A thread is listing the kernel's routes, which takes long if there are many.
    Now(Receiver<Result<TableNews, String>>),
    /// The table has no such routes.
    Free,
    /// The table cannot be used, for this reason.
    Taken(String),
}

/// A VIP and its route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Vip {
    /// The metric of its route, if there is one.
    metric: Option<u32>,
    /// Since when there has been a route, or none.
    since_ns: u64,
    /// Why there is no route, or why it has the higher metric.
    why: Option<String>,
}

impl Routes {
    /// Creates an instance without routes.
    pub fn new(config: &RoutesConfig, doorbell: Doorbell) -> Routes {
        Routes {
            config: config.clone(),
            table: Box::new(KernelTable::new(config)),
            examined: Examined::Not,
            seen: TableNews::default(),
            observation: None,
            observe_again: None,
            wishes: BTreeMap::new(),
            stale: BTreeSet::new(),
            vips: BTreeMap::new(),
            leftover: BTreeSet::new(),
            draining_ns: None,
            is_due: false,
            is_waiting: false,
            again: None,
            doorbell,
        }
    }

    /// Continues with the routes that another daemon has handed over.
    ///
    /// # Errors
    /// Fails if the device cannot be used; the routes then end with the other daemon.
    pub fn adopt(&mut self, handed: Handed, device: Option<OwnedFd>) -> std::io::Result<()> {
        self.draining_ns = handed.draining_ns;
        let Some(device) = device else { return Ok(()) };
        let mut table = KernelTable::new(&self.config);
        if table.adopt(RouteDevice::adopt(device)?, &handed) {
            // Its routes were not there before.
            self.examined = Examined::Free;
            let vip =
                |(prefix, metric, since_ns)| (prefix, Vip { metric: Some(metric), since_ns, why: None });
            self.vips = handed.routes.into_iter().map(vip).collect();
        }
        self.table = Box::new(table);
        self.is_due = true;
        Ok(())
    }

    /// Returns what a successor must know, with the descriptor that the routes depend on.
    pub fn hand_over(&self) -> (Handed, Option<BorrowedFd<'_>>) {
        let route = |(prefix, vip): (&Prefix, &Vip)| Some((*prefix, vip.metric?, vip.since_ns));
        let RoutesConfig { table, protocol, .. } = self.config;
        let routes = self.vips.iter().filter_map(route).collect();
        let handed = Handed { table, protocol, routes, draining_ns: self.draining_ns };
        (handed, self.table.descriptor())
    }

    /// Switches to the apps of another program, which repeat their wishes.
    pub fn begin(&mut self, config: &RoutesConfig) {
        self.config = config.clone();
        self.stale = self.wishes.keys().cloned().collect();
        self.is_due = true;
    }

    /// Forgets the wishes of services that the new program does not have.
    pub fn begun(&mut self) {
        let stale = std::mem::take(&mut self.stale);
        self.wishes.retain(|key, _| !stale.contains(key));
    }

    /// Records a service's wish.
    pub fn wish(&mut self, app: &str, service: String, prefixes: Arc<[Prefix]>, wish: RouteWish) {
        let key = (app.to_string(), service);
        self.stale.remove(&key);
        self.wishes.insert(key, ServiceWish { prefixes, wish });
        self.is_due = true;
    }

    /// Starts or stops draining the node. Returns whether that is a change.
    pub fn drain(&mut self, drains: bool, now_ns: u64) -> bool {
        let changed = drains != self.draining_ns.is_some();
        if changed {
            self.draining_ns = drains.then_some(now_ns);
            self.is_due = true;
            info!("{}", if drains { "the node is draining" } else { "the node is no longer draining" });
        }
        changed
    }

    /// Returns since when the node is draining, if it is.
    pub fn draining_ns(&self) -> Option<u64> {
        self.draining_ns
    }

    /// Returns when [`Routes::follow`] next has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        if self.is_due { Some(Instant::now()) } else { self.again }
    }

    /// Writes the wanted routes. Additions wait unless `may_add`.
    pub fn follow(&mut self, now_ns: u64, may_add: bool) {
        let is_again = self.again.is_some_and(|again| again <= Instant::now());
        self.observe();
        if !(self.has_examined() || self.is_due || is_again || self.is_waiting && may_add) {
            return;
        }
        (self.is_due, self.is_waiting) = (false, false);
        self.remove_leftovers();
        let mut decisions = self.decisions();
        // Routes that must end come first, whatever happens to the others.
        let gone = self.vips.keys().filter(|prefix| !decisions.contains_key(prefix)).copied();
        for prefix in gone.collect::<Vec<_>>() {
            self.withdraw(prefix, "no service has it any more", now_ns);
            self.vips.remove(&prefix);
        }
        decisions.retain(|prefix, decision| match decision {
            Decision::Withhold(why) => {
                self.withdraw(*prefix, why, now_ns);
                false
            }
            Decision::Announce(..) | Decision::Keep(_) => true,
        });
        let mut is_refused = false;
        let wants = |decision: &Decision| matches!(decision, Decision::Announce(..));
        let obstacle = decisions.values().any(wants).then(|| self.obstacle(may_add)).flatten();
        for (prefix, decision) in decisions {
            let vip = self.vips.entry(prefix).or_insert_with(|| Vip { since_ns: now_ns, ..Vip::default() });
            match (decision, vip.metric, &obstacle) {
                (Decision::Keep(_), Some(_), _) | (Decision::Withhold(_), ..) => {}
                (Decision::Keep(why), None, _) => vip.why = Some(why),
                (Decision::Announce(..), None, Some(why)) => vip.why = Some(why.clone()),
                (Decision::Announce(metric, why), _, _) => {
                    is_refused |= !self.announce(prefix, (metric, why), now_ns);
                }
            }
        }
        let is_any = self.announced() > 0;
        let is_taken = matches!(self.examined, Examined::Taken(_));
        let is_refused = is_refused || !self.leftover.is_empty();
        let pause = if is_refused || is_taken { Some(AGAIN) } else { is_any.then_some(RENEWAL) };
        self.again = pause.map(|pause| Instant::now() + pause);
        self.is_waiting = !may_add && obstacle.is_some();
    }

    /// Removes all routes, because the daemon is stopping.
    pub fn end(&mut self, now_ns: u64) {
        for prefix in self.vips.keys().copied().collect::<Vec<_>>() {
            self.withdraw(prefix, "weir stops", now_ns);
        }
        self.wishes.clear();
    }

    /// Returns how many VIPs are announced.
    pub fn announced(&self) -> usize {
        self.vips.values().filter(|vip| vip.metric.is_some()).count()
    }

    fn decisions(&self) -> BTreeMap<Prefix, Decision> {
        let mut services: BTreeMap<Prefix, Vec<(&str, &RouteWish)>> = BTreeMap::new();
        for ((_, service), ServiceWish { prefixes, wish }) in &self.wishes {
            for prefix in prefixes.iter() {
                services.entry(*prefix).or_default().push((service, wish));
            }
        }
        let decision = |wishes: Vec<(&str, &RouteWish)>| match self.draining_ns {
            Some(_) => Decision::Withhold(DRAINING.to_string()),
            None => decide(&self.config, wishes.into_iter()),
        };
        services.into_iter().map(|(prefix, wishes)| (prefix, decision(wishes))).collect()
    }

    /// Returns why no route can be added at the moment, and begins to examine the table if that is not known.
    fn obstacle(&mut self, may_add: bool) -> Option<String> {
        if !may_add {
            return Some("the workers are switching to a new program".to_string());
        }
        let table = self.config.table;
        match &self.examined {
            Examined::Free => None,
            Examined::Now(_) => Some(format!("table {table} is being examined")),
            Examined::Taken(_) | Examined::Not => {
                let before = match &self.examined {
                    Examined::Taken(why) => Some(why.clone()),
                    Examined::Not | Examined::Now(_) | Examined::Free => None,
                };
                // Whatever is there, this process did not write it.
                self.examined = match self.look(None) {
                    Ok(examined) => Examined::Now(examined),
                    Err(error) => Examined::Taken(format!("no thread can examine table {table}: {error}")),
                };
                before.or_else(|| Some(format!("table {table} is being examined")))
            }
        }
    }

    /// Starts a thread that observes the table.
    fn look(&self, own: Option<(u8, u32)>) -> std::io::Result<Receiver<Result<TableNews, String>>> {
        let (answer, seen) = sync_channel(1);
        let (doorbell, table) = (self.doorbell.clone(), self.config.table);
        let look = move || {
            priority::patient();
            let _ = answer.send(look::look(table, own));
            doorbell.ring();
        };
        std::thread::Builder::new().name("weir-routes".into()).spawn(look)?;
        Ok(seen)
    }

    /// Observes a table in use from time to time, because other programs may write to it later. Existing
    /// routes stay.
    fn observe(&mut self) {
        if let Some(observation) = self.observation.take() {
            match observation.try_recv() {
                Ok(Ok(seen)) => self.note(seen),
                Err(TryRecvError::Empty) => self.observation = Some(observation),
                // The next one may succeed.
                Ok(Err(_)) | Err(TryRecvError::Disconnected) => {}
            }
            return;
        }
        let now = Instant::now();
        let is_due = self.observe_again.is_none_or(|again| again <= now);
        let Some(own) = self.table.own().filter(|_| is_due && self.announced() > 0) else { return };
        self.observe_again = Some(now + OBSERVATION);
        self.observation = self.look(Some(own)).ok();
    }

    /// Logs what has changed since the table was last observed.
    fn note(&mut self, seen: TableNews) {
        let before = [&self.seen.foreign, &self.seen.reader];
        for (now, before) in [&seen.foreign, &seen.reader].into_iter().zip(before) {
            if let Some(sentence) = now.as_ref().filter(|_| now != before) {
                warn!("{sentence}");
            }
        }
        self.seen = seen;
    }

    /// Returns true if the thread that examines the table has ended.
    fn has_examined(&mut self) -> bool {
        let Examined::Now(examined) = &self.examined else { return false };
        self.examined = match examined.try_recv() {
            Ok(Ok(TableNews { foreign: Some(why), .. })) => Examined::Taken(why),
            Ok(Ok(seen)) => {
                self.note(seen);
                Examined::Free
            }
            Ok(Err(why)) => Examined::Taken(why),
            Err(TryRecvError::Disconnected) => Examined::Taken("the table cannot be examined".to_string()),
            Err(TryRecvError::Empty) => return false,
        };
        if let Examined::Taken(why) = &self.examined {
            warn!("no VIP is announced: {why}");
            for vip in self.vips.values_mut().filter(|vip| vip.metric.is_none()) {
                vip.why = Some(why.clone());
            }
            self.again = Some(Instant::now() + AGAIN);
            return false;
        }
        true
    }

    /// Writes a route. Returns whether it is there with this metric.
    fn announce(&mut self, prefix: Prefix, (metric, why): (u32, Option<String>), now_ns: u64) -> bool {
        let Some(vip) = self.vips.get_mut(&prefix) else { return false };
        let before = vip.metric;
        let is_new = before != Some(metric) && !self.leftover.contains(&(prefix, metric));
        if let Err(refusal) = self.table.add(prefix, metric, is_new) {
            if vip.why.as_ref() != Some(&refusal) {
                warn!("{prefix} cannot be announced with metric {metric}: {refusal}");
            }
            vip.why = Some(refusal);
            return false;
        }
        self.leftover.remove(&(prefix, metric));
        let because = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        match before {
            Some(old) if old == metric => {}
            Some(old) => {
                // The other route is there by now, so routers always have one.
                if let Err(error) = self.table.remove(prefix, old) {
                    warn!("{prefix}: {error}");
                    self.leftover.insert((prefix, old));
                }
                info!("{prefix} is announced with metric {metric}, before with {old}{because}");
            }
            None => {
                vip.since_ns = now_ns;
                info!("{prefix} is announced with metric {metric}{because}");
            }
        }
        (vip.metric, vip.why) = (Some(metric), why);
        true
    }

    /// Removes a VIP's route, if it has one, and notes the reason.
    fn withdraw(&mut self, prefix: Prefix, why: &str, now_ns: u64) {
        let vip = self.vips.entry(prefix).or_insert_with(|| Vip { since_ns: now_ns, ..Vip::default() });
        if let Some(metric) = vip.metric.take() {
            vip.since_ns = now_ns;
            match self.table.remove(prefix, metric) {
                Ok(()) => info!("{prefix} is no longer announced: {why}"),
                Err(error) => {
                    warn!("{prefix} should no longer be announced ({why}), but {error}");
                    self.leftover.insert((prefix, metric));
                }
            }
        }
        vip.why = Some(why.to_string());
    }

    /// Retries removing the routes that the kernel has kept, because routers still follow them.
    fn remove_leftovers(&mut self) {
        let Routes { leftover, table, .. } = self;
        leftover.retain(|(prefix, metric)| {
            let removed = table.remove(*prefix, *metric);
            if removed.is_ok() {
                info!("the route to {prefix} with metric {metric} is removed");
            }
            removed.is_err()
        });
    }

    /// Returns a row for each VIP.
    pub fn rows(&self, now_ns: u64) -> Vec<answer::Route> {
        let mut services: BTreeMap<Prefix, Vec<&str>> = BTreeMap::new();
        for ((_, service), ServiceWish { prefixes, .. }) in &self.wishes {
            prefixes.iter().for_each(|prefix| services.entry(*prefix).or_default().push(service));
        }
        let seen = self.seen.foreign.clone().or_else(|| self.seen.reader.clone());
        let row = |(prefix, vip): (&Prefix, &Vip)| answer::Route {
            vip: prefix.to_string(),
            announced: vip.metric.is_some(),
            metric: vip.metric,
            since_s: now_ns.saturating_sub(vip.since_ns) / 1_000_000_000,
            services: services.remove(prefix).unwrap_or_default().join(" "),
            why: vip.why.clone().or_else(|| vip.metric.and(seen.clone())),
        };
        self.vips.iter().map(row).collect()
    }
}
