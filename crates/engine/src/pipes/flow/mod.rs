//! FLOW: exact match on the flow key; packets write the entries, following the pipe's own entries.

mod age;
mod ages;
mod decided;
mod followed;
mod kept;
mod lookup;
mod migrate;
mod nat;
mod new_flows;
mod observations;
mod pairs;
mod period;
mod reopen;
mod segments;
mod swap;
mod table;
mod takeover;

pub use ages::Ages;
pub use decided::Renumbering;
pub use migrate::Migrants;
pub use new_flows::NewFlowState;
pub use segments::IdleSegment;
pub use table::{Flows, first_targets};
pub use takeover::Record;
