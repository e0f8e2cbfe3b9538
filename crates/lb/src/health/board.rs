//! The status of back ends that the running app publishes. Other code builds the table of `weir show
//! backends` from it.

use std::collections::BTreeMap;
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
}

/// Back ends by service and name.
pub type Rows = BTreeMap<(String, String), BackEndReport>;

/// The board on which the app publishes the status of back ends. Two boards are equal if they are the same
/// object.
#[derive(Clone, Debug, Default)]
pub struct HealthPublisher(Arc<Mutex<Rows>>);

impl HealthPublisher {
    /// Locks the rows for reading and writing. The lock is never held longer than a copy takes.
    pub fn look(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
