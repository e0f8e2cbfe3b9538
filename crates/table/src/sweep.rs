//! What becomes of flows that a sweep of their table visits: see [`crate::FlowTable::sweep`].

use crate::delta::DeltaReason;
use crate::flow::Flow;

/// What a sweep does with a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays as it is.
    Stays,
    /// It leaves the table.
    Goes(DeltaReason),
    /// It gives its counts and starts anew.
    Restarts(DeltaReason),
}

/// Visits the flows of a table, see [`crate::FlowTable::sweep`].
pub trait Visitor {
    /// Returns what to do with a flow.
    fn judge(&self, flow: &Flow) -> Fate;

    /// Accepts the counts of a flow that goes or restarts, or refuses them; then the flow stays.
    fn accept(&mut self, flow: &Flow, fate: Fate) -> bool;
}
