//! Takes over changes of services' back ends that have already been made in the program ([`crate::amend`]).
//! Everything else stays: checked servers, operators' wishes, suspicions and doubts.

use super::app::{LbApp, MonitoredServer, Service, Timer};
use super::monitor::Monitor;
use crate::{Lb, NAME};
use std::collections::HashMap;
use std::sync::Arc;
use weir_app::{Action, Level};
use weir_program::Program;

impl LbApp {
    /// Takes over services, some of which have other back ends. These are evaluated next ([`LbApp::go_on`]).
    pub(super) fn follow(&mut self, lb: &Lb, program: &Program) {
        let old = std::mem::replace(&mut self.health, lb.health.clone());
        let (new, places) = (&lb.health.services, &lb.health.places);
        // Entries may differ where checks and weights do not.
        let differs = |at: &usize| {
            old.services.get(*at) != new.get(*at) || !Arc::ptr_eq(&old.places[*at], &places[*at])
        };
        let changed: Vec<usize> = (0..old.places.len().min(places.len())).filter(differs).collect();
        for at in changed {
            self.replace(at, program);
            self.amended.push(at);
        }
        self.news.amend(&lb.specs, &self.health.board);
        self.sources.amend(&lb.specs);
    }

    /// Replaces a service's back ends. Those that stay, by name, keep their state.
    fn replace(&mut self, at: usize, program: &Program) {
        let mut next = Service::new(&self.health.services[at]);
        let Some(id) = program.group_named(&format!("{NAME}/{}", next.name)) else { return };
        next.bind((id, &program.groups[id.index()]), self.health.places.get(at).map(|places| &**places));
        let mut old = std::mem::replace(&mut self.services[at], next);
        let next = &mut self.services[at];
        (next.due_ns, next.failing, next.doubt, next.wish) =
            (old.due_ns, old.failing, old.doubt, old.wish.take());
        let before: HashMap<&str, bool> = old.rows.iter().map(|row| (row.name.as_str(), row.kept)).collect();
        for row in &mut next.rows {
            row.kept = before.get(row.name.as_str()).copied().unwrap_or(true);
        }
        let is_gone = |name: &str| !next.rows.iter().any(|row| row.name == name);
        let gone = before.keys().filter(|name| is_gone(name));
        gone.for_each(|name| self.health.board.forget(&old.name, name));
        for row in next.rows.iter_mut().filter(|_| next.passive.is_some()) {
            let same = old.rows.iter_mut().find(|one| one.name == row.name);
            row.suspicion = same.and_then(|same| same.suspicion.take());
        }
        self.keep_wishes(at..at + 1, std::slice::from_ref(&old));
    }

    /// Evaluates the services whose back ends were replaced.
    pub(super) fn go_on(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        actions.extend(self.forgotten.drain(..).map(|text| Action::Say(Level::Warning, text)));
        for at in std::mem::take(&mut self.amended) {
            self.watch(at, now_ns);
            self.evaluate(at, now_ns, actions);
        }
    }

    /// Begins to check the servers of a service's new back ends, and stops checking those that no back end
    /// uses any more.
    fn watch(&mut self, at: usize, now_ns: u64) {
        let mut changed: Vec<usize> = Vec::new();
        for (place, server) in self.servers.iter_mut().enumerate() {
            let count = server.users.len();
            server.users.retain(|(service, _)| *service != at);
            changed.extend((server.users.len() < count).then_some(place));
        }
        let guarded = self.health.services[at].clone();
        for (place, (.., watch)) in guarded.back_ends.into_iter().enumerate() {
            let Some(watch) = watch else { continue };
            let server = self.server_of(watch, &changed, now_ns);
            self.servers[server].users.push((at, place));
            self.services[at].rows[place].server = Some(server);
            changed.push(server);
        }
        changed.into_iter().for_each(|server| self.set_timer(server));
    }

    /// Returns the server with this check. A new server may take the place of one that no back end uses,
    /// except those that this service has used until now.
    fn server_of(&mut self, watch: super::Watch, until_now: &[usize], now_ns: u64) -> usize {
        let is_used =
            |at: usize, server: &MonitoredServer| !server.users.is_empty() || until_now.contains(&at);
        let known = self.servers.iter().enumerate();
        let known = known.filter(|(at, server)| is_used(*at, server));
        if let Some((known, _)) = known.into_iter().find(|(_, server)| *server.watch == watch) {
            return known;
        }
        let monitor = Monitor::new(watch.times, now_ns, &mut self.random);
        let watch = Arc::new(watch);
        let new = MonitoredServer { watch, monitor, asked: None, users: Vec::new(), due_ns: None };
        match self.servers.iter().enumerate().position(|(at, server)| !is_used(at, server)) {
            Some(unused) => {
                let old = std::mem::replace(&mut self.servers[unused], new);
                self.asked.retain(|_, server| *server != unused);
                let timer = old.due_ns.map(|due_ns| (due_ns, Timer::Server(unused)));
                timer.iter().for_each(|timer| _ = self.timers.remove(timer));
                unused
            }
            None => {
                self.servers.push(new);
                self.servers.len() - 1
            }
        }
    }
}
