//! Running apps, driven by the main thread: it passes events to them and carries out their actions. It blocks
//! only on a worker that is asked for a change or a report; an idle app costs nothing.

use super::Daemon;
use super::app_host::{Family, Former, Gauges, Ring};
use super::app_socket::{AppSocket, Received};
use super::checks::{Checked, Sent};
use super::links::{LinkChange, Links};
use super::neighbours::Met;
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use tracing::{error, info, warn};
use weir_app::neighbour::Hop;
use weir_app::{
    Action, App, ClientEvent, ClientId, Event, Level, Refusal, RequestId, RunningApps, Sample, buckets,
};
use weir_engine::worker::{Command, Inject};
use weir_packet::BATCH;
use weir_program::change::Change;
use weir_program::snapshot::Page;
use weir_program::{AppId, GroupId, PipeId, PortId};

/// The maximum number of actions carried out for one event, including those that follow from them; an app
/// that does not stop is cut off.
const ACTIONS_MAX: usize = 65_536;

/// Returns what a metric of an app means.
fn help_of(app: &dyn App, name: &str) -> &'static str {
    app.helps().iter().find(|help| help.0 == name).map_or("not described", |help| help.1)
}

impl Daemon {
    /// Starts the apps of the first plan; workers already have the other ends of the rings. `states` are the
    /// states of a previous daemon's apps, if this one took over.
    pub(super) fn begin_apps(
        &mut self,
        rings: Vec<Ring>,
        sockets: Vec<AppSocket>,
        states: &Value,
    ) -> Result<()> {
        (self.host.rings, self.host.sockets) = (rings, sockets);
        self.host.running =
            RunningApps::new(self.plan.apps.running(), RunningApps::default(), &self.plan.program)
                .on(unix_s());
        self.host.running.resume(states);
        self.start_apps()
    }

    /// Replaces the apps with those of the new plan. `order[n]` is the previous number of port `n`, if it had
    /// one. Frames that workers pass on before they switch belong to the new apps, by name, unless their port
    /// is gone.
    pub(super) fn succeed_apps(
        &mut self,
        rings: Vec<Ring>,
        sockets: Vec<Option<AppSocket>>,
        order: Vec<Option<usize>>,
    ) -> Result<()> {
        let rings = std::mem::replace(&mut self.host.rings, rings);
        self.host.former = Some(Former { rings, order });
        let gone = self.succeed_sockets(sockets);
        let before = std::mem::take(&mut self.host.running);
        self.host.running =
            RunningApps::new(self.plan.apps.running(), before, &self.plan.program).on(unix_s());
        self.start_apps()?;
        for (app, client) in gone {
            if let Some(at) = self.host.running.named(&app) {
                self.deliver(at, Event::Client { client, what: ClientEvent::Disconnected });
            }
        }
        Ok(())
    }

    /// Takes the last frames from the previous program's rings, once all workers have switched.
    pub(super) fn take_former_frames(&mut self) {
        while self.look_at_former() {}
        self.host.former = None;
    }

    /// Takes a batch of frames from each of the previous program's rings. Returns true if there may be more.
    fn look_at_former(&mut self) -> bool {
        let Some(mut former) = self.host.former.take() else { return false };
        let mut more = false;
        for ring in &mut former.rings {
            let mut taken = 0;
            while taken < BATCH
                && let Some(carrier) = ring.receiver.receive()
            {
                taken += 1;
                let input = former.order.iter().position(|&old| old == Some(carrier.input.index()));
                let app = self.plan.program.apps.iter().position(|name| **name == *ring.name);
                let app = app.and_then(|app| self.host.running.owner(AppId(app as u16)));
                if let (Some(at), Some(input)) = (app, input) {
                    let input = PortId(input as u16);
                    self.deliver(at, Event::of_frame(&ring.name, input, &carrier));
                }
                ring.receiver.done(carrier);
            }
            more |= taken == BATCH;
        }
        self.host.former = Some(former);
        more
    }

    /// Keeps sockets that stay, with their clients; closes the others, disconnecting their clients.
    fn succeed_sockets(&mut self, new: Vec<Option<AppSocket>>) -> Vec<(String, ClientId)> {
        let mut old = std::mem::take(&mut self.host.sockets);
        let wanted = self.plan.apps.running();
        let wanted = wanted.iter().filter_map(|app| Some((app.name(), app.socket()?)));
        for ((name, path), new) in wanted.zip(new) {
            let mut kept = || old.iter().position(|one| one.is(name, path)).map(|at| old.swap_remove(at));
            self.host.sockets.extend(new.or_else(&mut kept));
        }
        let gone = |socket: &AppSocket| {
            socket.clients().into_iter().map(|client| (socket.app.clone(), client)).collect()
        };
        old.iter().flat_map(|socket| -> Vec<_> { gone(socket) }).collect()
    }

    pub(super) fn start_apps(&mut self) -> Result<()> {
        let watched: Vec<Vec<PortId>> =
            self.each_app().map(|at| self.host.running.app(at).watches()).collect();
        self.host.links =
            Links::watch(&self.plan, &self.dpdk_links, &watched).context("links cannot be watched")?;
        for port in (0..self.plan.ports.len()).map(|at| PortId(at as u16)) {
            if self.interfaces.of(port).is_some() {
                let usable = self.interfaces.usable_name(port).map(str::to_string);
                self.host.links.set_interface(port, usable);
            }
        }
        self.routes.begin(&self.plan.routes);
        for at in self.each_app() {
            self.deliver(at, Event::Start);
        }
        for news in self.host.links.all() {
            self.deliver_link(&news);
        }
        self.routes.begun();
        Ok(())
    }

    fn each_app(&self) -> std::ops::Range<usize> {
        0..self.host.running.len()
    }

    /// Returns the next time at which an app needs attention.
    pub(super) fn apps_wake_ns(&self) -> Option<u64> {
        self.host.running.wake_ns().into_iter().chain(self.host.links.wake_ns()).min()
    }

    /// Returns the sockets of apps, with whether the app has room for what clients send.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (&AppSocket, bool)> {
        let has_room = |socket: &AppSocket| {
            let at = self.host.running.named(&socket.app);
            at.is_none_or(|at| self.host.running.has_room(at))
        };
        self.host.sockets.iter().map(move |socket| (socket, has_room(socket)))
    }

    /// Passes all pending events to the apps. Returns true if frames are left for the next iteration.
    pub(super) fn drive_apps(&mut self) -> bool {
        self.host.running.collect();
        let now_ns = self.clock.now_ns();
        // Links that have just begun to be watched are due at 0, which does not count as late.
        if let Some(wake_ns) = self.apps_wake_ns().filter(|wake_ns| (1..=now_ns).contains(wake_ns)) {
            self.host.late.record(now_ns - wake_ns);
        }
        for news in self.host.links.look(now_ns, self.fleet.handled()) {
            self.deliver_link(&news);
        }
        for _ in self.each_app() {
            let Some(at) = self.host.running.due(now_ns) else { break };
            self.deliver(at, Event::Tick);
        }
        self.take_checked();
        self.take_met();
        for at in 0..self.host.sockets.len() {
            self.receive_from_clients(at);
        }
        self.take_frames()
    }

    /// Reports to apps what their checks sent and how they ended. Results for an app that is gone are
    /// discarded.
    fn take_checked(&mut self) {
        while let Some(Sent { app, check, packet }) = self.checks.take_sent() {
            let at = self.host.running.named(&app);
            if let (Some(at), Some(via)) = (at, &check.via) {
                self.deliver(at, Event::CheckSends { via, packet: &packet });
            }
        }

        while let Some(Checked { app, id, outcome }) = self.checks.take() {
            if let Some(at) = self.host.running.named(&app) {
                self.deliver(at, Event::Checked { id, outcome: &outcome });
            }
        }
    }

    /// Reports to apps what is known about neighbours.
    fn take_met(&mut self) {
        while let Some(Met { app, hop, found }) = self.neighbours.take() {
            if let Some(at) = self.host.running.named(&app) {
                self.deliver(at, Event::Neighbour { hop: &hop, found: &found });
            }
        }
    }

    /// Passes an event to all apps.
    pub(super) fn deliver_to_all(&mut self, event: Event<'_>) {
        self.each_app().for_each(|at| self.deliver(at, event));
    }

    fn deliver_link(&mut self, news: &LinkChange) {
        let (port, up, speed_bps) = (news.port, news.state.up, news.state.speed_bps);
        self.deliver(news.app, Event::Link { port, up, speed_bps });
    }

    /// Takes a batch of frames from every ring. Returns true if there may be more.
    pub(super) fn take_frames(&mut self) -> bool {
        let mut more = self.look_at_former();
        for at in 0..self.host.rings.len() {
            let mut taken = 0;
            while taken < BATCH
                && let Some(carrier) = self.host.rings[at].receiver.receive()
            {
                taken += 1;
                let Ring { app, name, .. } = &self.host.rings[at];
                let name = name.clone();
                if let Some(owner) = self.host.running.owner(*app) {
                    self.deliver(owner, Event::of_frame(&name, carrier.input, &carrier));
                }
                self.host.rings[at].receiver.done(carrier);
            }
            more |= taken == BATCH;
        }
        more
    }

    fn receive_from_clients(&mut self, socket: usize) {
        let Some(at) = self.host.running.named(&self.host.sockets[socket].app) else { return };
        while let Some(client) = self.host.sockets[socket].accept() {
            self.deliver(at, Event::Client { client, what: ClientEvent::Connected });
        }
        for client in self.host.sockets[socket].clients() {
            if !self.host.running.has_room(at) {
                return;
            }
            for received in self.host.sockets[socket].receive(client) {
                match received {
                    Received::Datagram(client, bytes) => {
                        self.deliver(at, Event::Client { client, what: ClientEvent::Datagram(&bytes) });
                    }
                    Received::Disconnected(client) => {
                        self.deliver(at, Event::Client { client, what: ClientEvent::Disconnected })
                    }
                }
            }
        }
    }

    /// Passes an event to an app and carries out the resulting actions.
    fn deliver(&mut self, at: usize, event: Event<'_>) {
        let actions = VecDeque::from(self.host.running.step(at, self.clock.now_ns(), event));
        self.carry_out(at, actions);
    }

    /// Carries out actions of an app, and the further actions that follow from their outcomes.
    pub(super) fn carry_out(&mut self, at: usize, mut actions: VecDeque<Action>) {
        for _ in 0..ACTIONS_MAX {
            let Some(action) = actions.pop_front() else { return };
            actions.extend(self.perform(at, action));
        }
        error!("app {} did not stop in time and was abandoned", self.host.running.app(at).name());
    }

    /// Carries out an action. Returns the further actions that the app requests because of its outcome.
    fn perform(&mut self, at: usize, action: Action) -> Vec<Action> {
        match action {
            Action::Inject { bytes, output } => {
                self.inject_for(at, Inject { bytes, output: Some(output), input: PortId::default() });
            }
            Action::InjectThrough { bytes, input } => {
                self.inject_for(at, Inject { bytes, output: None, input })
            }
            Action::Change(change) if self.reloads.are_full() => {
                let why = "too many changes are waiting for the workers to switch to a new program";
                return self.refuse(at, &change, Refusal::Now(why.to_string()));
            }
            // The workers would only answer after switching, and other apps cannot wait for that.
            action if self.reloads.are_taking_over() && is_of_a_program(&action) => {
                self.reloads.put_off(at, action);
            }
            Action::Change(change) => {
                if let Err(why) = self.change(&change) {
                    let now = |why: anyhow::Error| Refusal::Now(why.to_string());
                    return self.refuse(at, &change, why.downcast().map_or_else(now, Refusal::Change));
                }
            }
            Action::ReadBuckets(group) => return self.read_buckets(at, group),
            Action::ReadEntries { pipe, from, limit } => {
                return self.read_entries(at, pipe, (from, limit));
            }
            Action::ReadFlows(group) => return self.read_flows(at, group),
            Action::Say(level, text) => say(self.host.running.app(at).name(), level, &text),
            Action::Answer { id, answer } => self.host.answer(id, answer),
            Action::Publish { event, data, whole } => self.feed.publish(event, &data, whole),
            Action::Configure { id, orders } => return self.configure(at, id, orders),
            Action::Check { id, check } => {
                if let Err(why) = self.checks.make(self.host.running.app(at).name(), id, check) {
                    return self.step(at, Event::Checked { id, outcome: &Err(why) });
                }
            }
            Action::CheckHears { packet } => self.checks.deliver(&packet),
            Action::Resolve(hops) => self.resolve(at, &hops),
            Action::ResolveOthers { more, less } => self.resolve_others(at, more, less),
            Action::Confirm(hop) => self.neighbours.confirm(hop),
            Action::Announce { service, prefixes, wish } => {
                self.routes.wish(self.host.running.app(at).name(), service, prefixes, wish);
            }
            Action::SendToClient { client, bytes } => {
                if !self.socket_of(at).is_some_and(|socket| socket.send(client, &bytes)) {
                    return self.step(at, Event::Client { client, what: ClientEvent::Lost });
                }
            }
            Action::Leave(client) => {
                if self.socket_of(at).is_some_and(|socket| socket.disconnect(client)) {
                    return self.step(at, Event::Client { client, what: ClientEvent::Disconnected });
                }
            }
        }
        Vec::new()
    }

    fn configure(&mut self, at: usize, id: RequestId, orders: Arc<Value>) -> Vec<Action> {
        let app = self.host.running.app(at).name().to_string();
        match self.ask_configure(Some(app), id, orders) {
            Ok(()) => Vec::new(),
            Err(why) => self.step(at, Event::Configured { id, outcome: &Err(why) }),
        }
    }

    fn refuse(&mut self, at: usize, change: &Change, why: Refusal) -> Vec<Action> {
        self.step(at, Event::Refused { change, why: &why })
    }

    fn resolve(&mut self, at: usize, hops: &[Hop]) {
        if let Err(error) = self.neighbours.follow(self.host.running.app(at).name(), hops.to_vec()) {
            error!("cannot resolve neighbours: {error:#}");
        }
    }

    fn resolve_others(&mut self, at: usize, more: Arc<[Hop]>, less: Arc<[Hop]>) {
        if let Err(error) = self.neighbours.follow_others(self.host.running.app(at).name(), more, less) {
            error!("cannot resolve neighbours: {error:#}");
        }
    }

    fn read_buckets(&mut self, at: usize, group: GroupId) -> Vec<Action> {
        let Ok(reports) = self.fleet.buckets(group) else { return Vec::new() };
        self.step(at, Event::Buckets { group, report: &buckets(reports) })
    }

    fn read_flows(&mut self, at: usize, group: GroupId) -> Vec<Action> {
        let flows = self.tables.flows_of(group);
        self.step(at, Event::Flows { group, flows: &flows })
    }

    fn read_entries(&mut self, at: usize, pipe: PipeId, (from, limit): (u32, usize)) -> Vec<Action> {
        let Ok(Page { entries, next, .. }) = self.fleet.entries(pipe, from, limit) else { return Vec::new() };
        self.step(at, Event::Entries { pipe, from, entries: &entries, next })
    }

    fn step(&mut self, at: usize, event: Event<'_>) -> Vec<Action> {
        self.host.running.step(at, self.clock.now_ns(), event)
    }

    fn socket_of(&mut self, at: usize) -> Option<&mut AppSocket> {
        let name = self.host.running.app(at).name();
        self.host.sockets.iter_mut().find(|socket| socket.app == name)
    }

    /// Returns the worker that sends a frame: for frames through the program, the owner of its flow.
    pub(super) fn worker_for(&self, inject: &Inject) -> usize {
        if inject.output.is_some() { 0 } else { self.owners.worker(inject.input, &inject.bytes) }
    }

    fn inject_for(&mut self, at: usize, inject: Inject) {
        let (fleet, worker) = (&self.fleet, self.worker_for(&inject));
        self.host
            .running
            .inject(at, inject, |inject, answer| fleet.offer(worker, Command::Inject(inject, answer)));
    }

    /// Makes a change on all workers or none. Buckets are filled here, and weights are recorded.
    pub(super) fn change(&mut self, change: &Change) -> Result<()> {
        let published = self.tables.publish(change)?;
        self.fleet.change(&published, self.clock)??;
        for one in change.singles() {
            if let Some((group, weights)) = one.weights() {
                weights.iter().for_each(|(target, weight)| self.note_weight(group, *target, *weight));
            }
        }
        Ok(())
    }

    /// Passes an operator's request to an app. Returns the id with which to poll for the answer.
    pub(super) fn request(&mut self, app: &str, request: &Value) -> Result<RequestId> {
        let names =
            || self.each_app().map(|at| self.host.running.app(at).name()).collect::<Vec<_>>().join(", ");
        let at = self.host.running.named(app);
        let at = at.ok_or_else(|| anyhow!("no app `{app}` is running; the running apps are: {}", names()))?;
        let id = self.host.expect();
        self.deliver(at, Event::Request { id, request });
        Ok(id)
    }

    /// Reports to an app how a change of its configuration ended.
    pub(super) fn deliver_configured(&mut self, app: &str, id: RequestId, outcome: &Result<Value, String>) {
        if let Some(at) = self.host.running.named(app) {
            self.deliver(at, Event::Configured { id, outcome });
        }
    }

    /// Takes the answer to a request, if it has arrived.
    pub(super) fn take_answer(&mut self, id: RequestId) -> Option<Result<Value>> {
        let answer = self.host.requests.get_mut(&id)?.take()?;
        self.host.requests.remove(&id);
        Some(answer.map_err(|why| anyhow!("{why}")))
    }

    /// Returns the number of requests to apps that clients wait for.
    #[cfg(test)]
    pub(super) fn waiting_requests(&self) -> usize {
        self.host.requests.len()
    }

    /// Discards a request because no client waits for the answer any more.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.host.requests.remove(&id);
    }

    /// Returns the apps' counters as metric families.
    pub(super) fn app_families(&self) -> Vec<Family> {
        let mut families: Vec<Family> = Vec::new();
        for at in self.each_app() {
            let (app, account) = (self.host.running.app(at), self.host.running.account(at));
            let own = app.counts().into_iter().map(|(name, count)| (name, help_of(app, name), count));
            let all = [
                ("punted", "Frames forwarded to the app", account.punted),
                ("injected", "Frames that the app sent", account.injected),
                ("refused", "Frames that the app failed to send", account.refused),
            ];
            for (name, help, count) in all.into_iter().chain(own) {
                let count = (app.name().to_string(), count);
                match families.iter_mut().find(|family| family.name == name) {
                    Some(family) => family.counts.push(count),
                    None => families.push(Family { name, help, counts: vec![count] }),
                }
            }
        }
        families
    }

    /// Returns the apps' gauges as metric families.
    pub(super) fn app_gauges(&self) -> Vec<Gauges> {
        let mut families: Vec<Gauges> = Vec::new();
        for at in self.each_app() {
            let app = self.host.running.app(at);
            for (name, value) in app.gauges() {
                let value = (app.name().to_string(), value);
                match families.iter_mut().find(|family| family.name == name) {
                    Some(family) => family.values.push(value),
                    None => families.push(Gauges { name, help: help_of(app, name), values: vec![value] }),
                }
            }
        }
        families
    }

    /// Returns the apps' values with labels, each with its app's name.
    pub(super) fn app_samples(&self) -> Vec<(String, Sample)> {
        let apps = self.each_app().map(|at| self.host.running.app(at));
        apps.flat_map(|app| app.samples().into_iter().map(|one| (app.name().to_string(), one))).collect()
    }

    /// Returns why other nodes should get this node's traffic.
    pub(super) fn apps_unready(&self) -> Vec<String> {
        self.each_app().flat_map(|at| self.host.running.app(at).unready()).collect()
    }

    /// Returns what `weir show apps` prints.
    pub(super) fn apps_json(&self) -> Value {
        let one = |at: usize| {
            let (app, account) = (self.host.running.app(at), self.host.running.account(at));
            let mut json = json!({
                "name": app.name(), "kind": app.kind(), "punted": account.punted,
                    "injected": account.injected,
                "refused": account.refused,
            });
            app.counts().into_iter().for_each(|(name, count)| json[name] = json!(count));
            if let Value::Object(report) = app.report(self.clock.now_ns()) {
                report.into_iter().for_each(|(name, value)| json[name] = value);
            }
            json
        };
        self.each_app().map(one).collect()
    }
}

/// The time of day, in seconds since 1970.
fn unix_s() -> u64 {
    std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs())
}

/// Logs what an app says.
fn say(app: &str, level: Level, text: &str) {
    match level {
        Level::Info => info!("{app}: {text}"),
        Level::Warning => warn!("{app}: {text}"),
        Level::Error => error!("{app}: {text}"),
    }
}

/// Whether an action reads or changes parts of the program, so that the ids in it belong to one particular
/// program.
fn is_of_a_program(action: &Action) -> bool {
    use Action::{Change, ReadBuckets, ReadEntries, ReadFlows};
    matches!(action, Change(_) | ReadBuckets(_) | ReadEntries { .. } | ReadFlows(_))
}
