//! Changes of the configuration that are made in the running program in place, because only targets of groups
//! differ ([`weir_app::edits::Amended`]). Another thread prepares them; the main thread then makes one change
//! after the other on all workers, and replaces the plan. Packets are sent to a target only while its entries
//! exist.

use super::Daemon;
use super::amendment::Amendment;
use anyhow::Result;
use serde_json::Value;
use std::sync::Arc;
use tracing::warn;
use weir_app::Event;
use weir_app::edits::AmendedGroup;
use weir_program::CounterId;
use weir_program::change::{Change, ChangeError};

impl Daemon {
    /// Makes a change in place. Returns a sentence for the log, and what has changed; `None` if a worker has
    /// refused a part of the change, so that a whole program must be prepared instead.
    pub(super) fn amend(&mut self, amendment: Amendment) -> Option<(String, Value)> {
        let Amendment { mut plan, groups, counters, takes, summary } = amendment;
        let stay: Vec<Option<usize>> = (0..plan.ports.len()).map(Some).collect();
        let taken = if takes { self.interfaces.set_take(&plan, &stay, &self.plan) } else { Ok(()) };
        if let Err(why) = taken.and_then(|()| self.change_groups(&groups, counters)) {
            warn!("a change could not be made in place, and is made by a reload: {why:#}");
            return None;
        }
        for (group, now) in plan.program.groups.iter_mut().zip(self.tables.groups()) {
            (group.targets, group.size) = (Arc::clone(&now.targets), now.size);
        }
        for AmendedGroup { group, .. } in &groups {
            // Apps set the weights of this group again.
            self.weights.retain(|(of, _), _| of != group);
        }
        let former = std::mem::replace(&mut self.plan, Arc::new(plan));
        let _ = self.disposal.send(Box::new(former));
        self.vocabulary.set(self.generation, &self.plan);
        let plan = Arc::clone(&self.plan);
        self.agents.prepare(&super::next(&plan, self.generation, self.names.board()));
        if let Err(error) = self.follow_agents(&plan) {
            tracing::error!("{error:#}");
        }
        self.host.running.amend(&plan.apps, &plan.program);
        self.deliver_to_all(Event::Amended);
        let services = if groups.len() == 1 { "service" } else { "services" };
        Some((format!("{} {services} changed in place", groups.len()), summary))
    }

    /// Makes the workers send packets to other targets.
    fn change_groups(&mut self, groups: &[AmendedGroup], counters: Arc<[(CounterId, String)]>) -> Result<()> {
        if !counters.is_empty() {
            self.fleet.change(&Change::NameCounters(counters), self.clock)??;
        }
        for AmendedGroup { group, targets, size, before, after } in groups {
            before.iter().try_for_each(|change| self.change_entry(change))?;
            let published = self.tables.replace(*group, targets, *size)?;
            self.fleet.change(&published, self.clock)??;
            after.iter().try_for_each(|change| self.change_entry(change))?;
        }
        Ok(())
    }

    /// Changes an entry. It is no error if it does not exist: an app removes the entries of a target to which
    /// nothing may be sent.
    fn change_entry(&mut self, change: &Change) -> Result<()> {
        match self.fleet.change(change, self.clock)? {
            Err(ChangeError::NotFound { .. }) if !matches!(change, Change::Add { .. }) => Ok(()),
            other => Ok(other?),
        }
    }
}
