//! Flow records for other programs, for which weir's own summaries are not enough.

mod flow_file;
pub mod flows;
pub mod ipfix;
#[cfg(feature = "parquet")]
pub mod parquet;

pub use flow_file::FlowFile;

use crate::FlowRecord;
use std::sync::Arc;
use weir_app::names::Name;

/// A sentence that says which build writes Parquet, for users of a build that does not; `None` in a build
/// that does.
pub const NO_PARQUET: Option<&str> = if cfg!(feature = "parquet") {
    None
} else {
    Some("this build of weir does not write Parquet: build it with `--features parquet`")
};

/// Why the counts of a flow were reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// No packet arrived during the idle timeout.
    Idle,
    /// The flow continues: a period ended, or it had many packets.
    Active,
    /// Its TCP connection has ended.
    Closed,
    /// The flow was removed, or the program has stopped.
    Forced,
    /// The flow was evicted for another one.
    Evicted,
}

impl End {
    /// The value of `flowEndReason` (RFC 5102 section 5.11.3).
    #[must_use]
    pub fn reason(self) -> u8 {
        match self {
            End::Idle => 1,
            End::Active => 2,
            End::Closed => 3,
            End::Forced => 4,
            End::Evicted => 5,
        }
    }
}

/// A record, and why it was reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// The counts of the flow since its last record. Times are nanoseconds since 1970.
    pub record: FlowRecord,
    /// Why the record was reported.
    pub end: End,
    /// The target chosen for the flow, as `GROUP/TARGET`: a back end, a member of a bond.
    pub target: Option<Arc<str>>,
    /// The port on which the flow's first packet arrived.
    pub ingress: Option<Arc<str>>,
    /// Where the flow was observed: the pipe, or the overlay's flow table.
    pub point: Option<Arc<str>>,
    /// The names that the source and the destination had when the record was reported.
    pub names: [Option<Arc<Name>>; 2],
}
