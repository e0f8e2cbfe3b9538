//! Conditions of objects of the Gateway API.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;

/// The maximum number of nodes that a condition names.
const BEHIND_MAX: usize = 8;

/// The conditions of an object.
pub(crate) struct ConditionSet {
    generation: Option<i64>,
    now: Timestamp,
    /// Also those that others have added, which have to stay.
    pub all: Vec<Condition>,
}

impl ConditionSet {
    /// Begins with the conditions that the object has.
    pub(crate) fn new(before: &[Condition], meta: &ObjectMeta, now: Timestamp) -> ConditionSet {
        ConditionSet { generation: meta.generation, now, all: before.to_vec() }
    }

    /// Adds a condition, or replaces the one of the same type. Its transition time changes only when its
    /// status does.
    pub(crate) fn set(&mut self, kind: &str, is_true: bool, reason: &str, message: impl Into<String>) {
        let status = if is_true { "True" } else { "False" };
        let mut new = Condition {
            type_: kind.into(),
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
            observed_generation: self.generation,
            last_transition_time: Time(self.now),
        };
        match self.all.iter_mut().find(|one| one.type_ == kind) {
            Some(before) => {
                if before.status == new.status {
                    new.last_transition_time = before.last_transition_time.clone();
                }
                *before = new;
            }
            None => self.all.push(new),
        }
    }

    /// Adds the condition `Programmed`, given the nodes that have not confirmed the services.
    pub(crate) fn programmed(&mut self, behind: &BTreeSet<&str>) {
        if behind.is_empty() {
            return self.set("Programmed", true, "Programmed", "all nodes have its services");
        }
        let named: Vec<&str> = behind.iter().copied().take(BEHIND_MAX).collect();
        let others = behind.len() - named.len();
        let others = if others > 0 { format!(" and {others} others") } else { String::new() };
        let why = format!("these nodes have not confirmed its services: {}{others}", named.join(", "));
        self.set("Programmed", false, "Pending", why);
    }

    /// Adds the conditions of a route.
    pub(crate) fn of_route(
        &mut self,
        is_nowhere: bool,
        is_refused: bool,
        problem: Option<&(&'static str, String)>,
    ) {
        if is_nowhere {
            let why = "the gateway has no listener with this name or port";
            self.set("Accepted", false, "NoMatchingParent", why);
        } else if is_refused {
            let why = "no listener allows routes of this kind from this namespace";
            self.set("Accepted", false, "NotAllowedByListeners", why);
        } else {
            self.set("Accepted", true, "Accepted", "the route is attached");
        }
        match problem {
            Some((reason, why)) => self.set("ResolvedRefs", false, reason, why.clone()),
            None => self.set("ResolvedRefs", true, "ResolvedRefs", "all references are resolved"),
        }
    }
}
