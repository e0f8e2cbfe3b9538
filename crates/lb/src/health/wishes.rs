//! The wishes of operators for back ends, and how they survive a reload, a restart and a handover.

use super::app::{LbApp, Row, Service, Wish};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ops::Range;
use weir_app::Action;

impl Wish {
    fn word(self) -> Option<&'static str> {
        match self {
            Wish::Work => None,
            Wish::Drain => Some("drain"),
            Wish::Maintain => Some("maintenance"),
        }
    }
}

impl Row {
    /// Returns the weight that an operator has set, if it differs from the configured one.
    pub(super) fn given(&self, scale: u32) -> Option<u32> {
        (self.full != self.configured * scale).then_some(self.full / scale)
    }

    /// Restores the weight that an operator had set, unless the configured weight has changed since: the
    /// later one wins. Returns the operator's weight if it is dropped because the file now has a different
    /// one.
    fn keep(&mut self, given: Option<u32>, configured: u32, scale: u32) -> Option<u32> {
        let weight = given?;
        if configured == self.configured {
            self.full = weight * scale;
            return None;
        }
        Some(weight).filter(|weight| *weight != self.configured)
    }
}

/// Returns the message that the weight an operator has set for a back end is no longer in effect.
fn forgets(service: &str, row: &Row, weight: u32) -> String {
    let (name, configured) = (&row.name, row.configured);
    let what = format!("the weight {weight} of {name} of {service}, set at run time, is discarded");
    format!("{what}: the file now says {configured}")
}

impl LbApp {
    /// Records an operator's wish for a back end.
    pub(super) fn wish(
        &mut self,
        (at, place): (usize, usize),
        wish: Wish,
        now_ns: u64,
        actions: &mut Vec<Action>,
    ) {
        let row = &mut self.services[at].rows[place];
        let before = std::mem::replace(&mut row.wish, wish);
        row.wished_ns = now_ns;
        row.suspicion = None;
        let server = row.server;
        if let Some(server) = server {
            let was_idle = self.servers[server].due_ns.is_none();
            self.set_timer(server);
            if was_idle && before == Wish::Maintain && self.servers[server].due_ns.is_some() {
                let one = &mut self.servers[server];
                self.asked.retain(|_, asked| *asked != server);
                one.asked = None;
                one.monitor.restart(now_ns);
                self.set_timer(server);
            }
        }
        self.evaluate(at, now_ns, actions);
    }

    /// Carries over the wishes for back ends of some services that still exist.
    pub(super) fn keep_wishes(&mut self, of: Range<usize>, before: &[Service]) {
        let rows = before.iter().flat_map(|service| {
            service.rows.iter().map(|row| ((service.name.as_str(), row.name.as_str()), (row, service.scale)))
        });
        let known: HashMap<(&str, &str), (&Row, u32)> = rows.collect();
        for service in &mut self.services[of] {
            let (scale, name) = (service.scale, &service.name);
            for row in &mut service.rows {
                if let Some((old, old_scale)) = known.get(&(service.name.as_str(), row.name.as_str())) {
                    (row.wish, row.wished_ns) = (old.wish, old.wished_ns);
                    let gone = row.keep(old.given(*old_scale), old.configured, scale);
                    self.forgotten.extend(gone.map(|weight| forgets(name, row, weight)));
                }
            }
        }
    }

    /// Returns the wishes for back ends, by the names of services and back ends: the wish, and the weight
    /// that overrides the configured one.
    pub(super) fn wishes(&self) -> Option<Value> {
        let rows =
            self.services.iter().flat_map(|service| service.rows.iter().map(move |row| (service, row)));
        let saved = |(service, row): (&Service, &Row)| {
            let (wish, given) = (row.wish.word(), row.given(service.scale));
            (wish.is_some() || given.is_some())
                .then(|| json!([service.name, row.name, wish, given, row.configured]))
        };
        let saved: Vec<Value> = rows.filter_map(saved).collect();
        (!saved.is_empty()).then(|| json!(saved))
    }

    pub(super) fn resume_wishes(&mut self, state: &Value) {
        let mut places = HashMap::new();
        for (at, service) in self.services.iter().enumerate() {
            for (place, row) in service.rows.iter().enumerate() {
                places.insert((service.name.clone(), row.name.clone()), (at, place));
            }
        }
        for saved in state.as_array().into_iter().flatten() {
            let name = |at: usize| saved[at].as_str().unwrap_or_default().to_string();
            let Some(&(at, place)) = places.get(&(name(0), name(1))) else { continue };
            let scale = self.services[at].scale;
            let row = &mut self.services[at].rows[place];
            match saved[2].as_str() {
                Some("drain") => row.wish = Wish::Drain,
                Some("maintenance") => row.wish = Wish::Maintain,
                _ => {}
            }
            let most = weir_config::sets::WEIGHT_MAX / u64::from(scale);
            let given = saved[3].as_u64().filter(|weight| *weight <= most).map(|weight| weight as u32);
            let gone = row.keep(given, saved[4].as_u64().map_or(u32::MAX, |weight| weight as u32), scale);
            let gone = gone.map(|weight| forgets(&name(0), row, weight));
            self.forgotten.extend(gone);
        }
    }

    /// Drops all wishes of operators, so that the configuration applies.
    pub(super) fn forget_wishes(&mut self, now_ns: u64, actions: &mut Vec<Action>) {
        for at in 0..self.services.len() {
            let scale = self.services[at].scale;
            for place in 0..self.services[at].rows.len() {
                let row = &mut self.services[at].rows[place];
                let changed = row.given(scale).is_some() || row.wish != Wish::Work;
                row.full = row.configured * scale;
                if changed {
                    self.wish((at, place), Wish::Work, now_ns, actions);
                }
            }
        }
    }

    /// Returns the initial weights of the next program's groups, where they differ from the configured ones.
    pub(super) fn first_weights(&self) -> Vec<(String, String, u32)> {
        let of = |service: &Service| {
            let group = format!("{}/{}", crate::NAME, service.name);
            let is_other = |row: &&Row| match row.now() {
                Some(0) => row.full > 0 || row.configured > 0,
                now => now.is_some() && row.given(service.scale).is_some(),
            };
            let rows = service.rows.iter().filter(is_other);
            let weight = |row: &Row| row.now().map(|weight| (group.clone(), row.name.clone(), weight));
            rows.filter_map(weight).collect::<Vec<_>>()
        };
        self.services.iter().flat_map(of).collect()
    }
}
