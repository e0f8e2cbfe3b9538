//! Flow records for other programs: what leaves weir when its own summaries are not enough.

pub mod ipfix;

use crate::FlowRecord;

/// Why the counts of a flow were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// No packet came for the time after which flows go.
    Idle,
    /// The flow lives on: a period ended, or it had many packets.
    Active,
    /// The flow was removed, or the program has stopped.
    Forced,
    /// The flow made room for another one.
    Evicted,
}

/// A record, and why it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Given {
    /// What the flow has counted since its last record. Times are nanoseconds since 1970.
    pub record: FlowRecord,
    /// Why it was given.
    pub end: End,
}
