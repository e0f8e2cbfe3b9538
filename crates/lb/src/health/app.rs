//! The running app: requests the checks that are due, receives their outcomes, and changes the weights of
//! groups.

use super::doubt::{Doubt, TOGETHER_NS};
use super::monitor::{Monitor, ServerState as Seen, Step};
use super::neighbours::Neighbour;
use super::news::News;
use super::passive::{Passive, Suspicion, Watched};
use super::requests::Pending;
use super::weights::{Fail, Member, RAMP, Standing, weights};
use super::{BackEndReport, Health, Watch};
use crate::answers::{Answers, Punted};
use crate::probes::{self, CHECKED};
use crate::sources::SourceFollower;
use crate::specs::Specs;
use crate::{Answered, Lb, NAME, Place, Probe};
use serde_json::{Value, json};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use weir_app::check::{CheckId, Outcome};
use weir_app::kind::Apps;
use weir_app::neighbour::{Found, Hop};
use weir_app::route::RouteWish;
use weir_app::{Action, App, Event, Level, MetricHelp, RequestId, Sample};
use weir_packet::random::Random;
use weir_program::change::Change;
use weir_program::{GroupId, PortId, Program};

/// An operator's wish for a back end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wish {
    /// Normal operation.
    #[default]
    Work,
    /// No new flows.
    Drain,
    /// No traffic, and no checks.
    Maintain,
}

/// A back end of a service.
pub(super) struct Row {
    pub name: String,
    /// Its weight when nothing is wrong, in the group's scale.
    pub full: u32,
    /// The weight that is configured.
    pub configured: u32,
    /// Its place in the group, and its current weight there, if known.
    pub target: Option<u16>,
    pub set: Option<u32>,
    /// Where its entries are, and whether they exist: without entries, it keeps no flows.
    pub place: Option<Place>,
    pub kept: bool,
    /// The index of its neighbour, if its MAC address is resolved.
    pub hop: Option<usize>,
    /// The index of its server, if it is checked, and of its probe, if the check takes the service's own
    /// path.
    pub server: Option<usize>,
    pub probe: Option<usize>,
    pub wish: Wish,
    pub wished_ns: u64,
    /// Why the back end gets no new flows, if it has left new flows unanswered.
    pub suspicion: Option<Suspicion>,
}

/// A service.
pub(super) struct Service {
    pub name: String,
    pub fail: Fail,
    pub scale: u32,
    pub group: Option<GroupId>,
    pub rows: Vec<Row>,
    /// When it is evaluated next, because the weight of one of its back ends rises, or because neighbours
    /// were found or lost.
    pub due_ns: Option<u64>,
    /// Whether no back end is up.
    pub failing: bool,
    /// Until when losses do not end flows.
    pub doubt: Doubt,
    /// How long the doubt lasts after its reason is gone.
    pub settle_ns: u64,
    /// The servers of its back ends before these were replaced.
    pub former_servers: Vec<usize>,
    /// What the app last requested for the service's announcement.
    pub wish: Option<RouteWish>,
    /// Its passive checks, and their observations.
    pub passive: Option<Passive>,
    pub watched: Watched,
}

/// A server that is checked.
pub(super) struct MonitoredServer {
    pub watch: Arc<Watch>,
    pub monitor: Monitor,
    /// The check in flight.
    pub asked: Option<CheckId>,
    /// The back ends on this server, each as its service and its place in that; empty if all were removed.
    pub users: Vec<(usize, usize)>,
    /// When its next action is due; `None` while all its users are in maintenance.
    pub due_ns: Option<u64>,
}

/// Scheduled work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    Server(usize),
    Service(usize),
    /// Read the flows of a service's targets.
    Passive(usize),
}

/// The load balancer as an app.
pub(crate) struct LbApp {
    pub(super) health: Health,
    pub(super) services: Vec<Service>,
    pub(super) neighbours: Vec<Neighbour>,
    /// The state of neighbours that a predecessor has left.
    pub(super) former: HashMap<Hop, Found>,
    pub(super) servers: Vec<MonitoredServer>,
    /// Back ends that are checked along the service's own path, and an index of them by service and name.
    pub(super) probes: Vec<Probe>,
    pub(super) probed: HashMap<String, HashMap<String, usize>>,
    /// The places of servers, by their checks; and the places of those that no back end uses any more.
    pub(super) places: HashMap<Arc<Watch>, usize>,
    pub(super) spare: Vec<usize>,
    /// The state of servers that the predecessor has left.
    known: HashMap<Arc<Watch>, (Monitor, Option<CheckId>)>,
    pub(super) asked: BTreeMap<CheckId, usize>,
    pub(super) timers: BTreeSet<(u64, Timer)>,
    next_id: u64,
    pub(super) random: Random,
    /// Requests that wait for another configuration.
    pub(super) pending: HashMap<RequestId, Pending>,
    /// Answers frames that are forwarded to the app.
    answers: Answers,
    /// The ports without carrier, as positions in the list of ports through which back ends are reached.
    pub(super) dark: HashSet<usize>,
    /// The ports of announced services that have carrier.
    pub(super) attached: HashSet<PortId>,
    /// The sources of services.
    pub(super) sources: SourceFollower,
    /// Messages about weights that are no longer in effect.
    pub(super) forgotten: Vec<String>,
    /// The services as they are configured, and the events about them for clients that watch.
    pub(super) news: News,
    /// Services whose back ends have been replaced, and that have yet to be evaluated.
    pub(super) amended: Vec<usize>,
    /// The actions that must follow for neighbours and their entries.
    pub(super) outdated: Vec<Action>,
}

impl LbApp {
    /// Creates the app for these services.
    pub fn new(health: Health) -> LbApp {
        LbApp {
            services: health.services.iter().map(|one| Service::new(one)).collect(),
            health,
            neighbours: Vec::new(),
            former: HashMap::new(),
            servers: Vec::new(),
            probes: Vec::new(),
            probed: HashMap::new(),
            places: HashMap::new(),
            spare: Vec::new(),
            known: HashMap::new(),
            asked: BTreeMap::new(),
            timers: BTreeSet::new(),
            next_id: 0,
            random: Random::new(0),
            pending: HashMap::new(),
            answers: Answers::new(&Arc::default()),
            dark: HashSet::new(),
            attached: HashSet::new(),
            sources: SourceFollower::default(),
            forgotten: Vec::new(),
            news: News::default(),
            amended: Vec::new(),
            outdated: Vec::new(),
        }
    }

    /// Also informs watching clients of changes of these services.
    pub fn telling(self, specs: &Arc<Specs>) -> LbApp {
        LbApp { news: News::of(specs), ..self }
    }

    /// Also answers on behalf of the services.
    pub fn answering(self, answered: &Arc<Answered>) -> LbApp {
        LbApp { answers: Answers::new(answered), ..self }
    }

    /// Also follows sources of services.
    pub fn following(self, sources: SourceFollower) -> LbApp {
        LbApp { sources, ..self }
    }

    /// Returns the board that it writes to.
    #[cfg(test)]
    pub fn board(&self) -> super::HealthPublisher {
        self.health.board.clone()
    }

    fn start(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        let mut places: HashMap<Arc<Watch>, usize> = HashMap::new();
        self.spare.clear();
        for (at, service) in self.health.services.iter().enumerate() {
            for (place, (.., watch)) in service.back_ends.iter().enumerate() {
                let Some(watch) = watch.clone().map(Arc::new) else { continue };
                let server = *places.entry(watch.clone()).or_insert(self.servers.len());
                if server == self.servers.len() {
                    let known = self.known.remove(&watch);
                    let (monitor, asked) =
                        known.unwrap_or_else(|| (Monitor::new(watch.times, now_ns, &mut self.random), None));
                    self.asked.extend(asked.map(|id| (id, server)));
                    self.servers.push(MonitoredServer {
                        watch,
                        monitor,
                        asked,
                        users: Vec::new(),
                        due_ns: None,
                    });
                }
                self.servers[server].users.push((at, place));
                self.services[at].rows[place].server = Some(server);
            }
        }
        self.places = places;
        self.known.clear();
        self.news.start();
        actions.extend(self.forgotten.drain(..).map(|text| Action::Say(Level::Warning, text)));
        self.begin_probes();
        self.begin_passive(now_ns);
        self.begin_neighbours(actions);
        (0..self.servers.len()).for_each(|server| self.set_timer(server));
        (0..self.services.len()).for_each(|service| self.evaluate(service, now_ns, actions));
    }

    fn tick(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        while let Some(&(due_ns, timer)) = self.timers.first()
            && due_ns <= now_ns
        {
            self.timers.pop_first();
            match timer {
                Timer::Service(service) => {
                    self.services[service].due_ns = None;
                    self.evaluate(service, now_ns, actions);
                }
                Timer::Passive(service) => self.read_flows(service, now_ns, actions),
                Timer::Server(server) => {
                    self.servers[server].due_ns = None;
                    self.attend(server, now_ns, actions);
                }
            }
        }
    }

    /// Does whatever is due for a server.
    fn attend(&mut self, at: usize, now_ns: u64, actions: &mut Vec<Action>) {
        let server = &mut self.servers[at];
        match server.monitor.step(now_ns) {
            Step::Wait => {}
            Step::Ask => {
                let id = CheckId(self.next_id);
                self.next_id += 1;
                self.asked.insert(id, at);
                server.asked = Some(id);
                server.monitor.asked(now_ns, server.watch.check.timeout_ns, &mut self.random);
                actions.push(Action::Check { id, check: server.watch.check.clone() });
            }
            Step::Unanswered => {
                let outcome = Err("weir could not carry the check out in time".to_string());
                return self.handle(at, now_ns, &outcome, actions);
            }
        }
        self.set_timer(at);
    }

    fn handle(&mut self, at: usize, now_ns: u64, outcome: &Outcome, actions: &mut Vec<Action>) {
        let server = &mut self.servers[at];
        if let Some(id) = server.asked.take() {
            self.asked.remove(&id);
        }
        let was_down = server.monitor.state() == Seen::Down;
        let changed = server.monitor.handle(now_ns, outcome);
        let (users, is_down) = (server.users.clone(), server.monitor.state() == Seen::Down);
        if changed {
            self.log_state(at, actions);
        }
        if outcome.is_err() && !was_down {
            self.confirm(&users, actions);
        }
        let rise = self.servers[at].watch.times.rise;
        for (service, place) in users {
            let trusted = self.passes((service, place), outcome.is_ok(), rise);
            match (changed || trusted, is_down) {
                (true, false) => self.evaluate(service, now_ns, actions),
                (true, true) => {
                    self.publish(service, place, now_ns);
                    // Routers need not wait until other back ends may be lost, too.
                    self.announce(service, actions);
                    self.evaluate_at(service, now_ns.saturating_add(TOGETHER_NS));
                }
                (false, _) => self.publish(service, place, now_ns),
            }
        }
        self.set_timer(at);
    }

    /// Logs that a server is up or down.
    fn log_state(&self, at: usize, actions: &mut Vec<Action>) {
        let server = &self.servers[at];
        let Some(&(service, place)) = server.users.first() else { return };
        let (service, name) = (&self.services[service].name, &self.services[service].rows[place].name);
        let others = match server.users.len() - 1 {
            0 => String::new(),
            more => format!(" and in {more} more services"),
        };
        let level = if server.monitor.state() == Seen::Up { Level::Info } else { Level::Warning };
        let text = match server.monitor.state() {
            Seen::Down if server.watch.drains => {
                format!("{name} of {service}{others} gets no new flows: {}", server.monitor.reason())
            }
            Seen::Up => format!("{name} of {service}{others} is up"),
            _ => format!("{name} of {service}{others} is down: {}", server.monitor.reason()),
        };
        actions.push(Action::Say(level, text));
    }

    pub(super) fn set_timer(&mut self, at: usize) {
        let server = &mut self.servers[at];
        if let Some(due_ns) = server.due_ns.take() {
            self.timers.remove(&(due_ns, Timer::Server(at)));
        }
        let wanted =
            |(service, place): &(usize, usize)| self.services[*service].rows[*place].wish != Wish::Maintain;
        if server.users.iter().any(wanted) {
            let due_ns = server.monitor.due_ns();
            server.due_ns = Some(due_ns);
            self.timers.insert((due_ns, Timer::Server(at)));
        }
    }

    /// Returns a back end's standing, and its monitor if it is checked.
    pub(super) fn standing(&self, row: &Row) -> (Standing, Option<&Monitor>) {
        let monitor = row.server.and_then(|server| self.servers.get(server)).map(|server| &server.monitor);
        let standing = match (row.wish, monitor.map(Monitor::state)) {
            (Wish::Maintain, _) => Standing::Maintenance,
            _ if self.neighbour(row).is_some_and(|neighbour| neighbour.mac().is_none()) => {
                Standing::NoNeighbour
            }
            (Wish::Drain, _) => Standing::Draining,
            (Wish::Work, Some(Seen::Down)) if self.drains(row) => Standing::Withdrawn,
            (Wish::Work, Some(Seen::Down)) => Standing::Down,
            (Wish::Work, _) if row.suspicion.is_some() => Standing::Suspect,
            (Wish::Work, None) => Standing::Unchecked,
            (Wish::Work, Some(Seen::Unknown)) => Standing::Unknown,
            (Wish::Work, Some(Seen::Up)) => Standing::Up,
        };
        (standing, monitor)
    }

    /// Whether a back end that fails its check keeps its flows.
    fn drains(&self, row: &Row) -> bool {
        row.server.and_then(|server| self.servers.get(server)).is_some_and(|server| server.watch.drains)
    }

    /// Sets the weights of a service's back ends to their current values.
    pub(super) fn evaluate(&mut self, at: usize, now_ns: u64, actions: &mut Vec<Action>) {
        self.end_suspicions(at, now_ns, actions);
        let service = &self.services[at];
        let member = |row: &Row| {
            let (standing, monitor) = self.standing(row);
            let since_ns = monitor.map_or(row.wished_ns, Monitor::since_ns);
            let share = monitor.map_or(RAMP, |monitor| monitor.share(now_ns));
            Member { standing, since_ns, weight: row.full, share }
        };
        let members: Vec<Member> = service.rows.iter().map(member).collect();
        let grows = |row: &Row| self.standing(row).1.and_then(|monitor| monitor.grows_ns(now_ns));
        let trusted = |row: &Row| row.suspicion.as_ref().map(|suspicion| suspicion.until_ns);
        let trusted_ns = service.rows.iter().filter_map(trusted);
        let grows_ns = service.rows.iter().filter_map(grows).chain(trusted_ns).min();
        let (weights, failing) = weights(&members, service.fail);
        // Doubt arises if back ends are lost and no other back end could take their flows.
        let lost = service.rows.iter().zip(&members).any(|(row, one)| row.kept && one.standing.is_lost());
        let alone = lost && (failing || weights.iter().all(|weight| *weight == 0));
        let reason = alone || self.is_dark(at);
        let service = &mut self.services[at];
        service.doubt.note(reason, now_ns, service.settle_ns);
        let doubts = service.doubt.holds(now_ns);
        let due_ns = grows_ns.into_iter().chain(service.doubt.ends_ns(now_ns)).min();
        if let Some(old_ns) = std::mem::replace(&mut service.due_ns, due_ns) {
            self.timers.remove(&(old_ns, Timer::Service(at)));
        }
        self.timers.extend(due_ns.map(|due_ns| (due_ns, Timer::Service(at))));
        if std::mem::replace(&mut service.failing, failing) != failing {
            actions
                .push(Action::Say(if failing { Level::Error } else { Level::Info }, service.says_failing()));
        }
        let gone = |(row, member): (&Row, &Member)| match member.standing {
            Standing::Down | Standing::NoNeighbour => !(doubts && row.kept),
            standing => standing == Standing::Maintenance,
        };
        let gone: Vec<bool> = service.rows.iter().zip(&members).map(gone).collect();
        service.set(&weights, &gone, actions);
        self.announce(at, actions);
        self.remember(at);
        (0..self.services[at].rows.len()).for_each(|place| self.publish(at, place, now_ns));
    }

    /// Schedules the evaluation of a service for `due_ns` at the latest.
    pub(super) fn evaluate_at(&mut self, at: usize, due_ns: u64) {
        let service = &mut self.services[at];
        if service.due_ns.is_some_and(|before| before <= due_ns) {
            return;
        }
        if let Some(old_ns) = service.due_ns.replace(due_ns) {
            self.timers.remove(&(old_ns, Timer::Service(at)));
        }
        self.timers.insert((due_ns, Timer::Service(at)));
    }

    /// Writes the status of a back end to the board.
    pub(super) fn publish(&mut self, at: usize, place: usize, now_ns: u64) {
        let (service, row) = (&self.services[at], &self.services[at].rows[place]);
        let (standing, monitor) = self.standing(row);
        let rising = monitor.filter(|monitor| monitor.grows_ns(now_ns).is_some());
        let neighbour = self.neighbour(row);
        let reason = match (standing, monitor) {
            (Standing::NoNeighbour, _) => neighbour.map(Neighbour::reason).unwrap_or_default(),
            (Standing::Suspect, _) => row.suspicion.as_ref().map(|one| one.why.clone()).unwrap_or_default(),
            (Standing::Maintenance, _) | (_, None) => String::new(),
            (_, Some(monitor)) => match rising.map(|monitor| monitor.share(now_ns)) {
                Some(share) if monitor.reason().is_empty() => format!("slow start: {share} of {RAMP}"),
                _ => monitor.reason(),
            },
        };
        let mac = neighbour.and_then(Neighbour::mac);
        let weight = Some(row.full / service.scale);
        let checked = monitor.and_then(Monitor::last);
        let report = BackEndReport { health: standing.word(), reason, mac, weight, checked };
        let before = self.health.board.publish(&service.name, &row.name, report.clone());
        self.news.note((service.name.clone(), row.name.clone()), before, report);
    }

    /// Returns the board's entry for a back end.
    pub(super) fn report_of(&self, service: &Service, row: &Row) -> BackEndReport {
        self.health.board.of(&service.name, &row.name)
    }
}

impl Row {
    /// Returns its current weight in the group, if known.
    pub fn now(&self) -> Option<u32> {
        self.set
    }
}

impl Service {
    fn says_failing(&self) -> String {
        let what = match (self.failing, self.fail) {
            (false, _) => return format!("{}: a back end is up again", self.name),
            (true, Fail::Drop) => "its packets are dropped",
            (true, Fail::All) => "all back ends that are down get their share",
            (true, Fail::Reject) => "its packets are rejected",
            (true, Fail::Last) => "the back ends that went down last keep their share",
        };
        format!("{}: no back end is up, {what}", self.name)
    }

    /// Changes all weights that differ at once, because each change fills the buckets again. No packet may be
    /// sent to a back end without an entry, so entries are added before the change and removed after it.
    /// `gone` marks the back ends whose flows end, unless they get packets anyway.
    fn set(&mut self, weights: &[u32], gone: &[bool], actions: &mut Vec<Action>) {
        let Some(group) = self.group else { return };
        let (mut set, mut removed) = (Vec::new(), Vec::new());
        for ((row, &weight), &gone) in self.rows.iter_mut().zip(weights).zip(gone) {
            let Some(target) = row.target else { continue };
            let keeps = weight > 0 || !gone;
            if let Some(place) = row.place.as_ref().filter(|_| keeps != row.kept) {
                row.kept = keeps;
                if keeps { actions.extend(place.add()) } else { removed.extend(place.remove()) }
            }
            if row.set != Some(weight) {
                row.set = Some(weight);
                set.push((target, weight));
            }
        }
        let change = match set[..] {
            [] => None,
            [(target, weight)] => Some(Change::SetWeight { group, target, weight }),
            _ => Some(Change::SetWeights { group, weights: set.into() }),
        };
        actions.extend(change.map(Action::Change));
        actions.extend(removed);
    }
}

impl App for LbApp {
    fn name(&self) -> &str {
        NAME
    }

    fn kind(&self) -> &'static str {
        NAME
    }

    fn punts(&self) -> Vec<String> {
        let checked = std::iter::once(CHECKED.to_string());
        Answers::punts().into_iter().chain(checked).collect()
    }

    fn watches(&self) -> Vec<PortId> {
        let mut ports: Vec<PortId> = self.health.links.ports.iter().map(|(port, _)| *port).collect();
        for port in self.arrivals() {
            if !ports.contains(&port) {
                ports.push(port);
            }
        }
        ports
    }

    /// Servers with unchanged checks keep their state, and so do the operator's wishes.
    fn inherit(&mut self, predecessor: Box<dyn App>) {
        let predecessor: Box<dyn Any> = predecessor;
        let Ok(mut old) = predecessor.downcast::<LbApp>() else { return };
        (self.next_id, self.random, self.pending) = (old.next_id, old.random, old.pending);
        self.answers.inherit(old.answers);
        self.news.follow(&old.news, &old.health.board);
        self.sources.inherit(old.sources);
        self.former = old.neighbours.into_iter().map(Neighbour::leave).collect();
        self.known =
            old.servers.into_iter().map(|server| (server.watch, (server.monitor, server.asked))).collect();
        self.keep_wishes(0..self.services.len(), &old.services);
        self.keep_suspicions(&mut old.services);
        let doubts: HashMap<String, Doubt> =
            old.services.into_iter().map(|service| (service.name, service.doubt)).collect();
        for service in &mut self.services {
            service.doubt = doubts.get(&service.name).copied().unwrap_or_default();
        }
    }

    /// The operator's wishes, by the names of services and back ends, and neighbours.
    fn state(&self) -> Option<Value> {
        let mut saved = match self.wishes() {
            Some(Value::Array(wishes)) => wishes,
            _ => Vec::new(),
        };
        saved.extend(self.saved_neighbours());
        (!saved.is_empty()).then(|| json!(saved))
    }

    fn resume(&mut self, state: &Value) {
        state.as_array().into_iter().flatten().for_each(|saved| self.resume_neighbour(saved));
        self.resume_wishes(state);
    }

    fn bind(&mut self, program: &Program) {
        let groups: HashMap<&str, GroupId> =
            program.groups.iter().zip(0..).map(|(group, at)| (group.name.as_str(), GroupId(at))).collect();
        for (at, service) in self.services.iter_mut().enumerate() {
            let group = groups.get(format!("{NAME}/{}", service.name).as_str()).copied();
            let Some(group) = group else { continue };
            let places = self.health.places.get(at).map(|places| &**places);
            service.bind((group, &program.groups[group.index()]), places);
        }
    }

    fn amend(&mut self, apps: &Apps, program: &Program) {
        if let Some(lb) = apps.of::<Lb>() {
            self.follow(lb, program);
        }
    }

    /// Seeds the times of checks, which differ from node to node.
    fn set_date(&mut self, unix_s: u64) {
        self.random = Random::new(self.random.bits() ^ unix_s);
    }

    fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut Vec<Action>) {
        match event {
            Event::Start => {
                self.start(now_ns, actions);
                self.answers.start(now_ns, actions);
            }
            Event::Tick => {
                self.tick(now_ns, actions);
                self.answers.tick(now_ns, actions);
                self.tick_sources(now_ns, actions);
            }
            Event::Frame { app: CHECKED, bytes, .. } => {
                let packet = probes::packet(bytes);
                actions.extend(packet.map(|packet| Action::CheckHears { packet }));
            }
            Event::CheckSends { via, packet } => actions.extend(self.send(via, packet)),
            Event::Frame { app, input, bytes } => {
                self.answers.handle(now_ns, Punted { app, input, bytes }, actions);
            }
            Event::Checked { id, outcome } => {
                if let Some(&server) = self.asked.get(&id) {
                    self.handle(server, now_ns, outcome, actions);
                }
            }
            Event::TooLong { input, bytes, limit, .. } => {
                self.answers.refuse(now_ns, (input, bytes), limit, actions);
            }
            Event::Flows { group, flows } => self.count_flows(group, flows, now_ns, actions),
            Event::Neighbour { hop, found } => self.met(hop, found, now_ns, actions),
            Event::Link { port, up, .. } => {
                self.attach(port, up, actions);
                self.link(port, up, now_ns, actions);
            }
            Event::Request { id, request } => {
                let answer = self.request(id, request, now_ns, actions);
                actions.extend(answer.map(|answer| Action::Answer { id, answer }));
            }
            Event::Configured { id, outcome } => {
                let is_of_source = self.sources.configured(id, outcome, now_ns, actions);
                if !is_of_source {
                    self.configured(id, outcome, now_ns, actions);
                }
            }
            Event::Refused { change, why } => self.refused(change, &why.to_string(), actions),
            Event::Amended => self.go_on(now_ns, actions),
            _ => {}
        }
        self.news.publish(actions);
    }

    fn first_weights(&self) -> Vec<(String, String, u32)> {
        LbApp::first_weights(self)
    }

    fn weighing(&self, group: &str, target: &str, weight: u32) -> Option<Value> {
        let service = group.strip_prefix(NAME)?.strip_prefix('/')?;
        let is_ours = self.services.iter().any(|one| one.name == service && one.group.is_some());
        is_ours.then(|| json!({ "do": "weight", "service": service, "back_end": target, "weight": weight }))
    }

    fn wake_ns(&self) -> Option<u64> {
        let due_ns = self.timers.first().map(|(due_ns, _)| *due_ns);
        due_ns.into_iter().chain(self.answers.wake_ns()).chain(self.sources.wake_ns()).min()
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.answers.counts()
    }

    fn helps(&self) -> &'static [MetricHelp] {
        crate::answers::HELPS
    }

    fn samples(&self) -> Vec<Sample> {
        self.series().into_iter().chain(self.sources.samples()).collect()
    }

    fn unready(&self) -> Vec<String> {
        self.unserved()
    }

    fn report(&self, _now_ns: u64) -> Value {
        let rows = || self.services.iter().flat_map(|service| &service.rows);
        let up = rows().filter(|row| self.standing(row).0.is_up()).count();
        let is_down = |row: &&Row| matches!(self.standing(row).0, Standing::Down | Standing::NoNeighbour);
        let down = rows().filter(is_down).count();
        json!({ "services": self.services.len(), "back_ends": rows().count(), "up": up, "down": down,
            "checked": self.servers.len() - self.spare.len() })
    }
}

impl LbApp {
    /// Records that a weight could not be set. The next change to the service retries it.
    fn refused(&mut self, change: &Change, why: &str, actions: &mut Vec<Action>) {
        let Some((group, weights)) = change.weights() else { return };
        let service = self.services.iter_mut().find(|service| service.group == Some(group));
        let Some(service) = service else { return };
        let mut names = Vec::new();
        for row in &mut service.rows {
            if weights.iter().any(|(target, _)| row.target == Some(*target)) {
                row.set = None;
                names.push(row.name.as_str());
            }
        }
        let Some(first) = names.first() else { return };
        let others = if names.len() > 1 { format!(" and {} others", names.len() - 1) } else { String::new() };
        let text = format!("the weight of {first}{others} of {} could not be changed: {why}", service.name);
        actions.push(Action::Say(Level::Warning, text));
    }
}
