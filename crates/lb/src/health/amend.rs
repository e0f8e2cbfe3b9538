//! Takes over changes of services' back ends that have already been made in the program ([`crate::amend`]).
//! Everything else stays: checked servers, operators' wishes, suspicions and doubts.

use super::Watch;
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
        self.replace_neighbours(&old.neighbours);
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
        let is_new: Vec<bool> = next.rows.iter().map(|row| !before.contains_key(row.name.as_str())).collect();
        let is_gone = |name: &str| !next.rows.iter().any(|row| row.name == name);
        let gone = before.keys().filter(|name| is_gone(name));
        gone.for_each(|name| self.health.board.forget(&old.name, name));
        for row in next.rows.iter_mut().filter(|_| next.passive.is_some()) {
            let same = old.rows.iter_mut().find(|one| one.name == row.name);
            row.suspicion = same.and_then(|same| same.suspicion.take());
        }
        let mut servers: Vec<usize> = old.rows.iter().filter_map(|row| row.server).collect();
        servers.append(&mut old.former_servers);
        self.services[at].former_servers = servers;
        self.follow_neighbours(at, &old.rows, &is_new);
        self.keep_wishes(at..at + 1, std::slice::from_ref(&old));
    }

    /// Evaluates the services whose back ends were replaced.
    pub(super) fn go_on(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        actions.extend(self.forgotten.drain(..).map(|text| Action::Say(Level::Warning, text)));
        actions.append(&mut self.outdated);
        for at in std::mem::take(&mut self.amended) {
            self.watch(at, now_ns);
            self.evaluate(at, now_ns, actions);
        }
    }

    /// Begins to check the servers of a service's new back ends, and stops checking those that no back end
    /// uses any more.
    fn watch(&mut self, at: usize, now_ns: u64) {
        let mut changed = std::mem::take(&mut self.services[at].former_servers);
        changed.sort_unstable();
        changed.dedup();
        for server in &changed {
            self.servers[*server].users.retain(|(service, _)| *service != at);
        }
        let guarded = self.health.services[at].clone();
        for (place, (.., watch)) in guarded.back_ends.iter().enumerate() {
            let Some(watch) = watch else { continue };
            let server = self.server_of(watch, now_ns);
            self.servers[server].users.push((at, place));
            self.services[at].rows[place].server = Some(server);
            changed.push(server);
        }
        for server in changed {
            if self.servers[server].users.is_empty() && !self.spare.contains(&server) {
                self.spare.push(server);
            }
            self.set_timer(server);
        }
    }

    /// Returns the server with this check. A new one may take the place of one that no back end uses.
    fn server_of(&mut self, watch: &Watch, now_ns: u64) -> usize {
        let known = self.places.get(watch).copied();
        if let Some(known) = known.filter(|known| !self.spare.contains(known)) {
            return known;
        }
        let monitor = Monitor::new(watch.times, now_ns, &mut self.random);
        let watch = Arc::new(watch.clone());
        let new =
            MonitoredServer { watch: watch.clone(), monitor, asked: None, users: Vec::new(), due_ns: None };
        // The state of a server that has not been checked for a while is out of date.
        let unused = known.or_else(|| self.spare.last().copied());
        self.spare.retain(|spare| Some(*spare) != unused);
        let Some(unused) = unused else {
            self.places.insert(watch, self.servers.len());
            self.servers.push(new);
            return self.servers.len() - 1;
        };
        let old = std::mem::replace(&mut self.servers[unused], new);
        self.places.remove(&old.watch);
        self.places.insert(watch, unused);
        old.asked.iter().for_each(|id| _ = self.asked.remove(id));
        let timer = old.due_ns.map(|due_ns| (due_ns, Timer::Server(unused)));
        timer.iter().for_each(|timer| _ = self.timers.remove(timer));
        unused
    }
}
