//! Weights that were set at run time, and how a reload treats them: a new program starts with the weights of
//! its file, but those set while it was being prepared are set again.

use super::Daemon;
use crate::config::Plan;
use tracing::{error, warn};
use weir_program::change::Change;

impl Daemon {
    /// Logs which weights that were set at run time do not apply in the new program. Apps report their own
    /// weights, and those in `again` are set again.
    pub(super) fn say_discarded(&self, former: &Plan, again: &[(String, String, u32)]) {
        for ((group, at), weight) in &self.weights {
            let group = &former.program.groups[group.index()];
            let Some(target) = group.targets.get(usize::from(*at)) else { continue };
            let (group, target) = (&group.name, &target.name);
            let is_again = again.iter().any(|(one, name, _)| (one, name) == (group, target));
            if is_again || self.host.running.weighing(group, target, *weight).is_some() {
                continue;
            }
            let now = self.plan.program.group_named(group);
            let mut targets = now.iter().flat_map(|id| self.plan.program.groups[id.index()].targets.iter());
            if let Some(now) = targets.find(|one| one.name == *target).filter(|one| one.weight != *weight) {
                let now = now.weight;
                let what = format!("the weight {weight} of {group}/{target}, set at run time, is discarded");
                warn!("{what}: the file now says {now}");
            }
        }
    }

    /// Sets a weight of the previous program again, if the new one has such a target.
    pub(super) fn set_weight_again(&mut self, group: &str, target: &str, weight: u32) {
        let Some(id) = self.plan.program.group_named(group) else { return };
        let targets = &self.plan.program.groups[id.index()].targets;
        let Some(at) = targets.iter().position(|one| one.name == target) else { return };
        let change = Change::SetWeight { group: id, target: at as u16, weight };
        if let Err(error) = self.change(&change) {
            error!("the weight of {group}/{target} could not be set in the new program: {error:#}");
        }
    }
}
