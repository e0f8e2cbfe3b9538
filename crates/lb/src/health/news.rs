//! The events for clients that watch: which services are configured differently, and the state of back ends.

use super::board::{BackEndReport, HealthPublisher};
use crate::specs::Specs;
use serde_json::{Value, json};
use std::sync::Arc;
use weir_app::Action;

/// The maximum number of events about services at once. If more services have changed, clients read all of
/// them again.
const EVENTS_MAX: usize = 1024;

/// The news about services and back ends.
#[derive(Default)]
pub struct News {
    specs: Arc<Specs>,
    /// The services of the predecessor, and the status of their back ends; `None` if there was none.
    before: Option<(Arc<Specs>, HealthPublisher)>,
    /// Events that have not been published: the name of each, its data, and whether it describes all
    /// services.
    events: Vec<(&'static str, Value, bool)>,
}

impl News {
    /// The news about these services.
    pub fn of(specs: &Arc<Specs>) -> News {
        News { specs: specs.clone(), ..News::default() }
    }

    /// Continues after a predecessor.
    pub fn follow(&mut self, old: &News, board: &HealthPublisher) {
        self.before = Some((old.specs.clone(), board.clone()));
    }

    /// Takes over other services, whose back ends are on the same board, and notes how they differ.
    pub fn amend(&mut self, specs: &Arc<Specs>, board: &HealthPublisher) {
        self.before = Some((std::mem::replace(&mut self.specs, specs.clone()), board.clone()));
        self.start();
    }

    /// Begins: notes how services differ from those before.
    pub fn start(&mut self) {
        let old = self.before.as_ref().map(|(specs, _)| specs.clone());
        let changed = old.as_ref().map(|old| self.specs.changed(old)).unwrap_or_default();
        if changed.len() > EVENTS_MAX {
            self.events.push(("reread", json!({ "changed": changed.len() }), false));
        } else {
            for (service, before, now) in changed {
                let change = match (before, now) {
                    (None, _) => "created",
                    (_, None) => "removed",
                    (Some(_), Some(_)) => "updated",
                };
                let (owner, etag) = (now.map(|now| now.source()), now.map(|now| now.tag.to_string()));
                let data = json!({ "service": service, "change": change, "owner": owner, "etag": etag });
                self.events.push(("service", data, false));
            }
        }
        if old.is_none_or(|old| *old != *self.specs) {
            let services = self.specs.iter().len();
            self.events.push((
                "set",
                json!({ "etag": self.specs.tag.to_string(), "services": services }),
                true,
            ));
        }
    }

    /// Notes the status of a back end, given the last one of this app.
    pub fn note(&mut self, key: (String, String), before: Option<BackEndReport>, now: BackEndReport) {
        let of_predecessor = || self.before.as_ref()?.1.look().get(&key).cloned();
        let Some(before) = before.or_else(of_predecessor) else { return };
        if (before.health, before.weight) != (now.health, now.weight) {
            let (service, back_end) = key;
            let data = json!({ "service": service, "back_end": back_end, "health": now.health,
                "weight": now.weight, "reason": now.reason });
            self.events.push(("back_end", data, false));
        }
    }

    /// Publishes what was noted.
    pub fn publish(&mut self, actions: &mut Vec<Action>) {
        let publish = |(event, data, whole)| Action::Publish { event, data, whole };
        actions.extend(self.events.drain(..).map(publish));
    }
}
