//! The status of back ends that the running app publishes. Other code builds the table of `weir show
//! backends` from it.

use super::monitor::LastCheck;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_app::neighbour::Mac;

/// The published status of a back end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackEndReport {
    /// Its status, in one word.
    pub health: &'static str,
    /// The reason; empty if there is nothing to explain.
    pub reason: String,
    /// Its MAC address, if it is resolved and known.
    pub mac: Option<Mac>,
    /// The weight that it has when nothing is wrong, as shown by `weir lb list`.
    pub weight: Option<u32>,
    /// Its last completed check, if there is one.
    pub checked: Option<LastCheck>,
}

/// Back ends by service and name.
pub type Rows = BTreeMap<(String, String), BackEndReport>;

/// The board on which the app publishes the status of back ends. Two boards are equal if they are the same
/// object.
#[derive(Clone, Debug, Default)]
pub struct HealthPublisher(Arc<Board>);

#[derive(Debug, Default)]
struct Board {
    rows: Mutex<Rows>,
    /// How often a weight has changed.
    weights: AtomicU64,
}

impl HealthPublisher {
    /// Locks the rows. The lock is never held longer than a copy takes.
    pub fn look(&self) -> MutexGuard<'_, Rows> {
        self.0.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the status of a back end. Returns the previous status.
    pub fn publish(&self, service: &str, back_end: &str, report: BackEndReport) -> Option<BackEndReport> {
        let weight = report.weight;
        let before = self.look().insert((service.to_string(), back_end.to_string()), report);
        if before.as_ref().and_then(|before| before.weight) != weight {
            self.0.weights.fetch_add(1, Ordering::Release);
        }
        before
    }

    /// Removes a back end.
    pub fn forget(&self, service: &str, back_end: &str) {
        self.look().remove(&(service.to_string(), back_end.to_string()));
        self.0.weights.fetch_add(1, Ordering::Release);
    }

    /// Returns how often a published weight has changed.
    #[must_use]
    pub fn weights_version(&self) -> u64 {
        self.0.weights.load(Ordering::Acquire)
    }

    /// Returns the published status of all back ends of a service, by name.
    #[must_use]
    pub fn of_service(&self, service: &str) -> Vec<(String, BackEndReport)> {
        let rows = self.look();
        let all = rows.range((service.to_string(), String::new())..);
        let own = all.take_while(|((of, _), _)| of == service);
        own.map(|((_, name), report)| (name.clone(), report.clone())).collect()
    }

    /// Returns the published status of a back end, or the default if there is none.
    #[must_use]
    pub fn of(&self, service: &str, back_end: &str) -> BackEndReport {
        self.look().get(&(service.to_string(), back_end.to_string())).cloned().unwrap_or_default()
    }
}

impl PartialEq for HealthPublisher {
    fn eq(&self, other: &HealthPublisher) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
